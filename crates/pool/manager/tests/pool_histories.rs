// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Seeded histories of a real daemon with real donors, each a process: a volume is bound, grown, shrunk, moved,
//! drained, applied and unbound. During each operation the daemon is killed at some effect, or a donor at some moment,
//! or both.
//!
//! Afterwards, each operation must have happened as a whole or not at all, each answered operation must have happened,
//! and donors must lend exactly the desired amount: a slab that is lent twice, or lost, would show in the sum. The
//! model in `crates/pool/fabric/tests/histories.rs` checks the same with every interleaving; this test uses sockets,
//! files and SIGKILL.
//!
//! `AQUIFER_POOL_HISTORIES=100` plays more, `AQUIFER_POOL_SEED=N` one of them.

mod daemon;
mod pool;

use std::time::Instant;

use aquifer_fabric::Bytes;
use aquifer_test_support::Random;
use daemon::{APPLY, CHUNKS, CONNECTIONS, Daemon, WAIT_MAX, apply_body, bind_body};
use pool::whole::{DONORS, ENDS, Pool, declaration};
use pool::{wait_until, wait_until_registered};
use serde_json::{Value, json};

/// The default number of histories: they take about ten seconds.
const HISTORIES: u64 = 3;
/// Operations of one history.
const OPERATIONS: u64 = 5;
/// The largest number of the effect at which the daemon is killed; most operations have fewer effects.
const EFFECTS_MAX: u64 = 24;
const SMALL: &str = "16MiB";
const LARGE: &str = "32MiB";

/// Tests nothing itself: the other test runs this program with only this test, as a donor.
#[test]
fn donor_process() {
    pool::be_a_donor();
}

/// The state of the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    size: String,
    is_bound: bool,
}

/// An order, and the state of the volume after it.
struct Operation {
    what: String,
    method: &'static str,
    path: String,
    body: String,
    after: Seen,
}

fn operation(random: &mut Random, seen: &Seen) -> Operation {
    let chunk = format!("{CHUNKS}/db");
    let with = |what: &str, method, path: &str, body: Value, after: Seen| Operation {
        what: what.to_owned(),
        method,
        path: path.to_owned(),
        body: if body.is_null() { String::new() } else { body.to_string() },
        after,
    };
    let resized = || Seen { size: if seen.size == SMALL { LARGE } else { SMALL }.to_owned(), ..seen.clone() };
    let turned = || Seen { is_bound: !seen.is_bound, ..seen.clone() };
    match random.below(5) {
        0 if seen.is_bound => with("unbind", "DELETE", &format!("{CONNECTIONS}/db"), Value::Null, turned()),
        0 => Operation { body: bind_body("db", "h1"), ..with("bind", "POST", CONNECTIONS, Value::Null, turned()) },
        1 => {
            let after = resized();
            let mib = after.size.trim_end_matches("MiB").parse::<u64>().expect("a number");
            with(&format!("resize to {}", after.size), "PATCH", &chunk, json!({ "MemoryChunkSizeMiB": mib }), after)
        }
        2 => {
            let path = format!("{chunk}/Actions/Oem/AquiferMemoryChunk.Move");
            with("move", "POST", &path, json!({}), seen.clone())
        }
        3 => {
            let donor = DONORS[random.below(3) as usize];
            with(&format!("drain {donor}"), "POST", &drain_path(donor), json!({}), seen.clone())
        }
        _ => {
            let after = Seen { is_bound: random.below(2) == 0, ..resized() };
            let mut wanted = declaration(&DONORS);
            wanted["volumes"]["db"]["spec"]["size"] = json!(after.size);
            if after.is_bound {
                wanted["volumes"]["db"]["host"] = json!("h1");
            }
            Operation { body: apply_body(&wanted), ..with("apply", "POST", APPLY, Value::Null, after) }
        }
    }
}

fn drain_path(donor: &str) -> String {
    format!("/redfish/v1/Fabrics/Aquifer/Endpoints/Donor.{donor}/Actions/Oem/AquiferEndpoint.Drain")
}

/// The process to kill.
#[derive(Debug)]
struct Kills {
    daemon_at_effect: Option<u64>,
    /// A donor, and whether it is killed before the order or after it.
    donor: Option<(&'static str, bool)>,
}

impl Kills {
    fn draw(random: &mut Random) -> Kills {
        let what = random.below(3);
        let donor = (DONORS[random.below(3) as usize], random.below(2) == 0);
        let effect = 1 + random.below(EFFECTS_MAX);
        Kills { daemon_at_effect: (what != 0).then_some(effect), donor: (what != 1).then_some(donor) }
    }
}

/// Waits until all ends answer, or the daemon was killed.
fn is_ready(daemon: &mut Daemon, pool: &Pool) -> bool {
    let deadline = Instant::now() + WAIT_MAX;
    let mut missing = ENDS.to_vec();
    while !daemon.is_killed() {
        missing.retain(|end| {
            let path = format!("/redfish/v1/Fabrics/Aquifer/Endpoints/{end}");
            let answer = daemon.ask("GET", &path, &pool.token, "");
            answer.is_none_or(|answer| answer.body["Status"]["State"] != "Enabled")
        });
        if missing.is_empty() {
            return true;
        }
        assert!(Instant::now() < deadline, "{missing:?} do not answer");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    false
}

fn seen(daemon: &Daemon, pool: &Pool) -> (Seen, u64) {
    let volume = daemon.ask("GET", &format!("{CHUNKS}/db"), &pool.token, "").expect("an answer").body;
    let spec = &volume["Oem"]["Aquifer"]["Spec"];
    let members = volume["Oem"]["Aquifer"]["Members"].as_array().expect("a list");
    let bytes = |member: &Value| member["Size"].as_str().and_then(|size| size.parse::<Bytes>().ok()).expect("a size").0;
    let is_bound = !volume["Oem"]["Aquifer"]["Host"].is_null();
    let size = spec["size"].as_str().expect("a size").to_owned();
    let lent = if is_bound { members.iter().map(bytes).sum() } else { 0 };
    if is_bound {
        assert_eq!(pool.host.members(), members.len(), "the host has the volume between two states");
    } else {
        assert_eq!(pool.host.members(), 0, "the host has a volume that is not bound to it");
    }
    (Seen { size, is_bound }, lent)
}

/// Checks that donors lend exactly the desired amount.
fn judge(daemon: &Daemon, pool: &Pool, lent: u64) {
    wait_until("donors lend what is desired", || {
        let lends = |id: &&str| pool.donor(daemon, id)["Lent"].as_str().and_then(|lent| lent.parse::<Bytes>().ok());
        DONORS.iter().map(|id| lends(id).expect("a size").0).sum::<u64>() == lent
    });
}

fn play(seed: u64) {
    let mut random = Random(seed);
    let (mut pool, daemon) = Pool::start(&format!("history-{seed}"));
    drop(daemon);
    let mut before = Seen { size: SMALL.to_owned(), is_bound: false };
    for number in 0..OPERATIONS {
        let (order, kills) = (operation(&mut random, &before), Kills::draw(&mut random));
        let story = format!("seed {seed}, operation {number}: {} of {before:?}, {kills:?}", order.what);
        println!("{story}");
        let mut daemon = pool.restart(kills.daemon_at_effect);
        let mut answer = None;
        if is_ready(&mut daemon, &pool) {
            let kill = |pool: &mut Pool, id: &str| pool.donors.get_mut(id).expect("it is there").kill();
            let _ = kills.donor.filter(|(_, is_first)| *is_first).map(|(id, _)| kill(&mut pool, id));
            answer = daemon.ask(order.method, &order.path, &pool.token, &order.body);
            let _ = kills.donor.filter(|(_, is_first)| !*is_first).map(|(id, _)| kill(&mut pool, id));
            let status = answer.as_ref().map(|answer| answer.status);
            // With one donor missing there may be no room; the order is then refused as a whole.
            let is_refused = status == Some(409) || status == Some(507);
            assert!(status.is_none_or(|status| (200..300).contains(&status)) || is_refused, "{story}: {answer:?}");
            if is_refused {
                answer = None;
            }
            // The order may have fewer effects than the chosen number; then the daemon is not killed.
            std::thread::sleep(std::time::Duration::from_millis(random.below(200)));
            if let Some((id, _)) = kills.donor {
                pool.donors.get_mut(id).expect("it is there").restart();
            }
        }
        drop(daemon);
        let again = pool.restart(None);
        wait_until_registered(&again, &pool.token, &ENDS);
        for donor in DONORS {
            let undo = json!({ "Draining": false }).to_string();
            let answer = again.ask("POST", &drain_path(donor), &pool.token, &undo).expect("an answer");
            assert!((200..300).contains(&answer.status), "{answer:?}");
        }
        assert!(again.settle(&pool.token), "{story}");
        let (now, lent) = seen(&again, &pool);
        assert!(now == before || now == order.after, "{story}: {now:?}");
        assert!(answer.is_none() || now == order.after, "{story}: an answered order is lost");
        judge(&again, &pool, lent);
        before = now;
    }
    let daemon = pool.restart(None);
    wait_until_registered(&daemon, &pool.token, &ENDS);
    pool.unbind(&daemon);
    pool.expect_nothing_lent(&daemon);
    drop(daemon);
    std::fs::remove_dir_all(&pool.directory).expect("removed");
}

#[test]
fn histories_with_killed_daemons_and_donors_lend_nothing_twice_and_lose_nothing() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = setting("AQUIFER_POOL_SEED") {
        return play(seed);
    }
    let count = setting("AQUIFER_POOL_HISTORIES").unwrap_or(HISTORIES);
    (0..count).for_each(play);
}
