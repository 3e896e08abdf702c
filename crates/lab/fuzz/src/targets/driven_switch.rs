// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A driven switch: what managers send to it, and a driver that ends orders late, twice or under a wrong number, and
//! lets it take over any state at any time.
//!
//! The input is a list of steps, each with one byte for what it is and one for the time since the step before, in
//! milliseconds. A message follows with its length; an end of an order has two bytes more; a state has eight.

use aquifer_cxl_switch::{
    Adopted, AdoptedBinding, AdoptedDevice, AdoptedHost, Connection, DeviceConfig, DeviceKind, Effect, Ending, Order,
    Outcome, PortConfig, PortRole, Progress, Switch, SwitchConfig, VirtualSwitchConfig,
};
use aquifer_fmapi::{Category, Dialect, Header, Message, Payload, Reader, ReturnCode};

use super::one_line;

const MS: u64 = 1_000_000;
/// How long an order may take.
const LIMIT_NS: u64 = 200 * MS;
const UNIT: u64 = 256 << 20;

/// Devices at ports 0 and 1, hosts at ports 2 and 3.
fn config() -> SwitchConfig {
    let port = |role| PortConfig { role, link_width: 16, link_speed: 5, lds: 16 };
    let device = |port_id: u8| DeviceConfig {
        kind: DeviceKind::Mld,
        ports: vec![port_id],
        memory_mib: 256,
        lds_mib: vec![0; 16],
        ld_heads: Vec::new(),
        link_width: 16,
        link_speed: 5,
        capacity: None,
    };
    let host = |upstream_port| VirtualSwitchConfig { upstream_port, vppbs: 4, enabled: true };
    let roles = [PortRole::Downstream, PortRole::Downstream, PortRole::Upstream, PortRole::Upstream];
    SwitchConfig {
        ports: roles.map(port).to_vec(),
        virtual_switches: [2, 3].map(host).to_vec(),
        devices: [0, 1].map(device).to_vec(),
        ..SwitchConfig::example()
    }
}

/// The order that runs, as the switch must see it.
struct Running {
    id: u64,
    due_ns: u64,
    /// The header of the request whose answer waits for it.
    asked: Option<Header>,
}

struct Model {
    switch: Switch,
    now_ns: u64,
    last_id: u64,
    running: Option<Running>,
}

/// Returns the state that eight bytes amount to. Most of them name what there is; some do not.
fn state(bytes: [u8; 8]) -> Adopted {
    let [hosts, devices, memory, ld, size, place, target, progress] = bytes;
    let host = |at: u8| AdoptedHost { is_known: hosts >> at & 1 == 0, is_up: hosts >> (at + 4) & 1 == 0 };
    let device = |at: u8| AdoptedDevice {
        is_present: devices >> at & 1 == 0,
        memory_bytes: u64::from(memory) * UNIT,
        lds: vec![(ld & 31, u64::from(size) * UNIT / 2), (ld >> 4, UNIT)],
    };
    let progress = [Progress::Bound, Progress::Binding, Progress::Unbinding][usize::from(progress) % 3];
    let binding = |shift: u8| AdoptedBinding {
        vcs_id: place >> shift & 3,
        vppb_id: place >> (shift + 2) & 7,
        device: usize::from(target & 3),
        ld_id: target >> 3,
        progress,
    };
    Adopted {
        hosts: (0..2).map(host).collect(),
        devices: (0..2).map(device).collect(),
        bindings: vec![binding(0), binding(1)],
    }
}

impl Model {
    /// Checks a step. `asked` is the header of the request that was sent, `is_end` is true where the driver has ended
    /// the order that runs.
    fn check(&mut self, outcome: &Outcome, asked: Option<Header>, is_end: bool) {
        let is_over = self.running.as_ref().is_some_and(|running| is_end || running.due_ns <= self.now_ns);
        let ended = if is_over { self.running.take() } else { None };
        let waited = ended.and_then(|running| running.asked);
        let answer = |bytes: &[u8]| Message::decode(bytes, &Dialect::STANDARD).expect("an answer is a message");
        let replies = outcome.replies.iter().map(|reply| (reply.is_of_order, answer(&reply.bytes)));
        let replies: Vec<_> = replies.filter(|(_, answer)| answer.header.category == Category::Response).collect();
        let late: Vec<_> = replies.iter().filter(|(is_of_order, _)| *is_of_order).collect();
        assert_eq!(late.len(), usize::from(waited.is_some()), "an answer comes when its order ends, once");
        if let (Some((_, answer)), Some(asked)) = (late.first(), waited) {
            assert_eq!(answer.check_answers(&asked, &Dialect::STANDARD), Ok(()));
        }
        for effect in &outcome.effects {
            let Effect::Ordered { id, order } = effect else { continue };
            assert!(self.running.is_none(), "one order at a time");
            assert!(*id > self.last_id, "a number is given once");
            self.last_id = *id;
            let asked = asked.filter(|_| matches!(order, Order::Allocate { .. }));
            self.running = Some(Running { id: *id, due_ns: self.now_ns.saturating_add(LIMIT_NS), asked });
        }
        let is_waiting = asked.is_some() && outcome.effects.iter().any(allocates);
        let at_once = replies.iter().filter(|(is_of_order, _)| !is_of_order);
        assert_eq!(at_once.count(), usize::from(asked.is_some() && !is_waiting), "one answer to each request");
    }

    fn receive(&mut self, bytes: &[u8]) {
        let connection = Connection { id: 1, ingress_port_id: 0, dialect: &Dialect::STANDARD };
        let outcome = self.switch.receive(self.now_ns, &connection, bytes);
        let header = Header::read(&mut Reader::new(bytes, connection.dialect));
        let asked = header.ok().filter(|header| header.category == Category::Request);
        assert_eq!(outcome.refusal.is_none(), asked.is_some());
        self.check(&outcome, asked, false);
        outcome.refusal.inspect(|refusal| one_line(&refusal.to_string()));
    }

    /// Ends an order: the last one, the one before, or one that does not exist.
    fn conclude(&mut self, which: u8, how: u8) {
        let id = (self.last_id + 1).saturating_sub([1, 1, 2, 0][usize::from(which & 3)]);
        let code = ReturnCode(u16::from(how >> 2));
        let ending = [Ending::Done, Ending::Done, Ending::Refused(code), Ending::Unknown(code)][usize::from(how & 3)];
        let is_end = self.running.as_ref().is_some_and(|running| running.id == id);
        let outcome = self.switch.conclude(self.now_ns, id, ending);
        self.check(&outcome, None, is_end);
    }
}

fn allocates(effect: &Effect) -> bool {
    matches!(effect, Effect::Ordered { order: Order::Allocate { .. }, .. })
}

/// A driven switch, with its managers and its driver.
pub fn driven_switch(bytes: &[u8]) {
    let switch = Switch::driven(config(), LIMIT_NS).expect("a good configuration");
    let mut model = Model { switch, now_ns: 0, last_id: 0, running: None };
    let mut rest = bytes;
    while let Some(([kind, later_ms], tail)) = rest.split_first_chunk::<2>() {
        rest = tail;
        model.now_ns += u64::from(*later_ms) * MS;
        match (kind & 7, rest) {
            (0, [which, how, tail @ ..]) => {
                rest = tail;
                model.conclude(*which, *how);
            }
            (1, tail) => {
                let Some((bytes, tail)) = tail.split_first_chunk::<8>() else { return };
                rest = tail;
                let outcome = model.switch.adopt(model.now_ns, &state(*bytes));
                model.check(&outcome, None, false);
            }
            (2, _) => {
                let outcome = model.switch.advance(model.now_ns);
                model.check(&outcome, None, false);
            }
            (_, [length, tail @ ..]) => {
                let (message, tail) = tail.split_at(usize::from(*length).min(tail.len()));
                rest = tail;
                model.receive(message);
            }
            _ => return,
        }
    }
}
