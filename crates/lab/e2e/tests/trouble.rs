// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! When something goes wrong: what is printed, how the program exits, and what must never happen.
//!
//! Wrong bytes, including zeros, must never be read. Here a program with a handler for SIGBUS reads its memory while
//! the tier fails in every way, and counts.

use std::time::Duration;

use aquifer_e2e::build::{compile_small, compile_text, scratch};
use aquifer_e2e::matrix::{PARTS_ALL, Setting};
use aquifer_e2e::run::{Ended, LIMIT, aquifer, eventually, has_ended, managed, run, start, stats};

/// Fills 80 MiB, then reads it all, twice. Pages whose access is a SIGBUS are counted and skipped. Prints the counts.
/// Exit status 1: a page held anything but its last write.
const READER: &str = r#"
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define GIVES_BACK 0
#define GIVES_BACK_SOME 0
enum { LEN = 80 << 20, PAGE = 4096 };
static sigjmp_buf again;
static void on_bus(int number) { (void)number; siglongjmp(again, 1); }
int main(void) {
    struct sigaction action = {.sa_handler = on_bus};
    unsigned char *start = aligned_alloc(PAGE, LEN);
    volatile size_t at, lost = 0, unwritten = 0;
    static unsigned char written[LEN / PAGE];
    sigaction(SIGBUS, &action, NULL);
    for (at = 0; at < LEN; at += PAGE) {
        if (sigsetjmp(again, 1)) { unwritten++; continue; }
        *(volatile uint64_t *)(start + at) = at + 1;
        written[at / PAGE] = 1;
    }
    if (GIVES_BACK) {
        if (!unwritten || madvise(start, LEN / 2, MADV_DONTNEED)) return 2;
        memset(written, 0, LEN / 2 / PAGE);
        unwritten = 0;
    }
    if (GIVES_BACK_SOME)
        for (at = 0; at < LEN; at += 8 * PAGE) {
            if (madvise(start + at, PAGE, MADV_DONTNEED)) return 2;
            written[at / PAGE] = 0;
        }
    for (int turn = 0; turn < 2; turn++)
        for (at = 0; at < LEN; at += PAGE) {
            if (GIVES_BACK && at < LEN / 2) continue;
            if (sigsetjmp(again, 1)) { lost++; continue; }
            uint64_t seen = *(volatile uint64_t *)(start + at);
            if (seen != (written[at / PAGE] ? at + 1 : 0)) {
                fprintf(stderr, "page %zu holds %llu\n", (size_t)at / PAGE, (unsigned long long)seen);
                return 1;
            }
        }
    /* Not by stdio: its buffer would be new memory, and there may be none left. */
    static char line[100];
    return write(1, line, snprintf(line, sizeof line, "lost %zu unwritten %zu\n", (size_t)lost, (size_t)unwritten)) < 0;
}
"#;

/// Runs the reader without read-ahead, because a failed read-ahead loses nothing: the fault fetches again.
fn read_all(name: &str, tier: &str) -> Option<(Ended, u64, u64)> {
    read_all_by("auto", name, tier)
}

fn read_all_by(delivery: &str, name: &str, tier: &str) -> Option<(Ended, u64, u64)> {
    let program = compile_text(&format!("{name}-{delivery}"), READER)?;
    let words = ["--dram", "24MiB", "--prefetch", "off", "--tier", tier, "--delivery", delivery];
    let ended = run(managed(&words, &program, &[]), LIMIT);
    ended.expect(0);
    let words: Vec<&str> = ended.stdout.split_whitespace().collect();
    let number = |at: usize| words[at].parse().expect("a count");
    let (lost, unwritten) = (number(1), number(3));
    Some((ended, lost, unwritten))
}

#[test]
fn a_failed_fetch_is_a_sigbus_and_a_line_and_never_zeros() {
    let Some((ended, lost, _)) = read_all("reader-fetch", "failing:after=400,times=3,on=read:dram:") else { return };
    assert!(lost > 0, "three fetches failed and nothing was reported: {}", ended.stderr);
    let line =
        ended.said().into_iter().find(|line| line.contains("a fetch from the tier failed")).expect("one clear line");
    assert!(line.ends_with(
        "are lost and poisoned; an access to them is a SIGBUS; check the medium and the kernel log (dmesg)"
    ));
}

#[test]
fn changed_bits_are_noticed_and_never_seen() {
    let Some((ended, lost, _)) = read_all("reader-bits", "failing:corrupt=300:dram:") else { return };
    let noticed = ended.said().iter().filter(|line| line.contains("(guard mismatch)")).count();
    assert!(noticed > 0 && lost > 0, "bits were changed and nothing was reported: {}", ended.stderr);
}

#[test]
fn an_unhandled_loss_ends_the_program_by_sigbus() {
    let setting = Setting::PLAIN;
    let Some(ended) = setting.torture_with(&["--tier", "failing:after=300,on=read:dram:"], 1, 2, "l") else { return };
    ended.expect(128 + 7);
    assert!(ended.said().iter().any(|line| line.ends_with("was ended by SIGBUS")), "{}", ended.stderr);
}

/// Under listener delivery, the page for which there was no room used to be poisoned, and its block with it: the next
/// fault found a page where none should be, and the program was ended.
#[test]
fn a_tier_that_is_full_says_so_and_everything_else_stays_right() {
    for delivery in ["signal", "listener"] {
        let Some((ended, _, unwritten)) = read_all_by(delivery, "reader-full", "dram:size=32MiB") else { return };
        ended.expect_line(
            "aquifer: the tier is full at 32 MiB; give it a larger size (--tier KIND:...,size=SIZE) or add DRAM (--dram)",
        );
        ended.expect_line(
            "aquifer: no memory: nothing more can be written back, so no frame can be freed; the access gets SIGBUS",
        );
        assert!(unwritten > 0, "{delivery}: 80 MiB do not fit in 24 + 32 MiB");
    }
}

/// A program that gave back a part of a block whose bytes the tier had lost was ended. The rest is lost in any case: an
/// access to it is a SIGBUS, as without the call.
#[test]
fn a_part_of_a_lost_block_can_be_given_back() {
    let program = compile_text("reader-part", &READER.replace("GIVES_BACK_SOME 0", "GIVES_BACK_SOME 1"));
    let Some(program) = program else { return };
    for delivery in ["signal", "listener"] {
        let tier = "failing:after=10,on=read:dram:";
        let words =
            ["--dram", "24MiB", "--block", "64KiB", "--prefetch", "off", "--tier", tier, "--delivery", delivery];
        let ended = run(managed(&words, &program, &[]), LIMIT);
        let counts = ended.expect(0).stdout.clone();
        assert!(!counts.starts_with("lost 0 ") && counts.ends_with(" unwritten 0\n"), "{delivery}: {counts}");
        let lines = ended.said().iter().filter(|line| line.contains("are lost and poisoned")).count();
        assert_eq!(lines, 16, "each of some hundred losses has a line: {}", ended.stderr);
        ended.expect_line(
            "aquifer: 512 losses so far, of which only the first 16 have a line each; poisoned_blocks of 'aquifer stat' \
             counts them all",
        );
    }
}

/// Memory for which there was no room is unchanged when there is room again: written pages have their bytes, others are
/// empty.
#[test]
fn writes_refused_for_lack_of_room_succeed_once_there_is_room() {
    let program = compile_text("reader-room", &READER.replace("#define GIVES_BACK 0", "#define GIVES_BACK 1"));
    let Some(program) = program else { return };
    for delivery in ["signal", "listener"] {
        let words = ["--dram", "24MiB", "--prefetch", "off", "--tier", "dram:size=32MiB", "--delivery", delivery];
        let ended = run(managed(&words, &program, &[]), LIMIT);
        assert_eq!(ended.expect(0).stdout, "lost 0 unwritten 0\n", "{delivery}: {}", ended.stderr);
    }
}

/// A system call that needs room which never becomes available cannot return an error, but it must not wait for ever.
#[test]
fn a_call_without_room_ends_loudly_under_listener_delivery() {
    let body = "char *start = mmap(NULL, 80 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\
        int zeros = open(\"/dev/urandom\", O_RDONLY); alarm(250);\
        for (size_t at = 0; at < 80 << 20; at += 1 << 20) if (read(zeros, start + at, 1 << 20) < 1 << 20) return 3;\
        return 0;";
    let Some(program) = compile_small("call-without-room", body) else { return };
    let words = ["--dram", "24MiB", "--tier", "dram:size=32MiB", "--delivery", "listener", "--exchange", "move"];
    run(managed(&words, &program, &[]), LIMIT).expect(113).expect_line(
        "aquifer: no memory: nothing more can be written back, so no frame can be freed, and the program waits for \
         one; free space where the tier lives, or add DRAM (--dram)",
    );
}

#[test]
fn write_backs_that_fail_for_a_while_are_tried_again() {
    let setting = Setting::PLAIN;
    for tier in ["failing:after=200,on=write,times=10:dram:", "failing:every=40,on=write:dram:"] {
        let Some(ended) = setting.torture_with(&["--tier", tier], 2, 2, "la") else { return };
        ended.expect(0).expect_line(
            "aquifer: cannot write to the failing tier (errno 5); blocks stay in DRAM and are tried again; \
             check the medium and the kernel log (dmesg)",
        );
    }
}

#[test]
fn after_any_number_of_operations_it_is_right_or_a_loud_end() {
    let setting = Setting { footprint_mib: 60, dram_mib: 16, ..Setting::PLAIN };
    for after in [0, 1, 2, 3, 10, 100, 300, 700, 1500, 4000] {
        for on in ["read", "write"] {
            let tier = format!("failing:after={after},on={on}:dram:");
            let Some(ended) = setting.torture_with(&["--tier", &tier], after, 1, PARTS_ALL) else { return };
            // 1 is the torture program's status for a system call that fails on a lost buffer: a reported error. 113 is
            // the pager's, if a lost block prevents an operation that the program requests.
            let loud = matches!(ended.status, Some(1 | 113 | 135)) && !ended.said().is_empty();
            let wrong = ended.stderr.contains("holds 0x") || ended.stderr.contains("differs from");
            assert!(!wrong && (ended.status == Some(0) || loud), "{tier}: {:?}\n{}", ended.status, ended.stderr);
        }
    }
}

#[test]
fn a_crash_is_passed_on() {
    let Some(program) = compile_small("crash", "touch(60); *(volatile char *)8 = 1; return 0;") else { return };
    let ended = run(managed(&["--dram", "16MiB", "--tier", "dram:"], &program, &[]), LIMIT);
    ended.expect(128 + 11);
    let status = compile_small("status", "touch(60); return 37;").expect("the compiler worked above");
    run(managed(&["--dram", "16MiB", "--tier", "dram:"], &status, &[]), LIMIT).expect(37);
}

#[test]
fn a_kill_leaves_nothing_behind() {
    let directory = scratch("kill");
    let ready = scratch("kill-ready").join("ready");
    let body = format!("touch(60); close(creat(\"{}\", 0600)); sleep(1000); return 0;", ready.display());
    let Some(program) = compile_small("sleeper", &body) else { return };
    let mut command = aquifer();
    command.args(["run", "--dram", "16MiB", "--state-dir"]).arg(&directory).arg("--").arg(&program);
    let mut running = start(command);
    eventually("the program's readiness", || ready.exists());
    let program = running.program();
    assert!(!has_ended(program), "the program runs");
    running.child.kill().expect("it is our child");
    running.wait(LIMIT);
    eventually("the program's death with its launcher", || has_ended(program));
    let left: Vec<_> = std::fs::read_dir(&directory).expect("the state directory is still there").collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Sends a signal to a program whose only thread waits for a tier that takes `delay` for each request. Returns how long
/// the program takes to end, and how it ends, within `limit`.
fn signalled_while_it_waits(
    name: &str,
    prepare: &str,
    delivery: &str,
    delay: &str,
    limit: Duration,
) -> Option<(Duration, Ended)> {
    let ready = scratch(&format!("waits-{name}-{delivery}")).join("ready");
    let body = format!("{prepare} close(creat(\"{}\", 0600)); touch(60); return 0;", ready.display());
    let program = compile_small(name, &body)?;
    let tier = format!("failing:delay={delay}:dram:");
    let running = start(managed(&["--dram", "16MiB", "--tier", &tier, "--delivery", delivery], &program, &[]));
    eventually("what the program prepares", || ready.exists());
    // By then it has outgrown its budget and waits: touching 16 MiB takes milliseconds.
    std::thread::sleep(Duration::from_secs(2));
    let launcher = running.child.id().to_string();
    let sent = std::time::Instant::now();
    assert!(std::process::Command::new("kill").args(["-TERM", &launcher]).status().expect("kill runs").success());
    let ended = running.wait(limit);
    Some((sent.elapsed(), ended))
}

/// The handler in which a fault waits has every signal blocked: SIGTERM used to have no effect for up to two minutes.
#[test]
fn a_program_that_waits_for_its_tier_can_be_ended() {
    for delivery in ["signal", "listener"] {
        // By itself, the program would end after hundreds of requests. The limit only catches hangs: the signal ends it
        // within 0.2 s on an idle machine, and used to take two minutes.
        let limit = Duration::from_secs(60);
        let Some((_, ended)) = signalled_while_it_waits("waits", "", delivery, "10s", limit) else { return };
        ended.expect(128 + 15);
    }
}

#[test]
fn a_signal_that_the_program_handles_or_blocks_does_not_end_it() {
    for (name, prepare) in [
        ("handles", "signal(SIGTERM, (void (*)(int))(void *)puts);"),
        ("blocks", "sigset_t set; sigemptyset(&set); sigaddset(&set, SIGTERM); sigprocmask(SIG_BLOCK, &set, NULL);"),
        ("ignores", "signal(SIGTERM, SIG_IGN);"),
    ] {
        let limit = Duration::from_secs(4);
        let Some((_, ended)) = signalled_while_it_waits(name, prepare, "signal", "10s", limit) else { return };
        assert_eq!(ended.status, None, "{name}: {}", ended.stderr);
    }
}

#[test]
fn two_instances_do_not_meet() {
    std::thread::scope(|scope| {
        let runs = [1, 2]
            .map(|seed| scope.spawn(move || Setting { tier: "flash:", ..Setting::PLAIN }.torture(seed, 2, PARTS_ALL)));
        for run in runs {
            if let Some(ended) = run.join().expect("no panic") {
                ended.expect(0);
            }
        }
    });
}

#[test]
fn a_budget_below_the_minimum_is_refused() {
    let Some(program) = compile_small("nothing", "return 0;") else { return };
    run(managed(&["--dram", "15MiB", "--tier", "dram:"], &program, &[]), LIMIT)
        .expect(2)
        .expect_line("aquifer: --dram 15MiB is below the pager's minimum; give at least 16MiB");
}

#[test]
fn below_the_budget_nothing_is_registered() {
    let Some(program) = compile_small("modest", "touch(40); return 0;") else { return };
    let file = scratch("modest").join("stats.json");
    let words = ["--dram", "64MiB", "--tier", "dram:", "--stats-json", file.to_str().expect("UTF-8")];
    run(managed(&words, &program, &[]), LIMIT).expect(0);
    let stats = stats(&file);
    assert_eq!((&stats["active"], &stats["faults"]), (&0.into(), &0.into()), "{stats}");
}

#[test]
fn the_budget_holds_in_the_kernels_own_account() {
    let body = "char *start = touch(150); for (int turn = 0; turn < 3; turn++)\
                for (size_t at = 0; at < (size_t)150 << 20; at += 4096) start[at]++; return 0;";
    let Some(program) = compile_small("large", body) else { return };
    for (delivery, exchange) in [("signal", "move"), ("listener", "move"), ("signal", "copy")] {
        let file = scratch("large").join("stats.json");
        let path = file.to_str().expect("UTF-8");
        let words = [
            "--dram",
            "32MiB",
            "--tier",
            "dram:",
            "--delivery",
            delivery,
            "--exchange",
            exchange,
            "--stats-json",
            path,
        ];
        run(managed(&words, &program, &[]), LIMIT).expect(0);
        // The memory of the tier `dram:` is shared memory and counted separately; 8 MiB are for code, stacks and
        // tables.
        let peak = stats(&file)["resident_bytes_peak"].as_u64().expect("a number");
        assert!(peak <= 32 << 20, "{delivery}, {exchange}: {} KiB were resident", peak >> 10);
        let own = stats(&file)["process"]["rss_bytes_peak"].as_u64().expect("a number");
        assert!(own <= (32 + 32 + 8) << 20, "{delivery}, {exchange}: the process had {} KiB", own >> 10);
    }
}

#[test]
fn an_idle_program_uses_no_cpu() {
    let body = "touch(100); sleep(2);\
                struct timespec before, after; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before); sleep(2);\
                clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);\
                printf(\"%ld\\n\", (after.tv_sec - before.tv_sec) * 1000000 + (after.tv_nsec - before.tv_nsec) / 1000);\
                return 0;";
    let Some(program) = compile_small("idle", body) else { return };
    // If the tier accepts no more writes, the pager retries it twice a second. Interrupts on a busy machine are
    // counted, too: 1.6 ms were seen, and 0.2 ms on a quiet one.
    for (tier, us_max) in [("dram:", 5_000), ("failing:after=550,on=write:dram:", 20_000)] {
        let ended = run(managed(&["--dram", "32MiB", "--tier", tier], &program, &[]), LIMIT);
        if tier.starts_with("failing") && ended.status == Some(135) {
            continue; // Too little was written before the tier failed for the program to come to its sleep.
        }
        let used: u64 = ended.expect(0).stdout.trim().parse().expect("microseconds");
        assert!(used < us_max, "{tier} {used} us of CPU in 2 s of sleep");
    }
}
