// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a donor remembers of its fabric managers when it is restarted: the greatest term, and the last token.
//!
//! A donor that forgot the term would obey a deposed manager; one that minted a token twice would take a stale agent
//! for a new one. The file is JSON, is replaced by rename, and is on the disk before anything rests on it.
//!
//! Without a file, tokens begin with the time in milliseconds, so that a later start of the donor mints greater ones,
//! however soon it follows. A clock that repeats a millisecond repeats tokens, unless there is a file.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aquifer_fabric::Term;
use aquifer_wire::RESERVATION_TOKENS;
use serde::{Deserialize, Serialize};

/// The version of the file.
const VERSION: u32 = 1;
/// Longest file: three numbers and their names.
const FILE_BYTES_MAX: u64 = 4096;
/// 2020-01-01. Tokens of donors that remember nothing count the milliseconds from then on, and last until 2089.
const EPOCH: Duration = Duration::from_secs(1_577_836_800);
/// The lowest bits of a token count within a millisecond. No donor mints 2048 in one: each is a manager's command.
const TOKENS_PER_MS_BITS: u32 = 11;

/// The file's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    term: Term,
    token: u64,
}

/// Why the file cannot be used: one line with the remedy.
#[derive(Debug)]
#[non_exhaustive]
pub enum RememberFailure {
    /// It cannot be read or written.
    Io(PathBuf, io::Error),
    /// It is damaged, or of another version of this program.
    Unusable(PathBuf),
}

impl fmt::Display for RememberFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, error) => {
                write!(f, "{}: {error}; name a file in a directory that this user may write to", path.display())
            }
            Self::Unusable(path) => write!(
                f,
                "{} is damaged or of another version; restore it, or remove it when no deposed manager runs",
                path.display()
            ),
        }
    }
}

impl std::error::Error for RememberFailure {}

/// The greatest term and the last token.
#[derive(Debug)]
pub(crate) struct Remembered {
    path: Option<PathBuf>,
    term: Term,
    token: u64,
}

impl Remembered {
    /// Reads the file; one that does not exist yet remembers nothing. `random` is another number at each start.
    pub(crate) fn open(path: Option<&Path>, random: u64) -> Result<Remembered, RememberFailure> {
        let token = before_first(SystemTime::now(), random);
        let mut remembered = Remembered { path: path.map(Path::to_owned), term: Term(0), token };
        let Some(path) = path else { return Ok(remembered) };
        match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A directory that cannot be written to is reported at the start.
                remembered.save(Term(0), remembered.token)?;
                return Ok(remembered);
            }
            Err(error) => return Err(RememberFailure::Io(path.to_owned(), error)),
            Ok(found) if found.len() > FILE_BYTES_MAX => return Err(RememberFailure::Unusable(path.to_owned())),
            Ok(_) => {}
        }
        let text = fs::read(path).map_err(|error| RememberFailure::Io(path.to_owned(), error))?;
        let contents: Option<Contents> = serde_json::from_slice(&text).ok();
        let contents = contents.filter(|contents| contents.version == VERSION && contents.token < RESERVATION_TOKENS);
        let contents = contents.ok_or_else(|| RememberFailure::Unusable(path.to_owned()))?;
        remembered.term = contents.term;
        remembered.token = remembered.token.max(contents.token);
        Ok(remembered)
    }

    /// The greatest term.
    pub(crate) fn term(&self) -> Term {
        self.term
    }

    /// Remembers a term, if it is greater.
    pub(crate) fn see(&mut self, term: Term) -> Result<(), RememberFailure> {
        if term > self.term { self.save(term, self.token) } else { Ok(()) }
    }

    /// A token greater than all before it. `None`: there are no more.
    pub(crate) fn mint(&mut self) -> Result<Option<u64>, RememberFailure> {
        let token = self.token + 1;
        if token >= RESERVATION_TOKENS {
            return Ok(None);
        }
        self.save(self.term, token)?;
        Ok(Some(token))
    }

    fn save(&mut self, term: Term, token: u64) -> Result<(), RememberFailure> {
        if let Some(path) = &self.path {
            let contents = Contents { version: VERSION, term, token };
            write(path, &contents).map_err(|error| RememberFailure::Io(path.clone(), error))?;
        }
        (self.term, self.token) = (term, token);
        Ok(())
    }
}

/// The number before the first token of a donor that remembers none. A clock before 2020 was never set, and begins at
/// the same time at each boot: then it is random, as after 2089.
fn before_first(now: SystemTime, random: u64) -> u64 {
    let since = now.duration_since(UNIX_EPOCH).ok().and_then(|since| since.checked_sub(EPOCH));
    let ms = since.and_then(|since| u64::try_from(since.as_millis()).ok());
    let ms = ms.filter(|ms| *ms < RESERVATION_TOKENS >> TOKENS_PER_MS_BITS);
    ms.map_or(random % RESERVATION_TOKENS / 2, |ms| ms << TOKENS_PER_MS_BITS)
}

fn write(path: &Path, contents: &Contents) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let mut file = File::create(&new)?;
    file.write_all(&serde_json::to_vec(contents)?)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("aquifer-remembered-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a directory");
        directory.join("donor.json")
    }

    #[test]
    fn the_greatest_term_and_the_last_token_survive_a_restart() {
        let path = file("restart");
        let mut first = Remembered::open(Some(&path), 1).expect("new");
        first.see(Term(7)).expect("saved");
        first.see(Term(3)).expect("nothing to save");
        let token = first.mint().expect("saved").expect("there are more");
        let mut again = Remembered::open(Some(&path), 1).expect("opened");
        assert_eq!(again.term(), Term(7));
        assert!(again.mint().expect("saved") > Some(token));
    }

    #[test]
    fn a_damaged_file_is_refused_and_left_alone() {
        let path = file("damaged");
        Remembered::open(Some(&path), 1).expect("new").see(Term(7)).expect("saved");
        let whole = fs::read(&path).expect("read");
        let other = String::from_utf8(whole.clone()).expect("JSON").replace("\"version\":1", "\"version\":2");
        for text in [&whole[..whole.len() - 1], b"", other.as_bytes(), &[b' '; 5000]] {
            fs::write(&path, text).expect("written");
            let refusal = Remembered::open(Some(&path), 1).expect_err("refused").to_string();
            assert!(refusal.contains("of another version; restore it"), "{refusal}");
            assert_eq!(fs::read(&path).expect("read"), text);
        }
    }

    #[test]
    fn what_cannot_be_saved_is_not_remembered() {
        let path = file("unwritable");
        let mut remembered = Remembered::open(Some(&path), 1).expect("new");
        fs::remove_dir_all(path.parent().expect("it has one")).expect("removed");
        assert!(remembered.see(Term(9)).is_err() && remembered.mint().is_err());
        assert_eq!(remembered.term(), Term(0));
        let missing = Remembered::open(Some(&path), 1).expect_err("no directory").to_string();
        assert!(missing.contains("name a file in a directory"), "{missing}");
    }

    /// They began with the time in seconds: a donor that was killed soon after it had lent to several hosts minted the
    /// same tokens again, and an agent that knew of no restart borrowed from another host's reservation.
    #[test]
    fn tokens_grow_from_start_to_start_without_a_file() {
        let start = || {
            std::thread::sleep(Duration::from_millis(1));
            let mut donor = Remembered::open(None, 1).expect("nothing to read");
            [(); 100].map(|()| donor.mint().expect("nothing to save").expect("there are more"))
        };
        let starts = [start(), start(), start()].concat();
        let repeated = starts.windows(2).find(|pair| pair[0] >= pair[1]);
        assert_eq!(repeated, None);
        assert!(starts.iter().all(|token| *token < RESERVATION_TOKENS / 2));
    }

    #[test]
    fn a_clock_that_is_not_set_yields_random_tokens() {
        let (unset, late) = (UNIX_EPOCH, UNIX_EPOCH + EPOCH + Duration::from_secs(86_400 * 365 * 100));
        for now in [unset, late] {
            let (first, other) = (before_first(now, 1 << 40), before_first(now, u64::MAX));
            assert!(first != other && first.max(other) < RESERVATION_TOKENS - 1);
        }
        let set = UNIX_EPOCH + EPOCH + Duration::from_secs(86_400 * 365 * 69);
        assert_eq!(before_first(set, 1), before_first(set, 2), "tokens follow the time until 2088 at least");
    }
}
