// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A store that refuses: the writer goes on, says why, and stores later what it could not store now.

use aquifer_state_store::{Entry as Stored, Key, NotCommitted, Refusal, StateStore, StoreFailure, Transaction, Write};

use super::*;

/// Says why a transaction is refused, if it is.
type Rule = Box<dyn Fn(&Transaction) -> Option<Refusal> + Send>;

/// A store that refuses as a test says.
struct Refusing {
    store: MemoryStore,
    rule: Arc<Mutex<Rule>>,
}

impl StateStore for Refusing {
    fn read(&self, key: &Key) -> Result<Option<Stored>, StoreFailure> {
        self.store.read(key)
    }

    fn scan(&self, prefix: &str, after: Option<&Key>) -> Result<Vec<(Key, Stored)>, StoreFailure> {
        self.store.scan(prefix, after)
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<u64, NotCommitted> {
        match (self.rule.lock().expect("no panic"))(transaction) {
            Some(refusal) => Err(NotCommitted::Refused { refusal, why: "in etcd's words".into() }),
            None => self.store.commit(transaction),
        }
    }
}

/// Counts the writes of a transaction below a prefix.
fn writes_below(transaction: &Transaction, prefix: &str) -> usize {
    let key = |write: &Write| match write {
        Write::Delete(key) | Write::Put(key, _) => key.clone(),
    };
    transaction.writes.iter().filter(|write| key(write).as_str().starts_with(prefix)).count()
}

/// Starts a writer, and returns what sets the rule of its store.
fn start_refusing() -> (Writer, impl Fn(Rule)) {
    let rule: Arc<Mutex<Rule>> = Arc::new(Mutex::new(Box::new(|_: &Transaction| None)));
    let kept = Refusing { store: store(), rule: Arc::clone(&rule) };
    let manager = ManagerStore::open(Box::new(kept), CrashPoint::default()).expect("opened");
    let (writer, _) = start_with(manager, |_, _| ());
    (writer, move |new| *rule.lock().expect("no panic") = new)
}

fn create(name: &str) -> Act {
    let spec = r#"{"size": "256MiB", "pool": "main", "zone": "lab", "class": "tcp"}"#;
    Act::Create(id(name), Box::new(serde_json::from_str(spec).expect("a specification")))
}

fn not_stored(writer: &Writer) -> Vec<String> {
    let (kept, _) = writer.shared.events.follow(0);
    kept.into_iter().filter(|event| event.kind == "NotStored").map(|event| event.message).collect()
}

/// Members of volumes, by whether they are on donor d1.
fn on_first(writer: &Writer) -> usize {
    let source = Source::Slabs { donor: id("d1") };
    writer.desired.volumes.values().flat_map(|one| one.places()).filter(|(_, one)| one.source == source).count()
}

/// The manager said "make smaller changes" with each refusal. A login, or a stranger with a wrong password, ended its
/// leadership.
#[test]
fn a_store_without_space_stops_no_writer_and_is_said_once_with_its_remedy() {
    let (mut writer, refuse) = start_refusing();
    refuse(Box::new(|_| Some(Refusal::NoSpace)));
    for _ in 0..3 {
        let refused = order(&mut writer, create("v1")).expect_err("it is not stored");
        let line = refused.to_string();
        assert!(matches!(refused, NotDone::NotStored(_)) && line.contains("; compact and defragment"), "{line}");
        let errand = Box::new(|store: &mut ManagerStore| store.keep(&[], &[Entry::new("amy", "login")], NOW));
        writer.round(vec![Posted::Errand(errand)], NOW).expect("it still leads");
    }
    let said = not_stored(&writer);
    assert!(said.len() == 1 && said[0].contains("etcd has no space left"), "{said:?}");
    assert!(writer.desired.volumes.is_empty());
    refuse(Box::new(|_| None));
    order(&mut writer, create("v1")).expect("there is space again");
    assert_eq!(writer.desired.volumes.len(), 1);
    assert_eq!(writer.store.records(0, 10).expect("read").len(), 1, "each change has its record, and nothing else has");
}

/// A busy etcd takes seconds to refuse. With one wait for each of those who had asked, the watchdog ended the leader.
#[test]
fn a_store_that_refuses_is_asked_once_in_a_round() {
    let (mut writer, refuse) = start_refusing();
    let asked = Arc::new(Mutex::new(0));
    let count = Arc::clone(&asked);
    refuse(Box::new(move |_| {
        *count.lock().expect("no panic") += 1;
        Some(Refusal::Busy)
    }));
    let refused = Arc::new(Mutex::new(0));
    let errand = |refused: &Arc<Mutex<usize>>| {
        let refused = Arc::clone(refused);
        Posted::Errand(Box::new(move |store| {
            let outcome = store.keep(&[], &[Entry::new("amy", "login")], NOW);
            *refused.lock().expect("no panic") += usize::from(outcome.is_err());
            outcome
        }))
    };
    for rounds in 1..=2 {
        writer.round((0..100).map(|_| errand(&refused)).collect(), NOW).expect("it still leads");
        assert_eq!((*asked.lock().expect("no panic"), *refused.lock().expect("no panic")), (rounds, 100 * rounds));
    }
}

/// A repair that was too large took the orders of its round with it, for ever.
#[test]
fn what_is_too_large_with_its_repair_is_stored_without_it_and_the_repair_in_smaller_parts() {
    let (mut writer, refuse) = start_refusing();
    for number in 0..8 {
        order(&mut writer, create(&format!("v{number}"))).expect("stored");
    }
    let before = on_first(&writer);
    assert!(before >= 2, "the donors have {before} and {} members", 8 - before);
    refuse(Box::new(|all| (writes_below(all, "desired/volume/") > 1).then_some(Refusal::TooLarge)));
    order(&mut writer, Act::Drain(id("d1"), true)).expect("the order is stored");
    assert_eq!((on_first(&writer), writer.desired.draining.len()), (before, 1), "and the repair is not");
    assert_eq!(writer.shared.snapshot().unrepaired.len(), before);
    let said = not_stored(&writer);
    assert!(said.len() == 1 && said[0].contains("--max-request-bytes"), "{said:?}");
    (0..30).for_each(|_| round(&mut writer));
    assert_eq!((on_first(&writer), writer.shared.snapshot().unrepaired.len()), (0, 0));
}

/// Volumes that expire at the same instant were never released, and nothing else was stored any more.
#[test]
fn volumes_whose_release_is_too_large_are_released_in_smaller_parts() {
    let (mut writer, refuse) = start_refusing();
    for number in 0..5 {
        let Act::Create(name, mut spec) = create(&format!("v{number}")) else { panic!("it creates") };
        spec.expires_at = Some(Millis(NOW.0 + 1));
        order(&mut writer, Act::Create(name, spec)).expect("stored");
    }
    refuse(Box::new(|all| (writes_below(all, "desired/volume/") > 2).then_some(Refusal::TooLarge)));
    let released = |writer: &Writer| writer.desired.volumes.values().filter(|volume| volume.released).count();
    let later = |writer: &mut Writer| _ = writer.round(Vec::new(), Millis(NOW.0 + 1)).expect("it still leads");
    later(&mut writer);
    assert_eq!((released(&writer), writer.shared.snapshot().unrepaired.len()), (0, 5), "it is said");
    (0..30).for_each(|_| later(&mut writer));
    assert_eq!(released(&writer), writer.desired.volumes.len());
}

/// A clock that was set forward by a year released every volume that was to expire some day.
#[test]
fn volumes_do_not_expire_at_once_by_a_clock_that_jumps() {
    let (mut writer, _) = start_refusing();
    let Act::Create(name, mut spec) = create("v") else { panic!("it creates") };
    spec.expires_at = Some(Millis(NOW.0 + DAY_MS));
    order(&mut writer, Act::Create(name, spec)).expect("stored");
    let at = |writer: &mut Writer, now| {
        writer.round(Vec::new(), now).expect("it still leads");
        let (kept, _) = writer.shared.events.follow(0);
        let jumps = kept.iter().filter(|event| event.kind == "ClockJumped").count();
        (writer.desired.volumes.values().filter(|volume| !volume.released).count(), jumps)
    };
    let later = Millis(NOW.0 + 365 * DAY_MS);
    assert_eq!(at(&mut writer, later), (1, 1));
    assert_eq!(at(&mut writer, later), (1, 1), "it is said once");
    assert_eq!(at(&mut writer, NOW), (1, 1), "the clock is set right");
}

/// One large declaration made all orders of its round fail with "make smaller changes".
#[test]
fn only_an_order_that_is_too_large_alone_is_told_so() {
    let (mut writer, refuse) = start_refusing();
    refuse(Box::new(|all| (writes_below(all, "desired/volume/") > 0).then_some(Refusal::TooLarge)));
    let answers = orders(&mut writer, vec![(create("v1"), false), (create("v2"), true)]);
    assert!(matches!(answers[0], Err(NotDone::TooLarge(_))) && answers[1].is_ok(), "{answers:?}");
    refuse(Box::new(|all| (writes_below(all, "desired/volume/") > 1).then_some(Refusal::TooLarge)));
    let answers = orders(&mut writer, vec![(create("v1"), false), (create("v2"), false)]);
    let is_told = |answer: &Result<Done, NotDone>| match answer {
        Err(NotDone::NotStored(line)) => line.ends_with("too large for the store; try again"),
        _ => false,
    };
    assert!(answers.iter().all(is_told), "{answers:?}");
    assert_eq!(not_stored(&writer), Vec::<String>::new(), "nothing but orders was given up");
    order(&mut writer, create("v1")).expect("alone it is not too large");
}

/// All ends of a large pool register at once with a manager that is new. None was ever stored.
#[test]
fn registrations_that_are_too_large_together_are_stored_one_part_after_the_other() {
    let record = |number: usize| Record {
        key: format!("registration/donor/d{number}"),
        value: Some(b"{}".to_vec()),
        what: format!("donor d{number} registers"),
    };
    let (mut writer, refuse) = start_refusing();
    refuse(Box::new(|all| (writes_below(all, "registration/") > 200).then_some(Refusal::TooLarge)));
    writer.peers = Box::new(Scripted {
        topology: Arc::new(topology()),
        script: Box::new(|_, _| ()),
        sent: Sent::default(),
        records: (0..500).map(record).collect(),
    });
    round(&mut writer);
    assert!(writer.peers.records().is_empty(), "they are recorded");
    assert_eq!(writer.store.all::<serde_json::Value>("registration/").expect("read").len(), 500);
}
