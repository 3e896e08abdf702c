// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The subject of a certificate: the names for which it is issued. Pure.
//!
//! Its first name is `NAME.KIND.DOMAIN`, such as `d1.donor.aquifer.internal`: this is the identity by which managers
//! and donors recognise the end. The other names are those at which other machines reach the end.

use std::fmt;
use std::net::IpAddr;

use aquifer_fabric::DonorId;
use serde::{Deserialize, Serialize};

/// Maximum number of names besides the identity: the maximum number of addresses in a registration.
pub const NAMES_MAX: usize = 8;
/// Longest DNS name (RFC 1035, section 2.3.4).
const NAME_BYTES_MAX: usize = 253;
/// Longest label of a DNS name.
const LABEL_BYTES_MAX: usize = 63;

/// What a certificate's owner is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A donor, which lends memory.
    Donor,
    /// A host, by its agent and its programs.
    Host,
    /// A fabric manager of the pool.
    Manager,
}

impl Kind {
    /// All kinds, in the order of their words.
    pub const ALL: [Kind; 3] = [Kind::Donor, Kind::Host, Kind::Manager];

    /// Returns the word for this kind in names, in REST and on the command line.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Donor => "donor",
            Self::Host => "host",
            Self::Manager => "manager",
        }
    }

    /// Returns the kind with this word.
    pub fn named(word: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The names for which a certificate is issued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Subject {
    /// The kind of the owner.
    pub kind: Kind,
    /// The owner's name in the pool.
    pub name: String,
    /// `NAME.KIND.DOMAIN`, followed by the names at which the owner is reached.
    pub names: Vec<String>,
}

/// Why no certificate can be issued for these names: one line with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotASubject(String);

impl fmt::Display for NotASubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotASubject {}

impl Subject {
    /// Checks all names. `more` are the host names and addresses at which the owner is reached.
    pub fn new(kind: Kind, name: &str, domain: &str, more: &[String]) -> Result<Subject, NotASubject> {
        // The names of donors, hosts and managers have the same form; a label of a DNS name has no dot.
        let is_label = name.parse::<DonorId>().is_ok() && !name.contains(['.', '_']) && is_dns(name);
        if !is_label {
            let shown: String = name.chars().take(60).collect();
            let shown = shown.escape_default();
            return Err(NotASubject(format!("'{shown}' cannot be a name in a certificate; use a-z, 0-9 and '-'")));
        }
        if !is_dns(domain) {
            return Err(NotASubject(format!(
                "'{}' is not a domain; write one such as pool.internal",
                domain.escape_default()
            )));
        }
        let identity = format!("{name}.{kind}.{domain}");
        if identity.len() > NAME_BYTES_MAX {
            return Err(NotASubject(format!("{identity} is longer than {NAME_BYTES_MAX} bytes; use shorter names")));
        }
        if more.len() > NAMES_MAX {
            return Err(NotASubject(format!("{} addresses are given; give {NAMES_MAX} at most", more.len())));
        }
        for one in more {
            let is_name = one.parse::<IpAddr>().is_ok() || (is_dns(one) && !is_number(one));
            let is_inside = *one == domain || one.ends_with(&format!(".{domain}"));
            if !is_name || is_inside {
                let shown: String = one.chars().take(60).collect();
                let shown = shown.escape_default();
                let why =
                    if is_inside { "is in the domain of identities" } else { "is not a host name or an IP address" };
                return Err(NotASubject(format!("'{shown}' {why}; give one at which the machine is reached")));
            }
        }
        let names = std::iter::once(identity).chain(more.iter().cloned()).collect();
        Ok(Subject { kind, name: name.to_owned(), names })
    }

    /// Returns the subject of a certificate with these names, if the first of them is an identity in this domain.
    pub fn of_names(names: &[String], domain: &str) -> Option<Subject> {
        let (identity, more) = names.split_first()?;
        let (name, kind) = identity.strip_suffix(domain)?.strip_suffix('.')?.rsplit_once('.')?;
        Subject::new(Kind::named(kind)?, name, domain, more).ok()
    }

    /// Returns its first name.
    pub fn identity(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// Returns whether this is a DNS name in lower case, without a final dot and without wildcards.
fn is_dns(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(is_plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= NAME_BYTES_MAX && text.split('.').all(is_label)
}

/// Returns whether a name looks like a number: some resolvers would treat it as an IPv4 address.
fn is_number(text: &str) -> bool {
    text.rsplit('.').next().is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: &str = "pool.internal";

    #[test]
    fn a_subject_is_read_back_from_the_names_of_its_certificate() {
        let more = ["10.0.0.7".to_owned(), "fd00::7".to_owned(), "d1.rack.example".to_owned()];
        for kind in Kind::ALL {
            let subject = Subject::new(kind, "d1", DOMAIN, &more).expect("good");
            assert_eq!(subject.identity(), format!("d1.{kind}.pool.internal"));
            assert_eq!(Subject::of_names(&subject.names, DOMAIN), Some(subject));
        }
        for names in [&["d1.pool.internal"][..], &["d1.donor.other.internal"], &["a.d1.donor.pool.internal"], &[]] {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(Subject::of_names(&names, DOMAIN), None, "{names:?}");
        }
    }

    #[test]
    fn names_that_could_be_taken_for_others_are_refused() {
        for name in ["", "D1", "d1.x", "d_1", "-d1", "d1-", "d\u{202e}", "*", "d1\n", &"d".repeat(64)] {
            assert!(Subject::new(Kind::Donor, name, DOMAIN, &[]).is_err(), "{name:?}");
        }
        let nine: Vec<String> = (0..9).map(|one| format!("10.0.0.{one}")).collect();
        assert!(Subject::new(Kind::Donor, "d1", DOMAIN, &nine).is_err());
        for more in ["", "*.example", "a b", "10.0.0", "h1.host.pool.internal", DOMAIN, "a..b", "uri:x", "d1.example."]
        {
            let refused = Subject::new(Kind::Donor, "d1", DOMAIN, &[more.to_owned()]).expect_err(more).to_string();
            assert!(refused.contains("; ") && !refused.contains('\n'), "{refused}");
        }
        assert!(Subject::new(Kind::Donor, "d1", "Pool", &[]).is_err());
    }
}
