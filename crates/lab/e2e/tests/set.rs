// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer set` changes the budget of a running program: the program uses a larger budget, comes down to a smaller
//! one, and loses no byte.

use std::path::{Path, PathBuf};

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::run::{Ended, LIMIT, Running, aquifer, eventually, managed, run, start};
use serde_json::Value;

/// Fills 160 MiB, then reads and rewrites all of it repeatedly until the file `stop` exists, and allocates memory in
/// each round. Status 1 is a wrong byte. With an argument it forks first: two processes do the same with 80 MiB each.
const PROGRAM: &str = r#"
    #include <stdint.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <sys/mman.h>
    #include <sys/wait.h>
    #include <unistd.h>
    int main(int count, char **words) {
        (void)words;
        size_t len = (size_t)(count > 1 ? 80 : 160) << 20;
        uint64_t round = 0;
        pid_t child = count > 1 ? fork() : -1;
        uint64_t *data = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        size_t all = len / 8;
        for (size_t at = 0; at < all; at += 64) data[at] = at;
        while (access("stop", F_OK)) {
            for (size_t at = 0; at < all; at += 64) {
                if (data[at] != at + round) return 1;
                data[at]++;
            }
            round++;
            munmap(mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1 << 20);
            FILE *file = child == 0 ? NULL : fopen("rounds.new", "w");
            if (file) { fprintf(file, "%llu", (unsigned long long)round); fclose(file); rename("rounds.new", "rounds"); }
        }
        if (child > 0) { int status; if (waitpid(child, &status, 0) != child || status) return 2; }
        return 0;
    }
"#;

const MIB: u64 = 1 << 20;

struct Place {
    directory: PathBuf,
    running: Running,
}

fn begun(name: &str, settings: &[&str], words: &[&str]) -> Option<Place> {
    let program = compile_text(&format!("set-{name}"), PROGRAM)?;
    let directory = scratch(&format!("set-{name}"));
    let mut command = managed(settings, &program, words);
    command.current_dir(&directory);
    let running = start(command);
    // From here on, no program means that it has ended.
    running.program();
    Some(Place { directory, running })
}

impl Place {
    fn rounds(&self) -> u64 {
        std::fs::read_to_string(self.directory.join("rounds")).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Waits for two more whole rounds, in which every page has been touched.
    fn go_on(&self) {
        let before = self.rounds();
        eventually("two rounds", || self.rounds() >= before + 2 || self.running.program_if_there().is_none());
    }

    fn set(&self, dram: &str) -> Ended {
        let mut command = aquifer();
        command.args(["set", &self.running.program().to_string(), "--dram", dram]);
        run(command, LIMIT)
    }

    fn numbers(&self) -> Value {
        let mut command = aquifer();
        command.args(["stat", &self.running.program().to_string(), "--json"]);
        let ended = run(command, LIMIT);
        serde_json::from_str(&ended.stdout).expect("one JSON object")
    }

    fn bytes(&self, gauge: &str) -> u64 {
        self.numbers()[gauge].as_u64().unwrap_or_else(|| panic!("no {gauge}"))
    }

    fn end(self) {
        std::fs::write(self.directory.join("stop"), "").expect("the directory is there");
        self.running.wait(LIMIT).expect(0);
    }
}

/// The resident anonymous memory of the process, from /proc/PID/status.
fn anonymous(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0) << 10
}

#[test]
fn a_budget_grows_and_shrinks_while_the_program_runs() {
    for delivery in ["signal", "listener"] {
        let settings = ["--dram", "48MiB", "--tier", "dram:", "--delivery", delivery];
        let Some(place) = begun(&format!("one-{delivery}"), &settings, &[]) else { return };
        place.go_on();
        assert!(place.bytes("resident_bytes") <= 48 * MIB);
        let grown = place.set("256MiB");
        assert_eq!(grown.expect(0).stdout, format!("{}: 48MiB -> 256MiB\n", place.running.program()));
        place.go_on();
        place.go_on();
        assert_eq!(place.bytes("dram_budget_bytes"), 256 * MIB);
        let now = place.numbers();
        assert!(now["resident_bytes"].as_u64() >= Some(160 * MIB), "{delivery}: all of it fits now: {now}");
        let fetched = place.bytes("fetched_bytes");
        place.go_on();
        assert_eq!(place.bytes("fetched_bytes"), fetched, "{delivery}: and stays");
        for mebibytes in [96, 32] {
            let shrunk = place.set(&format!("{mebibytes}MiB"));
            assert_eq!(shrunk.expect(0).stderr, "", "{delivery}");
            let process = place.running.program();
            assert!(anonymous(process) < (mebibytes + 24) * MIB, "{delivery}: {} bytes", anonymous(process));
            place.go_on();
            assert!(place.bytes("resident_bytes") <= mebibytes * MIB, "{delivery}: it is kept to");
        }
        place.end();
    }
}

#[test]
fn a_tree_follows_its_budget() {
    let Some(place) = begun("tree", &["--dram", "256MiB", "--tier", "dram:"], &["fork"]) else { return };
    place.go_on();
    // The program has fitted its budget so far, so it has no pager, and follows the budget at its next allocation.
    place.set("64MiB").expect(0);
    place.go_on();
    place.set("40MiB").expect(0);
    place.go_on();
    let launcher = place.running.child.id();
    let child = format!("/proc/{0}/task/{0}/children", place.running.program());
    let child = std::fs::read_to_string(child).ok().and_then(|text| text.trim().parse().ok()).expect("it has forked");
    let sum = || anonymous(place.running.program()) + anonymous(child);
    eventually("less in DRAM", || sum() < 100 * MIB);
    assert!(anonymous(launcher) < 16 * MIB);
    place.end();
}

fn refusal(words: &[&str]) -> Ended {
    let mut command = aquifer();
    command.arg("set").args(words);
    run(command, LIMIT)
}

#[test]
fn a_setting_that_cannot_be_changed_says_why() {
    let Some(place) = begun("own", &["--dram", "48MiB", "--tier", "dram:", "--budget", "process"], &[]) else { return };
    place.go_on();
    let refused = place.set("64MiB");
    assert!(
        refused.expect(1).stderr.contains("has a budget of its own (--budget process, or --record)"),
        "{}",
        refused.stderr
    );
    place.end();
    let Some(place) = begun("refused", &["--dram", "48MiB", "--tier", "dram:"], &[]) else { return };
    place.go_on();
    for (dram, why) in [("1MiB", "16MiB"), ("900000GiB", "more than"), ("much", "--dram")] {
        let refused = place.set(dram);
        assert!(refused.status != Some(0) && refused.stderr.contains(why), "{dram}: {}", refused.stderr);
        assert_eq!(refused.said().len(), 1, "{dram}: {}", refused.stderr);
    }
    place.end();
    let ours = std::process::id().to_string();
    assert!(refusal(&[&ours, "--dram", "64MiB"]).expect(1).stderr.contains("does not run under aquifer"));
    assert!(refusal(&["4194305", "--dram", "64MiB"]).expect(1).stderr.contains("there is no process 4194305"));
    assert!(!Path::new("/proc/4194305").exists(), "the kernel has no such number");
}

/// If address space is limited, none is reserved for a larger budget.
#[test]
fn a_limit_on_address_space_keeps_the_budget_small() {
    let Some(program) = compile_text("set-limited", PROGRAM) else { return };
    let directory = scratch("set-limited");
    let run_of = managed(&["--dram", "48MiB", "--tier", "dram:"], &program, &[]);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -v 4000000; exec \"$@\"", "sh"]).arg(run_of.get_program()).args(run_of.get_args());
    for (name, value) in run_of.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.current_dir(&directory);
    let place = Place { directory, running: start(command) };
    place.go_on();
    let refused = place.set("64MiB");
    assert!(refused.expect(1).stderr.contains("with room for 48MiB at the most"), "{}", refused.stderr);
    place.set("32MiB").expect(0);
    place.go_on();
    place.end();
}

/// A pager that could reserve frame addresses only for its first budget stays within that budget, whatever is set or
/// locked.
#[test]
fn a_pager_with_little_address_space_keeps_to_its_frames() {
    let program = "
        #include <stdint.h>
        #include <stdio.h>
        #include <sys/mman.h>
        #include <sys/resource.h>
        #include <unistd.h>
        enum { LEN = 160 << 20, LOCKED = 40 << 20 };
        int main(void) {
            struct rlimit most = {3ull << 30, 3ull << 30};
            if (setrlimit(RLIMIT_AS, &most)) return 7;
            uint64_t round = 0, all = LEN / 8;
            uint64_t *data = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            for (size_t at = 0; at < all; at += 64) data[at] = at;
            int locked = 0;
            while (access(\"stop\", F_OK)) {
                if (!access(\"lock\", F_OK) && !locked++) mlock(data, LOCKED);
                for (size_t at = 0; at < all; at += 64) if (data[at]++ != at + round) return 1;
                round++;
                FILE *file = fopen(\"rounds.new\", \"w\");
                if (file) { fprintf(file, \"%llu\", (unsigned long long)round); fclose(file); rename(\"rounds.new\", \"rounds\"); }
            }
            return 0;
        }";
    let Some(program) = compile_text("set-frames", program) else { return };
    let directory = scratch("set-frames");
    let mut command = managed(&["--dram", "48MiB", "--tier", "dram:"], &program, &[]);
    command.current_dir(&directory);
    let place = Place { directory, running: start(command) };
    place.go_on();
    place.set("256MiB").expect(0);
    place.go_on();
    std::fs::write(place.directory.join("lock"), "").expect("the directory is there");
    place.go_on();
    // The new setting makes the pager recompute its share.
    place.set("250MiB").expect(0);
    (0..4).for_each(|_| place.go_on());
    assert!(place.bytes("resident_bytes") <= 48 * MIB, "{}", place.bytes("resident_bytes") / MIB);
    place.end();
}
