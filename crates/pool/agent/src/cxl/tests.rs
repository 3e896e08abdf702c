// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Binds bring memory online and unbinds take it offline, on the model of the kernel, with the agent killed before each
//! write in turn.
//!
//! Guards against this failure: a member is reported as left while the host still has its region, and the manager
//! unbinds the device under programs that use its memory.

use std::cell::RefCell;
use std::collections::BTreeMap;

use aquifer_cxl_host::model::{CAPACITY_BYTES, Failing, KernelModel};
use aquifer_cxl_host::{Listing, Nodes, Purpose};
use aquifer_fabric::{
    Command, HostReport, LdId, MemberId, MemberLease, MemberState, Place, Presentation, Redundancy, Source, SpanId,
    Step, Term, Token, VolumeId, Why,
};

use super::*;

const VOLUME: VolumeId = VolumeId(0xa1);
/// Number of turns that suffices for everything that can be done.
const TURNS: usize = 4;

fn settings() -> CxlSettings {
    CxlSettings { purpose: Purpose::Node, nodes: Nodes::One, migrate: true, serials: BTreeMap::new() }
}

/// Returns the device with this serial number, as a span by itself.
fn lease(serial: u64) -> MemberLease {
    MemberLease {
        member: MemberId(serial - 0x1000),
        place: Place { span: SpanId((serial - 0x1000) as u32), shard: 0 },
        source: Source::LogicalDevice { device: format!("s0.{serial:x}").parse().unwrap(), ld_id: LdId(0xffff) },
        bytes: Bytes(CAPACITY_BYTES),
        token: Token(0),
    }
}

/// Returns a logical device of the MLD with serial number 0x1001, as a span by itself: member 1 for LD 1, and so on.
fn ld_lease(ld_id: u16) -> MemberLease {
    let source = Source::LogicalDevice { device: "s0.1001".parse().unwrap(), ld_id: LdId(ld_id) };
    MemberLease { source, ..lease(0x1000 + u64::from(ld_id)) }
}

struct Bench {
    kernel: KernelModel,
    settings: CxlSettings,
    host_state: RefCell<HostState>,
    /// The host state as it is on disk.
    stored: RefCell<String>,
    sequence: u64,
    lines: Vec<String>,
}

impl Bench {
    fn new(kernel: KernelModel, settings: CxlSettings) -> Bench {
        let mut host_state = HostState::new("boot");
        host_state.take_devices();
        let stored = RefCell::new(serde_json::to_string(&host_state).unwrap());
        Bench { kernel, settings, host_state: RefCell::new(host_state), stored, sequence: 0, lines: Vec::new() }
    }

    fn change(&self, change: &mut dyn FnMut(&mut HostState)) -> io::Result<()> {
        let mut host_state = self.host_state.borrow_mut();
        change(&mut host_state);
        host_state.settle();
        *self.stored.borrow_mut() = serde_json::to_string(&*host_state).unwrap();
        Ok(())
    }

    fn order(&mut self, step: Step) -> Result<(), String> {
        self.sequence += 1;
        let incarnation = self.report().incarnation;
        let command = Command { term: Term(1), sequence: self.sequence, incarnation, step, cause: None };
        let mut outcome = Ok(());
        self.change(&mut |host_state| outcome = host_state.carry_out(&command)).unwrap();
        outcome
    }

    fn present(&mut self, serials: &[u64]) {
        self.present_as(Presentation::OneRange, serials).unwrap();
    }

    fn present_as(&mut self, presentation: Presentation, serials: &[u64]) -> Result<(), String> {
        let members = serials.iter().map(|serial| lease(*serial)).collect();
        let (host, redundancy) = ("web-1".parse().unwrap(), Redundancy::None);
        self.order(Step::Present { host, volume: VOLUME, name: None, redundancy, presentation, members })
    }

    fn withdraw(&mut self, serials: &[u64]) {
        let members = serials.iter().map(|serial| lease(*serial).member).collect();
        self.order(Step::Withdraw { host: "web-1".parse().unwrap(), volume: VOLUME, members }).unwrap();
    }

    fn leave(&mut self, serial: u64, why: Why) {
        let members = vec![lease(serial).member];
        self.order(Step::Leave { host: "web-1".parse().unwrap(), volume: VOLUME, members, why }).unwrap();
    }

    /// Runs enough turns. Checks after each that members that have left have no memory at this host.
    fn turns(&mut self) {
        for _ in 0..TURNS {
            let mut lines = Vec::new();
            turn(&self.kernel, &self.settings, &|change| self.change(change), &mut |line| lines.push(line.to_owned()));
            self.lines.append(&mut lines);
            self.check();
        }
    }

    fn check(&self) {
        let listing = Listing::read(&self.kernel).unwrap();
        for member in self.report().left.get(&VOLUME).into_iter().flatten() {
            let memdev = listing.memdev(&format!("{:#x}", 0x1000 + member.0));
            let taken =
                memdev.into_iter().flat_map(|it| &it.decoders).any(|it| it.dpa_bytes > 0 || it.region.is_some());
            assert!(!taken, "member {member} has left, and its device has a region: {listing:?}");
        }
    }

    /// Kills the agent and starts another one with the host state on disk.
    fn restart(&mut self) {
        self.start("boot");
    }

    /// Restarts the host, which finds these devices.
    fn restart_host(&mut self, kernel: KernelModel) {
        self.kernel = kernel;
        self.start("the next boot");
    }

    fn start(&mut self, boot: &str) {
        let mut host_state: HostState = serde_json::from_str(&self.stored.borrow()).unwrap();
        host_state.start(boot);
        host_state.take_devices();
        self.host_state = RefCell::new(host_state);
    }

    /// Has a member that is on an LD of the MLD with serial number 0x1001.
    fn join(&mut self, ld_id: u16) {
        let members = vec![ld_lease(ld_id)];
        self.order(Step::Join { host: "web-1".parse().unwrap(), volume: VOLUME, members }).unwrap();
    }

    fn present_lds(&mut self, lds: &[u16]) {
        let members = lds.iter().map(|ld_id| ld_lease(*ld_id)).collect();
        let (host, redundancy, presentation) = ("web-1".parse().unwrap(), Redundancy::None, Presentation::OneRange);
        self.order(Step::Present { host, volume: VOLUME, name: None, redundancy, presentation, members }).unwrap();
    }

    fn forget(&mut self, serial: u64) {
        let member = lease(serial).member;
        self.order(Step::ForgetLeft { host: "web-1".parse().unwrap(), volume: VOLUME, member }).unwrap();
    }

    /// Returns the decoder that a member's region has.
    fn decoder_of(&self, serial: u64) -> Option<String> {
        let tasks = self.host_state.borrow().device_tasks();
        let task = tasks.into_iter().find(|task| task.member == lease(serial).member)?;
        let listing = Listing::read(&self.kernel).unwrap();
        listing.region(&task.identity.region?)?.targets.first().cloned()
    }

    fn report(&self) -> HostReport {
        self.host_state.borrow().report()
    }

    fn state(&self, serial: u64) -> Option<MemberState> {
        self.report().member(VOLUME, lease(serial).member).map(|it| it.state)
    }

    fn has_left(&self, serial: u64) -> bool {
        self.report().has_left(VOLUME, lease(serial).member)
    }

    fn trouble(&self, serial: u64) -> String {
        self.report().trouble_of(VOLUME, lease(serial).member).unwrap_or_default()
    }
}

#[test]
fn a_bind_becomes_memory_and_an_unbind_waits_until_it_is_gone() {
    let mut bench = Bench::new(KernelModel::new(2), settings());
    let empty = bench.kernel.state();
    bench.present(&[0x1000, 0x1001]);
    assert_eq!(bench.state(0x1000), Some(MemberState::Copying { left: Bytes(CAPACITY_BYTES) }));
    bench.turns();
    assert_eq!([0x1000, 0x1001].map(|serial| bench.state(serial)), [Some(MemberState::InSync); 2]);
    assert_eq!(Listing::read(&bench.kernel).unwrap().regions.len(), 2);
    assert_eq!(bench.lines.len(), 2, "what is done is said once: {:?}", bench.lines);
    bench.leave(0x1001, Why::Shrunk);
    assert!(!bench.has_left(0x1001), "its memory is still here");
    bench.turns();
    assert!(bench.has_left(0x1001) && !bench.has_left(0x1000));
    bench.withdraw(&[0x1000]);
    assert!(!bench.has_left(0x1000));
    bench.turns();
    assert!(bench.has_left(0x1000) && bench.report().volumes.is_empty());
    assert_eq!(bench.kernel.state(), empty);
}

/// Kills the agent before each write in the life of two devices; the next agent continues.
#[test]
fn an_agent_that_was_killed_at_any_write_goes_on() {
    let life = |killed_at: Option<usize>| {
        let mut bench = Bench::new(KernelModel::new(2), settings());
        let empty = bench.kernel.state();
        bench.kernel.fail(killed_at.map_or(Failing::None, Failing::From));
        let mut is_killed = killed_at.is_none();
        let mut step = |bench: &mut Bench, order: &dyn Fn(&mut Bench)| {
            order(bench);
            bench.turns();
            if !is_killed && killed_at.is_some_and(|at| bench.kernel.writes() > at) {
                is_killed = true;
                bench.kernel.fail(Failing::None);
                bench.restart();
                bench.check();
                // The manager repeats an order until a report shows its effect.
                order(bench);
                bench.turns();
            }
        };
        step(&mut bench, &|bench| bench.present(&[0x1000, 0x1001]));
        assert_eq!([0x1000, 0x1001].map(|serial| bench.state(serial)), [Some(MemberState::InSync); 2], "{killed_at:?}");
        step(&mut bench, &|bench| bench.leave(0x1000, Why::Shrunk));
        assert!(bench.has_left(0x1000), "{killed_at:?}: {}", bench.trouble(0x1000));
        step(&mut bench, &|bench| bench.withdraw(&[0x1001]));
        assert!(bench.has_left(0x1001), "{killed_at:?}: {}", bench.trouble(0x1001));
        assert_eq!(bench.kernel.state(), empty, "{killed_at:?}");
        bench.kernel.writes()
    };
    let writes = life(None);
    assert!(writes > 40, "{writes}");
    (0..writes).for_each(|killed_at| _ = life(Some(killed_at)));
}

#[test]
fn memory_in_use_is_moved_or_keeps_the_device_with_the_names_of_its_holders() {
    for migrate in [false, true] {
        let mut bench = Bench::new(KernelModel::new(1), CxlSettings { migrate, ..settings() });
        bench.present(&[0x1001]);
        bench.turns();
        bench.kernel.set("/proc/4711/numa_maps", "7f00 default anon=512 N1=512 kernelpagesize_kB=4");
        bench.kernel.set("/proc/4711/comm", "redis-server");
        bench.withdraw(&[0x1001]);
        bench.turns();
        assert_eq!(bench.has_left(0x1001), migrate);
        if !migrate {
            assert!(bench.trouble(0x1001).contains("redis-server (4711, 2 MiB)"), "{}", bench.trouble(0x1001));
            bench.kernel.set("/proc/4711/numa_maps", "7f00 default anon=512 N0=512 kernelpagesize_kB=4");
            bench.turns();
            assert!(bench.has_left(0x1001));
        }
    }
}

/// A device with pages that the kernel cannot migrate stays online, however often the agent tries.
#[test]
fn a_block_that_cannot_be_emptied_is_reported_until_it_can() {
    let mut bench = Bench::new(KernelModel::new(1), settings());
    bench.present(&[0x1001]);
    bench.turns();
    let device = Listing::read(&bench.kernel).unwrap().regions[0].devices[0].clone();
    let block = aquifer_cxl_host::blocks(&bench.kernel, &device).unwrap().online[1];
    bench.kernel.hold(&[block]);
    bench.withdraw(&[0x1001]);
    bench.turns();
    assert!(
        !bench.has_left(0x1001) && bench.trouble(0x1001).contains("cannot be emptied"),
        "{}",
        bench.trouble(0x1001)
    );
    bench.kernel.hold(&[]);
    bench.turns();
    assert!(bench.has_left(0x1001) && bench.report().trouble.is_empty());
}

/// The kernel does not stop trying to empty one device. The agent gives up, and serves the other one.
#[test]
fn a_block_that_never_empties_delays_no_other_device_for_ever() {
    let mut bench = Bench::new(KernelModel::new(2), settings());
    bench.present(&[0x1000, 0x1001]);
    bench.turns();
    let device = Listing::read(&bench.kernel).unwrap().regions[0].devices[0].clone();
    let blocks = aquifer_cxl_host::blocks(&bench.kernel, &device).unwrap().online;
    bench.kernel.never_empty(&blocks[1..2]);
    bench.withdraw(&[0x1000, 0x1001]);
    bench.turns();
    assert_eq!([0x1000, 0x1001].map(|serial| bench.has_left(serial)), [false, true]);
    assert!(bench.trouble(0x1000).contains("did not move within 30 s"), "{}", bench.trouble(0x1000));
    bench.kernel.never_empty(&[]);
    bench.turns();
    assert!(bench.has_left(0x1000) && bench.report().trouble.is_empty());
}

/// The device appears long after the bind, disappears without warning, and comes back.
#[test]
fn a_device_may_come_late_and_flap() {
    let mut bench = Bench::new(KernelModel::new(0), settings());
    bench.present(&[0x1001]);
    bench.turns();
    assert!(bench.trouble(0x1001).contains("is not here"), "{}", bench.trouble(0x1001));
    assert!(matches!(bench.state(0x1001), Some(MemberState::Copying { .. })), "it has lost nothing");
    for _ in 0..3 {
        bench.kernel.plug(0, 0x1001, CAPACITY_BYTES);
        bench.turns();
        assert_eq!((bench.state(0x1001), bench.trouble(0x1001)), (Some(MemberState::InSync), String::new()));
        bench.kernel.pull(0);
        bench.turns();
        assert_eq!(bench.state(0x1001), Some(MemberState::Broken));
    }
    bench.leave(0x1001, Why::Lost);
    bench.turns();
    assert!(bench.has_left(0x1001) && Listing::read(&bench.kernel).unwrap().regions.is_empty());
}

#[test]
fn a_device_that_takes_the_place_of_another_is_online_first() {
    let mut bench = Bench::new(KernelModel::new(1), settings());
    bench.present(&[0x1001]);
    bench.turns();
    let new = MemberLease { place: lease(0x1001).place, ..lease(0x1002) };
    bench.order(Step::Join { host: "web-1".parse().unwrap(), volume: VOLUME, members: vec![new] }).unwrap();
    bench.turns();
    bench.leave(0x1001, Why::Replaced);
    bench.turns();
    assert_eq!(bench.state(0x1001), Some(MemberState::InSync), "the new one is not here yet");
    bench.kernel.plug(1, 0x1002, CAPACITY_BYTES);
    bench.turns();
    assert_eq!(bench.state(0x1002), Some(MemberState::InSync));
    bench.leave(0x1001, Why::Replaced);
    bench.turns();
    assert!(bench.has_left(0x1001) && !bench.has_left(0x1002));
    assert_eq!(Listing::read(&bench.kernel).unwrap().regions.len(), 1);
}

/// Logical devices of one device with one size look the same. While all others are known, the one that is left is the
/// new one. Taken for another one, it would be unbound under programs.
#[test]
fn logical_devices_of_one_size_come_online_and_keep_what_is_theirs() {
    let mut bench = Bench::new(KernelModel::new(1), settings());
    bench.present_lds(&[1]);
    bench.turns();
    bench.join(2);
    bench.turns();
    assert!(matches!(bench.state(0x1002), Some(MemberState::Copying { .. })));
    assert!(bench.trouble(0x1002).contains("is not here"), "{}", bench.trouble(0x1002));
    bench.kernel.plug(2, 0x1001, CAPACITY_BYTES);
    bench.turns();
    bench.restart();
    bench.turns();
    assert_eq!([0x1001, 0x1002].map(|serial| bench.state(serial)), [Some(MemberState::InSync); 2]);
    let decoders = |bench: &Bench| [0x1001, 0x1002].map(|serial| bench.decoder_of(serial).unwrap_or_default());
    assert_eq!(decoders(&bench), ["decoder3.0", "decoder5.0"]);
    bench.leave(0x1001, Why::Shrunk);
    bench.turns();
    assert!(bench.has_left(0x1001));
    assert_eq!(Listing::read(&bench.kernel).unwrap().regions.len(), 1);
    assert_eq!(decoders(&bench), ["", "decoder5.0"], "the other one is still online");
    // The first one is still here until the unbind, and is known. So the third one is not taken for it.
    bench.join(3);
    bench.turns();
    assert!(bench.trouble(0x1003).contains("is not here"), "{}", bench.trouble(0x1003));
    // The second one is pulled out, and comes back under another number.
    bench.kernel.pull(2);
    bench.kernel.plug(3, 0x1001, CAPACITY_BYTES);
    bench.turns();
    assert_eq!(
        [0x1002, 0x1003].map(|serial| bench.state(serial)),
        [Some(MemberState::Broken), Some(MemberState::InSync)]
    );
    bench.kernel.plug_at(2, 6, 0x1001, CAPACITY_BYTES);
    bench.turns();
    assert_eq!(bench.state(0x1002), Some(MemberState::InSync));
    assert_eq!(bench.decoder_of(0x1002).as_deref(), Some("decoder9.0"));
}

/// Bound devices stay bound while their host is off: it finds several that look the same at once.
#[test]
fn after_a_restart_of_the_host_each_logical_device_is_where_it_was() {
    let mut bench = Bench::new(KernelModel::new(1), settings());
    bench.present_lds(&[1]);
    bench.turns();
    bench.join(2);
    bench.kernel.plug(2, 0x1001, CAPACITY_BYTES);
    bench.turns();
    let kernel = KernelModel::new(0);
    kernel.plug_at(2, 0, 0x1001, CAPACITY_BYTES);
    kernel.plug_at(0, 1, 0x1001, CAPACITY_BYTES);
    bench.restart_host(kernel);
    assert!(bench.report().volumes.is_empty());
    bench.present_lds(&[1, 2]);
    bench.turns();
    let decoders = [0x1001, 0x1002].map(|serial| bench.decoder_of(serial).unwrap_or_default());
    assert_eq!(decoders, ["decoder4.0", "decoder3.0"]);
}

/// An agent that has lost its state, or a manager that binds both at once.
#[test]
fn logical_devices_that_nothing_tells_apart_wait_until_one_is_unbound() {
    let mut bench = Bench::new(KernelModel::new(1), settings());
    bench.kernel.plug(2, 0x1001, CAPACITY_BYTES);
    bench.present_lds(&[1, 2]);
    bench.turns();
    for serial in [0x1001, 0x1002] {
        assert!(matches!(bench.state(serial), Some(MemberState::Copying { .. })));
        assert!(bench.trouble(serial).contains("nothing tells them apart; unbind"), "{}", bench.trouble(serial));
    }
    bench.leave(0x1001, Why::Shrunk);
    bench.turns();
    assert!(bench.has_left(0x1001));
    assert!(matches!(bench.state(0x1002), Some(MemberState::Copying { .. })), "both are here until the unbind");
    bench.kernel.pull(0);
    bench.forget(0x1001);
    bench.turns();
    assert_eq!(bench.state(0x1002), Some(MemberState::InSync));
}

/// Its replacement may look like it, and could not come online before it has left.
#[test]
fn a_device_that_was_never_online_does_not_wait_for_its_replacement() {
    let mut bench = Bench::new(KernelModel::new(0), settings());
    bench.present_lds(&[1]);
    bench.turns();
    let new = MemberLease { place: ld_lease(1).place, ..ld_lease(2) };
    bench.order(Step::Join { host: "web-1".parse().unwrap(), volume: VOLUME, members: vec![new] }).unwrap();
    bench.turns();
    bench.leave(0x1001, Why::Replaced);
    bench.turns();
    assert!(bench.has_left(0x1001));
    bench.forget(0x1001);
    bench.kernel.plug(1, 0x1001, CAPACITY_BYTES);
    bench.turns();
    assert_eq!(bench.state(0x1002), Some(MemberState::InSync));
}

#[test]
fn a_volume_may_ask_for_a_node_for_each_of_its_devices() {
    let range_per_span = |weights: &[u8]| Presentation::RangePerSpan { weights: weights.to_vec() };
    let each = CxlSettings { nodes: Nodes::Each, ..settings() };
    for (presentation, settings, regions) in [
        (Presentation::OneRange, settings(), [2, 0]),
        (Presentation::OneRange, each, [1, 1]),
        (range_per_span(&[]), settings(), [1, 1]),
    ] {
        let mut bench = Bench::new(KernelModel::with_windows(2, 2), settings);
        bench.present_as(presentation, &[0x1000, 0x1001]).unwrap();
        bench.turns();
        let windows = Listing::read(&bench.kernel).unwrap().windows;
        assert_eq!(windows.iter().map(|window| window.regions.len()).collect::<Vec<_>>(), regions);
    }
    // The kernel has weights for the nodes of the whole host, and none for a volume.
    let mut bench = Bench::new(KernelModel::with_windows(2, 2), settings());
    let refused = bench.present_as(range_per_span(&[3, 1]), &[0x1000, 0x1001]).unwrap_err();
    assert!(refused.contains("weights have no effect; leave them out"), "{refused}");
}

#[test]
fn what_cannot_become_memory_is_refused_or_reported() {
    let mut bench = Bench::new(KernelModel::new(1), settings());
    let host = || "web-1".parse().unwrap();
    let mut refused = |members: Vec<MemberLease>, redundancy, part: &str| {
        let presentation = Presentation::OneRange;
        let step = Step::Present { host: host(), volume: VOLUME, name: None, redundancy, presentation, members };
        let why = bench.order(step).unwrap_err();
        assert!(why.contains(part) && why.contains("; "), "{why}");
    };
    let device = "s0.1001".parse().unwrap();
    refused(vec![lease(0x1001), lease(0x1002)], Redundancy::Mirror { copies: 2 }, "keeps no mirror=2");
    let dynamic = MemberLease { source: Source::DynamicCapacity { device }, ..lease(0x1001) };
    refused(vec![dynamic], Redundancy::None, "no dynamic capacity");
    // A device with half the size that was bound, and a name without a serial number.
    let larger = MemberLease { bytes: Bytes(2 * CAPACITY_BYTES), ..lease(0x1001) };
    let source = Source::LogicalDevice { device: "s0-p7".parse().unwrap(), ld_id: LdId(0xffff) };
    let nameless = MemberLease { source, ..lease(0x1002) };
    let (redundancy, presentation) = (Redundancy::None, Presentation::OneRange);
    let members = vec![larger, nameless];
    bench.order(Step::Present { host: host(), volume: VOLUME, name: None, redundancy, presentation, members }).unwrap();
    bench.turns();
    assert!(bench.trouble(0x1001).contains("1073741824 were bound"), "{}", bench.trouble(0x1001));
    assert!(bench.trouble(0x1002).contains("[cxl.serials]"), "{}", bench.trouble(0x1002));
    assert!(Listing::read(&bench.kernel).unwrap().regions.is_empty());
}
