// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A program that verifies its memory while its tier is disturbed, and the results that it reports.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::build::{compile_text, scratch};
use crate::run::{Ended, LIMIT, Running, aquifer, eventually, has_ended, managed, run, start};

/// The program's budget: a third of the memory that it uses.
const DRAM: &str = "16MiB";
/// The default time limit of the program, so that it ends by itself whatever happens to the test.
pub const ALARM: Duration = Duration::from_secs(600);
/// Longer than the interval at which the pager publishes its counters.
const PUBLISHED_AFTER: Duration = Duration::from_millis(2500);
/// How often a long wait prints its progress.
const SAID_EVERY: Duration = Duration::from_secs(30);

/// Writes and verifies whole pages at random until the file named by its first argument appears, then verifies all of
/// them. Ends by itself after ten minutes, or after the number of seconds in its second argument. Prints how many pages
/// were wrong, how many accesses were errors, and how long the longest step took, in milliseconds.
pub const PROGRAM: &str = r#"
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
enum { PAGES = 12288, PAGE = 4096, WORDS = PAGE / 8 };
static uint64_t *memory;
static uint32_t versions[PAGES];
static sigjmp_buf again;
static volatile long wrong, lost;
static void on_bus(int number) { (void)number; siglongjmp(again, 1); }
static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}
static uint64_t word(size_t page, size_t at) { return (page * WORDS + at) * 0x9e3779b97f4a7c15u ^ versions[page]; }
static void fill(size_t page) {
    for (size_t at = 0; at < WORDS; at++) ((volatile uint64_t *)memory)[page * WORDS + at] = word(page, at);
}
static void verify(size_t page) {
    for (size_t at = 0; at < WORDS; at++) {
        uint64_t seen = ((volatile uint64_t *)memory)[page * WORDS + at];
        if (seen != word(page, at)) {
            if (wrong++ == 0) fprintf(stderr, "page %zu word %zu holds %llx\n", page, at, (unsigned long long)seen);
            return;
        }
    }
}
int main(int argc, char **argv) {
    alarm(argc > 2 ? atoi(argv[2]) : 600);
    struct sigaction action = {.sa_handler = on_bus, .sa_flags = SA_NODEFER};
    sigaction(SIGBUS, &action, NULL);
    memory = aligned_alloc(2 << 20, (size_t)PAGES * PAGE);
    for (size_t page = 0; page < PAGES; page++) fill(page);
    char ready[4096];
    snprintf(ready, sizeof ready, "%s.ready", argv[1]);
    FILE *file = fopen(ready, "w");
    if (!file || fclose(file)) return 3;
    volatile uint64_t random = 88172645463325252u, longest = 0, steps = 0;
    while (steps % 256 || access(argv[1], F_OK)) {
        random ^= random << 13; random ^= random >> 7; random ^= random << 17;
        size_t page = random % PAGES;
        uint64_t begun = now_ms();
        if (sigsetjmp(again, 1)) lost++;
        else {
            verify(page);
            if (random >> 40 & 1) { versions[page]++; fill(page); }
        }
        uint64_t took = now_ms() - begun;
        if (took > longest) longest = took;
        steps++;
    }
    static volatile size_t page;
    for (page = 0; page < PAGES; page++) {
        if (sigsetjmp(again, 1)) { lost++; continue; }
        verify(page);
    }
    static char line[200];
    int len = snprintf(line, sizeof line, "wrong %ld lost %ld longest %llu steps %llu\n", wrong, lost,
        (unsigned long long)longest, (unsigned long long)steps);
    return write(1, line, len) < 0;
}
"#;

/// The results that the program printed at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Pages that held bytes other than the last written ones.
    pub wrong: u64,
    /// Accesses that were errors.
    pub lost: u64,
    /// Duration of the longest access.
    pub longest_ms: u64,
}

/// Parses the results. Panics unless the program ended normally.
#[track_caller]
pub fn verified(ended: &Ended) -> Verified {
    ended.expect(0);
    let words: Vec<&str> = ended.stdout.split_whitespace().collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).expect("it says its numbers");
    Verified { wrong: number(1), lost: number(3), longest_ms: number(5) }
}

/// The running program.
#[derive(Debug)]
pub struct Game {
    running: Running,
    stop: PathBuf,
}

impl Game {
    /// Starts it over these tiers, for up to `alarm`, and waits until it has filled its memory. `on_host` moves the
    /// command to its host. Returns `None` without a C compiler.
    pub fn start(name: &str, tiers: &[String], alarm: Duration, on_host: impl Fn(Command) -> Command) -> Option<Game> {
        let program = compile_text(name, PROGRAM)?;
        let stop = scratch(name).join("stop");
        let mut words = vec!["--dram", DRAM];
        words.extend(tiers.iter().flat_map(|tier| ["--tier", tier]));
        let seconds = alarm.as_secs().to_string();
        let command = managed(&words, &program, &[stop.to_str().expect("a path of ours"), &seconds]);
        let game = Game { running: start(on_host(command)), stop };
        let is_ready = || Path::new(&game.stop).with_extension("ready").exists();
        eventually("the program has filled its memory", || is_ready() || has_ended(game.running.child.id()));
        if !is_ready() {
            panic!("it has not even begun: {:?}", game.running.wait(LIMIT));
        }
        Some(game)
    }

    /// Its process.
    #[must_use]
    pub fn program(&self) -> u32 {
        self.running.program()
    }

    /// A figure of `aquifer stat`.
    #[must_use]
    pub fn figure(&self, name: &str) -> u64 {
        let mut command = aquifer();
        command.args(["stat", &self.running.child.id().to_string(), "--json"]);
        let stats: serde_json::Value = serde_json::from_str(&run(command, LIMIT).stdout).unwrap_or_default();
        stats[name].as_u64().unwrap_or_default()
    }

    /// Waits until every slab has all of its copies or shards again.
    pub fn wait_for_copies(&self) {
        std::thread::sleep(PUBLISHED_AFTER);
        let begun = Instant::now();
        let mut said = begun;
        eventually("all slabs have their copies", || {
            let (degraded, rebuilt) = (self.figure("slabs_degraded"), self.figure("slabs_rebuilt"));
            if said.elapsed() > SAID_EVERY {
                said = Instant::now();
                let (slabs, members) = (self.figure("slabs_lost"), self.figure("members_lost"));
                println!("  {degraded} degraded, {rebuilt} rebuilt, {slabs} lost; {members} times a donor was");
            }
            degraded == rebuilt
        });
        println!("  all slabs have their copies after {:?} more; {}", begun.elapsed(), self.reported());
    }

    /// The failure counters of the program's memory so far.
    fn reported(&self) -> String {
        let names = ["members_lost", "slabs_degraded", "slabs_lost", "repaired_blocks", "poisoned_blocks"];
        names.map(|name| format!("{name} {}", self.figure(name))).join(", ")
    }

    /// Makes the program verify all of its memory and end.
    #[must_use]
    pub fn end(self) -> Ended {
        std::fs::write(&self.stop, "").expect("the scratch directory can be written");
        let ended = self.running.wait(LIMIT);
        println!("{}", ended.stdout);
        ended
    }
}
