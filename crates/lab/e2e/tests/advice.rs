// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! madvise(2) advice reaches the pager: hints move blocks, and memory withheld from a forked child is not in the child.
//!
//! MADV_COLD and MADV_PAGEOUT used to go to the kernel, which put blocks that had just been fetched into its own swap.
//! MADV_DONTFORK used to end the child, which could not register memory that it did not have. MADV_DONTNEED_LOCKED used
//! to free pages that were then fetched again from the tier: old bytes, where the program had been promised zeros.

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::evicted_memory::{PROLOGUE, works};
use aquifer_e2e::run::{LIMIT, managed, run, stats};

/// `there` counts the resident pages of a range; `map` returns new memory in which each page is different.
const FUNCTIONS: &str = r#"
static size_t there(volatile unsigned char *start, size_t len) {
    static unsigned char pages[1 << 16];
    size_t count = 0;
    must(mincore((void *)start, len, pages) == 0, "mincore");
    for (size_t page = 0; page < len / PAGE; page++) count += pages[page] & 1;
    return count;
}
/* How many pages are there right after they were touched, one after the other. */
static size_t seen_there(volatile unsigned char *start, size_t len) {
    size_t count = 0;
    for (size_t at = 0; at < len; at += PAGE) (void)start[at], count += there(start + at, PAGE);
    return count;
}
/* Advice may skip a block that the kernel cannot release at that moment, so it is given again. */
static int leaves(unsigned char *start, size_t len, int advice) {
    for (int turn = 0; turn < 20000; turn++, usleep(1000)) {
        if (turn % 100 == 0) must(madvise(start, len, advice) == 0, "madvise");
        if (there(start, len) == 0) return 1;
    }
    return 0;
}
static void fill(unsigned char *start, size_t len) {
    for (size_t at = 0; at < len; at += 8) *(uint64_t *)(start + at) = (uint64_t)(start + at);
}
static unsigned char *map(size_t len) {
    unsigned char *start = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(start != MAP_FAILED, "mmap");
    fill(start, len);
    return start;
}
static void right(unsigned char *start, size_t len, const char *what) {
    for (size_t at = 0; at < len; at += 8)
        if (*(uint64_t *)(start + at) != (uint64_t)(start + at)) {
            fprintf(stderr, "%s: byte %zu holds %llx\n", what, at, (unsigned long long)*(uint64_t *)(start + at));
            exit(1);
        }
}
static void zero(unsigned char *start, size_t len, const char *what) {
    for (size_t at = 0; at < len; at += 8)
        if (*(uint64_t *)(start + at)) { fprintf(stderr, "%s: byte %zu is not zero\n", what, at); exit(1); }
}
static void child_is_right(pid_t child, const char *what) {
    int status;
    must(waitpid(child, &status, 0) == child, "waitpid");
    if (status) { fprintf(stderr, "%s: the child ends with %x\n", what, status); exit(1); }
}
"#;

/// Pages on standby are not resident, for mincore(2) as for the pager: a touch is a fault.
#[test]
fn cold_memory_leaves_and_locked_memory_stays() {
    works(
        "cold",
        FUNCTIONS,
        r#"
        press();
        size_t len = 4 << 20;
        for (int kind = 0; kind < 2; kind++) {
            int advice = kind ? MADV_PAGEOUT : MADV_COLD;
            unsigned char *start = map(len);
            must(seen_there(start, len) >= len / PAGE / 2, "what was touched a moment ago is there");
            must(leaves(start, len, advice), "what is cold leaves");
            right(start, len, "after it left");
            must(mlock(start, len) == 0, "mlock");
            errno = 0;
            must(madvise(start, len, advice) == -1 && errno == EINVAL, "what is locked stays");
            must(there(start, len) == len / PAGE, "what is locked is there");
            munlock(start, len);
            must(leaves(start, len, advice), "it leaves when it is not locked any more");
            right(start, len, "after all");
            errno = 0;
            must(madvise(start + 1, len, advice) == -1 && errno == EINVAL, "an address between pages");
            munmap(start, len);
        }"#,
    );
}

/// Runs `body` with a tier in memory and returns a counter of its statistics.
fn counted(name: &str, body: &str, counter: &str) -> Option<u64> {
    let source = format!("{PROLOGUE}\n{FUNCTIONS}\nint main(void) {{\nalarm(250);\n{body}\nreturn 0;\n}}\n");
    let program = compile_text(name, &source)?;
    let file = scratch(&format!("advice-{name}")).join("stats.json");
    let path = file.to_str().expect("a path of ours");
    let words = ["--dram", "24MiB", "--tier", "dram:", "--delivery", "signal", "--stats-json", path];
    run(managed(&words, &program, &[]), LIMIT).expect(0);
    let counts = stats(&file);
    Some(counts[counter].as_u64().unwrap_or_else(|| panic!("no {counter} in {counts}")))
}

/// The prefetcher detects the stream of the second body even without advice; the advice of the first body suppresses
/// it.
#[test]
fn advice_sets_the_prefetcher() {
    let scan = |advice: &str| {
        format!(
            "unsigned char *start = mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            must(start != MAP_FAILED && madvise(start, 64 << 20, {advice}) == 0, \"madvise\");
            fill(start, 64 << 20);
            for (int turn = 0; turn < 3; turn++) right(start, 64 << 20, \"scan\");"
        )
    };
    let Some(random) = counted("random", &scan("MADV_RANDOM"), "prefetched_bytes") else { return };
    assert_eq!(random, 0, "nothing is read ahead of what is touched here and there");
    let sequential = counted("sequential", &scan("MADV_SEQUENTIAL"), "prefetched_bytes");
    assert!(sequential > Some(16 << 20), "{sequential:?} bytes were read ahead of a scan of 192 MiB");
}

#[test]
fn blocks_that_will_be_needed_are_fetched_ahead() {
    let body = r#"
        unsigned char *start = map(2 << 20);
        must(madvise(start, 2 << 20, MADV_RANDOM) == 0, "MADV_RANDOM");
        press();
        must(leaves(start, 2 << 20, MADV_PAGEOUT), "away");
        must(madvise(start, 2 << 20, MADV_WILLNEED) == 0, "MADV_WILLNEED");
        usleep(300000);
        right(start, 2 << 20, "what was needed");"#;
    let Some(hits) = counted("willneed", body, "prefetched_bytes") else { return };
    assert!(hits >= 1 << 20, "of 2 MiB that will be needed, {hits} bytes were read ahead");
}

/// The ranges begin and end within blocks, and are partly evicted.
#[test]
fn a_child_does_not_get_what_is_withheld() {
    works(
        "withheld",
        FUNCTIONS,
        r#"
        size_t len = 16 << 20, hole = 5 * PAGE + (3 << 20), hole_len = 77 * PAGE;
        size_t wiped = 3 * PAGE + (8 << 20), wiped_len = (2 << 20) + 11 * PAGE;
        unsigned char *start = map(len), *whole = map(4 << 20);
        must(madvise(start + hole, hole_len, MADV_DONTFORK) == 0, "MADV_DONTFORK");
        must(madvise(whole, 4 << 20, MADV_DONTFORK) == 0, "MADV_DONTFORK");
        must(madvise(start + wiped, wiped_len, MADV_WIPEONFORK) == 0, "MADV_WIPEONFORK");
        for (int turn = 0; turn < 3; turn++) {
            press();
            if (turn == 1) right(start + (7 << 20), 4 << 20, "partly there");
            pid_t child = fork();
            must(child >= 0, "fork");
            if (child == 0) {
                unsigned char byte;
                errno = 0;
                must(mincore(start + hole, PAGE, &byte) == -1 && errno == ENOMEM, "not mapped");
                must(mincore(whole, PAGE, &byte) == -1 && errno == ENOMEM, "not mapped at all");
                for (int again = 0; again < 2; again++) {
                    right(start, hole, "before the hole");
                    right(start + hole + hole_len, wiped - hole - hole_len, "behind the hole");
                    zero(start + wiped, wiped_len, "wiped");
                    right(start + wiped + wiped_len, len - wiped - wiped_len, "behind what is wiped");
                    press();
                }
                /* What it writes there, its own children do not get either; and the hole can be used again. */
                memset(start + wiped, 7, wiped_len);
                unsigned char *filled = mmap(start + hole, hole_len, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
                must(filled == start + hole, "mmap in the hole");
                fill(filled, hole_len);
                press();
                pid_t grandchild = fork();
                if (grandchild == 0) {
                    zero(start + wiped, wiped_len, "wiped again");
                    right(start, wiped, "filled");
                    _exit(0);
                }
                child_is_right(grandchild, "grandchild");
                all(start + wiped, wiped_len, 7, "its own");
                _exit(0);
            }
            child_is_right(child, "child");
            right(start, len, "the parent's");
            right(whole, 4 << 20, "the parent's");
        }
        must(madvise(start, len, MADV_DOFORK) == 0 && madvise(start, len, MADV_KEEPONFORK) == 0, "all again");
        press();
        pid_t child = fork();
        if (child == 0) { right(start, len, "nothing is withheld"); _exit(0); }
        child_is_right(child, "last child");"#,
    );
}

#[test]
fn locked_memory_is_emptied_and_guard_pages_guard() {
    works(
        "emptied",
        &format!(
            "{FUNCTIONS}
            static sigjmp_buf back;
            static void on_segv(int signal) {{ (void)signal; siglongjmp(back, 1); }}
            static int faults(volatile unsigned char *at) {{
                if (sigsetjmp(back, 1)) return 1;
                (void)*at;
                return 0;
            }}"
        ),
        r#"
        unsigned char *start = map(8 << 20);
        press();
        must(mlock(start, 1 << 20) == 0, "mlock");
        if (madvise(start, 1 << 20, 24 /* MADV_DONTNEED_LOCKED */) == 0) {
            zero(start, 1 << 20, "locked and emptied");
            fill(start, 1 << 20);
        }
        munlock(start, 1 << 20);
        press();
        right(start, 8 << 20, "filled again");
        press();
        struct sigaction action = {.sa_handler = on_segv};
        sigaction(SIGSEGV, &action, NULL);
        size_t at = (2 << 20) + 5 * PAGE;
        if (madvise(start + at, 3 * PAGE, 102 /* MADV_GUARD_INSTALL */) == 0) {
            for (int turn = 0; turn < 2; turn++) {
                must(faults(start + at) && faults(start + at + 3 * PAGE - 1), "guard pages guard");
                right(start, at, "before the guard pages");
                right(start + at + 3 * PAGE, (8 << 20) - at - 3 * PAGE, "after the guard pages");
                press();
            }
            must(madvise(start + at, 3 * PAGE, 103 /* MADV_GUARD_REMOVE */) == 0, "MADV_GUARD_REMOVE");
            zero(start + at, 3 * PAGE, "no guard pages any more");
            fill(start + at, 3 * PAGE);
            press();
            right(start, 8 << 20, "whole again");
        }"#,
    );
}
