// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What is stored is whole, is read again, and belongs to only one manager.

use std::sync::Mutex;
use std::time::Duration;

use aquifer_fabric::{Broken, MemberId, SpanId, verify};
use aquifer_state_store::{Bounds, EtcdSettings, EtcdStore, MemoryStore};
use aquifer_test_support::{EtcdCluster, Link};

use super::*;

/// How long a test waits for what must come.
const WAIT_MAX: Duration = Duration::from_secs(120);

fn open(store: &MemoryStore) -> (ManagerStore, Desired) {
    let mut manager = ManagerStore::open(Box::new(store.reopen()), CrashPoint::default()).expect("opened");
    let desired = manager.reload().expect("read");
    (manager, desired)
}

fn with_zone(desired: &Desired, name: &str) -> Desired {
    let mut new = desired.clone();
    new.zones.insert(name.parse().expect("a name"), Default::default());
    new.version += 1;
    new
}

#[test]
fn what_was_stored_is_read_again_with_its_records() {
    let store = MemoryStore::default();
    let (mut manager, old) = open(&store);
    assert_eq!(manager.take_term(Term(4)).expect("taken"), Term(5));
    let new = with_zone(&old, "lab");
    manager
        .change(&old, &new, &[Entry::new("amy", "a\nzone"), Entry::new("bob", "x".repeat(9000))], Millis(7))
        .expect("stored");
    let (again, desired) = open(&store);
    assert_eq!((desired, again.term), (new, Term(5)));
    let records = again.records(0, 10).expect("read");
    assert_eq!(records[0].what, "a zone");
    assert!(records[1].what.ends_with("(cut)") && records[1].what.len() < 2100);
    assert_eq!(verify(&records, manager.tail()), Ok(again.tail()));
    assert_eq!(again.records(1, 10).expect("read").len(), 1);
}

#[test]
fn the_audit_log_is_one_chain_over_restarts() {
    let store = MemoryStore::default();
    for start in 1..=3_u64 {
        let (mut manager, old) = open(&store);
        manager.take_term(Term(0)).expect("taken");
        let account = ("account/amy".to_owned(), Some(json(&start)));
        manager.keep(&[account], &[Entry::new("amy", "one")], Millis(start)).expect("stored");
        let new = with_zone(&old, &format!("z{start}"));
        manager.change(&old, &new, &[Entry::new("amy", "two")], Millis(start)).expect("stored");
        let records = manager.records(0, 100).expect("read");
        assert_eq!(records.len() as u64, 2 * start);
        assert_eq!(verify(&records, manager.tail()), Ok(manager.tail()), "start {start}");
    }
    let (manager, _) = open(&store);
    let mut records = manager.records(0, 100).expect("read");
    records[3].what.push('!');
    assert_eq!(verify(&records, manager.tail()), Err(Broken::Changed { at: 4 }));
    records.remove(3);
    assert_eq!(verify(&records, manager.tail()), Err(Broken::Unlinked { at: 4 }));
}

#[test]
fn a_new_manager_has_what_the_old_one_stored_until_it_was_deposed() {
    let store = MemoryStore::default();
    let (mut old_manager, old) = open(&store);
    old_manager.take_term(Term(0)).expect("taken");
    let (mut new_manager, read_early) = open(&store);
    let last = with_zone(&old, "lab");
    old_manager.change(&old, &last, &[], Millis(0)).expect("it still leads");
    new_manager.take_term(Term(0)).expect("taken");
    assert_eq!(new_manager.reload().expect("read"), last);
    assert_ne!(read_early, last, "what was read before the term may be out of date");
    new_manager.change(&last, &with_zone(&last, "dev"), &[], Millis(0)).expect("stored");
}

/// It would have written under the term of its successor, whose changes it does not know.
#[test]
fn a_manager_that_was_deposed_before_it_read_the_state_gets_none() {
    let store = MemoryStore::default();
    let (mut old_manager, _) = open(&store);
    old_manager.take_term(Term(0)).expect("taken");
    assert_eq!(old_manager.successor().expect("read"), None);
    let (mut new_manager, old) = open(&store);
    let term = new_manager.take_term(Term(0)).expect("taken");
    assert_eq!(old_manager.successor().expect("read"), Some(term));
    let refused = old_manager.reload().expect_err("deposed");
    assert!(matches!(refused, ManagerStoreFailure::NotCommitted(NotCommitted::Conflict { .. })), "{refused}");
    assert!(old_manager.change(&old, &with_zone(&old, "lab"), &[], Millis(0)).is_err());
    new_manager.change(&old, &with_zone(&old, "dev"), &[], Millis(0)).expect("it still leads");
}

/// A store in which something happens while the volumes are read, after the rest of the desired state.
struct Torn {
    store: MemoryStore,
    meanwhile: Arc<Mutex<Option<Meanwhile>>>,
}

type Meanwhile = Box<dyn FnOnce() + Send>;

impl StateStore for Torn {
    fn read(&self, key: &Key) -> Result<Option<aquifer_state_store::Entry>, StoreFailure> {
        self.store.read(key)
    }

    fn scan(&self, prefix: &str, after: Option<&Key>) -> Result<Vec<(Key, aquifer_state_store::Entry)>, StoreFailure> {
        let meanwhile = self.meanwhile.lock().expect("no panic").take_if(|_| prefix == "desired/volume/");
        meanwhile.into_iter().for_each(|happens| happens());
        self.store.scan(prefix, after)
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<u64, NotCommitted> {
        self.store.commit(transaction)
    }
}

/// Returns a state whose volume needs the pool and the zone that come with it.
fn with_volume() -> Desired {
    let mut new = with_zone(&Desired::default(), "lab");
    new.pools.insert("main".parse().expect("a name"), Default::default());
    let spec = r#"{"size": "1GiB", "pool": "main", "zone": "lab", "class": "tcp"}"#;
    let volume = Volume {
        name: "v".parse().expect("a name"),
        spec: serde_json::from_str(spec).expect("a specification"),
        spans: Vec::new(),
        leaving: Default::default(),
        host: None,
        released: true,
        next_member: MemberId(1),
        next_span: SpanId(1),
    };
    new.volumes.insert(VolumeId(1), volume);
    new
}

/// The state of a leader that was about to be replaced looked damaged to the next one, which then ended for good.
#[test]
fn a_state_that_another_manager_changes_while_it_is_read_is_not_taken_for_damaged() {
    for is_deposed in [false, true] {
        let store = MemoryStore::default();
        let (mut other, empty) = open(&store);
        other.take_term(Term(0)).expect("taken");
        let meanwhile: Arc<Mutex<Option<Meanwhile>>> = Arc::default();
        let torn = Torn { store: store.reopen(), meanwhile: Arc::clone(&meanwhile) };
        let happens: Meanwhile = Box::new(move || {
            if is_deposed {
                other = open(&store).0;
                other.take_term(Term(0)).expect("taken");
            }
            // It is refused if the other one has been deposed by then.
            let _ = other.change(&empty, &with_volume(), &[], Millis(0));
        });
        let happen = |happens| *meanwhile.lock().expect("no panic") = Some(happens);
        let mut later = Some(happens);
        if !is_deposed {
            later.take().into_iter().for_each(happen);
        }
        let mut manager = ManagerStore::open(Box::new(torn), CrashPoint::default()).expect("not damaged");
        manager.take_term(Term(0)).expect("taken");
        later.into_iter().for_each(happen);
        match manager.reload() {
            Ok(desired) => assert!(!is_deposed && desired.volumes.is_empty()),
            Err(refused) => assert!(is_deposed && refused.may_pass(), "{refused}"),
        }
    }
}

#[test]
fn a_term_never_wraps() {
    let store = MemoryStore::default();
    let (mut manager, _) = open(&store);
    let refused = manager.take_term(Term(u64::MAX)).expect_err("there is no greater one");
    assert!(refused.to_string().contains("; restore a backup") && !refused.may_pass(), "{refused}");
    assert_eq!(manager.take_term(Term(4)).expect("taken"), Term(5));
}

#[test]
fn damage_of_the_audit_log_is_found_in_the_store() {
    let mut store = MemoryStore::default();
    let (mut manager, _) = open(&store);
    manager.take_term(Term(0)).expect("taken");
    for number in 0..SCAN_MAX + 3 {
        manager.keep(&[], &[Entry::new("amy", format!("{number}"))], Millis(1)).expect("stored");
    }
    assert_eq!(manager.verify_audit().expect("read"), Ok(manager.tail()), "more than one page");
    // Page by page, while records are added.
    let mut check = manager.begin_audit_check();
    let begun_at = manager.tail();
    assert_eq!(manager.continue_audit_check(&mut check).expect("read"), None, "one page is not all");
    manager.keep(&[], &[Entry::new("amy", "later")], Millis(2)).expect("stored");
    assert_eq!(manager.continue_audit_check(&mut check).expect("read"), Some(Ok(begun_at)));
    let third = key(format!("audit/{:016}", 3));
    let value = store.read(&third).expect("read").expect("present").value;
    let changed = String::from_utf8(value.clone()).expect("JSON").replace("amy", "bob");
    for (put, line) in [
        (Some(changed.into_bytes()), "record 3 of the audit log was changed; "),
        (Some(b"{".to_vec()), "of the state is damaged"),
        (None, "record 3 of the audit log does not follow the one before; "),
    ] {
        let write = Transaction::new();
        let write = match put {
            Some(value) => write.put(third.clone(), value),
            None => write.delete(third.clone()),
        };
        store.commit(&write).expect("stored");
        let AuditDamage(found) = manager.verify_audit().expect("read").expect_err(line);
        assert!(found.contains(line), "{found}");
    }
}

#[test]
fn a_deposed_manager_stores_nothing() {
    let store = MemoryStore::default();
    let (mut old_manager, old) = open(&store);
    old_manager.take_term(Term(0)).expect("taken");
    let (mut new_manager, _) = open(&store);
    new_manager.take_term(Term(0)).expect("taken");
    let refused = old_manager.change(&old, &with_zone(&old, "lab"), &[], Millis(0)).expect_err("deposed");
    assert!(matches!(refused, ManagerStoreFailure::NotCommitted(NotCommitted::Conflict { .. })), "{refused}");
    assert!(open(&store).1.zones.is_empty());
}

#[test]
fn a_change_is_whole_whatever_operation_fails() {
    for failing in 0..40 {
        let store = MemoryStore::default();
        let (mut manager, old) = open(&store);
        manager.take_term(Term(0)).expect("taken");
        let new = with_zone(&old, "lab");
        store.fail_after(Some(failing));
        let outcome = manager.change(&old, &new, &[Entry::new("amy", "zone")], Millis(1));
        let (again, found) = open(&store);
        let whole = (found == new, again.tail().records == 1);
        assert!(whole == (true, true) || whole == (false, false), "operation {failing}: {whole:?}");
        if outcome.is_ok() {
            assert_eq!(whole, (true, true));
            return;
        }
    }
    panic!("a change takes more than 40 operations");
}

/// A transaction that was caught in the network while its manager was deposed arrives afterwards.
#[test]
fn a_change_that_was_under_way_when_its_manager_was_deposed_is_not_stored() {
    let directory = std::env::temp_dir().join(format!("aquifer-manager-store-{}", std::process::id()));
    let Some(cluster) = EtcdCluster::start(1, &directory) else { return };
    let settings = |address: &str| EtcdSettings {
        endpoints: vec![format!("http://{address}")],
        prefix: "pool".into(),
        tls: None,
        bounds: Bounds { answer_max: WAIT_MAX, attempts_max: 1, ..Bounds::default() },
    };
    let open = |address: &str| {
        let store = EtcdStore::open(&settings(address)).expect("opened");
        let mut manager = ManagerStore::open(Box::new(store), CrashPoint::default()).expect("opened");
        let desired = manager.reload().expect("read");
        (manager, desired)
    };
    let link = Link::to(&cluster.members[0].client);
    let (mut old_manager, old) = open(link.address());
    old_manager.take_term(Term(0)).expect("taken");
    let (before, lab) = (link.transfers(), with_zone(&old, "lab"));
    link.hold();
    let late = std::thread::spawn(move || old_manager.change(&old, &lab, &[Entry::new("amy", "late")], Millis(1)));
    let begun = Instant::now();
    while link.transfers() == before {
        assert!(begun.elapsed() < WAIT_MAX, "the change is on its way");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (mut new_manager, _) = open(&cluster.members[0].client);
    new_manager.take_term(Term(0)).expect("the next term");
    link.open();
    let outcome = late.join().expect("it ends");
    assert!(matches!(&outcome, Err(ManagerStoreFailure::NotCommitted(NotCommitted::Conflict { .. }))), "{outcome:?}");
    assert!(new_manager.reload().expect("read").zones.is_empty(), "a deposed manager has written");
    drop(cluster);
    let _ = std::fs::remove_dir_all(directory);
}
