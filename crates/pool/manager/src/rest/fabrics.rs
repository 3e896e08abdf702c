// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The fabric: zones, and endpoints, which are hosts, donors and devices. Its switches are in `switches.rs`.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use aquifer_fabric::{Availability, Bytes, Capacity, DeviceId, DonorId, HostId, ZoneId};
use serde_json::{Value, json};

use super::answer::{Answer, Problem};
use super::collection::collection;
use super::oem::plan_body;
use super::service::Call;
use crate::order::Act;

const FABRICS: &str = "/redfish/v1/Fabrics";
pub(super) const FABRIC: &str = "/redfish/v1/Fabrics/Aquifer";

/// What is promised from each donor, and what is free. Counted once for all bodies of an answer, if one is a donor's:
/// it takes a look at every volume.
#[derive(Default)]
struct Shares(OnceCell<(BTreeMap<DonorId, Bytes>, Capacity)>);

impl Shares {
    /// Returns what is promised from a donor, and what is free there.
    fn of(&self, call: &Call<'_>, donor: &DonorId) -> (Bytes, Bytes) {
        let (promised, free) = self.0.get_or_init(|| (call.snapshot.promised(), call.snapshot.free()));
        (promised.get(donor).copied().unwrap_or_default(), free.free_of(donor))
    }
}

pub(super) fn link(path: String) -> Value {
    json!({ "@odata.id": path })
}

pub(super) fn or_missing(call: &Call<'_>, body: Option<Value>) -> Result<Answer, Problem> {
    body.map(|body| Answer::of(200, body)).ok_or_else(|| Problem::not_found(call.path))
}

fn fabric_body(_: &str) -> Option<Value> {
    let part = |name: &str| link(format!("{FABRIC}/{name}"));
    Some(json!({
        "@odata.id": FABRIC, "@odata.type": "#Fabric.v1_3_2.Fabric", "Id": "Aquifer", "Name": "Far memory",
        "FabricType": "CXL", "Status": { "State": "Enabled", "Health": "OK" }, "Switches": part("Switches"),
        "Zones": part("Zones"), "Endpoints": part("Endpoints"), "Connections": part("Connections"),
    }))
}

pub(super) fn fabrics(call: &Call<'_>) -> Result<Answer, Problem> {
    let ids = ["Aquifer".to_owned()];
    Ok(Answer::of(200, collection(FABRICS, "FabricCollection", "Fabrics", &call.query, &ids, fabric_body)))
}

pub(super) fn fabric(call: &Call<'_>) -> Result<Answer, Problem> {
    or_missing(call, fabric_body(""))
}

fn zone_body(call: &Call<'_>, name: &str) -> Option<Value> {
    let id: ZoneId = name.parse().ok()?;
    let zone = call.snapshot.desired.zones.get(&id)?;
    let endpoints: Vec<Value> = zone.hosts.iter().map(|host| link(format!("{FABRIC}/Endpoints/Host.{host}"))).collect();
    let used = call.snapshot.desired.zone_bytes(&id);
    Some(json!({
        "@odata.id": format!("{FABRIC}/Zones/{name}"), "@odata.type": "#Zone.v1_6_3.Zone", "Id": name, "Name": "Zone",
        "ZoneType": "ZoneOfEndpoints", "Status": { "State": "Enabled", "Health": "OK" },
        "Links": { "Endpoints": endpoints }, "Oem": { "Aquifer": { "Quota": zone.quota, "Used": used } },
    }))
}

pub(super) fn zones(call: &Call<'_>) -> Result<Answer, Problem> {
    let ids: Vec<String> = call.snapshot.desired.zones.keys().map(ToString::to_string).collect();
    let path = format!("{FABRIC}/Zones");
    let body = |id: &str| zone_body(call, id);
    Ok(Answer::of(200, collection(&path, "ZoneCollection", "Zones", &call.query, &ids, body)))
}

pub(super) fn zone(call: &Call<'_>) -> Result<Answer, Problem> {
    or_missing(call, zone_body(call, call.name()))
}

pub(super) fn status(availability: Option<Availability>) -> Value {
    match availability {
        None => json!({ "State": "Absent", "Health": "Critical" }),
        Some(Availability::Draining) => json!({ "State": "Quiesced", "Health": "OK" }),
        Some(Availability::Gone { .. }) => json!({ "State": "UnavailableOffline", "Health": "Critical" }),
        Some(Availability::Up) => json!({ "State": "Enabled", "Health": "OK" }),
    }
}

fn endpoint_body(call: &Call<'_>, shares: &Shares, id: &str) -> Option<Value> {
    let (kind, name) = id.split_once('.')?;
    let (parts, observed, desired) = (call.snapshot.topology.parts(), &call.snapshot.observed, &call.snapshot.desired);
    let (role, availability, enclosure, ours) = match kind {
        "Host" => {
            let host: HostId = name.parse().ok()?;
            let report = observed.hosts.get(&host);
            let volumes =
                desired.volumes.of_host(&host).filter(|id| desired.volumes[id].host.as_ref() == Some(&host)).count();
            let ours =
                json!({ "Kind": "Host", "Volumes": volumes, "IsDeclaredGone": desired.dead_hosts.contains_key(&host) });
            ("Initiator", report.map(|report| report.availability), &parts.hosts.get(&host)?.enclosure, ours)
        }
        "Donor" => {
            let donor: DonorId = name.parse().ok()?;
            let enclosure = &parts.donors.get(&donor)?.enclosure;
            let report = observed.donors.get(&donor);
            let (promised, free) = shares.of(call, &donor);
            let ours = json!({
                "Kind": "Donor", "Capacity": report.map(|report| report.capacity), "Lent": call.snapshot.lent(&donor),
                "Promised": promised, "Free": free,
                "IsDraining": desired.draining.contains(&donor),
                "IsDeclaredGone": desired.retired_donors.contains_key(&donor),
            });
            ("Target", report.map(|report| report.availability), enclosure, ours)
        }
        "Device" => {
            let device: DeviceId = name.parse().ok()?;
            let report = observed.devices.get(&device);
            let found = parts.devices.get(&device)?;
            let ours = super::devices::figures(call, &device, found);
            ("Target", report.map(|report| report.availability), &found.enclosure, ours)
        }
        _ => return None,
    };
    let path = format!("{FABRIC}/Endpoints/{id}");
    let action = |name: &str| json!({ "target": format!("{path}/Actions/Oem/AquiferEndpoint.{name}") });
    Some(json!({
        "@odata.id": path, "@odata.type": "#Endpoint.v1_8_2.Endpoint", "Id": id, "Name": name,
        "ConnectedEntities": [{ "EntityRole": role }], "Status": status(availability),
        "Links": { "Oem": { "Aquifer": { "Chassis": link(format!("/redfish/v1/Chassis/{enclosure}")) } } },
        "Actions": { "Oem": { "#AquiferEndpoint.Drain": action("Drain"),
                              "#AquiferEndpoint.DeclareGone": action("DeclareGone") } },
        "Oem": { "Aquifer": ours },
    }))
}

pub(super) fn endpoints(call: &Call<'_>) -> Result<Answer, Problem> {
    let parts = call.snapshot.topology.parts();
    let devices = parts.devices.keys().map(|name| format!("Device.{name}"));
    let donors = parts.donors.keys().map(|name| format!("Donor.{name}"));
    let hosts = parts.hosts.keys().map(|name| format!("Host.{name}"));
    let ids: Vec<String> = devices.chain(donors).chain(hosts).collect();
    let path = format!("{FABRIC}/Endpoints");
    let shares = Shares::default();
    let body = |id: &str| endpoint_body(call, &shares, id);
    Ok(Answer::of(200, collection(&path, "EndpointCollection", "Endpoints", &call.query, &ids, body)))
}

pub(super) fn endpoint(call: &Call<'_>) -> Result<Answer, Problem> {
    or_missing(call, endpoint_body(call, &Shares::default(), call.name()))
}

pub(super) fn drain(call: &Call<'_>) -> Result<Answer, Problem> {
    let donor = call.name().strip_prefix("Donor.").and_then(|name| name.parse().ok());
    let donor = donor.ok_or_else(|| Problem::not_found(call.path))?;
    let draining = call.body.get("Draining").and_then(Value::as_bool).unwrap_or(true);
    let done = call.order(Act::Drain(donor, draining), call.is_dry_run())?;
    Ok(Answer::of(200, plan_body(&done)))
}

pub(super) fn declare_gone(call: &Call<'_>) -> Result<Answer, Problem> {
    let missing = || Problem::not_found(call.path);
    let act = match call.name().split_once('.') {
        Some(("Host", name)) => Act::DeclareDead(name.parse().map_err(|_| missing())?),
        Some(("Donor", name)) => Act::Retire(name.parse().map_err(|_| missing())?),
        _ => return Err(missing()),
    };
    let done = call.order(act, call.is_dry_run())?;
    Ok(Answer::of(200, plan_body(&done)))
}
