// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One history: two managers and the hosts do what a seed says, failures are injected, and a model says what must
//! result.
//!
//! The model knows the bindings, the background operation, the bytes that hosts wrote, the blocks of capacity and the
//! records of the logs. It sees nothing of the switch but its answers, and compares each with what it expects.

use aquifer_cxl_switch::*;
use aquifer_fmapi::*;

use crate::client::{Client, Hop, at_device, at_switch};
use model::{BLOCK_BYTES, Model, Place, Target};

pub mod model;

/// Steps of a history.
const STEPS: usize = 150;
/// The device with capacity, its ports, which are its heads, and the MLD.
const CAPACITY_DEVICE: usize = 2;
const CAPACITY_PORTS: [u8; 2] = [2, 3];
const MLD: usize = 1;
/// Virtual switches, and vPPBs of each.
const VCSS: u8 = 2;
const VPPBS: u8 = 4;
/// How long a bind takes in these histories.
const BIND_NS: u64 = 5_000_000;

/// A bug that is planted between the switch and the model, to see that the model finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// None.
    Nothing,
    /// A logical device is shown at two vPPBs.
    BoundTwice,
    /// Capacity that was released keeps its bytes.
    CapacityNotWiped,
    /// A record disappears from its log without the overflow flag.
    RecordLost,
    /// A second background operation is reported as started.
    TwoOperations,
    /// What was unbound keeps its bytes.
    WipeForgotten,
}

/// Numbers from a seed: xorshift64*.
pub struct Random(u64);

impl Random {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number below a limit.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// One history: what two managers and the hosts do, and which failures are injected, as a seed says.
pub struct History {
    client: Client,
    model: Model,
    random: Random,
    planted: Planted,
    /// What was done, for the message of a failure.
    pub trace: Vec<String>,
    /// Binds and unbinds that ended well.
    pub completed: usize,
}

fn config(random: &mut Random) -> SwitchConfig {
    let mut config = SwitchConfig::example();
    config.wipe_on_unbind = !random.one_in(3);
    config.events_per_log = 2 + random.below(6) as u16;
    config.bind_ms = BIND_NS / 1_000_000;
    config.virtual_switches.iter_mut().for_each(|vcs| vcs.vppbs = VPPBS);
    let device = &mut config.devices[CAPACITY_DEVICE];
    device.memory_mib = 0;
    device.ports = CAPACITY_PORTS.to_vec();
    let region = RegionConfig {
        length_mib: 256,
        block_bytes: BLOCK_BYTES,
        sharable: false,
        sanitize_on_release: random.one_in(4),
    };
    device.capacity = Some(CapacityConfig { regions: vec![region], extents: 64, tags: 4 });
    config
}

impl History {
    /// Creates a history in which nothing has been done yet.
    pub fn new(seed: u64, planted: Planted) -> Self {
        let mut random = Random::new(seed);
        let config = config(&mut random);
        let model = Model::new(&config, (VCSS * VPPBS).into());
        Self { client: Client::new(config), model, random, planted, trace: Vec::new(), completed: 0 }
    }

    /// Runs the whole history. Panics if the switch is not as the model says.
    pub fn run(&mut self) {
        for _ in 0..STEPS {
            self.client.now_ns += self.random.below(4_000_000);
            self.step();
            self.look();
        }
    }

    fn step(&mut self) {
        self.client.connection.id = self.random.below(2) as u32;
        match self.random.below(20) {
            0..=5 => self.bind(),
            6..=8 => self.unbind(),
            9..=11 => self.host_writes(),
            12 if self.random.one_in(2) => self.abort(),
            12 => self.wait(),
            13..=14 => self.add(),
            15..=16 => self.answer_offer(),
            17 => self.release(),
            18 => self.read_log(),
            _ => self.go_wrong(),
        }
    }

    fn note(&mut self, what: String) {
        let step = format!("{:>12} ns: {what}", self.client.now_ns);
        self.trace.push(step);
    }

    /// Lets the model's time pass up to the next step, which may end the operation.
    fn pass(&mut self) {
        if let Some(ended) = self.model.pass(self.client.now_ns) {
            self.completed += usize::from(ended.is_good);
            if self.planted == Planted::WipeForgotten && ended.is_good && ended.is_bind {
                self.spoil(ended.vppb, ended.target);
            }
        }
    }

    /// Overwrites what was wiped, without the model's knowledge.
    fn spoil(&mut self, vppb: usize, target: Target) {
        if self.model.byte(target) == Some(0) && self.model.was_wiped(target) {
            let (vcs_id, vppb_id) = place(vppb);
            let write = HostAction::Write { address: 0, bytes: vec![0xee] };
            let _ = self.client.switch.host(self.client.now_ns, vcs_id, vppb_id, &write);
        }
    }

    fn bind(&mut self) {
        let vppb = self.random.below((VCSS * VPPBS).into()) as usize;
        let target = match self.random.below(8) {
            0..=4 => Target { port_id: 1, ld_id: Some(self.random.below(4) as u8) },
            5 => Target { port_id: 0, ld_id: None },
            _ => Target { port_id: CAPACITY_PORTS[self.random.below(2) as usize], ld_id: None },
        };
        let (vcs_id, vppb_id) = place(vppb);
        let ld_id = target.ld_id.map_or(BindVppb::NO_LD, u16::from);
        self.note(format!("bind {vcs_id}.{vppb_id} to {target:?}"));
        self.pass();
        let expected = self.model.bind(self.client.now_ns, vppb, target);
        let request = Request::BindVppb(BindVppb { vcs_id, vppb_id, port_id: target.port_id, ld_id });
        self.expect(&request, expected);
    }

    fn unbind(&mut self) {
        let vppb = self.random.below((VCSS * VPPBS).into()) as usize;
        let (vcs_id, vppb_id) = place(vppb);
        self.note(format!("unbind {vcs_id}.{vppb_id}"));
        self.pass();
        let expected = self.model.unbind(self.client.now_ns, vppb);
        let option = UnbindOption::of_bits(self.random.below(3) as u8);
        self.expect(&Request::UnbindVppb(UnbindVppb { vcs_id, vppb_id, option }), expected);
    }

    fn expect(&mut self, request: &Request, expected: ReturnCode) {
        let mut code = self.client.code(&at_switch(), request);
        if self.planted == Planted::TwoOperations && code == ReturnCode::BUSY {
            code = ReturnCode::BACKGROUND_STARTED;
        }
        assert_eq!(code, expected, "{request:?}");
    }

    fn abort(&mut self) {
        self.note("abort".into());
        self.pass();
        self.model.abort(self.client.now_ns);
        let request = Request::AbortBackground(AbortBackground {});
        assert_eq!(self.client.code(&at_switch(), &request), ReturnCode::SUCCESS);
    }

    fn wait(&mut self) {
        self.client.now_ns += BIND_NS;
        self.note("wait".into());
        self.pass();
        let status = self.client.background();
        assert_eq!(status.is_running, self.model.is_running());
        if let Some(code) = self.model.last_code().filter(|_| !status.is_running) {
            assert_eq!((ReturnCode(status.return_code), status.percent), (code, 100));
        }
    }

    fn host_writes(&mut self) {
        // Prefer a vPPB that is bound.
        let bound = self.model.bound();
        let vppb = match bound.len() as u64 {
            count if count > 0 && !self.random.one_in(4) => bound[self.random.below(count) as usize],
            _ => self.random.below((VCSS * VPPBS).into()) as usize,
        };
        let (vcs_id, vppb_id) = place(vppb);
        let byte = 1 + self.random.below(200) as u8;
        self.note(format!("host writes {byte} at {vcs_id}.{vppb_id}"));
        self.pass();
        // In dynamic capacity, access a block, preferably one that the host has; elsewhere, the first byte.
        let held = self.model.blocks_of(vppb);
        let block = match held.len() as u64 {
            count if count > 0 && !self.random.one_in(4) => held[self.random.below(count) as usize],
            _ => self.random.below(model::BLOCKS as u64) as usize,
        };
        let place = self.model.place(vppb, block);
        let address = if let Place::First(_) = place { 0 } else { block as u64 * BLOCK_BYTES };
        let read = self.client.host(vcs_id, vppb_id, HostAction::Read { address, bytes: 1 });
        match self.model.read(place) {
            Some(expected) => assert_eq!(read, Ok(vec![expected]), "{place:?}"),
            None => assert!(read.is_err(), "{place:?}: {read:?}"),
        }
        let written = self.client.host(vcs_id, vppb_id, HostAction::Write { address, bytes: vec![byte] });
        assert_eq!(written.is_ok(), self.model.write(place, byte), "{place:?}");
    }

    fn add(&mut self) {
        let (host_id, block) = (self.random.below(2) as u16, self.random.below(model::BLOCKS as u64) as usize);
        self.note(format!("add block {block} to host {host_id}"));
        self.pass();
        let expected = self.model.add(host_id, block);
        let extents = vec![model::extent(block)];
        let policy = add_policy::PRESCRIPTIVE;
        let request = Request::InitiateDcAdd(InitiateDcAdd { host_id, policy, extents, ..Default::default() });
        self.expect_capacity(&request, expected);
    }

    /// Asks the device with capacity, which may be gone or out of reach.
    fn expect_capacity(&mut self, request: &Request, expected: ReturnCode) {
        let path = at_device(CAPACITY_PORTS[0]);
        let code = match self.client.ask(&path, request) {
            Ok(_) => ReturnCode::SUCCESS,
            Err(code) => code,
        };
        assert_eq!(code, expected, "{request:?}");
    }

    fn answer_offer(&mut self) {
        let host_id = self.random.below(2) as u16;
        self.pass();
        let Some(vppb) = self.model.vppb_of_host(host_id) else { return };
        let (vcs_id, vppb_id) = place(vppb);
        let is_accepted = !self.random.one_in(4);
        self.note(format!("host {host_id} answers its offer with {is_accepted}"));
        let offered = self.model.offered(host_id);
        let accepted = match offered {
            Some(Some(block)) if is_accepted => vec![model::range(block)],
            _ => Vec::new(),
        };
        let answered = self.client.host(vcs_id, vppb_id, HostAction::AnswerOffer { accepted });
        let expected = self.model.answer_offer(host_id, is_accepted);
        assert_eq!(answered.is_ok(), expected, "{answered:?}");
        if let (Some(Some(block)), true, true) = (offered, is_accepted, expected) {
            if self.planted == Planted::CapacityNotWiped && self.model.block_was_wiped(block) {
                let write = HostAction::Write { address: block as u64 * BLOCK_BYTES, bytes: vec![0xee] };
                let _ = self.client.switch.host(self.client.now_ns, vcs_id, vppb_id, &write);
            }
            let read = HostAction::Read { address: block as u64 * BLOCK_BYTES, bytes: 1 };
            let expected = self.model.read(Place::Block(block)).expect("it was accepted");
            assert_eq!(self.client.host(vcs_id, vppb_id, read), Ok(vec![expected]), "block {block}");
        }
    }

    fn release(&mut self) {
        let (host_id, block) = (self.random.below(2) as u16, self.random.below(model::BLOCKS as u64) as usize);
        let (is_forced, is_sanitized) = (self.random.one_in(2), self.random.one_in(2));
        self.note(format!("release block {block} of host {host_id}, forced {is_forced}, sanitized {is_sanitized}"));
        self.pass();
        let expected = self.model.release(host_id, block, is_forced, is_sanitized);
        let flags = 1 | u8::from(is_forced) << 4 | u8::from(is_sanitized) << 5;
        let extents = vec![model::extent(block)];
        let request = Request::InitiateDcRelease(InitiateDcRelease { host_id, flags, extents, ..Default::default() });
        self.expect_capacity(&request, expected);
        // The host gives back what it is asked for, if it can.
        let vppb = self.model.vppb_of_host(host_id);
        if let Some(vppb) = vppb.filter(|_| !is_forced && expected == ReturnCode::SUCCESS) {
            let (vcs_id, vppb_id) = place(vppb);
            let given = HostAction::ReleaseCapacity { ranges: vec![model::range(block)] };
            let given = self.client.host(vcs_id, vppb_id, given);
            assert_eq!(given.is_ok(), self.model.give_back(block));
        }
    }

    fn read_log(&mut self) {
        let log = EventLog::of_bits(self.random.below(4) as u8);
        self.note(format!("read and clear {log:?}"));
        self.pass();
        // What has happened until now is in the logs.
        let outcome = self.client.switch.advance(self.client.now_ns);
        self.client.see(outcome);
        if self.planted == Planted::RecordLost {
            self.lose_record(log);
        }
        self.model.see(&std::mem::take(&mut self.client.seen).events);
        let get = Request::GetEventRecords(GetEventRecords { log });
        let Ok(Response::GetEventRecords(reported)) = self.client.ask(&at_switch(), &get) else { panic!("refused") };
        let (records, lost) = self.model.log(log);
        assert_eq!(reported.records, *records, "{log:?}");
        assert_eq!((reported.has_overflowed(), reported.overflow_count), (*lost > 0, *lost), "{log:?}");
        // Clear the oldest records: some of them, or all.
        let count = (1 + self.random.below(8) as usize).min(reported.records.len());
        let handles: Vec<u16> = reported.records.iter().take(count).map(|record| record.handle).collect();
        if !handles.is_empty() {
            let clear = Request::ClearEventRecords(ClearEventRecords { log, flags: 0, handles });
            assert_eq!(self.client.code(&at_switch(), &clear), ReturnCode::SUCCESS);
            self.model.clear(log, count);
        }
    }

    fn lose_record(&mut self, log: EventLog) {
        let get = Request::GetEventRecords(GetEventRecords { log });
        let Ok(Response::GetEventRecords(reported)) = self.client.ask(&at_switch(), &get) else { return };
        if let Some(record) = reported.records.first() {
            let clear = ClearEventRecords { log, flags: 0, handles: vec![record.handle] };
            self.client.code(&at_switch(), &Request::ClearEventRecords(clear));
        }
    }

    fn go_wrong(&mut self) {
        self.pass();
        let device = self.random.below(3) as usize;
        let is_present = self.model.is_present(device);
        let injection = match self.random.below(8) {
            0 => return self.spoil_answer(),
            1 => Injection::BackgroundStalls,
            2 => Injection::BackgroundFails { return_code: ReturnCode::INTERNAL_ERROR },
            3 => Injection::EventOverflow { log: EventLog::of_bits(self.random.below(4) as u8) },
            4 if is_present => Injection::RemoveDevice { device },
            5 | 6 if !is_present => Injection::InsertDevice { device },
            _ => Injection::LinkFlap { port_id: 1, down_ns: self.random.below(3_000_000) },
        };
        self.note(format!("{injection:?}"));
        match &injection {
            Injection::BackgroundStalls => self.model.stall(),
            Injection::BackgroundFails { return_code } => self.model.fail(*return_code),
            Injection::RemoveDevice { device } => self.model.remove(*device, *device == MLD),
            Injection::InsertDevice { device } => self.model.insert(*device),
            Injection::LinkFlap { down_ns, .. } => self.model.flap(self.client.now_ns + down_ns),
            _ => {}
        }
        self.client.inject(injection);
    }

    /// Makes the answer to a bind fail. The bind is carried out, except when a return code is injected.
    fn spoil_answer(&mut self) {
        let failure = match self.random.below(6) {
            0 => AnswerFailure::Code(ReturnCode::BUSY),
            1 => AnswerFailure::Delay { by_ns: 77 },
            2 => AnswerFailure::Drop,
            3 => AnswerFailure::Duplicate,
            4 => AnswerFailure::Truncate { bytes: 11 },
            _ => AnswerFailure::WrongTag,
        };
        self.note(format!("a bind, answered with {failure:?}"));
        let (vppb, target) = (0, Target { port_id: 1, ld_id: Some(0) });
        self.client.inject(Injection::Answer { failure: failure.clone(), opcode: Some(Opcode::BIND_VPPB), times: 1 });
        let request = Request::BindVppb(BindVppb { vcs_id: 0, vppb_id: 0, port_id: 1, ld_id: 0 });
        let message = Message::request(200, &request, &Dialect::STANDARD).encode(&Dialect::STANDARD);
        let outcome = self.client.switch.receive(self.client.now_ns, &self.client.connection, &message);
        let is_carried_out = failure != AnswerFailure::Code(ReturnCode::BUSY);
        if is_carried_out {
            self.model.bind(self.client.now_ns, vppb, target);
        }
        let replies = self.client.see(outcome);
        let answers = match failure {
            AnswerFailure::Drop => 0,
            AnswerFailure::Duplicate => 2,
            _ => 1,
        };
        assert_eq!(replies.len(), answers);
    }

    /// Checks after each step that the bindings are the model's, and that nothing is bound twice.
    fn look(&mut self) {
        let mut reported: Vec<Vppb> = (0..VCSS).flat_map(|vcs_id| self.client.vppbs(vcs_id)).collect();
        if self.planted == Planted::BoundTwice {
            let bound = reported.iter().find(|vppb| vppb.status == BindingStatus::Ld).copied();
            let free = reported.iter_mut().find(|vppb| vppb.status == BindingStatus::Unbound);
            if let (Some(bound), Some(free)) = (bound, free) {
                *free = bound;
            }
        }
        for (at, vppb) in reported.iter().enumerate() {
            let is_bound = [BindingStatus::Ld, BindingStatus::Port].contains(&vppb.status);
            assert!(!is_bound || !reported[..at].contains(vppb), "{vppb:?} is bound twice");
        }
        assert_eq!(reported, self.model.vppbs());
        // Both managers see the same, and the device behind a tunnel answers when it can be reached.
        let identify = self.client.ask(&[Hop::Port(1)], &Request::Identify(Identify {}));
        assert_eq!(identify.err(), self.model.refusal_of_mld());
    }
}

/// Returns the virtual switch of a vPPB, and its number there.
fn place(vppb: usize) -> (u8, u8) {
    (vppb as u8 / VPPBS, vppb as u8 % VPPBS)
}
