// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Programs whose memory is with a donor: every byte is fetched again, forked children read what their parents stored,
//! and the loss of a donor is reported.
//!
//! The trouble it guards against: another machine fails, and a program here waits for ever, or reads zeros where its
//! data was.

use std::io::Read;
use std::time::{Duration, Instant};

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::donor::Donor;
use aquifer_e2e::run::{Ended, LIMIT, aquifer, eventually, managed, run, start, stats};
use aquifer_test_support::skip;

/// `program [HOW [FILE]]`: fills memory, reads all of it twice, and rewrites half of it in between. With one argument,
/// it forks after filling the memory, and its child forks, too: each of the three processes then rewrites half of the
/// memory with its own values. With two arguments, it creates `FILE.ready`, has all of its memory evicted, and waits
/// for FILE before it reads. Then, unless HOW is `wait`, it rewrites half of the memory; if HOW is `grow`, it first
/// writes memory that no donor has seen before.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { LEN = 64 << 20, STEP = 8, PAGE = 4096 };
static unsigned char *start;
static sigjmp_buf again;
static void on_bus(int number) { (void)number; siglongjmp(again, 1); }
static void fill(size_t from, size_t to, uint64_t salt) {
    for (size_t at = from; at < to; at += STEP) *(volatile uint64_t *)(start + at) = salt + at + 1;
}
static void right(size_t from, size_t to, uint64_t salt, const char *what) {
    for (size_t at = from; at < to; at += STEP) {
        uint64_t seen = *(volatile uint64_t *)(start + at);
        if (seen != salt + at + 1) {
            fprintf(stderr, "%s: byte %zu holds %llu\n", what, at, (unsigned long long)seen);
            exit(1);
        }
    }
}
static void work(uint64_t salt, const char *what) {
    right(0, LEN, 7, what);
    fill(0, LEN / 2, salt);
    right(0, LEN / 2, salt, what);
    right(LEN / 2, LEN, 7, what);
}
int main(int argc, char **argv) {
    start = malloc(LEN);
    fill(0, LEN, 7);
    if (argc == 1) { work(1000, "alone"); return 0; }
    if (argc == 2) {
        pid_t child = fork();
        if (child < 0) return 3;
        if (child == 0) {
            pid_t grandchild = fork();
            work(grandchild ? 2000 : 3000, grandchild ? "child" : "grandchild");
            int status = 0;
            if (grandchild) waitpid(grandchild, &status, 0);
            _exit(status != 0);
        }
        work(4000, "parent");
        int status = 0;
        waitpid(child, &status, 0);
        right(0, LEN / 2, 4000, "parent at last");
        return status != 0;
    }
    right(0, LEN, 7, "before");
    struct sigaction action = {.sa_handler = on_bus};
    sigaction(SIGBUS, &action, NULL);
    char ready[4096];
    snprintf(ready, sizeof ready, "%s.ready", argv[2]);
    FILE *file = fopen(ready, "w");
    if (!file || fclose(file)) return 3;
    /* So that every block has its room in the tier: without a donor there is no more of it. Advice may skip a block
     * that the kernel cannot release at that moment, so it is given again. */
    for (int turn = 0; access(argv[2], F_OK); turn++, usleep(1000))
        if (turn % 100 == 0 && madvise((void *)((uintptr_t)start & -(uintptr_t)PAGE), LEN, MADV_PAGEOUT)) return 4;
    volatile size_t lost = 0, at;
    for (at = 0; at < LEN; at += 4096) {
        if (sigsetjmp(again, 1)) { lost++; continue; }
        uint64_t seen = *(volatile uint64_t *)(start + at);
        if (seen != 7 + at + 1) { fprintf(stderr, "byte %zu holds %llu\n", (size_t)at, (unsigned long long)seen); return 1; }
    }
    signal(SIGBUS, SIG_DFL);
    if (!strcmp(argv[1], "grow")) {
        size_t len = 8 << 20;
        unsigned char *more = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (more == MAP_FAILED) return 5;
        for (size_t byte = 0; byte < len; byte += STEP) *(volatile uint64_t *)(more + byte) = 9 + byte;
        right(0, LEN, 7, "while it grows");
        for (size_t byte = 0; byte < len; byte += STEP)
            if (*(volatile uint64_t *)(more + byte) != 9 + byte) { fprintf(stderr, "more: byte %zu\n", byte); return 6; }
    }
    if (strcmp(argv[1], "wait")) {
        fill(0, LEN / 2, 1000);
        right(0, LEN / 2, 1000, "after");
        right(LEN / 2, LEN, 7, "after");
    }
    /* Not by stdio: its buffer may be lost, too. */
    static char line[100];
    return write(1, line, snprintf(line, sizeof line, "lost %zu\n", (size_t)lost)) < 0;
}
"#;

fn words<'a>(tier: &'a str, delivery: &'a str) -> [&'a str; 6] {
    ["--dram", "24MiB", "--delivery", delivery, "--tier", tier]
}

#[test]
fn every_byte_comes_back_from_a_donor() {
    every_byte_comes_back("donor-alone", &Donor::start(&["--size", "256MiB"]));
}

#[test]
fn every_byte_comes_back_over_tls() {
    let donor = match Donor::start_secure("donor-secure", &["--size", "256MiB"]) {
        Ok(donor) => donor,
        Err(why) => return skip(why),
    };
    every_byte_comes_back("donor-secure", &donor);
}

#[test]
fn every_byte_comes_back_from_shared_memory() {
    let donor = Donor::start_sharing("bytes", &["--size", "256MiB"]);
    every_byte_comes_back("donor-sharing", &donor);
}

fn every_byte_comes_back(name: &str, donor: &Donor) {
    let Some(program) = compile_text(name, PROGRAM) else { return };
    let tier = donor.tier(",size=128MiB");
    for delivery in ["signal", "listener"] {
        let file = scratch(name).join("stats.json");
        let file_text = file.to_str().expect("a path of ours");
        let settings = [&words(&tier, delivery)[..], &["--stats-json", file_text]].concat();
        run(managed(&settings, &program, &[]), LIMIT).expect(0);
        let stats = stats(&file);
        for counter in ["fetched_bytes", "written_back_bytes"] {
            assert!(stats[counter].as_u64().expect("a number") > 16 << 20, "{delivery}: {counter}: {stats}");
        }
        assert_eq!(stats["errors"], 0, "{delivery}");
    }
    if donor.address.starts_with("unix:") {
        assert_eq!(donor.number("reads_total") + donor.number("writes_total"), 0, "bytes go past the donor");
        // A program's borrowed memory is returned as soon as the program has exited.
        eventually("its memory comes back", || donor.number("lent_bytes") == 0);
    } else {
        assert!(donor.number("read_bytes_total") > 16 << 20);
        assert!(donor.number("reads_total") > 0 && donor.number("writes_total") > 0);
    }
    let refusals = donor.status()["refusals_total"].clone();
    let refused = refusals.as_object().expect("counts").values().filter(|count| **count != 0).count();
    assert_eq!(refused, 0, "{refusals}");
}

/// Eight donors need more connections than the number of descriptors that a pager's threads used to keep.
#[test]
fn every_byte_comes_back_from_eight_donors() {
    let Some(program) = compile_text("donor-eight", PROGRAM) else { return };
    let donors: Vec<Donor> = (0..8).map(|_| Donor::start(&["--size", "16MiB"])).collect();
    let addresses: Vec<&str> = donors.iter().map(|donor| &*donor.address).collect();
    let tier = format!("donor:{},security=plain", addresses.join("+"));
    let file = scratch("donor-eight").join("stats.json");
    let file_text = file.to_str().expect("a path of ours");
    let settings = [&words(&tier, "listener")[..], &["--stats-json", file_text]].concat();
    run(managed(&settings, &program, &[]), LIMIT).expect(0);
    let stats = stats(&file);
    assert_eq!((&stats["errors"], &stats["members_lost"]), (&0.into(), &0.into()), "{stats}");
    donors.iter().for_each(|donor| assert!(donor.number("writes_total") > 0));
}

#[test]
fn parents_and_children_read_the_same_slabs_and_write_to_their_own() {
    parents_and_children("donor-forks", &Donor::start(&["--size", "1GiB"]));
}

#[test]
fn parents_and_children_have_their_own_sessions_over_tls() {
    let donor = match Donor::start_secure("donor-secure-forks", &["--size", "1GiB"]) {
        Ok(donor) => donor,
        Err(why) => return skip(why),
    };
    parents_and_children("donor-secure-forks", &donor);
}

#[test]
fn parents_and_children_share_memory_and_the_last_one_gives_it_back() {
    let donor = Donor::start_sharing("forks", &["--size", "1GiB"]);
    parents_and_children("donor-sharing-forks", &donor);
    eventually("their memory comes back", || donor.number("lent_bytes") == 0);
    assert_eq!(donor.number("expiries_total"), 0);
}

fn parents_and_children(name: &str, donor: &Donor) {
    let Some(program) = compile_text(name, PROGRAM) else { return };
    let tier = donor.tier(",size=512MiB");
    for delivery in ["signal", "listener"] {
        run(managed(&words(&tier, delivery), &program, &["fork"]), LIMIT).expect(0);
    }
}

/// Starts the program with `word` as HOW, calls `act` once its memory is evicted, and then lets it go on.
fn meanwhile(name: &str, settings: &[&str], word: &str, act: impl FnOnce()) -> Option<(Ended, Duration)> {
    let program = compile_text(name, PROGRAM)?;
    let go = scratch(name).join("go");
    let go_text = go.to_str().expect("a path of ours");
    let mut running = start(managed(settings, &program, &[word, go_text]));
    let process = running.program();
    eventually("the program's memory leaves", || {
        assert!(running.child.try_wait().expect("our child").is_none(), "it ends too early");
        // The program has filled its memory, and a loss would be reported.
        if !go.with_extension("ready").exists() {
            return false;
        }
        let mut command = aquifer();
        command.args(["stat", &process.to_string(), "--json"]);
        let stats: serde_json::Value = serde_json::from_str(&run(command, LIMIT).stdout).unwrap_or_default();
        let is_at_least = |name: &str, bytes: u64| stats[name].as_u64().is_some_and(|found| found >= bytes);
        // All of it has been written back, and the small part still in DRAM is on standby.
        is_at_least("written_back_bytes", 64 << 20) && is_at_least("frames_free_bytes", 16 << 20)
    });
    act();
    let since = Instant::now();
    std::fs::write(&go, "").expect("the scratch directory can be written");
    let ended = running.wait(LIMIT);
    Some((ended, since.elapsed()))
}

#[test]
fn a_donor_that_is_killed_is_a_sigbus_and_a_line_and_never_zeros() {
    let donor = Donor::start(&["--size", "256MiB"]);
    let tier = donor.tier(",size=128MiB");
    let Some((ended, took)) = meanwhile("donor-killed", &words(&tier, "signal"), "wait", || donor.signal("-KILL"))
    else {
        return;
    };
    ended.expect(0);
    let lost: u64 = ended.stdout.split_whitespace().last().and_then(|word| word.parse().ok()).expect("a count");
    assert!(lost > 4096, "most pages are lost, and each is heard of: {}", ended.stdout);
    let line = ended.said().into_iter().find(|line| line.contains("a fetch from the tier failed")).expect("one line");
    assert!(line.ends_with("an access to them is a SIGBUS; check the donor and the network to it"), "{line}");
    // Far below the pager's own timeouts: there is no wait for each page.
    assert!(took < Duration::from_secs(100), "it took {took:?}");
}

#[test]
fn blocks_without_room_at_any_donor_go_to_the_disk() {
    goes_to_the_disk("donor-full", |size| Donor::start(&["--size", size]));
}

#[test]
fn blocks_without_shared_room_at_any_donor_go_to_the_disk() {
    goes_to_the_disk("donor-sharing-full", |size| Donor::start_sharing("full", &["--size", size]));
}

fn goes_to_the_disk(name: &str, start: impl Fn(&str) -> Donor) {
    let Some(program) = compile_text(name, PROGRAM) else { return };
    let directory = scratch(name);
    let (file, flash) = (directory.join("stats.json"), format!("flash:{}", directory.display()));
    let file_text = file.to_str().expect("a path of ours");
    for (mib, has_room) in [(64, true), (24, false)] {
        let donor = start(&format!("{mib}MiB"));
        let tier = donor.tier("");
        let words = [&words(&tier, "signal")[..], &["--tier", &flash, "--stats-json", file_text]].concat();
        run(managed(&words, &program, &[]), LIMIT).expect(0);
        let stats = stats(&file);
        let level = |index: usize, name: &str| stats["levels"][index][name].as_u64().expect("a number");
        let (lent, kept) = (level(0, "used_bytes"), level(1, "used_bytes"));
        assert!(lent + kept >= 40 << 20, "{}", stats["levels"]);
        assert!(if has_room { lent >= 32 << 20 } else { kept >= 12 << 20 }, "{}", stats["levels"]);
        assert!(level(0, "capacity_bytes") == mib << 20 && (has_room || level(1, "reads") > 0), "{}", stats["levels"]);
        assert_eq!(stats["errors"], 0, "a refusal is not a failure where there is another tier");
    }
}

#[test]
fn memory_that_a_donor_shared_outlives_it() {
    outlives_its_donor("killed", 128, &[]);
}

/// The donor shares half of the memory; the other half is on disk, and is read as before.
#[test]
fn memory_that_a_donor_shared_outlives_it_in_a_chain() {
    let flash = format!("flash:{}", scratch("donor-sharing-chained").display());
    outlives_its_donor("chained", 32, &["--tier", &flash]);
}

/// Memory that has no slab yet can no longer get one. It stays in DRAM, and all other memory can still be evicted.
#[test]
fn blocks_that_no_donor_accepts_are_kept_and_delay_no_others() {
    let donor = Donor::start_sharing("growing", &["--size", "256MiB"]);
    let tier = donor.tier(",size=128MiB");
    let act = || donor.signal("-KILL");
    let file = scratch("donor-sharing-growing-stats").join("stats.json");
    let words = [&words(&tier, "signal")[..], &["--stats-json", file.to_str().expect("a path of ours")]].concat();
    let Some((ended, _)) = meanwhile("donor-sharing-growing", &words, "grow", act) else { return };
    ended.expect(0);
    assert!(ended.stdout.ends_with("lost 0\n"), "{}\n{}", ended.stdout, ended.stderr);
    let stats = stats(&file);
    // How much is unwritable depends on the moment: `unwritable_bytes` omits a block while its write-back is retried.
    assert!(stats["write_back_failures"].as_u64().is_some_and(|failures| failures > 0), "{stats}");
    let reports = ended.said().into_iter().filter(|line| line.contains("cannot write to the donor tier")).count();
    assert_eq!(reports, 1, "and it is said, once: {}", ended.stderr);
}

fn outlives_its_donor(name: &str, mib: u32, further: &[&str]) {
    let donor = Donor::start_sharing(name, &["--size", "256MiB"]);
    let tier = donor.tier(&format!(",size={mib}MiB"));
    let words = [&words(&tier, "signal")[..], further].concat();
    let act = || donor.signal("-KILL");
    let Some((ended, _)) = meanwhile(&format!("donor-sharing-{name}"), &words, "write", act) else { return };
    ended.expect(0);
    assert!(ended.stdout.ends_with("lost 0\n"), "{}\n{}", ended.stdout, ended.stderr);
}

#[test]
fn a_donor_that_stands_still_for_a_moment_is_waited_for() {
    let donor = Donor::start(&["--size", "256MiB"]);
    let tier = donor.tier(",size=128MiB");
    let act = || {
        donor.signal("-STOP");
        let process = donor.child.id().to_string();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(1000));
            let _ = std::process::Command::new("kill").args(["-CONT", &process]).status();
        });
    };
    let Some((ended, _)) = meanwhile("donor-stopped", &words(&tier, "signal"), "wait", act) else { return };
    ended.expect(0);
    assert!(ended.stdout.ends_with("lost 0\n"), "{}\n{}", ended.stdout, ended.stderr);
}

#[test]
fn a_donor_ends_when_it_is_signalled() {
    for signal in ["-TERM", "-INT"] {
        let mut donor = Donor::start(&["--size", "64MiB", "--quota", "32MiB"]);
        assert_eq!((donor.number("capacity_bytes"), donor.number("lent_bytes")), (64 << 20, 0));
        donor.signal(signal);
        eventually("the donor's end", || donor.child.try_wait().expect("our child").is_some());
        assert_eq!(donor.child.wait().expect("our child").code(), Some(0), "{signal}");
        let mut rest = String::new();
        donor.child.stdout.take().expect("piped").read_to_string(&mut rest).expect("text");
        assert_eq!(rest, "");
    }
}

#[test]
fn a_donor_that_is_not_there_is_said_before_the_program_runs() {
    let Some(program) = compile_text("donor-nowhere", PROGRAM) else { return };
    let ended = run(managed(&words("donor:127.0.0.1:1,security=plain", "auto"), &program, &[]), LIMIT);
    ended.expect(125);
    let line =
        ended.said().into_iter().find(|line| line.contains("no donor answers at 127.0.0.1:1")).expect("one line");
    assert!(line.contains("start one there with 'aquifer donor'"), "{line}");
}
