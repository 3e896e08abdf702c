// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The store on etcd keeps the contract when any transfer of its connection fails; a transaction whose answer is lost
//! happens once; members are killed and stopped under it; a writer that was cut off writes nothing afterwards; and one
//! candidate at a time has the leadership. All with real members.

mod rig;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aquifer_state_store::conformance::{Rig, check};
use aquifer_state_store::{
    Bounds, Campaign, Election, EtcdSettings, EtcdStore, Expectation, Key, NotCommitted, StateStore, StoreFailure,
    Transaction,
};
use aquifer_test_support::{EtcdCluster, Link};
use rig::{WAIT_MAX, directory, key, settings};

/// Bounds of waits for a link that fails at once or not at all.
const QUICK: Bounds =
    Bounds { connect_max: WAIT_MAX, answer_max: WAIT_MAX, attempts_max: 3, pause: Duration::from_millis(1) };

/// Each store gets a prefix of the cluster's keys.
struct OnEtcd<'a> {
    cluster: &'a EtcdCluster,
    link: Link,
    made: u64,
}

impl OnEtcd<'_> {
    fn settings(&self, address: &str) -> EtcdSettings {
        settings(&[format!("http://{address}")], &format!("pool{}", self.made), QUICK)
    }
}

impl Rig for OnEtcd<'_> {
    fn make(&mut self, failing: Option<u64>) -> Option<Box<dyn StateStore>> {
        self.made += 1;
        self.link = Link::to(&self.cluster.members[0].client);
        self.link.cut_after(failing);
        let made = EtcdStore::open(&self.settings(self.link.address())).ok()?;
        Some(Box::new(made))
    }

    fn reopen(&mut self) -> Box<dyn StateStore> {
        let direct = self.settings(&self.cluster.members[0].client);
        Box::new(EtcdStore::open(&direct).expect("it opens after any failure of the link"))
    }
}

#[test]
fn the_store_on_etcd_keeps_the_contract_whatever_transfer_fails() {
    let directory = directory("etcd-contract");
    let Some(cluster) = EtcdCluster::start(1, &directory) else { return };
    let link = Link::to(&cluster.members[0].client);
    check(&mut OnEtcd { cluster: &cluster, link, made: 0 });
}

/// Adds one to a counter, whose value is then known to this caller alone.
fn add(store: &mut EtcdStore, version: Option<u64>, value: u64) -> Result<u64, NotCommitted> {
    let expectation = version.map_or(Expectation::Absent, Expectation::Version);
    let transaction =
        Transaction::new().expect(key("counter"), expectation).put(key("counter"), value.to_le_bytes().into());
    // A key of its own for each, so that one that happened twice or not at all is found.
    store.commit(&transaction.put(key(&format!("added/{value:05}")), Vec::new()))
}

fn counted(store: &EtcdStore) -> (u64, usize) {
    let entry = store.read(&key("counter")).expect("read").expect("present");
    let value = u64::from_le_bytes(entry.value.try_into().expect("eight bytes"));
    (value, store.scan_all("added/").expect("read").len())
}

#[test]
fn a_transaction_whose_answer_is_lost_happens_once() {
    let directory = directory("etcd-lost");
    let Some(cluster) = EtcdCluster::start(1, &directory) else { return };
    let link = Link::to(&cluster.members[0].client);
    let bounds = Bounds { attempts_max: 10, ..QUICK };
    let mut store =
        EtcdStore::open(&settings(&[format!("http://{}", link.address())], "pool", bounds)).expect("opened");
    link.lose_answers(Some(2));
    let mut version = None;
    for value in 1..=40 {
        version = Some(add(&mut store, version, value).expect("it happens, and its version is known"));
    }
    assert!(link.transfers() > 100, "answers were lost");
    link.lose_answers(None);
    assert_eq!(counted(&store), (40, 40));
    assert_eq!(store.read(&key("counter")).expect("read").map(|entry| entry.version), version);
}

#[test]
fn an_attempt_that_arrives_after_the_next_one_does_nothing() {
    let directory = directory("etcd-late");
    let Some(cluster) = EtcdCluster::start(1, &directory) else { return };
    let link = Link::to(&cluster.members[0].client);
    let endpoints = [format!("http://{}", link.address()), format!("http://{}", cluster.members[0].client)];
    // The first endpoint is given up after a second; the second one may need more than one attempt on a slow machine.
    let bounds = Bounds { answer_max: Duration::from_secs(1), attempts_max: 200, ..QUICK };
    let mut store = EtcdStore::open(&settings(&endpoints, "pool", bounds)).expect("opened");
    link.hold();
    let put = |value: u8| Transaction::new().put(key("a"), vec![value]);
    store.commit(&put(1)).expect("by the second endpoint");
    store.commit(&put(2)).expect("by the second endpoint");
    link.open();
    // Long enough for what was held to arrive; nothing is expected to happen.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(
        store.read(&key("a")).expect("read").expect("present").value,
        [2],
        "an older attempt has overwritten it"
    );
}

#[test]
fn members_are_killed_and_stopped_and_no_transaction_is_lost_or_doubled() {
    let directory = directory("etcd-members");
    let Some(mut cluster) = EtcdCluster::start(3, &directory) else { return };
    let bounds = Bounds { attempts_max: 60, pause: Duration::from_millis(200), ..Bounds::default() };
    let mut store = EtcdStore::open(&settings(&cluster.endpoints(), "pool", bounds)).expect("opened");
    let (mut version, mut value) = (None, 0);
    let mut play = |store: &mut EtcdStore, count: u64| {
        for _ in 0..count {
            value += 1;
            version = Some(add(store, version, value).expect("most of the members run"));
        }
        value
    };
    play(&mut store, 10);
    let killed = cluster.wait_for_leader();
    cluster.kill(killed);
    play(&mut store, 10);
    cluster.begin(killed);
    let stopped = (killed + 1) % 3;
    cluster.stop(stopped);
    let last = play(&mut store, 10);
    cluster.go_on(stopped);
    assert_eq!(counted(&store), (last, last as usize));
}

#[test]
fn a_writer_that_was_cut_off_writes_nothing_afterwards() {
    let directory = directory("etcd-fence");
    let Some(cluster) = EtcdCluster::start(3, &directory) else { return };
    let link = Link::to(&cluster.members[0].client);
    let patient = Bounds { answer_max: WAIT_MAX, attempts_max: 1, ..Bounds::default() };
    let mut old = EtcdStore::open(&settings(&[format!("http://{}", link.address())], "pool", patient)).expect("opened");
    let term = old.commit(&Transaction::new().put(key("term"), vec![1])).expect("committed");
    link.hold();
    let before = link.transfers();
    let late = std::thread::spawn(move || {
        let fenced = Transaction::new().expect(key("term"), Expectation::Version(term)).put(key("head"), vec![1]);
        (old.commit(&fenced), old)
    });
    let begun = Instant::now();
    while link.transfers() == before {
        assert!(begun.elapsed() < WAIT_MAX, "the transaction is on its way");
        std::thread::sleep(Duration::from_millis(5));
    }
    let others = settings(&cluster.endpoints()[1..], "pool", Bounds::default());
    let mut new = EtcdStore::open(&others).expect("opened");
    let expected = Expectation::Version(term);
    new.commit(&Transaction::new().expect(key("term"), expected).put(key("term"), vec![2])).expect("the next term");
    link.open();
    let (outcome, mut old) = late.join().expect("it ends");
    assert!(matches!(&outcome, Err(NotCommitted::Conflict { key }) if key.as_str() == "term"), "{outcome:?}");
    assert_eq!(new.read(&key("head")).expect("read"), None, "what arrived late was not written");
    let unfenced = Transaction::new().put(key("head"), vec![3]);
    old.commit(&unfenced).expect("it is the expectation of the term that fences, and not the connection");
}

#[test]
fn one_candidate_at_a_time_has_the_seat() {
    let directory = directory("etcd-leadership");
    let Some(cluster) = EtcdCluster::start(1, &directory) else { return };
    let settings = settings(&cluster.endpoints(), "pool", Bounds::default());
    let candidate = |name: &str| Election::new(&settings, name, 3).expect("a candidate");
    let (amy, bob) = (candidate("http://amy"), candidate("http://bob"));
    let Campaign::Won(mut leadership) = amy.campaign().expect("asked") else { panic!("nobody else is there") };
    let held = |campaign: &Campaign| matches!(campaign, Campaign::Lost { holder: Some(name) } if name == "http://amy");
    assert!(held(&bob.campaign().expect("asked")));
    assert!(leadership.renew().expect("asked"), "it is kept alive");
    leadership.resign().expect("given up");
    let Campaign::Won(mut leadership) = bob.campaign().expect("asked") else { panic!("it is free at once") };
    assert_eq!(amy.holder().expect("asked").as_deref(), Some("http://bob"));
    // Bob stops without resigning.
    let begun = Instant::now();
    let _amys = loop {
        match amy.campaign().expect("asked") {
            Campaign::Won(leadership) => break leadership,
            Campaign::Lost { .. } => std::thread::sleep(Duration::from_millis(50)),
        }
        assert!(begun.elapsed() < WAIT_MAX, "the lease of a dead holder ends");
    };
    assert!(!leadership.renew().expect("asked"), "bob learns it");
    assert!(leadership.until() <= Instant::now(), "and knew it before by his clock");
}

#[test]
fn a_cluster_that_is_not_there_is_a_failure_with_the_remedy() {
    static PORT: AtomicU64 = AtomicU64::new(1);
    // Nobody listens on ports below 10 of this address.
    let nobody = format!("http://127.0.0.1:{}", PORT.fetch_add(1, Ordering::Relaxed));
    let refused = EtcdStore::open(&settings(&[nobody], "pool", QUICK)).expect_err("nobody is there");
    let line = refused.to_string();
    assert!(matches!(refused, StoreFailure::Etcd { .. }), "{line}");
    assert!(line.contains("127.0.0.1:1") && line.contains("; check that most of its members run"), "{line}");
    let wrong = EtcdSettings { prefix: String::new(), ..settings(&["http://a:1".into()], "pool", QUICK) };
    assert!(matches!(EtcdStore::open(&wrong), Err(StoreFailure::Settings(_))));
    assert!(Key::new("").is_err());
}
