// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Processes come and go while memory is evicted: each sees the memory of the moment at which it was forked, whatever
//! it and its related processes change and evict afterwards.

use std::path::PathBuf;
use std::sync::OnceLock;

use aquifer_e2e::build::{compile_small, compile_text, scratch};
use aquifer_e2e::run::{LIMIT, managed, run, stats};

/// `forks KIND MIB`: a large and a small array. The contents of every page follow from a generation number in memory
/// that the kernel manages (MAP_SHARED, a separate copy for each process). Exit status 0: all was right.
const FORKS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
enum { PAGE = 4096, WORDS = PAGE / 8, SMALL = 3000, SMALL_BYTES = 1500 };
static volatile uint64_t *large;
static volatile uint64_t *small[SMALL];
static uint32_t *generation, *small_generation;
static size_t pages;
static const char *kind;
static uint64_t state = 88172645463325252ull;
static uint64_t chance(void) { return state ^= state << 13, state ^= state >> 7, state ^= state << 17; }
static int is(const char *name) { return !strcmp(kind, name); }
static void must(int condition, const char *what) {
    if (!condition) { fprintf(stderr, "%s, %s: %s\n", kind, what, strerror(errno)); _exit(1); }
}
static uint64_t value(size_t at, uint64_t turn) {
    return (at + 1) * 0x9e3779b97f4a7c15ull ^ turn * 0xbf58476d1ce4e5b9ull;
}
static void *own(size_t bytes) {
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(start != MAP_FAILED, "mmap");
    return start;
}
/* A process of its own has a model of its own, made before the fork. */
static uint32_t *childs, *childs_small;
static void prepare(void) {
    childs = own(pages * 4), childs_small = own(SMALL * 4);
    memcpy(childs, generation, pages * 4), memcpy(childs_small, small_generation, SMALL * 4);
}
static void part(void) { generation = childs, small_generation = childs_small, state ^= (uint64_t)getpid() << 20; }
static pid_t prepared_fork(void) {
    prepare();
    pid_t child = fork();
    must(child >= 0, "fork");
    return child;
}
static void write_page(size_t at, uint32_t turn) {
    generation[at] = turn;
    large[at * WORDS] = large[at * WORDS + WORDS - 1] = value(at, turn);
}
static void write_small(size_t at, uint32_t turn) {
    small_generation[at] = turn;
    small[at][0] = small[at][SMALL_BYTES / 8 - 1] = value(at, turn);
}
static void check(const char *who) {
    for (size_t at = 0; at < pages; at++) {
        uint64_t wanted = value(at, generation[at]);
        if (large[at * WORDS] != wanted || large[at * WORDS + WORDS - 1] != wanted) {
            fprintf(stderr, "%s, %s: page %zu is %lx and not %lx\n", kind, who, at, large[at * WORDS], wanted);
            _exit(3);
        }
    }
    for (size_t at = 0; at < SMALL; at++) {
        uint64_t wanted = value(at, small_generation[at]);
        if (small[at][0] != wanted || small[at][SMALL_BYTES / 8 - 1] != wanted) {
            fprintf(stderr, "%s, %s: object %zu is %lx and not %lx\n", kind, who, at, small[at][0], wanted);
            _exit(3);
        }
    }
}
static void change(size_t share) {
    for (size_t left = pages / share; left--;) { size_t at = chance() % pages; write_page(at, generation[at] + 1); }
    for (size_t left = SMALL / share; left--;) {
        size_t at = chance() % SMALL;
        write_small(at, small_generation[at] + 1);
    }
}
static void expect_end(pid_t child, int wanted) {
    int status;
    while (waitpid(child, &status, 0) < 0) must(errno == EINTR, "waitpid");
    if (status != wanted) { fprintf(stderr, "%s: a child ended with status %x\n", kind, status); _exit(4); }
}
static pid_t direct(long number, long a, long b) {
    long result;
    register long r10 __asm__("r10") = 0;
    register long r8 __asm__("r8") = 0;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(0L), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return (pid_t)result;
}
static void *nothing(void *unused) { return unused; }
static int grow(void *unused) {
    (void)unused;
    part(), check("child"), change(2), check("child, changed");
    pthread_t thread;
    must(!pthread_create(&thread, NULL, nothing, NULL) && !pthread_join(thread, NULL), "a thread in the child");
    return 0;
}
static pid_t child_of(const char *how) {
    static char stack[1 << 18];
    uint64_t arguments[11] = {[4] = SIGCHLD};
    prepare();
    if (!strcmp(how, "clone")) return clone(grow, stack + sizeof stack, SIGCHLD, NULL);
    pid_t child = !strcmp(how, "direct") ? direct(SYS_fork, 0, 0)
        : !strcmp(how, "clone3") ? direct(SYS_clone3, (long)arguments, sizeof arguments) : fork();
    if (child == 0) _exit(grow(NULL));
    return child;
}
static void one(const char *how) {
    for (int turn = 0; turn < 3; turn++) {
        pid_t child = child_of(how);
        must(child > 0, how);
        change(3), check("parent"), expect_end(child, 0), check("parent, alone again");
    }
}
static void nest(int depth) {
    for (int turn = 0; turn < 2; turn++) {
        pid_t child = prepared_fork();
        if (child == 0) {
            part(), check("child"), change(2);
            if (depth > 1) nest(depth - 1);
            check("child, later"), _exit(0);
        }
        change(3), check("parent"), expect_end(child, 0), check("parent, alone again");
    }
}
/* All live at the same time, and the first end first, or last. */
static void many(void) {
    pid_t children[6];
    int ends[2], writers[6] = {0};
    for (int at = 0; at < 6; at++) {
        must(!pipe(ends), "pipe");
        children[at] = prepared_fork();
        if (children[at] == 0) {
            char byte;
            for (int other = 0; other < at; other++) if (writers[other]) close(writers[other]);
            close(ends[1]), part(), change(4);
            must(read(ends[0], &byte, 1) == 0, "read");
            check("one of many"), _exit(0);
        }
        close(ends[0]), change(3);
        if (at % 2) close(ends[1]); else writers[at] = ends[1];
    }
    check("parent of many");
    for (int at = 0; at < 6; at++) if (writers[at]) close(writers[at]);
    for (int at = 0; at < 6; at++) expect_end(children[at], 0);
    check("parent, alone again");
}
static volatile int stop;
static void *writer(void *which) {
    /* A quarter of the pages is this thread's. */
    for (size_t turn = 2; !stop; turn++)
        for (size_t at = (size_t)which; at < pages && !stop; at += 4) write_page(at, (uint32_t)turn);
    return NULL;
}
/* The main thread forks while others write: each page is of one generation, whichever. */
static void busy(void) {
    pthread_t threads[3];
    for (size_t at = 0; at < 3; at++) must(!pthread_create(&threads[at], NULL, writer, (void *)at), "pthread_create");
    for (int turn = 0; turn < 6; turn++) {
        pid_t child = fork();
        must(child >= 0, "fork");
        if (child == 0) {
            for (size_t at = 0; at < pages; at++) {
                /* The parent goes on. The value alone says which turn it is. */
                uint64_t first = large[at * WORDS], key = 0xbf58476d1ce4e5b9ull, inverse = key;
                for (int step = 0; step < 6; step++) inverse *= 2 - key * inverse;
                uint64_t turn = (first ^ value(at, 0)) * inverse;
                if (turn < 1 || turn > generation[at] || (at % 4 == 3 && turn != 1)) {
                    fprintf(stderr, "busy: page %zu holds %lx\n", at, first);
                    _exit(3);
                }
            }
            _exit(0);
        }
        expect_end(child, 0);
    }
    stop = 1;
    for (size_t at = 0; at < 3; at++) pthread_join(threads[at], NULL);
    check("parent");
}
/* The parent exits, and its child lives on: daemon(3). */
static void orphan(void) {
    int ends[2];
    char byte = 1;
    must(!pipe(ends), "pipe");
    pid_t child = prepared_fork();
    if (child == 0) {
        part();
        must(!daemon(1, 1), "daemon");
        check("daemon"), change(1), check("daemon, changed");
        pid_t grandchild = child_of("fork");
        expect_end(grandchild, 0);
        check("daemon, later");
        must(write(ends[1], &byte, 1) == 1, "write");
        _exit(0);
    }
    close(ends[1]);
    expect_end(child, 0);
    change(1);
    must(read(ends[0], &byte, 1) == 1, "the daemon has not come to its end");
    check("parent");
}
static void run_others(void) {
    extern char **environ;
    char *words[] = {"true", NULL};
    pid_t child;
    must(!posix_spawnp(&child, "true", NULL, NULL, words, environ), "posix_spawnp");
    expect_end(child, 0);
    must(system("exit 7") == 7 << 8, "system");
    FILE *pipe = popen("echo hello", "r");
    char line[16] = "";
    must(pipe && fgets(line, sizeof line, pipe) && !strcmp(line, "hello\n"), "popen");
    must(pclose(pipe) == 0, "pclose");
    if ((child = vfork()) == 0) { execlp("true", "true", NULL); _exit(9); }
    expect_end(child, 0);
    if ((child = fork()) == 0) { execlp("true", "true", NULL); _exit(9); }
    expect_end(child, 0);
    change(2), check("parent");
}
static void unseen(void) {
    struct rlimit none = {0, 0};
    must(!setrlimit(RLIMIT_CORE, &none), "setrlimit");
    for (int turn = 0; turn < 3; turn++) {
        pid_t child = direct(SYS_fork, 0, 0);
        if (child == 0) _exit(large[chance() % pages * WORDS] == 0 ? 3 : 5);
        expect_end(child, SIGSEGV);
        change(3), check("parent");
    }
}
static void fail(void) {
    struct rlimit none = {0, 0};
    must(!setresuid(65534, 65534, 65534) && !setrlimit(RLIMIT_NPROC, &none), "setrlimit");
    change(2);
    must(fork() == -1 && errno == EAGAIN, "fork beyond the limit");
    change(2), check("parent");
}
/* Children are killed at any time: what they used is given back, or the tier would be full. */
static void kill_them(void) {
    for (int turn = 0; turn < 20; turn++) {
        pid_t child = prepared_fork();
        if (child == 0) { part(); for (;;) change(4); }
        change(4);
        usleep((useconds_t)(chance() % 20000));
        kill(child, SIGKILL);
        expect_end(child, SIGKILL);
    }
    check("parent");
}
/* The first thread has ended, and is a zombie: the process is not. */
static void *live_on(void *unused) {
    for (int turn = 0; turn < 3; turn++) {
        pid_t child = prepared_fork();
        if (child == 0) {
            part(), check("child of a process without its first thread");
            pid_t grandchild = prepared_fork();
            if (grandchild == 0) { part(), change(1), check("grandchild"); _exit(0); }
            change(1), expect_end(grandchild, 0), check("child, later"), _exit(0);
        }
        change(2), expect_end(child, 0), check("a thread that lives on");
    }
    exit(0);
    return unused;
}
static void leave(void) {
    pthread_t thread;
    must(!pthread_create(&thread, NULL, live_on, NULL), "pthread_create");
    pthread_exit(NULL);
}
/* A thread that has made no call yet which the library saw when the memory is evicted. Its child of vfork(2) shares its
 * thread-local memory, and executes a program; then it forks. */
static volatile int is_filled;
static void *fork_after_vfork(void *unused) {
    while (!is_filled) {}
    pid_t child = vfork();
    if (child == 0) {
        char *words[] = {"true", NULL}, *none[] = {NULL};
        execve("/bin/true", words, none);
        _exit(9);
    }
    expect_end(child, 0);
    child = prepared_fork();
    if (child == 0) { part(), change(1), check("child of a thread that had a child of vfork"); _exit(0); }
    change(2), expect_end(child, 0), check("parent");
    return unused;
}
int main(int count, char **words) {
    if (count != 3) return 2;
    pthread_t early;
    kind = words[1], pages = strtoul(words[2], NULL, 10) << 8;
    alarm(280);
    generation = own(pages * 4), small_generation = own(SMALL * 4);
    if (is("vfork")) must(!pthread_create(&early, NULL, fork_after_vfork, NULL), "pthread_create");
    large = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < SMALL; at++) small[at] = malloc(SMALL_BYTES), write_small(at, 1);
    for (size_t at = 0; at < pages; at++) write_page(at, 1);
    check("at first");
    if (is("nest")) nest(3);
    else if (is("nest twice")) nest(2);
    else if (is("many")) many();
    else if (is("busy")) busy();
    else if (is("orphan")) orphan();
    else if (is("others")) run_others();
    else if (is("unseen")) unseen();
    else if (is("fail")) fail();
    else if (is("kill")) kill_them();
    else if (is("leave")) leave();
    else if (is("vfork")) is_filled = 1, pthread_join(early, NULL);
    else one(kind);
    return 0;
}
"#;

fn forks(settings: &[&str], kind: &str, mib: &str) {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let Some(program) = PROGRAM.get_or_init(|| compile_text("forks", FORKS)) else { return };
    let ended = run(managed(settings, program, &[kind, mib]), LIMIT);
    if ended.status != Some(0) {
        panic!("{kind} {settings:?}: status {:?}\n{}", ended.status, ended.stderr);
    }
}

#[test]
fn a_child_sees_the_memory_of_its_fork_however_it_is_made() {
    for kind in ["fork", "clone"] {
        for delivery in ["signal", "listener", "auto"] {
            forks(&["--dram", "16MiB", "--tier", "dram:", "--delivery", delivery], kind, "24");
        }
    }
    for kind in ["clone3", "direct"] {
        forks(&["--dram", "16MiB", "--tier", "dram:", "--delivery", "signal"], kind, "24");
    }
}

/// Nothing traps under listener delivery, and the library has no wrapper for these calls.
#[test]
fn a_child_that_is_made_past_us_ends_and_reads_no_zeros() {
    forks(&["--dram", "16MiB", "--tier", "dram:", "--delivery", "listener"], "unseen", "24");
}

#[test]
fn children_have_children_and_all_live_beside_each_other() {
    for kind in ["nest", "many", "busy", "orphan", "leave"] {
        forks(&["--dram", "16MiB", "--tier", "dram:"], kind, "24");
    }
    let flash = format!("flash:{}", scratch("forks").display());
    forks(&["--dram", "16MiB", "--tier", &flash], "many", "24");
    forks(&["--dram", "16MiB", "--tier", &flash], "leave", "24");
    forks(&["--dram", "16MiB", "--tier", "dram:", "--exchange", "copy"], "nest", "24");
    forks(&["--dram", "16MiB", "--tier", "dram:", "--block", "4KiB"], "nest", "24");
    forks(&["--dram", "16MiB", "--tier", "dram:", "--block", "1MiB", "--policy", "lru"], "many", "24");
}

#[test]
fn below_the_budget_a_fork_leads_to_two_pagers_that_do_not_meet() {
    // The memory fits the budget before the fork. Afterwards, parent and child each outgrow the budget, and each starts
    // its own pager.
    let body = "char *before = touch(12); pid_t child = fork(); char *mine = touch(60); \
                for (int turn = 0; turn < 3; turn++) for (size_t at = 0; at < 60 << 20; at += 64) \
                if (mine[at] != (char)(at >> 12 | 1)) return 3; \
                for (size_t at = 0; at < 12 << 20; at += 64) if (before[at] != (char)(at >> 12 | 1)) return 4; \
                int status = 0; if (child > 0) waitpid(child, &status, 0); return child < 0 || status != 0;";
    let Some(program) = compile_small("forker", body) else { return };
    run(managed(&["--dram", "16MiB", "--tier", "dram:"], &program, &[]), LIMIT).expect(0);
}

#[test]
fn programs_are_started_and_a_fork_that_fails_changes_nothing() {
    forks(&["--dram", "16MiB", "--tier", "dram:"], "others", "24");
    forks(&["--dram", "16MiB", "--tier", "dram:"], "fail", "24");
}

/// The child of vfork(2) used to note in its parent's thread-local memory that its calls trap. The kernel traps only
/// the child's. So the library did not see the parent's next fork(2), and its child ended with SIGSEGV.
#[test]
fn a_child_of_vfork_does_not_speak_for_its_parent() {
    for (delivery, exchange) in [("listener", "copy"), ("listener", "move"), ("signal", "copy")] {
        let settings = ["--dram", "16MiB", "--tier", "dram:", "--delivery", delivery, "--exchange", exchange];
        forks(&settings, "vfork", "24");
    }
}

/// Eight threads load at random, next to a child that waits.
const READERS: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
enum { BYTES = 80 << 20, READERS = 8, LOADS = 40000 };
static char *start;
static void *load(void *seed) {
    uint64_t state = (uintptr_t)seed;
    uintptr_t wrong = 0;
    for (size_t turn = 0; turn < LOADS; turn++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        wrong += start[(state >> 20) % BYTES & ~63ul] != 1;
    }
    return (void *)wrong;
}
int main(void) {
    start = malloc(BYTES);
    for (size_t at = 0; at < BYTES; at += 64) start[at] = 1;
    uintptr_t wrong = (uintptr_t)load((void *)1);
    pid_t child = fork();
    if (!child) { pause(); _exit(0); }
    pthread_t readers[READERS];
    for (uintptr_t at = 0; at < READERS; at++) wrong += pthread_create(&readers[at], NULL, load, (void *)(at * 77 + 5));
    for (size_t at = 0; at < READERS; at++) {
        void *result;
        pthread_join(readers[at], &result);
        wrong += (uintptr_t)result;
    }
    kill(child, SIGKILL);
    return child < 0 || waitpid(child, NULL, 0) != child || wrong != 0;
}
"#;

/// A page that a fault fetched for a load is sealed, and shared with the child after the fork: the kernel does not move
/// such a page. Each such page used to be refused once, and a process with many of them found no room for its next
/// fault.
#[test]
fn pages_shared_with_a_child_leave_at_once() {
    let Some(program) = compile_text("readers", READERS) else { return };
    let file = scratch("forks-shared").join("stats.json");
    let words = ["--dram", "24MiB", "--budget", "process", "--tier", "dram:", "--block", "4KiB", "--stats-json"];
    run(managed(&[&words[..], &[file.to_str().expect("a path of ours")]].concat(), &program, &[]), LIMIT).expect(0);
    let stats = stats(&file);
    let count = |name: &str| stats[name].as_u64().unwrap_or_else(|| panic!("no {name} in {stats}"));
    assert!(count("evicted_blocks") > 20_000, "{stats}");
    // Some pages are pinned by another reader at that moment.
    assert!(count("exchange_fallbacks") < 300, "{} of {}", count("exchange_fallbacks"), count("evicted_blocks"));
}

/// Parent and child find slabs that the other has moved, and neither takes the other's slots.
#[test]
fn related_processes_share_a_chain_of_tiers() {
    let flash = format!("flash:{}", scratch("forks-chain").display());
    let by_signal = &["fork", "nest twice", "many", "busy", "orphan"][..];
    for (delivery, kinds) in [("signal", by_signal), ("listener", &["many", "orphan"])] {
        for kind in kinds {
            let chain = ["--dram", "16MiB", "--tier", "dram:size=12MiB", "--tier", &flash, "--delivery", delivery];
            forks(&chain, kind, "24");
        }
    }
    forks(&["--dram", "16MiB", "--tier", "dram:size=12MiB", "--tier", "emulated:cmm-h,size=400MiB"], "kill", "24");
}

#[test]
fn slabs_of_killed_children_are_given_back() {
    forks(&["--dram", "16MiB", "--tier", "dram:size=400MiB"], "kill", "24");
}
