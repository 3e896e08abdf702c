// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A pager's recorded engine calls are complete, and an engine that receives the same calls makes the same decisions.
//!
//! The trouble it guards against: a decision that depends on something that is not an argument, such as the iteration
//! order of a hash map or a clock, or an engine call that is not recorded. And a recording that harms its program: by
//! making it wait, by ending it, or by writing into a file of the program's.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::matrix::{PARTS_ALL, Setting};
use aquifer_e2e::run::{Ended, LIMIT, aquifer, eventually, has_ended, managed, replay, run, start, stats};
use serde_json::Value;

/// Fills 96 MiB, then visits random pages and changes some, for a given number of visits. Then creates a file, if one
/// is named. Exit status 1: wrong bytes.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
enum { LEN = 96 << 20, PAGE = 4096 };
/* Tries to close the descriptor of the recording, which is not the program's, and opens a file of its own. */
static void take_descriptor(const char *path, const char *mine) {
    char recording[PATH_MAX];
    if (!realpath(path, recording)) exit(6);
    for (int number = 0; number < 1000; number++) {
        char link[64], name[4096] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", number);
        if (readlink(link, name, sizeof name - 1) < 0 || strcmp(name, recording)) continue;
        if (close(number) == 0) exit(4);
    }
    if (open(mine, O_WRONLY | O_CREAT, 0600) < 0) exit(5);
}
int main(int count, char **words) {
    uint64_t *start = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), luck = 1;
    if (start == MAP_FAILED) return 3;
    for (size_t page = 0; page < LEN / PAGE; page++) start[page * 512] = page + 1;
    if (count > 3) take_descriptor(words[2], words[3]);
    for (long visits = atol(words[1]); visits > 0; visits--) {
        luck = luck * 6364136223846793005u + 1442695040888963407u;
        size_t page = (luck >> 33) % (LEN / PAGE);
        if (start[page * 512] % (LEN / PAGE + 1) != page + 1) return 1;
        if (luck >> 62 == 0) start[page * 512] += LEN / PAGE + 1;
    }
    if (count == 3) close(open(words[2], O_WRONLY | O_CREAT, 0600));
    /* Until the worker has written back what it wants to: what it does after exit(3) is counted and not recorded. */
    usleep(300000);
    return 0;
}
"#;

/// Forks below its budget. Parent and child then exceed it in turns, 4 MiB at a time, the parent first: its pager
/// starts first and is recorded. Exit status 1: wrong bytes.
const FORKED_EARLIER: &str = r#"
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { LEN = 96 << 20, PART = 4 << 20, PAGE = 4096 };
static void fill(uint64_t *start, size_t part) {
    for (size_t at = part * PART / 8; at < (part + 1) * PART / 8; at += PAGE / 8) start[at] = at + 1;
}
static int take_turns(int in, int out, int is_first) {
    char turn = 0;
    uint64_t *start = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return 3;
    for (size_t part = 0; part < LEN / PART; part++) {
        /* The first one gets half a length ahead, and with it the recording. */
        if ((!is_first || part > LEN / PART / 2) && read(in, &turn, 1) != 1) return 4;
        fill(start, part);
        if ((!is_first || part >= LEN / PART / 2) && write(out, &turn, 1) != 1) return 5;
    }
    for (size_t at = 0; at < LEN / 8; at += PAGE / 8)
        if (start[at] != at + 1) return 1;
    return 0;
}
int main(void) {
    int there[2], back[2], status = 0;
    if (pipe(there) || pipe(back)) return 2;
    pid_t child = fork();
    if (child == 0) {
        close(there[1]);
        close(back[0]);
        _exit(take_turns(there[0], back[1], 0));
    }
    close(there[0]);
    close(back[1]);
    int own = take_turns(back[0], there[1], 1);
    close(there[1]);
    if (waitpid(child, &status, 0) != child) return 6;
    return own;
}
"#;

const SETTINGS: [&str; 6] = ["--dram", "24MiB", "--tier", "dram:", "--delivery", "signal"];

fn program() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(|| compile_text("records", PROGRAM)).clone()
}

/// Runs the program with these arguments and a recording.
fn record(program: &Path, file: &Path, more: &[&str], words: &[&str]) -> Ended {
    let record = ["--record", file.to_str().expect("UTF-8")];
    run(managed(&[&SETTINGS[..], &record, more].concat(), program, words), LIMIT)
}

/// The output of a replay with `--json`, line by line.
fn reported(ended: &Ended) -> Vec<Value> {
    ended.stdout.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Replays, and expects the same decisions. Returns the first line of JSON.
#[track_caller]
fn same(file: &Path) -> Value {
    let ended = replay(file, &["--json"]);
    // Differences are printed to standard output, not to standard error.
    assert_eq!(ended.status, Some(0), "{}\n{}", ended.stdout, ended.stderr);
    let line = reported(&ended).remove(0);
    assert_eq!(line["same_decisions"], true, "{line}");
    line
}

#[test]
fn every_delivery_and_exchange_is_replayed_with_the_same_decisions() {
    let file = scratch("recording").join("run.rec");
    let record = ["--record", file.to_str().expect("UTF-8")];
    for (seed, delivery) in ["auto", "signal", "listener"].into_iter().enumerate() {
        for exchange in ["move", "copy"] {
            let setting = Setting { delivery, exchange, ..Setting::PLAIN };
            let Some(ended) = setting.torture_with(&record, 300 + seed as u64, 1, PARTS_ALL) else { return };
            ended.expect(0);
            let line = same(&file);
            let events = line["events"].as_u64().expect("a number");
            assert!(events > 1_000, "{events} events, {setting:?}");
            assert_eq!((&line["closed"], &line["lost"]), (&true.into(), &0.into()), "{setting:?}");
        }
    }
}

#[test]
fn every_policy_several_block_sizes_and_a_disk() {
    let file = scratch("recording-settings").join("run.rec");
    let record = ["--record", file.to_str().expect("UTF-8")];
    for (seed, (policy, block)) in
        [("lru", "4KiB"), ("clock", "512KiB"), ("fifo", "auto"), ("s3fifo", "16KiB")].into_iter().enumerate()
    {
        let tier = if seed == 2 { "flash:" } else { "dram:" };
        let setting = Setting { policy, block, tier, dram_mib: 24, ..Setting::PLAIN };
        let Some(ended) = setting.torture_with(&record, 310 + seed as u64, 1, PARTS_ALL) else { return };
        ended.expect(0);
        assert_eq!(same(&file)["policy"], policy);
    }
}

/// Lost blocks, failed write-backs and a full tier are recorded, too.
#[test]
fn a_tier_that_fails_is_replayed() {
    let Some(program) = program() else { return };
    let file = scratch("recording-failing").join("run.rec");
    for tier in ["failing:every=50,on=write:dram:", "dram:size=48MiB", "failing:after=2000,on=read:dram:"] {
        let settings = ["--dram", "24MiB", "--tier", tier, "--record", file.to_str().expect("UTF-8")];
        let ended = run(managed(&settings, &program, &["20000"]), LIMIT);
        // Access to lost memory is a SIGBUS, which ends the program: then the recording lacks its end.
        assert!(matches!(ended.status, Some(0 | 135)), "{tier}: {:?}\n{}", ended.status, ended.stderr);
        assert_eq!(same(&file)["closed"], ended.status == Some(0), "{tier}");
    }
}

/// A child that was forked below the budget shares the table of slabs with its parent, and is not recorded.
/// Which slabs the parent took depended on the child, so a replay chose others.
#[test]
fn slabs_that_an_earlier_child_takes_meanwhile_change_no_decision() {
    let Some(program) = compile_text("records-beside-a-child", FORKED_EARLIER) else { return };
    let file = scratch("recording-child").join("run.rec");
    record(&program, &file, &[], &[]).expect(0);
    let line = same(&file);
    assert!(line["events"].as_u64() > Some(1_000), "{line}");
}

#[test]
fn a_recordings_counts_equal_the_pagers() {
    let Some(program) = program() else { return };
    let directory = scratch("recording-counts");
    let (file, json) = (directory.join("run.rec"), directory.join("stats.json"));
    record(&program, &file, &["--stats-json", json.to_str().expect("UTF-8")], &["30000"]).expect(0);
    let ended = replay(&file, &["--policy", "lru,fifo", "--dram", "24MiB,128MiB", "--no-prefetch", "--json"]);
    let lines = reported(ended.expect(0));
    let (recorded, stats) = (&lines[1], stats(&json));
    assert_eq!(recorded["setting"], "recorded");
    let stat = |name: &str| stats[name].as_u64().expect("a number");
    let count = |name: &str| recorded[name].as_u64().expect("a number");
    let fetched = count("fetched_pages") + count("read_ahead_pages");
    for (what, recorded, counted) in [
        ("fetched", fetched, stat("fetched_bytes") / 4096),
        ("written back", count("written_back_pages"), stat("written_back_bytes") / 4096),
        ("rescued", count("rescued_blocks"), stat("rescued_blocks")),
        ("faults", count("faults"), stat("faults")),
    ] {
        // Events after exit(3) has closed the recording are counted, but not recorded.
        let after = counted.checked_sub(recorded);
        assert!(after.is_some_and(|after| after <= 100 + counted / 100), "{what}: {recorded}, and counted {counted}");
    }
    // The recorded setting, the settings given here, and four others.
    assert_eq!(lines.iter().filter(|line| line["setting"].is_string()).count(), 6, "{lines:?}");
    let all = lines.iter().find(|line| line["setting"] == "lru, 128MiB, no prefetch").expect("a row");
    assert_eq!(all["fetches"], 0, "nothing leaves a budget that everything fits");
    assert!(lines.last().expect("notes")["notes"].is_array());
}

#[test]
fn another_policy_is_not_the_same_decisions() {
    let Some(program) = program() else { return };
    let file = scratch("recording-other").join("run.rec");
    record(&program, &file, &[], &["10000"]).expect(0);
    let whole = replay(&file, &[]);
    whole.expect(0);
    assert!(whole.stdout.contains(" events, same decisions\n"), "{}", whole.stdout);
    assert!(whole.stdout.contains("complete: closed when the process ended"), "{}", whole.stdout);
    // The same recording, changed to claim another policy.
    let mut bytes = fs::read(&file).expect("it was written");
    let sum = |bytes: &[u8]| crc64_nvme(bytes).to_le_bytes();
    bytes[32..48].copy_from_slice(b"lru\0\0\0\0\0\0\0\0\0\0\0\0\0");
    let crc = sum(&bytes[..184]);
    bytes[184..192].copy_from_slice(&crc);
    fs::write(&file, &bytes).expect("the scratch directory can be written");
    let ended = replay(&file, &[]);
    ended.expect(1);
    assert!(ended.stdout.contains(" differs: ") && ended.stdout.contains("recorded: "), "{}", ended.stdout);
    assert!(!ended.stdout.contains("same decisions"), "{}", ended.stdout);
}

/// CRC-64 with the NVMe polynomial, bit by bit: the test does not rely on the product's own implementation.
fn crc64_nvme(bytes: &[u8]) -> u64 {
    bytes.iter().fold(u64::MAX, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0x9a6c_9329_ac4b_c9b5))
    }) ^ u64::MAX
}

#[test]
fn a_flipped_byte_is_an_error_that_says_where() {
    let Some(program) = program() else { return };
    let file = scratch("recording-flipped").join("run.rec");
    record(&program, &file, &[], &["10000"]).expect(0);
    let good = fs::read(&file).expect("it was written");
    for at in [3, 20, 100, 200, good.len() / 2, good.len() - 1] {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        fs::write(&file, &bytes).expect("the scratch directory can be written");
        let ended = replay(&file, &[]);
        ended.expect(3);
        assert_eq!((ended.stderr.lines().count(), ended.stdout.as_str()), (1, ""), "{}", ended.stderr);
        let says = ["damaged", "not a recording"].iter().any(|word| ended.stderr.contains(word));
        assert!(says && ended.stderr.contains("run.rec"), "byte {at}: {}", ended.stderr);
    }
    fs::write(&file, b"").expect("the scratch directory can be written");
    let ended = replay(&file, &[]);
    assert!(ended.expect(3).stderr.contains("the recording is empty: the program stayed within its budget"));
    let missing = replay(Path::new("/nowhere/run.rec"), &[]);
    assert!(missing.expect(3).stderr.contains("cannot be read: No such file"), "{}", missing.stderr);
}

#[test]
fn a_program_that_is_killed_leaves_a_good_recording() {
    let Some(program) = program() else { return };
    let file = scratch("recording-killed").join("run.rec");
    let record = ["--record", file.to_str().expect("UTF-8")];
    let mut running = start(managed(&[&SETTINGS[..], &record].concat(), &program, &["2000000000"]));
    eventually("a recording", || fs::metadata(&file).map_or(0, |found| found.len()) >= 200_000);
    // The launcher dies, and its program with it.
    let recorded = running.program();
    running.child.kill().expect("it is our child");
    running.wait(LIMIT);
    eventually("the program's death with its launcher", || has_ended(recorded));
    let line = same(&file);
    assert!(line["events"].as_u64() > Some(1000), "{line}");
    assert_eq!(line["closed"], false);
    let ended = replay(&file, &[]);
    assert!(ended.stdout.contains("not closed: the program was killed"), "{}", ended.stdout);
    // Even if the kill came in the middle of a write.
    let bytes = fs::read(&file).expect("it was written");
    fs::write(&file, &bytes[..bytes.len() - 7]).expect("the scratch directory can be written");
    same(&file);
}

/// Nothing reads the pipe at first, so the ring fills up. The program continues at its own speed.
#[test]
fn a_full_ring_ends_the_recording_and_not_the_program() {
    let Some(program) = program() else { return };
    let directory = scratch("recording-full");
    let (pipe, file) = (fifo(&directory), directory.join("run.rec"));
    // Opens both ends, because opening one would wait for the other.
    let mut both = fs::OpenOptions::new().read(true).write(true).open(&pipe).expect("the pipe was made");
    let record = ["--block", "4KiB", "--prefetch", "off", "--record", pipe.to_str().expect("UTF-8")];
    let done = directory.join("done");
    let words = ["150000", done.to_str().expect("UTF-8")];
    let running = start(managed(&[&SETTINGS[..], &record].concat(), &program, &words));
    let output = file.clone();
    // The pipe holds 64 KiB and the ring 4 MiB, which is less than the program records.
    let reader = std::thread::spawn(move || {
        let deadline = Instant::now() + LIMIT;
        while !done.exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut bytes = vec![0; 1 << 16];
        let mut found = Vec::new();
        while !found.ends_with(b"the end") {
            let count = both.read(&mut bytes).expect("the pipe can be read");
            found.extend(&bytes[..count]);
        }
        found.truncate(found.len() - b"the end".len());
        fs::write(output, found).expect("the scratch directory can be written");
    });
    running.wait(LIMIT).expect(0);
    fs::OpenOptions::new().write(true).open(&pipe).expect("it is there").write_all(b"the end").expect("it is read");
    reader.join().expect("the reader ends");
    let line = same(&file);
    assert!(line["lost"].as_u64() > Some(0), "{line}");
    let ended = replay(&file, &[]);
    let (events, lost) = (&line["events"], &line["lost"]);
    let says = format!("complete up to event {events}, then {lost} events were lost");
    assert!(ended.expect(0).stdout.contains(&says), "'{says}' is not in\n{}", ended.stdout);
}

#[test]
fn a_file_that_cannot_be_written_ends_the_recording_and_not_the_program() {
    let Some(program) = program() else { return };
    let ended = record(&program, Path::new("/dev/full"), &[], &["1000"]);
    let line = "aquifer: this process is not recorded: /dev/full: No space left on device (os error 28); \
                name a file that it can write";
    ended.expect(0).expect_line(line);
    // The reader closes the pipe half-way.
    let directory = scratch("recording-gone");
    let (pipe, file) = (fifo(&directory), directory.join("run.rec"));
    let mut both = fs::OpenOptions::new().read(true).write(true).open(&pipe).expect("the pipe was made");
    let record = ["--record", pipe.to_str().expect("UTF-8")];
    let running = start(managed(&[&SETTINGS[..], &record].concat(), &program, &["20000"]));
    let mut bytes = vec![0; 100_000];
    both.read_exact(&mut bytes).expect("that much is recorded");
    drop(both);
    fs::write(&file, bytes).expect("the scratch directory can be written");
    let line = "aquifer: the recording ends here, and the program goes on: its file cannot be written (errno 32); \
                free space where it lies, or record to another place";
    running.wait(LIMIT).expect(0).expect_line(line);
    assert_eq!(same(&file)["closed"], false);
}

fn fifo(directory: &Path) -> PathBuf {
    let pipe = directory.join("pipe");
    let made = std::process::Command::new("mkfifo").args(["-m", "600"]).arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()), "no pipe could be made");
    pipe
}

#[test]
fn each_process_has_a_file_of_its_own() {
    let Some(program) = program() else { return };
    let directory = scratch("recording-processes");
    let file = directory.join("run.rec");
    let mut command = aquifer();
    command.arg("run").args(SETTINGS).arg("--record").arg(&file).args(["--", "sh", "-c", "\"$0\" 1000; \"$0\" 2000"]);
    command.arg(&program);
    run(command, LIMIT).expect(0);
    let mut files: Vec<PathBuf> =
        fs::read_dir(&directory).expect("it is there").map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 2, "{files:?}");
    assert_eq!(files[0], file);
    let pids: Vec<u64> = files.iter().map(|file| same(file)["pid"].as_u64().expect("a number")).collect();
    assert_eq!(files[1], directory.join(format!("run.rec.{}", pids[1])));
    assert_ne!(pids[0], pids[1]);
}

/// Shells close descriptors that they have not opened; the recording's number must not be reused for the next file.
#[test]
fn a_program_that_closes_what_it_has_not_opened_keeps_its_own_file() {
    let Some(program) = program() else { return };
    let directory = scratch("recording-descriptor");
    let (file, mine) = (directory.join("run.rec"), directory.join("mine"));
    let words = ["30000", file.to_str().expect("UTF-8"), mine.to_str().expect("UTF-8")];
    record(&program, &file, &[], &words).expect(0);
    assert_eq!(fs::metadata(&mine).expect("it was opened").len(), 0, "the recording went into the program's file");
    let line = same(&file);
    assert_eq!(line["closed"], true);
    assert!(line["events"].as_u64() > Some(30_000), "{line}");
}

#[test]
fn a_wrong_path_is_refused_before_the_program_starts() {
    let Some(program) = program() else { return };
    let ended = record(&program, Path::new("/nowhere/run.rec"), &[], &["1"]);
    let line = "aquifer: --record /nowhere/run.rec cannot be written: No such file or directory (os error 2); \
                name a file in a directory that exists";
    assert_eq!((ended.status, ended.stderr.trim_end()), (Some(125), line));
    // An existing file is replaced, even if nothing is recorded.
    let file = scratch("recording-old").join("run.rec");
    fs::write(&file, b"old").expect("the scratch directory can be written");
    let mut command = aquifer();
    command.args(["run", "--dram", "24MiB", "--tier", "dram:", "--record"]).arg(&file).args(["--", "true"]);
    assert!(run(command, LIMIT).expect(125).stderr.contains("other users can read"), "a recording is private");
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("it is ours");
    let mut command = aquifer();
    command.args(["run", "--dram", "24MiB", "--tier", "dram:", "--record"]).arg(&file).args(["--", "true"]);
    run(command, LIMIT).expect(0);
    assert_eq!(fs::read(&file).expect("it is there"), b"");
}
