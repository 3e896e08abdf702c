// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory with MADV_HUGEPAGE keeps its huge pages while other memory is evicted. It used to lose them all as soon as
//! the program outgrew its budget: each eviction of a part split a huge page, and the parts came back as small pages.
//! Advice that came after the pager had started was ignored.

use std::path::Path;
use std::process::Command;

use aquifer_e2e::build::compile_text;
use aquifer_e2e::evicted_memory::PROLOGUE;
use aquifer_e2e::run::{LIMIT, managed, run};

/// `program early|late|alone keep|drop`: 32 MiB that are touched all the time, beside a stream of 384 MiB. The advice
/// comes before the pager starts, or after; with `drop` it is withdrawn before the first touch. Prints how many kB are
/// huge after two passes of the stream. `alone` has no stream, and shows what the kernel gives a program without pager.
const PROGRAM: &str = r#"
enum { HUGE = 2 << 20, HOT = 16 * HUGE, STREAM = 384 << 20 };
static unsigned char *stream;
static unsigned char zeroed[HOT / PAGE];
/* kB of huge pages in the mappings that overlap HOT bytes from `start` on. */
static long huge(unsigned char *start) {
    char line[512];
    unsigned long from, to;
    long here, found = 0, within = 0;
    FILE *smaps = fopen("/proc/self/smaps", "r");
    must(smaps != NULL, "smaps");
    while (fgets(line, sizeof line, smaps)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            within = from < (unsigned long)start + HOT && (unsigned long)start < to;
        else if (within && sscanf(line, "AnonHugePages: %ld", &here) == 1) found += here;
    }
    fclose(smaps);
    return found;
}
static uint64_t word(unsigned char *start, size_t at) {
    return zeroed[at / PAGE] ? 0 : (uint64_t)(start + at) * 31 + at;
}
static void touch(unsigned char *start) {
    for (size_t at = 0; at < HOT; at += PAGE)
        if (*(uint64_t *)(start + at) != word(start, at)) { fprintf(stderr, "wrong bytes at %zu\n", at); exit(1); }
}
static void stream_beside(unsigned char *start) {
    for (size_t at = 0; at < STREAM; at += PAGE) {
        *(size_t *)(stream + at) = at;
        if (at % (1 << 20) == 0) touch(start);
    }
}
static unsigned char *map(size_t len) {
    unsigned char *start = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(start != MAP_FAILED, "mmap");
    return start;
}
static void give_back(unsigned char *start, size_t at, size_t len) {
    must(madvise(start + at, len, MADV_DONTNEED) == 0, "MADV_DONTNEED");
    memset(zeroed + at / PAGE, 1, len / PAGE);
}
int main(int count, char **words) {
    alarm(250);
    if (count != 3) return 2;
    int alone = !strcmp(words[1], "alone"), late = !strcmp(words[1], "late"), drop = !strcmp(words[2], "drop");
    if (late) {
        stream = map(STREAM);
        for (size_t at = 0; at < STREAM; at += PAGE) *(size_t *)(stream + at) = at;
    }
    unsigned char *start = map(HOT + HUGE);
    start = (unsigned char *)(((uintptr_t)start + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    must(madvise(start, HOT, MADV_HUGEPAGE) == 0, "MADV_HUGEPAGE");
    if (drop) must(madvise(start, HOT, MADV_NOHUGEPAGE) == 0, "MADV_NOHUGEPAGE");
    for (size_t at = 0; at < HOT; at += PAGE) *(uint64_t *)(start + at) = word(start, at);
    if (alone) { printf("%ld\n", huge(start)); return 0; }
    if (!late) stream = map(STREAM);
    for (int pass = 0; pass < 2; pass++) stream_beside(start);
    printf("%ld\n", huge(start));
    fflush(stdout);
    /* Pages of the program's that it gives back: some of a huge page, and one whole. */
    give_back(start, 3 * HUGE + 5 * PAGE, 16 * PAGE);
    give_back(start, 5 * HUGE, HUGE);
    pid_t child = fork();
    if (child == 0) { stream_beside(start); give_back(start, 7 * HUGE, HUGE / 2); stream_beside(start); _exit(0); }
    int status;
    give_back(start, 9 * HUGE, HUGE + PAGE);
    stream_beside(start);
    must(waitpid(child, &status, 0) == child && status == 0, "the child");
    stream_beside(start);
    for (size_t at = 0; at < STREAM; at += PAGE) must(*(size_t *)(stream + at) == at, "the stream's bytes");
    return 0;
}
"#;

/// What of the 32 MiB must be huge at the end. Most, because the kernel may refuse single huge pages.
const KEPT_KB: u64 = 16 << 10;
/// Other programs can take the kernel's huge pages at any moment. So a shortfall counts only if it repeats.
const TRIES: u32 = 3;

fn printed(command: Command) -> u64 {
    let ended = run(command, LIMIT);
    ended.expect(0);
    ended.stdout.trim().parse().expect("a number")
}

fn huge_kb(program: &Path, words: [&str; 2]) -> u64 {
    printed(managed(&["--dram", "192MiB", "--tier", "dram:"], program, &words))
}

/// Whether the kernel gives huge pages to a program without Aquifer.
fn kernel_gives_huge_pages(program: &Path) -> bool {
    let mut alone = Command::new(program);
    alone.args(["alone", "keep"]);
    printed(alone) == 32 << 10
}

/// Whether the advice shows. `None`: the kernel had no huge pages, also for a program without Aquifer.
fn keeps(program: &Path, when: &str) -> Option<Result<(), u64>> {
    let mut kept = 0;
    for _ in 0..TRIES {
        if !kernel_gives_huge_pages(program) {
            return None;
        }
        kept = huge_kb(program, [when, "keep"]);
        if kept >= KEPT_KB {
            return Some(Ok(()));
        }
    }
    kernel_gives_huge_pages(program).then_some(Err(kept))
}

#[test]
fn advised_memory_keeps_its_huge_pages_beside_a_stream() {
    let Some(program) = compile_text("huge-blocks", &format!("{PROLOGUE}\n{PROGRAM}")) else { return };
    for when in ["early", "late"] {
        match keeps(&program, when) {
            None => return aquifer_test_support::skip("the kernel has no huge pages to give"),
            Some(Err(kept)) => panic!("advice that comes {when}: of 32 MiB, only {kept} kB are huge"),
            Some(Ok(())) => {}
        }
    }
}

#[test]
fn memory_whose_advice_is_withdrawn_has_no_huge_pages() {
    let Some(program) = compile_text("huge-blocks-dropped", &format!("{PROLOGUE}\n{PROGRAM}")) else { return };
    for when in ["early", "late"] {
        assert_eq!(huge_kb(&program, [when, "drop"]), 0, "advice that comes {when}");
    }
}
