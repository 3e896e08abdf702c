// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads donors, hosts and the volumes of logical devices from the manager's answers. Pure.
//!
//! The volume of logical device 3 of donor d1 is named `fm-d1-3`. The vPPB that it is bound to is in its label
//! [`LABEL`], as `HOST/VPPB`, since the manager knows hosts and no vPPBs. A volume that has such a name but is in
//! another zone, or not on that donor alone, because somebody else has created it, is not shown as a logical device.
//! One that was released is shown as long as a host has not let go of it.

use std::collections::BTreeMap;

use aquifer_fabric::{Bytes, DonorId, PoolId, ZoneId};
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
    /// The ETag that the manager gave; empty for a volume that was released.
    pub etag: String,
    /// What the manager calls it, which no other volume is ever called.
    pub id: String,
    /// Its size.
    pub bytes: u64,
    /// The host that it is bound to.
    pub host: Option<String>,
    /// True if reports show it as desired.
    pub is_settled: bool,
    /// Whether the host that it is bound to has it; `None` while that host has not reported.
    pub is_at_host: Option<bool>,
    /// The hosts that have not let go of it yet.
    pub leaving_hosts: Vec<String>,
    /// True while hosts or donors still have something of an earlier binding.
    pub is_leaving: bool,
    /// The host and the vPPB of its label.
    pub label: Option<(String, u8)>,
    /// True if it is in the zone of the configuration, and all of it on the donor that is in its name.
    pub is_in_place: bool,
}

impl VolumeView {
    /// Returns whether it is not yet as it is desired to be.
    pub fn is_moving(&self) -> bool {
        !self.is_settled || self.is_leaving || self.host.is_some() && self.is_at_host != Some(true)
    }
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
    /// Volumes that were released, and that hosts still have. The logical device may have a new volume already, which
    /// then lists these hosts as leaving, too.
    pub released: BTreeMap<Ld, VolumeView>,
}

/// The answers that a view is read from: collections with their members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answers<'a> {
    pub endpoints: &'a Value,
    /// The pool's volumes.
    pub volumes: &'a Value,
    /// The volumes that were released.
    pub released: &'a Value,
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
    /// Reads the answers, for logical devices in one pool and zone.
    pub fn of(answers: Answers<'_>, pool: &PoolId, zone: &ZoneId) -> Self {
        let mut view = Self::default();
        let members = |collection: &Value| collection["Members"].as_array().cloned().unwrap_or_default();
        for endpoint in members(answers.endpoints) {
            view.add_endpoint(&endpoint);
        }
        for body in members(answers.volumes) {
            if let Some(ld) = body["Id"].as_str().and_then(ld_of) {
                let volume = volume_of(&ld.0, zone, &body);
                view.volumes.insert(ld, volume);
            }
        }
        for body in members(answers.released).iter().filter(|body| spec(body)["pool"] == pool.as_str()) {
            if let Some(ld) = body["Name"].as_str().and_then(ld_of) {
                let volume = volume_of(&ld.0, zone, body);
                view.add_released(ld, volume);
            }
        }
        view
    }

    fn add_released(&mut self, ld: Ld, volume: VolumeView) {
        if !volume.is_in_place || volume.leaving_hosts.is_empty() {
            return;
        }
        if let Some(next) = self.volumes.get_mut(&ld) {
            next.leaving_hosts.extend(volume.leaving_hosts.iter().cloned());
            next.is_leaving = true;
        }
        match self.released.get_mut(&ld) {
            // Two volumes of one name were released, one after the other.
            Some(other) => other.leaving_hosts.extend(volume.leaving_hosts),
            None => drop(self.released.insert(ld, volume)),
        }
    }

    /// Returns the logical devices: those that have a volume, and those whose last one a host still has.
    pub fn lds(&self) -> impl Iterator<Item = (&Ld, &VolumeView)> {
        let released = self.released.iter().filter(|(ld, _)| !self.volumes.contains_key(ld));
        self.volumes.iter().filter(|(_, volume)| volume.is_in_place).chain(released)
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
                // An older manager does not say what is free.
                let rest = || bytes(&ours["Capacity"]).saturating_sub(bytes(&ours["Promised"]));
                let free = if ours["Free"].is_string() { bytes(&ours["Free"]) } else { rest() };
                self.donors.insert(donor, DonorView { is_up, free: if is_taking { free } else { 0 } });
            }
            _ => {}
        }
    }
}

fn spec(body: &Value) -> &Value {
    &body["Oem"]["Aquifer"]["Spec"]
}

/// Reads one volume, or one that was released.
pub(crate) fn volume_of(donor: &DonorId, zone: &ZoneId, body: &Value) -> VolumeView {
    let ours = &body["Oem"]["Aquifer"];
    let here = format!("{ENDPOINTS}Donor.{donor}");
    let list = |name: &str| ours[name].as_array().cloned().unwrap_or_default();
    let label = spec(body)["labels"][LABEL].as_str().and_then(|text| text.rsplit_once('/'));
    let is_on_donor = spec(body)["donor"] == donor.as_str()
        && list("Members").iter().all(|member| member["Source"]["@odata.id"] == here);
    VolumeView {
        etag: body["@odata.etag"].as_str().unwrap_or_default().to_owned(),
        id: ours["VolumeId"].as_str().unwrap_or_default().to_owned(),
        bytes: bytes(&spec(body)["size"]),
        host: ours["Host"].as_str().map(str::to_owned),
        is_settled: body["Status"]["State"] != "Updating",
        is_at_host: ours["IsAtHost"].as_bool(),
        leaving_hosts: list("LeavingHosts").iter().filter_map(|host| host.as_str().map(str::to_owned)).collect(),
        is_leaving: ours["Leaving"].as_u64().unwrap_or_default() > 0,
        label: label.and_then(|(host, vppb)| Some((host.to_owned(), vppb.parse().ok()?))),
        is_in_place: is_on_donor && spec(body)["zone"] == zone.as_str(),
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
            endpoint("Donor.d4", "Enabled", json!({ "Capacity": "4GiB", "Promised": "4GiB", "Free": "2GiB" })),
            endpoint("Donor.d5", "Enabled", json!({ "Capacity": "4GiB", "Promised": "1GiB", "Free": "0B" })),
            endpoint("Donor.d3", "UnavailableOffline", json!({ "Capacity": null, "Promised": "1GiB" })),
            endpoint("Host.h1", "Enabled", json!({ "IsDeclaredGone": false })),
            endpoint("Host.h2", "Absent", json!({})), endpoint("Host.h3", "Enabled", json!({ "IsDeclaredGone": true })),
            endpoint("Device.m", "Enabled", json!({})), json!(null),
        ] });
        let spec =
            json!({ "size": "512MiB", "pool": "main", "zone": "lab", "donor": "d1", "labels": { "fm-vppb": "h1/7" } });
        let volume = json!({
            "Id": "fm-d1-3", "@odata.etag": "\"e\"", "Status": { "State": "Updating" },
            "Oem": { "Aquifer": { "VolumeId": "07", "Host": "h1", "IsAtHost": false, "LeavingHosts": ["h2"], "Leaving": 1,
                "Members": [{ "Source": { "@odata.id": "/redfish/v1/Fabrics/Aquifer/Endpoints/Donor.d1" } }], "Spec": spec } },
        });
        let changed = |id: &str, what: &str, to: &str| {
            let mut other = volume.clone();
            other["Id"] = json!(id);
            other["Oem"]["Aquifer"]["Spec"][what] = json!(to);
            other
        };
        let others =
            [changed("fm-d2-0", "size", "512MiB"), changed("fm-d1-4", "zone", "z"), changed("fm-d1-5", "donor", "d2")];
        let mut released = json!({ "Id": "08", "Name": "fm-d1-9", "Oem": { "Aquifer": { "VolumeId": "08", "Spec": spec,
            "LeavingHosts": ["h1"], "Leaving": 1 } } });
        let mut gone = released.clone();
        (gone["Name"], gone["Oem"]["Aquifer"]["LeavingHosts"]) = (json!("fm-d1-8"), json!([]));
        let mut elsewhere = released.clone();
        (elsewhere["Name"], elsewhere["Oem"]["Aquifer"]["Spec"]["pool"]) = (json!("fm-d1-7"), json!("other"));
        let volumes = json!({ "Members": [volume, others[0], others[1], others[2], { "Id": "db" }, {}] });
        let read = |endpoints: &Value, volumes: &Value, released: &Value| {
            let (pool, zone) = ("main".parse().expect("a name"), "lab".parse().expect("a name"));
            View::of(Answers { endpoints, volumes, released }, &pool, &zone)
        };
        let view = read(&endpoints, &volumes, &json!({ "Members": [released, gone, elsewhere, null] }));
        let donor = |name: &str| view.donors[&name.parse::<DonorId>().expect("a name")];
        assert_eq!(donor("d1"), DonorView { is_up: true, free: 3 << 30 });
        assert_eq!((donor("d2"), donor("d3")), (DonorView { is_up: true, free: 0 }, DonorView::default()));
        assert_eq!((donor("d4").free, donor("d5").free), (2 << 30, 0), "the manager knows best what is free");
        assert_eq!(view.hosts, [("h1".to_owned(), true), ("h2".to_owned(), false)].into());
        let ld = |ld_id: u8| ("d1".parse::<DonorId>().expect("a name"), ld_id);
        let found = &view.volumes[&ld(3)];
        assert_eq!((found.bytes, found.host.as_deref(), found.is_settled), (512 << 20, Some("h1"), false));
        assert_eq!(
            (found.id.as_str(), found.is_at_host, &found.leaving_hosts),
            ("07", Some(false), &vec!["h2".to_owned()])
        );
        assert_eq!((found.is_leaving, &found.label, found.is_in_place), (true, &Some(("h1".into(), 7)), true));
        assert!(
            view.volumes.iter().all(|(of, volume)| volume.is_in_place == (*of == ld(3))),
            "the others are not ours"
        );
        assert_eq!(view.released.keys().collect::<Vec<_>>(), [&ld(9)], "no host has the others, or another pool");
        assert_eq!(view.lds().map(|(of, _)| of.1).collect::<Vec<_>>(), [3, 9]);
        // A new volume of that name takes the place of those that were released, and their hosts are still leaving.
        released["Name"] = json!("fm-d1-3");
        let mut before = released.clone();
        before["Oem"]["Aquifer"]["LeavingHosts"] = json!(["h3"]);
        let view = read(&endpoints, &volumes, &json!({ "Members": [released, before] }));
        let shown: Vec<_> =
            view.lds().map(|(of, volume)| (of.1, volume.id.as_str(), volume.leaving_hosts.join(" "))).collect();
        assert_eq!(shown, [(3, "07", "h2 h1 h3".to_owned())]);
        assert_eq!(view.released[&ld(3)].leaving_hosts, ["h1", "h3"]);
        assert_eq!(read(&Value::Null, &json!({ "Members": 3 }), &Value::Null), View::default());
    }
}
