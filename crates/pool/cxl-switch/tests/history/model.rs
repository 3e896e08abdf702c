// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What must result from a history: bindings, the one operation, bytes, blocks and logs, each modelled as simply as
//! possible.

use std::collections::BTreeMap;
use std::ops::Range;

use aquifer_cxl_switch::*;
use aquifer_fmapi::*;

/// Bytes of a block of capacity, and how many there are.
pub const BLOCK_BYTES: u64 = 64 << 20;
pub const BLOCKS: usize = 4;
/// How long a bind takes, and how long it can be aborted: while at most 85 per cent of it are done.
const BIND_NS: u64 = 5_000_000;
const ABORT_NS: u64 = BIND_NS / 100 * 86;
/// Offers that a host may leave without an answer.
const OFFERS_MAX: usize = 64;
/// The SLD and the device with capacity.
const SLD_PORT: u8 = 0;
const CAPACITY_PORTS: [u8; 2] = [2, 3];

/// What a vPPB can be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The port.
    pub port_id: u8,
    /// The logical device.
    pub ld_id: Option<u8>,
}

impl Target {
    fn device(self) -> usize {
        match self.port_id {
            SLD_PORT => 0,
            1 => 1,
            _ => 2,
        }
    }
}

/// Where a host writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A block of capacity that it has.
    Block(usize),
    /// The first byte of what is bound.
    First(Target),
    /// Nowhere.
    Nowhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Binding(Target),
    Bound(Target),
    Unbound,
    Unbinding(Target),
}

impl State {
    fn target(self) -> Option<Target> {
        match self {
            Self::Binding(target) | Self::Bound(target) | Self::Unbinding(target) => Some(target),
            Self::Unbound => None,
        }
    }
}

struct Running {
    vppb: usize,
    target: Target,
    is_bind: bool,
    started_ns: u64,
    is_stalled: bool,
    code: ReturnCode,
}

/// How an operation has ended.
pub struct Ended {
    /// True for a bind.
    pub is_bind: bool,
    /// True for success.
    pub is_good: bool,
    /// The vPPB that it is for.
    pub vppb: usize,
    /// What it was bound to, or unbound from.
    pub target: Target,
}

#[derive(Clone, Copy, Default)]
struct Block {
    /// Who has it, or is offered it.
    host: Option<u16>,
    is_pending: bool,
    is_sanitized: bool,
    was_wiped: bool,
    byte: u8,
}

/// The model of a switch that a history is compared with.
pub struct Model {
    is_wiped: bool,
    always_sanitizes: bool,
    states: Vec<State>,
    running: Option<Running>,
    last: Option<ReturnCode>,
    next_is_stalled: bool,
    next_code: Option<ReturnCode>,
    present: [bool; 3],
    down_until_ns: u64,
    now_ns: u64,
    bytes: BTreeMap<Target, (u8, bool)>,
    blocks: [Block; BLOCKS],
    /// Blocks that are offered to each host; None for a block that was taken back since.
    offers: [Vec<Option<usize>>; 2],
    logs: [(Vec<EventRecord>, u16); 4],
}

/// Returns the addresses of a block.
pub fn range(block: usize) -> Range<u64> {
    let start = block as u64 * BLOCK_BYTES;
    start..start + BLOCK_BYTES
}

/// Returns a block as an extent.
pub fn extent(block: usize) -> Extent {
    Extent { start: range(block).start, length: BLOCK_BYTES, ..Extent::default() }
}

impl Model {
    /// Creates a model in which nothing is bound.
    pub fn new(config: &SwitchConfig, vppbs: usize) -> Self {
        let regions = &config.devices[2].capacity.as_ref().expect("the device has capacity").regions;
        Self {
            is_wiped: config.wipe_on_unbind,
            always_sanitizes: regions[0].sanitize_on_release,
            states: vec![State::Unbound; vppbs],
            running: None,
            last: None,
            next_is_stalled: false,
            next_code: None,
            present: [true; 3],
            down_until_ns: 0,
            now_ns: 0,
            bytes: BTreeMap::new(),
            blocks: [Block::default(); BLOCKS],
            offers: [Vec::new(), Vec::new()],
            logs: Default::default(),
        }
    }

    /// Lets time pass, in which an operation may end.
    pub fn pass(&mut self, now_ns: u64) -> Option<Ended> {
        self.now_ns = now_ns;
        let running = self.running.as_ref()?;
        if running.is_stalled || running.started_ns + BIND_NS > now_ns {
            return None;
        }
        let code = running.code;
        self.end(code)
    }

    fn end(&mut self, code: ReturnCode) -> Option<Ended> {
        let Running { vppb, target, is_bind, .. } = self.running.take()?;
        let is_gone = target.ld_id.is_some() && !self.present[target.device()];
        let code = match (is_gone, is_bind) {
            (true, true) if code == ReturnCode::SUCCESS => ReturnCode::INTERNAL_ERROR,
            (true, false) => ReturnCode::SUCCESS,
            _ => code,
        };
        let is_good = code == ReturnCode::SUCCESS;
        self.last = Some(code);
        self.states[vppb] = if is_bind == is_good { State::Bound(target) } else { State::Unbound };
        if !is_bind && is_good && self.present[target.device()] {
            self.let_go(target);
        }
        Some(Ended { is_bind, is_good, vppb, target })
    }

    fn let_go(&mut self, target: Target) {
        if let Some((byte, was_wiped)) = self.bytes.get_mut(&target).filter(|_| self.is_wiped) {
            *was_wiped |= *byte != 0;
            *byte = 0;
        }
        if let Some(host) = CAPACITY_PORTS.iter().position(|port_id| *port_id == target.port_id) {
            self.offers[host].clear();
            for block in 0..BLOCKS {
                if self.blocks[block].host == Some(host as u16) {
                    self.blocks[block].is_sanitized |= self.is_wiped;
                    self.free(block);
                }
            }
        }
    }

    fn free(&mut self, block: usize) {
        let always = self.always_sanitizes;
        let block = &mut self.blocks[block];
        let is_wiped = block.is_sanitized || always;
        let byte = if is_wiped { 0 } else { block.byte };
        *block = Block { byte, was_wiped: is_wiped && block.byte != 0, ..Block::default() };
    }

    fn start(&mut self, now_ns: u64, vppb: usize, target: Target, is_bind: bool) -> ReturnCode {
        let is_stalled = std::mem::take(&mut self.next_is_stalled);
        let code = self.next_code.take().unwrap_or(ReturnCode::SUCCESS);
        self.running = Some(Running { vppb, target, is_bind, started_ns: now_ns, is_stalled, code });
        ReturnCode::BACKGROUND_STARTED
    }

    /// Returns how a bind is answered.
    pub fn bind(&mut self, now_ns: u64, vppb: usize, target: Target) -> ReturnCode {
        if self.running.is_some() {
            return ReturnCode::BUSY;
        }
        // Without its device, a port has no logical devices to bind.
        let is_there = target.ld_id.is_none() || self.present[target.device()];
        let is_taken = self.states.iter().any(|state| state.target() == Some(target));
        if !is_there || is_taken || self.states[vppb] != State::Unbound {
            return ReturnCode::INVALID_INPUT;
        }
        self.states[vppb] = State::Binding(target);
        self.start(now_ns, vppb, target, true)
    }

    /// Returns how an unbind is answered.
    pub fn unbind(&mut self, now_ns: u64, vppb: usize) -> ReturnCode {
        if self.running.is_some() {
            return ReturnCode::BUSY;
        }
        let State::Bound(target) = self.states[vppb] else { return ReturnCode::INVALID_INPUT };
        self.states[vppb] = State::Unbinding(target);
        self.start(now_ns, vppb, target, false)
    }

    /// Aborts the running operation, if it can still be aborted.
    pub fn abort(&mut self, now_ns: u64) {
        let can = |running: &Running| running.is_stalled || now_ns - running.started_ns < ABORT_NS;
        if self.running.as_ref().is_some_and(can) {
            self.end(ReturnCode::ABORTED);
        }
    }

    /// Returns whether an operation runs.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns how the last operation ended.
    pub fn last_code(&self) -> Option<ReturnCode> {
        self.last
    }

    /// Makes the running operation, or else the next one, stall.
    pub fn stall(&mut self) {
        match &mut self.running {
            Some(running) => running.is_stalled = true,
            None => self.next_is_stalled = true,
        }
    }

    /// Makes the running operation, or else the next one, fail.
    pub fn fail(&mut self, code: ReturnCode) {
        match &mut self.running {
            Some(running) => running.code = code,
            None => self.next_code = Some(code),
        }
    }

    /// Pulls a device out.
    pub fn remove(&mut self, device: usize, is_mld: bool) {
        self.present[device] = false;
        self.bytes.retain(|target, _| target.device() != device);
        if device == 2 {
            self.blocks = [Block::default(); BLOCKS];
            self.offers = [Vec::new(), Vec::new()];
        }
        for state in &mut self.states {
            if matches!(state, State::Bound(target) if is_mld && target.device() == device) {
                *state = State::Unbound;
            }
        }
    }

    /// Puts the device back.
    pub fn insert(&mut self, device: usize) {
        self.present[device] = true;
    }

    /// Returns whether the device is plugged in.
    pub fn is_present(&self, device: usize) -> bool {
        self.present[device]
    }

    /// Takes the MLD's link down until then.
    pub fn flap(&mut self, until_ns: u64) {
        self.down_until_ns = until_ns;
    }

    fn mld_is_down(&self) -> bool {
        // A flap without a duration lasts until the next step.
        self.down_until_ns > self.now_ns
    }

    /// Returns the return code of a request to the MLD, if it is out of reach.
    pub fn refusal_of_mld(&self) -> Option<ReturnCode> {
        match (self.present[1], self.mld_is_down()) {
            (false, _) => Some(ReturnCode::INVALID_INPUT),
            (true, true) => Some(ReturnCode::RETRY_REQUIRED),
            (true, false) => None,
        }
    }

    /// Returns all vPPBs as the switch should report them.
    pub fn vppbs(&self) -> Vec<Vppb> {
        let reported = |state: &State| {
            let none = Vppb { status: BindingStatus::Unbound, port_id: 0, ld_id: Vppb::NO_LD };
            match *state {
                State::Unbound => none,
                State::Binding(_) | State::Unbinding(_) => Vppb { status: BindingStatus::InProgress, ..none },
                State::Bound(Target { port_id, ld_id: None }) => Vppb { status: BindingStatus::Port, port_id, ..none },
                State::Bound(Target { port_id, ld_id: Some(ld_id) }) => {
                    Vppb { status: BindingStatus::Ld, port_id, ld_id }
                }
            }
        };
        self.states.iter().map(reported).collect()
    }

    /// Returns the vPPBs that are bound.
    pub fn bound(&self) -> Vec<usize> {
        let is_bound = |vppb: &usize| matches!(self.states[*vppb], State::Bound(_));
        (0..self.states.len()).filter(is_bound).collect()
    }

    /// Returns the blocks that the host of a vPPB has.
    pub fn blocks_of(&self, vppb: usize) -> Vec<usize> {
        (0..BLOCKS).filter(|block| matches!(self.place(vppb, *block), Place::Block(_))).collect()
    }

    /// Returns where the host of a vPPB writes: nowhere if it cannot.
    pub fn place(&self, vppb: usize, block: usize) -> Place {
        let target = match self.states[vppb] {
            State::Bound(target) | State::Unbinding(target) => target,
            _ => return Place::Nowhere,
        };
        let is_down = target.port_id == 1 && self.mld_is_down();
        if !self.present[target.device()] || is_down {
            return Place::Nowhere;
        }
        match CAPACITY_PORTS.iter().position(|port_id| *port_id == target.port_id) {
            None => Place::First(target),
            Some(host) if self.has(host as u16, block) => Place::Block(block),
            Some(_) => Place::Nowhere,
        }
    }

    fn has(&self, host_id: u16, block: usize) -> bool {
        self.blocks[block].host == Some(host_id) && !self.blocks[block].is_pending
    }

    /// Returns the byte at a place.
    pub fn read(&self, place: Place) -> Option<u8> {
        match place {
            Place::Block(block) => Some(self.blocks[block].byte),
            Place::First(target) => self.byte(target),
            Place::Nowhere => None,
        }
    }

    /// Returns the first byte of a target; None for the device with capacity.
    pub fn byte(&self, target: Target) -> Option<u8> {
        let is_capacity = CAPACITY_PORTS.contains(&target.port_id);
        (!is_capacity).then(|| self.bytes.get(&target).map_or(0, |(byte, _)| *byte))
    }

    /// Returns whether bytes of a target were wiped.
    pub fn was_wiped(&self, target: Target) -> bool {
        self.bytes.get(&target).is_some_and(|(_, was_wiped)| *was_wiped)
    }

    /// Returns whether bytes were wiped from a block when it was freed last.
    pub fn block_was_wiped(&self, block: usize) -> bool {
        self.blocks[block].was_wiped
    }

    /// Lets a host write.
    pub fn write(&mut self, place: Place, byte: u8) -> bool {
        match place {
            Place::Block(block) => self.blocks[block].byte = byte,
            Place::First(target) => self.bytes.entry(target).or_default().0 = byte,
            Place::Nowhere => {}
        }
        place != Place::Nowhere
    }

    /// Returns how an offer of a block is answered.
    pub fn add(&mut self, host_id: u16, block: usize) -> ReturnCode {
        let offers = &mut self.offers[usize::from(host_id)];
        if !self.present[2] {
            return ReturnCode::INVALID_INPUT;
        }
        if offers.len() >= OFFERS_MAX {
            return ReturnCode::RETRY_REQUIRED;
        }
        if self.blocks[block].host.is_some() {
            return ReturnCode::INVALID_EXTENT_LIST;
        }
        offers.push(Some(block));
        let held = &mut self.blocks[block];
        (held.host, held.is_pending, held.is_sanitized) = (Some(host_id), true, false);
        ReturnCode::SUCCESS
    }

    /// Returns the vPPB by which a host of the capacity acts, if it can.
    pub fn vppb_of_host(&self, host_id: u16) -> Option<usize> {
        let target = Target { port_id: CAPACITY_PORTS[usize::from(host_id)], ld_id: None };
        let reaches = |state: &State| [State::Bound(target), State::Unbinding(target)].contains(state);
        self.states.iter().position(reaches).filter(|_| self.present[2])
    }

    /// Returns the oldest offer to a host: its block, or None inside if that was taken back.
    pub fn offered(&self, host_id: u16) -> Option<Option<usize>> {
        self.offers[usize::from(host_id)].first().copied()
    }

    /// Lets a host answer its oldest offer. Returns false if there is none.
    pub fn answer_offer(&mut self, host_id: u16, is_accepted: bool) -> bool {
        let offers = &mut self.offers[usize::from(host_id)];
        if offers.is_empty() {
            return false;
        }
        if let Some(block) = offers.remove(0) {
            if is_accepted {
                self.blocks[block].is_pending = false;
            } else {
                self.free(block);
            }
        }
        true
    }

    /// Returns how a release of a block is answered.
    pub fn release(&mut self, host_id: u16, block: usize, is_forced: bool, is_sanitized: bool) -> ReturnCode {
        if !self.present[2] {
            return ReturnCode::INVALID_INPUT;
        }
        let held = self.blocks[block];
        if held.host != Some(host_id) {
            return ReturnCode::INVALID_EXTENT_LIST;
        }
        if held.is_pending && !is_forced {
            return ReturnCode::INVALID_PHYSICAL_ADDRESS;
        }
        self.blocks[block].is_sanitized |= is_sanitized;
        if is_forced {
            let offers = self.offers[usize::from(host_id)].iter_mut();
            offers.filter(|offer| **offer == Some(block)).for_each(|offer| *offer = None);
            self.free(block);
        }
        ReturnCode::SUCCESS
    }

    /// Lets a host give a block back.
    pub fn give_back(&mut self, block: usize) -> bool {
        self.free(block);
        true
    }

    /// Records were written or lost.
    pub fn see(&mut self, events: &[Event]) {
        for event in events.iter().filter(|event| event.device.is_none()) {
            let (records, lost) = &mut self.logs[usize::from(event.log.bits())];
            if event.is_lost {
                *lost += 1;
            } else {
                records.push(event.record);
            }
        }
    }

    /// Returns what a log has, and how much it has lost.
    pub fn log(&self, log: EventLog) -> &(Vec<EventRecord>, u16) {
        &self.logs[usize::from(log.bits())]
    }

    /// Clears the oldest records of a log; with the last of them, clears the count of lost records, too.
    pub fn clear(&mut self, log: EventLog, count: usize) {
        let (records, lost) = &mut self.logs[usize::from(log.bits())];
        records.drain(..count);
        if records.is_empty() {
            *lost = 0;
        }
    }
}
