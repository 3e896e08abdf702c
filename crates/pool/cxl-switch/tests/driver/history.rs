// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One history of a driven switch: two managers, a driver that delays, refuses, forgets and restarts, and a pool in
//! which others change things.
//!
//! The pool is the truth. A success must be what the pool has at that moment, and what the switch shows must be what it
//! has last adopted, with what its orders have done since (`shown.rs`).

use std::collections::BTreeMap;

use aquifer_cxl_switch::*;
use aquifer_fmapi::*;

use super::shown::Shown;
use super::{GIB, LIMIT_NS, Rig};
use crate::client::at_switch;

const STEPS: usize = 200;
pub const UNIT: u64 = 256 << 20;
const UNITS_MAX: u64 = 4 * GIB / UNIT;
pub const DEVICES: usize = 2;
pub const VCSS: u8 = 2;
pub const VPPBS: u8 = 8;
/// Logical devices that are used, so that requests meet each other.
const LDS: u8 = 4;

/// A bug that is planted in the driver, or between the switch and what is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// None.
    Nothing,
    /// The driver says that an order was carried out that was not.
    FalseSuccess,
    /// A change that was adopted leaves no record.
    RecordLost,
    /// After a restart, a binding is adopted at another vPPB.
    WrongVppb,
}

/// Numbers from a seed: xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

pub type Ld = (usize, u8);

/// What the pool's manager has.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    sizes: BTreeMap<Ld, u64>,
    pub bindings: BTreeMap<Ld, (u8, u8, Progress)>,
    /// What others have of each device, in units.
    others: [u64; DEVICES],
}

impl Pool {
    pub fn size(&self, ld: Ld) -> u64 {
        self.sizes.get(&ld).copied().unwrap_or_default()
    }

    fn free(&self, device: usize) -> u64 {
        let used: u64 = self.sizes.iter().filter(|((of, _), _)| *of == device).map(|(_, bytes)| bytes / UNIT).sum();
        UNITS_MAX - self.others[device] - used
    }

    fn vppb_is_free(&self, vcs_id: u8, vppb_id: u8) -> bool {
        !self.bindings.values().any(|(vcs, vppb, _)| (*vcs, *vppb) == (vcs_id, vppb_id))
    }

    /// Carries an order out, all of it or nothing.
    fn carry_out(&mut self, order: &Order) -> bool {
        match order {
            Order::Allocate { device, lds } => {
                let old: u64 = lds.iter().map(|(ld, _)| self.size((*device, *ld)) / UNIT).sum();
                let new: u64 = lds.iter().map(|(_, bytes)| bytes / UNIT).sum();
                let is_bound = |ld: Ld, bytes| self.bindings.contains_key(&ld) && self.size(ld) != bytes;
                if lds.iter().any(|(ld, bytes)| is_bound((*device, *ld), *bytes)) || new > old + self.free(*device) {
                    return false;
                }
                for (ld, bytes) in lds {
                    self.sizes.insert((*device, *ld), *bytes);
                }
                self.sizes.retain(|_, bytes| *bytes > 0);
            }
            Order::Bind { vcs_id, vppb_id, device, ld_id } => {
                let ld = (*device, *ld_id);
                if self.size(ld) == 0 || self.bindings.contains_key(&ld) || !self.vppb_is_free(*vcs_id, *vppb_id) {
                    return false;
                }
                self.bindings.insert(ld, (*vcs_id, *vppb_id, Progress::Bound));
            }
            Order::Unbind { device, ld_id, .. } => return self.bindings.remove(&(*device, *ld_id)).is_some(),
        }
        true
    }

    fn has(&self, order: &Order) -> bool {
        match order {
            Order::Allocate { device, lds } => lds.iter().all(|(ld, bytes)| self.size((*device, *ld)) == *bytes),
            Order::Bind { vcs_id, vppb_id, device, ld_id } => {
                let found = self.bindings.get(&(*device, *ld_id));
                found.is_some_and(|(vcs, vppb, _)| (vcs, vppb) == (vcs_id, vppb_id))
            }
            Order::Unbind { device, ld_id, .. } => !self.bindings.contains_key(&(*device, *ld_id)),
        }
    }
}

fn lds_of(order: &Order) -> Vec<Ld> {
    match order {
        Order::Allocate { device, lds } => lds.iter().map(|(ld, _)| (*device, *ld)).collect(),
        Order::Bind { device, ld_id, .. } | Order::Unbind { device, ld_id, .. } => vec![(*device, *ld_id)],
    }
}

/// An order that runs.
struct Running {
    id: u64,
    order: Order,
    /// The sizes that a manager has asked for. The order may say less, but the answer does not.
    asked: Option<Order>,
    /// Whether it was carried out.
    is_done: bool,
}

/// A history, and what was done in it.
pub struct History {
    rig: Rig,
    random: Random,
    planted: Planted,
    pool: Pool,
    /// What the switch must show.
    shown: Shown,
    running: Option<Running>,
    /// The number of the last order that has ended.
    ended: u64,
    /// Orders that ended well.
    pub completed: usize,
    /// What was done, for the message of a failure.
    pub trace: Vec<String>,
}

impl History {
    /// Creates a history in which nothing has been done yet.
    pub fn new(seed: u64, planted: Planted) -> Self {
        let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (rig, pool, shown, trace) = (Rig::new(), Pool::default(), Shown::default(), Vec::new());
        let (running, ended, completed) = (None, 0, 0);
        let mut history = Self { rig, random, planted, pool, shown, running, ended, completed, trace };
        history.adopt();
        history
    }

    /// Runs the whole history. Panics if the switch does not say what the pool has.
    pub fn run(&mut self) {
        for _ in 0..STEPS {
            self.rig.client.now_ns += self.random.below(LIMIT_NS / 8);
            self.pass();
            self.rig.client.connection.id = self.random.below(2) as u32;
            match self.random.below(16) {
                0..=2 => self.allocate(),
                3..=5 => self.bind(),
                6..=7 => self.unbind(),
                8..=10 => self.drive(),
                11 => self.change_elsewhere(),
                12 if self.random.one_in(3) => self.restart(),
                13 => self.conclude_in_vain(),
                _ => self.adopt(),
            }
            self.shown.check(&mut self.rig);
        }
    }

    fn note(&mut self, what: String) {
        self.trace.push(format!("{:>12} ns: {what}", self.rig.client.now_ns));
    }

    /// Lets time pass. An order that reaches its limit ends without a known end, and never well.
    fn pass(&mut self) {
        let is_late = self.rig.client.switch.deadline_ns().is_some_and(|due_ns| due_ns <= self.rig.client.now_ns);
        let answer = self.rig.advance();
        if !is_late {
            return;
        }
        let Running { id, order, .. } = self.running.take().expect("only an order ends by itself");
        self.ended = id;
        self.note(format!("{order:?} reaches its limit"));
        match order {
            Order::Allocate { .. } => assert_eq!(answer, Some(ReturnCode::INTERNAL_ERROR)),
            _ => assert_eq!(self.background(), ReturnCode::INTERNAL_ERROR),
        }
        self.shown.end(&order, Ending::Unknown(ReturnCode::INTERNAL_ERROR));
    }

    fn background(&mut self) -> ReturnCode {
        let status = self.rig.client.background();
        assert!(!status.is_running);
        ReturnCode(status.return_code)
    }

    fn allocate(&mut self) {
        let (device, first) = (self.random.below(DEVICES as u64) as u8, self.random.below(LDS.into()) as u8);
        let count = 1 + self.random.below((LDS - first).into());
        let units: Vec<u64> = (0..count).map(|_| self.random.below(6)).collect();
        self.note(format!("allocate {units:?} from LD {first} of device {device} on"));
        let lds = (first..).zip(&units).map(|(ld_id, units)| (ld_id, units * UNIT)).collect();
        let asked = Order::Allocate { device: device.into(), lds };
        match self.rig.set(device, first, &units) {
            None => self.take_order(Some(asked)),
            Some(ReturnCode::SUCCESS) => assert!(self.pool.has(&asked), "a false success: {asked:?}"),
            Some(code) => self.refused(code),
        }
    }

    /// A refusal that refers the manager to a background operation is given only where one runs.
    fn refused(&mut self, code: ReturnCode) {
        let is_background = self.rig.client.background().is_running;
        match code {
            ReturnCode::BUSY => assert!(is_background),
            code => assert!([ReturnCode::INVALID_INPUT, ReturnCode::RETRY_REQUIRED].contains(&code), "{code}"),
        }
    }

    fn take_order(&mut self, asked: Option<Order>) {
        assert!(self.running.is_none(), "one order at a time");
        let orders = self.rig.take_orders();
        assert_eq!(orders.len(), 1);
        let (id, order) = orders.into_iter().next().expect("one");
        self.shown.begin(&order);
        self.running = Some(Running { id, order, asked, is_done: false });
    }

    fn start(&mut self, request: &Request) {
        match self.rig.code(&at_switch(), request) {
            ReturnCode::BACKGROUND_STARTED => self.take_order(None),
            code => self.refused(code),
        }
    }

    fn bind(&mut self) {
        let (vcs_id, vppb_id) = (self.random.below(VCSS.into()) as u8, self.random.below(3) as u8);
        let (port_id, ld_id) = (self.random.below(DEVICES as u64) as u8, self.random.below(LDS.into()) as u16);
        self.note(format!("bind {vcs_id}.{vppb_id} to LD {ld_id} at port {port_id}"));
        self.start(&Request::BindVppb(BindVppb { vcs_id, vppb_id, port_id, ld_id }));
    }

    fn unbind(&mut self) {
        let (vcs_id, vppb_id) = (self.random.below(VCSS.into()) as u8, self.random.below(3) as u8);
        self.note(format!("unbind {vcs_id}.{vppb_id}"));
        self.start(&Request::UnbindVppb(UnbindVppb { vcs_id, vppb_id, option: UnbindOption::ManagedRemoval }));
    }

    /// The driver goes on with its order: carries it out, says how it ended, or neither.
    fn drive(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        if !running.is_done && !self.random.one_in(6) {
            running.is_done = self.pool.carry_out(&running.order);
        }
        if self.random.one_in(4) {
            self.running = Some(running);
            return;
        }
        let Running { id, order, asked, is_done } = running;
        let ending = match (is_done, self.random.below(8)) {
            (_, 0) => Ending::Unknown(ReturnCode::RETRY_REQUIRED),
            (true, _) => Ending::Done,
            (false, 1) if self.planted == Planted::FalseSuccess => Ending::Done,
            (false, _) => Ending::Refused(ReturnCode::RESOURCES_EXHAUSTED),
        };
        self.note(format!("{order:?} ends: {ending:?}"));
        self.ended = id;
        let outcome = self.rig.client.switch.conclude(self.rig.client.now_ns, id, ending);
        let answer = self.rig.answered(outcome);
        let is_background = !matches!(order, Order::Allocate { .. });
        let code = if is_background { self.background() } else { answer.expect("it waited") };
        self.shown.end(&order, ending);
        if code == ReturnCode::SUCCESS {
            let promised = asked.unwrap_or(order);
            assert!(self.pool.has(&promised), "a false success: {promised:?}");
            self.completed += 1;
        } else {
            assert_ne!(ending, Ending::Done);
        }
    }

    /// The driver ends an order that has ended, by itself or by its limit, or one that never was: nothing happens.
    fn conclude_in_vain(&mut self) {
        let id = if self.random.one_in(3) { self.ended + 2 } else { self.ended };
        let code = ReturnCode::RETRY_REQUIRED;
        let ending = [Ending::Done, Ending::Refused(code), Ending::Unknown(code)][self.random.below(3) as usize];
        self.note(format!("order {id} ends in vain: {ending:?}"));
        let deadline_ns = self.rig.client.switch.deadline_ns();
        let outcome = self.rig.client.switch.conclude(self.rig.client.now_ns, id, ending);
        assert_eq!(outcome, Outcome::default());
        assert_eq!(self.rig.client.switch.deadline_ns(), deadline_ns, "the order that runs goes on");
    }

    /// Somebody else asks the pool's manager, hosts and donors come and go.
    fn change_elsewhere(&mut self) {
        let device = self.random.below(DEVICES as u64) as usize;
        let ld = (device, self.random.below(LDS.into()) as u8);
        let is_ours = self.running.as_ref().is_some_and(|running| lds_of(&running.order).contains(&ld));
        let (vcs_id, vppb_id) = (self.random.below(VCSS.into()) as u8, self.random.below(VPPBS.into()) as u8);
        self.note(format!("LD {ld:?} is changed elsewhere"));
        let progress = [Progress::Binding, Progress::Bound, Progress::Unbinding][self.random.below(3) as usize];
        match self.random.below(6) {
            0 => self.rig.pool.hosts[usize::from(vcs_id)].is_up ^= true,
            1 if self.random.one_in(3) => self.rig.pool.devices[device].is_present ^= true,
            2 if self.pool.free(device) > 0 => self.pool.others[device] += 1,
            3 if !is_ours => drop(self.pool.bindings.remove(&ld)),
            4 if !is_ours && self.pool.size(ld) > 0 && self.pool.vppb_is_free(vcs_id, vppb_id) => {
                let takes = |order: &Order| match order {
                    Order::Bind { vcs_id: vcs, vppb_id: vppb, .. } => (*vcs, *vppb) == (vcs_id, vppb_id),
                    _ => false,
                };
                let is_ordered = self.running.as_ref().is_some_and(|running| takes(&running.order));
                if !is_ordered {
                    self.pool.bindings.entry(ld).or_insert((vcs_id, vppb_id, progress)).2 = progress;
                }
            }
            5 if !is_ours && !self.pool.bindings.contains_key(&ld) => drop(self.pool.sizes.remove(&ld)),
            _ => self.pool.others[device] = 0,
        }
    }

    /// The program is killed, and starts again.
    fn restart(&mut self) {
        self.note("restart".into());
        self.rig.restart();
        (self.running, self.ended, self.shown) = (None, 0, Shown::default());
        let planted = self.planted == Planted::WrongVppb && self.random.one_in(4);
        if planted {
            self.pool.bindings.values_mut().for_each(|binding| binding.1 = (binding.1 + 1) % VPPBS);
            self.read_pool();
            self.pool.bindings.values_mut().for_each(|binding| binding.1 = (binding.1 + VPPBS - 1) % VPPBS);
            self.rig.adopt();
            self.shown.adopt(&self.pool, &self.rig.pool, None);
            self.shown.check(&mut self.rig);
        }
        self.adopt();
    }

    /// Reads what the pool has now.
    fn read_pool(&mut self) {
        for (device, others) in self.pool.others.iter().enumerate() {
            let adopted = &mut self.rig.pool.devices[device];
            adopted.memory_bytes = (UNITS_MAX - others) * UNIT;
            let own = self.pool.sizes.iter().filter(|((of, _), _)| *of == device);
            adopted.lds = own.map(|((_, ld), bytes)| (*ld, *bytes)).collect();
        }
        let bindings = self.pool.bindings.iter().map(|((device, ld_id), (vcs_id, vppb_id, progress))| AdoptedBinding {
            vcs_id: *vcs_id,
            vppb_id: *vppb_id,
            device: *device,
            ld_id: *ld_id,
            progress: *progress,
        });
        self.rig.pool.bindings = bindings.collect();
    }

    fn adopt(&mut self) {
        self.read_pool();
        let before: Vec<Vec<Vppb>> = (0..VCSS).map(|vcs_id| self.rig.client.vppbs(vcs_id)).collect();
        self.rig.client.seen.events.clear();
        self.rig.adopt();
        let mut recorded = self.rig.client.seen.events.iter().filter_map(|event| match event.record.meaning() {
            Some(EventData::Vppb(event)) => Some((event.vcs_id, event.vppb_id)),
            _ => None,
        });
        let recorded: Vec<(u8, u8)> =
            if self.planted == Planted::RecordLost { recorded.by_ref().skip(1).collect() } else { recorded.collect() };
        for (vcs_id, before) in (0..VCSS).zip(before) {
            for (vppb_id, (old, new)) in (0..VPPBS).zip(before.iter().zip(self.rig.client.vppbs(vcs_id))) {
                assert!(*old == new || recorded.contains(&(vcs_id, vppb_id)), "vPPB {vcs_id}.{vppb_id}: no record");
            }
        }
        self.shown.adopt(&self.pool, &self.rig.pool, self.running.as_ref().map(|running| &running.order));
    }
}
