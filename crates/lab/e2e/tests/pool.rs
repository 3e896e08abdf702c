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
use aquifer_e2e::run::{LIMIT, eventually, managed, start};
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

/// Two programs that fork, one of which has the volume as the second level of a chain.
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
