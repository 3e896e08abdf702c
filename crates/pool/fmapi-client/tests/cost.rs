// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Measures the cost of a command itself: the codec, the client, and MCTP packets on a stream, with a peer that takes
//! no time.
//!
//! Prints the figures: `cargo test --release -p aquifer-fmapi-client --test cost -- --nocapture`. On an idle machine a
//! command should take at most 20 us; the test asserts nothing about time, because it also runs on busy machines.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use aquifer_fmapi::*;
use aquifer_fmapi_client::{Client, Limits, PacketStream, Stream, SystemClock};

/// Number of timed commands of each kind.
const ROUNDS: u32 = 2000;
/// Ports of the switch.
const PORTS: u8 = 32;

/// A peer at the other end of a stream that answers at once: each request with the same bytes, and its tag.
struct Immediate {
    assembler: Assembler,
    sequence: u8,
    arrived: Vec<u8>,
    waiting: VecDeque<u8>,
    answers: Vec<(Opcode, Vec<u8>)>,
}

impl Immediate {
    fn new(answers: Vec<(Opcode, Vec<u8>)>) -> Immediate {
        let assembler = Assembler::new(&Dialect::STANDARD);
        Immediate { assembler, sequence: 0, arrived: Vec::new(), waiting: VecDeque::new(), answers }
    }

    fn answer(&mut self, request: Received) {
        let opcode = Opcode(u16::from_le_bytes([request.bytes[3], request.bytes[4]]));
        let (_, payload) = self.answers.iter().find(|(of, _)| *of == opcode).expect("a command of this test");
        let code = ReturnCode::SUCCESS;
        let answer = Message::new(Category::Response, request.bytes[1], opcode, code, payload.clone());
        let bytes = answer.encode(&Dialect::STANDARD);
        let (to, from) = (request.from, request.to);
        let sent = Received { to, from, is_owner: false, bytes, ..request };
        self.waiting.extend(packets(&sent, &mut self.sequence));
    }
}

impl Write for Immediate {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.arrived.extend_from_slice(bytes);
        while self.arrived.len() >= PACKET_BYTES {
            let packet: Vec<u8> = self.arrived.drain(..PACKET_BYTES).collect();
            if let Some(request) = self.assembler.take(packet.as_slice().try_into().expect("a packet")) {
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

fn port_states() -> Vec<u8> {
    let mut payload = vec![PORTS, 0, 0, 0];
    (0..PORTS).for_each(|port| payload.extend([port, 3, 2, 0, 5, 2, 16, 16, 0x3f, 5, 5, 4, 0, 0, 0, 3]));
    payload
}

/// A command and what its answer must be.
type Ask<'a> = &'a dyn Fn(&mut Client);

#[test]
fn a_command_costs_its_codec_and_its_packets() {
    let mut identity = vec![0; 73];
    (identity[1], identity[2], identity[3]) = (0, PORTS, 1);
    let answers = vec![
        (Opcode::IDENTIFY_SWITCH_DEVICE, identity),
        (Opcode::GET_PHYSICAL_PORT_STATE, port_states()),
        (Opcode::BIND_VPPB, Vec::new()),
    ];
    let stream = PacketStream::new("immediate".into(), Immediate::new(answers));
    let mut client = Client::new(Box::new(stream), SystemClock::shared(), Limits::default());
    let ports: Vec<u8> = (0..PORTS).collect();
    let bind = BindVppb { vcs_id: 0, vppb_id: 1, port_id: 1, ld_id: 2 };
    let kinds: [(&str, Ask<'_>); 3] = [
        ("Identify Switch Device", &|client| {
            assert_eq!(client.identify_switch().expect("an answer").physical_ports, PORTS)
        }),
        ("Get Physical Port State of 32 ports", &|client| {
            assert_eq!(client.port_states(&ports).expect("an answer").len(), usize::from(PORTS));
        }),
        ("Bind vPPB", &|client| client.run(&[], &bind).expect("an answer")),
    ];
    for (name, command) in kinds {
        let begun = Instant::now();
        (0..ROUNDS).for_each(|_| command(&mut client));
        println!("{name}: {:.1} us", begun.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS));
    }
}
