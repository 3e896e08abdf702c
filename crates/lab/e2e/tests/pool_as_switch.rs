// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The pool as a CXL switch: a client of the FM API manages real donors as devices, and a real program uses what was
//! bound. Manager, donors, agents and the switch are processes of their own.
//!
//! Guards against these failures: the switch reports a bind or an unbind as done while the host does not have the
//! memory yet or has it still; a program reads other bytes than it has written, because its memory was taken from it;
//! a host gets bytes of the one before it; and a donor that is gone is shown as if it were there.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::pool::Pool;
use aquifer_e2e::pool_switch::PoolSwitch;
use aquifer_e2e::run::{LIMIT, Running, eventually, has_ended, managed, run, start};
use serde_json::{Value, json};

/// A logical device's memory, and what the pool counts it as.
const LD_BYTES: u64 = 256 << 20;
/// How long an unbind waits for its host here, in seconds.
const SETTLE_SECONDS: u64 = 3;
/// How soon the switch shows what has happened to a donor: the manager here counts one as gone after 2 s, and the
/// switch looks once a second. The rest is for a busy machine.
const SHOWN_MAX: Duration = Duration::from_secs(20);
/// Pages of the program.
const PAGES: usize = 12288;
/// What each page of the program begins with.
const MARK: &[u8] = b"aquifer-e2e: bytes of a host that no other host may see";

/// Fills 48 MiB with pages that begin with a mark, and then verifies and changes them until the file named by its first
/// argument appears. Prints how many passes it made and how many pages were wrong. The file `STOP.ready` says that all
/// of it was written.
const PROGRAM: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { PAGES = 12288, PAGE = 4096 };
static const char mark[] = "aquifer-e2e: bytes of a host that " "no other host may see";
static void fill(unsigned char *page, uint64_t number, uint64_t pass) {
    memcpy(page, mark, sizeof mark - 1);
    for (size_t at = 64; at < PAGE; at += 8) {
        uint64_t word = (number * PAGE + at) * 0x9e3779b97f4a7c15u ^ pass;
        memcpy(page + at, &word, 8);
    }
}
int main(int argc, char **argv) {
    if (argc < 2) return 2;
    /* Where nobody waits for it any more. */
    alarm(600);
    unsigned char *start = aligned_alloc(2 << 20, (size_t)PAGES * PAGE), expected[PAGE] = {0};
    memset(start, 0, (size_t)PAGES * PAGE);
    for (size_t page = 0; page < PAGES; page++) fill(start + page * PAGE, page, 0);
    char ready[4096];
    snprintf(ready, sizeof ready, "%s.ready", argv[1]);
    FILE *file = fopen(ready, "w");
    if (!file || fclose(file)) return 3;
    uint64_t pass = 0;
    long wrong = 0;
    for (int is_last = 0; !is_last; pass++) {
        is_last = !access(argv[1], F_OK);
        for (size_t page = 0; page < PAGES; page++) {
            fill(expected, page, pass);
            wrong += memcmp(start + page * PAGE, expected, PAGE) != 0;
            fill(start + page * PAGE, page, pass + 1);
        }
    }
    printf("passes %llu wrong %ld\n", (unsigned long long)pass, wrong);
    return wrong != 0;
}
"#;

/// The program, which uses a volume on a host.
struct User {
    running: Running,
    stop: PathBuf,
}

impl User {
    /// Starts it with a third of its memory as its budget, and waits until the rest has left.
    fn start(pool: &Pool, program: &std::path::Path, host: &str, volume: &str) -> User {
        let stop = scratch(&format!("switch-user-{host}")).join("stop");
        let words = ["--dram", "16MiB", "--tier", &pool.tier_on(host, volume, "")];
        let running = start(managed(&words, program, &[stop.to_str().expect("a path of ours")]));
        let user = User { running, stop };
        let launcher = user.running.child.id();
        eventually("it has written its memory", || user.stop.with_extension("ready").exists() || has_ended(launcher));
        if has_ended(launcher) {
            panic!("it has not even begun: {:?}", user.running.wait(LIMIT));
        }
        user
    }

    /// Lets it verify all of its memory once more, and end. Panics unless every byte was right.
    fn end(self) {
        std::fs::write(&self.stop, "").expect("the scratch directory can be written");
        let ended = self.running.wait(LIMIT);
        println!("{}", ended.stdout.trim());
        ended.expect(0);
        assert!(ended.stdout.ends_with(" wrong 0\n"), "{}", ended.stdout);
    }
}

/// Waits until something is shown, and prints how long that took.
#[track_caller]
fn shown(what: &str, mut is_shown: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_shown() {
        assert!(begun.elapsed() < SHOWN_MAX, "{what}: not shown after {SHOWN_MAX:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("{what}: shown after {:?}", begun.elapsed());
}

/// The bytes that a logical device has, as its donor's port says.
fn bytes(switch: &PoolSwitch, port: usize, ld: usize) -> Value {
    switch.done(&format!("lds --port {port}"))["allocations"][ld]["bytes"].clone()
}

#[test]
fn memory_of_a_donor_is_given_to_a_host_kept_by_its_program_and_wiped_for_the_next_host() {
    let Some(program) = compile_text("switch-user", PROGRAM) else { return };
    // Little more than the logical device has, because all of it is searched.
    let Some(mut pool) = Pool::start_with("switch", &["h2"], 1, &["--size", "320MiB"], "1GiB") else { return };
    let switch = PoolSwitch::start(&pool, SETTLE_SECONDS);
    let reserved = |pool: &Pool| pool.donors[0].number("reserved_bytes");

    // An allocation makes the volume: nobody else can have what it needs. The bind sets the memory aside.
    switch.done("allocate --port 0 --ld 3 --size 256MiB");
    assert_eq!(bytes(&switch, 0, 3), LD_BYTES);
    switch.refused("allocate --port 0 --ld 4 --size 256MiB", "Invalid Input");
    let create = ["create", "other", "--size", "128MiB", "--zone", "lab", "--class", "tcp", "--redundancy", "none"];
    assert_eq!(pool.try_fabric(&create).status, Some(1), "the pool has promised the donor's memory");
    pool.permit_all();
    switch.done("bind --vcs 0 --vppb 5 --port 0 --ld 3");
    assert_eq!(reserved(&pool), LD_BYTES, "a bind is done when the host has the memory");
    let user = User::start(&pool, &program, "h1", "fm-d1-3");
    eventually("it uses the donor", || pool.donors[0].number("lent_bytes") >= 32 << 20);
    let Some(marks) = pool.donors[0].count_lendable(MARK) else { return };
    assert!(marks > PAGES / 2, "its pages are there: {marks}");

    // An unbind takes nothing from the program, and is not reported as done.
    let begun = Instant::now();
    let why = switch.refused("unbind --vcs 0 --vppb 5", "Retry Required");
    assert!(why.contains("until the vPPB is no longer in progress"), "{why}");
    let waited = begun.elapsed();
    assert!((Duration::from_secs(SETTLE_SECONDS)..Duration::from_secs(20)).contains(&waited), "{waited:?}");
    assert_eq!(switch.vppb(0, 5)["status"], "in-progress");
    for line in ["allocate --port 0 --ld 3 --size 0B", "bind --vcs 1 --vppb 0 --port 0 --ld 3"] {
        switch.refused(line, "Invalid Input");
    }
    assert_eq!((bytes(&switch, 0, 3), reserved(&pool)), (LD_BYTES.into(), LD_BYTES));
    let late = run(managed(&["--dram", "16MiB", "--tier", &pool.tier("fm-d1-3", "")], &program, &["x"]), LIMIT);
    assert!(late.stderr.contains("it is not bound to this host"), "no other program gets it: {}", late.stderr);
    user.end();
    shown("the vPPB is unbound", || switch.vppb(0, 5)["status"] == "unbound");
    let unbound = json!({ "type": "vppb", "kind": "binding-change", "status": "unbound", "vcs_id": 0, "vppb_id": 5 });
    switch.wait_for_event("a record says so", &unbound);
    assert_eq!((reserved(&pool), pool.donors[0].number("lent_bytes")), (0, 0));

    // Another host gets it without the bytes of the first one.
    switch.done("bind --vcs 1 --vppb 0 --port 0 --ld 3");
    assert_eq!((reserved(&pool), pool.donors[0].number("wiping_bytes")), (LD_BYTES, 0));
    assert_eq!(pool.donors[0].count_lendable(MARK), Some(0), "nothing is left of the first host");
    let user = User::start(&pool, &program, "h2", "fm-d1-3");
    eventually("it uses the donor", || pool.donors[0].number("lent_bytes") >= 32 << 20);
    user.end();

    // Until the agent is sure that the program has left no child, an unbind may end before it.
    if let Err(why) = switch.fmapi("unbind --vcs 1 --vppb 0") {
        assert!(why.contains("Retry Required"), "{why}");
    }
    shown("the vPPB is unbound", || switch.vppb(1, 0)["status"] == "unbound");
    switch.done("allocate --port 0 --ld 3 --size 0B");
    pool.settle();
    assert!(pool.list("volumes").is_empty(), "it is given back");
}

#[test]
fn a_donor_that_is_killed_is_shown_as_gone_until_it_is_back() {
    let Some(program) = compile_text("switch-user", PROGRAM) else { return };
    let Some(mut pool) = Pool::start("switch-killed", 2, &["--size", "1GiB"], "2GiB") else { return };
    // The unbind has to wait for longer than the switch takes to show what happens meanwhile.
    let switch = PoolSwitch::start(&pool, 40);
    for (port, ld) in [(0, 0), (0, 1), (1, 2)] {
        switch.done(&format!("allocate --port {port} --ld {ld} --size 256MiB"));
    }
    pool.permit_all();
    switch.done("bind --vcs 0 --vppb 0 --port 0 --ld 0");
    switch.done("bind --vcs 0 --vppb 2 --port 1 --ld 2");
    let user = User::start(&pool, &program, "h1", "fm-d2-2");
    std::thread::scope(|scope| {
        let unbind = scope.spawn(|| switch.fmapi("unbind --vcs 0 --vppb 2"));
        eventually("the unbind is under way", || switch.vppb(0, 2)["status"] == "in-progress");
        pool.donors[0].signal("-KILL");
        shown("the link of its port is down", || switch.link(0) != "l0");
        assert!(!unbind.is_finished(), "the program has the memory");
        user.end();
        let ended = unbind.join().expect("no panic");
        ended.expect("the program has ended, and its host has let go");
    });
    let link = |state: &str| json!({ "type": "port", "kind": "link-state-change", "port_id": 0, "link_state": state });
    switch.wait_for_event("a record says so", &link("detect"));
    switch.done("events --clear");
    for line in ["allocate --port 0 --ld 3 --size 256MiB", "bind --vcs 0 --vppb 1 --port 0 --ld 1", "lds --port 0"] {
        let why = switch.refused(line, "Invalid Input");
        assert!(why.contains("aquifer fmapi ports"), "{why}");
    }
    assert_eq!(switch.vppb(0, 0)["ld_id"], 0, "what is bound stays bound");

    // It comes back empty, and gets what is bound and allocated there again.
    pool.restart_donor(1);
    shown("the link of its port is up", || switch.link(0) == "l0");
    switch.wait_for_event("a record says so", &link("l0"));
    shown("the vPPB is bound", || switch.vppb(0, 0)["status"] == "ld");
    shown("its memory is set aside", || pool.donors[0].number("reserved_bytes") == LD_BYTES);
    let sizes = [0, 1, 3].map(|ld| bytes(&switch, 0, ld));
    assert_eq!(sizes, [LD_BYTES.into(), LD_BYTES.into(), Value::from(0)]);
    switch.done("bind --vcs 0 --vppb 1 --port 0 --ld 1");
    for volume in ["fm-d1-0", "fm-d1-1"] {
        User::start(&pool, &program, "h1", volume).end();
    }
}
