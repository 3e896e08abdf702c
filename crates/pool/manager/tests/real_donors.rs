// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A real daemon with real donors, each a process: binding, killing either at every step, a lost state, two managers,
//! and ends that lie.
//!
//! That no slab is lent twice is the donor's own invariant (its lease table asserts it, and its model test); here it
//! shows as capacity: after everything is released, each donor has all of it again.

mod daemon;
mod pool;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aquifer_control::{Deposed, End, Kind, Query, Refused, Report};
use aquifer_fabric::{
    Availability, Bytes, Command, DonorReport, Gate, HostReport, Incarnation, LeaseReport, LeaseState, MemberId,
    MemberLease, MemberReport, MemberState, Millis, Place, SLAB, Source, SpanId, Term, Token, VolumeId, VolumeReport,
};
use daemon::{CHUNKS, Daemon};
use pool::whole::{DONORS, ENDS, Pool, declaration};
use pool::{DonorProcess, keep, wait_until, wait_until_registered};
use serde_json::json;

const OEM: &str = "/redfish/v1/Oem/Aquifer";
const ADOPT: &str = "/redfish/v1/Oem/Aquifer/Actions/Aquifer.Adopt";

/// Not a test of anything by itself: the other tests start this program with this test alone, to be a donor.
#[test]
fn donor_process() {
    pool::be_a_donor();
}

/// The daemon kills itself before and after each effect of a bind. Whatever was last, a restart finishes it.
#[test]
fn a_bind_over_real_donors_is_whole_whatever_effect_is_the_daemons_last() {
    let (pool, daemon) = Pool::start("real-bind");
    drop(daemon);
    let mut kills = 0;
    for number in 1..100 {
        let mut daemon = pool.restart(Some(number));
        let bound = if daemon.is_killed() {
            None
        } else {
            wait_until_registered(&daemon, &pool.token, &ENDS);
            pool.bind(&daemon)
        };
        let is_done = bound.is_some() && daemon.settle(&pool.token);
        if !is_done {
            daemon.wait_until_killed();
            kills += 1;
        }
        drop(daemon);
        let again = pool.restart(None);
        wait_until_registered(&again, &pool.token, &ENDS);
        assert!(again.settle(&pool.token), "kill at effect {number}");
        let members = pool.host.members();
        assert!(members == 0 || members == 2, "kill at effect {number}: {members} members");
        assert!(bound.is_none() || members == 2, "an answered bind is lost");
        pool.unbind(&again);
        pool.expect_nothing_lent(&again);
        if is_done {
            assert!(kills > 4, "a bind has only {kills} effects");
            return;
        }
    }
    panic!("a bind has more than 100 effects");
}

/// A donor is killed while the volume is bound, and before it. Its members are replaced; when it comes back, it has
/// nothing and is used again.
#[test]
fn a_killed_donor_is_replaced_and_comes_back_empty() {
    let (mut pool, daemon) = Pool::start("real-kill");
    for killed in DONORS {
        // While the daemon binds.
        assert!(pool.bind(&daemon).is_some());
        pool.donors.get_mut(killed).expect("it is there").kill();
        wait_until("the volume has two members elsewhere", || {
            let agent = pool.host.agent.lock().expect("no panic");
            let members = agent.volumes.values().flat_map(|view| view.members.values());
            let sources: Vec<String> = members.map(|member| format!("{:?}", member.lease.source)).collect();
            sources.len() == 2 && !sources.iter().any(|source| source.contains(killed))
        });
        pool.donors.get_mut(killed).expect("it is there").restart();
        wait_until_registered(&daemon, &pool.token, &ENDS);
        assert!(daemon.settle(&pool.token));
        pool.unbind(&daemon);
        pool.expect_nothing_lent(&daemon);
    }
}

/// The daemon's state is lost. A new one meets donors that have seen a greater term, takes a greater one, and adopts
/// what is in use without disturbing anybody.
#[test]
fn after_a_lost_state_the_pool_is_adopted() {
    let (mut pool, daemon) = Pool::start("real-lost");
    assert!(pool.bind(&daemon).is_some());
    assert!(daemon.settle(&pool.token));
    let term = daemon.ask("GET", OEM, &pool.token, "").expect("an answer").body["Term"].as_u64();
    let before = pool.host.agent.lock().expect("no panic").volumes.clone();
    drop(daemon);
    // A few more restarts, so that a first term would not do.
    drop(pool.restart(None));
    std::fs::remove_dir_all(pool.directory.join("state")).expect("removed");

    let daemon = pool.restart(None);
    pool.token = daemon.login("admin", &daemon.password());
    wait_until_registered(&daemon, &pool.token, &ENDS);
    let now = daemon.ask("GET", OEM, &pool.token, "").expect("an answer").body["Term"].as_u64();
    assert!(now > term, "{now:?} is not greater than {term:?}");
    let mut empty = declaration(&DONORS);
    empty["volumes"] = json!({});
    pool.apply(&daemon, &empty);
    let adopted = daemon.ask("POST", ADOPT, &pool.token, "{}").expect("an answer");
    assert_eq!(adopted.status, 200, "{adopted:?}");
    assert!(adopted.body.to_string().contains("volume db has no expiry time, labels"), "{adopted:?}");
    assert!(daemon.settle(&pool.token));
    let chunks = daemon.ask("GET", CHUNKS, &pool.token, "").expect("an answer").body;
    assert_eq!(chunks["Members"].as_array().map(Vec::len), Some(1), "{chunks}");
    assert_eq!(chunks["Members"][0]["@odata.id"], format!("{CHUNKS}/db"), "the agent knows its name");
    assert_eq!(pool.host.agent.lock().expect("no panic").volumes, before, "the host was disturbed");
    pool.unbind(&daemon);
    pool.expect_nothing_lent(&daemon);
}

/// A second manager with its own state takes the donor over, which refuses the first one from then on. Nobody tells the
/// first one but the donor, whose word alone ends no leadership: it says so and waits.
#[test]
fn of_two_managers_the_one_that_was_elected_last_is_obeyed() {
    let directory = daemon::directory("real-two");
    let start = |name: &str| {
        let own = directory.join(name);
        std::fs::create_dir_all(&own).expect("a directory");
        Daemon::start_registered(&own, format!("{}:0", daemon::address()).parse().expect("an address"), None)
    };
    let mut first = start("first");
    let of_first = first.login("admin", &first.password());
    // The donor is configured with the second manager's address before that manager runs.
    let reserved: SocketAddr = format!("{}:7444", daemon::address()).parse().expect("an address");
    let managers = [first.control.expect("it says where"), reserved];
    let _donor = DonorProcess::start(&directory, "d1", &managers);
    wait_until_registered(&first, &of_first, &["Donor.d1"]);
    let own = directory.join("second");
    std::fs::create_dir_all(&own).expect("a directory");
    let second = Daemon::start_registered(&own, reserved, None);
    let token = second.login("admin", &second.password());
    wait_until_registered(&second, &token, &["Donor.d1"]);
    wait_until("the first one has lost its donor, and says why", || {
        let donor = first.ask("GET", "/redfish/v1/Fabrics/Aquifer/Endpoints/Donor.d1", &of_first, "");
        let log = std::fs::read_to_string(first.directory.join("log")).expect("a log");
        donor.is_some_and(|donor| donor.body["Status"]["State"] != "Enabled")
            && log.contains("if another manager with a store of its own runs, stop that one and restart this one")
    });
    assert!(second.settle(&token));
    wait_until_registered(&second, &token, &["Donor.d1"]);
    assert!(!first.is_killed(), "restarted by its service, it would take the donor back");
}

#[test]
fn a_restarted_manager_knows_donors_that_are_silent_and_forgets_retired_ones() {
    let (mut pool, daemon) = Pool::start("real-silent");
    pool.donors.get_mut("d3").expect("it is there").kill();
    drop(daemon);
    let daemon = pool.restart(None);
    wait_until_registered(&daemon, &pool.token, &ENDS[..2]);
    let path = "/redfish/v1/Fabrics/Aquifer/Endpoints/Donor.d3";
    let silent = daemon.ask("GET", path, &pool.token, "").expect("an answer");
    assert_eq!((silent.status, &silent.body["Status"]["State"]), (200, &json!("Absent")), "{silent:?}");
    // It is taken out of the pool, and declared gone once it has reported.
    pool.donors.get_mut("d3").expect("it is there").restart();
    wait_until_registered(&daemon, &pool.token, &ENDS);
    for donors in [&DONORS[..], &DONORS[..2]] {
        let mut smaller = declaration(donors);
        smaller["volumes"] = json!({});
        pool.apply(&daemon, &smaller);
        assert!(daemon.settle(&pool.token));
    }
    pool.donors.get_mut("d3").expect("it is there").kill();
    wait_until("it is missed", || {
        let answer = daemon.ask("GET", path, &pool.token, "").expect("an answer");
        answer.body["Status"]["State"] == "UnavailableOffline"
    });
    let action = format!("{path}/Actions/Oem/AquiferEndpoint.DeclareGone");
    let declared = daemon.ask("POST", &action, &pool.token, "{}").expect("an answer");
    assert!((200..300).contains(&declared.status), "{declared:?}");
    wait_until("it is forgotten", || daemon.ask("GET", path, &pool.token, "").expect("an answer").status == 404);
    drop(daemon);
    let daemon = pool.restart(None);
    assert_eq!(daemon.ask("GET", path, &pool.token, "").expect("an answer").status, 404);
}

/// A donor that claims what it does not have.
struct Liar {
    gate: Gate,
    report: DonorReport,
    refused: usize,
}

impl End for Liar {
    fn report(&mut self, query: &Query) -> Result<Report, Deposed> {
        self.gate.report_to(query.term).map_err(|_| Deposed { seen: self.gate.term() })?;
        Ok(Report::Donor(DonorReport { term: self.gate.term(), ..self.report.clone() }))
    }

    fn carry_out(&mut self, _: &Command) -> Result<(), Refused> {
        self.refused += 1;
        Err(Refused::new("this donor has nothing left\u{1b}[31m\nreally"))
    }
}

fn liar(report: DonorReport) -> Arc<Mutex<Liar>> {
    let gate = Gate::new(report.incarnation, Term(0));
    Arc::new(Mutex::new(Liar { gate, report, refused: 0 }))
}

#[test]
fn a_donor_that_lies_about_its_capacity_harms_only_who_is_placed_there() {
    let (pool, daemon) = Pool::start("real-liar");
    let incarnation = Incarnation(9);
    // It claims more than it registered, and leases that nobody asked for.
    let absurd = LeaseReport {
        host: "h1".parse().expect("a name"),
        bytes: Bytes(u64::MAX),
        state: LeaseState::Lent { token: Token(u64::MAX) },
    };
    let claims = DonorReport {
        incarnation,
        capacity: Bytes(u64::MAX),
        availability: Availability::Gone { since: Millis(u64::MAX) },
        leases: [(VolumeId(u64::MAX), [(MemberId(u64::MAX), absurd)].into())].into(),
        ..DonorReport::default()
    };
    let poor = DonorReport { incarnation, capacity: Bytes::gib(1 << 10), ..DonorReport::default() };
    let ends = [liar(claims), liar(poor)];
    let channels = [("l1", Bytes(SLAB.0)), ("l2", Bytes::gib(1 << 10))];
    let _kept: Vec<_> = channels
        .iter()
        .zip(&ends)
        .map(|((id, capacity), end)| {
            let end: Arc<Mutex<dyn End>> = Arc::clone(end) as Arc<Mutex<dyn End>>;
            keep(Kind::Donor, id, *capacity, &[pool.control], &end)
        })
        .collect();
    wait_until_registered(&daemon, &pool.token, &["Donor.l2"]);
    // A volume in a pool of liars is refused by them, again and again; it is not bound, and nothing else suffers.
    let mut wanted = declaration(&DONORS);
    wanted["pools"]["lies"] = json!({ "donors": ["l1", "l2"] });
    wanted["volumes"]["empty"] =
        json!({ "spec": { "size": "4MiB", "pool": "lies", "zone": "lab", "class": "tcp" }, "host": "h1" });
    pool.apply(&daemon, &wanted);
    wait_until("it has refused", || ends[1].lock().expect("no panic").refused > 2);
    assert!(pool.bind(&daemon).is_some());
    wait_until("the other volume is bound", || pool.host.members() == 2);
    let status = daemon.ask("GET", OEM, &pool.token, "").expect("an answer").body;
    assert_eq!(status["IsSettled"], false, "{status}");
}

/// Returns the term that an end claims to have seen, when a manager of this one asks.
type Ahead = fn(Term) -> Term;

/// An end that says that it has seen a greater term than the manager's, once it has reported this often.
struct Claimant {
    gate: Gate,
    reports: usize,
    ahead: Ahead,
}

impl End for Claimant {
    fn report(&mut self, query: &Query) -> Result<Report, Deposed> {
        if self.reports == 0 {
            return Err(Deposed { seen: (self.ahead)(query.term) });
        }
        self.reports -= 1;
        self.gate.report_to(query.term).map_err(|_| Deposed { seen: self.gate.term() })?;
        Ok(Report::Donor(DonorReport { incarnation: Incarnation(9), term: self.gate.term(), ..DonorReport::default() }))
    }

    fn carry_out(&mut self, _: &Command) -> Result<(), Refused> {
        Ok(())
    }
}

/// Each of these used to end the leadership of every manager, or made all ends store a term after which there is none.
#[test]
fn ends_that_claim_greater_terms_depose_nobody() {
    let (pool, daemon) = Pool::start("real-claims");
    let term = |daemon: &Daemon| daemon.ask("GET", OEM, &pool.token, "").expect("an answer").body["Term"].as_u64();
    let before = term(&daemon).expect("a term");
    let claims: [(&str, usize, Ahead); 3] =
        [("l1", 2, |term| Term(term.0 + 1)), ("l2", 0, |_| Term(u64::MAX - 1)), ("l3", 0, |term| Term(term.0 + 1000))];
    let _kept = claims.map(|(id, reports, ahead)| {
        let gate = Gate::new(Incarnation(9), Term(0));
        let end: Arc<Mutex<dyn End>> = Arc::new(Mutex::new(Claimant { gate, reports, ahead }));
        keep(Kind::Donor, id, Bytes(SLAB.0), &[pool.control], &end)
    });
    let log = || std::fs::read_to_string(daemon.directory.join("log")).expect("a log");
    wait_until("all three are found out", || {
        ["l1", "l2", "l3"].iter().all(|id| log().contains(&format!("donor {id} says that it has seen term")))
    });
    assert!(pool.bind(&daemon).is_some());
    wait_until("a volume is bound meanwhile", || pool.host.members() == 2);
    wait_until_registered(&daemon, &pool.token, &ENDS);
    // One of them may be right: it is met for the first time, and its claim is accepted once.
    let after = term(&daemon).expect("a term");
    assert!((before..before + 3_600_000).contains(&after), "{before} {after}");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(term(&daemon), Some(after));
    drop(daemon);
    let daemon = pool.restart(None);
    wait_until_registered(&daemon, &pool.token, &ENDS);
    pool.unbind(&daemon);
    pool.expect_nothing_lent(&daemon);
}

/// An agent that reports a volume which contradicts itself.
struct Dreamer(VolumeReport);

impl End for Dreamer {
    fn report(&mut self, query: &Query) -> Result<Report, Deposed> {
        let volumes = [(VolumeId(7), self.0.clone())].into();
        Ok(Report::Host(HostReport { incarnation: Incarnation(9), term: query.term, volumes, ..HostReport::default() }))
    }

    fn carry_out(&mut self, _: &Command) -> Result<(), Refused> {
        Ok(())
    }
}

/// The manager adopts what is valid, says what it has left out, and reads its state again after a restart.
#[test]
fn after_a_lost_state_a_host_that_lies_is_not_adopted_and_harms_nobody() {
    let (mut pool, daemon) = Pool::start("real-dreams");
    let source = Source::Slabs { donor: "d1".parse().expect("a name") };
    let place = Place { span: SpanId(1), shard: 0 };
    let lease = MemberLease { member: MemberId(99), place, source, bytes: SLAB, token: Token(1) };
    let members = [(MemberId(1), MemberReport { lease, state: MemberState::InSync })].into();
    let end: Arc<Mutex<dyn End>> = Arc::new(Mutex::new(Dreamer(VolumeReport { members, ..VolumeReport::default() })));
    assert!(pool.bind(&daemon).is_some() && daemon.settle(&pool.token));
    drop(daemon);
    std::fs::remove_dir_all(pool.directory.join("state")).expect("removed");

    let kept = keep(Kind::Host, "h2", Bytes::ZERO, &[pool.control], &end);
    let daemon = pool.restart(None);
    pool.token = daemon.login("admin", &daemon.password());
    wait_until_registered(&daemon, &pool.token, &ENDS);
    wait_until_registered(&daemon, &pool.token, &["Host.h2"]);
    let mut empty = declaration(&DONORS);
    empty["volumes"] = json!({});
    empty["zones"]["lab"]["hosts"] = json!(["h1", "h2"]);
    pool.apply(&daemon, &empty);
    let adopted = daemon.ask("POST", ADOPT, &pool.token, "{}").expect("an answer");
    assert_eq!(adopted.status, 200, "{adopted:?}");
    assert!(adopted.body.to_string().contains("member 1 with the lease of member 99"), "{adopted:?}");
    drop(daemon);
    // What it reports remains a stray, and a pool with strays is not settled.
    drop(kept);
    let daemon = pool.restart(None);
    wait_until_registered(&daemon, &pool.token, &ENDS);
    let chunks = daemon.ask("GET", CHUNKS, &pool.token, "").expect("an answer").body;
    assert_eq!(chunks["Members"].as_array().map(Vec::len), Some(1), "{chunks}");
    pool.unbind(&daemon);
    pool.expect_nothing_lent(&daemon);
}
