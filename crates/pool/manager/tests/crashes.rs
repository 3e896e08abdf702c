// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Kills the daemon with SIGKILL at every effect of each operation: before and after each transaction of its store and
//! each command to a peer. After a restart the pool settles, no slab is lent twice, none is lost, and the operation
//! happened as a whole or not at all.

mod daemon;

use std::path::Path;

use aquifer_fabric::Bytes;
use aquifer_state_store::EmbeddedStore;
use daemon::judge::judge;
use daemon::{APPLY, CHUNKS, CONNECTIONS, Daemon, apply_body, bind_body, declaration, rack};
use serde_json::json;

/// Effects of one operation at most, with the start of the daemon.
const EFFECTS_MAX: u64 = 200;

/// Compares what the simulated peers hold with what is desired, from outside the daemon.
fn audit(directory: &Path) {
    let store = EmbeddedStore::open(&directory.join("state/state.redb")).expect("opened");
    judge(&store, &rack(None), &directory.join("state/simulated"));
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory").flatten() {
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).expect("copied")),
        }
    }
}

/// Plays one operation again and again, each time with a kill one effect later.
fn at_every_effect(name: &str, method: &str, path: &str, body: &str) {
    let directory = daemon::directory(name);
    let (prepared, played) = (directory.join("prepared"), directory.join("played"));
    std::fs::create_dir_all(&prepared).expect("a directory");
    let first = Daemon::start(&prepared, &rack(None), "");
    let token = first.login("admin", &first.password());
    let applied = first.ask("POST", APPLY, &token, &apply_body(&declaration())).expect("an answer");
    assert_eq!(applied.status, 200, "{applied:?}");
    assert!(first.settle(&token));
    let volume = first.ask("GET", &format!("{CHUNKS}/db"), &token, "").expect("an answer").body;
    let donor = volume["Oem"]["Aquifer"]["Members"][0]["Source"]["@odata.id"].as_str().expect("a donor");
    let path = &path.replace("{donor}", donor);
    drop(first);
    audit(&prepared);
    let mut kills = 0;
    for number in 1..EFFECTS_MAX {
        copy(&prepared, &played);
        let mut daemon = Daemon::start(&played, &rack(Some(number)), "");
        // Killed while it started, or before, during or after the operation.
        let outcome = if daemon.is_killed() { None } else { daemon.ask(method, path, &token, body) };
        if let Some(outcome) = &outcome {
            assert!((200..300).contains(&outcome.status), "{outcome:?}");
        }
        let is_done = outcome.is_some() && daemon.settle(&token);
        if !is_done {
            daemon.wait_until_killed();
            kills += 1;
        }
        drop(daemon);
        let again = Daemon::start(&played, &rack(None), "");
        assert!(again.settle(&token), "{name}, kill at effect {number}");
        drop(again);
        audit(&played);
        if is_done {
            assert!(kills > 6, "{name} has only {kills} effects");
            std::fs::remove_dir_all(directory).expect("removed");
            return;
        }
    }
    panic!("{name} has more than {EFFECTS_MAX} effects");
}

#[test]
fn a_bind_is_whole_whatever_effect_is_the_last() {
    at_every_effect("crash-bind", "POST", CONNECTIONS, &bind_body("cache", "h001"));
}

#[test]
fn growing_is_whole_whatever_effect_is_the_last() {
    let size = json!({ "MemoryChunkSizeMiB": 12 << 10 }).to_string();
    at_every_effect("crash-grow", "PATCH", &format!("{CHUNKS}/db"), &size);
}

#[test]
fn a_move_is_whole_whatever_effect_is_the_last() {
    let path = format!("{CHUNKS}/db/Actions/Oem/AquiferMemoryChunk.Move");
    at_every_effect("crash-move", "POST", &path, "{}");
}

#[test]
fn a_drain_is_whole_whatever_effect_is_the_last() {
    let path = "{donor}/Actions/Oem/AquiferEndpoint.Drain";
    at_every_effect("crash-drain", "POST", path, "{}");
}

#[test]
fn applying_is_whole_whatever_effect_is_the_last() {
    let mut changed = declaration();
    changed["volumes"]["db"]["host"] = "h001".into();
    changed["volumes"]["cache"]["spec"]["size"] = Bytes::gib(6).to_string().into();
    at_every_effect("crash-apply", "POST", APPLY, &apply_body(&changed));
}
