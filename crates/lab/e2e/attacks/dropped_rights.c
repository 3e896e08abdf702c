// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// attack: tiers=dram,flash,donor,chain delivery=signal,listener dram=16MiB needs=root limit=240
//
// Promise: nothing of a process's memory is reachable from a child that has given up its privileges (SECURITY.md).
// Attempt: a child, however it was made, calls setuid(2). With every descriptor that it has, it then tries to fill its
// parent's missing pages (UFFDIO_COPY and UFFDIO_ZEROPAGE, after its own UFFDIO_REGISTER), and searches for pages that
// its parent evicts after the fork.
// Broken (exit status 1): the parent read something other than what it wrote; 2: the parent lost memory; 3: the child
// found bytes that its parent wrote after the fork. 77: the child cannot give up its privileges.
//
// With arguments it runs a single case: `dropped_rights WAY ATTACK WHEN`. WAY is how the child is made; ATTACK is
// `reach` for the above, or `write`, which overwrites every writable descriptor; WHEN is `early` for a child that is
// made while the parent is below its budget, or `late`.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, DESCRIPTORS = 65536, CHUNK = 32 << 10, SMALLEST_FILE = 1 << 20 };
enum { NOBODY = 65534, SKIP = 77 };

struct shared {
    volatile int dropped, evicted, attacked, refused;
    volatile long found, written;
};

static struct shared *shared;
static unsigned char *area;
static size_t area_bytes;
static const char *attack;
static sigjmp_buf again;

static void on_bus(int number) {
    (void)number;
    siglongjmp(again, 1);
}

static uint64_t secret(size_t page, int turn) {
    return (page + 1) * 0x9e3779b97f4a7c15ull ^ (turn ? 0x5ec7e75ec7e75ec7ull : 0);
}

static void fill(int turn) {
    for (size_t page = 0; page < area_bytes / PAGE; page++) {
        uint64_t *words = (uint64_t *)(area + page * PAGE);
        for (int word = 0; word < PAGE / 8; word++) words[word] = secret(page, turn);
    }
}

/* Checks every byte. Counts lost pages, and ends the program at a changed one. */
static long look(int turn) {
    static volatile long lost;
    static volatile size_t page;
    for (lost = 0, page = 0; page < area_bytes / PAGE; page++) {
        if (sigsetjmp(again, 1)) {
            lost++;
            continue;
        }
        volatile uint64_t *words = (uint64_t *)(area + page * PAGE);
        for (int word = 0; word < PAGE / 8; word++)
            if (words[word] != secret(page, turn)) {
                dprintf(2, "page %zu word %d holds %lx\n", page, word, (unsigned long)words[word]);
                _exit(1);
            }
    }
    return lost;
}

static void resolve_faults(int fd, char *forged) {
    struct uffdio_api api = {.api = UFFD_API};
    ioctl(fd, UFFDIO_API, &api);
    struct uffdio_register all = {.range = {(uintptr_t)area & -PAGE, area_bytes}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    ioctl(fd, UFFDIO_REGISTER, &all);
    for (size_t at = 0; at < area_bytes; at += PAGE) {
        uint64_t target = ((uintptr_t)area + at) & -PAGE;
        struct uffdio_copy copy = {.dst = target, .src = (uintptr_t)forged, .len = PAGE};
        if (ioctl(fd, UFFDIO_COPY, &copy)) {
            struct uffdio_zeropage zero = {.range = {target, PAGE}};
            if (ioctl(fd, UFFDIO_ZEROPAGE, &zero) && at == 0 && api.ioctls == 0) return;
        }
    }
}

static void search(int fd, char *buffer) {
    off_t from = 0;
    for (;;) {
        off_t data = lseek(fd, from, SEEK_DATA);
        // The rest is a hole, up to the tier's capacity.
        if (data < 0 && errno == ENXIO) return;
        if (data > from) from = data & ~(off_t)(CHUNK - 1);
        ssize_t got = pread(fd, buffer, CHUNK, from);
        if (got <= 0) return;
        for (ssize_t at = 0; at + 16 <= got; at += 8) {
            uint64_t word = *(uint64_t *)(buffer + at);
            uint64_t page = (word ^ 0x5ec7e75ec7e75ec7ull) * 0xf1de83e19937733dull;
            if (page - 1 < area_bytes / PAGE && *(uint64_t *)(buffer + at + 8) == word) shared->found++;
        }
        from += got;
    }
}

static void overwrite(int fd, char *forged) {
    struct stat about;
    if (fstat(fd, &about) || !(S_ISREG(about.st_mode) || S_ISBLK(about.st_mode))) return;
    off_t end = lseek(fd, 0, SEEK_END);
    if (end < SMALLEST_FILE) return;
    for (off_t at = 0; at < end; at += CHUNK)
        if (pwrite(fd, forged, CHUNK, at) > 0) shared->written++;
    if (!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, end)) shared->written++;
    if (!ftruncate(fd, 0)) shared->written++;
}

/* Uses only what a child legitimately has from its parent: this memory, and the descriptors. */
static int child(void *unused) {
    (void)unused;
    static char own[CHUNK + PAGE];
    char *buffer = (char *)(((uintptr_t)own + PAGE - 1) & -PAGE);
    memset(buffer, 0x66, CHUNK);
    if (setgroups(0, NULL) || setgid(NOBODY) || setuid(NOBODY)) shared->refused = 1;
    shared->dropped = 1;
    while (!shared->evicted) usleep(1000);
    for (int fd = 0; fd < DESCRIPTORS; fd++) {
        if (fcntl(fd, F_GETFD) < 0) continue;
        if (!strcmp(attack, "reach")) resolve_faults(fd, buffer), search(fd, buffer);
        if (!strcmp(attack, "write")) overwrite(fd, buffer);
    }
    shared->attacked = 1;
    _exit(0);
}

static pid_t by_instruction(void) {
    long result;
    register long r10 __asm__("r10") = 0;
    register long r8 __asm__("r8") = 0;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"((long)SYS_clone), "D"((long)SIGCHLD), "S"(0L), "d"(0L), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return (pid_t)result;
}

static pid_t child_of(const char *way) {
    static char stack[1 << 20] __attribute__((aligned(16)));
    pid_t pid = -1;
    if (!strcmp(way, "clone")) return clone(child, stack + sizeof stack, SIGCHLD, NULL);
    if (!strcmp(way, "fork") || !strcmp(way, "grandchild")) pid = fork();
    if (!strcmp(way, "_Fork")) pid = _Fork();
    if (!strcmp(way, "syscall")) pid = (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L);
    if (!strcmp(way, "instruction")) pid = by_instruction();
    if (pid == 0 && !strcmp(way, "grandchild")) {
        if (fork() == 0) child(NULL);
        _exit(0);
    }
    if (pid == 0) child(NULL);
    return pid;
}

static int one(char **argv) {
    alarm(120);
    attack = argv[2];
    shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    area_bytes = 40 << 20;
    int is_early = !strcmp(argv[3], "early");
    struct sigaction action = {.sa_handler = on_bus, .sa_flags = SA_NODEFER};
    sigaction(SIGBUS, &action, NULL);
    pid_t pid = -1;
    if (!is_early) {
        area = aligned_alloc(PAGE, area_bytes);
        fill(0);
        pid = child_of(argv[1]);
    } else {
        // A fixed address, because the child must know it.
        area = (unsigned char *)0x3000000000;
        pid = child_of(argv[1]);
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        if (mmap(area, area_bytes, PROT_READ | PROT_WRITE, flags, -1, 0) != area) return 8;
    }
    if (pid < 0) return 7;
    while (!shared->dropped) {
        // A child that the library does not notice does not have the memory; if it crashes for that reason, it has
        // reached nothing.
        int status;
        if (waitpid(pid, &status, WNOHANG) == pid && WIFSIGNALED(status)) return 0;
        usleep(1000);
    }
    if (shared->refused) return SKIP;
    // Overwrites the area with values that the child never had. For `write`, keeps the inherited values, which must be
    // read as well.
    int turn = strcmp(attack, "write") || is_early;
    if (turn) fill(1);
    look(turn);
    shared->evicted = 1;
    while (!shared->attacked) usleep(1000);
    long lost = look(turn) + look(turn);
    dprintf(2, "%s %s %s: found %ld written %ld lost %ld\n", argv[1], attack, argv[3], shared->found, shared->written, lost);
    while (waitpid(-1, NULL, 0) > 0) {
    }
    return lost ? 2 : shared->found ? 3 : 0;
}

int main(int argc, char **argv) {
    if (argc == 4) return one(argv);
    static char *cases[][5] = {
        {"", "fork", "reach", "late"},       {"", "clone", "reach", "late"},      {"", "instruction", "reach", "late"},
        {"", "grandchild", "reach", "late"}, {"", "fork", "reach", "early"},
    };
    for (size_t index = 0; index < sizeof cases / sizeof *cases; index++) {
        pid_t pid;
        int status;
        if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, cases[index], environ)) return 6;
        if (waitpid(pid, &status, 0) != pid) return 6;
        if (status) return WIFEXITED(status) ? WEXITSTATUS(status) : 5;
    }
    return 0;
}
