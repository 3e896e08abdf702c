// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Peers for the suite: the software switch in any dialect, with an answer changed here and there; and QEMU 10.0.2
//! and Jackrabbit's emulator, as they were recorded.

#![allow(dead_code, reason = "each test uses less than all of it")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use aquifer_cxl_switch::{Connection, Switch, SwitchConfig};
use aquifer_fmapi::*;
use aquifer_fmapi_client::{
    Client, Clock, Limits, PeerAddress, SystemClock, Transport, TransportFailure, VirtualClock,
};
use serde_json::Value;

/// Answers the bytes of a request; None for no answer.
type Answer = Box<dyn FnMut(Duration, &[u8]) -> Option<Vec<u8>> + Send>;

struct Wire {
    clock: Arc<VirtualClock>,
    /// How long each answer takes.
    delay: Duration,
    answer: Answer,
    waiting: VecDeque<Vec<u8>>,
}

impl Transport for Wire {
    fn name(&self) -> String {
        "model".into()
    }

    fn message_bytes_max(&self) -> usize {
        8192
    }

    fn message_type(&self, opcode: Opcode) -> Option<MessageType> {
        Some(MessageType::of(opcode))
    }

    fn send(&mut self, message: &[u8], _: &'static Dialect, _: Duration) -> Result<(), TransportFailure> {
        self.clock.sleep(self.delay);
        self.waiting.extend((self.answer)(self.clock.now(), message));
        Ok(())
    }

    fn receive(&mut self, _: &'static Dialect, wait: Duration) -> Result<Vec<u8>, TransportFailure> {
        self.waiting.pop_front().ok_or_else(|| {
            self.clock.sleep(wait);
            TransportFailure::TimedOut
        })
    }
}

/// Returns a client of a peer that answers so.
pub fn client(answer: impl FnMut(Duration, &[u8]) -> Option<Vec<u8>> + Send + 'static) -> Client {
    slow_client(Duration::from_millis(1), answer)
}

fn slow_client(delay: Duration, answer: impl FnMut(Duration, &[u8]) -> Option<Vec<u8>> + Send + 'static) -> Client {
    let clock = Arc::<VirtualClock>::default();
    let wire = Wire { clock: Arc::clone(&clock), delay, answer: Box::new(answer), waiting: VecDeque::new() };
    Client::new(Box::new(wire), clock, Limits::default())
}

/// Returns a client of the software switch in a dialect, whose answers are changed: the request, then the answer.
pub fn switch(dialect: &'static Dialect, change: impl FnMut(&Message, &mut Message) + Send + 'static) -> Client {
    switch_of(SwitchConfig::example(), Duration::from_millis(1), dialect, change)
}

/// Works like [`switch`], for a switch of this configuration, each of whose answers takes so long.
pub fn switch_of(
    config: SwitchConfig,
    delay: Duration,
    dialect: &'static Dialect,
    mut change: impl FnMut(&Message, &mut Message) + Send + 'static,
) -> Client {
    let mut switch = Switch::new(config).unwrap();
    let connection = Connection { id: 1, ingress_port_id: 0, dialect };
    slow_client(delay, move |now, bytes| {
        let asked = Message::decode(bytes, dialect);
        let outcome = switch.receive(now.as_nanos() as u64, &connection, bytes);
        let reply = outcome.replies.into_iter().next()?;
        let mut answer = Message::decode(&reply.bytes, dialect).unwrap();
        if let Ok(asked) = asked {
            change(&asked, &mut answer);
        }
        answer.header.payload_bytes = answer.payload.len() as u32;
        Some(answer.encode(dialect))
    })
}

/// Returns a client of a peer whose program was recorded.
pub fn recorded(dialect: &str) -> Client {
    let file = format!("{}/tests/golden/{}.pcap", env!("CARGO_MANIFEST_DIR"), dialect.to_lowercase());
    let address: PeerAddress = format!("recorded:{file}").parse().unwrap();
    let limits = Limits::default();
    Client::new(address.open(limits.connect).unwrap(), SystemClock::shared(), limits)
}

/// Returns a client of QEMU's switch: what was recorded, and what its source says of everything else.
pub fn qemu() -> Client {
    let text = include_str!("../../../../pool/fmapi/tests/golden/qemu.json");
    let vectors: Vec<Value> = serde_json::from_str(text).unwrap();
    let recorded: Vec<(Opcode, Vec<u8>, ReturnCode, Vec<u8>)> = vectors
        .iter()
        .filter(|vector| vector["via"] == "switch")
        .map(|vector| {
            let opcode = Opcode(u16::from_str_radix(vector["opcode"].as_str().unwrap(), 16).unwrap());
            let code = ReturnCode(vector["rc"].as_u64().unwrap() as u16);
            let request = bytes(&vector["request"]);
            let request = if opcode == Opcode::TUNNEL { untagged(request) } else { request };
            (opcode, request, code, bytes(&vector["response"]))
        })
        .collect();
    client(move |_, request| {
        let asked = Message::decode(request, &Dialect::QEMU).unwrap();
        let opcode = asked.header.opcode;
        assert!(![0x0300, 0x0301].contains(&opcode.0), "{opcode} aborts QEMU");
        let plain = match opcode {
            Opcode::TUNNEL => untagged(asked.payload.clone()),
            _ => asked.payload.clone(),
        };
        let found = recorded.iter().find(|(recorded, payload, _, _)| *recorded == opcode && *payload == plain);
        let (code, mut payload) = match found {
            Some((_, _, code, payload)) => (*code, payload.clone()),
            None => (unrecorded(opcode, &plain), Vec::new()),
        };
        // The recorded tag is another one.
        if opcode == Opcode::TUNNEL && payload.len() > 5 {
            payload[5] = asked.payload[5];
        }
        let mut answer = Message::new(Category::Response, asked.header.tag, opcode, code, payload);
        answer.header.return_code = code;
        Some(answer.encode(&Dialect::QEMU))
    })
}

/// Returns what QEMU does with requests that were not recorded, according to its source: each command has one length,
/// and only the commands in its list are supported.
fn unrecorded(opcode: Opcode, payload: &[u8]) -> ReturnCode {
    let supported = [0x0001, 0x0002, 0x0400, 0x0401, 0x5100, 0x5101, 0x5300];
    match opcode {
        _ if !supported.contains(&opcode.0) => ReturnCode::UNSUPPORTED,
        Opcode::GET_PHYSICAL_PORT_STATE if !payload.is_empty() => ReturnCode::INVALID_INPUT,
        Opcode::TUNNEL if payload.len() >= 16 => ReturnCode::INVALID_INPUT,
        _ => ReturnCode::INVALID_PAYLOAD_LENGTH,
    }
}

/// Returns a tunnel's payload without the tag of the message in it.
fn untagged(mut payload: Vec<u8>) -> Vec<u8> {
    if payload.len() >= 16 {
        payload[5] = 0;
    }
    payload
}

fn bytes(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap();
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
