// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The requests that the programs of libcxlmi (d2dd30c) sent to `aquifer-cxl-switchd --dialect libcxlmi` still get the
//! same answers, byte by byte (golden/libcxlmi.json): its tests of the generic commands and of the FM API, at the
//! switch, through a tunnel to an MLD, to a device with dynamic capacity and to a logical device, its tests of memory
//! devices, and its example `cxl-mctp`.
//!
//! `crates/pool/cxl-switchd/tests/libcxlmi.rs` runs the programs themselves where they are built.

use aquifer_cxl_switch::*;
use aquifer_fmapi::*;
use serde_json::Value;

const LIBCXLMI: Dialect = Dialect::LIBCXLMI;
/// Between two requests. As when it was recorded, an unbind comes while the bind before it, of 20 ms, goes on.
const STEP_NS: u64 = 5_000_000;

fn bytes(text: &Value) -> Vec<u8> {
    let text = text.as_str().expect("hexadecimal digits");
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("two digits")).collect()
}

/// Returns the example, with 16 logical devices, as it was recorded.
fn recorded() -> SwitchConfig {
    let mut config = SwitchConfig::example();
    (config.devices[1].memory_mib, config.devices[1].lds_mib) = (16 * 256, vec![256; 16]);
    config
}

/// Returns true for an answer whose payload is the time.
fn is_time(message: &[u8]) -> bool {
    message.get(3..5) == Some(&Opcode::GET_TIMESTAMP.0.to_le_bytes())
}

#[test]
fn answers_to_libcxlmi_have_not_changed() {
    let programs: Vec<Value> = serde_json::from_str(include_str!("golden/libcxlmi.json")).expect("JSON");
    let connection = Connection { id: 1, ingress_port_id: 0, dialect: &LIBCXLMI };
    let mut opcodes = std::collections::BTreeSet::new();
    for program in &programs {
        let name = &program["program"];
        // Each program found a switch that nobody had changed.
        let mut switch = Switch::new(recorded()).expect("a good configuration");
        for (step, exchange) in (1..).zip(program["exchanges"].as_array().expect("a list")) {
            let (request, expected) = (bytes(&exchange["request"]), bytes(&exchange["response"]));
            let asked = Message::decode(&request, &LIBCXLMI).expect("libcxlmi sends messages");
            opcodes.insert(asked.header.opcode);
            let outcome = switch.receive(step * STEP_NS, &connection, &request);
            let reported = &outcome.replies[0].bytes;
            assert_eq!(reported.len(), expected.len(), "{name}, {step}: {exchange}");
            let compared = if is_time(reported) { HEADER_BYTES } else { reported.len() };
            assert_eq!(reported[..compared], expected[..compared], "{name}, {step}: {exchange}");
        }
    }
    assert!(programs.len() == 7 && opcodes.len() >= 60, "{} programs, {} opcodes", programs.len(), opcodes.len());
}
