// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The second authority, while the pool's authority is replaced.
//!
//! ```text
//!   signs: A              signs: A                  signs: B                   signs: B
//!   trusted: A   ──────►  trusted: A, B   ──────►   trusted: B, A    ──────►   trusted: B
//!                         (B is `next`)             (A is `old`)
//! ```
//!
//! Each arrow is a change of the configuration. Before certificates of B exist, donors and hosts get B's list of
//! revoked certificates, since readers of lists refuse certificates that no list covers. Certificates of A are renewed
//! as soon as their owners have a channel. Pure, but for reading the two files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use aquifer_authority::{Authority, Facts};
use aquifer_fabric::Millis;

use super::{Issued, read};
use crate::config::CaConfig;

/// Maximum number of names in one message.
const NAMES_MAX: usize = 20;

/// What the second authority is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It will replace the one that signs.
    Next,
    /// The one that signs has replaced it.
    Old,
}

/// Another authority that is trusted.
pub(super) struct Second {
    pub(super) authority: Authority,
    pub(super) role: Role,
}

impl Second {
    /// Opens the second authority, if the configuration names one.
    pub(super) fn open(ca: &CaConfig, first: &Authority, now: Millis) -> Result<Option<Second>, String> {
        let next = (&ca.next_certificate, &ca.next_key, Role::Next, "next");
        let old = (&ca.old_certificate, &ca.old_key, Role::Old, "old");
        for (certificate, key, role, word) in [next, old] {
            let (Some(certificate), Some(key)) = (certificate, key) else { continue };
            let loaded = load(certificate, key, now);
            let authority = loaded.map_err(|line| format!("ca.{word}-certificate: {line}"))?;
            if authority.name() == first.name() {
                return Err(format!(
                    "ca.{word}-certificate: this authority has the name of the one that signs, so ends cannot tell their \
                     certificates and lists apart; make the new one with another common name"
                ));
            }
            return Ok(Some(Second { authority, role }));
        }
        Ok(None)
    }

    /// Returns whether it is the replaced one, and has signed this certificate.
    pub(super) fn has_signed_old(&self, certificate: &Facts) -> bool {
        self.role == Role::Old && certificate.issuer == self.authority.name()
    }
}

fn load(certificate: &Path, key: &Path, now: Millis) -> Result<Authority, String> {
    Authority::load(&read(certificate)?, &read(key)?, now).map_err(|unusable| unusable.to_string())
}

/// Returns the serial numbers of valid certificates of another authority than `own`, whose owners are not known to have
/// a newer one. What an earlier version recorded has no authority: `are_unknown_old` says whether that means another
/// one.
pub(super) fn outstanding(all: &[(String, Issued)], own: &str, are_unknown_old: bool, now: Millis) -> BTreeSet<String> {
    let is_own = |issued: &Issued| issued.authority.as_deref().map_or(!are_unknown_old, |by| by == own);
    // An end that has joined again has the new certificate.
    let mut joined = BTreeMap::new();
    for (_, issued) in all.iter().filter(|(_, issued)| is_own(issued) && !issued.is_renewal) {
        let from = joined.entry(issued.subject.to_string()).or_insert(issued.from);
        *from = issued.from.max(*from);
    }
    let is_outstanding = |issued: &Issued| {
        let has_joined = joined.get(&issued.subject.to_string()).is_some_and(|from| *from >= issued.from);
        issued.revoked.is_none() && issued.until > now && !issued.is_replaced && !is_own(issued) && !has_joined
    };
    all.iter().filter(|(_, issued)| is_outstanding(issued)).map(|(serial, _)| serial.clone()).collect()
}

/// Returns the owners of these certificates, for a message, or `None` if there are none.
pub(super) fn owners(all: &[(String, Issued)], serials: &BTreeSet<String>) -> Option<String> {
    let found = all.iter().filter(|(serial, _)| serials.contains(serial));
    let names: BTreeSet<String> = found.map(|(_, issued)| issued.subject.to_string()).collect();
    if names.is_empty() {
        return None;
    }
    let more = names.len().saturating_sub(NAMES_MAX);
    let mut text = names.into_iter().take(NAMES_MAX).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text += &format!(" and {more} more");
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use aquifer_authority::{Kind, Subject};

    use super::*;

    const NOW: Millis = Millis(1000);

    fn issued(name: &str, by: Option<&str>, from: u64) -> Issued {
        Issued {
            subject: Subject::new(Kind::Donor, name, "pool.internal", &[]).expect("a subject"),
            from: Millis(from),
            until: Millis(2000),
            is_renewal: true,
            revoked: None,
            authority: by.map(str::to_owned),
            is_replaced: false,
        }
    }

    #[test]
    fn a_certificate_is_outstanding_until_its_owner_is_known_to_have_a_new_one() {
        let all = [
            ("a1", issued("a", Some("old"), 1)),
            // Signed, but not known to have arrived.
            ("a2", issued("a", Some("own"), 2)),
            ("b1", Issued { is_replaced: true, ..issued("b", Some("old"), 1) }),
            ("c1", issued("c", None, 1)),
            ("d1", Issued { revoked: Some(NOW), ..issued("d", Some("old"), 1) }),
            ("e1", Issued { until: NOW, ..issued("e", Some("old"), 1) }),
            ("f1", issued("f", Some("old"), 1)),
            ("f2", Issued { is_renewal: false, ..issued("f", Some("own"), 2) }),
            ("g1", issued("g", Some("own"), 1)),
        ];
        let all = all.map(|(serial, issued)| (serial.to_owned(), issued));
        let found = |are_unknown_old| outstanding(&all, "own", are_unknown_old, NOW);
        assert_eq!(found(true), ["a1", "c1"].map(str::to_owned).into());
        assert_eq!(found(false), ["a1"].map(str::to_owned).into());
        assert_eq!(owners(&all, &found(true)).as_deref(), Some("donor a, donor c"));
        assert_eq!(owners(&all, &BTreeSet::new()), None);
    }

    #[test]
    fn a_message_names_some_of_many_owners() {
        let all: Vec<(String, Issued)> =
            (0..25).map(|number| (format!("{number}"), issued(&format!("d{number:02}"), None, 1))).collect();
        let line = owners(&all, &outstanding(&all, "own", true, NOW)).expect("there are some");
        assert!(line.starts_with("donor d00, donor d01, ") && line.ends_with("donor d19 and 5 more"), "{line}");
    }
}
