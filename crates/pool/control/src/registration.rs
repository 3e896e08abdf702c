// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What an end says about itself when it registers. Pure: nothing here is trusted until `roster.rs` has judged it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use aquifer_fabric::{Bytes, DonorId, EnclosureId, HostId, LatencyClass, RackId, SLAB};
use serde::{Deserialize, Serialize};

/// Maximum number of labels of one end.
pub const LABELS_MAX: usize = 16;
/// Longest value of a label. A choice: an asset number or a place in a building fits.
const LABEL_BYTES_MAX: usize = 128;
/// Maximum number of addresses of one end: several networks, each with IPv4 and IPv6.
const ADDRESSES_MAX: usize = 8;
/// Longest address: a DNS name, a colon, and a port.
const ADDRESS_BYTES_MAX: usize = 259;
/// What one donor can lend at most, as in the donor: 2^24 slabs.
const CAPACITY_MAX: Bytes = Bytes::slabs(1 << 24);

/// What kind of end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A donor, which lends memory.
    Donor,
    /// The agent of a host.
    Host,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Donor => "donor",
            Self::Host => "host",
        })
    }
}

/// The name of an end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndId {
    /// A donor, by its name.
    Donor(DonorId),
    /// A host, by its agent.
    Host(HostId),
}

impl EndId {
    /// Parses a name.
    pub fn new(kind: Kind, name: &str) -> Result<EndId, aquifer_fabric::NotAName> {
        Ok(match kind {
            Kind::Donor => Self::Donor(name.parse()?),
            Kind::Host => Self::Host(name.parse()?),
        })
    }

    /// Returns what kind of end it is.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Donor(_) => Kind::Donor,
            Self::Host(_) => Kind::Host,
        }
    }

    /// Returns the name without its kind.
    pub fn name(&self) -> &str {
        match self {
            Self::Donor(name) => name.as_str(),
            Self::Host(name) => name.as_str(),
        }
    }
}

impl fmt::Display for EndId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind(), self.name())
    }
}

/// What an end says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Registration {
    /// What kind of end it is.
    pub kind: Kind,
    /// Its name: a [`DonorId`] or a [`HostId`].
    pub id: String,
    /// Where borrowers reach a donor, the preferred address first, as `HOST:PORT`. An address such as `0.0.0.0:7411`
    /// stands for the address from which it registers.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// What a donor lends.
    #[serde(default)]
    pub capacity: Bytes,
    /// Where it is and what it is like: `class` (`cxl`, `rdma` or `tcp`), `enclosure` and `rack` decide placement;
    /// others are for people.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// Why a registration cannot be used: one line with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotARegistration(String);

impl fmt::Display for NotARegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotARegistration {}

fn not<T>(line: impl Into<String>) -> Result<T, NotARegistration> {
    Err(NotARegistration(line.into()))
}

impl Registration {
    /// Checks everything, and returns the end's name.
    pub fn check(&self) -> Result<EndId, NotARegistration> {
        let id = EndId::new(self.kind, &self.id).map_err(|why| NotARegistration(why.to_string()))?;
        if self.addresses.len() > ADDRESSES_MAX {
            return not(format!("{id} has {} addresses; give {ADDRESSES_MAX} at most", self.addresses.len()));
        }
        if let Some(address) = self.addresses.iter().find(|address| !is_address(address)) {
            let shown: String = address.chars().take(60).collect();
            return not(format!("{id}: `{}` is not an address; write HOST:PORT", shown.escape_default()));
        }
        if self.kind == Kind::Donor {
            if self.addresses.is_empty() {
                return not(format!("{id} names no address; name the one at which borrowers reach it"));
            }
            if self.capacity < SLAB {
                return not(format!("{id} lends {}, less than a slab; let it lend {SLAB} or more", self.capacity));
            }
            if self.capacity > CAPACITY_MAX {
                return not(format!("{id} claims to lend {}; a donor lends {CAPACITY_MAX} at most", self.capacity));
            }
        }
        if self.labels.len() > LABELS_MAX {
            return not(format!("{id} has {} labels; give {LABELS_MAX} at most", self.labels.len()));
        }
        for (name, value) in &self.labels {
            // A label's name is like any other name.
            if name.parse::<DonorId>().is_err() {
                let shown: String = name.chars().take(60).collect();
                return not(format!("{id}: label `{}` has no plain name; use a-z, 0-9, '-'", shown.escape_default()));
            }
            if value.len() > LABEL_BYTES_MAX || !value.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
                return not(format!(
                    "{id}: the value of label {name} is not plain text; write {LABEL_BYTES_MAX} \
                                    characters of ASCII at most"
                ));
            }
        }
        self.class()?;
        self.enclosure()?;
        self.rack()?;
        Ok(id)
    }

    /// Returns how far away its memory is: the label `class`, or `tcp`.
    pub fn class(&self) -> Result<LatencyClass, NotARegistration> {
        match self.labels.get("class").map(String::as_str) {
            None | Some("tcp") => Ok(LatencyClass::Tcp),
            Some("rdma") => Ok(LatencyClass::Rdma),
            Some("cxl") => Ok(LatencyClass::Cxl),
            Some(other) => not(format!(
                "{} {}: label class={} is not a class; write class=tcp, class=rdma or class=cxl",
                self.kind,
                self.id,
                other.escape_default()
            )),
        }
    }

    /// Returns the enclosure that it is in: the label `enclosure`, or an enclosure for this end alone.
    pub fn enclosure(&self) -> Result<EnclosureId, NotARegistration> {
        let of_own = || format!("{}.{}", self.kind, self.id).chars().take(aquifer_fabric::NAME_BYTES_MAX).collect();
        let name: String = self.labels.get("enclosure").cloned().unwrap_or_else(of_own);
        name.parse().map_err(|why| NotARegistration(format!("{} {}: label enclosure: {why}", self.kind, self.id)))
    }

    /// Returns the rack of the enclosure: the label `rack`, or one rack for all ends without the label.
    pub fn rack(&self) -> Result<RackId, NotARegistration> {
        let name = self.labels.get("rack").map_or("rack", String::as_str);
        name.parse().map_err(|why| NotARegistration(format!("{} {}: label rack: {why}", self.kind, self.id)))
    }

    /// Replaces addresses that others could not use by the one from which the end has registered.
    pub(crate) fn complete(&mut self, peer: IpAddr) {
        for address in &mut self.addresses {
            if let Ok(socket) = address.parse::<SocketAddr>()
                && socket.ip().is_unspecified()
            {
                *address = SocketAddr::new(peer.to_canonical(), socket.port()).to_string();
            }
        }
    }
}

/// Returns whether this is `HOST:PORT`, of visible ASCII.
fn is_address(text: &str) -> bool {
    let has_port = text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    has_port && text.len() <= ADDRESS_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn donor(id: &str) -> Registration {
        Registration {
            kind: Kind::Donor,
            id: id.into(),
            addresses: vec!["0.0.0.0:7411".into()],
            capacity: Bytes::gib(1),
            labels: BTreeMap::new(),
        }
    }

    #[test]
    fn what_an_end_says_is_checked_as_a_whole() {
        let labelled = |name: &str, value: &str| Registration {
            labels: [(name.to_owned(), value.to_owned())].into(),
            ..donor("d1")
        };
        let addressed = |address: &str| Registration { addresses: vec![address.to_owned()], ..donor("d1") };
        let many = (0..17).map(|number| (format!("l{number}"), String::new())).collect();
        for (registration, line) in [
            (donor("D1"), "use only a-z"),
            (donor("d\u{202e}"), "use only a-z"),
            (Registration { addresses: Vec::new(), ..donor("d1") }, "names no address"),
            (addressed("nowhere"), "write HOST:PORT"),
            (addressed("a b:1"), "write HOST:PORT"),
            (addressed("a:65536"), "write HOST:PORT"),
            (Registration { capacity: Bytes(1 << 20), ..donor("d1") }, "less than a slab"),
            (Registration { capacity: Bytes::gib(1 << 20), ..donor("d1") }, "lends 32TiB at most"),
            (Registration { labels: many, ..donor("d1") }, "give 16 at most"),
            (labelled("Zone", "a"), "no plain name"),
            (labelled("zone", "a\nb"), "not plain text"),
            (labelled("class", "warp"), "label class=warp is not a class; write class=tcp, class=rdma or class=cxl"),
            (labelled("enclosure", "x y"), "label enclosure"),
            (labelled("rack", ""), "label rack"),
        ] {
            let refusal = registration.check().expect_err(line).to_string();
            assert!(refusal.contains(line) && !refusal.contains('\n'), "{refusal}");
        }
        assert_eq!(labelled("zone", "a 7").check().expect("good").name(), "d1");
    }

    #[test]
    fn an_end_that_names_no_place_shares_none() {
        assert_eq!(donor("d1").enclosure().expect("a name").as_str(), "donor.d1");
        assert_eq!(donor(&"d".repeat(63)).enclosure().expect("a name").as_str().len(), 63);
        assert_eq!(donor("d1").rack().expect("a name").as_str(), "rack");
    }

    #[test]
    fn an_address_for_any_network_becomes_the_one_that_the_manager_sees() {
        let mut one = donor("d1");
        one.addresses.push("[::]:9".into());
        one.addresses.push("far.example:7411".into());
        one.complete("10.0.0.7".parse().expect("an address"));
        assert_eq!(one.addresses, ["10.0.0.7:7411", "10.0.0.7:9", "far.example:7411"]);
    }
}
