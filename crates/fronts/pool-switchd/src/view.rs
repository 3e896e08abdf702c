// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads donors, hosts and the volumes of logical devices from the manager's answers. Pure.
//!
//! The volume of logical device 3 of donor d1 is named `fm-d1-3`. The vPPB that it is bound to is in its label
//! [`LABEL`], as `HOST/VPPB`, since the manager knows hosts and no vPPBs. A volume that has such a name but is on
//! another donor, because somebody else has created it, is not shown as a logical device.

use std::collections::BTreeMap;

use aquifer_fabric::{Bytes, DonorId};
use serde_json::Value;

use crate::places::LDS;

/// What the names of the volumes begin with.
pub(crate) const VOLUME_PREFIX: &str = "fm-";
/// The label that says at which vPPB a volume is or was bound.
pub(crate) const LABEL: &str = "fm-vppb";
/// Where the manager's answers name donors and hosts.
const ENDPOINTS: &str = "/redfish/v1/Fabrics/Aquifer/Endpoints/";

/// A donor, as the manager sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DonorView {
    /// True if it answers.
    pub is_up: bool,
    /// Bytes that it could lend to a new volume.
    pub free: u64,
}

/// The volume of a logical device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VolumeView {
    /// The ETag that the manager gave.
    pub etag: String,
    /// Its size.
    pub bytes: u64,
    /// The host that it is bound to.
    pub host: Option<String>,
    /// True if reports show it as desired.
    pub is_settled: bool,
    /// True while a host has not released it yet.
    pub is_leaving: bool,
    /// The host and the vPPB of its label.
    pub label: Option<(String, u8)>,
    /// True if all of it is on the donor that is in its name.
    pub is_in_place: bool,
}

/// A logical device of a donor.
pub(crate) type Ld = (DonorId, u8);

/// The part of the manager's state that concerns the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub donors: BTreeMap<DonorId, DonorView>,
    /// The hosts, and whether each answers.
    pub hosts: BTreeMap<String, bool>,
    pub volumes: BTreeMap<Ld, VolumeView>,
}

/// Returns the name of a logical device's volume.
pub(crate) fn volume_name(donor: &DonorId, ld_id: u8) -> String {
    format!("{VOLUME_PREFIX}{donor}-{ld_id}")
}

/// Returns the logical device of a volume's name.
fn ld_of(name: &str) -> Option<Ld> {
    let (donor, number) = name.strip_prefix(VOLUME_PREFIX)?.rsplit_once('-')?;
    let ld_id: u8 = number.parse().ok().filter(|ld_id| *ld_id < LDS)?;
    let donor: DonorId = donor.parse().ok()?;
    // Not `03` or `+3`.
    (volume_name(&donor, ld_id) == name).then_some((donor, ld_id))
}

fn bytes(value: &Value) -> u64 {
    value.as_str().and_then(|text| text.parse::<Bytes>().ok()).map_or(0, |bytes| bytes.0)
}

impl View {
    /// Reads the collections of endpoints and of the pool's volumes.
    pub fn of(endpoints: &Value, volumes: &Value) -> Self {
        let mut view = Self::default();
        let members = |collection: &Value| collection["Members"].as_array().cloned().unwrap_or_default();
        for endpoint in members(endpoints) {
            view.add_endpoint(&endpoint);
        }
        for volume in members(volumes) {
            if let Some(ld) = volume["Id"].as_str().and_then(ld_of) {
                let found = volume_of(&ld.0, &volume);
                view.volumes.insert(ld, found);
            }
        }
        view
    }

    fn add_endpoint(&mut self, endpoint: &Value) {
        let state = endpoint["Status"]["State"].as_str().unwrap_or_default();
        let is_up = matches!(state, "Enabled" | "Quiesced");
        let ours = &endpoint["Oem"]["Aquifer"];
        match endpoint["Id"].as_str().unwrap_or_default().split_once('.') {
            Some(("Host", name)) if ours["IsDeclaredGone"] != true => drop(self.hosts.insert(name.to_owned(), is_up)),
            Some(("Donor", name)) => {
                let Ok(donor) = name.parse() else { return };
                let is_taking = state == "Enabled" && ours["IsDraining"] != true && ours["IsDeclaredGone"] != true;
                let free = bytes(&ours["Capacity"]).saturating_sub(bytes(&ours["Promised"]));
                self.donors.insert(donor, DonorView { is_up, free: if is_taking { free } else { 0 } });
            }
            _ => {}
        }
    }
}

/// Reads one volume.
pub(crate) fn volume_of(donor: &DonorId, body: &Value) -> VolumeView {
    let ours = &body["Oem"]["Aquifer"];
    let here = format!("{ENDPOINTS}Donor.{donor}");
    let members = ours["Members"].as_array().cloned().unwrap_or_default();
    let label = ours["Spec"]["labels"][LABEL].as_str().and_then(|text| text.rsplit_once('/'));
    VolumeView {
        etag: body["@odata.etag"].as_str().unwrap_or_default().to_owned(),
        bytes: body["MemoryChunkSizeMiB"].as_u64().unwrap_or_default() << 20,
        host: ours["Host"].as_str().map(str::to_owned),
        is_settled: body["Status"]["State"] != "Updating",
        is_leaving: ours["Leaving"].as_u64().unwrap_or_default() > 0,
        label: label.and_then(|(host, vppb)| Some((host.to_owned(), vppb.parse().ok()?))),
        is_in_place: members.iter().all(|member| member["Source"]["@odata.id"] == here),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_volumes_are_read_as_they_are_written() {
        for (donor, ld_id) in [("d1", 0), ("a-b-3", 15), ("d.1", 9)] {
            let donor: DonorId = donor.parse().expect("a name");
            assert_eq!(ld_of(&volume_name(&donor, ld_id)), Some((donor, ld_id)));
        }
        for name in ["fm-d1-16", "fm-d1-03", "fm-d1-", "fm--1", "fm-1", "d1-1", "fm-d1-x", ""] {
            assert_eq!(ld_of(name), None, "{name}");
        }
    }

    #[test]
    fn answers_are_read_and_what_is_not_there_is_nothing() {
        let endpoint = |id: &str, state: &str, ours: Value| json!({ "Id": id, "Status": { "State": state }, "Oem": { "Aquifer": ours } });
        let endpoints = json!({ "Members": [
            endpoint("Donor.d1", "Enabled", json!({ "Capacity": "4GiB", "Promised": "1GiB" })),
            endpoint("Donor.d2", "Quiesced", json!({ "Capacity": "4GiB", "Promised": "0B" })),
            endpoint("Donor.d3", "UnavailableOffline", json!({ "Capacity": null, "Promised": "1GiB" })),
            endpoint("Host.h1", "Enabled", json!({ "IsDeclaredGone": false })),
            endpoint("Host.h2", "Absent", json!({})), endpoint("Host.h3", "Enabled", json!({ "IsDeclaredGone": true })),
            endpoint("Device.m", "Enabled", json!({})), json!(null),
        ] });
        let volume = json!({
            "Id": "fm-d1-3", "@odata.etag": "\"e\"", "MemoryChunkSizeMiB": 512, "Status": { "State": "Updating" },
            "Oem": { "Aquifer": { "Host": "h1", "Leaving": 1, "Spec": { "labels": { "fm-vppb": "h1/7" } },
                "Members": [{ "Source": { "@odata.id": "/redfish/v1/Fabrics/Aquifer/Endpoints/Donor.d1" } }] } },
        });
        let mut elsewhere = volume.clone();
        elsewhere["Id"] = json!("fm-d2-0");
        let view = View::of(&endpoints, &json!({ "Members": [volume, elsewhere, { "Id": "db" }, {}] }));
        let donor = |name: &str| view.donors[&name.parse::<DonorId>().expect("a name")];
        assert_eq!(donor("d1"), DonorView { is_up: true, free: 3 << 30 });
        assert_eq!((donor("d2"), donor("d3")), (DonorView { is_up: true, free: 0 }, DonorView::default()));
        assert_eq!(view.hosts, [("h1".to_owned(), true), ("h2".to_owned(), false)].into());
        let found = &view.volumes[&("d1".parse().expect("a name"), 3)];
        assert_eq!((found.bytes, found.host.as_deref(), found.is_settled), (512 << 20, Some("h1"), false));
        assert_eq!((found.is_leaving, &found.label, found.is_in_place), (true, &Some(("h1".into(), 7)), true));
        assert!(!view.volumes[&("d2".parse().expect("a name"), 0)].is_in_place);
        assert_eq!(View::of(&Value::Null, &json!({ "Members": 3 })), View::default());
    }
}
