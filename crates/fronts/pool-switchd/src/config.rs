// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The configuration: the manager, the pool and the zone, and which donor or host is at which port. TOML; unknown keys
//! are refused.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use aquifer_cxl_switchd::Failure;
use aquifer_fabric::{DonorId, HostId, LatencyClass, NAME_BYTES_MAX, PoolId, ZoneId};
use aquifer_sys::small_file;
use serde::Deserialize;

use crate::view::VOLUME_PREFIX;

/// Maximum size of a configuration file, and of a password's.
const BYTES_MAX: u64 = 1 << 20;
/// Maximum number of donors, and of hosts: a switch has 32 ports and 16 virtual CXL switches.
pub(crate) const PLACES_MAX: usize = 16;
/// Longest name of a donor: the names of its logical devices' volumes have two hyphens and two digits more.
pub(crate) const DONOR_BYTES_MAX: usize = NAME_BYTES_MAX - VOLUME_PREFIX.len() - 3;
/// Maximum number of vPPBs of a virtual CXL switch.
const VPPBS_MAX: u8 = 32;
/// How long a bind or an unbind may wait for its host at most, in seconds. Clients of the FM API give up after a
/// minute, and the requests to the manager take time, too.
const SETTLE_SECONDS_MAX: u64 = 40;

/// What to correct where systemd has copied the password's file for the unit.
const COPIED: &str = "the file that LoadCredential= of the unit names, and restart the unit";

/// An example, with every setting.
pub(crate) const EXAMPLE: &str = r#"# The fabric manager. https needs the authorities to trust: ca = "FILE".
url = "http://127.0.0.1:7443"

# The other managers of the pool, one of which may lead.
members = []

# An account with the role Operator, and the file whose first line is its password. aquifer-pool-switchd.service reads
# /etc/aquifer/fmapi-password whatever is written here: its LoadCredential= names that file.
account = "fmapi"
password-file = "/etc/aquifer/fmapi-password"

# The pool in which the volumes of logical devices are created, the zone whose quota they count against, and whose hosts
# may have them.
pool = "main"
zone = "lab"

# The slowest class of donors that is acceptable: cxl, rdma or tcp.
class = "tcp"

# Up to 16 donors and 16 hosts, in the order of their ports: donors from port 0 on, hosts from port 16 on. Do not
# reorder them, because clients know them by their ports. An empty name keeps a port free.
donors = ["d1", "d2"]
hosts = ["h1", "h2"]

# The number of vPPBs of each host, 1 to 32.
vppbs = 16

# How long a bind or an unbind waits for its host, 1 to 40 seconds; then its client gets Retry Required. Other binds,
# unbinds and allocations wait for it that long.
settle-seconds = 40

# The serial number of the switch; donors have the numbers that follow it.
serial-number = 4096
"#;

/// The configuration of the program.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Config {
    /// The manager that is asked first.
    pub url: String,
    /// A file with the authorities to trust, for TLS.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// The other managers.
    #[serde(default)]
    pub members: Vec<String>,
    /// The account at the manager.
    pub account: String,
    /// The file with the account's password.
    pub password_file: PathBuf,
    /// The pool in which volumes are made.
    pub pool: PoolId,
    /// The zone of the volumes.
    pub zone: ZoneId,
    /// The slowest class of donors.
    #[serde(default = "tcp")]
    pub class: LatencyClass,
    /// The donors, by their ports; an empty name for a free port.
    pub donors: Vec<String>,
    /// The hosts, by their virtual CXL switches; an empty name for a free one.
    pub hosts: Vec<String>,
    /// vPPBs of each host.
    #[serde(default = "sixteen")]
    pub vppbs: u8,
    /// How long a bind or an unbind waits for its host.
    #[serde(default = "settle_seconds_max")]
    pub settle_seconds: u64,
    /// The serial number of the switch.
    #[serde(default)]
    pub serial_number: u64,
}

fn tcp() -> LatencyClass {
    LatencyClass::Tcp
}

fn sixteen() -> u8 {
    16
}

fn settle_seconds_max() -> u64 {
    SETTLE_SECONDS_MAX
}

/// Parses the names of one list.
fn names<T: std::str::FromStr<Err: Display> + Ord + Clone>(
    what: &str,
    list: &[String],
) -> Result<Vec<Option<T>>, Failure> {
    if list.is_empty() || list.len() > PLACES_MAX {
        let cause = format!("{what}: {} names are listed", list.len());
        return Err(Failure::new(cause, format!("list 1 to {PLACES_MAX}")));
    }
    let mut seen = BTreeSet::new();
    let parse = |name: &String| {
        if name.is_empty() {
            return Ok(None);
        }
        let id: T = name.parse().map_err(|error| Failure::new(format!("{what}: {error}"), "correct the name"))?;
        match seen.insert(id.clone()) {
            true => Ok(Some(id)),
            false => Err(Failure::new(format!("{what}: {name} is listed twice"), "list each name once")),
        }
    };
    list.iter().map(parse).collect()
}

/// Returns whether a file is systemd's copy of a credential, of which a unit has a new one only after a restart.
/// `credentials` is the directory of these copies.
fn is_copy(file: &Path, credentials: Option<&Path>) -> bool {
    credentials.is_some_and(|directory| file.starts_with(directory))
}

impl Config {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let name = path.display();
        let text = small_file::read_text(path, BYTES_MAX)
            .map_err(|error| Failure::new(format!("{name}: {error}"), "name a file that can be read"))?;
        Self::parse(&text).map_err(|failure| Failure { cause: format!("{name}: {}", failure.cause), ..failure })
    }

    /// Parses and checks a text.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let config: Self = toml::from_str(text)
            .map_err(|error| Failure::new(error.to_string(), "begin with the output of --print-config"))?;
        config.donors()?;
        config.hosts()?;
        if !(1..=VPPBS_MAX).contains(&config.vppbs) {
            return Err(Failure::new(format!("vppbs is {}", config.vppbs), format!("give 1 to {VPPBS_MAX}")));
        }
        if !(1..=SETTLE_SECONDS_MAX).contains(&config.settle_seconds) {
            let cause = format!("settle-seconds is {}", config.settle_seconds);
            return Err(Failure::new(cause, format!("give 1 to {SETTLE_SECONDS_MAX}")));
        }
        Ok(config)
    }

    /// Returns the donors, by their ports.
    pub(crate) fn donors(&self) -> Result<Vec<Option<DonorId>>, Failure> {
        let donors: Vec<Option<DonorId>> = names("donors", &self.donors)?;
        let long = donors.iter().flatten().find(|donor| donor.as_str().len() > DONOR_BYTES_MAX);
        long.map_or(Ok(()), |donor| {
            let cause = format!("donors: {donor} has more than {DONOR_BYTES_MAX} bytes");
            Err(Failure::new(cause, "start that donor with a shorter --id"))
        })?;
        Ok(donors)
    }

    /// Returns the hosts, by their virtual CXL switches.
    pub(crate) fn hosts(&self) -> Result<Vec<Option<HostId>>, Failure> {
        names("hosts", &self.hosts)
    }

    fn is_copy(&self) -> bool {
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
        is_copy(&self.password_file, credentials.as_deref())
    }

    /// Says where an operator corrects the password that the program reads.
    pub(crate) fn password_place(&self) -> String {
        match self.is_copy() {
            true => format!("the password in {COPIED}"),
            false => format!("the password in password-file, {}", self.password_file.display()),
        }
    }

    /// Reads the password.
    pub(crate) fn password(&self) -> Result<String, Failure> {
        let name = self.password_file.display();
        let remedy = || match self.is_copy() {
            true => format!("write the account's password into {COPIED}"),
            false => "name a file whose first line is the account's password".into(),
        };
        let text = small_file::read_text(&self.password_file, BYTES_MAX)
            .map_err(|error| Failure::new(format!("{name}: {error}"), remedy()))?;
        match text.lines().next() {
            Some(line) if !line.is_empty() => Ok(line.to_owned()),
            _ => Err(Failure::new(format!("{name}: its first line is empty"), remedy())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(from: &str, to: &str) -> String {
        assert!(EXAMPLE.contains(from), "{from}");
        Config::parse(&EXAMPLE.replace(from, to)).expect_err("refused").to_string()
    }

    #[test]
    fn the_example_is_a_configuration() {
        let config = Config::parse(EXAMPLE).expect("a good example");
        assert_eq!((config.donors.len(), config.hosts.len(), config.vppbs), (2, 2, 16));
        let free = Config::parse(&EXAMPLE.replace("\"d1\", \"d2\"", "\"d1\", \"\", \"d3\"")).expect("a free port");
        assert_eq!(free.donors().expect("names")[1], None);
    }

    #[test]
    fn a_copy_of_the_password_is_told_from_the_file_that_has_to_be_corrected() {
        let (file, copies) =
            (Path::new("/run/credentials/x.service/password"), Path::new("/run/credentials/x.service"));
        assert!(is_copy(file, Some(copies)));
        assert!(!is_copy(Path::new("/etc/aquifer/fmapi-password"), Some(copies)));
        assert!(!is_copy(file, None));
    }

    #[test]
    fn refusals_say_where_why_and_what_to_do() {
        assert_eq!(refused("\"d1\", \"d2\"", ""), "donors: 0 names are listed; list 1 to 16");
        assert_eq!(refused("\"h1\", \"h2\"", "\"h1\", \"h1\""), "hosts: h1 is listed twice; list each name once");
        assert_eq!(refused("vppbs = 16", "vppbs = 33"), "vppbs is 33; give 1 to 32");
        for wrong in [0, 41] {
            let line = refused("settle-seconds = 40", &format!("settle-seconds = {wrong}"));
            assert_eq!(line, format!("settle-seconds is {wrong}; give 1 to 40"));
        }
        assert!(refused("\"d1\"", "\"D1\"").starts_with("donors: name \"D1\" contains 'D'"));
        let long = format!("\"{}\"", "d".repeat(58));
        assert!(
            refused("\"d1\"", &long).contains("has more than 57 bytes; start that donor"),
            "{}",
            refused("\"d1\"", &long)
        );
        assert!(refused("zone =", "zome =").contains("unknown field `zome`"));
    }
}
