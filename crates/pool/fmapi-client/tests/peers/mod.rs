// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The software switch behind each transport: on a stream, by a thread that serves one connection; behind modelled
//! registers with a doorbell.

#![allow(dead_code, reason = "each test uses less than all of it")]

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use aquifer_cxl_switch::{Connection, Switch, SwitchConfig};
use aquifer_fmapi::*;
use aquifer_fmapi_client::{RegisterFailure, Registers};

/// A switch with the time since its start.
#[derive(Clone)]
pub struct Peer {
    pub switch: Arc<Mutex<Switch>>,
    start: Instant,
    dialect: &'static Dialect,
}

impl Peer {
    pub fn new(dialect: &'static Dialect) -> Self {
        let switch = Switch::new(SwitchConfig::example()).unwrap();
        Self { switch: Arc::new(Mutex::new(switch)), start: Instant::now(), dialect }
    }

    pub fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Returns what the switch sends in answer, and when.
    fn replies(&self, bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let connection = Connection { id: 1, ingress_port_id: 0, dialect: self.dialect };
        let outcome = self.switch.lock().unwrap().receive(self.now_ns(), &connection, bytes);
        outcome.replies.into_iter().map(|reply| (reply.due_ns, reply.bytes)).collect()
    }

    /// Serves a connection on a thread, until it ends, or until `requests_max` requests have been answered.
    pub fn serve(&self, mut stream: impl Read + Write + Send + 'static, requests_max: usize) {
        let peer = self.clone();
        thread::spawn(move || {
            let (mut assembler, mut sequence, mut packet) = (Assembler::new(peer.dialect), 0, [0; PACKET_BYTES]);
            let mut requests = 0;
            while requests < requests_max && stream.read_exact(&mut packet).is_ok() {
                let Some(request) = assembler.take(&packet) else { continue };
                requests += 1;
                for (due_ns, bytes) in peer.replies(&request.bytes) {
                    thread::sleep(Duration::from_nanos(due_ns.saturating_sub(peer.now_ns())));
                    let (to, from) = (request.from, request.to);
                    let reply = Received { to, from, is_owner: false, bytes, ..request.clone() };
                    if stream.write_all(&packets(&reply, &mut sequence)).is_err() {
                        return;
                    }
                }
            }
        });
    }
}

impl Peer {
    /// Serves with OpenCIS's frames. A frame of another kind precedes each answer.
    pub fn serve_frames(&self, mut stream: impl Read + Write + Send + 'static, requests_max: usize) {
        let peer = self.clone();
        thread::spawn(move || {
            let mut head = [0; 4];
            for _ in 0..requests_max {
                if stream.read_exact(&mut head).is_err() {
                    return;
                }
                let first = u16::from_le_bytes([head[0], head[1]]);
                assert_eq!((first & 0xf, head[2], head[3]), (4, 0, 1), "a request to the switch");
                let mut request = vec![0; usize::from(first >> 4) - head.len()];
                stream.read_exact(&mut request).unwrap();
                for (due_ns, bytes) in peer.replies(&request) {
                    thread::sleep(Duration::from_nanos(due_ns.saturating_sub(peer.now_ns())));
                    let frame = |kind: u16, class: u8, bytes: &[u8]| {
                        let head = (bytes.len() as u16 + 4) << 4 | kind;
                        [&head.to_le_bytes()[..], &[0, class], bytes].concat()
                    };
                    let both = [frame(1, 0, &[0xee; 9]), frame(4, 2, &bytes)].concat();
                    // Sent in two pieces, so that a frame arrives in parts.
                    let (one, other) = both.split_at(both.len() / 2);
                    if stream.write_all(one).and_then(|()| stream.write_all(other)).is_err() {
                        return;
                    }
                }
            }
        });
    }
}

const MAILBOX: usize = 0x88;
const PAYLOAD_LOG2: u32 = 13;
const WINDOW_BYTES: usize = MAILBOX + 0x20 + (1 << PAYLOAD_LOG2);
/// Maximum number of looks at the doorbell before a modelled answer is there; a device is not instantaneous.
const LOOKS: u32 = 3;

/// The registers of a switch's mailbox, laid out as QEMU does. Fails a test that breaks the protocol.
pub struct RegisterFile {
    peer: Peer,
    memory: Vec<u8>,
    /// When the device clears the doorbell, with the answer; None while it is idle.
    pending: Option<(u64, Option<Message>)>,
    looks: u32,
}

impl RegisterFile {
    pub fn new(peer: &Peer) -> Self {
        let mut memory = vec![0; WINDOW_BYTES];
        let mut put = |at: usize, value: u32| memory[at..at + 4].copy_from_slice(&value.to_le_bytes());
        put(0x00, 1 << 16);
        put(0x04, 2);
        for (at, id, offset, length) in [(0x10, 1, 0x80, 8), (0x20, 2, MAILBOX as u32, 0x20 + (1 << PAYLOAD_LOG2))] {
            put(at, id | 1 << 16);
            put(at + 4, offset);
            put(at + 8, length);
        }
        put(MAILBOX, PAYLOAD_LOG2);
        Self { peer: peer.clone(), memory, pending: None, looks: 0 }
    }

    /// Overwrites a register, to begin a test with a device that is not as it should be.
    pub fn put(&mut self, at: usize, value: u32) {
        self.memory[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn get(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.memory[at..at + 8].try_into().unwrap())
    }

    fn check(&self, offset: usize, bytes: usize) -> Result<(), RegisterFailure> {
        assert!(offset.is_multiple_of(bytes), "an unaligned access at {offset:#x}");
        if offset + bytes > self.memory.len() {
            return Err(RegisterFailure { offset, why: "beyond the window".into() });
        }
        Ok(())
    }

    fn ring(&mut self) {
        let command = self.get(MAILBOX + 8);
        let length = (command >> 16 & 0xf_ffff) as usize;
        let payload = self.memory[MAILBOX + 0x20..][..length].to_vec();
        let opcode = Opcode(command as u16);
        let request = Message::new(Category::Request, 0x55, opcode, ReturnCode::SUCCESS, payload);
        let mut replies = self.peer.replies(&request.encode(self.peer.dialect)).into_iter();
        // A notification is an interrupt here, and a second answer has nowhere to be.
        let answer =
            replies.find_map(|(due_ns, bytes)| Some((due_ns, Message::decode(&bytes, self.peer.dialect).ok()?)));
        // Without an answer, the device hangs.
        self.pending = Some(answer.map_or((u64::MAX, None), |(due_ns, answer)| (due_ns, Some(answer))));
        self.looks = 0;
        self.memory[MAILBOX + 4] |= 1;
    }

    fn work(&mut self) {
        self.looks += 1;
        let Some((due_ns, answer)) = &mut self.pending else { return };
        if *due_ns > self.peer.now_ns() || self.looks < LOOKS {
            return;
        }
        let answer = answer.take().expect("one that is due");
        self.pending = None;
        let command = u64::from(answer.header.opcode.0) | (answer.payload.len() as u64) << 16;
        self.memory[MAILBOX + 8..][..8].copy_from_slice(&command.to_le_bytes());
        let status = u64::from(answer.header.return_code.0) << 32;
        self.memory[MAILBOX + 0x10..][..8].copy_from_slice(&status.to_le_bytes());
        self.memory[MAILBOX + 0x20..][..answer.payload.len()].copy_from_slice(&answer.payload);
        self.memory[MAILBOX + 4] &= !1;
    }
}

impl Registers for RegisterFile {
    fn read_u32(&mut self, offset: usize) -> Result<u32, RegisterFailure> {
        self.check(offset, 4)?;
        if offset == MAILBOX + 4 {
            self.work();
        }
        Ok(u32::from_le_bytes(self.memory[offset..offset + 4].try_into().unwrap()))
    }

    fn write_u32(&mut self, offset: usize, value: u32) -> Result<(), RegisterFailure> {
        self.check(offset, 4)?;
        assert!(self.pending.is_none(), "a write at {offset:#x} while the doorbell is set");
        if offset == MAILBOX + 4 && value & 1 == 1 {
            self.ring();
        } else {
            self.memory[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        }
        Ok(())
    }

    fn read_u64(&mut self, offset: usize) -> Result<u64, RegisterFailure> {
        self.check(offset, 8)?;
        Ok(self.get(offset))
    }

    fn write_u64(&mut self, offset: usize, value: u64) -> Result<(), RegisterFailure> {
        self.check(offset, 8)?;
        assert!(self.pending.is_none(), "a write at {offset:#x} while the doorbell is set");
        self.memory[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        Ok(())
    }
}
