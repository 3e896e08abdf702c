// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A real donor with a real control channel: what a fabric manager reserves, who gets it, and what becomes of it.

mod certificates;
mod peer;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aquifer_control::{
    Deposed, End, EndId, Keeper, KeeperSettings, Kind, NotSent, Patterns, Query, Refused, Registrar, RegistrarSettings,
    Registration, Report, Unheard,
};
use aquifer_donor::{Donor, EVERY_BYTE, Files, Managed, Security, Settings};
use aquifer_fabric::{
    Availability, Bytes, Command, DonorReport, HostReport, Incarnation, LeaseState, MemberId, Step, Term, VolumeId,
};
use aquifer_wire::{BorrowerId, EVERY_LEASE, Figure, Message, RESERVATION_TOKENS, Refusal};
use certificates::{Pair, good, write};
use peer::{Peer, settings, start};

const VOLUME: VolumeId = VolumeId(7);
/// Longer than anything takes on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A host's agent that has no memory.
struct Idle;

impl End for Idle {
    fn report(&mut self, _: &Query) -> Result<Report, Deposed> {
        Ok(Report::Host(HostReport::default()))
    }

    fn carry_out(&mut self, _: &Command) -> Result<(), Refused> {
        Err(Refused::new("it does nothing"))
    }
}

/// A manager with two registered hosts, whose names are those of two tenants.
struct Controller {
    registrar: Registrar,
    _agents: Vec<Keeper>,
    term: u64,
    sequence: u64,
    drained: BTreeSet<aquifer_donor::DonorId>,
}

fn other() -> &'static Files {
    static OTHER: std::sync::OnceLock<Files> = std::sync::OnceLock::new();
    OTHER.get_or_init(|| good().authority.sign("other", 2100, &good().authority))
}

impl Controller {
    fn start(pair: &Pair, term: u64) -> Controller {
        let settings = RegistrarSettings {
            listen: ([127, 0, 0, 1], 0).into(),
            tls: Some(pair.donor.clone()),
            revocations: None,
            donors: Patterns::default(),
            hosts: Patterns(vec!["dns:borrower".into(), "dns:other".into()]),
        };
        let registrar = Registrar::start(settings, Vec::new(), Box::new(|_| ())).expect("it starts");
        let agent = |id: &str, files: &Files| {
            let registration = Registration {
                kind: Kind::Host,
                id: id.into(),
                addresses: Vec::new(),
                capacity: Bytes::ZERO,
                labels: Default::default(),
            };
            let managers = vec![registrar.address().to_string().parse().expect("an address")];
            let settings = KeeperSettings { managers, tls: Some(files.clone()), registration };
            let end: Arc<Mutex<dyn End>> = Arc::new(Mutex::new(Idle));
            Keeper::start(settings, &end, Box::new(|_| ())).expect("it starts")
        };
        let agents = vec![agent("h1", &pair.borrower), agent("h2", other())];
        Controller { registrar, _agents: agents, term, sequence: 0, drained: BTreeSet::new() }
    }

    /// The settings of a donor of this manager.
    fn donor(&self, slabs: u64, state: Option<PathBuf>) -> Settings {
        let managed = Managed {
            managers: vec![self.registrar.address().to_string().parse().expect("an address")],
            id: "d1".parse().expect("a name"),
            addresses: Vec::new(),
            labels: Default::default(),
            tls: None,
            state,
        };
        Settings { managed: Some(managed), security: Security::Tls(good().donor.clone()), ..settings(slabs) }
    }

    fn ask(&self) -> Result<DonorReport, Unheard> {
        let id = EndId::new(Kind::Donor, "d1").expect("a name");
        match self.registrar.query(Term(self.term), &self.drained).remove(&id) {
            Some(Ok(Report::Donor(report))) => Ok(report),
            Some(Err(unheard)) => Err(unheard),
            None => Err(Unheard::Apart),
            other => panic!("not a donor's report: {other:?}"),
        }
    }

    /// Asks for reports until one is as expected.
    fn until(&self, what: &str, holds: impl Fn(&DonorReport) -> bool) -> DonorReport {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let registered = self.registrar.connected().len() == 3;
            let report = if registered { self.ask() } else { Err(Unheard::Apart) };
            match report {
                Ok(report) if holds(&report) => return report,
                other => assert!(Instant::now() < deadline, "{what}: {other:?}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn send(&mut self, step: Step) -> Result<(), String> {
        let incarnation = self.until("it reports", |_| true).incarnation;
        self.send_to(incarnation, step)
    }

    fn send_to(&mut self, incarnation: Incarnation, step: Step) -> Result<(), String> {
        self.sequence += 1;
        let command = Command { term: Term(self.term), sequence: self.sequence, incarnation, step, cause: None };
        match self.registrar.send(&[command]).remove(0) {
            Ok(()) => Ok(()),
            Err(NotSent::Refused(refused)) => Err(refused.why),
            Err(NotSent::Lost | NotSent::Pending) => panic!("the command is lost"),
        }
    }

    /// Reserves slabs for a member. A host that has registered this moment may not be known yet.
    fn reserve(&mut self, host: &str, member: u64, slabs: u64) -> Result<(), String> {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            match self.send(grant(host, member, slabs)) {
                Err(why) if why.contains("is not registered") && Instant::now() < deadline => {}
                outcome => return outcome,
            }
        }
    }

    fn token(&self, member: u64) -> u64 {
        let report = self.until("it is lent", |report| report.lease(VOLUME, MemberId(member)).is_some());
        match report.lease(VOLUME, MemberId(member)).expect("it is listed").state {
            LeaseState::Lent { token } => token.0,
            state => panic!("not lent: {state:?}"),
        }
    }
}

fn id() -> aquifer_donor::DonorId {
    "d1".parse().expect("a name")
}

fn grant(host: &str, member: u64, slabs: u64) -> Step {
    let (donor, host) = (id(), host.parse().expect("a name"));
    Step::Grant { donor, host, volume: VOLUME, member: MemberId(member), bytes: Bytes::slabs(slabs) }
}

fn release(member: u64) -> Step {
    Step::Release { donor: id(), volume: VOLUME, member: MemberId(member) }
}

fn forget(member: u64) -> Step {
    Step::ForgetLease { donor: id(), volume: VOLUME, member: MemberId(member) }
}

/// A borrower's number within a reservation, or outside of all.
fn within(token: u64, number: u64) -> u128 {
    u128::from(token) << 64 | u128::from(number)
}

const OUTSIDE: u64 = RESERVATION_TOKENS;

fn refusal(peer: &mut Peer, range: u64) -> Refusal {
    match peer.ask(Message::Grant { range: aquifer_wire::RangeIndex(range) }, &[]).0 {
        Message::Error { refusal } => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

fn greeting_is_refused(files: &Files, donor: &Donor, who: u128, expected: Refusal) {
    let mut peer = Peer::connect_with(files, donor.address());
    peer.send(Message::Hello { oldest: 1, newest: 1, borrower: aquifer_wire::BorrowerId(who) }, &[]);
    peer.expect_the_end(expected);
}

#[test]
fn what_is_reserved_is_the_tenants_and_nobody_elses() {
    let mut manager = Controller::start(good(), 1);
    let (donor, _) = start(manager.donor(8, None));
    manager.reserve("h1", 1, 6).expect("there is room");
    manager.reserve("h1", 1, 6).expect("the same again");
    assert!(manager.reserve("h2", 1, 6).expect_err("another host").contains("lent already"));
    assert!(manager.reserve("h2", 2, 3).expect_err("too much").contains("has no 6MiB left"));
    let token = manager.token(1);

    // Another tenant gets what is left, and not with the token either.
    let mut stranger = Peer::borrower_with(other(), donor.address(), within(OUTSIDE, 1));
    stranger.grant(0);
    stranger.grant(1);
    assert_eq!(refusal(&mut stranger, 2), Refusal::Full);
    greeting_is_refused(other(), &donor, within(token, 1), Refusal::NotYours);
    greeting_is_refused(&good().borrower, &donor, within(token + 1, 1), Refusal::NoLease);

    // The tenant gets its six, through two borrowers, and no more.
    let mut one = Peer::borrower_with(&good().borrower, donor.address(), within(token, 1));
    let mut two = Peer::borrower_with(&good().borrower, donor.address(), within(token, 2));
    assert!(matches!(one.welcome, Some(Message::Welcome { lendable_bytes, .. }) if lendable_bytes == 6 << 21));
    for range in 0..3 {
        one.grant(range);
        two.grant(range);
    }
    assert_eq!(refusal(&mut one, 3), Refusal::Full);
    let report =
        manager.until("leases outside of reservations are not offered", |report| report.capacity == Bytes::slabs(6));
    assert_eq!(report.availability, Availability::Up);
    donor.stop(Duration::ZERO);
}

/// Two programs use one volume: each is a tree, and both trees borrow from one reservation.
#[test]
fn the_end_of_one_program_gives_back_nothing_of_another() {
    let mut manager = Controller::start(good(), 1);
    let (donor, _) = start(manager.donor(4, None));
    manager.reserve("h1", 1, 4).expect("there is room");
    let token = manager.token(1);
    let program = |tree: u64, number: u64| {
        let who = BorrowerId(u128::from(tree) << 64 | u128::from(number)).in_reservation(token).0;
        Peer::borrower_with(&good().borrower, donor.address(), who)
    };
    let (first, second) = (0xaaaa_0000_1111_1111, 0xaaaa_0000_2222_2222);
    let (mut one, mut child, mut other) = (program(first, 1), program(first, 2), program(second, 1));
    one.grant(0);
    child.grant(0);
    let lease = other.grant(0);
    assert_eq!(other.write(lease, 0, 7), Message::Written);
    let end = Message::Release { lease: EVERY_LEASE, token };
    assert_eq!(program(first, 0).ask(end, &[]).0, Message::Released { slabs: 2 });
    assert!(other.read(lease, 0).expect("it is still lent").iter().all(|byte| *byte == 7));
    assert_eq!(donor.lent_bytes(), 2 << 20);
    donor.stop(Duration::ZERO);
}

#[test]
fn released_memory_is_wiped_before_another_tenant_has_it() {
    let mut manager = Controller::start(good(), 1);
    let (donor, _) = start(manager.donor(4, None));
    manager.reserve("h1", 1, 4).expect("there is room");
    let token = manager.token(1);
    let mut holder = Peer::borrower_with(&good().borrower, donor.address(), within(token, 1));
    let leases: Vec<_> = (0..4).map(|range| holder.grant(range)).collect();
    for lease in &leases {
        for page in 0..512 {
            assert_eq!(holder.write(*lease, page, 0xaa), Message::Written);
        }
    }
    manager.send(release(1)).expect("released");
    manager.send(release(1)).expect("a second time");
    assert_eq!(holder.read(leases[0], 0), Err(Refusal::NoLease), "the agent has confirmed that it left");
    assert_eq!(refusal(&mut holder, 0), Refusal::NoLease);
    greeting_is_refused(&good().borrower, &donor, within(token, 3), Refusal::NoLease);
    assert!(manager.send(grant("h1", 1, 4)).expect_err("never again").contains("never lent again"));

    // As soon as another tenant can have it, it reads zeros.
    let deadline = Instant::now() + WAIT_MAX;
    while let Err(why) = manager.reserve("h2", 2, 4) {
        assert!(Instant::now() < deadline, "{why}");
    }
    let next = manager.token(2);
    assert!(next > token);
    let mut other_tenant = Peer::borrower_with(other(), donor.address(), within(next, 1));
    for range in 0..4 {
        let lease = loop {
            match other_tenant.ask(Message::Grant { range: aquifer_wire::RangeIndex(range) }, &[]).0 {
                Message::Granted { lease, token, .. } => break peer::Lease { lease, token, range },
                Message::Error { refusal: Refusal::Busy } => assert!(Instant::now() < deadline, "it is not wiped"),
                other => panic!("not granted: {other:?}"),
            }
        };
        for page in 0..512 {
            assert!(
                other_tenant.read(lease, page).expect("lent").iter().all(|byte| *byte == 0),
                "page {page} has old bytes"
            );
        }
    }
    let state = |report: &DonorReport| report.lease(VOLUME, MemberId(1)).map(|lease| lease.state);
    manager.until("all of it is wiped", |report| state(report) == Some(LeaseState::Released));
    manager.send(forget(2)).expect("it is lent, so nothing happens");
    manager.send(forget(1)).expect("forgotten");
    let report = manager.until("it reports", |_| true);
    assert_eq!(state(&report), None);
    manager.token(2);
    donor.stop(Duration::ZERO);
}

#[test]
fn a_release_that_overtakes_its_grant_wins() {
    let mut manager = Controller::start(good(), 1);
    let (donor, _) = start(manager.donor(4, None));
    manager.send(release(9)).expect("nothing to release");
    let report = manager.until("it reports", |_| true);
    assert_eq!(report.lease(VOLUME, MemberId(9)).map(|lease| lease.state), Some(LeaseState::Released));
    assert!(manager.reserve("h1", 9, 1).expect_err("it was released").contains("never lent again"));
    assert!(manager.send(grant("nobody", 3, 1)).expect_err("no such host").contains("is not registered"));
    assert!(manager.send(grant("h1", 3, 0)).expect_err("nothing").contains("whole slabs"));
    donor.stop(Duration::ZERO);
}

/// The donor is restarted, as after `kill -9`: what it lent is gone, and it still refuses the deposed manager.
#[test]
fn a_restarted_donor_has_nothing_and_remembers_the_newest_term() {
    let state = write("donor-state", "");
    std::fs::remove_file(&state).expect("only its name is used");
    let mut new = Controller::start(good(), 5);
    let (donor, _) = start(new.donor(4, Some(state.clone())));
    new.reserve("h1", 1, 2).expect("there is room");
    let (token, before) = (new.token(1), new.until("it reports", |_| true).incarnation);
    donor.stop(Duration::ZERO);

    let mut old = Controller::start(good(), 4);
    let (donor, _) = start(old.donor(4, Some(state.clone())));
    let deadline = Instant::now() + WAIT_MAX;
    while old.ask() != Err(Unheard::Deposed { seen: Term(5) }) {
        assert!(Instant::now() < deadline, "it obeys a deposed manager");
        std::thread::sleep(Duration::from_millis(10));
    }
    let refused = old.send_to(before, grant("h1", 2, 1)).expect_err("deposed");
    assert!(refused.contains("earlier start"), "{refused}");
    old.term = 6;
    let report = old.until("a newer one is obeyed", |_| true);
    assert!(report.leases.is_empty() && report.incarnation != before);
    old.reserve("h1", 1, 2).expect("the memory is new");
    assert!(old.token(1) > token, "tokens grow from start to start");
    greeting_is_refused(&good().borrower, &donor, within(token, 1), Refusal::NoLease);
    donor.stop(Duration::ZERO);

    std::fs::write(&state, "{\"version\":1,\"term\":").expect("written");
    let refusal = Donor::start(old.donor(4, Some(state)), Box::new(|_| ())).err().expect("damaged").to_string();
    assert!(refusal.contains("is damaged or of another version"), "{refusal}");
}

#[test]
fn a_drained_donor_lends_nothing_new_until_it_is_used_again() {
    let mut manager = Controller::start(good(), 1);
    let (donor, _) = start(manager.donor(8, None));
    manager.reserve("h1", 1, 2).expect("there is room");
    let mut outside = Peer::borrower_with(other(), donor.address(), within(OUTSIDE, 1));
    outside.grant(0);
    manager.drained = [id()].into();
    manager.until("it knows", |_| donor.observer().managed().is_some_and(|managed| managed.is_drained));
    assert_eq!(refusal(&mut outside, 1), Refusal::Ending);
    assert!(!outside.revoked.is_empty(), "it was asked to move");
    assert!(manager.reserve("h1", 2, 1).expect_err("drained").contains("is drained"));
    let mut inside = Peer::borrower_with(&good().borrower, donor.address(), within(manager.token(1), 1));
    inside.grant(0);
    manager.drained.clear();
    manager.until("it knows", |_| donor.observer().managed().is_some_and(|managed| !managed.is_drained));
    outside.grant(1);
    manager.reserve("h1", 2, 1).expect("it lends again");
    assert_eq!(donor.observer().managed().expect("it has a manager").managers, 1);
    let status = donor.status();
    assert_eq!((status.figure(Figure::Reservations), status.figure(Figure::ReservedBytes)), (2, 3 << 21));

    // A donor that ends by itself is draining for its manager.
    donor.reclaim(EVERY_BYTE, WAIT_MAX);
    manager.until("it wants its memory back", |report| report.availability == Availability::Draining);
    donor.stop(Duration::ZERO);
}

#[test]
fn an_unmanaged_donor_takes_small_trees_for_trees() {
    let (donor, _) = start(Settings { security: Security::Tls(good().donor.clone()), ..settings(2) });
    Peer::borrower_with(&good().borrower, donor.address(), within(3, 1)).grant(0);
    assert_eq!(donor.observer().managed(), None);
    donor.stop(Duration::ZERO);
}
