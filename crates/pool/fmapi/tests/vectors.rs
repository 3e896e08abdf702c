// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Every exchange that was recorded with QEMU 10.0 (a switch, its devices, a dynamic-capacity device) is decoded, and
//! encoded to the same bytes again. `tests/golden/qemu.json` has them; `via` says who was asked, through how many
//! tunnels.

use aquifer_fmapi::{Dialect, Message, Opcode, Request, Response, ReturnCode, Tunnelled, Writer};
use serde_json::Value;

fn bytes(text: &Value) -> Vec<u8> {
    let text = text.as_str().expect("hexadecimal digits");
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("two digits")).collect()
}

fn written(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut out = Writer::new(&Dialect::QEMU);
    write(&mut out);
    out.bytes
}

/// Returns whether a request was malformed on purpose: QEMU refused it, and this crate refuses it, too.
fn is_malformed(note: &str) -> bool {
    ["list shorter than count", "no payload", "truncated", "size mismatch"].contains(&note)
}

#[test]
fn every_recorded_exchange_is_decoded_and_written_again() {
    let vectors: Vec<Value> = serde_json::from_str(include_str!("golden/qemu.json")).expect("JSON");
    let (mut requests, mut responses, mut tunnelled, mut foreign) = (0, 0, 0, 0);
    for vector in &vectors {
        let note = vector["note"].as_str().expect("a note");
        let opcode = Opcode(u16::from_str_radix(vector["opcode"].as_str().expect("digits"), 16).expect("digits"));
        let (asked, reported) = (bytes(&vector["request"]), bytes(&vector["response"]));
        let code = ReturnCode(vector["rc"].as_u64().expect("a return code") as u16);
        // The commands of a memory device's own mailbox are not the fabric manager's.
        if opcode.name().is_none() {
            foreign += 1;
            continue;
        }
        let request = match Request::decode(opcode, &asked, &Dialect::QEMU) {
            Ok(request) => request,
            Err(failure) => {
                let refused = code == ReturnCode::INVALID_INPUT || code == ReturnCode::INVALID_PAYLOAD_LENGTH;
                assert!(refused && is_malformed(note) || code == ReturnCode::UNSUPPORTED, "{opcode} {note}: {failure}");
                continue;
            }
        };
        assert_eq!(written(|out| request.write(out)), asked, "{opcode} {note}");
        requests += 1;
        if code != ReturnCode::SUCCESS {
            continue;
        }
        let response = match Response::decode(&request, &reported, &Dialect::QEMU) {
            Ok(response) => response,
            Err(failure) => panic!("{opcode} {note}: {failure}"),
        };
        assert_eq!(written(|out| response.write(out)), reported, "{opcode} {note}");
        responses += 1;
        if let (Request::Tunnel(outer), Response::Tunnel(Tunnelled { message })) = (&request, &response) {
            let inner = Message::decode(&outer.message, &Dialect::QEMU).expect("a message in a tunnel");
            let answer = Message::decode(message, &Dialect::QEMU).expect("an answer in a tunnel");
            assert_eq!(answer.check_answers(&inner.header, &Dialect::QEMU), Ok(()), "{note}");
            tunnelled += 1;
        }
    }
    println!("{requests} requests, {responses} responses, {tunnelled} tunnelled, {foreign} of other command sets");
    assert!(requests > 90 && responses > 50 && tunnelled > 20, "{requests} {responses} {tunnelled}");
}
