// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Operating a donor: memory is reclaimed, programs that end leave nothing on the donor, and figures are scraped.
//!
//! The trouble it guards against: lent memory that cannot be reclaimed; a borrower's bytes that remain in the donor's
//! memory long after the borrower has ended; and memory that is taken from a child that is still running.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::donor::{Donor, PLAIN, command};
use aquifer_e2e::run::{LIMIT, Running, aquifer, eventually, has_ended, managed, run, start};
use serde_json::Value;

/// A donor whose messages are captured.
fn lending(words: &[&str]) -> Donor {
    let mut command = command("127.0.0.1:0");
    command.args(PLAIN).args(words).stderr(Stdio::piped());
    Donor::run(command).in_plain_text()
}

/// Whether most of the program's memory is with the donor. Writes to shared memory do not pass through the donor
/// process, so it cannot count them.
fn lends_much(donor: &Donor) -> bool {
    let is_shared = donor.address.starts_with("unix:");
    donor.number(if is_shared { "lent_bytes" } else { "written_bytes_total" }) > 32 << 20
}

/// The exit status of a donor and its messages, once it has ended.
fn end(mut donor: Donor) -> (Option<i32>, String) {
    eventually("the donor's end", || donor.child.try_wait().expect("our child").is_some());
    let mut reported = String::new();
    donor.child.stderr.take().expect("piped").read_to_string(&mut reported).expect("text");
    (donor.child.wait().expect("our child").code(), reported)
}

fn kill(process: u32, signal: &str) {
    let sent = Command::new("kill").args([signal, &process.to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()));
}

/// The first bytes of each page of the program.
const MARK: &[u8] = b"aquifer-e2e: a borrower's secret!";

/// Fills memory with pages that begin with a mark, creates `ARGUMENT.ready`, waits for ARGUMENT, and reads all of it.
/// With a second argument, a child does the waiting and the reading, and the program exits before it.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <unistd.h>
enum { LEN = 64 << 20, PAGE = 4096 };
static const char mark[] = "aquifer-e2e: a borrower's " "secret!";
static sigjmp_buf again;
static void on_bus(int number) { (void)number; siglongjmp(again, 1); }
static void touch(const char *name, const char *end, const char *text) {
    static char path[4096];
    snprintf(path, sizeof path, "%s%s", name, end);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || write(file, text, strlen(text)) < 0 || close(file)) _exit(3);
}
int main(int argc, char **argv) {
    /* Where nobody waits for it any more. */
    alarm(600);
    unsigned char *start = malloc(LEN);
    for (size_t at = 0; at < LEN; at += PAGE) {
        memcpy(start + at, mark, sizeof mark - 1);
        memcpy(start + at + 64, &at, sizeof at);
    }
    if (argc == 3) {
        if (fork()) _exit(0);
        for (int descriptor = 0; descriptor < 3; descriptor++) close(descriptor);
    }
    struct sigaction action = {.sa_handler = on_bus};
    sigaction(SIGBUS, &action, NULL);
    touch(argv[1], ".ready", "");
    while (access(argv[1], F_OK)) usleep(1000);
    volatile size_t lost = 0, wrong = 0, at;
    for (at = 0; at < LEN; at += PAGE) {
        if (sigsetjmp(again, 1)) { lost++; continue; }
        size_t place = at;
        if (memcmp(start + at, mark, sizeof mark - 1) || memcmp(start + at + 64, &place, sizeof place)) wrong++;
    }
    static char line[100];
    snprintf(line, sizeof line, "lost %zu wrong %zu\n", (size_t)lost, (size_t)wrong);
    touch(argv[1], ".result", line);
    return 0;
}
"#;

/// A waiting program that has most of its memory with a donor.
struct Borrower {
    running: Running,
    file: PathBuf,
}

impl Borrower {
    fn start(name: &str, donor: &Donor, words: &[&str]) -> Option<Borrower> {
        Borrower::start_with(name, donor, &[], words)
    }

    /// `further` tiers follow the donor's.
    fn start_with(name: &str, donor: &Donor, further: &[&str], words: &[&str]) -> Option<Borrower> {
        let program = compile_text(name, PROGRAM)?;
        let file = scratch(name).join("go");
        let text = file.to_str().expect("a path of ours").to_owned();
        let tier = donor.tier(",size=128MiB");
        let settings = [&["--dram", "24MiB", "--delivery", "signal", "--tier", &tier], further].concat();
        let running = start(managed(&settings, &program, &[&[text.as_str()], words].concat()));
        let borrower = Borrower { running, file };
        eventually("the program is ready", || borrower.with("ready").exists());
        eventually("the program's memory leaves", || lends_much(donor));
        Some(borrower)
    }

    fn kill(mut self) {
        self.running.child.kill().expect("our child");
        self.running.wait(LIMIT);
    }

    fn with(&self, extension: &str) -> PathBuf {
        self.file.with_extension(extension)
    }

    fn go(&self) {
        std::fs::write(&self.file, "").expect("the scratch directory can be written");
    }

    fn result(&self) -> String {
        let read = || std::fs::read_to_string(self.with("result")).unwrap_or_default();
        eventually("the program's result", || read().ends_with('\n'));
        read()
    }
}

#[test]
fn a_program_that_ends_leaves_nothing_with_the_donor() {
    let donor = lending(&["--size", "256MiB"]);
    let Some(borrower) = Borrower::start("exit-report", &donor, &[]) else { return };
    borrower.go();
    assert_eq!(borrower.result(), "lost 0 wrong 0\n");
    borrower.running.wait(LIMIT).expect(0);
    assert_eq!((donor.number("lent_bytes"), donor.number("expiries_total")), (0, 0));
    let Some(borrower) = Borrower::start("exit-report-killed", &donor, &[]) else { return };
    kill(borrower.running.program(), "-KILL");
    borrower.running.wait(LIMIT).expect(128 + 9);
    assert_eq!((donor.number("lent_bytes"), donor.number("expiries_total")), (0, 0));
}

#[test]
fn nothing_is_taken_from_a_child_that_lives_on() {
    let donor = lending(&["--size", "256MiB"]);
    let Some(borrower) = Borrower::start("exit-report-child", &donor, &["fork"]) else { return };
    let launcher = borrower.running.child.id();
    eventually("the launcher's end", || has_ended(launcher));
    assert!(donor.number("lent_bytes") > 32 << 20);
    borrower.go();
    assert_eq!(borrower.result(), "lost 0 wrong 0\n");
    borrower.running.wait(LIMIT).expect(0);
}

#[test]
fn a_borrower_that_is_killed_leaves_nothing_in_the_donors_memory() {
    let donor = lending(&["--size", "256MiB", "--lease", "2s"]);
    let Some(borrower) = Borrower::start("memory-wiped", &donor, &[]) else { return };
    let Some(before) = donor.count(MARK) else { return };
    assert!(before > 4096, "its pages are there: {before}");
    // Kills the launcher, too, so that nothing returns the memory.
    let program = borrower.running.program();
    kill(borrower.running.child.id(), "-KILL");
    eventually("the program's end", || has_ended(program));
    eventually("the leases expire", || donor.number("lent_bytes") == 0 && donor.number("wiping_bytes") == 0);
    assert!(donor.number("expiries_total") > 16);
    assert_eq!(donor.count(MARK), Some(0), "neither in what it lends nor in what it sends and receives with");
}

#[test]
fn memory_that_is_taken_back_is_asked_for_before_it_is_lost() {
    let control = socket("reclaim");
    let donor = lending(&["--size", "128MiB", "--lease", "3s", "--control", path(&control)]);
    let Some(borrower) = Borrower::start("reclaimed", &donor, &[]) else { return };
    let order = |words: &[&str]| {
        let mut command = aquifer();
        command.args(["donor", "reclaim", path(&control), "--json"]).args(words);
        let ended = run(command, LIMIT);
        serde_json::from_str::<Value>(&ended.expect(0).stdout).expect("one object")
    };
    let lent = donor.number("lent_bytes");
    let free = (128 << 20) - lent;
    // Memory that nobody has borrowed is reclaimed immediately.
    let first = order(&["--bytes", "16MiB"]);
    assert_eq!((&first["reclaimed_bytes"], &first["revocations"]), (&(16 << 20).into(), &0.into()), "{free} were free");
    // The program may still be writing back, and the remaining memory is lent to it.
    assert!(donor.number("lent_bytes") >= lent, "nothing was taken from it");
    let begun = Instant::now();
    let all = order(&["--all", "--within", "5s"]);
    assert!(begun.elapsed() >= Duration::from_secs(5), "a single tier has nowhere to move it to");
    assert_eq!(all["draining_bytes"], 0, "{all}");
    assert!(all["revocations"].as_u64().is_some_and(|count| count > 16), "{all}");
    assert_eq!((donor.number("reclaimed_bytes"), donor.number("lent_bytes")), (128 << 20, 0));
    borrower.go();
    let result = borrower.result();
    assert!(result.ends_with("wrong 0\n") && !result.starts_with("lost 0 "), "{result}");
    let ended = borrower.running.wait(LIMIT);
    let reported: Vec<_> = ended.said().into_iter().filter(|line| line.contains("the donor takes back")).collect();
    assert_eq!(reported.len(), 1, "{}", ended.stderr);
    let status = run_status(&["--control", path(&control), "--prometheus"]);
    assert!(status.contains("\naquifer_donor_reclaimed_bytes 134217728\n"), "{status}");
}

/// With another tier after the donor's, nothing is lost.
#[test]
fn memory_that_is_taken_back_moves_to_the_next_tier() {
    moves_to_the_next_tier("saved", lending);
}

/// The borrower accesses shared memory without the donor process, and learns of the order when it renews its leases.
#[test]
fn memory_that_was_shared_and_is_taken_back_moves_to_the_next_tier() {
    moves_to_the_next_tier("saved-shared", |words| Donor::start_sharing("saved-at", words));
}

fn moves_to_the_next_tier(name: &str, start: impl Fn(&[&str]) -> Donor) {
    let control = socket(name);
    let donor = start(&["--size", "128MiB", "--lease", "3s", "--control", path(&control)]);
    let further = ["--tier", "dram:size=128MiB"];
    let Some(borrower) = Borrower::start_with(name, &donor, &further, &[]) else { return };
    let mut command = aquifer();
    command.args(["donor", "reclaim", path(&control), "--json", "--all", "--within", "60s"]);
    let all: Value = serde_json::from_str(&run(command, LIMIT).expect(0).stdout).expect("one object");
    assert_eq!((&all["draining_bytes"], &all["revocations"]), (&0.into(), &0.into()), "given back, not revoked");
    borrower.go();
    assert_eq!(borrower.result(), "lost 0 wrong 0\n");
    let ended = borrower.running.wait(LIMIT);
    assert!(ended.said().iter().all(|line| !line.contains("takes back")), "{}", ended.stderr);
}

#[test]
fn a_donor_that_is_signalled_to_end_waits_for_its_borrowers_but_not_after_a_second_signal() {
    let donor = lending(&["--size", "128MiB", "--grace", "3s"]);
    let Some(borrower) = Borrower::start("drained", &donor, &[]) else { return };
    let begun = Instant::now();
    donor.signal("-TERM");
    let (status, reported) = end(donor);
    assert!((Duration::from_secs(3)..Duration::from_secs(60)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!(status, Some(0), "{reported}");
    assert!(reported.contains("borrowers have 3s") && reported.contains("revoked "), "{reported}");
    borrower.kill();
    let donor = lending(&["--size", "128MiB", "--grace", "10m"]);
    let Some(borrower) = Borrower::start("hurried", &donor, &[]) else { return };
    let begun = Instant::now();
    donor.signal("-TERM");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!has_ended(donor.child.id()), "it waits");
    donor.signal("-INT");
    assert_eq!(end(donor).0, Some(0));
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    borrower.kill();
}

#[test]
fn systemd_is_notified_when_a_donor_lends_and_when_it_ends() {
    let name = socket("notify");
    let reported = UnixDatagram::bind(&name).expect("a socket can be made");
    reported.set_read_timeout(Some(LIMIT)).expect("a time limit");
    let mut command = aquifer();
    command.args(["donor", "--size", "2MiB", "--listen", "127.0.0.1:0", "--security", "plain"]);
    command.env("NOTIFY_SOCKET", &name);
    let mut running = start(command);
    let next = || {
        let mut bytes = [0; 512];
        let count = reported.recv(&mut bytes).expect("a word");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let ready = next();
    assert!(ready.starts_with("READY=1\nSTATUS=lends 2MiB at 127.0.0.1:"), "{ready}");
    assert!(running.child.try_wait().expect("our child").is_none());
    kill(running.child.id(), "-TERM");
    let ending = next();
    assert!(ending.starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC=90000000\n"), "{ending}");
    running.wait(LIMIT).expect(0);
    let _ = std::fs::remove_file(&name);
}

/// The answer to a request on a connection to the metrics, read until the connection ends.
fn scraped(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("metrics are served");
    stream.write_all(request.as_bytes()).expect("a request can be sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

#[test]
fn metrics_are_scraped_and_strangers_hold_nobody_up() {
    let donor = lending(&["--size", "64MiB", "--metrics", "127.0.0.1:0"]);
    let address = donor.said["metrics"].as_str().expect("an address");
    let get = |path: &str| scraped(address, &format!("GET {path} HTTP/1.1\r\nHost: donor\r\n\r\n"));
    let page = get("/metrics");
    assert!(page.starts_with("HTTP/1.1 200 ") && page.contains("text/plain; version=0.0.4"), "{page}");
    assert!(page.contains("\naquifer_donor_capacity_bytes 67108864\n"), "{page}");
    assert!(page.contains("\naquifer_donor_refusals_total{reason=\"stale_token\"} 0\n"), "{page}");
    assert!(get("/").starts_with("HTTP/1.1 404 "));
    assert!(scraped(address, "POST /metrics HTTP/1.1\r\nHost: donor\r\n\r\n").starts_with("HTTP/1.1 405 "));
    assert!(scraped(address, "no request at all\r\n\r\n").starts_with("HTTP/1.1 400 "));
    assert!(!get(&format!("/{}", "x".repeat(100_000))).starts_with("HTTP/1.1 200"));
    // More silent clients than are served at the same time, and some that send only a part of a request.
    let silent: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).expect("the kernel takes it")).collect();
    silent.iter().step_by(2).for_each(|mut stream| drop(stream.write_all(b"GET /met")));
    let begun = Instant::now();
    assert!(get("/metrics").starts_with("HTTP/1.1 200 "));
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    drop(silent);
}

fn run_status(words: &[&str]) -> String {
    let mut command = aquifer();
    command.args(["donor", "status"]).args(words);
    run(command, LIMIT).expect(0).stdout.clone()
}

/// A path for one test; short, because the length of a socket path is limited.
fn socket(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("aq-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path of ours")
}
