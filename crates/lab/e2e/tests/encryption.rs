// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Data that leaves the machine is encrypted: a donor's memory and a file on a disk are examined while they hold a
//! program's memory, and modified.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::donor::Donor;
use aquifer_e2e::run::{LIMIT, Running, eventually, managed, start};

/// The bytes that fill each page of the program.
const MARK: &[u8] = b"aquifer-e2e: a borrower's secret!";
/// What the program prints if all of its memory is unchanged.
const ALL_WELL: &str = "lost 0 wrong 0\n";

/// Fills memory with pages full of a mark, creates `ARGUMENT.ready`, waits for ARGUMENT, and reads all of it, after a
/// child has done the same. Prints how much was lost and how much was wrong.
const PROGRAM: &str = r#"
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
enum { LEN = 64 << 20, PAGE = 4096 };
static const char mark[] = "aquifer-e2e: a borrower's " "secret!";
static char page[PAGE];
static unsigned char *start;
static sigjmp_buf again;
static void on_bus(int number) { (void)number; siglongjmp(again, 1); }
static void make(size_t at) {
    for (size_t offset = 0; offset + sizeof mark + 8 < PAGE; offset += 64) memcpy(page + offset, mark, sizeof mark - 1);
    memcpy(page + 48, &at, sizeof at);
}
static size_t look(void) {
    static volatile size_t lost, wrong, at;
    static char line[100];
    for (lost = wrong = at = 0; at < LEN; at += PAGE) {
        if (sigsetjmp(again, 1)) { lost++; continue; }
        make(at);
        if (memcmp(start + at, page, PAGE)) wrong++;
    }
    int len = snprintf(line, sizeof line, "lost %zu wrong %zu\n", (size_t)lost, (size_t)wrong);
    if (write(1, line, len) < 0) _exit(4);
    return lost;
}
int main(int argc, char **argv) {
    (void)argc;
    alarm(600); /* Whatever becomes of the test. */
    struct sigaction action = {.sa_handler = on_bus, .sa_flags = SA_NODEFER};
    sigaction(SIGBUS, &action, NULL);
    start = malloc(LEN);
    for (size_t at = 0; at < LEN; at += PAGE) {
        make(at);
        memcpy(start + at, page, PAGE);
    }
    static char ready[4096];
    snprintf(ready, sizeof ready, "%s.ready", argv[1]);
    int file = open(ready, O_WRONLY | O_CREAT, 0600);
    if (file < 0 || close(file)) return 3;
    while (access(argv[1], F_OK)) usleep(1000);
    pid_t child = fork();
    if (child == 0) {
        if (look()) _exit(0);
        /* What it changes is sealed by it, and its parent reads what it has itself. */
        for (size_t at = 0; at < LEN; at += PAGE) memset(start + at + 64, 'x', 32);
        for (size_t at = 0; at < LEN; at += PAGE) if (start[at + 70] != 'x' || start[at] != mark[0]) _exit(5);
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status) return 5;
    look();
    return 0;
}
"#;

/// A waiting program that has most of its memory in a tier.
struct Waiting {
    running: Running,
    go: PathBuf,
}

impl Waiting {
    fn start(name: &str, tier: &str) -> Option<Waiting> {
        let program = compile_text(name, PROGRAM)?;
        let go = scratch(name).join("go");
        let words = ["--dram", "16MiB", "--tier", tier];
        let running = start(managed(&words, &program, &[go.to_str().expect("a path of ours")]));
        let waiting = Waiting { running, go };
        eventually("the program has filled its memory", || Path::new(&waiting.go).with_extension("ready").exists());
        Some(waiting)
    }

    /// Makes it read all of its memory; returns its output.
    fn end(self) -> String {
        std::fs::write(&self.go, "").expect("the scratch directory can be written");
        let ended = self.running.wait(LIMIT);
        ended.expect(0);
        eprint!("{}", ended.stderr);
        ended.stdout.clone()
    }
}

/// The number of pages of a donor's memory that contain the mark.
fn marked_pages(donor: &Donor) -> Option<usize> {
    let (memory, ranges) = donor.memory()?;
    let pages = ranges.into_iter().flat_map(|(start, end)| (start..end).step_by(4096));
    let mut bytes = [0; 4096];
    Some(pages.filter(|page| memory.read_exact_at(&mut bytes, *page).is_ok() && has_mark(&bytes)).count())
}

fn has_mark(bytes: &[u8]) -> bool {
    bytes.windows(MARK.len()).any(|window| window == MARK)
}

#[test]
fn a_donor_has_nothing_of_what_it_holds_and_a_forked_child_reads_it() {
    // Without encryption the mark must be found, or the test would prove nothing.
    for (name, options, is_sealed) in [("plain", "", false), ("sealed", ",encrypt=ephemeral", true)] {
        let donor = Donor::start(&["--size", "192MiB"]);
        let Some(waiting) =
            Waiting::start(&format!("encryption-{name}"), &donor.tier(&format!(",size=192MiB{options}")))
        else {
            return;
        };
        assert!(donor.number("lent_bytes") >= 32 << 20, "most of the memory is there");
        let Some(marked) = marked_pages(&donor) else { return };
        assert!(if is_sealed { marked == 0 } else { marked > 1000 }, "{name}: {marked} pages of it have the mark");
        assert_eq!(waiting.end(), [ALL_WELL; 2].concat(), "{name}");
        assert_eq!(marked_pages(&donor).filter(|_| is_sealed).unwrap_or_default(), 0, "{name}, after the child's");
    }
}

#[test]
fn a_file_has_nothing_of_what_it_holds_in_a_chain() {
    for (name, options, is_sealed) in [("plain", "", false), ("sealed", ",encrypt=ephemeral", true)] {
        let name = format!("encryption-file-{name}");
        let path = scratch(&format!("{name}-tier")).join("blocks");
        // The tier would unlink a file that it creates, but an existing file keeps its name.
        std::fs::write(&path, vec![1; 1 << 20]).expect("the scratch directory can be written");
        // A file that others can read is refused.
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("it is ours");
        let donor = Donor::start(&["--size", "192MiB"]);
        let program = compile_text(&name, PROGRAM);
        let Some(program) = program else { return };
        let go = scratch(&name).join("go");
        let donor_tier = donor.tier(&format!(",size=16MiB{options}"));
        let file_tier = format!("flash:{},size=128MiB,overwrite{options}", path.display());
        let words = ["--dram", "16MiB", "--tier", &donor_tier, "--tier", &file_tier];
        let running = start(managed(&words, &program, &[go.to_str().expect("a path of ours")]));
        let waiting = Waiting { running, go };
        eventually("the program has filled its memory", || waiting.go.with_extension("ready").exists());
        let marked = || {
            let bytes = std::fs::read(&path).expect("the file is there");
            assert!(bytes.len() > 1 << 20 && bytes.iter().any(|byte| *byte > 1), "something is stored in it");
            bytes.chunks(4096).filter(|page| has_mark(page)).count()
        };
        let found = marked();
        assert!(if is_sealed { found == 0 } else { found > 1000 }, "{name}: {found} pages of it have the mark");
        assert_eq!(waiting.end(), [ALL_WELL; 2].concat(), "{name}");
    }
}

/// One donor with the only copy: each changed page is an error, and none is wrong.
#[test]
fn reading_a_page_changed_at_the_donor_is_an_error() {
    let donor = Donor::start(&["--size", "192MiB"]);
    let Some(waiting) = Waiting::start("encryption-changed", &donor.tier(",size=128MiB,encrypt=ephemeral")) else {
        return;
    };
    let Some((memory, ranges)) = donor.memory() else { return };
    let (start, end) = ranges.into_iter().max_by_key(|(start, end)| end - start).expect("it has memory");
    for page in (start..end).step_by(4096) {
        let mut byte = [0];
        memory.read_exact_at(&mut byte, page + 100).expect("our child's");
        memory.write_all_at(&[byte[0] ^ 0x10], page + 100).expect("our child's");
    }
    let said = waiting.end();
    for line in said.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let lost: u64 = words[1].parse().expect("a number");
        assert!(lost > 1000 && words[3] == "0", "{said}");
    }
    assert_eq!(said.lines().count(), 2, "{said}");
}
