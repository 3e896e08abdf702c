// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// attack: tiers=dram delivery=signal,listener dram=16MiB
//
// Promise: the program's memory is where it expects it.
// Attempt: a thread has a stack that grows (MAP_GROWSDOWN), in a hole that the program has left for it where the kernel
// would map next. What Aquifer maps for a new thread must not come to lie in that hole.
// Broken (exit status 1): the thread was ended by SIGSEGV, since its stack could not grow.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, STACK = 512 << 10, MAPPED = 64 << 10, GAP = 256 * PAGE, PRESS = 32 << 20, CHILDREN = 20 };

static unsigned char *volatile pressure;

static void *deep(void *limit) {
    volatile unsigned char frame[1024];
    memset((void *)frame, 1, sizeof frame);
    return (uintptr_t)frame < (uintptr_t)limit ? NULL : deep(limit) ? (void *)(uintptr_t)frame[7] : NULL;
}

static int child(void) {
    size_t whole = GAP + STACK;
    unsigned char *start = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED || munmap(start, whole)) return 77;
    unsigned char *mapped = start + whole - MAPPED;
    int flags = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN;
    if (mmap(mapped, MAPPED, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) return 77;
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstack(&attributes, start + GAP, STACK)) return 77;
    if (pthread_create(&thread, &attributes, deep, start + GAP + 4 * PAGE)) return 77;
    return pthread_join(thread, NULL) ? 77 : 0;
}

int main(void) {
    pressure = malloc(PRESS);
    memset(pressure, 1, PRESS);
    for (int turn = 0; turn < CHILDREN; turn++) {
        pid_t made = fork();
        if (made == 0) _exit(child());
        int status;
        if (made < 0 || waitpid(made, &status, 0) != made) return 77;
        if (status == 77 << 8) return 77;
        if (status != 0) {
            fprintf(stderr, "child %d ended with %#x\n", turn, status);
            return 1;
        }
    }
    return 0;
}
