// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What etcd refuses has its reason, has changed nothing, and leaves the store usable; what may have been carried out
//! is not taken for refused. With real members, and with a server that answers as a test says.

mod rig;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use aquifer_state_store::{
    Bounds, EtcdStore, Expectation, NotCommitted, Refusal, StateStore, StoreFailure, Transaction,
};
use aquifer_test_support::EtcdCluster;
use rig::{WAIT_MAX, directory, key, settings};

/// Bounds for a server that answers at once.
const QUICK: Bounds =
    Bounds { connect_max: WAIT_MAX, answer_max: WAIT_MAX, attempts_max: 3, pause: Duration::from_millis(1) };
/// Bounds for a real member on a busy machine: no attempt is given up, so that a refusal is certain.
const PATIENT: Bounds = Bounds { pause: Duration::from_millis(100), attempts_max: 8, ..QUICK };
const OPENED: &str = r#"{"header":{"revision":"7"},"succeeded":true,"responses":[{"response_put":{}},
    {"response_range":{"kvs":[{"key":"cA==","mod_revision":"7","value":"MQ=="}]}},{"response_range":{}}]}"#;
const COMMITTED: &str = r#"{"header":{"revision":"8"},"succeeded":true}"#;

fn put(name: &str, bytes: usize) -> Transaction {
    Transaction::new().put(key(name), vec![7; bytes])
}

fn refusal_of(outcome: Result<u64, NotCommitted>) -> Refusal {
    match outcome {
        Err(NotCommitted::Refused { refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_transaction_that_is_too_large_for_etcd_is_refused_for_its_size() {
    let directory = directory("etcd-size");
    let more = ["--max-txn-ops", "20"].map(str::to_owned);
    let Some(cluster) = EtcdCluster::start_with(1, &directory, "http", &more) else { return };
    let mut store = EtcdStore::open(&settings(&cluster.endpoints(), "pool", PATIENT)).expect("opened");
    store.commit(&put("a", 1)).expect("small");
    // More than etcd takes; more than its gRPC library takes.
    for bytes in [1_700_000, 4_000_000] {
        let outcome = store.commit(&put("a", bytes));
        assert!(outcome.as_ref().is_err_and(|not| not.to_string().contains("--max-request-bytes")), "{outcome:?}");
        assert_eq!(refusal_of(outcome), Refusal::TooLarge, "{bytes}");
    }
    let many = (0..40).fold(Transaction::new(), |all, number| all.put(key(&format!("b/{number}")), Vec::new()));
    assert_eq!(refusal_of(store.commit(&many)), Refusal::TooLarge);
    assert_eq!(store.scan_all("").expect("read").len(), 1, "nothing was written");
    store.commit(&put("a", 2)).expect("the store can still be used");
}

#[test]
fn an_etcd_without_space_is_not_taken_for_a_transaction_that_is_too_large() {
    let directory = directory("etcd-space");
    // In two parts, since we have another word for what etcd means.
    let more = [concat!("--quota-back", "end-bytes"), "8388608"].map(str::to_owned);
    let Some(cluster) = EtcdCluster::start_with(1, &directory, "http", &more) else { return };
    let mut store = EtcdStore::open(&settings(&cluster.endpoints(), "pool", PATIENT)).expect("opened");
    let outcome = (0..40).map(|number| store.commit(&put(&format!("a/{number}"), 1_000_000))).find(Result::is_err);
    let line = outcome.as_ref().and_then(|outcome| outcome.as_ref().err()).map(ToString::to_string).unwrap_or_default();
    assert!(line.contains("database space exceeded") && line.contains("; compact and defragment"), "{line}");
    assert_eq!(refusal_of(outcome.expect("it has run out of space")), Refusal::NoSpace);
    assert_eq!(refusal_of(store.commit(&put("b", 1))), Refusal::NoSpace, "and not that an earlier write has failed");
    assert!(store.read(&key("a/0")).expect("it can be read").is_some());
}

/// Answers one request after the other: `None` closes the connection instead.
fn answering(answers: Vec<Option<(u16, &'static str)>>) -> EtcdStore {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        let mut answers = answers.into_iter();
        while let Ok((mut stream, _)) = listener.accept() {
            while take_request(&mut stream) {
                let Some(Some((status, body))) = answers.next() else { break };
                let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n", body.len());
                stream.write_all(format!("{head}{body}").as_bytes()).expect("it reads");
            }
        }
    });
    EtcdStore::open(&settings(&[endpoint], "p", QUICK)).expect("opened")
}

/// Reads a request. Returns `false` at the end of the connection.
fn take_request(stream: &mut TcpStream) -> bool {
    let (mut found, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&found);
        let length = |head: &str| head.split_once("content-length: ")?.1.lines().next()?.parse().ok();
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && length(head).is_none_or(|length: usize| body.len() >= length)
        {
            return true;
        }
        match stream.read(&mut part) {
            Ok(0) | Err(_) => return false,
            Ok(count) => found.extend_from_slice(&part[..count]),
        }
    }
}

const NO_SPACE: (u16, &str) = (429, r#"{"message":"etcdserver: mvcc: database space exceeded","code":8}"#);
const BUSY: (u16, &str) = (429, r#"{"message":"etcdserver: too many requests","code":8}"#);
const LEADER_CHANGED: (u16, &str) = (503, r#"{"message":"etcdserver: leader changed","code":14}"#);

/// The manager answered that nothing was changed, and the change was stored.
#[test]
fn a_refusal_after_a_lost_attempt_says_nothing_about_that_attempt() {
    for lost in [None, Some(LEADER_CHANGED)] {
        let mut store = answering(vec![Some((200, OPENED)), lost, Some(NO_SPACE)]);
        let outcome = store.commit(&put("a", 1));
        let is_unknown = |outcome: &Result<u64, NotCommitted>| {
            matches!(outcome, Err(NotCommitted::Unknown(StoreFailure::Refused { refusal: Refusal::NoSpace, .. })))
        };
        assert!(is_unknown(&outcome), "{lost:?}: {outcome:?}");
        assert!(matches!(store.read(&key("a")), Err(StoreFailure::Latched)));
    }
}

#[test]
fn an_etcd_that_is_busy_is_asked_again_as_often_as_the_bounds_say() {
    let mut store = answering(vec![Some((200, OPENED)), Some(BUSY), Some(BUSY), Some((200, COMMITTED))]);
    let absent = put("a", 1).expect(key("a"), Expectation::Absent);
    assert_eq!(store.commit(&absent).expect("at the third attempt"), 8);
    let all = vec![Some((200, OPENED)), Some(BUSY), Some(BUSY), Some(BUSY), Some(BUSY), Some(BUSY), Some(NO_SPACE)];
    let mut store = answering(all);
    assert_eq!(refusal_of(store.commit(&absent)), Refusal::Busy);
    assert_eq!(refusal_of(store.commit(&absent)), Refusal::NoSpace, "the store can still be used");
}
