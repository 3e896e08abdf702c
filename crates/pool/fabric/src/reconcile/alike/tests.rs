// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! LDs that look alike are bound one after the other, and none waits for ever.

use std::collections::BTreeMap;

use crate::desired::{Desired, Edit};
use crate::example::{self, id as named};
use crate::id::{DeviceId, HostId, LdId, MemberId, VolumeId};
use crate::observed::{Content, LdBinding, LdReport, MemberReport, MemberState, Observed};
use crate::placement::Capacity;
use crate::reconcile::{Backlog, MemberLease, Reason, Round, Step, reconcile};
use crate::topology::{DeviceKind, LatencyClass, Topology};
use crate::volume::{Redundancy, Source, VolumeSpec};
use crate::{Bytes, Millis, settle};

const A: VolumeId = VolumeId(1);
const B: VolumeId = VolumeId(2);

struct World {
    topology: Topology,
    desired: Desired,
    observed: Observed,
    backlog: Backlog,
}

/// Two MLDs, each with LDs of these sizes in GiB.
fn topology(lds_gib: &[u64]) -> Topology {
    let mut parts = example::memory_box().parts().clone();
    parts.devices.retain(|name, _| ["m0", "m1"].contains(&name.as_str()));
    let lds: BTreeMap<LdId, Bytes> = (0..).map(LdId).zip(lds_gib.iter().map(|gib| Bytes::gib(*gib))).collect();
    parts.devices.values_mut().for_each(|device| device.kind = DeviceKind::Mld { lds: lds.clone() });
    let switch = parts.switches.get_mut(&named("s0")).expect("the box has one");
    switch.ports.retain(|port_id, _| port_id.0 < 5);
    Topology::new(parts).expect("a consistent box")
}

impl World {
    fn new(lds_gib: &[u64]) -> World {
        let topology = topology(lds_gib);
        let (desired, observed) = (example::desired(&topology), example::observed(&topology));
        World { topology, desired, observed, backlog: Backlog::default() }
    }

    /// Takes the other device out of the pool.
    fn only_m0(&mut self) {
        self.desired.pools.value_mut(&named("main")).expect("a pool").devices = [named("m0")].into();
    }

    fn edit(&mut self, change: impl FnOnce(&mut Edit<'_>)) {
        let World { topology, desired, observed, .. } = self;
        let mut capacity = Capacity::new(topology, desired, observed);
        change(&mut Edit { topology, desired, capacity: &mut capacity });
    }

    /// Binds a new volume to a host.
    fn bind(&mut self, id: VolumeId, host: &str, spec: VolumeSpec) {
        let name = named(format!("v{}", id.0));
        self.edit(|edit| {
            edit.create(id, name, spec).expect("room");
            edit.bind(id, &named(host)).expect("it can be bound");
        });
    }

    /// Decides, from the changes and from everything.
    fn round(&mut self) -> Round {
        settle(&mut self.desired, &self.observed, Millis(0));
        let round = reconcile(&self.desired, &self.observed);
        self.backlog.follow(&self.desired, &self.observed);
        assert_eq!(self.backlog.round(), round);
        round
    }

    /// Carries out the steps of a round, and returns it.
    fn turn(&mut self) -> Round {
        let round = self.round();
        round.steps.iter().for_each(|step| self.obey(step));
        round
    }

    fn obey(&mut self, step: &Step) {
        match step.clone() {
            Step::BindVppb { vppb, device, ld_id } => {
                self.ld(&device, ld_id, |ld| {
                    *ld = LdReport { binding: LdBinding::Bound(vppb), content: Content::Used };
                });
            }
            Step::UnbindVppb { device, ld_id, .. } => {
                self.ld(&device, ld_id, |ld| ld.binding = LdBinding::Unbound);
            }
            Step::WipeLd { device, ld_id } => self.ld(&device, ld_id, |ld| ld.content = Content::Wiped),
            Step::Present { host, volume, members, .. } | Step::Join { host, volume, members } => {
                self.join(&host, volume, members);
            }
            Step::Withdraw { host, volume, members } => {
                let mut report = self.observed.hosts.get(&host).expect("a host of the box").clone();
                report.volumes.remove(&volume);
                report.left.insert(volume, members.into_iter().collect());
                self.observed.hosts.insert(host, report);
            }
            Step::ForgetLeft { host, volume, .. } => {
                let mut report = self.observed.hosts.get(&host).expect("a host of the box").clone();
                report.left.remove(&volume);
                self.observed.hosts.insert(host, report);
            }
            step => panic!("{step}"),
        }
    }

    fn ld(&mut self, device: &DeviceId, ld_id: LdId, change: impl FnOnce(&mut LdReport)) {
        let mut report = self.observed.devices.get(device).expect("a device of the box").clone();
        change(report.lds.get_mut(&ld_id).expect("an LD of the device"));
        self.observed.devices.insert(device.clone(), report);
    }

    fn join(&mut self, host: &HostId, volume: VolumeId, members: Vec<MemberLease>) {
        let mut report = self.observed.hosts.get(host).expect("a host of the box").clone();
        let view = report.volumes.entry(volume).or_default();
        for lease in members {
            let state = MemberState::Copying { left: lease.bytes };
            view.members.insert(lease.member, MemberReport { lease, state });
        }
        self.observed.hosts.insert(host.clone(), report);
    }

    /// Brings everything online that a host has of a volume.
    fn online(&mut self, host: &str, volume: VolumeId) {
        let host: HostId = named(host);
        let mut report = self.observed.hosts.get(&host).expect("a host of the box").clone();
        let members = report.volumes.get_mut(&volume).expect("it has the volume").members.values_mut();
        members.for_each(|member| member.state = MemberState::InSync);
        self.observed.hosts.insert(host, report);
    }

    /// Returns the LDs of a volume, span by span.
    fn lds(&self, volume: VolumeId) -> Vec<(DeviceId, LdId)> {
        let ld = |source: &Source| match source {
            Source::LogicalDevice { device, ld_id } => (device.clone(), *ld_id),
            source => panic!("{source}"),
        };
        self.desired.volumes[&volume].places().map(|(_, member)| ld(&member.source)).collect()
    }
}

/// Returns the LDs that a round binds.
fn bound(round: &Round) -> Vec<(DeviceId, LdId)> {
    let of = |step: &Step| match step {
        Step::BindVppb { device, ld_id, .. } => Some((device.clone(), *ld_id)),
        _ => None,
    };
    round.steps.iter().filter_map(of).collect()
}

/// Returns the volumes with an LD that waits for another one.
fn waiting(round: &Round) -> Vec<VolumeId> {
    let waiting = round.waiting.iter().filter(|waiting| matches!(waiting.reason, Reason::Alike { .. }));
    waiting.map(|waiting| waiting.volume).collect()
}

fn small() -> VolumeSpec {
    example::spec(4, LatencyClass::Cxl)
}

/// Puts both volumes on LDs of one device.
fn on_one_device(world: &mut World, hosts: [&str; 2]) {
    world.only_m0();
    world.bind(A, hosts[0], small());
    world.bind(B, hosts[1], small());
    assert_eq!(world.lds(A)[0].0, world.lds(B)[0].0);
}

#[test]
fn the_second_is_bound_when_the_first_is_online() {
    let mut world = World::new(&[4, 4]);
    on_one_device(&mut world, ["h0", "h0"]);
    let first = world.turn();
    assert_eq!((bound(&first), waiting(&first)), (world.lds(A), vec![B]));
    let text = first.waiting[0].reason.to_string();
    assert!(text.contains("is online at host h0") && text.contains("; if that does not"), "{text}");
    let presented = world.turn();
    assert!(matches!(presented.steps[..], [Step::Present { volume: A, .. }]), "{presented:?}");
    assert_eq!(waiting(&world.turn()), [B], "it is not online yet");
    world.online("h0", A);
    assert_eq!(bound(&world.turn()), world.lds(B));
    world.turn();
    world.online("h0", B);
    assert!(world.round().is_settled());
}

#[test]
fn what_a_host_can_tell_apart_does_not_wait() {
    let mut world = World::new(&[4, 4]);
    on_one_device(&mut world, ["h0", "h1"]);
    assert_eq!(bound(&world.round()).len(), 2, "different hosts");
    let mut world = World::new(&[4, 8]);
    world.only_m0();
    world.bind(B, "h0", example::spec(8, LatencyClass::Cxl));
    world.bind(A, "h0", small());
    assert_eq!(bound(&world.round()).len(), 2, "different sizes");
}

#[test]
fn a_volume_of_two_that_look_alike_is_presented_with_one_and_gets_the_other_later() {
    let mut world = World::new(&[4, 4, 8]);
    world.only_m0();
    world.bind(A, "h0", example::spec(16, LatencyClass::Cxl));
    let all = world.lds(A);
    assert_eq!(all.len(), 3, "{all:?}");
    assert_eq!(bound(&world.turn()).len(), 2, "one of 4 GiB waits");
    let presented = world.turn();
    let [Step::Present { members, .. }] = &presented.steps[..] else { panic!("{presented:?}") };
    assert_eq!(members.len(), 2);
    world.online("h0", A);
    assert_eq!(bound(&world.turn()).len(), 1);
    let joined = world.turn();
    assert!(matches!(joined.steps[..], [Step::Join { .. }]), "{joined:?}");
    world.online("h0", A);
    assert!(world.round().is_settled());
}

/// The first one never comes online.
#[test]
fn an_unbind_of_the_first_frees_the_second() {
    let mut world = World::new(&[4, 4]);
    on_one_device(&mut world, ["h0", "h0"]);
    for _ in 0..4 {
        assert_eq!(waiting(&world.turn()), [B]);
    }
    world.edit(|edit| edit.unbind(A).expect("it is bound"));
    let rounds = (0..8).take_while(|_| bound(&world.turn()).is_empty()).count();
    assert!(rounds < 8, "{:?}", world.round());
    world.turn();
    world.online("h0", B);
    assert_eq!(waiting(&world.turn()), []);
    // An agent that is silent keeps both waiting, and says so.
    let mut world = World::new(&[4, 4]);
    on_one_device(&mut world, ["h0", "h0"]);
    world.turn();
    world.observed.hosts.remove(&named("h0"));
    let silent = world.round();
    assert!(silent.steps.is_empty() && silent.waiting.len() == 2, "{silent:?}");
    assert!(silent.waiting.iter().all(|one| matches!(one.reason, Reason::AgentSilent { .. })), "{silent:?}");
}

/// Each of two mirrored volumes could have one LD of each device, with the other volume in the way of its second one.
#[test]
fn a_span_binds_none_of_its_lds_while_one_must_wait() {
    for soiled in [[0, 1], [1, 0]] {
        let mut world = World::new(&[4, 4]);
        let mirror = VolumeSpec { redundancy: Redundancy::Mirror { copies: 2 }, ..small() };
        world.bind(A, "h0", mirror.clone());
        world.bind(B, "h0", mirror);
        for (volume, at) in [A, B].into_iter().zip(soiled) {
            let (device, ld_id) = world.lds(volume)[at].clone();
            world.ld(&device, ld_id, |ld| ld.content = Content::Wiping);
        }
        let first = world.turn();
        assert_eq!(bound(&first), [world.lds(A)[1 - soiled[0]].clone()], "{soiled:?}");
        for volume in [A, B] {
            world.lds(volume).iter().for_each(|(device, ld_id)| {
                world.ld(device, *ld_id, |ld| {
                    if ld.binding == LdBinding::Unbound {
                        ld.content = Content::Wiped;
                    }
                });
            });
        }
        assert_eq!(bound(&world.turn()), [world.lds(A)[soiled[0]].clone()], "{soiled:?}");
        world.turn();
        world.online("h0", A);
        assert_eq!(bound(&world.turn()).len(), 2);
    }
}

/// A member that was never online has nothing to keep until its replacement is online, and may look like that one.
#[test]
fn a_member_that_was_never_online_does_not_wait_for_its_replacement() {
    let mut world = World::new(&[4, 4]);
    on_one_device(&mut world, ["h0", "h0"]);
    world.turn();
    world.turn();
    let view = &world.observed.hosts.get(&named("h0")).expect("it has reported").volumes[&A];
    let member = MemberId(1);
    assert!(view.may_leave(member, crate::Why::Replaced) && view.may_leave(member, crate::Why::Lost), "{view:?}");
    world.online("h0", A);
    let view = &world.observed.hosts.get(&named("h0")).expect("it has reported").volumes[&A];
    assert!(!view.may_leave(member, crate::Why::Replaced), "{view:?}");
}
