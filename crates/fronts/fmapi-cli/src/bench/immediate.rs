// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A peer in this process, at the other end of a stream without a kernel: answers each request at once, with the same
//! bytes each time. What a command to it takes is the command's own cost.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::time::Duration;

use aquifer_fmapi::{Assembler, Category, Dialect, Message, Opcode, PACKET_BYTES, Received, ReturnCode, packets};
use aquifer_fmapi_client::Stream;

/// Ports of its switch, as many as the largest switches have.
pub(super) const PORTS: u8 = 32;
/// Bytes of the answer to Identify Switch Device.
const IDENTITY_BYTES: usize = 73;
/// A downstream port with a multi-logical device at 16 lanes of 32 GT/s, without its number.
const PORT_STATE: [u8; 15] = [3, 2, 0, 5, 2, 16, 16, 0x3f, 5, 5, 4, 0, 0, 0, 3];

/// The peer, as the stream to it.
#[derive(Debug)]
pub(super) struct Immediate {
    assembler: Assembler,
    sequence: u8,
    /// Bytes of a packet that is not whole yet.
    arrived: Vec<u8>,
    /// Answers that were not read yet.
    waiting: VecDeque<u8>,
    answers: [(Opcode, Vec<u8>); 3],
}

impl Immediate {
    pub(super) fn new() -> Self {
        let mut identity = vec![0; IDENTITY_BYTES];
        // After the ingress port and a reserved byte.
        (identity[2], identity[3]) = (PORTS, 1);
        let mut ports = vec![PORTS, 0, 0, 0];
        (0..PORTS).for_each(|port| ports.extend([&[port][..], &PORT_STATE].concat()));
        Self {
            assembler: Assembler::new(&Dialect::STANDARD),
            sequence: 0,
            arrived: Vec::new(),
            waiting: VecDeque::new(),
            answers: [
                (Opcode::IDENTIFY_SWITCH_DEVICE, identity),
                (Opcode::GET_PHYSICAL_PORT_STATE, ports),
                (Opcode::BIND_VPPB, Vec::new()),
            ],
        }
    }

    fn answer(&mut self, request: Received) {
        let opcode = Opcode(u16::from_le_bytes([request.bytes[3], request.bytes[4]]));
        let found = self.answers.iter().find(|(of, _)| *of == opcode);
        let (code, payload) = match found {
            Some((_, payload)) => (ReturnCode::SUCCESS, payload.clone()),
            None => (ReturnCode::UNSUPPORTED, Vec::new()),
        };
        let answer = Message::new(Category::Response, request.bytes[1], opcode, code, payload);
        let bytes = answer.encode(&Dialect::STANDARD);
        let sent = Received { to: request.from, from: request.to, is_owner: false, bytes, ..request };
        self.waiting.extend(packets(&sent, &mut self.sequence));
    }
}

impl Write for Immediate {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.arrived.extend_from_slice(bytes);
        while self.arrived.len() >= PACKET_BYTES {
            let packet: Vec<u8> = self.arrived.drain(..PACKET_BYTES).collect();
            if let Some(request) = self.assembler.take(packet.as_slice().try_into().expect("as long as a packet")) {
                self.answer(request);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Immediate {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.waiting.read(bytes)
    }
}

impl Stream for Immediate {
    fn limit_read(&self, _: Duration) -> io::Result<()> {
        Ok(())
    }

    fn limit_write(&self, _: Duration) -> io::Result<()> {
        Ok(())
    }
}
