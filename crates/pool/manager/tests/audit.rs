// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The daemon checks its own audit log: at its start, and when it is asked. A record that another program has changed
//! is named, raises an event and a metric, and stops nothing.

mod daemon;

use aquifer_state_store::{EmbeddedStore, Key, StateStore, Transaction};
use daemon::{APPLY, Daemon, apply_body, declaration, directory, rack, request};

const VERIFICATION: &str = "/redfish/v1/Oem/Aquifer/Audit/Verification";

#[test]
fn a_changed_record_is_found_at_the_start_and_when_it_is_asked_for() {
    let directory = directory("audit");
    let mut first = Daemon::start(&directory, &rack(None), "");
    let token = first.login("admin", &first.password());
    assert_eq!(first.ask("POST", APPLY, &token, &apply_body(&declaration())).expect("an answer").status, 200);
    assert!(first.settle(&token));
    let whole = first.ask("GET", VERIFICATION, &token, "").expect("an answer");
    assert_eq!((whole.status, &whole.body["IsIntact"]), (200, &true.into()), "{whole:?}");
    assert!(whole.body["Tail"]["records"].as_u64().is_some_and(|records| records >= 3), "{whole:?}");
    first.kill();

    let file = directory.join("state/state.redb");
    let mut store = EmbeddedStore::open(&file).expect("opened");
    let key = Key::new(format!("audit/{:016}", 2)).expect("a key");
    let value = store.read(&key).expect("read").expect("the second record").value;
    let changed = String::from_utf8(value).expect("JSON").replace("\"who\":\"admin\"", "\"who\":\"nobody\"");
    store.commit(&Transaction::new().put(key, changed.into_bytes())).expect("changed");
    drop(store);

    let config = std::fs::read_to_string(directory.join("fabricd.toml")).expect("the configuration");
    let config = config.replacen("listen = ", "metrics = \"127.0.0.1:0\"\nlisten = ", 1);
    let daemon = Daemon::launch(&directory, &config, &[]);
    assert!(daemon.settle(&token), "the pool is managed all the same, and rounds have checked the log by now");
    let log = std::fs::read_to_string(directory.join("log")).expect("a log");
    assert!(log.contains("record 2 of the audit log was changed; compare it with an exported copy"), "{log}");
    let metrics = daemon.raw_at(&daemon.metrics, request("GET", "/metrics", "", "").as_bytes()).expect("an answer");
    assert!(metrics.contains("aquifer_fabric_audit_damaged 1\n"), "{metrics}");
    let found = daemon.ask("GET", VERIFICATION, &token, "").expect("an answer");
    assert_eq!(found.body["IsIntact"], false, "{found:?}");
    assert!(found.body["Damage"].as_str().is_some_and(|damage| damage.contains("record 2")), "{found:?}");
    drop(daemon);
    std::fs::remove_dir_all(directory).expect("removed");
}
