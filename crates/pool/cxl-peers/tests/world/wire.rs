// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The switch, its clock, its hosts' answers to offers, and the messages of one manager, in one thread. Each request
//! is given a fault, from the seed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use aquifer_cxl_switch::{Connection, Effect, HostAction, Outcome, Switch, SwitchConfig};
use aquifer_fmapi::{Dialect, Message, MessageType, Opcode, ReturnCode};
pub use aquifer_fmapi_client::VirtualClock;
use aquifer_fmapi_client::{Clock, Transport, TransportFailure};

use super::random::Random;

struct InFlight {
    due_ns: u64,
    connection: u32,
    bytes: Vec<u8>,
}

/// The start of the capacity that a host was given, by device and tag.
pub type Given = BTreeMap<(usize, [u8; 16]), u64>;

/// What the switch's managers and hosts have in common.
pub struct SharedSwitch {
    pub switch: Switch,
    pub random: Random,
    /// `true` while messages are lost, late, doubled or damaged.
    pub is_troubled: bool,
    /// Requests that ended the connection.
    pub ended: Vec<u32>,
    pub requests: u64,
    /// What hosts have accepted.
    pub given: Given,
    /// Tags of capacity that programs use: a host does not give it back.
    pub used_tags: Vec<[u8; 16]>,
    /// What a host was asked for and did not give.
    pub asked_in_use: Vec<[u8; 16]>,
    in_flight: Vec<InFlight>,
}

/// The switch, shared.
pub type Shared = Arc<Mutex<SharedSwitch>>;

pub fn lock(shared: &Shared) -> MutexGuard<'_, SharedSwitch> {
    shared.lock().expect("no test panics with it")
}

impl SharedSwitch {
    pub fn shared(config: SwitchConfig, random: Random) -> Shared {
        Arc::new(Mutex::new(SharedSwitch {
            switch: Switch::new(config).expect("a good configuration"),
            random,
            is_troubled: false,
            ended: Vec::new(),
            requests: 0,
            given: Given::new(),
            used_tags: Vec::new(),
            asked_in_use: Vec::new(),
            in_flight: Vec::new(),
        }))
    }

    /// Takes in what a step of the switch led to: hosts answer offers, and give back what the switch requests.
    pub fn take(&mut self, now_ns: u64, outcome: Outcome) {
        for reply in outcome.replies {
            let due_ns = reply.due_ns.max(now_ns) + 100_000;
            self.in_flight.push(InFlight { due_ns, connection: reply.connection, bytes: reply.bytes });
        }
        let mut effects = std::collections::VecDeque::from(outcome.effects);
        while let Some(effect) = effects.pop_front() {
            let more = match effect {
                Effect::Bound { .. } => self.take_offers(now_ns),
                Effect::CapacityOffered { device, extents, .. } => {
                    self.given.extend(extents.iter().map(|extent| ((device, extent.tag), extent.start)));
                    self.take_offers(now_ns)
                }
                Effect::CapacityReleaseRequested { device, host_id, extents } => {
                    self.give_back(now_ns, device, host_id, &extents)
                }
                Effect::CapacityFreed { device, extent, .. } => {
                    self.given.remove(&(device, extent.tag));
                    Vec::new()
                }
                _ => Vec::new(),
            };
            effects.extend(more);
        }
    }

    fn take_offers(&mut self, now_ns: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        for device in 0..self.switch.config().devices.len() {
            // An SLD with one head has one host.
            while let (Some(accepted), Some((vcs_id, vppb_id))) =
                (self.switch.oldest_offer(device, 0), self.switch.vppb_of_host(device, 0))
            {
                let action = HostAction::AnswerOffer { accepted: accepted.clone() };
                let answer = self.switch.host(now_ns, vcs_id, vppb_id, &action);
                effects.extend(answer.outcome.effects);
                if answer.result.is_err() {
                    break;
                }
            }
        }
        effects
    }

    fn give_back(
        &mut self,
        now_ns: u64,
        device: usize,
        host_id: u16,
        extents: &[aquifer_fmapi::Extent],
    ) -> Vec<Effect> {
        if let Some(used) = extents.iter().find(|extent| self.used_tags.contains(&extent.tag)) {
            self.asked_in_use.push(used.tag);
            return Vec::new();
        }
        let ranges = extents.iter().map(|extent| extent.start..extent.start + extent.length).collect();
        let Some((vcs_id, vppb_id)) = self.switch.vppb_of_host(device, host_id) else { return Vec::new() };
        self.switch.host(now_ns, vcs_id, vppb_id, &HostAction::ReleaseCapacity { ranges }).outcome.effects
    }

    fn deliver(&mut self, now_ns: u64, connection: &Connection, bytes: &[u8]) {
        let before = self.in_flight.len();
        let outcome = self.switch.receive(now_ns, connection, bytes);
        self.take(now_ns, outcome);
        if !self.is_troubled {
            return;
        }
        let (kind, tag) = (self.random.below(500), self.random.below(20) as usize);
        let Some(answer) = self.in_flight.get_mut(before) else { return };
        match kind {
            0 => drop(self.in_flight.remove(before)),
            1 => answer.due_ns += 3_000_000_000,
            2 => answer.bytes[1] = answer.bytes[1].wrapping_add(1),
            3 => answer.bytes.truncate(tag),
            4 => answer.bytes[5] = answer.bytes[5].wrapping_add(1),
            5 => {
                let again =
                    InFlight { due_ns: answer.due_ns + 1, connection: connection.id, bytes: answer.bytes.clone() };
                self.in_flight.push(again);
            }
            6 => self.ended.push(connection.id),
            _ => {}
        }
    }
}

/// One manager's connection.
pub struct Wire {
    pub shared: Shared,
    pub clock: Arc<VirtualClock>,
    pub connection: Connection,
}

impl Transport for Wire {
    fn name(&self) -> String {
        "the switch of this history".into()
    }

    fn message_bytes_max(&self) -> usize {
        8 << 10
    }

    fn message_type(&self, opcode: Opcode) -> Option<MessageType> {
        Some(MessageType::of(opcode))
    }

    fn send(&mut self, message: &[u8], dialect: &'static Dialect, _: Duration) -> Result<(), TransportFailure> {
        let now_ns = self.clock.now_ns();
        let mut state = lock(&self.shared);
        if state.ended.contains(&self.connection.id) {
            return Err(TransportFailure::Closed);
        }
        state.requests += 1;
        if state.is_troubled {
            match state.random.below(600) {
                0 => return Ok(()),
                1 => {
                    let id = self.connection.id;
                    state.ended.push(id);
                    return Ok(());
                }
                2 | 3 => {
                    let header = Message::decode(message, dialect).expect("the client sends messages").header;
                    let bytes = Message::answer(&header, ReturnCode::BUSY, None, dialect).encode(dialect);
                    let connection = self.connection.id;
                    state.in_flight.push(InFlight { due_ns: now_ns, connection, bytes });
                    return Ok(());
                }
                _ => {}
            }
        }
        state.deliver(now_ns, &self.connection, message);
        Ok(())
    }

    fn receive(&mut self, _: &'static Dialect, wait: Duration) -> Result<Vec<u8>, TransportFailure> {
        let now_ns = self.clock.now_ns();
        let mut state = lock(&self.shared);
        if state.ended.contains(&self.connection.id) {
            return Err(TransportFailure::Closed);
        }
        let until_ns = now_ns + wait.as_nanos() as u64;
        let ours = state.in_flight.iter().enumerate().filter(|(_, it)| it.connection == self.connection.id);
        let next = ours.min_by_key(|(_, it)| it.due_ns).filter(|(_, it)| it.due_ns <= until_ns).map(|(at, _)| at);
        let Some(at) = next else {
            drop(state);
            self.clock.sleep(wait);
            return Err(TransportFailure::TimedOut);
        };
        let message = state.in_flight.remove(at);
        drop(state);
        self.clock.sleep(Duration::from_nanos(message.due_ns.saturating_sub(now_ns)));
        Ok(message.bytes)
    }
}
