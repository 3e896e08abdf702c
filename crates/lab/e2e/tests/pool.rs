// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Programs in volumes of a pool: a real manager, an agent and donors, each a process, with TLS between them.
//!
//! Guards against this failure: a volume grows, shrinks or moves, or one of its processes is drained, killed or absent,
//! and a program that uses the volume reads other bytes than it has written, or hangs. The tests print how long the
//! longest access took, and do not fail above the required two seconds, because a busy machine may need longer.

use std::sync::Mutex;
use std::time::Duration;

use aquifer_e2e::build::compile_text;
use aquifer_e2e::matrix::{PARTS_ALL, Setting};
use aquifer_e2e::pool::Pool;
use aquifer_e2e::run::{LIMIT, eventually, has_ended, managed, start};
use aquifer_e2e::verifying::{ALARM, Game, Verified, verified};

/// Serializes the tests, because each uses the whole machine.
static TURN: Mutex<()> = Mutex::new(());

/// How long the manager, and the agent, are down.
const ABSENT: Duration = Duration::from_secs(2);

/// STREAM (McCalpin) over 96 MiB until the file named by its first argument appears: copy, scale, add, triad. Prints
/// the passes, and how many elements are wrong at the end: all of one array are equal, and follow from the passes.
const STREAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
enum { LEN = 4 << 20 };
int main(int argc, char **argv) {
    volatile double *a = malloc(LEN * sizeof *a), *b = malloc(LEN * sizeof *b), *c = malloc(LEN * sizeof *c);
    double x = 1, y = 2, z = 0;
    long passes = 0, wrong = 0;
    for (long at = 0; at < LEN; at++) a[at] = x, b[at] = y, c[at] = z;
    while (argc < 2 || access(argv[1], F_OK)) {
        for (long at = 0; at < LEN; at++) c[at] = a[at];
        for (long at = 0; at < LEN; at++) b[at] = 0.3 * c[at];
        for (long at = 0; at < LEN; at++) c[at] = a[at] + b[at];
        for (long at = 0; at < LEN; at++) a[at] = b[at] + 0.3 * c[at];
        z = x; y = 0.3 * z; z = x + y; x = y + 0.3 * z;
        passes++;
    }
    for (long at = 0; at < LEN; at++) wrong += (a[at] != x) + (b[at] != y) + (c[at] != z);
    printf("passes %ld wrong %ld\n", passes, wrong);
    return wrong != 0 || passes == 0;
}
"#;

/// Fills 48 MiB and forks. Both processes then write and verify whole pages at random until the file named by the first
/// argument appears, and then verify all of them. Each prints how many pages were wrong, and how many accesses were
/// errors. The child creates the file `STOP.ready` when it has lived and faulted for long enough to have threads of the
/// pager.
const FAMILY: &str = r#"
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
enum { PAGES = 12288, PAGE = 4096, WORDS = PAGE / 8 };
static uint64_t *memory;
static uint32_t versions[PAGES];
static sigjmp_buf again;
static volatile long wrong, lost;
static void on_bus(int number) { (void)number; siglongjmp(again, 1); }
static uint64_t word(size_t page, size_t at) { return (page * WORDS + at) * 0x9e3779b97f4a7c15u ^ versions[page]; }
static void fill(size_t page) {
    for (size_t at = 0; at < WORDS; at++) ((volatile uint64_t *)memory)[page * WORDS + at] = word(page, at);
}
static void verify(size_t page) {
    for (size_t at = 0; at < WORDS; at++)
        if (((volatile uint64_t *)memory)[page * WORDS + at] != word(page, at)) { wrong++; return; }
}
static void play(const char *name, const char *stop, const char *ready) {
    alarm(600);
    time_t begun = time(NULL);
    static volatile size_t page;
    volatile uint64_t random = 88172645463325252u + (ready != NULL), steps = 0;
    while (steps % 256 || access(stop, F_OK)) {
        random ^= random << 13; random ^= random >> 7; random ^= random << 17;
        page = random % PAGES;
        if (sigsetjmp(again, 1)) lost++;
        else {
            verify(page);
            if ((random >> 40) % 8 == 0) { versions[page]++; fill(page); }
        }
        if (++steps == 4096) while (time(NULL) < begun + 2) verify(steps % PAGES);
        if (steps == 4096 && ready) { FILE *file = fopen(ready, "w"); if (!file || fclose(file)) _exit(3); }
    }
    for (page = 0; page < PAGES; page++) {
        if (sigsetjmp(again, 1)) { lost++; continue; }
        verify(page);
    }
    static char line[100];
    int len = snprintf(line, sizeof line, "%s: wrong %ld lost %ld\n", name, wrong, lost);
    if (write(1, line, len) != len) _exit(3);
}
int main(int argc, char **argv) {
    if (argc < 2) return 2;
    struct sigaction action = {.sa_handler = on_bus, .sa_flags = SA_NODEFER};
    sigaction(SIGBUS, &action, NULL);
    memory = aligned_alloc(2 << 20, (size_t)PAGES * PAGE);
    for (size_t page = 0; page < PAGES; page++) fill(page);
    static char ready[4096];
    snprintf(ready, sizeof ready, "%s.ready", argv[1]);
    pid_t child = fork();
    if (child < 0) return 3;
    play(child ? "parent" : "child", argv[1], child ? NULL : ready);
    int status = 0;
    if (child && waitpid(child, &status, 0) != child) return 3;
    return status != 0;
}
"#;

/// Waits until a volume has no member at this donor, which may be gone.
fn wait_until_off(pool: &Pool, donor: usize) {
    eventually("the volume has left the donor", || !pool.donors_of("db").contains(&donor));
}

#[test]
fn a_program_goes_on_whatever_happens_to_its_volume_and_to_the_processes_behind_it() {
    let _turn = TURN.lock();
    let Some(mut pool) = Pool::start("pool", 5, &["--size", "128MiB", "--grace", "60s"], "1GiB") else { return };
    pool.create("db", "64MiB", "mirror=2");
    let Some(game) = Game::start("pool", &[pool.tier("db", ",size=160MiB")], ALARM, |command| command) else { return };
    let step = |pool: &Pool, words: &[&str]| {
        println!("{}", words.join(" "));
        pool.fabric(words);
        pool.settle();
    };
    step(&pool, &["grow", "db", "96MiB"]);
    step(&pool, &["shrink", "db", "64MiB"]);
    step(&pool, &["move", "db"]);

    // One donor is drained with the manager's command; then another one is stopped on its own machine.
    let drained = pool.donors_of("db")[0];
    let name = format!("d{drained}");
    step(&pool, &["drain", &name]);
    assert!(!pool.donors_of("db").contains(&drained));
    step(&pool, &["drain", &name, "--undo"]);
    let stopped = pool.donors_of("db")[0];
    println!("d{stopped} is stopped");
    pool.donors[stopped - 1].signal("-TERM");
    wait_until_off(&pool, stopped);
    // The memory that it lent is given back only when it answers again.
    pool.restart_donor(stopped);
    pool.settle();

    let killed = pool.donors_of("db")[0];
    println!("d{killed} is killed");
    pool.donors[killed - 1].signal("-KILL");
    wait_until_off(&pool, killed);
    pool.restart_donor(killed);
    pool.settle();

    println!("the agent is killed");
    pool.kill_agent();
    std::thread::sleep(ABSENT);
    pool.restart_agent();
    step(&pool, &["grow", "db", "96MiB"]);
    println!("the manager is killed");
    pool.kill_manager();
    std::thread::sleep(ABSENT);
    pool.start_manager();
    step(&pool, &["shrink", "db", "64MiB"]);

    let Verified { wrong, lost, longest_ms } = verified(&game.end());
    println!("the longest access took {longest_ms} ms");
    assert_eq!((wrong, lost), (0, 0));
    pool.fabric(&["unbind", "db"]);
    pool.settle();
    eventually("everything is given back", || pool.donors.iter().all(|donor| donor.number("lent_bytes") == 0));
}

/// A child that was forked before a donor joined connects to that donor by itself, and shares the leases there with its
/// parent. They were two borrowers to the donor, so what one of them had moved there was lost to the other.
#[test]
fn parent_and_child_both_keep_their_memory_when_their_volume_moves() {
    let _turn = TURN.lock();
    let Some(program) = compile_text("family", FAMILY) else { return };
    let Some(mut pool) = Pool::start("pool-family", 2, &["--size", "256MiB"], "1GiB") else { return };
    pool.create("db", "256MiB", "none");
    let stop = pool.directory().join("stop");
    let words = ["--dram", "24MiB", "--tier", &pool.tier("db", "")];
    let family = start(managed(&words, &program, &[stop.to_str().expect("a path of ours")]));
    let (ready, launcher) = (stop.with_extension("ready"), family.child.id());
    eventually("the child has faulted for a while", || ready.exists() || has_ended(launcher));
    let first = pool.donors_of("db")[0];
    pool.fabric(&["move", "db", "--off", &format!("d{first}")]);
    wait_until_off(&pool, first);
    pool.settle();
    std::fs::write(&stop, "").expect("the scratch directory can be written");
    let ended = family.wait(LIMIT);
    println!("{}", ended.stdout);
    ended.expect(0);
    for process in ["parent", "child"] {
        let line = format!("{process}: wrong 0 lost 0");
        assert!(ended.stdout.lines().any(|said| said == line), "{}{}", ended.stdout, ended.stderr);
    }
    eventually("everything is given back", || pool.donors.iter().all(|donor| donor.number("lent_bytes") == 0));
}

/// Two programs with threads, one of which has the volume as the second level of a chain. Forks are in the test above:
/// here they would need several times the room.
#[test]
fn programs_share_a_volume_that_moves() {
    let _turn = TURN.lock();
    let Some(mut pool) = Pool::start("pool-two", 3, &["--size", "512MiB"], "2GiB") else { return };
    pool.create("db", "512MiB", "none");
    let tiers = [vec![pool.tier("db", "")], vec!["dram:size=24MiB".to_owned(), pool.tier("db", "")]];
    std::thread::scope(|scope| {
        let programs: Vec<_> = (0..)
            .zip(&tiers)
            .map(|(seed, tiers)| {
                scope.spawn(move || {
                    let more: Vec<&str> = tiers.iter().flat_map(|tier| ["--tier", tier]).collect();
                    let setting = Setting { exchange: ["auto", "copy"][seed as usize], ..Setting::PLAIN };
                    setting.torture_with(&more, 80 + seed, 3, PARTS_ALL)
                })
            })
            .collect();
        pool.fabric(&["grow", "db", "640MiB"]);
        pool.fabric(&["move", "db", "--off", "d1"]);
        for program in programs {
            let Some(ended) = program.join().expect("no panic") else { continue };
            assert_eq!(ended.status, Some(0), "{}", ended.stderr);
        }
    });
    pool.settle();
    // Both programs have ended and have notified the donors, so nothing has to wait until a lease expires.
    eventually("everything is given back", || pool.donors.iter().all(|donor| donor.number("lent_bytes") == 0));
}

/// The box of the specification: 22 donors with 5.6 TB. Only the used part takes memory.
#[test]
fn one_host_has_one_of_22_donors_then_all_and_then_one_again() {
    const DONORS: usize = 22;
    const ALL: &str = "5632GiB";
    let _turn = TURN.lock();
    let Some(program) = compile_text("stream", STREAM) else { return };
    let Some(mut pool) = Pool::start("pool-box", DONORS, &["--size", "256GiB"], "6TiB") else { return };
    pool.create("db", "256GiB", "none");
    // The amount that one program can use, because its table of slabs counts in its budget.
    let tier = pool.tier("db", ",size=1GiB");
    let Some(game) = Game::start("pool-box", std::slice::from_ref(&tier), ALARM, |command| command) else { return };
    assert_eq!(pool.donors_of("db").len(), 1);
    pool.fabric(&["grow", "db", ALL]);
    pool.settle();
    assert_eq!(pool.donors_of("db").len(), DONORS);

    // Memory that is written from now on is spread over all donors.
    let stop = pool.directory().join("stop");
    let stream = start(managed(&["--dram", "32MiB", "--tier", &tier], &program, &[stop.to_str().expect("a path")]));
    let lends = |pool: &Pool| pool.donors.iter().filter(|donor| donor.number("lent_bytes") > 0).count();
    eventually("most donors lend", || lends(&pool) > DONORS / 2);
    let chunk = "/redfish/v1/Chassis/Pools/MemoryDomains/main/MemoryChunks/db";
    pool.rest("PATCH", chunk, &serde_json::json!({ "MemoryChunkSizeMiB": 256 << 10 }));
    pool.settle();
    assert_eq!(pool.donors_of("db").len(), 1);
    assert_eq!(lends(&pool), 1, "nothing is left at the others");

    std::fs::write(&stop, "").expect("the scratch directory can be written");
    let ended = stream.wait(LIMIT);
    println!("STREAM: {}", ended.stdout.trim());
    ended.expect(0);
    let Verified { wrong, lost, longest_ms } = verified(&game.end());
    println!("the longest access took {longest_ms} ms");
    assert_eq!((wrong, lost), (0, 0));
}
