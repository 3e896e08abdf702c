// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// attack: tiers=dram,flash,donor delivery=signal,listener dram=24MiB needs=root
//
// Promise: fork(2) works as without Aquifer, and the child finds the memory as it was.
// Attempt: the program has as many descriptors open as its limit allows, and forks. The child needs some of its own.
// Broken (exit status 1): the child was ended, or read something other than what its parent had written; or the limit,
// or the program's descriptors, are not as they were. If the program may not raise the limit (not root), a line says
// what to raise.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LEN = 64 << 20, PAGE = 4096, LIMIT = 300 };

static unsigned char *area;

static void check(const char *whose) {
    for (size_t at = 0; at < LEN; at += PAGE)
        if (*(volatile uint64_t *)(area + at) != at + 7) {
            dprintf(2, "%s page %zu holds another number\n", whose, at / PAGE);
            _exit(1);
        }
}

int main(void) {
    area = malloc(LEN);
    for (size_t at = 0; at < LEN; at += PAGE) *(volatile uint64_t *)(area + at) = at + 7;
    struct rlimit limit = {LIMIT, LIMIT}, found;
    if (setrlimit(RLIMIT_NOFILE, &limit)) return 77;
    while (open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) {}
    if (errno != EMFILE) return 77;
    pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
        check("the child's");
        if (getrlimit(RLIMIT_NOFILE, &found) || found.rlim_cur != LIMIT || found.rlim_max != LIMIT) {
            dprintf(2, "the child's limit is %llu of %llu\n", (unsigned long long)found.rlim_cur,
                    (unsigned long long)found.rlim_max);
            _exit(1);
        }
        if (open("/dev/null", O_RDONLY) >= 0 || errno != EMFILE) _exit(2);
        memset(area, 5, LEN);
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) {
        dprintf(2, "the child ended with %#x\n", status);
        return 1;
    }
    check("the parent's");
    return 0;
}
