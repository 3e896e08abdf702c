// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What an event record of a switch or a device says, as text and as JSON.

use aquifer_fmapi::{
    BindingStatus, CapacityEvent, EventData, PortEvent, PortEventKind, Transaction, Vppb, VppbEvent, VppbEventKind,
};
use serde_json::{Value, json};

use crate::show::word;

/// Returns one record, for a person.
pub(crate) fn text(data: Option<&EventData>) -> String {
    match data {
        None => "a record of an unknown type".into(),
        Some(EventData::Port(PortEvent { kind, slot_status, port })) => match kind {
            PortEventKind::LinkStateChange => {
                format!("port {}: its link is now {}", port.port_id, word(port.link_state))
            }
            _ => format!("port {}: {}, slot status {slot_status:04x}", port.port_id, word(kind)),
        },
        Some(EventData::Vppb(VppbEvent { vcs_id, vppb_id, kind, vppb })) => {
            let what = match kind {
                VppbEventKind::BindingChange => binding(vppb),
                _ => word(kind),
            };
            format!("vPPB {vppb_id} of virtual switch {vcs_id}: {what}")
        }
        Some(EventData::MldPort(event)) => {
            let (port, kind, message) = (event.port_id, word(event.kind), hex(&event.message));
            format!("port {port}: a {kind} error of its device, message {message}")
        }
        Some(EventData::Capacity(CapacityEvent { kind, host_id, region_id, extent, .. })) => format!(
            "dynamic capacity: {}, host {host_id}, region {region_id}, {} bytes at {:#x}, tag {}",
            word(kind),
            extent.length,
            extent.start,
            hex(&extent.tag),
        ),
        Some(EventData::Dram(event)) => {
            memory((event.is_uncorrectable(), word(event.kind)), event.memory_address(), event.transaction)
        }
        Some(EventData::Media(event)) => {
            memory((event.is_uncorrectable(), word(event.kind)), event.memory_address(), event.transaction)
        }
        Some(EventData::Module(event)) => format!(
            "health: {}, status {:02x}, media {:02x}, life used {}, temperature {}",
            word(event.kind),
            event.health_status,
            event.media_status,
            event.life_used().map_or("unknown".into(), |percent| format!("{percent} %")),
            event.celsius().map_or("unknown".into(), |celsius| format!("{celsius} C")),
        ),
    }
}

fn memory((is_uncorrectable, kind): (bool, String), address: u64, transaction: Transaction) -> String {
    let how = if is_uncorrectable { "uncorrectable" } else { "corrected" };
    format!("memory: {how} error, {kind}, at {address:#x}, found by {}", word(transaction))
}

/// Returns one record, as an object; null if its type is unknown.
pub(crate) fn json(data: Option<&EventData>) -> Value {
    match data {
        None => Value::Null,
        Some(EventData::Port(PortEvent { kind, slot_status, port })) => json!({
            "type": "port", "kind": word(kind), "port_id": port.port_id, "state": word(port.state),
            "device_type": word(port.device_type), "link_state": word(port.link_state), "slot_status": slot_status,
        }),
        Some(EventData::Vppb(VppbEvent { vcs_id, vppb_id, kind, vppb })) => json!({
            "type": "vppb", "kind": word(kind), "vcs_id": vcs_id, "vppb_id": vppb_id, "status": word(vppb.status),
            "port_id": is_bound(vppb).then_some(vppb.port_id),
            "ld_id": (vppb.status == BindingStatus::Ld).then_some(vppb.ld_id),
        }),
        Some(EventData::MldPort(event)) => json!({
            "type": "mld-port", "kind": word(event.kind), "port_id": event.port_id, "message": hex(&event.message),
        }),
        Some(EventData::Capacity(CapacityEvent { kind, host_id, region_id, extent, .. })) => json!({
            "type": "dynamic-capacity", "kind": word(kind), "host_id": host_id, "region_id": region_id,
            "start": extent.start, "length": extent.length, "tag": hex(&extent.tag),
        }),
        Some(EventData::Dram(event)) => json!({
            "type": "dram", "kind": word(event.kind), "address": event.memory_address(),
            "is_uncorrectable": event.is_uncorrectable(), "transaction": word(event.transaction),
        }),
        Some(EventData::Media(event)) => json!({
            "type": "media", "kind": word(event.kind), "address": event.memory_address(),
            "is_uncorrectable": event.is_uncorrectable(), "transaction": word(event.transaction),
        }),
        Some(EventData::Module(event)) => json!({
            "type": "module", "kind": word(event.kind), "health_status": event.health_status,
            "media_status": event.media_status, "life_used_percent": event.life_used(), "celsius": event.celsius(),
        }),
    }
}

fn is_bound(vppb: &Vppb) -> bool {
    matches!(vppb.status, BindingStatus::Port | BindingStatus::Ld)
}

fn binding(vppb: &Vppb) -> String {
    match vppb.status {
        BindingStatus::Ld => format!("bound to LD {} at port {}", vppb.ld_id, vppb.port_id),
        BindingStatus::Port => format!("bound to port {}", vppb.port_id),
        status => word(status),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use aquifer_fmapi::{
        CapacityEventKind, DramEvent, ErrorKind, Extent, MediaEvent, MldPortEvent, ModuleEvent, PortStatus,
    };

    #[test]
    fn every_type_of_record_has_words_and_names() {
        let port = PortStatus { port_id: 3, ..PortStatus::default() };
        let vppb = Vppb { status: BindingStatus::Ld, port_id: 4, ld_id: 1 };
        let extent = Extent { start: 4096, length: 8192, tag: [0xab; 16], ..Extent::default() };
        let all = [
            (
                EventData::Port(PortEvent { kind: PortEventKind::SlotStatusUpdated, slot_status: 0x40, port }),
                "port 3: slot-status-updated, slot status 0040",
                ("port", "slot_status", json!(0x40)),
            ),
            (
                EventData::Vppb(VppbEvent { vcs_id: 0, vppb_id: 2, kind: VppbEventKind::BindingChange, vppb }),
                "vPPB 2 of virtual switch 0: bound to LD 1 at port 4",
                ("vppb", "ld_id", json!(1)),
            ),
            (
                EventData::MldPort(MldPortEvent { kind: ErrorKind::NonFatal, port_id: 3, message: [1; 8] }),
                "port 3: a non-fatal error of its device, message 0101010101010101",
                ("mld-port", "kind", json!("non-fatal")),
            ),
            (
                EventData::Capacity(CapacityEvent { kind: CapacityEventKind::Add, extent, ..CapacityEvent::default() }),
                "dynamic capacity: add, host 0, region 0, 8192 bytes at 0x1000, tag abababababababababababababababab",
                ("dynamic-capacity", "length", json!(8192)),
            ),
            (
                EventData::Dram(DramEvent { address: 0x1041, descriptor: 1, ..DramEvent::default() }),
                "memory: uncorrectable error, ecc, at 0x1040, found by unknown",
                ("dram", "address", json!(0x1040)),
            ),
            (
                EventData::Media(MediaEvent { transaction: Transaction::HostRead, ..MediaEvent::default() }),
                "memory: corrected error, ecc, at 0x0, found by host-read",
                ("media", "is_uncorrectable", json!(false)),
            ),
            (
                EventData::Module(ModuleEvent { temperature: 41, life_used_percent: 0xff, ..ModuleEvent::default() }),
                "health: health-status, status 00, media 00, life used unknown, temperature 41 C",
                ("module", "celsius", json!(41)),
            ),
        ];
        for (data, line, (kind, name, value)) in all {
            assert_eq!(text(Some(&data)), line);
            let object = json(Some(&data));
            assert_eq!((&object["type"], &object[name]), (&json!(kind), &value), "{object}");
        }
        assert_eq!((text(None).as_str(), json(None)), ("a record of an unknown type", Value::Null));
    }
}
