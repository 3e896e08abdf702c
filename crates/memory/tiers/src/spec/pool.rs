// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Parses what follows `pool:`, a volume of the pool, into a checked description.
//!
//! Pure.

use aquifer_agent_wire::{NAME_BYTES_MAX, SOCKET, is_name};

use super::TierSpec;
use super::grammar::{options, set_size, unknown};
use crate::pool::PoolSpec;

/// The longest path of a socket: unix(7).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// `VOLUME`, and options.
pub(super) fn parse(rest: &str) -> Result<TierSpec, String> {
    let (volume, rest) = rest.split_once(',').unwrap_or((rest, ""));
    if volume.is_empty() {
        return Err("a pool tier needs a volume; write pool:VOLUME with its name or its id".into());
    }
    if !is_name(volume) {
        return Err(format!(
            "'{volume}' cannot be the name of a volume; use a-z, 0-9, '-', '_' and '.', {NAME_BYTES_MAX} at most, and \
             begin with a letter or a digit"
        ));
    }
    let (mut size, mut agent) = (None, None);
    for option in options(rest) {
        match option {
            ("size", Some(value)) => set_size(&mut size, value)?,
            ("agent", Some(_)) if agent.is_some() => return Err("agent= is given twice; give it once".into()),
            ("agent", Some(path)) if !path.is_empty() && path.len() <= SOCKET_PATH_BYTES_MAX => agent = Some(path),
            ("agent", Some(path)) => {
                return Err(format!(
                    "'{path}' is not a socket path; write agent=SOCKET with a path of {SOCKET_PATH_BYTES_MAX} bytes at \
                     most"
                ));
            }
            (name, _) => return Err(unknown(name, "agent=SOCKET, size=SIZE or encrypt=ephemeral")),
        }
    }
    Ok(TierSpec::Pool(PoolSpec { volume: volume.into(), agent: agent.unwrap_or(SOCKET).into(), size, tree: None }))
}

#[cfg(test)]
mod tests {
    use aquifer_core::units::ByteSize;

    use super::*;

    #[test]
    fn a_volume_is_opened_through_an_agent() {
        let spec = |volume: &str, agent: &str, size| {
            TierSpec::Pool(PoolSpec { volume: volume.into(), agent: agent.into(), size, tree: None })
        };
        assert_eq!("pool:db".parse(), Ok(spec("db", SOCKET, None)));
        let full = spec("00000000000000a1", "/run/a b.sock", Some(ByteSize(1 << 30)));
        assert_eq!("pool:00000000000000a1,size=1GiB,agent=/run/a b.sock".parse(), Ok(full));
        let sealed: TierSpec = "pool:db,encrypt=ephemeral".parse().unwrap();
        assert_eq!(sealed, TierSpec::Encrypted { inner: Box::new(spec("db", SOCKET, None)) });
        assert!(sealed.is_same_place(&spec("db", "/other", None)));
    }

    #[test]
    fn every_bad_volume_gets_one_line_with_cause_and_remedy() {
        let long = format!("pool:{}", "x".repeat(64));
        let path = format!("pool:db,agent=/{}", "x".repeat(107));
        for (text, cause, remedy) in [
            ("pool:", "needs a volume", "pool:VOLUME"),
            ("pool:,size=1GiB", "needs a volume", "pool:VOLUME"),
            ("pool:Db", "'Db'", "use a-z"),
            ("pool:../db", "'../db'", "use a-z"),
            ("pool:d\u{430}ta", "cannot be the name", "use a-z"),
            (&long, "cannot be the name", "63 at most"),
            ("pool:db,size=1GiB,size=2GiB", "twice", "once"),
            ("pool:db,agent=/a,agent=/b", "twice", "once"),
            ("pool:db,agent=", "not a socket path", "agent=SOCKET"),
            (&path, "not a socket path", "107 bytes"),
            ("pool:db,mirror=2", "'mirror'", "agent=SOCKET"),
            ("pool:db,agnet=/a", "'agnet'", "did you mean agent?"),
        ] {
            let message = text.parse::<TierSpec>().expect_err(text).to_string();
            assert!(message.contains(cause) && message.contains(remedy), "{text}: {message}");
            assert!(!message.contains('\n'), "{text}: {message}");
        }
    }
}
