// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The host state's rules, and histories of managers and programs: no member is listed as left while a program may have
//! memory there.

use aquifer_agent_wire::{MemberProgress, Order, Progress, Redundancy, View};
use aquifer_fabric::{HostId, Place, Presentation, Source, SpanId, Step, Token, Why};

use super::users::MISSED_MAX;
use super::*;
use crate::processes::Process;

const VOLUME: VolumeId = VolumeId(0xa1);

fn host() -> HostId {
    "web-1".parse().unwrap()
}

fn lease(member: u64, span: u32, shard: u8) -> aquifer_fabric::MemberLease {
    aquifer_fabric::MemberLease {
        member: MemberId(member),
        place: Place { span: SpanId(span), shard },
        source: Source::Slabs { donor: format!("donor-{member}").parse().unwrap() },
        bytes: Bytes::slabs(8),
        token: Token(member + 1000),
    }
}

fn id(session: u64) -> UserId {
    UserId { volume: VOLUME, process: Process { pid: 100 + session as u32, started: 5 }, session }
}

struct Bench {
    host_state: HostState,
    sequence: u64,
    donors: BTreeMap<DonorId, (String, String)>,
}

impl Bench {
    fn new() -> Bench {
        let donor =
            |member| (format!("donor-{member}").parse().unwrap(), (format!("d:{member}"), format!("d{member}")));
        Bench { host_state: HostState::new("boot"), sequence: 0, donors: (0..200).map(donor).collect() }
    }

    fn order(&mut self, step: Step) -> Result<(), String> {
        self.sequence += 1;
        let (term, incarnation) = (Term(1), self.host_state.incarnation);
        let outcome =
            self.host_state.carry_out(&Command { term, sequence: self.sequence, incarnation, step, cause: None });
        self.host_state.settle();
        outcome
    }

    fn present(&mut self, members: Vec<aquifer_fabric::MemberLease>) {
        self.present_as(Presentation::OneRange, members);
    }

    fn present_as(&mut self, presentation: Presentation, members: Vec<aquifer_fabric::MemberLease>) {
        let (name, redundancy) = (Some("db".parse().unwrap()), aquifer_fabric::Redundancy::None);
        self.order(Step::Present { host: host(), volume: VOLUME, name, redundancy, presentation, members }).unwrap();
        assert_eq!(self.host_state.report().volumes[&VOLUME].name.as_ref().unwrap().as_str(), "db");
    }

    fn join(&mut self, members: Vec<aquifer_fabric::MemberLease>) {
        self.order(Step::Join { host: host(), volume: VOLUME, members }).unwrap();
    }

    fn leave(&mut self, member: u64, why: Why) {
        let members = vec![MemberId(member)];
        self.order(Step::Leave { host: host(), volume: VOLUME, members, why }).unwrap();
    }

    fn view(&mut self, session: u64) -> View {
        let surroundings = Surroundings { files: None, donors: &self.donors };
        self.host_state.view(id(session), &surroundings).expect("it is a user")
    }

    fn orders(&mut self, session: u64) -> Vec<(u64, Order)> {
        self.view(session).members.iter().map(|member| (member.member, member.order)).collect()
    }

    fn progress(&mut self, session: u64, member: u64, progress: Progress) {
        self.host_state.progress(id(session), &[MemberProgress { member, progress }]);
        self.host_state.settle();
    }

    fn state(&self, member: u64) -> Option<MemberState> {
        self.host_state.report().member(VOLUME, MemberId(member)).map(|member| member.state)
    }

    fn has_left(&self, member: u64) -> bool {
        self.host_state.report().has_left(VOLUME, MemberId(member))
    }
}

#[test]
fn a_program_gets_the_members_and_their_weights() {
    let mut bench = Bench::new();
    assert!(!bench.host_state.open(id(1), 0, &[]), "no volume is bound");
    let small = aquifer_fabric::MemberLease { bytes: Bytes::slabs(4), ..lease(2, 1, 0) };
    bench.present(vec![lease(1, 0, 0), small]);
    assert!(bench.host_state.open(id(1), 0, &[]));
    let view = bench.view(1);
    let members: Vec<_> = view.members.iter().map(|it| (it.address.as_str(), it.weight, it.slabs)).collect();
    assert_eq!(members, [("d:1", 16, 8), ("d:2", 8, 4)]);
    assert_eq!((view.members[0].reservation, view.redundancy, view.is_withdrawn), (1001, Redundancy::None, false));
}

#[test]
fn members_have_the_weights_of_their_spans_if_there_is_a_range_for_each() {
    for (weights, expected) in [(vec![3, 1], [3, 1, 3]), (Vec::new(), [1, 1, 1])] {
        let mut bench = Bench::new();
        let small = aquifer_fabric::MemberLease { bytes: Bytes::slabs(4), ..lease(2, 5, 0) };
        bench.present_as(Presentation::RangePerSpan { weights }, vec![lease(1, 2, 0), small, lease(3, 9, 0)]);
        assert!(bench.host_state.open(id(1), 0, &[]));
        assert_eq!(bench.view(1).members.iter().map(|it| it.weight).collect::<Vec<_>>(), expected);
    }
}

/// The third span has the place of the one that leaves, and its weight.
#[test]
fn a_span_that_leaves_has_no_place_among_the_weights() {
    let mut bench = Bench::new();
    let presentation = Presentation::RangePerSpan { weights: vec![3, 1, 7] };
    bench.present_as(presentation, vec![lease(1, 0, 0), lease(2, 1, 0)]);
    assert!(bench.host_state.open(id(1), 0, &[]));
    bench.view(1);
    bench.leave(2, Why::Shrunk);
    bench.join(vec![lease(3, 2, 0), lease(4, 3, 0)]);
    let view = bench.view(1);
    let weights: Vec<_> = view.members.iter().map(|it| (it.member, it.order, it.weight)).collect();
    let used = |(_, order, _): &&(u64, Order, u32)| *order == Order::Use;
    let used: Vec<_> = weights.iter().filter(used).map(|(member, _, weight)| (*member, *weight)).collect();
    assert_eq!(used, [(1, 3), (3, 1), (4, 7)], "{weights:?}");
}

/// A mirror's members were all let go by one order: each counted on the other, which was to leave, too.
#[test]
fn of_members_that_are_lost_together_one_stays_as_long_as_its_bytes_are_needed() {
    let mut bench = Bench::new();
    let redundancy = aquifer_fabric::Redundancy::Mirror { copies: 2 };
    let (name, presentation) = (None, Presentation::OneRange);
    let members = vec![lease(3, 0, 0), lease(4, 0, 1)];
    bench.order(Step::Present { host: host(), volume: VOLUME, name, redundancy, presentation, members }).unwrap();
    assert!(bench.host_state.open(id(1), 0, &[]));
    bench.view(1);
    let members = vec![MemberId(3), MemberId(4)];
    bench.order(Step::Leave { host: host(), volume: VOLUME, members, why: Why::Lost }).unwrap();
    assert_eq!(bench.orders(1), [(3, Order::Leave), (4, Order::Use)]);
    assert_eq!((bench.state(3), bench.state(4)), (Some(MemberState::Broken), Some(MemberState::InSync)));
}

/// Such a member stayed for ever, so its donor lent the memory on, and had no room for the replacement.
#[test]
fn a_lost_member_that_no_program_has_leaves_although_no_other_has_its_bytes() {
    let mut bench = Bench::new();
    bench.present(vec![lease(1, 0, 0)]);
    bench.leave(1, Why::Lost);
    assert!(bench.has_left(1));

    let mut bench = Bench::new();
    bench.present(vec![lease(1, 0, 0)]);
    assert!(bench.host_state.open(id(1), 0, &[]));
    bench.view(1);
    bench.leave(1, Why::Lost);
    assert_eq!((bench.has_left(1), bench.state(1)), (false, Some(MemberState::InSync)), "a program has it");
}

#[test]
fn a_member_is_complete_when_all_that_it_replaces_are_empty() {
    let mut bench = Bench::new();
    bench.present(vec![lease(1, 0, 0)]);
    assert!(bench.host_state.open(id(1), 0, &[]));
    bench.view(1);
    for member in [2, 3] {
        bench.join(vec![lease(member, 0, 0)]);
        bench.view(1);
    }
    bench.progress(1, 1, Progress::Left);
    assert!(matches!(bench.state(3), Some(MemberState::Copying { .. })), "member 2 has bytes still");
    bench.progress(1, 2, Progress::Left);
    assert_eq!(bench.state(3), Some(MemberState::InSync));
}

/// Programs drained the member for ever, and new ones got none.
#[test]
fn a_member_is_used_again_when_the_one_that_was_to_replace_it_has_left() {
    let mut bench = Bench::new();
    bench.present(vec![lease(1, 0, 0)]);
    bench.join(vec![lease(2, 0, 0)]);
    assert!(bench.host_state.open(id(1), 0, &[]));
    assert_eq!(bench.orders(1), [(2, Order::Use)]);
    bench.host_state.close(id(1));
    bench.leave(2, Why::Replaced);
    assert!(bench.has_left(2));
    assert!(bench.host_state.open(id(2), 0, &[]));
    assert_eq!(bench.orders(2), [(1, Order::Use)]);
}

/// Each report of a program woke all others, and each of those computed its view again.
#[test]
fn how_far_programs_are_is_in_no_view_and_needs_no_disk() {
    let mut bench = Bench::new();
    bench.present(vec![lease(1, 0, 0), lease(2, 1, 0)]);
    assert!(bench.host_state.open(id(1), 0, &[]));
    bench.view(1);
    let before = bench.host_state.revision();
    bench.leave(1, Why::Shrunk);
    assert!(bench.host_state.revision() > before, "it is to be drained");
    let (revision, stored) = (bench.host_state.revision(), bench.host_state.to_store());
    for slabs in [7, 5] {
        bench.progress(1, 1, Progress::Draining { slabs, is_stalled: false });
        assert_eq!(bench.state(1), Some(MemberState::Leaving { left: Bytes::slabs(slabs) }), "managers see it");
        assert_eq!((bench.host_state.revision(), bench.host_state.to_store()), (revision, stored.clone()));
    }
    bench.host_state.disconnect(id(1));
    assert_eq!(bench.host_state.to_store(), stored);
    bench.progress(1, 1, Progress::Left);
    assert!(bench.has_left(1) && bench.host_state.revision() > revision && bench.host_state.to_store() != stored);
}

#[test]
fn donors_are_where_the_manager_says_and_have_the_names_of_their_certificates() {
    let mut bench = Bench::new();
    bench.donors.clear();
    bench.present(vec![lease(1, 0, 0), lease(2, 1, 0)]);
    assert!(bench.host_state.open(id(1), 0, &[]));
    assert_eq!(bench.view(1).members, [], "nobody has said where they are");
    let of = |address: &str, identity: &str| Whereabouts { addresses: vec![address.into()], identity: identity.into() };
    let known = [("donor-1", of("[::1]:7", "uri:spiffe://x/d1")), ("donor-2", of("d:7", "dns:d2.example"))];
    bench.host_state.learn(known.into_iter().map(|(id, it)| (id.parse().unwrap(), it)).collect());
    let names: Vec<String> = bench.view(1).members.into_iter().map(|member| member.server_name).collect();
    assert_eq!(names, ["::1", "d2.example"]);
    // A manager that has lost its state knows the donors that have come back so far.
    bench.host_state.learn(BTreeMap::new());
    assert_eq!(bench.view(1).members.len(), 2);
}

#[test]
fn a_volume_shrinks_when_programs_have_moved_everything() {
    let mut bench = Bench::new();
    bench.present(vec![lease(1, 0, 0), lease(2, 1, 0)]);
    (1..3).for_each(|session| assert!(bench.host_state.open(id(session), 0, &[])));
    (1..3).for_each(|session| _ = bench.view(session));
    bench.leave(1, Why::Shrunk);
    assert_eq!(bench.orders(1), [(1, Order::Drain), (2, Order::Use)]);
    bench.progress(1, 1, Progress::Draining { slabs: 5, is_stalled: false });
    assert_eq!(bench.state(1), Some(MemberState::Leaving { left: Bytes::slabs(5) }));
    bench.progress(1, 1, Progress::Left);
    assert!(!bench.has_left(1), "the other program may have memory there");
    bench.progress(2, 1, Progress::Left);
    assert!(bench.has_left(1) && bench.state(1).is_none());
    bench.join(vec![lease(1, 0, 0)]);
    assert_eq!(bench.orders(1), [(2, Order::Use)], "what has left never joins again");
}

#[test]
fn a_member_is_replaced_when_programs_have_moved_everything() {
    let mut bench = Bench::new();
    bench.present(vec![lease(1, 0, 0)]);
    assert!(bench.host_state.open(id(1), 0, &[]));
    bench.view(1);
    bench.join(vec![lease(2, 0, 0)]);
    assert_eq!(bench.orders(1), [(1, Order::Drain), (2, Order::Use)]);
    assert!(matches!(bench.state(2), Some(MemberState::Copying { .. })));
    bench.leave(1, Why::Replaced);
    assert!(!bench.has_left(1) && bench.state(1) == Some(MemberState::InSync));
    bench.progress(1, 1, Progress::Left);
    assert_eq!(bench.state(2), Some(MemberState::InSync));
    bench.leave(1, Why::Replaced);
    assert!(bench.has_left(1));
    assert_eq!(bench.orders(1), [(2, Order::Use)]);
}

#[test]
fn without_programs_everything_is_immediate() {
    let mut bench = Bench::new();
    bench.present(vec![lease(1, 0, 0), lease(2, 1, 0)]);
    bench.join(vec![lease(3, 0, 0)]);
    assert_eq!(bench.state(3), Some(MemberState::InSync));
    bench.leave(1, Why::Replaced);
    bench.leave(2, Why::Shrunk);
    assert!(bench.has_left(1) && bench.has_left(2));
    bench.order(Step::Withdraw { host: host(), volume: VOLUME, members: vec![MemberId(3), MemberId(9)] }).unwrap();
    assert!(bench.has_left(3) && bench.has_left(9) && bench.host_state.report().volumes.is_empty());
    bench.order(Step::ForgetLeft { host: host(), volume: VOLUME, member: MemberId(9) }).unwrap();
    assert!(!bench.has_left(9));
}

#[test]
fn a_withdrawn_volume_stays_until_its_programs_have_ended() {
    let mut bench = Bench::new();
    bench.present(vec![lease(1, 0, 0)]);
    assert!(bench.host_state.open(id(1), 0, &[]));
    bench.order(Step::Withdraw { host: host(), volume: VOLUME, members: vec![MemberId(1)] }).unwrap();
    assert!(bench.view(1).is_withdrawn && !bench.has_left(1));
    assert!(!bench.host_state.open(id(2), 0, &[]), "nobody else opens it");
    assert!(bench.host_state.open(id(3), 0, &[1]), "but a forked child goes on");
    bench.host_state.close(id(3));
    bench.host_state.disconnect(id(1));
    bench.host_state.look(|_| true);
    bench.host_state.settle();
    assert!(!bench.has_left(1), "it has lost its connection, and runs");
    (0..=MISSED_MAX).for_each(|_| bench.host_state.look(|_| false));
    bench.host_state.settle();
    assert!(bench.has_left(1));
}

#[test]
fn a_restarted_agent_knows_its_programs_and_a_restarted_host_has_none() {
    let mut bench = Bench::new();
    bench.present(vec![lease(1, 0, 0), lease(2, 1, 0)]);
    assert!(bench.host_state.open(id(1), 0, &[]));
    bench.view(1);
    bench.leave(1, Why::Shrunk);
    let stored = serde_json::to_string(&bench.host_state).unwrap();
    bench.host_state = serde_json::from_str(&stored).unwrap();
    bench.host_state.start("boot");
    bench.host_state.look(|_| true);
    bench.host_state.settle();
    assert!(!bench.has_left(1), "the program has not connected again, and runs");
    let stale = Step::ForgetLeft { host: host(), volume: VOLUME, member: MemberId(1) };
    let command =
        Command { term: Term(1), sequence: bench.sequence, incarnation: Incarnation(1), step: stale, cause: None };
    assert!(bench.host_state.carry_out(&command).is_err(), "what was carried out before is not repeated");
    bench.host_state.start("another boot");
    let report = bench.host_state.report();
    assert_eq!((report.incarnation, report.term, report.volumes.len()), (Incarnation(2), Term(1), 0));
    assert_eq!(bench.host_state.admit_term(Term(0)), Err(Term(1)));
}

#[test]
fn an_agent_refuses_what_is_not_for_it() {
    let mut bench = Bench::new();
    let device = aquifer_fabric::MemberLease {
        source: Source::DynamicCapacity { device: "cxl-1".parse().unwrap() },
        ..lease(1, 0, 0)
    };
    let refused = bench.order(Step::Join { host: host(), volume: VOLUME, members: vec![device] }).unwrap_err();
    assert!(refused.contains("no dynamic capacity"), "{refused}");
    let source = Source::LogicalDevice { device: "s0.4d4".parse().unwrap(), ld_id: aquifer_fabric::LdId(0) };
    let device = aquifer_fabric::MemberLease { source, ..lease(1, 0, 0) };
    let refused = bench.order(Step::Join { host: host(), volume: VOLUME, members: vec![device] }).unwrap_err();
    assert!(refused.contains("write [cxl]"), "{refused}");
    let donor = "d".parse().unwrap();
    let refused = bench.order(Step::Release { donor, volume: VOLUME, member: MemberId(1) }).unwrap_err();
    assert!(refused.contains("an agent cannot"), "{refused}");
}

/// Managers order anything, in any order, and programs open, drain, restart their connections and end. A program may
/// have memory of every member that it was given and has not left.
#[test]
fn users_are_limited_by_program_by_uid_and_in_all() {
    let mut bench = Bench::new();
    bench.present(vec![lease(1, 0, 0)]);
    let one = |session: u64| UserId { session, ..id(1) };
    let open = |bench: &mut Bench, id: UserId, uid: u32, programs_max: usize| {
        bench.host_state.has_room(id, uid, programs_max) && bench.host_state.open(id, uid, &[])
    };
    (0..64).for_each(|session| assert!(open(&mut bench, one(session), 5, 1000)));
    assert!(!open(&mut bench, one(64), 5, 1000), "one program");
    assert!(open(&mut bench, one(63), 5, 1000), "who is there may connect again");
    assert!(open(&mut bench, id(2), 5, 1000), "another program");
    // 4 x 20 users are remembered, of which one uid has 60.
    assert!(!open(&mut bench, id(3), 5, 20) && open(&mut bench, id(3), 6, 20));
    (4..18).for_each(|session| assert!(open(&mut bench, id(session), 0, 20), "{session}"));
    assert!(!open(&mut bench, id(18), 0, 20), "all places are taken");
    bench.host_state.disconnect(one(0));
    assert!(!open(&mut bench, id(18), 0, 20), "who has disconnected and runs is still there");
    bench.host_state.disconnect(id(3));
    (0..=MISSED_MAX).for_each(|_| bench.host_state.look(|process| process != id(3).process));
    assert!(open(&mut bench, id(18), 0, 20), "who has ended makes room");
}

#[test]
fn in_every_history_no_member_leaves_while_a_program_may_have_memory_there() {
    for seed in 0..300 {
        let mut random: u64 = seed;
        let mut below = |bound: u64| {
            random = (random ^ (random >> 12)).wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(0x9e37_79b9_7f4a_7c15);
            (random >> 33) % bound
        };
        let mut bench = Bench::new();
        // What each program has: the members that it was given with `Use` and has not left.
        let mut has: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        bench.present(vec![lease(0, 0, 0), lease(1, 1, 0)]);
        for step in 0..150 {
            let (session, member) = (below(4), below(12));
            match below(10) {
                0 => {
                    _ = bench.order(Step::Join {
                        host: host(),
                        volume: VOLUME,
                        members: vec![lease(member, below(3) as u32, 0)],
                    })
                }
                1 => bench.leave(member, Why::Shrunk),
                2 => bench.leave(member, Why::Replaced),
                3 if below(10) == 0 => bench.leave(member, Why::Unbound),
                4 if bench.host_state.open(id(session), 0, &[]) => _ = has.entry(session).or_default(),
                5 if below(3) == 0 => {
                    bench.host_state.disconnect(id(session));
                    (0..=MISSED_MAX).for_each(|_| bench.host_state.look(|process| process != id(session).process));
                    bench.host_state.settle();
                    has.remove(&session);
                }
                6 => {
                    let stored = serde_json::to_string(&bench.host_state).unwrap();
                    bench.host_state = serde_json::from_str(&stored).unwrap();
                    bench.host_state.start("boot");
                    bench.host_state.look(|process| has.keys().any(|session| id(*session).process == process));
                    bench.host_state.settle();
                }
                _ => {
                    let Some(held) = has.get_mut(&session) else { continue };
                    for (member, order) in bench.orders(session) {
                        match order {
                            Order::Use => _ = held.insert(member),
                            Order::Drain | Order::Leave if below(2) == 0 => {
                                held.remove(&member);
                                bench.progress(session, member, Progress::Left);
                            }
                            Order::Drain | Order::Leave => {}
                        }
                    }
                }
            }
            for (session, held) in &has {
                for member in held {
                    assert!(
                        !bench.has_left(*member),
                        "seed {seed}, step {step}: program {session} has member {member}"
                    );
                }
            }
        }
    }
}
