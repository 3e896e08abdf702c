// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Changes keep the desired state consistent, are made as a whole, and give a reason when they are refused.

use super::*;
use crate::desired::Corrupt;
use crate::example::{desired, id, memory_box, observed, racks, spec};
use crate::id::{Millis, Term, Token};
use crate::observed::{HostReport, LeaseReport, LeaseState, MemberReport, MemberState, VolumeReport};
use crate::reconcile::MemberLease;
use crate::topology::LatencyClass;
use crate::volume::{Presentation, Redundancy};

const V: VolumeId = VolumeId(1);

/// Does something to a desired state, and checks it afterwards.
fn edit<T>(topology: &Topology, desired: &mut Desired, work: impl FnOnce(&mut Edit<'_>) -> T) -> T {
    let observed = observed(topology);
    let mut capacity = Capacity::new(topology, desired, &observed);
    let mut edit = Edit { topology, desired, capacity: &mut capacity };
    let result = work(&mut edit);
    desired.check().expect("a consistent state");
    result
}

#[test]
fn a_host_of_the_box_gets_one_device_or_all_22() {
    let topology = memory_box();
    let mut desired = desired(&topology);
    edit(&topology, &mut desired, |edit| {
        edit.create(V, id("all"), spec(22 * 256, LatencyClass::Cxl)).expect("there is room");
        edit.bind(V, &id("h0")).expect("h0 sees the switch");
        let refusal = edit.create(VolumeId(2), id("more"), spec(1, LatencyClass::Cxl)).expect_err("nothing is left");
        assert!(refusal.to_string().contains("pool main has 0B free"), "{refusal}");
    });
    let volume = &desired.volumes[&V];
    assert_eq!((volume.spans.len(), volume.usable_bytes()), (22, Bytes::gib(22 * 256)));
    let vppbs: BTreeSet<_> = volume.places().map(|(_, member)| member.vppb.clone().expect("a vPPB")).collect();
    assert_eq!(vppbs.len(), 22);
    edit(&topology, &mut desired, |edit| {
        edit.shrink(V, Bytes::gib(256)).expect("smaller");
        edit.grow(V, Bytes::gib(512)).expect_err("what leaves is not free yet");
    });
    let volume = &desired.volumes[&V];
    assert_eq!((volume.spans.len(), volume.leaving.len()), (1, 21));
    assert!(volume.leaving.values().all(|leaving| leaving.why == Why::Shrunk));
}

#[test]
fn changes_are_idempotent() {
    let topology = racks(8);
    let mut desired = desired(&topology);
    edit(&topology, &mut desired, |edit| {
        edit.create(V, id("v"), spec(8, LatencyClass::Tcp)).expect("room");
        edit.bind(V, &id("h0")).expect("bound");
        let version = edit.desired.version;
        edit.bind(V, &id("h0")).expect("it is");
        edit.grow(V, Bytes::gib(8)).expect("it is");
        edit.shrink(V, Bytes::gib(8)).expect("it is");
        edit.drain(&id("d0000"), false);
        assert_eq!(edit.desired.version, version);
        edit.unbind(V).expect("bound");
        let version = edit.desired.version;
        edit.unbind(V).expect("it is unbound");
        assert_eq!(edit.desired.version, version);
    });
}

type Try = fn(&mut Edit<'_>) -> Result<(), Refusal>;

#[test]
fn a_refused_change_changes_nothing() {
    let topology = racks(8);
    let mut desired = desired(&topology);
    desired.zones.value_mut(&id("lab")).expect("listed").hosts.remove(&id("h1"));
    edit(&topology, &mut desired, |edit| edit.create(V, id("v"), spec(8, LatencyClass::Tcp)).expect("room"));
    let before = desired.clone();
    let cases: [(&str, Try); 9] = [
        ("there is already a volume v;", |edit| edit.create(VolumeId(2), id("v"), spec(1, LatencyClass::Tcp))),
        ("id was drawn before", |edit| edit.create(V, id("w"), spec(1, LatencyClass::Tcp))),
        ("volume of 0B", |edit| edit.create(VolumeId(2), id("w"), spec(0, LatencyClass::Tcp))),
        ("at class rdma or faster", |edit| edit.create(VolumeId(2), id("w"), spec(1, LatencyClass::Rdma))),
        ("no pool other", |edit| {
            edit.create(VolumeId(2), id("w"), VolumeSpec { pool: id("other"), ..spec(1, LatencyClass::Tcp) })
        }),
        ("no zone other", |edit| {
            edit.create(VolumeId(2), id("w"), VolumeSpec { zone: id("other"), ..spec(1, LatencyClass::Tcp) })
        }),
        ("h1 is not in zone lab", |edit| edit.bind(V, &id("h1"))),
        ("the pool has no host h9", |edit| edit.bind(V, &id("h9"))),
        ("no volume 0000000000000009", |edit| edit.grow(VolumeId(9), Bytes::gib(1))),
    ];
    for (what, change) in cases {
        let refusal = edit(&topology, &mut desired, change).expect_err(what).to_string();
        assert!(refusal.contains(what) && refusal.contains(';'), "{refusal}");
        assert_eq!(desired, before, "{what}");
    }
}

#[test]
fn an_unbound_volume_that_its_host_still_has_is_waited_for_with_a_reason() {
    let topology = racks(1);
    let mut desired = desired(&topology);
    edit(&topology, &mut desired, |edit| {
        edit.create(V, id("v"), spec(64, LatencyClass::Tcp)).expect("all there is");
        edit.bind(V, &id("h0")).expect("bound");
    });
    let mut observed = observed(&topology);
    let (place, member) = desired.volumes[&V].places().next().expect("one member");
    let lease =
        MemberLease { member: member.id, place, source: member.source.clone(), bytes: member.bytes, token: Token(1) };
    let members = [(member.id, MemberReport { lease, state: MemberState::InSync })].into();
    let view =
        VolumeReport { name: None, redundancy: Redundancy::None, presentation: Presentation::default(), members };
    let empty = observed.hosts.get(&id("h0")).expect("it reports").clone();
    observed.hosts.insert(id("h0"), HostReport { volumes: [(V, view)].into(), ..empty.clone() });
    edit(&topology, &mut desired, |edit| edit.unbind(V)).expect("unbound");
    let waiting = crate::reconcile::reconcile(&desired, &observed).waiting;
    assert_eq!((desired.called(V), desired.called(VolumeId(9))), ("v".into(), "0000000000000009".into()));
    let reasons: Vec<String> = waiting.iter().map(|waiting| waiting.reason.to_string()).collect();
    assert_eq!(reasons, ["host h0 still has it; it leaves when the programs that use it have ended"]);
    observed.hosts.insert(id("h0"), empty);
    assert_eq!(crate::reconcile::reconcile(&desired, &observed).waiting, []);
}

#[test]
fn an_unbound_volume_keeps_its_room_and_gets_new_members() {
    let topology = racks(1);
    let mut desired = desired(&topology);
    edit(&topology, &mut desired, |edit| {
        edit.create(V, id("v"), spec(64, LatencyClass::Tcp)).expect("all there is");
        edit.bind(V, &id("h0")).expect("bound");
        edit.unbind(V).expect("unbound");
        edit.create(VolumeId(2), id("w"), spec(1, LatencyClass::Tcp)).expect_err("reserved for v");
        edit.bind(V, &id("h1")).expect("bound again");
    });
    let volume = &desired.volumes[&V];
    assert_eq!(volume.leaving.keys().collect::<Vec<_>>(), [&MemberId(1)]);
    assert_eq!(volume.places().map(|(_, member)| member.id).collect::<Vec<_>>(), [MemberId(2)]);
    let refusal = edit(&topology, &mut desired, |edit| edit.release(V)).expect_err("it is bound");
    assert!(
        refusal.to_string().starts_with("volume v is bound to host h1; unbind it first, or release it with --unbind")
    );
    assert_eq!(desired.volumes[&V].host, Some(id("h1")), "a refusal changes nothing");
    edit(&topology, &mut desired, |edit| {
        edit.unbind(V).expect("unbound");
        edit.release(V).expect("released");
    });
    assert_eq!(desired.volumes[&V].leaving.len(), 2, "nothing that may be lent is dropped");
    edit(&topology, &mut desired, |edit| {
        edit.create(VolumeId(2), id("v"), spec(1, LatencyClass::Tcp)).expect_err("not given back yet");
    });
}

/// A store that was restored does not know which ids were given out since its backup, and a donor that is down cannot
/// say it.
#[test]
fn new_members_of_a_stored_volume_get_ids_that_no_earlier_term_has_given_out() {
    let topology = racks(2);
    let mut backup = desired(&topology);
    edit(&topology, &mut backup, |edit| {
        edit.create(V, id("v"), spec(4, LatencyClass::Tcp)).expect("there is room");
        edit.bind(V, &id("h0")).expect("bound");
    });
    let changes: [fn(&mut Edit<'_>); 4] = [
        |edit| edit.grow(V, Bytes::gib(8)).expect("there is room"),
        |edit| edit.unbind(V).expect("unbound"),
        |edit| {
            let member = edit.desired.volumes[&V].places().next().expect("one").1.id;
            edit.replace(V, member, Why::Replaced, &Observed::default()).expect("there is room elsewhere");
        },
        |edit| {
            edit.unbind(V).expect("unbound");
            edit.shrink(V, Bytes::gib(2)).expect("smaller");
        },
    ];
    let ids = |desired: &Desired| desired.volumes[&V].places().map(|(_, member)| member.id).collect::<BTreeSet<_>>();
    for change in changes {
        let mut given = ids(&backup);
        for term in [Term(1_700_000_000_000), Term(1_700_000_060_000)] {
            let mut state = Desired { first_member: term.first_member(), ..backup.clone() };
            edit(&topology, &mut state, change);
            let new: BTreeSet<MemberId> = ids(&state).difference(&ids(&backup)).copied().collect();
            assert!(!new.is_empty() && new.is_disjoint(&given), "{new:?} of {given:?}");
            given.extend(new);
            state.check().expect("a consistent state");
        }
    }
}

/// Returns the report of a host that has all members of a volume.
fn joined(volume: &Volume) -> VolumeReport {
    let members = volume.places().map(|(place, member)| {
        let (source, bytes, token) = (member.source.clone(), member.bytes, Token(1));
        let lease = MemberLease { member: member.id, place, source, bytes, token };
        (member.id, MemberReport { lease, state: MemberState::InSync })
    });
    let (redundancy, presentation) = (volume.spec.redundancy, Presentation::OneRange);
    VolumeReport { name: None, redundancy, presentation, members: members.collect() }
}

/// A donor that is restarted at once is never silent. It has lost the slabs that it had lent, and its report shows
/// that.
#[test]
fn a_joined_member_that_its_donor_does_not_list_is_replaced() {
    let topology = racks(8);
    let mut desired = desired(&topology);
    edit(&topology, &mut desired, |edit| {
        let two = VolumeSpec { redundancy: Redundancy::Mirror { copies: 2 }, ..spec(8, LatencyClass::Tcp) };
        edit.create(V, id("v"), two).expect("room");
        edit.bind(V, &id("h0")).expect("bound");
    });
    let volume = desired.volumes[&V].clone();
    let mut observed = observed(&topology);
    observed.hosts.value_mut(&id("h0")).expect("it reports").volumes.insert(V, joined(&volume));
    let mut members = volume.places().map(|(_, member)| member);
    let (lent, restarted) = (members.next().expect("two"), members.next().expect("two"));
    let Source::Slabs { donor } = &lent.source else { panic!("on a donor") };
    let lease = LeaseReport { host: id("h0"), bytes: lent.bytes, state: LeaseState::Lent { token: Token(1) } };
    observed.donors.value_mut(donor).expect("it reports").leases.insert(V, [(lent.id, lease)].into());
    let mut capacity = Capacity::new(&topology, &desired, &observed);
    let mut edit = Edit { topology: &topology, desired: &mut desired, capacity: &mut capacity };
    assert_eq!(edit.repair(&observed, Millis(0), 1000), []);
    let volume = &desired.volumes[&V];
    assert_eq!(volume.leaving.keys().collect::<Vec<_>>(), [&restarted.id]);
    assert_eq!(volume.leaving[&restarted.id].why, Why::Lost);
    assert!(volume.member(lent.id).is_some(), "the other copy stays");
}

/// A volume took all of the pool's only donor. While the donor has its slabs, there is no other place for them; once
/// the donor has restarted without them, its memory is free, and is promised to nobody else.
#[test]
fn what_the_only_donor_has_lost_is_placed_there_again() {
    let topology = racks(1);
    let mut desired = desired(&topology);
    desired.zones.value_mut(&id("lab")).expect("listed").quota = Bytes::gib(64);
    edit(&topology, &mut desired, |edit| {
        edit.create(V, id("v"), spec(64, LatencyClass::Tcp)).expect("all there is");
        edit.bind(V, &id("h0")).expect("bound");
    });
    let mut observed = observed(&topology);
    let volume = desired.volumes[&V].clone();
    observed.hosts.value_mut(&id("h0")).expect("it reports").volumes.insert(V, joined(&volume));
    let donor = id("d0000");
    let replace = |desired: &mut Desired, observed: &Observed, member| {
        let mut capacity = Capacity::new(&topology, desired, observed);
        let new =
            Edit { topology: &topology, desired, capacity: &mut capacity }.replace(V, member, Why::Lost, observed);
        assert_eq!(capacity, Capacity::new(&topology, desired, observed), "nothing is counted twice, or no more");
        desired.check().expect("a consistent state");
        new
    };
    for (state, is_placed) in [
        (Some(LeaseState::Lent { token: Token(1) }), false),
        (Some(LeaseState::Wiping { left: Bytes::gib(1) }), false),
        (Some(LeaseState::Released), true),
        (None, true),
    ] {
        let leases = state.map(|state| (MemberId(1), LeaseReport { host: id("h0"), bytes: Bytes::gib(64), state }));
        let report = observed.donors.value_mut(&donor).expect("it reports");
        report.leases = [(V, leases.into_iter().collect())].into();
        let mut after = desired.clone();
        match replace(&mut after, &observed, MemberId(1)) {
            Ok(new) => assert!(is_placed && new == MemberId(2), "{state:?}"),
            Err(refusal) => {
                assert!(!is_placed && after == desired, "{state:?}: {refusal}");
                let text = "pool main has no 64GiB in one place at class tcp or faster, other than on donor d0000; add \
                            donors, or release volumes";
                assert_eq!(refusal.to_string(), text);
            }
        }
    }
    for member in 1..4 {
        replace(&mut desired, &observed, MemberId(member)).expect("its room is free");
        let volume = &desired.volumes[&V];
        assert!(volume.leaving[&MemberId(member)].is_gone);
        let new = volume.member(MemberId(member + 1)).expect("a new member").1;
        assert_eq!((&new.source, new.bytes), (&Source::Slabs { donor: donor.clone() }, Bytes::gib(64)));
        assert_eq!(desired.zone_bytes(&id("lab")), Bytes::gib(64));
        let text = serde_json::to_string(&desired).expect("JSON");
        assert_eq!(serde_json::from_str::<Desired>(&text).expect("the same"), desired);
        // The host has the new member, and the donor restarts again.
        observed.hosts.value_mut(&id("h0")).expect("it reports").volumes.insert(V, joined(volume));
    }
    observed.donors.value_mut(&donor).expect("it reports").availability = crate::observed::Availability::Draining;
    replace(&mut desired, &observed, MemberId(4)).expect_err("the donor wants its memory back");
    // A host that has not joined it proves nothing: the donor may not have been asked yet.
    observed.donors.value_mut(&donor).expect("it reports").availability = crate::observed::Availability::Up;
    observed.hosts.value_mut(&id("h0")).expect("it reports").volumes.clear();
    replace(&mut desired, &observed, MemberId(4)).expect_err("it may still be granted");
}

#[test]
fn a_changed_state_of_another_format_or_cut_is_refused() {
    let topology = racks(8);
    let mut desired = desired(&topology);
    edit(&topology, &mut desired, |edit| edit.create(V, id("v"), spec(8, LatencyClass::Tcp)).expect("room"));
    let text = serde_json::to_string(&desired).expect("JSON");
    assert_eq!(serde_json::from_str::<Desired>(&text).expect("the same"), desired);
    assert!(serde_json::from_str::<Desired>(&text[..text.len() - 9]).is_err(), "cut short");
    let damaged = |damage: fn(&mut Desired)| {
        let mut desired = desired.clone();
        damage(&mut desired);
        desired.check().expect_err("damage")
    };
    assert_eq!(damaged(|desired| desired.format = 2), Corrupt::Format { found: 2 });
    assert_eq!(damaged(|desired| desired.zones.clear()), Corrupt::Unlisted { volume: V });
    assert_eq!(
        damaged(|desired| desired.volumes.change(V, |one| one.next_member = MemberId(1)).unwrap()),
        Corrupt::Member { volume: V, member: MemberId(1) }
    );
    assert_eq!(
        damaged(|desired| desired.volumes.change(V, |one| one.spans[0].members.clear()).unwrap()),
        Corrupt::Span { volume: V }
    );
}

/// Returns a specification that only one donor may meet.
fn on(donor: &str, gib: u64) -> VolumeSpec {
    VolumeSpec { donor: Some(id(donor)), ..spec(gib, LatencyClass::Tcp) }
}

#[test]
fn a_volume_of_one_donor_is_placed_there_and_stays() {
    let topology = racks(8);
    let mut desired = desired(&topology);
    let sources = |desired: &Desired| {
        let members = desired.volumes[&V].places().map(|(_, member)| member.source.to_string());
        members.collect::<BTreeSet<String>>()
    };
    edit(&topology, &mut desired, |edit| {
        // The emptiest donors are others.
        edit.create(V, id("v"), on("d0003", 40)).expect("room");
        edit.grow(V, Bytes::gib(60)).expect("room");
    });
    assert_eq!(sources(&desired), ["donor d0003".to_owned()].into());
    edit(&topology, &mut desired, |edit| {
        let full = edit.grow(V, Bytes::gib(65)).expect_err("more than it has").to_string();
        assert!(full.starts_with("donor d0003 has 4GiB free, but 5GiB was requested; "), "{full}");
        let full = edit.create(VolumeId(2), id("w"), on("d0003", 5)).expect_err("more than is left").to_string();
        assert!(full.starts_with("donor d0003 has 4GiB free"), "{full}");
        edit.create(VolumeId(2), id("w"), on("d0003", 4)).expect("all that is left");
        let outside = edit.create(VolumeId(3), id("x"), on("d0099", 1)).expect_err("there is no such donor");
        assert!(
            outside.to_string().starts_with("donor d0099 is not in pool main, or has not registered; "),
            "{outside}"
        );
        let fast = VolumeSpec { class: LatencyClass::Rdma, ..on("d0004", 1) };
        let slow = edit.create(VolumeId(3), id("x"), fast).expect_err("it is slower").to_string();
        assert!(slow.starts_with("donor d0004 has class tcp, which is slower than rdma; "), "{slow}");
        edit.bind(V, &id("h0")).expect("bound");
    });
    // A drain waits: nobody else may have it.
    edit(&topology, &mut desired, |edit| edit.drain(&id("d0003"), true));
    let observed = observed(&topology);
    let mut capacity = Capacity::new(&topology, &desired, &observed);
    let mut edit = Edit { topology: &topology, desired: &mut desired, capacity: &mut capacity };
    let unrepaired = edit.repair(&observed, Millis(0), 1000);
    assert!(!unrepaired.is_empty());
    assert!(unrepaired.iter().all(|one| matches!(one.refusal, Refusal::NotElsewhere { .. })), "{unrepaired:?}");
    assert_eq!(sources(&desired), ["donor d0003".to_owned()].into());
}

#[test]
fn an_unbound_volume_shrinks_to_what_is_asked_for() {
    let topology = racks(8);
    let mut desired = desired(&topology);
    edit(&topology, &mut desired, |edit| {
        edit.create(V, id("v"), spec(8, LatencyClass::Tcp)).expect("room");
        edit.grow(V, Bytes::gib(12)).expect("room");
        edit.shrink(V, Bytes::gib(10)).expect("smaller");
    });
    let sizes = |desired: &Desired| desired.volumes[&V].places().map(|(_, member)| member.bytes).collect::<Vec<_>>();
    assert_eq!(sizes(&desired), [Bytes::gib(8), Bytes::gib(2)]);
    edit(&topology, &mut desired, |edit| edit.shrink(V, Bytes::gib(3)).expect("smaller"));
    assert_eq!(sizes(&desired), [Bytes::gib(3)]);
    assert_eq!(desired.zone_bytes(&id("lab")), Bytes::gib(3));
    // A host has it: what it holds may be anywhere in it.
    edit(&topology, &mut desired, |edit| {
        edit.bind(V, &id("h0")).expect("bound");
        edit.shrink(V, Bytes::gib(1)).expect("as far as whole spans go");
    });
    assert_eq!(sizes(&desired), [Bytes::gib(3)]);
}

fn weighted(weights: &[u8], spec: VolumeSpec) -> VolumeSpec {
    VolumeSpec { presentation: Presentation::RangePerSpan { weights: weights.to_vec() }, ..spec }
}

#[test]
fn weights_that_would_have_no_effect_are_refused() {
    let topology = racks(8);
    let mut desired = desired(&topology);
    edit(&topology, &mut desired, |edit| {
        let striped = VolumeSpec { width: 2, ..spec(8, LatencyClass::Tcp) };
        edit.create(V, id("v"), weighted(&[3, 1], striped.clone())).expect("two donors");
        for weights in [&[0, 1][..], &[17], &[1; 17]] {
            let refused = edit.create(VolumeId(2), id("w"), weighted(weights, striped.clone()));
            assert_eq!(refused, Err(Refusal::Weights));
            let changed = edit.change_spec(V, |spec| *spec = weighted(weights, spec.clone()));
            assert_eq!(changed, Err(Refusal::Weights));
        }
        let redundancy = Redundancy::Mirror { copies: 2 };
        let mirror = VolumeSpec { redundancy, ..striped };
        let refused = edit.create(VolumeId(2), id("w"), weighted(&[3, 1], mirror.clone()));
        assert_eq!(refused, Err(Refusal::WeightsNotRedundant { redundancy }));
        edit.create(VolumeId(2), id("w"), weighted(&[], mirror)).expect("evenly over all members");
        edit.change_spec(V, |spec| spec.presentation = Presentation::OneRange).expect("when it is bound next");
    });
}

/// The kernel interleaves the memory of devices, by weights of the whole host.
#[test]
fn a_volume_with_weights_is_on_donors_only() {
    let topology = memory_box();
    let mut desired = desired(&topology);
    edit(&topology, &mut desired, |edit| {
        let refused = edit.create(V, id("v"), weighted(&[3, 1], spec(1, LatencyClass::Cxl))).expect_err("devices only");
        assert!(matches!(refused, Refusal::WeightsNeedDonors { free: Bytes::ZERO, .. }), "{refused}");
        assert!(refused.to_string().contains("; leave out the weights to use devices, too"), "{refused}");
        edit.create(V, id("v"), weighted(&[], spec(300, LatencyClass::Cxl))).expect("a range for each device");
        let refused =
            edit.change_spec(V, |spec| *spec = weighted(&[3, 1], spec.clone())).expect_err("it is on devices");
        assert!(matches!(refused, Refusal::WeightsOnDevice { .. }) && refused.to_string().contains("; "), "{refused}");
        edit.change_spec(V, |spec| spec.presentation = Presentation::OneRange).expect("one range of both");
    });
}

#[test]
fn labels_have_bounds() {
    let topology = racks(1);
    let mut desired = desired(&topology);
    edit(&topology, &mut desired, |edit| {
        let labelled = |count: usize, bytes: usize| {
            let labels = (0..count).map(|number| (format!("l{number}"), "x".repeat(bytes))).collect();
            VolumeSpec { labels, ..spec(1, LatencyClass::Tcp) }
        };
        edit.create(V, id("v"), labelled(16, 128)).expect("as many as may be");
        for (count, bytes) in [(17, 1), (1, 129)] {
            assert_eq!(edit.create(VolumeId(2), id("w"), labelled(count, bytes)), Err(Refusal::Labels));
            let changed = edit.change_spec(V, |spec| spec.labels = labelled(count, bytes).labels);
            assert_eq!(changed, Err(Refusal::Labels));
        }
    });
}

#[test]
fn a_label_is_text_without_control_characters() {
    let refused = |name: &str, value: &str| {
        let labels = [(name.to_owned(), value.to_owned())].into();
        crate::placement::check_labels(&VolumeSpec { labels, ..spec(1, LatencyClass::Tcp) }) == Err(Refusal::Labels)
    };
    assert!(!refused("fm-vppb", "h1/3") && !refused("name", "für Köche, 猫") && !refused("", ""));
    for control in ["\n", "\r", "\0", "\u{1b}[2J", "\u{7f}", "\u{9b}"] {
        assert!(refused(control, "x") && refused("x", control), "{control:?}");
    }
}
