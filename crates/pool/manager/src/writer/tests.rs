// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Ends that lie: about terms, and about what they have. They stop nobody, and leave nothing behind in the store.

mod amendments;
mod refusals;

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aquifer_fabric::*;
use aquifer_state_store::MemoryStore;
use aquifer_telemetry::Counts;

use super::*;
use crate::crash::CrashPoint;
use crate::order::{Act, NotDone};
use crate::peers::{Asked, Record, Reports, SendFailure, Silent};

/// Less than a day after the epoch of terms, so that a term of a day is within what is accepted.
const NOW: Millis = Millis(1_000_000);
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
const SILENT_MS: u64 = 60_000;

fn id<T: std::str::FromStr<Err: std::fmt::Debug>>(name: &str) -> T {
    name.parse().expect("a name")
}

/// Returns two donors, two hosts, and a device behind a switch.
fn topology() -> Topology {
    let mut parts = Parts::default();
    parts.enclosures.insert(id("e0"), Enclosure { rack: id("r0") });
    for name in ["d1", "d2"] {
        let donor = Donor { enclosure: id("e0"), class: LatencyClass::Tcp, capacity: Bytes::gib(4) };
        parts.donors.insert(id(name), donor);
    }
    let mut switch = Switch { enclosure: id("e0"), ports: Default::default(), vcss: Default::default() };
    for (number, name) in ["h1", "h2"].into_iter().enumerate() {
        parts.hosts.insert(id(name), Host { enclosure: id("e0") });
        let number = u8::try_from(number).expect("two");
        switch.ports.insert(PortId(number), Port::Upstream { host: id(name) });
        let vcs = Vcs { upstream: PortId(number), vppbs: (0..2).map(VppbId).collect() };
        switch.vcss.insert(VcsId(number), vcs);
    }
    let kind = DeviceKind::Sld { capacity: Bytes::gib(1) };
    parts.devices.insert(id("m1"), Device { enclosure: id("e0"), kind });
    switch.ports.insert(PortId(2), Port::Downstream { device: Some(id("m1")) });
    parts.switches.insert(id("s1"), switch);
    Topology::new(parts).expect("consistent")
}

/// Returns one pool of everything, and one zone with both hosts.
fn desired() -> Desired {
    let mut desired = Desired::default();
    let pool = Pool { donors: [id("d1"), id("d2")].into(), devices: [id("m1")].into(), overcommit_percent: 0 };
    desired.pools.insert(id("main"), pool);
    desired.zones.insert(id("lab"), Zone { quota: Bytes::gib(4), hosts: [id("h1"), id("h2")].into() });
    desired.version = 1;
    desired
}

/// Changes what honest ends report to a manager of this term.
type Script = Box<dyn FnMut(Term, &mut Reports) + Send>;

/// What the peers of a test were sent.
type Sent = Arc<Mutex<Vec<Step>>>;

struct Scripted {
    topology: Arc<Topology>,
    script: Script,
    sent: Sent,
    records: Vec<Record>,
}

impl Peers for Scripted {
    fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.topology)
    }

    fn command_time_max(&self) -> Duration {
        Duration::ZERO
    }

    fn reports(&mut self, term: Term, _: Asked<'_>) -> Reports {
        let parts = self.topology.parts();
        let incarnation = Incarnation(1);
        let donor = |capacity| DonorReport { incarnation, term, capacity, ..DonorReport::default() };
        let host = || HostReport { incarnation, term, ..HostReport::default() };
        // The LD holds old bytes, so each manager of this pool has it wiped.
        let ld = LdReport { binding: LdBinding::Unbound, content: Content::Used };
        let device = || DeviceReport { lds: [(NO_LD, ld.clone())].into(), ..DeviceReport::default() };
        let donors = parts.donors.iter().map(|(name, one)| (name.clone(), Ok(Arc::new(donor(one.capacity)))));
        let hosts = parts.hosts.keys().map(|name| (name.clone(), Ok(Arc::new(host()))));
        let devices = parts.devices.keys().map(|name| (name.clone(), Ok(Arc::new(device()))));
        let mut reports = Reports { donors: donors.collect(), hosts: hosts.collect(), devices: devices.collect() };
        (self.script)(term, &mut reports);
        reports
    }

    fn records(&mut self) -> Vec<Record> {
        self.records.clone()
    }

    fn recorded(&mut self) {
        self.records.clear();
    }

    fn send(&mut self, commands: &[Command]) -> Vec<Result<(), SendFailure>> {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.extend(commands.iter().map(|command| command.step.clone()));
        vec![Ok(()); commands.len()]
    }
}

/// Returns a store with a pool and a zone.
fn store() -> MemoryStore {
    let store = MemoryStore::default();
    let mut manager = open(&store);
    manager.take_term(Term(0)).expect("taken");
    manager.change(&Desired::default(), &desired(), &[], NOW).expect("stored");
    store
}

fn open(store: &MemoryStore) -> ManagerStore {
    ManagerStore::open(Box::new(store.reopen()), CrashPoint::default()).expect("opened")
}

/// Starts a writer. What its peers report is honest but for what `script` changes.
fn start(store: &MemoryStore, script: impl FnMut(Term, &mut Reports) + Send + 'static) -> (Writer, Sent) {
    start_with(open(store), script)
}

/// The same with a store of its own kind.
fn start_with(store: ManagerStore, script: impl FnMut(Term, &mut Reports) + Send + 'static) -> (Writer, Sent) {
    let sent = Sent::default();
    let (topology, script) = (Arc::new(topology()), Box::new(script));
    let peers = Scripted { topology, script, sent: Arc::clone(&sent), records: Vec::new() };
    let shared = Arc::new(Shared::default());
    let writer = Writer::start(shared, store, Tenure::ForEver, Box::new(peers), SILENT_MS, NOW);
    (writer.expect("it leads"), sent)
}

fn deposed(seen: u64) -> Silent {
    Silent::Deposed { seen: Term(seen) }
}

/// Returns the events about rejected terms.
fn rejected_terms(writer: &Writer) -> Vec<String> {
    let (kept, _) = writer.shared.events.follow(0);
    kept.into_iter().filter(|event| event.kind == "TermRejected").map(|event| event.message).collect()
}

fn round(writer: &mut Writer) {
    writer.round(Vec::new(), NOW).expect("it still leads");
}

/// Any host or donor could end the leadership of each manager for good: by an honest answer, then a greater term.
#[test]
fn an_end_that_reports_and_then_claims_a_greater_term_deposes_nobody() {
    let mut asked = 0;
    let (mut writer, _) = start(&store(), move |term, reports| {
        asked += 1;
        if asked > 2 {
            reports.hosts.insert(id("h1"), Err(deposed(term.0 + asked)));
        }
    });
    let term = writer.term;
    (0..50).for_each(|_| round(&mut writer));
    assert_eq!(writer.term, term, "nothing is concluded from it");
    let answers = |name: &str| writer.observed.hosts.get(&id(name)).map(|host| host.availability.answers());
    assert_eq!((answers("h1"), answers("h2")), (Some(false), Some(true)));
    let said = rejected_terms(&writer);
    assert!(said.len() == 1 && said[0].contains("host h1") && said[0].contains("revoke its certificate"), "{said:?}");
    // The event is said once; the counter grows as long as the end claims it, and so does its alert last.
    // It was honest at the start and in the first round.
    assert_eq!(writer.shared.meters.read(Counts::default()).claims_rejected, 49);
}

/// The greatest number but one became the term of the manager plus one, which all ends stored; no manager could lead
/// after that.
#[test]
fn a_first_answer_with_an_absurd_term_poisons_nobody() {
    for absurd in [u64::MAX, u64::MAX - 1, NOW.0 + DAY_MS + 1] {
        let store = store();
        let (mut writer, _) =
            start(&store, move |_, reports| drop(reports.donors.insert(id("d1"), Err(deposed(absurd)))));
        round(&mut writer);
        assert_eq!(writer.term, Term(2), "{absurd}");
        assert!(rejected_terms(&writer)[0].contains("more than a day ahead of this manager's clock"));
        drop(writer);
        assert_eq!(start(&store, |_, _| ()).0.term, Term(3), "the next manager leads");
    }
}

/// The term of an end that is met for the first time is accepted, since the state may have been lost. It is accepted
/// once.
#[test]
fn an_end_cannot_make_a_manager_take_one_term_after_the_other() {
    let (mut writer, _) =
        start(&store(), |term, reports| drop(reports.donors.insert(id("d1"), Err(deposed(term.0 + 1000)))));
    let term = writer.term;
    assert_eq!(term, Term(2 + 1000 + 1), "a restored manager catches up");
    (0..20).for_each(|_| round(&mut writer));
    assert_eq!((writer.term, rejected_terms(&writer).len()), (term, 1));
}

#[test]
fn ends_that_are_met_for_the_first_time_are_followed_one_after_the_other() {
    let (mut writer, _) = start(&store(), |term, reports| {
        for (name, seen) in [("d1", 5000), ("d2", 90_000)].into_iter().filter(|(_, seen)| term < Term(*seen)) {
            reports.donors.insert(id(name), Err(deposed(seen)));
        }
    });
    round(&mut writer);
    assert_eq!((writer.term, rejected_terms(&writer)), (Term(90_001), vec![]));
    assert!(writer.observed.donors.values().all(|donor| donor.availability.answers()));
}

/// The store decides: an end that is right about another manager is told apart from one that lies.
#[test]
fn a_manager_whose_successor_has_taken_a_term_steps_down() {
    let store = store();
    let mut asked = 0;
    let (mut writer, _) = start(&store, move |term, reports| {
        asked += 1;
        if asked > 2 {
            reports.hosts.insert(id("h1"), Err(deposed(term.0 + 1)));
        }
    });
    round(&mut writer);
    round(&mut writer);
    let successor = open(&store).take_term(Term(0)).expect("taken");
    let stop = writer.round(Vec::new(), NOW).expect_err("it is deposed");
    assert!(matches!(stop, Stop::Deposed { seen } if seen == successor), "{stop}");
}

/// Two managers with stores of their own, by mistake: every end follows the later one. Switches would obey both, so
/// the earlier one sends them nothing.
#[test]
fn a_manager_that_only_liars_or_nobody_answers_sends_nothing_to_switches() {
    let now_lying = Arc::new(Mutex::new((false, false)));
    let script = Arc::clone(&now_lying);
    let (mut writer, sent) = start(&store(), move |term, reports| {
        let (one, all) = *script.lock().expect("no panic");
        if all {
            reports.donors.values_mut().for_each(|report| *report = Err(Silent::NoAnswer));
            reports.hosts.values_mut().for_each(|report| *report = Err(deposed(term.0 + 1)));
        } else if one {
            reports.hosts.insert(id("h1"), Err(deposed(term.0 + 1)));
        }
    });
    let mut steps = |one, all| {
        *now_lying.lock().expect("no panic") = (one, all);
        sent.lock().expect("no panic").clear();
        round(&mut writer);
        sent.lock().expect("no panic").len()
    };
    assert_eq!(steps(false, false), 1, "an LD is wiped");
    assert_eq!(steps(true, false), 1, "one that lies prevents nothing");
    assert_eq!(steps(false, true), 0);
    assert_eq!(steps(false, false), 1, "the other manager has ended, or an end answers for another reason");
}

/// Posts an order, and returns its answer.
fn order(writer: &mut Writer, act: Act) -> Result<Done, NotDone> {
    orders(writer, vec![(act, false)]).remove(0)
}

/// Posts orders that arrive at the same time, some of them dry runs, and returns their answers.
fn orders(writer: &mut Writer, acts: Vec<(Act, bool)>) -> Vec<Result<Done, NotDone>> {
    let (sender, answers): (_, Receiver<Result<Done, NotDone>>) = channel();
    let posted = acts.into_iter().map(|(act, is_dry_run)| {
        let cause = Cause { request: id("test"), traceparent: None };
        let order = Order { act, who: "amy".into(), if_match: None, is_dry_run, cause };
        let sender = sender.clone();
        Posted::Order(order, Box::new(move |outcome| sender.send(outcome).expect("the test waits")))
    });
    writer.round(posted.collect(), NOW).expect("it still leads");
    answers.try_iter().collect()
}

fn view(key: u64, member: u64, donor: &str) -> (MemberId, MemberReport) {
    let (place, source) = (Place { span: SpanId(1), shard: 0 }, Source::Slabs { donor: id(donor) });
    let lease = MemberLease { member: MemberId(member), place, source, bytes: Bytes::gib(1), token: Token(1) };
    (MemberId(key), MemberReport { lease, state: MemberState::InSync })
}

/// A host that reports a member under another's number led to a state that works until the next start, which refuses
/// it.
#[test]
fn what_a_liar_reports_is_not_adopted_and_the_next_manager_reads_the_state() {
    let store = store();
    let report = |id: u64, member: (MemberId, MemberReport)| {
        let volumes = [(VolumeId(id), VolumeReport { members: [member].into(), ..VolumeReport::default() })];
        HostReport { incarnation: Incarnation(1), volumes: volumes.into(), ..HostReport::default() }
    };
    let (mut writer, _) = start(&store, move |_, reports| {
        reports.hosts.insert(id("h1"), Ok(Arc::new(report(7, view(1, 99, "d1")))));
        reports.hosts.insert(id("h2"), Ok(Arc::new(report(8, view(3, 3, "d2")))));
        let lent = |host| LeaseReport { host: id(host), bytes: SLAB, state: LeaseState::Lent { token: Token(1) } };
        let leases = [(VolumeId(9), [(MemberId(u64::MAX), lent("h2"))].into())].into();
        let liar = DonorReport { incarnation: Incarnation(1), leases, ..DonorReport::default() };
        reports.donors.insert(id("d1"), Ok(Arc::new(liar)));
    });
    let done = order(&mut writer, Act::Adopt).expect("the others are adopted");
    let remarks = done.remarks.join("\n");
    assert!(remarks.contains("host h1 reports of volume 0000000000000007 member 1 with the lease of member 99"));
    assert!(remarks.contains("donor d1 reports of volume 0000000000000009 a member number that is never given out"));
    assert_eq!(done.volumes, [VolumeId(8)], "{remarks}");
    let lost = "volume adopted-0000000000000008 has no expiry time, labels or fixed donor now";
    assert!(remarks.contains(lost), "{remarks}");
    let again = order(&mut writer, Act::Adopt).expect("nothing is left to adopt");
    assert!(!again.remarks.join("\n").contains("no expiry time"), "it was said once: {:?}", again.remarks);
    drop(writer);
    let (again, _) = start(&store, |_, _| ());
    assert_eq!(again.desired.volumes.keys().collect::<Vec<_>>(), [&VolumeId(8)]);
}

/// Adoption disturbs nobody: what is above the quota is in use, so it is adopted, and said.
#[test]
fn what_is_above_a_quota_is_adopted_and_said() {
    let store = store();
    let (mut writer, _) = start(&store, |_, reports| {
        let mut view = VolumeReport { members: [view(1, 1, "d1")].into(), ..VolumeReport::default() };
        view.members.values_mut().for_each(|member| member.lease.bytes = Bytes::gib(5));
        let report = HostReport { volumes: [(VolumeId(7), view)].into(), ..HostReport::default() };
        reports.hosts.insert(id("h1"), Ok(Arc::new(report)));
    });
    let done = order(&mut writer, Act::Adopt).expect("adopted");
    assert_eq!(done.volumes, [VolumeId(7)]);
    assert!(done.remarks[0].contains("zone lab takes 5GiB of its quota of 4GiB"), "{:?}", done.remarks);
}

/// Whatever a bug makes of reports, a state that no manager could read is not stored.
#[test]
fn an_adoption_that_leads_to_an_inconsistent_state_is_refused() {
    let store = store();
    let (mut writer, _) = start(&store, |_, reports| {
        let view = VolumeReport { members: [view(1, 1, "d1")].into(), ..VolumeReport::default() };
        let report = HostReport { volumes: [(VolumeId(7), view)].into(), ..HostReport::default() };
        reports.hosts.insert(id("h1"), Ok(Arc::new(report)));
    });
    // A donor in two pools stands for the bug.
    let other = Pool { donors: [id("d1")].into(), ..Pool::default() };
    writer.desired.pools.insert(id("other"), other);
    let refused = order(&mut writer, Act::Adopt).expect_err("refused").to_string();
    assert!(refused.contains("donor d1 is in pool main and in pool other; report this bug"), "{refused}");
    drop(writer);
    assert!(start(&store, |_, _| ()).0.desired.volumes.is_empty());
}

#[test]
fn steps_that_come_again_in_each_round_keep_no_others_from_their_end() {
    let donor: DonorId = id("d0");
    let step = |member| Step::ForgetLease { donor: donor.clone(), volume: VolumeId(1), member: MemberId(member) };
    let few: Vec<Step> = (0..COMMANDS_MAX as u64).map(step).collect();
    assert!(in_turn(&few, 7).eq(&few), "all fit");
    let many: Vec<Step> = (0..200).map(step).collect();
    let sent: std::collections::BTreeSet<u64> = (0..4)
        .flat_map(|round| in_turn(&many, round).take(COMMANDS_MAX).cloned().collect::<Vec<_>>())
        .map(|step| match step {
            Step::ForgetLease { member, .. } => member.0,
            _ => unreachable!("all are of one kind"),
        })
        .collect();
    assert_eq!(sent.len(), 200);
    assert!(in_turn(&[], 3).eq(&[]));
}
