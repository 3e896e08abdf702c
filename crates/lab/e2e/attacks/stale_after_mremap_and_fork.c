// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// attack: tiers=dram,flash,donor,chain delivery=signal,listener dram=16MiB
//
// Promise: a read returns the last write, in every process and at every address that the memory has been moved to.
// Attempt: memory that is mostly evicted is moved by mremap(2), dropped in part by madvise(2), and shared with a child
// by fork(2); parent and child then write different values and both read every word.
// Broken (exit status 1): a word is neither the last write nor, where it was dropped, zero.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LEN = 48 << 20, STEP = 8, DROPPED_FROM = 20 << 20, DROPPED_TO = 24 << 20 };

static uint64_t value(size_t at, uint64_t salt) { return (at + 1) * 0x9e3779b97f4a7c15u ^ salt; }

static void fill(volatile uint64_t *area, size_t from, size_t to, uint64_t salt) {
    for (size_t at = from / STEP; at < to / STEP; at++) area[at] = value(at, salt);
}

static int differs(volatile uint64_t *area, uint64_t salt, const char *who) {
    for (size_t at = 0; at < LEN / STEP; at++) {
        int dropped = at >= DROPPED_FROM / STEP && at < DROPPED_TO / STEP;
        // Each process has written the lower half again.
        uint64_t expected = dropped ? 0 : value(at, at < LEN / 2 / STEP ? salt : 1);
        if (area[at] == expected) continue;
        fprintf(stderr, "%s: word %zu is %llx, not %llx\n", who, at, (unsigned long long)area[at],
                (unsigned long long)expected);
        return 1;
    }
    return 0;
}

int main(void) {
    void *first = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (first == MAP_FAILED) return perror("mmap"), 3;
    fill(first, 0, LEN, 1);
    uint64_t *area = mremap(first, LEN, 2 * LEN, MREMAP_MAYMOVE);
    if (area == MAP_FAILED) return perror("mremap"), 3;
    for (uint64_t salt = 2; salt < 5; salt++) {
        pid_t child = fork();
        if (child < 0) return perror("fork"), 3;
        uint64_t mine = child == 0 ? salt + 100 : salt;
        fill(area, 0, LEN / 2, mine);
        if (madvise((char *)area + DROPPED_FROM, DROPPED_TO - DROPPED_FROM, MADV_DONTNEED)) return perror("madvise"), 3;
        int wrong = differs(area, mine, child == 0 ? "child" : "parent");
        if (child == 0) _exit(wrong);
        int status;
        if (waitpid(child, &status, 0) != child) return perror("waitpid"), 3;
        if (wrong || status != 0) return 1;
    }
    return 0;
}
