// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The front or the manager is killed or stopped in the middle of an order. Afterwards the state is the one before the
//! order or the one after it, the switch shows it, what was reported as done is done, and a repetition succeeds.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::daemon::Daemon;
use crate::site::{CHUNKS, Client, Front, SEEN_MAX, Site};

const ALLOCATE: &str = "allocate --port 0 --ld 1 --size 512MiB";
const BIND: &str = "bind --vcs 0 --vppb 3 --port 0 --ld 1";
/// How long a client waits for an answer; `site.rs` says so to `aquifer fmapi`.
const CLIENT_WAIT: Duration = Duration::from_secs(20);
/// Effects of both orders at most, with those of the manager's start.
const EFFECTS_MAX: u64 = 100;
/// Kills of the front, spread over its orders.
const KILLS: u32 = 24;

/// Allocates and binds, as far as that succeeds.
fn allocate_and_bind(client: &Client) -> [Result<Value, String>; 2] {
    let allocated = client.fmapi(ALLOCATE);
    let bound = if allocated.is_ok() { client.fmapi(BIND) } else { Err("not tried".into()) };
    [allocated, bound]
}

/// Checks that the state is whole, that it has what was reported as done, and that the front shows it; then repeats
/// what is missing. The manager runs.
fn check_and_repeat(site: &Site, front: &Front, outcomes: &[Result<Value, String>; 2], when: &str) {
    site.daemon.settle(&site.token);
    let ld = site.ld(1);
    let is_whole = matches!(&ld, None | Some((2, None))) || ld == Some((2, Some("h000".into())));
    assert!(is_whole, "{when}: {ld:?}");
    assert!(outcomes[0].is_err() || ld.is_some(), "{when}: {outcomes:?}, but {ld:?}");
    assert!(outcomes[1].is_err() || ld.as_ref().is_some_and(|(_, host)| host.is_some()), "{when}: {ld:?}");
    let shows = |front: &Front, ld: &Option<(u64, Option<String>)>| {
        let is_bound = ld.as_ref().is_some_and(|(_, host)| host.is_some());
        let vppb = front.vppb(0, 3);
        front.units()[1] == ld.as_ref().map_or(0, |(units, _)| *units)
            && vppb["status"] == if is_bound { "ld" } else { "unbound" }
            && (0..3).all(|vppb| front.vppb(0, vppb)["status"] == "unbound")
    };
    front.see(when, |front| shows(front, &ld));
    if ld.is_none() {
        repeat(front, ALLOCATE, when);
    }
    if ld.is_none_or(|(_, host)| host.is_none()) {
        repeat(front, BIND, when);
    }
    let after = Some((2, Some("h000".to_owned())));
    assert_eq!(site.ld(1), after, "{when}");
    assert!(shows(front, &after), "{when}: {:?}", front.fmapi("vcs"));
    let (_, volumes) = site.ask("GET", CHUNKS, &Value::Null);
    assert_eq!(volumes["Members@odata.count"], 1, "{when}: {volumes}");
}

/// Repeats an order until it succeeds.
fn repeat(front: &Front, line: &str, when: &str) {
    let begun = Instant::now();
    while let Err(failure) = front.fmapi(line) {
        assert!(begun.elapsed() < SEEN_MAX, "{when}: {failure}; {:?}", front.said());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Takes everything back.
fn undo(front: &Front) {
    repeat(front, "unbind --vcs 0 --vppb 3", "undo");
    repeat(front, "allocate --port 0 --ld 1 --size 0B", "undo");
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

/// Waits until the manager has been killed or something else holds. Returns whether it was killed.
fn is_killed(daemon: &mut Daemon, mut is_over: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if daemon.has_ended() {
            return true;
        }
        if is_over() {
            return false;
        }
        assert!(begun.elapsed() < SEEN_MAX * 2, "neither ends");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_order_is_whole_whatever_effect_is_the_managers_last() {
    let (mut site, front) = Site::start("effects");
    // The front's session is stored, too.
    site.daemon.kill();
    let (state, prepared) = (site.directory.join("state"), site.directory.join("prepared"));
    copy(&state, &prepared);
    let mut kills = 0;
    for number in 1..EFFECTS_MAX {
        site.daemon.kill();
        copy(&prepared, &state);
        if !site.restart_manager(&format!("kill-at-effect = {number}\n")) {
            continue;
        }
        let is_new = || front.units()[1] == 0 && front.vppb(0, 3)["status"] == "unbound";
        if is_killed(&mut site.daemon, is_new) {
            continue;
        }
        let client = front.client();
        let orders = std::thread::spawn(move || allocate_and_bind(&client));
        let mut was_killed = is_killed(&mut site.daemon, || orders.is_finished());
        if !was_killed {
            // What follows an order may be the last effect as well.
            std::thread::sleep(Duration::from_millis(300));
            was_killed = site.daemon.has_ended();
        }
        if was_killed {
            assert!(site.restart_manager(""), "it starts again");
        }
        let outcomes = orders.join().expect("no panic");
        check_and_repeat(&site, &front, &outcomes, &format!("kill at effect {number}"));
        if !was_killed {
            println!("{kills} kills within the orders, the last one at effect {}", number - 1);
            assert!(kills >= 6, "both orders have only {kills} effects");
            return site.finish(front);
        }
        kills += 1;
    }
    panic!("more than {EFFECTS_MAX} effects");
}

#[test]
fn an_order_is_whole_when_the_front_is_killed() {
    let (site, mut front) = Site::start("front-killed");
    let begun = Instant::now();
    let outcomes = allocate_and_bind(&front.client());
    let whole = begun.elapsed();
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    undo(&front);
    let mut ended = [0; 3];
    for number in 0..KILLS {
        let delay = whole * number / (KILLS - 4);
        let client = front.client();
        let orders = std::thread::spawn(move || allocate_and_bind(&client));
        std::thread::sleep(delay);
        front.kill();
        let outcomes = orders.join().expect("no panic");
        ended[outcomes.iter().filter(|outcome| outcome.is_ok()).count()] += 1;
        front = Front::start(&site.directory);
        check_and_repeat(&site, &front, &outcomes, &format!("killed after {delay:?}"));
        undo(&front);
    }
    println!("of the two orders, 0, 1 or 2 were reported as done: {ended:?}");
    site.finish(front);
}

#[test]
fn an_order_is_whole_when_the_manager_stands_still() {
    let (site, front) = Site::start("stopped");
    let begun = Instant::now();
    let outcomes = allocate_and_bind(&front.client());
    let whole = begun.elapsed();
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    undo(&front);
    let pid = Pid::from_raw(site.daemon.id() as i32);
    for number in 0..6 {
        let delay = whole * number / 6;
        let client = front.client();
        let orders = std::thread::spawn(move || allocate_and_bind(&client));
        std::thread::sleep(delay);
        kill(pid, Signal::SIGSTOP).expect("it runs");
        let stopped = Instant::now();
        // A bind that is stored waits for its host, and so for the manager; an allocation does not.
        while !orders.is_finished() && stopped.elapsed() < Duration::from_secs(12) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(front.fmapi("vcs").is_ok(), "what was last known is shown");
        kill(pid, Signal::SIGCONT).expect("it is there");
        let outcomes = orders.join().expect("no panic");
        assert!(stopped.elapsed() < CLIENT_WAIT, "{:?}: {outcomes:?}", stopped.elapsed());
        let is_unanswered = |outcome: &Result<Value, String>| {
            outcome.as_ref().is_err_and(|line| line.contains("no answer") || line.contains("in time"))
        };
        assert!(!outcomes.iter().any(is_unanswered), "{outcomes:?}");
        check_and_repeat(&site, &front, &outcomes, &format!("stopped after {delay:?}"));
        undo(&front);
    }
    site.finish(front);
}

/// The client gave up after two seconds, and the memory was taken all the same.
#[test]
fn an_allocation_waits_for_a_manager_that_is_slow() {
    let (site, front) = Site::start("slow");
    let pid = Pid::from_raw(site.daemon.id() as i32);
    kill(pid, Signal::SIGSTOP).expect("it runs");
    let client = front.client();
    let order = std::thread::spawn(move || client.fmapi_as_is("allocate --port 0 --ld 0 --size 256MiB"));
    // Longer than a client waits for other answers, and shorter than the front waits for the manager's.
    std::thread::sleep(Duration::from_millis(3500));
    kill(pid, Signal::SIGCONT).expect("it is there");
    let outcome = order.join().expect("no panic");
    assert!(outcome.is_ok(), "{outcome:?}");
    site.finish(front);
}
