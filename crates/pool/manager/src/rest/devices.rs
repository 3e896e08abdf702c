// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory devices, as PCIe devices of their enclosure, and their logical devices: size, bandwidth, binding.

use aquifer_cxl_peers::{Act as SwitchAct, CapacityView, DeviceView};
use aquifer_fabric::{Bytes, Device, DeviceId, DeviceKind, LdBinding, LdId, LdReport, NO_LD};
use serde_json::{Value, json};

use super::answer::{Answer, Problem};
use super::body::mebibytes;
use super::collection::collection;
use super::fabrics::{FABRIC, link, or_missing, status};
use super::oem::plan_body;
use super::service::Call;
use super::switches::switch_path;
use crate::order::Act;

/// 256ths of a bandwidth in percent.
const WHOLE: u64 = 256;
/// The name of an SLD's only logical device.
const ONLY: &str = "0";

fn kind(device: &Device) -> &'static str {
    match device.kind {
        DeviceKind::DynamicCapacity { .. } => "DCD",
        DeviceKind::Mld { .. } => "MLD",
        DeviceKind::Sld { .. } => "SLD",
    }
}

fn capacity(device: &Device) -> Bytes {
    match device.kind {
        DeviceKind::DynamicCapacity { capacity, .. } => capacity,
        DeviceKind::Mld { .. } | DeviceKind::Sld { .. } => device.lds().into_iter().map(|(_, bytes)| bytes).sum(),
    }
}

/// Returns what is known of a device, for its endpoint.
pub(super) fn figures(call: &Call<'_>, name: &DeviceId, device: &Device) -> Value {
    let report = call.snapshot.observed.devices.get(name);
    let slot = call.snapshot.topology.slot(name);
    let is_bound = |ld: &&LdReport| matches!(ld.binding, LdBinding::Bound(_));
    let lds = report.map(|report| report.lds.len());
    let added: Option<Bytes> = report
        .map(|report| report.extents.values().flat_map(|members| members.values()).map(|extent| extent.bytes).sum());
    json!({
        "Kind": "Device", "DeviceKind": kind(device), "Capacity": capacity(device),
        "Switch": slot.map(|slot| &slot.switch), "Port": slot.map(|slot| slot.port_id),
        "Lds": report.map(|report| &report.lds), "LdsTotal": lds,
        "LdsBound": report.map(|report| report.lds.values().filter(is_bound).count()), "Added": added,
    })
}

fn found<'a>(call: &'a Call<'_>, chassis: &str, name: &str) -> Option<(DeviceId, &'a Device)> {
    let name: DeviceId = name.parse().ok()?;
    let device = call.snapshot.topology.parts().devices.get(&name)?;
    (device.enclosure.as_str() == chassis).then_some((name, device))
}

fn view<'a>(call: &'a Call<'_>, name: &DeviceId) -> Option<&'a DeviceView> {
    call.snapshot.inventories.values().find_map(|inventory| inventory.devices.get(name))
}

pub(super) fn devices_path(chassis: &str) -> String {
    format!("/redfish/v1/Chassis/{chassis}/PCIeDevices")
}

fn device_body(call: &Call<'_>, chassis: &str, id: &str) -> Option<Value> {
    let (name, device) = found(call, chassis, id)?;
    let path = format!("{}/{id}", devices_path(chassis));
    let view = view(call, &name);
    let slot = call.snapshot.topology.slot(&name);
    let port = slot.map(|slot| link(format!("{}/Ports/{}", switch_path(slot.switch.as_str()), slot.port_id)));
    let dynamic = view.and_then(|view| view.capacity.as_ref()).map(dynamic_body);
    let congestion = view.and_then(|view| view.qos).map(|qos| {
        json!({ "Telemetry": qos.telemetry, "ModeratePercent": qos.egress_moderate_percent,
                "SeverePercent": qos.egress_severe_percent })
    });
    let availability = call.snapshot.observed.devices.get(&name).map(|report| report.availability);
    Some(json!({
        "@odata.id": path, "@odata.type": "#PCIeDevice.v1_18_0.PCIeDevice", "Id": id, "Name": "CXL memory device",
        "DeviceType": "SingleFunction", "Status": status(availability),
        "SerialNumber": view.and_then(|view| view.serial).map(|serial| format!("{serial:016x}")),
        "CXLDevice": { "DeviceType": "Type3", "DynamicCapacity": dynamic },
        "CXLLogicalDevices": link(format!("{path}/CXLLogicalDevices")),
        "Links": { "Oem": { "Aquifer": { "Port": port, "Endpoint": link(format!("{FABRIC}/Endpoints/Device.{id}")) } } },
        "Oem": { "Aquifer": { "DeviceKind": kind(device), "Capacity": capacity(device), "Congestion": congestion } },
    }))
}

fn dynamic_body(capacity: &CapacityView) -> Value {
    let added: u64 = capacity.offers.iter().map(|offer| offer.bytes).sum();
    json!({
        "MaxHosts": capacity.hosts, "TotalDynamicCapacityMiB": capacity.bytes >> 20,
        "Oem": { "Aquifer": { "BlockBytes": capacity.block_bytes, "Added": Bytes(added),
                              "IsSanitizedOnRelease": capacity.is_sanitized } },
    })
}

pub(super) fn devices(call: &Call<'_>) -> Result<Answer, Problem> {
    let chassis = call.name();
    let parts = call.snapshot.topology.parts();
    let enclosure = chassis.parse().ok().filter(|enclosure| parts.enclosures.contains_key(enclosure));
    let enclosure = enclosure.ok_or_else(|| Problem::not_found(call.path))?;
    let all = parts.devices.iter().filter(|(_, device)| device.enclosure == enclosure);
    let ids: Vec<String> = all.map(|(name, _)| name.to_string()).collect();
    let body = |id: &str| device_body(call, chassis, id);
    let path = devices_path(chassis);
    Ok(Answer::of(200, collection(&path, "PCIeDeviceCollection", "Memory devices", &call.query, &ids, body)))
}

pub(super) fn device(call: &Call<'_>) -> Result<Answer, Problem> {
    or_missing(call, device_body(call, &call.names[0], call.name()))
}

/// Sets how an MLD reports congestion.
pub(super) fn set_device(call: &Call<'_>) -> Result<Answer, Problem> {
    let (device, _) = found(call, &call.names[0], call.name()).ok_or_else(|| Problem::not_found(call.path))?;
    let congestion = call.body.get("Oem").map(|oem| oem["Aquifer"]["Congestion"].clone()).unwrap_or_default();
    let byte = |name: &str| {
        let number = congestion[name].as_u64().and_then(|number| u8::try_from(number).ok());
        let wrong = || Problem::value("Oem", format!("Aquifer.Congestion.{name} is not a number below 256; send one"));
        number.ok_or_else(wrong)
    };
    let (telemetry, moderate_percent, severe_percent) =
        (byte("Telemetry")?, byte("ModeratePercent")?, byte("SeverePercent")?);
    let act = SwitchAct::SetCongestion { device, telemetry, moderate_percent, severe_percent };
    order(call, act)
}

fn order(call: &Call<'_>, act: SwitchAct) -> Result<Answer, Problem> {
    let done = call.order(Act::Switch(Box::new(act)), call.is_dry_run())?;
    Ok(Answer::of(200, plan_body(&done)))
}

/// Returns the LD of a name in a path.
fn ld_named(device: &Device, name: &str) -> Option<(LdId, Bytes)> {
    let wanted: u16 = name.parse().ok()?;
    let is_it = |ld_id: LdId| ld_id == LdId(wanted) || (ld_id == NO_LD && name == ONLY);
    device.lds().into_iter().find(|(ld_id, _)| is_it(*ld_id))
}

fn ld_body(call: &Call<'_>, [chassis, device_id, id]: [&str; 3]) -> Option<Value> {
    let (name, device) = found(call, chassis, device_id)?;
    let (ld_id, bytes) = ld_named(device, id)?;
    let report = call.snapshot.observed.devices.get(&name);
    let ld = report.and_then(|report| report.lds.get(&ld_id));
    let percent = |list: &Vec<u8>| list.get(usize::from(ld_id.0)).map(|part| u64::from(*part) * 100 / WHOLE);
    let fractions = view(call, &name).map(|view| &view.qos_fractions);
    let host = ld.and_then(|ld| match &ld.binding {
        LdBinding::Bound(vppb) => call.snapshot.topology.host_of(&vppb.switch, vppb.vcs_id),
        LdBinding::Busy | LdBinding::Unbound => None,
    });
    let endpoints: Vec<Value> = host.into_iter().map(|host| link(format!("{FABRIC}/Endpoints/Host.{host}"))).collect();
    Some(json!({
        "@odata.id": format!("{}/{device_id}/CXLLogicalDevices/{id}", devices_path(chassis)),
        "@odata.type": "#CXLLogicalDevice.v1_4_0.CXLLogicalDevice", "Id": id, "Name": "Logical device",
        "MemorySizeMiB": bytes.0 >> 20, "SemanticsSupported": ["CXLio", "CXLmem"],
        "Status": status(report.map(|report| report.availability)),
        "QoS": { "AllocatedBandwidth": fractions.and_then(|all| percent(&all.0)),
                 "LimitPercent": fractions.and_then(|all| percent(&all.1)) },
        "Links": { "Endpoints": endpoints }, "Oem": { "Aquifer": { "Ld": ld } },
    }))
}

pub(super) fn lds(call: &Call<'_>) -> Result<Answer, Problem> {
    let (chassis, device_id) = (call.names[0].as_str(), call.name());
    let (_, device) = found(call, chassis, device_id).ok_or_else(|| Problem::not_found(call.path))?;
    let name_of = |ld_id: LdId| if ld_id == NO_LD { ONLY.to_owned() } else { ld_id.to_string() };
    let ids: Vec<String> = device.lds().into_iter().map(|(ld_id, _)| name_of(ld_id)).collect();
    let body = |id: &str| ld_body(call, [chassis, device_id, id]);
    let path = format!("{}/{device_id}/CXLLogicalDevices", devices_path(chassis));
    Ok(Answer::of(200, collection(&path, "CXLLogicalDeviceCollection", "Logical devices", &call.query, &ids, body)))
}

fn names<'a>(call: &'a Call<'_>) -> [&'a str; 3] {
    [&call.names[0], &call.names[1], &call.names[2]]
}

pub(super) fn ld(call: &Call<'_>) -> Result<Answer, Problem> {
    or_missing(call, ld_body(call, names(call)))
}

/// Resizes an LD, or sets its bandwidth: one of the two in one request.
pub(super) fn set_ld(call: &Call<'_>) -> Result<Answer, Problem> {
    let [chassis, device_id, id] = names(call);
    let missing = || Problem::not_found(call.path);
    let (name, device) = found(call, chassis, device_id).ok_or_else(missing)?;
    let (ld_id, _) = ld_named(device, id).ok_or_else(missing)?;
    let act = match (call.body.contains_key("MemorySizeMiB"), call.body.get("QoS")) {
        (true, None) => SwitchAct::SetSize { device: name, ld_id, bytes: mebibytes(&call.body, "MemorySizeMiB")? },
        (false, Some(qos)) => {
            let (allocated, limit) = (part(qos, "AllocatedBandwidth")?, part(qos, "LimitPercent")?);
            SwitchAct::SetBandwidth { device: name, ld_id, allocated, limit }
        }
        _ => return Err(Problem::value("MemorySizeMiB", "one request changes the size or QoS; send one of them")),
    };
    order(call, act)
}

/// Returns a percentage as 256ths.
fn part(qos: &Value, name: &str) -> Result<Option<u8>, Problem> {
    match qos.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(percent) => {
            let percent = percent.as_u64().filter(|percent| *percent <= 100);
            let wrong = || Problem::value("QoS", format!("{name} is not a percentage; send 0 to 100"));
            // Rounded up, so that what is read back is what was written.
            let part = (percent.ok_or_else(wrong)? * WHOLE).div_ceil(100).min(WHOLE - 1);
            Ok(u8::try_from(part).ok())
        }
    }
}
