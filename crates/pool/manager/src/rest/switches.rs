// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Switches: their ports, their virtual CXL switches, and the vPPBs of these. A vPPB is bound and unbound by changing
//! its `Links.Port`, as Redfish has it; a link is taken down and up by its port's `LinkState`.
//!
//! What a switch is made of comes from the topology, what it reports beyond that from its inventory; a simulated switch
//! has none.

use aquifer_cxl_peers::{Act as SwitchAct, PortAct, PortView};
use aquifer_fabric::{DeviceId, LdBinding, LdId, NO_LD, Port, PortId, Switch, SwitchId, VcsId, VppbAddress, VppbId};
use serde_json::{Value, json};

use super::answer::{Answer, Problem};
use super::body::linked;
use super::collection::collection;
use super::fabrics::{FABRIC, link, or_missing};
use super::oem::plan_body;
use super::service::Call;
use crate::order::Act;

fn found<'a>(call: &'a Call<'_>, name: &str) -> Option<&'a Switch> {
    call.snapshot.topology.parts().switches.get(&name.parse::<SwitchId>().ok()?)
}

pub(super) fn switch_path(name: &str) -> String {
    format!("{FABRIC}/Switches/{name}")
}

fn switch_body(call: &Call<'_>, name: &str) -> Option<Value> {
    let switch = found(call, name)?;
    let path = switch_path(name);
    let vppbs: usize = switch.vcss.values().map(|vcs| vcs.vppbs.len()).sum();
    let bound = switch.vcss.iter().flat_map(|(vcs_id, vcs)| vcs.vppbs.iter().map(move |vppb_id| (*vcs_id, *vppb_id)));
    let address = |(vcs_id, vppb_id)| VppbAddress { switch: name.parse().expect("it was found"), vcs_id, vppb_id };
    let bound = bound.filter(|ids| bound_to(call, &address(*ids)).is_some()).count();
    Some(json!({
        "@odata.id": path, "@odata.type": "#Switch.v1_10_0.Switch", "Id": name, "Name": "Switch", "SwitchType": "CXL",
        "Status": { "State": "Enabled", "Health": "OK" }, "Ports": link(format!("{path}/Ports")),
        "CXL": { "MaxVCSsSupported": switch.vcss.len(), "TotalNumbervPPBs": vppbs, "NumberOfBoundvPPBs": bound,
                 "VirtualCXLSwitches": link(format!("{path}/VCSs")) },
        "Links": { "Chassis": link(format!("/redfish/v1/Chassis/{}", switch.enclosure)) },
    }))
}

pub(super) fn switches(call: &Call<'_>) -> Result<Answer, Problem> {
    let ids: Vec<String> = call.snapshot.topology.parts().switches.keys().map(ToString::to_string).collect();
    let path = format!("{FABRIC}/Switches");
    let body = |id: &str| switch_body(call, id);
    Ok(Answer::of(200, collection(&path, "SwitchCollection", "Switches", &call.query, &ids, body)))
}

pub(super) fn switch(call: &Call<'_>) -> Result<Answer, Problem> {
    or_missing(call, switch_body(call, call.name()))
}

fn port_body(call: &Call<'_>, switch: &str, name: &str) -> Option<Value> {
    let id: PortId = PortId(name.parse().ok()?);
    let port = found(call, switch)?.ports.get(&id)?;
    let (kind, endpoint) = match port {
        Port::Upstream { host } => ("UpstreamPort", Some(format!("Host.{host}"))),
        Port::Downstream { device } => ("DownstreamPort", device.as_ref().map(|device| format!("Device.{device}"))),
    };
    let endpoints: Vec<Value> = endpoint.iter().map(|id| link(format!("{FABRIC}/Endpoints/{id}"))).collect();
    let inventory = call.snapshot.inventories.get(&switch.parse::<SwitchId>().ok()?);
    let view = inventory.and_then(|inventory| inventory.port_view(id.0));
    let is_up = view.map_or(!endpoints.is_empty(), |view| view.is_up);
    let path = format!("{}/Ports/{name}", switch_path(switch));
    let mut body = json!({
        "@odata.id": path, "@odata.type": "#Port.v1_14_0.Port",
        "Id": name, "Name": "Port", "PortId": name, "PortProtocol": "CXL", "PortType": kind,
        "Status": { "State": if endpoints.is_empty() { "Absent" } else { "Enabled" }, "Health": "OK" },
        "LinkStatus": if is_up { "LinkUp" } else { "LinkDown" }, "Links": { "AssociatedEndpoints": endpoints },
        "Actions": { "#Port.Reset": { "target": format!("{path}/Actions/Port.Reset") } },
        "Oem": { "Aquifer": { "Connected": endpoint, "Switch": switch } },
    });
    if let (Some(view), Some(map)) = (view, body.as_object_mut()) {
        map.extend(reported(&view));
    }
    Some(body)
}

/// Returns what a real switch reports of a port.
fn reported(view: &PortView) -> serde_json::Map<String, Value> {
    let said = json!({
        "ActiveWidth": view.widths.0, "Width": view.widths.1, "CurrentSpeedGbps": view.speeds.0,
        "MaxSpeedGbps": view.speeds.1, "LinkState": if view.is_in_reset { "Disabled" } else { "Enabled" },
        "CXL": { "CurrentPortConfigurationState": view.configuration, "ConnectedDeviceMode": view.device_mode,
                 "ConnectedDeviceType": view.device_type, "MaxLogicalDeviceCount": view.lds_max },
    });
    said.as_object().cloned().unwrap_or_default()
}

pub(super) fn ports(call: &Call<'_>) -> Result<Answer, Problem> {
    let switch = call.name();
    let found = found(call, switch).ok_or_else(|| Problem::not_found(call.path))?;
    let ids: Vec<String> = found.ports.keys().map(ToString::to_string).collect();
    let body = |id: &str| port_body(call, switch, id);
    let path = format!("{}/Ports", switch_path(switch));
    Ok(Answer::of(200, collection(&path, "PortCollection", "Ports", &call.query, &ids, body)))
}

pub(super) fn port(call: &Call<'_>) -> Result<Answer, Problem> {
    or_missing(call, port_body(call, &call.names[0], call.name()))
}

fn control(call: &Call<'_>, act: PortAct) -> Result<Answer, Problem> {
    let (switch, port_id) = (&call.names[0], &call.names[1]);
    port_body(call, switch, port_id).ok_or_else(|| Problem::not_found(call.path))?;
    let missing = || Problem::not_found(call.path);
    let switch = switch.parse().map_err(|_| missing())?;
    let port_id = PortId(port_id.parse().map_err(|_| missing())?);
    let act = SwitchAct::ControlPort { switch, port_id, act };
    let done = call.order(Act::Switch(Box::new(act)), call.is_dry_run())?;
    Ok(Answer::of(200, plan_body(&done)))
}

pub(super) fn set_port(call: &Call<'_>) -> Result<Answer, Problem> {
    match call.text("LinkState") {
        Some("Disabled") => control(call, PortAct::Disable),
        Some("Enabled") => control(call, PortAct::Enable),
        _ => Err(Problem::value("LinkState", "it is neither Enabled nor Disabled; send one of them")),
    }
}

pub(super) fn reset_port(call: &Call<'_>) -> Result<Answer, Problem> {
    control(call, PortAct::Reset)
}

fn vcs_body(call: &Call<'_>, switch: &str, name: &str) -> Option<Value> {
    let vcs = found(call, switch)?.vcss.get(&VcsId(name.parse().ok()?))?;
    let path = format!("{}/VCSs/{name}", switch_path(switch));
    Some(json!({
        "@odata.id": path, "@odata.type": "#VirtualCXLSwitch.v1_0_0.VirtualCXLSwitch", "Id": name,
        "Name": "Virtual CXL switch", "Status": { "State": "Enabled", "Health": "OK" },
        "VCSId": name, "VPPBs": link(format!("{path}/VPPBs")),
        "Links": { "Port": link(format!("{}/Ports/{}", switch_path(switch), vcs.upstream)) },
    }))
}

pub(super) fn vcss(call: &Call<'_>) -> Result<Answer, Problem> {
    let switch = call.name();
    let found = found(call, switch).ok_or_else(|| Problem::not_found(call.path))?;
    let ids: Vec<String> = found.vcss.keys().map(ToString::to_string).collect();
    let path = format!("{}/VCSs", switch_path(switch));
    let body = |id: &str| vcs_body(call, switch, id);
    let kind = "VirtualCXLSwitchCollection";
    Ok(Answer::of(200, collection(&path, kind, "Virtual CXL switches", &call.query, &ids, body)))
}

pub(super) fn vcs(call: &Call<'_>) -> Result<Answer, Problem> {
    or_missing(call, vcs_body(call, &call.names[0], call.name()))
}

/// Returns the device and the LD that a vPPB is bound to, by the reports of devices.
fn bound_to(call: &Call<'_>, vppb: &VppbAddress) -> Option<(DeviceId, LdId)> {
    let devices = call.snapshot.observed.devices.iter();
    let mut lds = devices.flat_map(|(name, report)| report.lds.iter().map(move |(ld_id, ld)| (name, *ld_id, ld)));
    let found = lds.find(|(_, _, ld)| ld.binding == LdBinding::Bound(vppb.clone()));
    found.map(|(name, ld_id, _)| (name.clone(), ld_id))
}

fn address(call: &Call<'_>, [switch, vcs_id, vppb_id]: [&str; 3]) -> Option<VppbAddress> {
    let (vcs_id, vppb_id) = (VcsId(vcs_id.parse().ok()?), VppbId(vppb_id.parse().ok()?));
    let vcs = found(call, switch)?.vcss.get(&vcs_id)?;
    vcs.vppbs.contains(&vppb_id).then_some(VppbAddress { switch: switch.parse().ok()?, vcs_id, vppb_id })
}

fn vppb_body(call: &Call<'_>, names: [&str; 3]) -> Option<Value> {
    let address = address(call, names)?;
    let [switch, vcs_id, name] = names;
    let view = call.snapshot.inventories.get(&address.switch).and_then(|inventory| inventory.vppb_view(&address));
    let bound = view.as_ref().map_or_else(|| bound_to(call, &address), |view| view.bound_to.clone());
    let slot = bound.as_ref().and_then(|(device, _)| call.snapshot.topology.slot(device));
    let port_id = view.as_ref().and_then(|view| view.port_id).or_else(|| slot.map(|slot| slot.port_id.0));
    let ld_id = bound.as_ref().map(|(_, ld_id)| *ld_id).filter(|ld_id| *ld_id != NO_LD);
    let of_report = if ld_id.is_some() { "BoundLD" } else { "BoundPhysicalPort" };
    let unbound = if bound.is_some() { of_report } else { "Unbound" };
    let mut body = json!({
        "@odata.id": format!("{}/VCSs/{vcs_id}/VPPBs/{name}", switch_path(switch)),
        "@odata.type": "#VirtualPCI2PCIBridge.v1_0_0.VirtualPCI2PCIBridge", "Id": name, "Name": "vPPB",
        "VPPBId": name, "BindingStatus": view.map_or(unbound, |view| view.status),
        "Links": { "Port": port_id.map(|port_id| link(format!("{}/Ports/{port_id}", switch_path(switch)))) },
    });
    // By the schema these are numbers, never null.
    if let Some(port_id) = port_id {
        body["BoundPortId"] = port_id.into();
    }
    if let Some(ld_id) = ld_id {
        body["BoundLDId"] = ld_id.0.into();
    }
    Some(body)
}

pub(super) fn vppbs(call: &Call<'_>) -> Result<Answer, Problem> {
    let (switch, vcs_id) = (call.names[0].as_str(), call.name());
    let id = vcs_id.parse().map(VcsId).map_err(|_| Problem::not_found(call.path))?;
    let vcs =
        found(call, switch).and_then(|switch| switch.vcss.get(&id)).ok_or_else(|| Problem::not_found(call.path))?;
    let ids: Vec<String> = vcs.vppbs.iter().map(ToString::to_string).collect();
    let path = format!("{}/VCSs/{vcs_id}/VPPBs", switch_path(switch));
    let body = |id: &str| vppb_body(call, [switch, vcs_id, id]);
    Ok(Answer::of(200, collection(&path, "VirtualPCI2PCIBridgeCollection", "vPPBs", &call.query, &ids, body)))
}

fn names<'a>(call: &'a Call<'_>) -> [&'a str; 3] {
    [&call.names[0], &call.names[1], &call.names[2]]
}

pub(super) fn vppb(call: &Call<'_>) -> Result<Answer, Problem> {
    or_missing(call, vppb_body(call, names(call)))
}

/// Binds a vPPB to the device at a port, or unbinds it: `Links.Port` is a link, or null. For an MLD, `Oem.Aquifer.LDId`
/// in `Links` names the LD.
pub(super) fn set_vppb(call: &Call<'_>) -> Result<Answer, Problem> {
    let vppb = address(call, names(call)).ok_or_else(|| Problem::not_found(call.path))?;
    let links = call.body.get("Links").cloned().unwrap_or_default();
    let act = match links.get("Port") {
        None => return Err(Problem::value("Links", "it has no Port; send a link to bind, or null to unbind")),
        Some(Value::Null) => SwitchAct::Unbind { vppb },
        Some(port) => {
            let port_id = linked(port, &format!("{}/Ports/", switch_path(vppb.switch.as_str())))?;
            let (device, ld_id) = target(call, &vppb.switch, port_id, &links)?;
            SwitchAct::Bind { vppb, device, ld_id }
        }
    };
    let done = call.order(Act::Switch(Box::new(act)), call.is_dry_run())?;
    Ok(Answer::of(200, plan_body(&done)))
}

/// Returns the device at a port, and the LD on it.
fn target(call: &Call<'_>, switch: &SwitchId, port_id: &str, links: &Value) -> Result<(DeviceId, LdId), Problem> {
    let topology = &call.snapshot.topology;
    let port = port_id.parse().ok().and_then(|id| topology.parts().switches.get(switch)?.ports.get(&PortId(id)));
    let Some(Port::Downstream { device: Some(device) }) = port else {
        return Err(Problem::value("Links", format!("there is no device at port {port_id}; list the ports")));
    };
    let lds = topology.parts().devices.get(device).map(|device| device.lds()).unwrap_or_default();
    let wanted = links["Oem"]["Aquifer"]["LDId"].as_u64().and_then(|id| u16::try_from(id).ok()).map(LdId);
    let ld_id = match (wanted, lds.as_slice()) {
        (None, [(only, _)]) => Some(*only),
        (None, _) => None,
        (Some(wanted), lds) => lds.iter().map(|(ld_id, _)| *ld_id).find(|ld_id| *ld_id == wanted),
    };
    let unknown = || {
        Problem::value(
            "Links",
            format!("device {device} has several LDs, or not this one; name one as Oem.Aquifer.LDId"),
        )
    };
    Ok((device.clone(), ld_id.ok_or_else(unknown)?))
}
