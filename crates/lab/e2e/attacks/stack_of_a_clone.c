// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// attack: tiers=dram,flash delivery=signal,listener dram=16MiB
//
// Promise: no access of the program's fails because memory was evicted.
// Attempt: a child made by clone(2) with CLONE_VM is a separate process. It has its stack in managed memory, and no
// alternate stack for signals. It sleeps while its parent evicts everything, wakes, and uses its stack.
// Broken (exit status 1): the child was ended by a signal, or its stack holds other bytes.
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PRESS = 64 << 20, STACK = 64 << 10, USED = 24 << 10, TURNS = 30, CHILDREN = 4 };

/* The child shares its parent's thread-local memory, so it makes its calls without the C library. */
static long direct(long number, long first, long second) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second) : "rcx", "r11", "memory");
    return result;
}

static int child(void *argument) {
    volatile unsigned char own[USED];
    const unsigned char mark = (unsigned char)(long)argument;
    for (int at = 0; at < USED; at++) own[at] = mark;
    for (int turn = 0; turn < TURNS; turn++) {
        struct timespec pause = {0, 10000000};
        direct(SYS_nanosleep, (long)&pause, 0);
        for (int at = 0; at < USED; at++)
            if (own[at] != mark) direct(SYS_exit, 3, 0);
    }
    direct(SYS_exit, 0, 0);
    return 0;
}

int main(void) {
    unsigned char *pressure = malloc(PRESS);
    unsigned char *stacks[CHILDREN];
    pid_t made[CHILDREN];
    memset(pressure, 1, PRESS);
    for (long each = 0; each < CHILDREN; each++) {
        stacks[each] = malloc(STACK);
        made[each] = clone(child, stacks[each] + STACK, CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, (void *)(each + 1));
        if (made[each] < 0) {
            perror("clone");
            return 1;
        }
    }
    int broken = 0;
    for (int left = CHILDREN; left > 0;) {
        for (size_t at = 0; at < PRESS; at += 4096) pressure[at]++;
        int status;
        pid_t found = waitpid(-1, &status, WNOHANG);
        if (found <= 0) continue;
        left--;
        if (status != 0) {
            fprintf(stderr, "the child ended with status %#x\n", status);
            broken = 1;
        }
    }
    return broken;
}
