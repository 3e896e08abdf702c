// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// attack: tiers=dram delivery=signal,listener dram=16MiB
//
// Promise: a call that the kernel refuses is refused the same way while memory is managed.
// Attempt: clone3(2) and clone(2), which the library then makes for the program, with a structure that cannot be read
// or is too short or too long, with a stack that has no size or is beyond the address space, and with words that cannot
// be written to.
// Broken (exit status 1): a result other than the kernel's; or the program is ended by a signal.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PRESS = 64 << 20 };

static unsigned char *volatile pressure;
static int broken;

/* The result of a call in which a child exits at once. */
static long made(long result) {
    if (result == 0) _exit(0);
    if (result > 0) {
        int status;
        if (waitpid(result, &status, __WALL) != result || status != 0) {
            fprintf(stderr, "the child ended with %d\n", status);
            broken = 1;
        }
        return 0;
    }
    return -errno;
}

static void expect(const char *what, long result, long right) {
    if (result == right) return;
    fprintf(stderr, "%s: %ld instead of %ld\n", what, result, right);
    broken = 1;
}

static long clone3_with(void *structure, size_t len) { return made(syscall(SYS_clone3, structure, len)); }

int main(void) {
    pressure = malloc(PRESS);
    if (!pressure) return 77;
    memset(pressure, 1, PRESS);
    unsigned char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages + PAGE, PAGE, PROT_NONE)) return 77;
    struct clone_args plain = {.exit_signal = SIGCHLD}, *edge = (void *)(pages + PAGE - sizeof plain);
    *edge = plain;
    void *closed = pages + PAGE;

    long first = clone3_with(&plain, sizeof plain);
    if (first == -ENOSYS) return 77;
    expect("as it should be", first, 0);
    expect("at the end of what can be read", clone3_with(edge, sizeof plain), 0);
    expect("a structure that ends too early", clone3_with(edge, sizeof plain + 8), -EFAULT);
    expect("no structure", clone3_with(NULL, sizeof plain), -EFAULT);
    expect("a structure that cannot be read", clone3_with(closed, sizeof plain), -EFAULT);
    expect("no length", clone3_with(edge, 0), -EINVAL);
    expect("too short", clone3_with(edge, CLONE_ARGS_SIZE_VER0 - 1), -EINVAL);
    expect("more than a page", clone3_with(edge, PAGE + 1), -E2BIG);
    static uint64_t longer[64];
    memcpy(longer, &plain, sizeof plain);
    expect("longer, with zeros", clone3_with(longer, sizeof longer), 0);
    longer[60] = 1;
    expect("longer, and something is there", clone3_with(longer, sizeof longer), -E2BIG);

    struct clone_args odd = plain;
    odd.stack_size = 16 << 10;
    expect("a stack without a place", clone3_with(&odd, sizeof odd), -EINVAL);
    odd.stack = (uintptr_t)pages, odd.stack_size = 0;
    expect("a stack without a size", clone3_with(&odd, sizeof odd), -EINVAL);
    odd.stack = 1ull << 62, odd.stack_size = 16 << 10;
    expect("a stack beyond the addresses", clone3_with(&odd, sizeof odd), -EINVAL);
    odd = plain;
    odd.flags = CLONE_PIDFD, odd.pidfd = (uintptr_t)closed;
    expect("a word for the descriptor that cannot be written to", clone3_with(&odd, sizeof odd), -EFAULT);
    // The kernel accepts these.
    odd.flags = CLONE_PARENT_SETTID | CLONE_CHILD_SETTID, odd.parent_tid = odd.child_tid = (uintptr_t)closed;
    expect("words for the number that cannot be written to", clone3_with(&odd, sizeof odd), 0);
    expect("the same of clone", made(syscall(SYS_clone, CLONE_PARENT_SETTID | SIGCHLD, 0, closed, 0, 0)), 0);
    expect("clone's descriptor", made(syscall(SYS_clone, CLONE_PIDFD | SIGCHLD, 0, closed, 0, 0)), -EFAULT);
    return broken;
}
