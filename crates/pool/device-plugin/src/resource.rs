// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Derives the resources that pods can request from the agent's listing: one resource for each volume, with one device
//! for each pod that may share it. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use aquifer_agent_wire::{ListedVolume, TenantFiles};

use crate::api::{Device, HEALTHY, UNHEALTHY};

/// The device file that lets programs in a container resolve their faults.
pub const USERFAULTFD: &str = "/dev/userfaultfd";
/// Maximum length of the resources' domain: a choice, far above any real need.
const DOMAIN_BYTES_MAX: usize = 63;

/// How resources are named and shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Naming {
    /// The part before the `/`.
    pub domain: Domain,
    /// How many devices each volume has.
    pub pods_max: u32,
}

/// The domain of resource names: a DNS name, as Kubernetes requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain(String);

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for Domain {
    type Err = String;

    fn from_str(text: &str) -> Result<Domain, String> {
        let is_allowed = |one: u8| matches!(one, b'a'..=b'z' | b'0'..=b'9' | b'-');
        let is_label = |label: &str| {
            !label.is_empty() && label.bytes().all(is_allowed) && !label.starts_with('-') && !label.ends_with('-')
        };
        let is_domain = text.len() <= DOMAIN_BYTES_MAX && text.contains('.') && text.split('.').all(is_label);
        // Kubernetes reserves these.
        let is_reserved = text == "kubernetes.io" || text.ends_with(".kubernetes.io");
        match is_domain && !is_reserved {
            true => Ok(Domain(text.to_owned())),
            false => {
                Err(format!("'{}' is not a domain for resources; write one such as aquifer.dev", text.escape_debug()))
            }
        }
    }
}

/// A resource that pods can request: a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The resource's name, such as `aquifer.dev/db`.
    pub name: String,
    /// The volume, as programs open it.
    pub volume: String,
    /// How many pods can share it.
    pods_max: u32,
    /// Whether programs can open it now.
    pub is_open: bool,
    /// The certificate with which programs borrow.
    pub files: Option<TenantFiles>,
}

/// The listed volumes as resources, by id, and the volumes that cannot be resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// By id of the volume, which also names the socket: a volume's name can be too long for a socket path.
    pub by_id: BTreeMap<String, Resource>,
    /// Volumes whose names Kubernetes would refuse.
    pub refused: Vec<String>,
}

/// Returns the resources of these volumes.
pub fn resources(volumes: &[ListedVolume], files: Option<&TenantFiles>, naming: &Naming) -> Resources {
    let mut resources = Resources::default();
    for ListedVolume { name, id, is_bound, .. } in volumes {
        if !is_resource_name(name) || !is_id(id) {
            resources.refused.push(name.clone());
            continue;
        }
        let resource = Resource {
            name: format!("{}/{name}", naming.domain),
            volume: name.clone(),
            pods_max: naming.pods_max,
            is_open: *is_bound,
            files: files.cloned(),
        };
        resources.by_id.insert(id.clone(), resource);
    }
    resources
}

/// Returns whether Kubernetes accepts a volume's name. The pool also allows names with endings that Kubernetes refuses.
fn is_resource_name(name: &str) -> bool {
    aquifer_agent_wire::is_name(name) && name.ends_with(|last: char| last.is_ascii_alphanumeric())
}

/// Returns whether this can be an id: it becomes part of a file name.
fn is_id(id: &str) -> bool {
    id.len() == 16 && id.bytes().all(|one| one.is_ascii_hexdigit())
}

impl Resource {
    /// Returns the devices, all with the same health. `is_answered` says whether the agent answers.
    pub fn devices(&self, is_answered: bool) -> Vec<Device> {
        let health = if self.is_open && is_answered { HEALTHY } else { UNHEALTHY };
        (0..self.pods_max).map(|index| Device { id: device_id(index), health: health.to_owned() }).collect()
    }

    /// Returns whether this is the id of one of the devices.
    pub fn has_device(&self, id: &str) -> bool {
        id.parse().is_ok_and(|index: u32| index < self.pods_max && device_id(index) == id)
    }

    /// Returns the files of the host that programs read when they open the volume.
    pub fn tenant_files(&self) -> Vec<PathBuf> {
        let of =
            |files: &TenantFiles| [&files.ca, &files.cert, &files.key].into_iter().chain(&files.crl).cloned().collect();
        self.files.as_ref().map(of).unwrap_or_default()
    }
}

fn device_id(index: u32) -> String {
    index.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(name: &str, id: u64, is_bound: bool) -> ListedVolume {
        ListedVolume { name: name.into(), id: format!("{id:016x}"), slabs: 8, is_bound }
    }

    fn naming() -> Naming {
        Naming { domain: "aquifer.dev".parse().unwrap(), pods_max: 3 }
    }

    #[test]
    fn a_volume_is_a_resource_with_a_device_for_each_pod() {
        let found = resources(&[volume("db", 1, true), volume("logs", 2, false)], None, &naming());
        let db = &found.by_id["0000000000000001"];
        assert_eq!(db.name, "aquifer.dev/db");
        let health = |resource: &Resource, is_answered| {
            let devices = resource.devices(is_answered).into_iter();
            devices.map(|device| (device.id, device.health)).collect::<Vec<_>>()
        };
        let all = |health: &str| ["0", "1", "2"].map(|id| (id.to_owned(), health.to_owned())).to_vec();
        assert_eq!(health(db, true), all(HEALTHY));
        assert_eq!(health(db, false), all(UNHEALTHY));
        assert_eq!(health(&found.by_id["0000000000000002"], true), all(UNHEALTHY));
        assert!(["0", "1", "2"].iter().all(|id| db.has_device(id)));
        assert!(["", "3", "-1", "+1", "00", "1 ", "4294967296", "db"].iter().all(|id| !db.has_device(id)));
    }

    #[test]
    fn names_that_kubernetes_refuses_are_listed() {
        let mut strange = volume("x", 3, true);
        strange.id = "../../../etc/pass".into();
        let found = resources(&[volume("a-", 1, true), volume("a_", 2, true), strange], None, &naming());
        assert_eq!(found, Resources { by_id: BTreeMap::new(), refused: vec!["a-".into(), "a_".into(), "x".into()] });
    }

    #[test]
    fn a_domain_is_a_dns_name_that_kubernetes_does_not_keep() {
        for text in ["aquifer.dev", "a.b", "x-1.example.org"] {
            assert_eq!(text.parse::<Domain>().unwrap().to_string(), text);
        }
        let long = format!("{}.dev", "a".repeat(60));
        for text in ["", "dev", ".dev", "a..b", "A.dev", "a.-b", "a.b-", "kubernetes.io", "x.kubernetes.io", &long] {
            assert!(text.parse::<Domain>().unwrap_err().contains("aquifer.dev"), "{text}");
        }
    }
}
