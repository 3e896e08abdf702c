// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a peer reports, as text and as JSON with the same names.

use std::fmt::Write as _;

use aquifer_fmapi::*;
use aquifer_fmapi_client::{Client, Failure, Hop, LogContents};
use serde_json::{Value, json};

use crate::event;

/// What is shown: lines for a person, and the same as JSON.
#[derive(Debug)]
pub(crate) struct Shown {
    pub text: String,
    pub json: Value,
}

/// Returns a value whose variants have names, such as `type3-sld`.
pub(crate) fn word(value: impl std::fmt::Debug) -> String {
    let debug = format!("{value:?}");
    let mut word = String::new();
    for (at, character) in debug.chars().enumerate() {
        if character.is_uppercase() && at > 0 {
            word.push('-');
        }
        word.extend(character.to_lowercase());
    }
    word
}

/// Shows Identify, and Identify Switch Device where the peer answers it.
pub(crate) fn identify(client: &mut Client, path: &[Hop]) -> Result<Shown, Failure> {
    let identity = client.identify(path)?;
    let component = identity.component_type.map_or("unknown".into(), word);
    let mut text = format!(
        "component {component}, vendor {:04x}, device {:04x}, serial number {}, messages of up to {} bytes\n",
        identity.vendor_id,
        identity.device_id,
        identity.serial_number,
        1u64 << identity.message_limit_log2.min(63),
    );
    let mut json = json!({
        "component": component, "vendor_id": identity.vendor_id, "device_id": identity.device_id,
        "serial_number": identity.serial_number, "message_limit_log2": identity.message_limit_log2,
        "dialect": client.dialect().name,
    });
    if !path.is_empty() {
        return Ok(Shown { text, json });
    }
    let switch = match client.identify_switch() {
        Ok(switch) => switch,
        Err(failure) if failure.return_code() == Some(ReturnCode::UNSUPPORTED) => return Ok(Shown { text, json }),
        Err(failure) => return Err(failure),
    };
    let ports: Vec<u8> = SwitchIdentity::numbers(&switch.active_ports).collect();
    let _ = writeln!(
        text,
        "{} ports, of which active: {ports:?}\n{} virtual switches, {} vPPBs, of which {} are active\ndialect {}",
        switch.physical_ports,
        switch.virtual_switches,
        switch.vppbs_total,
        switch.vppbs_active,
        client.dialect().name,
    );
    json["switch"] = json!({
        "physical_ports": switch.physical_ports, "active_ports": ports,
        "virtual_switches": switch.virtual_switches, "ingress_port_id": switch.ingress_port_id,
        "vppbs_total": switch.vppbs_total, "vppbs_active": switch.vppbs_active,
        "hdm_decoders_per_usp": switch.hdm_decoders_per_usp,
    });
    Ok(Shown { text, json })
}

/// Shows the physical ports.
pub(crate) fn ports(client: &mut Client) -> Result<Shown, Failure> {
    let switch = client.identify_switch()?;
    let ids: Vec<u8> = (0..switch.physical_ports).collect();
    let (mut text, mut list) = (String::from("port  state       device      lanes  speed  link\n"), Vec::new());
    for port in client.port_states(&ids)? {
        let (state, device, link) = (word(port.state), word(port.device_type), word(port.link_state));
        let _ = writeln!(
            text,
            "{:>4}  {state:<10}  {device:<10}  {:>2}/{:<2}  {:>2}/{:<2}  {link}",
            port.port_id, port.link_width, port.link_width_max, port.link_speed, port.link_speed_max,
        );
        list.push(json!({
            "port_id": port.port_id, "state": state, "device_type": device, "device_mode": word(port.device_mode),
            "link_width": port.link_width, "link_width_max": port.link_width_max, "link_speed": port.link_speed,
            "link_speed_max": port.link_speed_max, "link_state": link, "link_flags": port.link_flags,
            "supported_lds": port.supported_lds,
        }));
    }
    Ok(Shown { text, json: json!({ "ports": list }) })
}

/// Shows the virtual switches.
pub(crate) fn virtual_switches(client: &mut Client) -> Result<Shown, Failure> {
    let switch = client.identify_switch()?;
    let (mut text, mut list) = (String::new(), Vec::new());
    for vcs_id in 0..switch.virtual_switches {
        let vcs = client.virtual_switch(vcs_id)?;
        let _ = writeln!(text, "virtual switch {vcs_id}: {}, upstream port {}", word(vcs.state), vcs.usp_id);
        let mut vppbs = Vec::new();
        for (vppb_id, vppb) in vcs.vppbs.iter().enumerate() {
            let (port_id, ld_id) = match vppb.status {
                BindingStatus::Ld => (Some(vppb.port_id), Some(vppb.ld_id)),
                BindingStatus::Port => (Some(vppb.port_id), None),
                _ => (None, None),
            };
            let port = port_id.map_or(String::new(), |port_id| format!(", port {port_id}"));
            let ld = ld_id.map_or(String::new(), |ld_id| format!(", logical device {ld_id}"));
            let _ = writeln!(text, "  vPPB {vppb_id}: {}{port}{ld}", word(vppb.status));
            vppbs.push(json!({
                "vppb_id": vppb_id, "status": word(vppb.status), "port_id": port_id, "ld_id": ld_id,
            }));
        }
        list.push(json!({ "vcs_id": vcs_id, "state": word(vcs.state), "usp_id": vcs.usp_id, "vppbs": vppbs }));
    }
    Ok(Shown { text, json: json!({ "virtual_switches": list }) })
}

/// Shows the logical devices of an MLD.
pub(crate) fn logical_devices(client: &mut Client, path: &[Hop]) -> Result<Shown, Failure> {
    let capabilities = client.ld_capabilities(path)?;
    let allocations = client.ld_allocations(path)?;
    let unit = allocations.granularity.bytes();
    let mut text =
        format!("{} bytes of memory, {} logical devices\n", capabilities.memory_bytes, capabilities.ld_count);
    let mut list = Vec::new();
    for (ld_id, one) in allocations.allocations.iter().enumerate() {
        let bytes = unit.and_then(|unit| one.range_1.checked_add(one.range_2)?.checked_mul(unit));
        let _ = writeln!(text, "logical device {ld_id}: {} bytes", bytes.map_or("?".into(), |it| it.to_string()));
        list.push(json!({ "ld_id": ld_id, "bytes": bytes, "range_1": one.range_1, "range_2": one.range_2 }));
    }
    let json = json!({
        "memory_bytes": capabilities.memory_bytes, "ld_count": capabilities.ld_count,
        "granularity_bytes": unit, "allocations": list,
    });
    Ok(Shown { text, json })
}

/// Shows the dynamic capacity of a device, as a host has it.
pub(crate) fn capacity(client: &mut Client, path: &[Hop], host_id: u16) -> Result<Shown, Failure> {
    let dcd = client.dcd(path)?;
    let regions = client.dc_regions(path, host_id)?;
    let extents = client.dc_extents(path, host_id)?;
    let total = dcd.total_capacity.saturating_mul(CAPACITY_UNIT_BYTES);
    let mut text = format!("{} hosts, {total} bytes of dynamic capacity\n", dcd.hosts);
    let (mut region_list, mut extent_list) = (Vec::new(), Vec::new());
    for (region, it) in regions.regions.iter().enumerate() {
        let _ = writeln!(text, "region {region}: {} bytes at {:#x}, blocks of {}", it.length, it.base, it.block_bytes);
        region_list.push(json!({
            "region": region, "base": it.base, "length": it.length, "block_bytes": it.block_bytes,
            "sanitize_on_release": it.sanitize_on_release & 1 == 1,
        }));
    }
    for it in &extents.extents {
        let tag: String = it.tag.iter().map(|byte| format!("{byte:02x}")).collect();
        let _ = writeln!(text, "extent of host {host_id}: {} bytes at {:#x}, tag {tag}", it.length, it.start);
        extent_list.push(json!({ "start": it.start, "length": it.length, "tag": tag }));
    }
    let json = json!({
        "hosts": dcd.hosts, "total_bytes": total, "host_id": host_id, "regions": region_list,
        "extents": extent_list, "generation": extents.generation,
    });
    Ok(Shown { text, json })
}

/// The records that were read, of all logs.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    /// Each log that was read, or of which a part was.
    read: Vec<(EventLog, LogContents)>,
}

impl Logs {
    /// Reads every log. After a failure, it has what was read before.
    pub(crate) fn read(&mut self, client: &mut Client, path: &[Hop], clear: bool) -> Result<(), Failure> {
        for log in (0..=4).map(EventLog::of_bits) {
            let mut contents = LogContents::default();
            let read = client.read_events(path, log, clear, &mut contents);
            self.read.push((log, contents));
            read?;
        }
        Ok(())
    }

    /// Returns true if nothing was read.
    pub(crate) fn are_empty(&self) -> bool {
        self.read.iter().all(|(_, contents)| *contents == LogContents::default())
    }

    /// Shows the records of every log, and how many a log has lost.
    pub(crate) fn shown(&self) -> Shown {
        let (mut text, mut list, mut lost) = (String::new(), Vec::new(), serde_json::Map::new());
        for (log, contents) in &self.read {
            let name = word(log);
            if contents.lost > 0 {
                let _ = writeln!(
                    text,
                    "{name}: {} records or more were lost, because the log was full; look at 'aquifer fmapi ports' \
                     and 'vcs', and clear the log more often",
                    contents.lost,
                );
                lost.insert(name.clone(), contents.lost.into());
            }
            for record in &contents.records {
                let data = record.meaning();
                let (handle, unix_ns) = (record.handle, record.unix_ns);
                let _ = writeln!(text, "{name} {handle} at {unix_ns} ns: {}", event::text(data.as_ref()));
                list.push(json!({
                    "log": name, "handle": handle, "unix_ns": unix_ns, "ld_id": record.ld_id,
                    "event": event::json(data.as_ref()),
                }));
            }
        }
        if text.is_empty() {
            text.push_str("no records\n");
        }
        Shown { text, json: json!({ "events": list, "lost": lost }) }
    }
}
