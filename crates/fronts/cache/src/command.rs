// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Turns the words of a request into one command, or into an error with Redis's text. Pure.

use std::fmt;

use crate::request::integer;

/// Maximum length of a key. Longer ones would be data, and would slow the cleaner down.
pub const KEY_BYTES_MAX: usize = 4096;
/// How many characters of a client's words an error quotes.
const QUOTED_CHARS_MAX: usize = 64;

/// When a key expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// The key expires at this time, in milliseconds of Unix time.
    At(u64),
    /// The key expires at the time that was set before.
    Keep,
    /// The key never expires.
    Never,
}

/// Whether `SET` may store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The value is stored in any case.
    Always,
    /// The value is stored only if the key exists.
    Exists,
    /// The value is stored only if the key does not exist.
    Missing,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'r> {
    /// Adds to a number.
    Add {
        /// The key of the number.
        key: &'r [u8],
        /// The addend.
        by: i64,
    },
    /// Asks for something about the connection or the server that always succeeds and changes nothing.
    Agree,
    /// Asks for the list of commands, which is always empty: clients take that for "unknown".
    Commands,
    /// Asks for the number of keys.
    DbSize,
    /// Removes keys.
    Del(Vec<&'r [u8]>),
    /// Asks for the same word.
    Echo(&'r [u8]),
    /// Asks how many of these keys exist.
    Exists(Vec<&'r [u8]>),
    /// Sets when a key expires.
    Expire {
        /// The key that is to expire.
        key: &'r [u8],
        /// The time at which the key expires, in milliseconds of Unix time.
        at_ms: u64,
    },
    /// Removes all keys.
    Flush,
    /// Asks for the value of a key.
    Get(&'r [u8]),
    /// Asks for the figures of the server.
    Info,
    /// Asks for the values of several keys.
    MGet(Vec<&'r [u8]>),
    /// Sets the values of several keys.
    MSet(Vec<(&'r [u8], &'r [u8])>),
    /// Lets a key never expire.
    Persist(&'r [u8]),
    /// Asks for a sign of life.
    Ping(Option<&'r [u8]>),
    /// Ends the connection.
    Quit,
    /// Sets the value of a key.
    Set {
        /// The key to set.
        key: &'r [u8],
        /// The value to store.
        value: &'r [u8],
        /// When the key expires.
        expiry: Expiry,
        /// The condition under which the value is stored.
        condition: Condition,
        /// Whether the reply is the previous value.
        returns_old: bool,
    },
    /// Asks for settings. The reply is an empty array: the server has none of Redis's settings.
    Settings,
    /// Asks how long a key will live.
    Ttl {
        /// The key that is asked about.
        key: &'r [u8],
        /// Milliseconds in one unit of the reply.
        unit_ms: u64,
    },
}

/// Why a request is not a command. Its text is Redis's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandFailure {
    /// The request has too few or too many words.
    Arguments(String),
    /// There is only database 0.
    Database,
    /// The expiry time is impossible.
    ExpireTime(String),
    /// The request is what an HTTP client sends. The connection is closed, because a web page may have sent the
    /// request.
    Http,
    /// A key is longer than [`KEY_BYTES_MAX`].
    KeyTooLong,
    /// A word that must be a number is none.
    NotInteger,
    /// Some words mean nothing here.
    Syntax,
    /// There is no such command. The texts are the name and the words after it.
    Unknown(String, String),
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arguments(name) => write!(f, "ERR wrong number of arguments for '{name}' command"),
            Self::Database => f.write_str("ERR DB index is out of range"),
            Self::ExpireTime(name) => write!(f, "ERR invalid expire time in '{name}' command"),
            Self::Http => f.write_str("ERR this is not an HTTP server"),
            Self::KeyTooLong => write!(f, "ERR a key has at most {KEY_BYTES_MAX} bytes; use a digest of it"),
            Self::NotInteger => f.write_str("ERR value is not an integer or out of range"),
            Self::Syntax => f.write_str("ERR syntax error"),
            Self::Unknown(name, words) => write!(f, "ERR unknown command '{name}', with args beginning with: {words}"),
        }
    }
}

/// Parses the words of one request, of which there is at least one. Times are relative to `now_ms` of Unix time.
pub fn parse<'r>(words: &[&'r [u8]], now_ms: u64) -> Result<Command<'r>, CommandFailure> {
    let mut name = [0; 16];
    let Some(name) = name.get_mut(..words[0].len()) else { return Err(unknown(words)) };
    name.copy_from_slice(words[0]);
    name.make_ascii_lowercase();
    let shown = || String::from_utf8_lossy(words[0]).to_lowercase();
    let arguments = || CommandFailure::Arguments(shown());
    let one = || if words.len() == 2 { key(words[1]) } else { Err(arguments()) };
    let keys = || if words.len() > 1 { words[1..].iter().map(|word| key(word)).collect() } else { Err(arguments()) };
    let exactly = |count: usize| if words.len() == count { Ok(()) } else { Err(arguments()) };
    let number = |index: usize| integer(words[index]).ok_or(CommandFailure::NotInteger);
    Ok(match &*name {
        b"get" => Command::Get(one()?),
        b"set" => return set(words, now_ms),
        b"mget" => Command::MGet(keys()?),
        b"mset" if words.len() > 1 && words.len() % 2 == 1 => {
            let pairs = words[1..].chunks_exact(2).map(|pair| Ok((key(pair[0])?, pair[1])));
            Command::MSet(pairs.collect::<Result<_, _>>()?)
        }
        b"mset" => return Err(arguments()),
        b"del" | b"unlink" => Command::Del(keys()?),
        b"exists" => Command::Exists(keys()?),
        b"incr" => Command::Add { key: one()?, by: 1 },
        b"decr" => Command::Add { key: one()?, by: -1 },
        b"incrby" | b"decrby" => {
            exactly(3)?;
            let by = number(2)?;
            let by = if name[0] == b'i' { Some(by) } else { by.checked_neg() };
            Command::Add { key: key(words[1])?, by: by.ok_or(CommandFailure::NotInteger)? }
        }
        b"expire" | b"pexpire" => {
            exactly(3)?;
            let unit_ms = if name[0] == b'p' { 1 } else { 1000 };
            let at_ms = i128::from(number(2)?) * unit_ms + i128::from(now_ms);
            let at_ms = u64::try_from(at_ms.max(0)).ok().filter(|at_ms| *at_ms <= i64::MAX as u64);
            Command::Expire { key: key(words[1])?, at_ms: at_ms.ok_or(CommandFailure::ExpireTime(shown()))? }
        }
        b"persist" => Command::Persist(one()?),
        b"ttl" => Command::Ttl { key: one()?, unit_ms: 1000 },
        b"pttl" => Command::Ttl { key: one()?, unit_ms: 1 },
        b"ping" if words.len() <= 2 => Command::Ping(words.get(1).copied()),
        b"ping" => return Err(arguments()),
        b"echo" => {
            exactly(2)?;
            Command::Echo(words[1])
        }
        b"select" => {
            exactly(2)?;
            if number(1)? != 0 {
                return Err(CommandFailure::Database);
            }
            Command::Agree
        }
        b"info" => Command::Info,
        b"dbsize" => {
            exactly(1)?;
            Command::DbSize
        }
        b"flushall" | b"flushdb" => match &words[1..] {
            [] => Command::Flush,
            [how] if [&b"async"[..], b"sync"].iter().any(|it| how.eq_ignore_ascii_case(it)) => Command::Flush,
            _ => return Err(CommandFailure::Syntax),
        },
        b"command" => Command::Commands,
        b"config" if words.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"get")) => Command::Settings,
        b"client" if words.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"setname")) => Command::Agree,
        b"client" if words.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"setinfo")) => Command::Agree,
        b"quit" => Command::Quit,
        b"post" | b"host:" => return Err(CommandFailure::Http),
        _ => return Err(unknown(words)),
    })
}

fn key(word: &[u8]) -> Result<&[u8], CommandFailure> {
    if word.len() > KEY_BYTES_MAX { Err(CommandFailure::KeyTooLong) } else { Ok(word) }
}

fn unknown(words: &[&[u8]]) -> CommandFailure {
    let quoted = |word: &&[u8]| String::from_utf8_lossy(word).chars().take(QUOTED_CHARS_MAX).collect::<String>();
    let rest: Vec<String> = words[1..].iter().take(3).map(|word| format!("'{}'", quoted(word))).collect();
    CommandFailure::Unknown(quoted(&words[0]), rest.join(" "))
}

fn set<'r>(words: &[&'r [u8]], now_ms: u64) -> Result<Command<'r>, CommandFailure> {
    let [_, name, value, options @ ..] = words else { return Err(CommandFailure::Arguments("set".to_owned())) };
    let (mut expiry, mut condition, mut returns_old) = (None, Condition::Always, false);
    let mut options = options.iter();
    while let Some(option) = options.next() {
        let option = option.to_ascii_uppercase();
        match &*option {
            b"NX" if condition == Condition::Always => condition = Condition::Missing,
            b"XX" if condition == Condition::Always => condition = Condition::Exists,
            b"GET" => returns_old = true,
            b"KEEPTTL" if expiry.is_none() => expiry = Some(Expiry::Keep),
            b"EX" | b"PX" | b"EXAT" | b"PXAT" if expiry.is_none() => {
                let number =
                    integer(options.next().ok_or(CommandFailure::Syntax)?).ok_or(CommandFailure::NotInteger)?;
                expiry = Some(Expiry::At(expiry_of(&option, number, now_ms)?));
            }
            _ => return Err(CommandFailure::Syntax),
        }
    }
    let expiry = expiry.unwrap_or(Expiry::Never);
    Ok(Command::Set { key: key(name)?, value, expiry, condition, returns_old })
}

/// Returns the time at which a value expires, as an option of `SET` says.
fn expiry_of(option: &[u8], number: i64, now_ms: u64) -> Result<u64, CommandFailure> {
    let unit_ms = if option.starts_with(b"P") { 1 } else { 1000 };
    let since_ms = if option.ends_with(b"AT") { 0 } else { now_ms };
    let at_ms = u64::try_from(number).ok().filter(|number| *number > 0);
    let at_ms = at_ms.and_then(|number| number.checked_mul(unit_ms)?.checked_add(since_ms));
    at_ms.filter(|at_ms| *at_ms <= i64::MAX as u64).ok_or_else(|| CommandFailure::ExpireTime("set".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_000_000;

    fn parsed(line: &str) -> Result<Command<'_>, String> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        parse(&words, NOW_MS).map_err(|failure| failure.to_string())
    }

    #[test]
    fn commands_are_read_in_any_case() {
        assert_eq!(parsed("gEt k"), Ok(Command::Get(b"k")));
        assert_eq!(parsed("mset a 1 b 2"), Ok(Command::MSet(vec![(b"a", b"1"), (b"b", b"2")])));
        assert_eq!(parsed("DECRBY k 5"), Ok(Command::Add { key: b"k", by: -5 }));
        assert_eq!(parsed("EXPIRE k 10"), Ok(Command::Expire { key: b"k", at_ms: NOW_MS + 10_000 }));
        assert_eq!(parsed("PEXPIRE k -2000000"), Ok(Command::Expire { key: b"k", at_ms: 0 }));
        assert_eq!(parsed("select 0"), Ok(Command::Agree));
        assert_eq!(parsed("FlushAll Async"), Ok(Command::Flush));
        assert_eq!(parsed("flushdb SYNC"), Ok(Command::Flush));
        let set =
            |expiry, condition, returns_old| Command::Set { key: b"k", value: b"v", expiry, condition, returns_old };
        assert_eq!(parsed("set k v"), Ok(set(Expiry::Never, Condition::Always, false)));
        assert_eq!(parsed("set k v px 5 nx"), Ok(set(Expiry::At(NOW_MS + 5), Condition::Missing, false)));
        assert_eq!(parsed("set k v EXAT 7 XX get"), Ok(set(Expiry::At(7000), Condition::Exists, true)));
        assert_eq!(parsed("set k v keepttl"), Ok(set(Expiry::Keep, Condition::Always, false)));
    }

    #[test]
    fn errors_are_in_the_words_of_redis() {
        for (line, error) in [
            ("get", "ERR wrong number of arguments for 'get' command"),
            ("MSET a", "ERR wrong number of arguments for 'mset' command"),
            ("set k v ex", "ERR syntax error"),
            ("set k v nx xx", "ERR syntax error"),
            ("set k v ex 1 px 1", "ERR syntax error"),
            ("set k v ex 0", "ERR invalid expire time in 'set' command"),
            ("set k v ex 9223372036854775807", "ERR invalid expire time in 'set' command"),
            ("set k v ex one", "ERR value is not an integer or out of range"),
            ("expire k 9223372036854775807", "ERR invalid expire time in 'expire' command"),
            ("incrby k 1.5", "ERR value is not an integer or out of range"),
            ("decrby k -9223372036854775808", "ERR value is not an integer or out of range"),
            ("flushall now", "ERR syntax error"),
            ("flushdb async sync", "ERR syntax error"),
            ("select 1", "ERR DB index is out of range"),
            ("lpush l x", "ERR unknown command 'lpush', with args beginning with: 'l' 'x'"),
            (
                "a-name-that-is-much-too-long",
                "ERR unknown command 'a-name-that-is-much-too-long', with args beginning with: ",
            ),
            ("POST / HTTP/1.1", "ERR this is not an HTTP server"),
        ] {
            assert_eq!(parsed(line), Err(error.to_owned()), "{line}");
        }
        let long = format!("get {}", "k".repeat(KEY_BYTES_MAX + 1));
        assert!(parsed(&long).unwrap_err().contains("a key has at most 4096 bytes"));
    }
}
