// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A switch, its managers and the messages between them in one thread, on its own clock. An [`Injected`] failure, or
//! none, is chosen for each request; another manager can act whenever time passes.

#![allow(dead_code, reason = "each test uses less than all of it")]

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use aquifer_cxl_switch::{Connection, Switch, SwitchConfig};
use aquifer_fmapi::*;
pub use aquifer_fmapi_client::VirtualClock;
use aquifer_fmapi_client::{Client, Clock, Limits, Transport, TransportFailure};

pub mod random;

/// What happens to one request or to its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injected {
    /// Nothing.
    None,
    /// The answer says Busy, and nothing is carried out.
    Busy,
    /// The answer never arrives.
    DropAnswer,
    /// The request never arrives.
    DropRequest,
    /// The answer arrives twice.
    Duplicate,
    /// Bytes that are not a message arrive before the answer.
    Garbage,
    /// The answer arrives this much later.
    Late(u64),
    /// The header's length is this much more than the payload's.
    LengthLies(u32),
    /// The peer ends after it has carried out the request, before it answers.
    PeerEndsAfter,
    /// The peer ends before it carries out the request.
    PeerEndsBefore,
    /// The answer ends after this many bytes.
    Truncate(usize),
    /// The answer is a request.
    WrongCategory,
    /// The answer is that to another command.
    WrongOpcode,
    /// The answer has another tag.
    WrongTag,
}

/// A message on its way to a manager.
struct InFlight {
    due_ns: u64,
    connection: u32,
    bytes: Vec<u8>,
}

/// What the managers have in common.
pub struct World {
    pub switch: Switch,
    pub has_ended: bool,
    /// Every request that the peer received, in order.
    pub requests: Vec<(Duration, Message)>,
    in_flight: Vec<InFlight>,
}

/// Chooses the failure that is injected into each request.
pub type Injections = Box<dyn FnMut(Opcode) -> Injected + Send>;
/// Acts on the switch at the given time.
pub type Rival = Box<dyn FnMut(&mut Switch, u64) + Send>;

/// One manager's transport.
pub struct Wire {
    pub world: Arc<Mutex<World>>,
    pub clock: Arc<VirtualClock>,
    pub connection: Connection,
    pub injections: Injections,
    pub rival: Option<Rival>,
    pub bytes_max: usize,
}

impl World {
    pub fn shared(config: SwitchConfig) -> Arc<Mutex<Self>> {
        let switch = Switch::new(config).unwrap();
        Arc::new(Mutex::new(Self { switch, has_ended: false, requests: Vec::new(), in_flight: Vec::new() }))
    }

    fn deliver(&mut self, now_ns: u64, connection: &Connection, bytes: &[u8], injected: Injected) {
        let outcome = self.switch.receive(now_ns, connection, bytes);
        for reply in outcome.replies {
            let mut bytes = reply.bytes;
            let mut due_ns = reply.due_ns.max(now_ns) + 100_000;
            match injected {
                Injected::DropAnswer => continue,
                Injected::Late(by_ns) => due_ns += by_ns,
                Injected::LengthLies(by) => {
                    let said = u32::from_le_bytes([bytes[5], bytes[6], bytes[7], 0]) + by;
                    bytes[5..8].copy_from_slice(&said.to_le_bytes()[..3]);
                }
                Injected::Truncate(length) => bytes.truncate(length),
                Injected::WrongCategory => bytes[0] ^= 1,
                Injected::WrongOpcode => bytes[3] ^= 1,
                Injected::WrongTag => bytes[1] = bytes[1].wrapping_add(1),
                Injected::Garbage => {
                    let garbage =
                        InFlight { due_ns, connection: reply.connection, bytes: vec![0xa5; due_ns as usize % 40] };
                    self.in_flight.push(garbage);
                }
                Injected::Duplicate => {
                    let again = InFlight { due_ns: due_ns + 1, connection: reply.connection, bytes: bytes.clone() };
                    self.in_flight.push(again);
                }
                _ => {}
            }
            self.in_flight.push(InFlight { due_ns, connection: reply.connection, bytes });
        }
    }
}

impl Wire {
    pub fn new(world: &Arc<Mutex<World>>, clock: &Arc<VirtualClock>, id: u32) -> Self {
        Self {
            world: Arc::clone(world),
            clock: Arc::clone(clock),
            connection: Connection { id, ingress_port_id: 0, dialect: &Dialect::STANDARD },
            injections: Box::new(|_| Injected::None),
            rival: None,
            bytes_max: 8 << 10,
        }
    }

    pub fn client(self, limits: Limits) -> Client {
        let clock = Arc::clone(&self.clock);
        Client::new(Box::new(self), clock, limits)
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    fn let_rival_act(&mut self) {
        let now_ns = self.clock.now_ns();
        if let Some(mut rival) = self.rival.take() {
            rival(&mut self.world().switch, now_ns);
            self.rival = Some(rival);
        }
    }
}

impl Transport for Wire {
    fn name(&self) -> String {
        "model".into()
    }

    fn message_bytes_max(&self) -> usize {
        self.bytes_max
    }

    fn message_type(&self, opcode: Opcode) -> Option<MessageType> {
        Some(MessageType::of(opcode))
    }

    fn send(&mut self, message: &[u8], dialect: &'static Dialect, _wait: Duration) -> Result<(), TransportFailure> {
        self.let_rival_act();
        let decoded = Message::decode(message, dialect).expect("the client sends messages");
        let injected = (self.injections)(decoded.header.opcode);
        let (now, now_ns) = (self.clock.now(), self.clock.now_ns());
        let connection = self.connection;
        let mut world = self.world();
        if world.has_ended {
            return Err(TransportFailure::Closed);
        }
        world.requests.push((now, decoded.clone()));
        match injected {
            Injected::DropRequest => {}
            Injected::PeerEndsBefore => world.has_ended = true,
            Injected::Busy => {
                let answer = Message::answer(&decoded.header, ReturnCode::BUSY, None, connection.dialect);
                let bytes = answer.encode(connection.dialect);
                world.in_flight.push(InFlight { due_ns: now_ns, connection: connection.id, bytes });
            }
            injected => {
                world.deliver(now_ns, &connection, message, injected);
                world.has_ended = injected == Injected::PeerEndsAfter;
                if world.has_ended {
                    world.in_flight.clear();
                }
            }
        }
        Ok(())
    }

    fn receive(&mut self, _dialect: &'static Dialect, wait: Duration) -> Result<Vec<u8>, TransportFailure> {
        self.let_rival_act();
        let now_ns = self.clock.now_ns();
        let mut world = self.world.lock().unwrap();
        if world.has_ended {
            return Err(TransportFailure::Closed);
        }
        let until_ns = now_ns + wait.as_nanos() as u64;
        let ours = world.in_flight.iter().enumerate().filter(|(_, it)| it.connection == self.connection.id);
        let next = ours.min_by_key(|(_, it)| it.due_ns).filter(|(_, it)| it.due_ns <= until_ns).map(|(at, _)| at);
        let Some(at) = next else {
            self.clock.sleep(wait);
            return Err(TransportFailure::TimedOut);
        };
        let message = world.in_flight.remove(at);
        self.clock.sleep(Duration::from_nanos(message.due_ns.saturating_sub(now_ns)));
        Ok(message.bytes)
    }
}
