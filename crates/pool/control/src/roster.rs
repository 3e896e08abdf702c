// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides who may register as what, and remembers who has. Pure.
//!
//! A name belongs to the identity (the name in the certificate) that registered it first, until the registration is
//! forgotten: so a renewed certificate is the same end, and another certificate cannot take over its name. Which
//! identities may register at all is the operator's choice ([`Patterns`]).

use std::collections::BTreeMap;
use std::fmt;

use aquifer_fabric::{EnclosureId, RackId};
use serde::{Deserialize, Serialize};

use crate::message::{Directory, Whereabouts};
use crate::registration::{EndId, Kind, NotARegistration, Registration};

/// Maximum number of registrations, connected or not. A choice: four times the largest pool that is measured.
const ENTRIES_MAX: usize = 4096;

/// Identities, as the configuration lists them: each is a name such as `dns:d1.example`, or has one `*` at its end or
/// after its kind, which stands for anything: `uri:spiffe://example/donor/*`, `dns:*.donors.example`, `*`. `{id}` in it
/// stands for the name that the end registers: with `dns:{id}.donor.example`, a certificate is for one name only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Patterns(pub Vec<String>);

impl Default for Patterns {
    fn default() -> Patterns {
        Patterns(vec!["*".to_owned()])
    }
}

impl Patterns {
    /// Returns whether one of the patterns matches this identity, which registers the end `id`.
    pub fn admit(&self, identity: &str, id: &str) -> bool {
        self.0.iter().map(|pattern| pattern.replace("{id}", id)).any(|pattern| match pattern.split_once('*') {
            None => pattern == identity,
            Some((begin, end)) => {
                identity.len() >= begin.len() + end.len() && identity.starts_with(begin) && identity.ends_with(end)
            }
        })
    }

    /// Returns a pattern that has more than one `*`, if there is one.
    pub fn unclear(&self) -> Option<&str> {
        self.0.iter().find(|pattern| pattern.matches('*').count() > 1).map(String::as_str)
    }
}

/// A registration, and the identity that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Entry {
    /// The name in the certificate.
    pub identity: String,
    /// What the end says about itself.
    pub registration: Registration,
}

/// Why an end is not registered: one line with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRegistered {
    /// There are too many registrations.
    Full,
    /// The registration contradicts another one.
    Contradiction {
        /// The enclosure of the end.
        enclosure: EnclosureId,
        /// Where other ends say that it stands.
        rack: RackId,
    },
    /// Its identity may not register this kind of end.
    Identity {
        /// The identity in the certificate.
        identity: String,
        /// The kind of end that wants to register.
        kind: Kind,
    },
    /// The registration is unusable.
    Registration(NotARegistration),
    /// The name belongs to another identity.
    Taken {
        /// The name that is taken.
        id: EndId,
    },
}

impl fmt::Display for NotRegistered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => write!(f, "{ENTRIES_MAX} ends are registered; forget those that are gone"),
            Self::Contradiction { enclosure, rack } => {
                write!(
                    f,
                    "enclosure {enclosure} stands in rack {rack} by earlier registrations; correct the labels, or label \
                     an enclosure that was moved with another name"
                )
            }
            Self::Identity { identity, kind } => {
                write!(
                    f,
                    "{identity} may not register a {kind}; list it in the manager's configuration ([control] \
                           {kind}s), or use another certificate"
                )
            }
            Self::Registration(not) => not.fmt(f),
            Self::Taken { id } => {
                write!(
                    f,
                    "{id} is registered with another certificate; choose another name, or let the manager forget it"
                )
            }
        }
    }
}

impl std::error::Error for NotRegistered {}

/// The registered ends, connected or not.
#[derive(Clone, Debug, Default)]
pub struct Roster {
    entries: BTreeMap<EndId, Entry>,
    donors: Patterns,
    hosts: Patterns,
    changes: u64,
    changes_of_donors: u64,
    changes_of_hosts: u64,
}

impl Roster {
    /// Creates a roster with the registrations that were stored. Those that are unusable now are left out.
    pub fn new(stored: Vec<Entry>, donors: Patterns, hosts: Patterns) -> Roster {
        let mut roster = Roster { donors, hosts, ..Roster::default() };
        for entry in stored {
            if let Ok(id) = entry.registration.check() {
                roster.entries.insert(id, entry);
            }
        }
        roster
    }

    /// Counts changes: the same number means the same entries.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns who is registered.
    pub const fn entries(&self) -> &BTreeMap<EndId, Entry> {
        &self.entries
    }

    /// Registers an end that has proved its identity, or updates what it says about itself.
    pub fn register(&mut self, identity: &str, registration: Registration) -> Result<EndId, NotRegistered> {
        let id = registration.check().map_err(NotRegistered::Registration)?;
        let kind = id.kind();
        let patterns = match kind {
            Kind::Donor => &self.donors,
            Kind::Host => &self.hosts,
        };
        if !patterns.admit(identity, id.name()) {
            return Err(NotRegistered::Identity { identity: identity.to_owned(), kind });
        }
        match self.entries.get(&id) {
            Some(entry) if entry.identity != identity => return Err(NotRegistered::Taken { id }),
            None if self.entries.len() >= ENTRIES_MAX => return Err(NotRegistered::Full),
            _ => {}
        }
        self.check_place(&id, &registration)?;
        let entry = Entry { identity: identity.to_owned(), registration };
        if self.entries.get(&id) != Some(&entry) {
            self.entries.insert(id.clone(), entry);
            self.count(kind);
        }
        Ok(id)
    }

    fn count(&mut self, kind: Kind) {
        self.changes += 1;
        match kind {
            Kind::Donor => self.changes_of_donors += 1,
            Kind::Host => self.changes_of_hosts += 1,
        }
    }

    /// Refuses an end that disagrees with another one on where their enclosure is.
    fn check_place(&self, id: &EndId, registration: &Registration) -> Result<(), NotRegistered> {
        let place = |of: &Registration| -> Result<_, NotARegistration> { Ok((of.enclosure()?, of.rack()?)) };
        let (enclosure, rack) = place(registration).map_err(NotRegistered::Registration)?;
        for (other, entry) in &self.entries {
            match place(&entry.registration) {
                Ok((of_other, rack_of_other)) if other != id && of_other == enclosure && rack_of_other != rack => {
                    return Err(NotRegistered::Contradiction { enclosure, rack: rack_of_other });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Forgets a registration. Returns whether there was one.
    pub fn forget(&mut self, id: &EndId) -> bool {
        let had = self.entries.remove(id).is_some();
        if had {
            self.count(id.kind());
        }
        had
    }

    /// Counts the changes of the directory for ends of this kind.
    pub const fn changes_for(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Donor => self.changes_of_hosts,
            Kind::Host => self.changes_of_donors,
        }
    }

    /// Returns the directory for an end of this kind: donors for a host, hosts for a donor.
    pub fn directory_for(&self, kind: Kind) -> Directory {
        let mut directory = Directory::default();
        for (id, Entry { identity, registration }) in &self.entries {
            match (id, kind) {
                (EndId::Donor(donor), Kind::Host) => {
                    let addresses = registration.addresses.clone();
                    directory.donors.insert(donor.clone(), Whereabouts { addresses, identity: identity.clone() });
                }
                (EndId::Host(host), Kind::Donor) => {
                    directory.hosts.insert(host.clone(), identity.clone());
                }
                _ => {}
            }
        }
        directory
    }
}

#[cfg(test)]
mod tests {
    use aquifer_fabric::Bytes;

    use super::*;

    fn end(kind: Kind, id: &str, labels: &[(&str, &str)]) -> Registration {
        Registration {
            kind,
            id: id.into(),
            addresses: vec!["10.0.0.1:7411".into()],
            capacity: Bytes::gib(1),
            labels: labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        }
    }

    #[test]
    fn a_name_belongs_to_the_identity_that_registered_it_first() {
        let mut roster = Roster::default();
        let first = roster.register("dns:a", end(Kind::Donor, "d1", &[])).expect("free");
        assert_eq!(
            roster.register("dns:b", end(Kind::Donor, "d1", &[])),
            Err(NotRegistered::Taken { id: first.clone() })
        );
        assert_eq!(roster.changes(), 1);
        roster.register("dns:a", end(Kind::Donor, "d1", &[])).expect("the same again");
        assert_eq!(roster.changes(), 1, "nothing has changed");
        roster.register("dns:a", end(Kind::Donor, "d1", &[("zone", "b")])).expect("another label");
        assert_eq!(roster.changes(), 2);
        roster.register("dns:b", end(Kind::Host, "d1", &[])).expect("a host is another end");
        assert!(roster.forget(&first) && !roster.forget(&first));
        roster.register("dns:b", end(Kind::Donor, "d1", &[])).expect("the name is free again");
    }

    #[test]
    fn only_listed_identities_register() {
        let patterns = |list: &[&str]| Patterns(list.iter().map(|one| (*one).to_owned()).collect());
        let donors = patterns(&["dns:*.donors.example", "cn:old"]);
        let mut roster = Roster::new(Vec::new(), donors, patterns(&[]));
        for (identity, kind, may) in [
            ("dns:d1.donors.example", Kind::Donor, true),
            ("cn:old", Kind::Donor, true),
            ("cn:older", Kind::Donor, false),
            ("dns:d1.donors.example.net", Kind::Donor, false),
            ("dns:d1.donors.example", Kind::Host, false),
        ] {
            let name = identity.replace(':', "-");
            assert_eq!(roster.register(identity, end(kind, &name, &[])).is_ok(), may, "{identity}");
        }
        assert!(!patterns(&["dns:a*a"]).admit("dns:a", "d1"), "the parts around * do not overlap");
        assert!(Patterns::default().admit("address:127.0.0.1", "d1"));
        let own = patterns(&["dns:{id}.donor.example"]);
        assert!(own.admit("dns:d1.donor.example", "d1") && !own.admit("dns:d1.donor.example", "d2"));
    }

    #[test]
    fn two_ends_agree_on_where_their_enclosure_stands() {
        let mut roster = Roster::default();
        roster.register("dns:a", end(Kind::Donor, "d1", &[("enclosure", "e1"), ("rack", "r1")])).expect("the first");
        let other = end(Kind::Donor, "d2", &[("enclosure", "e1"), ("rack", "r2")]);
        let refusal = roster.register("dns:b", other).expect_err("another rack").to_string();
        assert!(refusal.contains("stands in rack r1"), "{refusal}");
        // Ends of an enclosure that is moved would all be refused: each by what the others said before.
        assert!(refusal.contains("label an enclosure that was moved with another name"), "{refusal}");
        roster.register("dns:a", end(Kind::Donor, "d1", &[("enclosure", "e1"), ("rack", "r2")])).expect("it moved");
    }

    #[test]
    fn what_was_stored_is_known_again() {
        let mut roster = Roster::default();
        roster.register("dns:a", end(Kind::Donor, "d1", &[])).expect("free");
        roster.register("dns:h", end(Kind::Host, "h1", &[])).expect("free");
        let stored: Vec<Entry> = roster.entries().values().cloned().collect();
        let again = Roster::new(stored, Patterns::default(), Patterns::default());
        assert_eq!(again.entries(), roster.entries());
        let (for_host, for_donor) = (again.directory_for(Kind::Host), again.directory_for(Kind::Donor));
        assert_eq!(for_donor.hosts.values().next().map(String::as_str), Some("dns:h"));
        assert_eq!(for_host.donors.values().next().expect("d1").addresses, ["10.0.0.1:7411"]);
        assert!(for_donor.donors.is_empty() && for_host.hosts.is_empty());
    }
}
