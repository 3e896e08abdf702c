// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/* A program that uses memory in every way that a program may, and knows what every byte must be.
 *
 *   torture SEED SECONDS MIB THREADS PARTS DIRECTORY
 *
 * PARTS is a set of letters: l loads and stores, t transfers, k kernel structures, v vectored transfers,
 * m messages, a allocations, p mappings, f futexes (locks), s signal handlers, c forked children, r children by
 * clone(2) that bypass the C library, x programs that are started, n threads that come and go, d discards, locks
 * and protections of long-lived memory. It knows nothing of Aquifer, and passes without it.
 *
 * Exit status: 0 all was right; 1 a byte was wrong or a call failed, with the line that reproduces it;
 * 2 bad arguments; 3 the machine refused something. */

#include "torture.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

const char *directory;
static char **arguments;
static double seconds;
static const char *parts;
static struct timespec began;

static double elapsed(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - began.tv_sec) + (double)(now.tv_nsec - began.tv_nsec) / 1e9;
}

__thread char done_last[80];

/* A single write(2), so that lines of two threads do not mix, from the stack, which is not managed. */
void wrong(const char *what, ...) {
    char line[1024];
    va_list rest;
    va_start(rest, what);
    int len = snprintf(line, 400, "torture: ");
    len += vsnprintf(line + len, 500, what, rest);
    len += snprintf(line + len, sizeof line - (size_t)len, "; reproduce: torture %s %s %s %s %s %s\n", arguments[1],
                    arguments[2], arguments[3], arguments[4], arguments[5], arguments[6]);
    va_end(rest);
    if (write(2, line, (size_t)len) < 0)
        _exit(3);
    _exit(1);
}

void broken(const char *call) {
    perror(call);
    _exit(3);
}

struct worker {
    struct area area;
    struct luck luck;
    uint64_t turns;
    pthread_t thread;
};

static void *work(void *argument) {
    struct worker *worker = argument;
    size_t count = strlen(parts);
    while (elapsed() < seconds) {
        struct luck *luck = &worker->luck;
        switch (parts[below(luck, count)]) {
        case 'l': for (int turn = 0; turn < 20; turn++) loads_and_stores(&worker->area, luck); break;
        case 't': transfers(&worker->area, luck); break;
        case 'k': kernel_structures(&worker->area, luck); break;
        case 'v': vectors(&worker->area, luck); break;
        case 'm': messages(&worker->area, luck); break;
        case 'a': allocations(luck, (size_t)12 << 20); break;
        case 'p': mappings(luck); break;
        case 'f': locks(luck); break;
        case 's': handlers(luck); break;
        case 'c': forks(&worker->area, luck); break;
        case 'r': clones(&worker->area, luck); break;
        case 'x': programs(&worker->area, luck); break;
        case 'n': visitors(luck); break;
        case 'd': discards(&worker->area, luck); break;
        }
        worker->turns++;
    }
    check_area(&worker->area, "at the end");
    return NULL;
}

int main(int count, char **values) {
    if (count != 7) {
        fprintf(stderr, "usage: torture SEED SECONDS MIB THREADS PARTS DIRECTORY\n");
        return 2;
    }
    arguments = values;
    directory = values[6];
    parts = values[5];
    seconds = atof(values[2]);
    uint64_t seed = strtoull(values[1], NULL, 0);
    size_t len = (size_t)atol(values[3]) << 20;
    int threads = atoi(values[4]);
    if (len == 0 || threads < 1 || threads > 64 || !*parts)
        return 2;
    clock_gettime(CLOCK_MONOTONIC, &began);
    struct worker *workers = calloc((size_t)threads, sizeof *workers);
    start_locks(threads);
    for (int index = 0; index < threads; index++) {
        struct worker *worker = &workers[index];
        worker->luck.state = seed * 1000 + (uint64_t)index;
        size_t part = len / (size_t)threads / 4096 * 4096;
        /* Memory from malloc and the program's own mappings may have different deliveries. */
        void *start = index % 2 == 0 ? aligned_alloc(4096, part)
                                     : mmap(NULL, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (!start || start == MAP_FAILED)
            broken("the area's memory");
        area_model(&worker->area, start, part);
        write_lines(&worker->area, 0, part / LINE, &worker->luck);
        if (pthread_create(&worker->thread, NULL, work, worker) != 0)
            broken("pthread_create");
    }
    uint64_t turns = 0;
    for (int index = 0; index < threads; index++) {
        pthread_join(workers[index].thread, NULL);
        turns += workers[index].turns;
    }
    end_locks();
    printf("torture: seed %llu: %llu turns, every byte was right\n", (unsigned long long)seed,
           (unsigned long long)turns);
    return 0;
}
