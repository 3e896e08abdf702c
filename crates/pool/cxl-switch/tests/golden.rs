// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Every request that was recorded with QEMU's switch and the devices behind it
//! (`crates/pool/fmapi/tests/golden/qemu.json`) is sent to this switch, ours. Where QEMU answers, ours does, with the
//! same fields in the same places; where QEMU refuses, ours refuses, or answers because it supports more. Intended
//! differences are listed.
//!
//! The requests that Jackrabbit's `jack` (f1a0cd8) sent to `aquifer-cxl-switchd --dialect jackrabbit` still get the
//! same answers, byte by byte (golden/jack.json). `jack` printed these answers as it should. What it asks of MCTP
//! itself is in `crates/pool/cxl-switchd/tests/program.rs`.

use aquifer_cxl_switch::*;
use aquifer_fmapi::*;
use serde_json::Value;

mod client;

use client::{Client, Hop, at_switch};

/// Where ours departs from QEMU: the note of the exchange, and our return code.
const DEPARTURES: &[(&str, ReturnCode)] = &[
    // For a port that does not exist, the specification has a value in the block of the port.
    ("unknown port", ReturnCode::SUCCESS),
    // A list that is shorter than its count is a wrong payload length, as an empty payload is.
    ("list shorter than count", ReturnCode::INVALID_PAYLOAD_LENGTH),
];

/// Returns QEMU's machine of the recording: five ports, of which number 4 is upstream, and devices at 0, 1 and 2.
fn recorded() -> SwitchConfig {
    let example = SwitchConfig::example();
    let port = |role, link_speed| PortConfig { role, link_width: 16, link_speed, lds: 3 };
    let mut ports = vec![port(PortRole::Downstream, 6); 4];
    ports.push(port(PortRole::Upstream, 5));
    let device = |port_id| DeviceConfig { ports: vec![port_id], link_width: 16, ..example.devices[0].clone() };
    SwitchConfig {
        ports,
        virtual_switches: vec![VirtualSwitchConfig { upstream_port: 4, vppbs: 4, enabled: true }],
        devices: (0..3).map(device).collect(),
        ..example
    }
}

fn bytes(text: &Value) -> Vec<u8> {
    let text = text.as_str().expect("hexadecimal digits");
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("two digits")).collect()
}

/// Parses a path: `switch>2>0` is logical device 0 of the device at port 2. Returns None for a device's own mailbox.
fn path(via: &str) -> Option<Vec<Hop>> {
    let mut hops = via.split('>');
    if hops.next() != Some("switch") {
        return None;
    }
    let hops = hops.map(|id| id.parse().expect("a number")).enumerate();
    Some(hops.map(|(level, id)| if level == 0 { Hop::Port(id) } else { Hop::Ld(id) }).collect())
}

/// Returns the name of the answer's variant: fields may differ, variants may not.
fn kind(response: &Response) -> String {
    let text = format!("{response:?}");
    text.split('(').next().expect("a name").to_owned()
}

#[test]
fn every_recorded_exchange_is_answered_in_shape() {
    let vectors: Vec<Value> = serde_json::from_str(include_str!("../../fmapi/tests/golden/qemu.json")).expect("JSON");
    let (mut answered, mut refused, mut more, mut departed, mut foreign) = (0, 0, 0, 0, 0);
    let mut manager = Client::new(recorded());
    let mut is_hot_added = false;
    for vector in &vectors {
        let note = vector["note"].as_str().expect("a note");
        let opcode = Opcode(u16::from_str_radix(vector["opcode"].as_str().expect("digits"), 16).expect("digits"));
        // A tunnel that failed has carried nothing; the tunnel itself is recorded before it.
        let path = path(vector["via"].as_str().expect("a path")).filter(|_| note != "tunnel failed");
        let Some(path) = path else {
            foreign += 1;
            continue;
        };
        if note == "after hot add" && !is_hot_added {
            is_hot_added = true;
            let mut config = recorded();
            config.devices.push(DeviceConfig { ports: vec![3], ..config.devices[0].clone() });
            manager = Client::new(config);
        }
        let (asked, reported) = (bytes(&vector["request"]), bytes(&vector["response"]));
        let code = ReturnCode(vector["rc"].as_u64().expect("a return code") as u16);
        let message = Message::new(Category::Request, 5, opcode, ReturnCode::SUCCESS, asked.clone());
        let answer = manager.send(&path, message);
        let ours = answer.as_ref().map_or_else(|code| *code, |answer| answer.header.return_code);
        let departure = DEPARTURES.iter().find(|(of, _)| *of == note && path.is_empty() && opcode.0 == 0x5101);
        if let Some((_, expected)) = departure {
            assert_eq!(ours, *expected, "{opcode} {note}");
            departed += 1;
        } else if code == ReturnCode::SUCCESS {
            assert_eq!(ours, code, "{opcode} {note}");
            let request = Request::decode(opcode, &asked, &Dialect::QEMU).expect("it was answered");
            let theirs = Response::decode(&request, &reported, &Dialect::QEMU).expect("it was recorded");
            let payload = answer.expect("it was answered").payload;
            let ours = Response::decode(&request, &payload, &Dialect::STANDARD).expect("a good answer");
            assert_eq!(kind(&ours), kind(&theirs), "{opcode} {note}");
            compare(&ours, &theirs, note);
            // The length of the command effects log, and of a tunnel that carries it, follows from the list of
            // commands.
            let is_fixed = ![Opcode::GET_LOG, Opcode::TUNNEL].contains(&opcode);
            assert!(!is_fixed || payload.len() == reported.len(), "{opcode} {note}: {} bytes", payload.len());
            answered += 1;
        } else if code == ReturnCode::UNSUPPORTED && ours != code {
            more += 1;
        } else {
            assert_eq!(ours, code, "{opcode} {note}");
            refused += 1;
        }
    }
    println!(
        "{answered} answered, {refused} refused, {more} answered by ours alone, {departed} departures, {foreign} foreign"
    );
    assert_eq!(departed, DEPARTURES.len());
    assert!(answered >= 92 && refused >= 23 && more >= 17, "{answered} {refused} {more}");
}

/// Checks that the fields that a client acts on are the same.
fn compare(ours: &Response, theirs: &Response, note: &str) {
    match (ours, theirs) {
        (Response::Identify(ours), Response::Identify(theirs)) => {
            assert_eq!(ours.component_type, theirs.component_type, "{note}");
        }
        (Response::IdentifySwitch(ours), Response::IdentifySwitch(theirs)) => {
            assert_eq!((ours.physical_ports, ours.virtual_switches), (theirs.physical_ports, theirs.virtual_switches));
            assert_eq!(ours.active_ports, theirs.active_ports);
            assert_eq!(ours.hdm_decoders_per_usp, theirs.hdm_decoders_per_usp);
        }
        (Response::GetPortStates(ours), Response::GetPortStates(theirs)) => {
            for (ours, theirs) in ours.ports.iter().zip(&theirs.ports) {
                assert_eq!((ours.port_id, ours.state), (theirs.port_id, theirs.state), "{note}");
                let is_empty = |port: &PortStatus| port.device_type == DeviceType::None;
                assert_eq!(is_empty(ours), is_empty(theirs), "{note}, port {}", ours.port_id);
                assert_eq!(ours.link_width_max, theirs.link_width_max, "{note}");
            }
        }
        (Response::GetSupportedLogs(ours), Response::GetSupportedLogs(theirs)) => {
            assert_eq!(ours.logs[0].uuid, theirs.logs[0].uuid, "{note}");
        }
        _ => {}
    }
}

#[test]
fn the_captured_exchange_of_a_timestamp_is_answered_byte_by_byte() {
    let mut manager = Client::new(recorded());
    let unix_ns = u64::from_le_bytes([0x2b, 1, 0xad, 0x9c, 0xa4, 0x8a, 0xd2, 0x16]);
    manager.ask(&at_switch(), &Request::SetTimestamp(SetTimestamp { unix_ns })).unwrap();
    let asked = [0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0xcd, 0xab];
    let outcome = manager.switch.receive(0, &manager.connection, &asked);
    let reported = [1, 0, 0, 0, 3, 8, 0, 0, 0, 0, 0, 0, 0x2b, 1, 0xad, 0x9c, 0xa4, 0x8a, 0xd2, 0x16];
    assert_eq!(outcome.replies[0].bytes, reported);
}

#[test]
fn answers_to_jack_have_not_changed() {
    const JACKRABBIT: Dialect = Dialect::JACKRABBIT;
    let vectors: Vec<Value> = serde_json::from_str(include_str!("golden/jack.json")).expect("JSON");
    let mut switch = Switch::new(SwitchConfig::example()).expect("a good configuration");
    let connection = Connection { id: 1, ingress_port_id: 0, dialect: &JACKRABBIT };
    let mut now_ns = 0;
    for vector in &vectors {
        // Each command was sent after the operation before it had ended.
        now_ns += 150_000_000;
        let outcome = switch.receive(now_ns, &connection, &bytes(&vector["request"]));
        let reported = &outcome.replies[0].bytes;
        assert_eq!(*reported, bytes(&vector["response"]), "{}", vector["note"]);
    }
    assert!(vectors.len() >= 52, "{}", vectors.len());
}
