// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Collections, all pages of them, as tables.

use aquifer_fabric::{Millis, Redundancy, date};
use aquifer_manager_client::{Failure, collection};
use serde_json::Value;

use crate::show::{Session, cell};
use crate::table::columns;

pub(crate) const POOLS: &str = "/redfish/v1/Chassis/Pools/MemoryDomains";
const SWITCHES: &str = "/redfish/v1/Fabrics/Aquifer/Switches";
const ENDPOINTS: &str = "/redfish/v1/Fabrics/Aquifer/Endpoints";
const ZONES: &str = "/redfish/v1/Fabrics/Aquifer/Zones";
const TASKS: &str = "/redfish/v1/TaskService/Tasks";

/// A table's titles, and the cells of a member.
type Table = (&'static [&'static str], fn(&Value) -> Vec<String>);

fn rows(collection: &Value, row: fn(&Value) -> Vec<String>) -> Vec<Vec<String>> {
    collection["Members"].as_array().into_iter().flatten().map(row).collect()
}

fn list(session: &mut Session<'_>, path: &str, filter: &str, (titles, row): Table) -> Result<(), Failure> {
    let answer = collection(&session.client, path, filter)?;
    session.show_table(&answer, titles, |answer| rows(answer, row))
}

fn state(member: &Value) -> String {
    cell(&member["Status"]["State"])
}

/// Returns the names of those properties that are true.
fn notes(ours: &Value, all: &[(&str, &str)]) -> String {
    let true_ones = all.iter().filter(|(property, _)| ours[*property] == true).map(|(_, word)| *word);
    true_ones.collect::<Vec<_>>().join(", ")
}

fn joined(list: &Value) -> String {
    list.as_array().map(|all| all.iter().map(cell).collect::<Vec<_>>().join(",")).unwrap_or_default()
}

fn host(member: &Value) -> Vec<String> {
    let ours = &member["Oem"]["Aquifer"];
    let notes = notes(ours, &[("IsDeclaredGone", "declared gone")]);
    vec![cell(&member["Name"]), state(member), cell(&ours["Volumes"]), notes]
}

fn donor(member: &Value) -> Vec<String> {
    let ours = &member["Oem"]["Aquifer"];
    let notes = notes(ours, &[("IsDraining", "draining"), ("IsDeclaredGone", "declared gone")]);
    let [capacity, lent, promised, free] = ["Capacity", "Lent", "Promised", "Free"].map(|name| cell(&ours[name]));
    vec![cell(&member["Name"]), state(member), capacity, lent, promised, free, notes]
}

fn device(member: &Value) -> Vec<String> {
    let ours = &member["Oem"]["Aquifer"];
    let [kind, capacity, switch, port, all, bound, added] =
        ["DeviceKind", "Capacity", "Switch", "Port", "LdsTotal", "LdsBound", "Added"].map(|name| cell(&ours[name]));
    let given = if kind == "DCD" { added } else { format!("{bound}/{all} LDs") };
    vec![cell(&member["Name"]), state(member), kind, capacity, switch, port, given]
}

fn port(member: &Value) -> Vec<String> {
    let ours = &member["Oem"]["Aquifer"];
    let kind = cell(&member["PortType"]).trim_end_matches("Port").to_lowercase();
    let connected = cell(&ours["Connected"]).replace('.', " ").to_lowercase();
    let [link, width, speed] = ["LinkStatus", "ActiveWidth", "CurrentSpeedGbps"].map(|name| cell(&member[name]));
    let device_type = cell(&member["CXL"]["ConnectedDeviceType"]);
    vec![cell(&ours["Switch"]), cell(&member["Id"]), kind, link, width, speed, device_type, connected]
}

pub(crate) fn hosts(session: &mut Session<'_>) -> Result<(), Failure> {
    list(session, ENDPOINTS, &kind("Host"), (&["HOST", "STATE", "VOLUMES", "NOTE"], host))
}

pub(crate) fn donors(session: &mut Session<'_>) -> Result<(), Failure> {
    list(
        session,
        ENDPOINTS,
        &kind("Donor"),
        (&["DONOR", "STATE", "CAPACITY", "LENT", "PROMISED", "FREE", "NOTE"], donor),
    )
}

pub(crate) fn devices(session: &mut Session<'_>) -> Result<(), Failure> {
    list(
        session,
        ENDPOINTS,
        &kind("Device"),
        (&["DEVICE", "STATE", "KIND", "CAPACITY", "SWITCH", "PORT", "GIVEN"], device),
    )
}

/// Lists the ports of all switches: one table, or one collection for each switch.
pub(crate) fn ports(session: &mut Session<'_>) -> Result<(), Failure> {
    let switches = collection(&session.client, SWITCHES, "")?;
    let mut all = Vec::new();
    for switch in switches["Members"].as_array().into_iter().flatten() {
        let answer = collection(&session.client, &format!("{SWITCHES}/{}/Ports", cell(&switch["Id"])), "")?;
        if session.json {
            session.print(&format!("{answer}\n"))?;
        }
        all.extend(rows(&answer, port));
    }
    match session.json {
        true => Ok(()),
        false => {
            let titles = ["SWITCH", "PORT", "KIND", "LINK", "LANES", "GT/S", "TYPE", "CONNECTED"];
            session.print(&columns(&titles, &all, &session.output))
        }
    }
}

fn kind(name: &str) -> String {
    format!("&$filter=Oem/Aquifer/Kind%20eq%20'{name}'")
}

fn pool(member: &Value) -> Vec<String> {
    let ours = &member["Oem"]["Aquifer"];
    let size = member["MemorySizeMiB"].as_u64().map(|mib| aquifer_fabric::Bytes(mib << 20).to_string());
    vec![cell(&member["Id"]), size.unwrap_or_default(), joined(&ours["Donors"]), joined(&ours["Devices"])]
}

pub(crate) fn pools(session: &mut Session<'_>) -> Result<(), Failure> {
    list(session, POOLS, "", (&["POOL", "CAPACITY", "DONORS", "DEVICES"], pool))
}

fn zone(member: &Value) -> Vec<String> {
    let ours = &member["Oem"]["Aquifer"];
    let endpoints = member["Links"]["Endpoints"].as_array().into_iter().flatten();
    let hosts = endpoints.map(|link| cell(&link["@odata.id"]).rsplit("Host.").next().unwrap_or_default().to_owned());
    vec![cell(&member["Id"]), cell(&ours["Quota"]), cell(&ours["Used"]), hosts.collect::<Vec<_>>().join(",")]
}

pub(crate) fn zones(session: &mut Session<'_>) -> Result<(), Failure> {
    list(session, ZONES, "", (&["ZONE", "QUOTA", "USED", "HOSTS"], zone))
}

fn task(member: &Value) -> Vec<String> {
    let who = cell(&member["Oem"]["Aquifer"]["Who"]);
    let [id, state, begun, ended, what] =
        ["Id", "TaskState", "StartTime", "EndTime", "Name"].map(|name| cell(&member[name]));
    vec![id, state, begun, ended, who, what]
}

pub(crate) fn tasks(session: &mut Session<'_>) -> Result<(), Failure> {
    list(session, TASKS, "", (&["TASK", "STATE", "BEGUN", "ENDED", "WHO", "WHAT"], task))
}

fn volume(member: &Value) -> Vec<String> {
    let ours = &member["Oem"]["Aquifer"];
    let spec = &ours["Spec"];
    let redundancy = serde_json::from_value::<Redundancy>(spec["redundancy"].clone());
    let redundancy = redundancy.map(|redundancy| redundancy.to_string()).unwrap_or_default();
    let [pool, size, zone, class] = ["pool", "size", "zone", "class"].map(|name| cell(&spec[name]));
    let donor = cell(&spec["donor"]);
    let expires = spec["expires_at"].as_u64().map(|at| date(Millis(at))).unwrap_or_default();
    let labels = spec["labels"].as_object().into_iter().flatten().map(|(key, value)| format!("{key}={}", cell(value)));
    let labels = labels.collect::<Vec<_>>().join(",");
    let [name, host] = [&member["Id"], &ours["Host"]].map(cell);
    vec![name, state(member), size, host, pool, zone, class, redundancy, donor, expires, labels]
}

const VOLUME_TITLES: [&str; 11] =
    ["VOLUME", "STATE", "SIZE", "HOST", "POOL", "ZONE", "CLASS", "REDUNDANCY", "DONOR", "EXPIRES", "LABELS"];

/// Lists the volumes of all pools: one table, or one collection for each pool.
pub(crate) fn volumes(session: &mut Session<'_>) -> Result<(), Failure> {
    let pools = collection(&session.client, POOLS, "")?;
    let mut all = Vec::new();
    for pool in pools["Members"].as_array().into_iter().flatten() {
        let answer = collection(&session.client, &format!("{POOLS}/{}/MemoryChunks", cell(&pool["Id"])), "")?;
        if session.json {
            session.print(&format!("{answer}\n"))?;
        }
        all.extend(rows(&answer, volume));
    }
    match session.json {
        true => Ok(()),
        false => session.print(&columns(&VOLUME_TITLES, &all, &session.output)),
    }
}
