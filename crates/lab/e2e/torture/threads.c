// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/* Locks and condition variables in managed memory, which the kernel accesses as futexes, and signal handlers that
 * access their own memory. */

#include "torture.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct shared {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t count, turns;
    unsigned char far_apart[64 << 10];
};

enum { SHARED = 16, HANDLER_LINES = 4096 };
static struct shared *shared[SHARED];
static struct area handled;
static volatile sig_atomic_t handled_once;

static void on_signal(int number) {
    (void)number;
    /* The handler has its own random state and lines, because it may interrupt any other work. */
    static struct luck luck = {7};
    static volatile int busy;
    if (__atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE))
        return;
    size_t line = below(&luck, HANDLER_LINES - 8);
    check_lines(&handled, line, 8, "load in a signal handler");
    write_lines(&handled, line, 8, &luck);
    handled_once = 1;
    __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
}

void start_locks(int threads) {
    (void)threads;
    for (int index = 0; index < SHARED; index++) {
        shared[index] = calloc(1, sizeof *shared[index]);
        pthread_mutex_init(&shared[index]->lock, NULL);
        pthread_cond_init(&shared[index]->changed, NULL);
    }
    area_model(&handled, calloc(HANDLER_LINES, LINE), HANDLER_LINES * LINE);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    if (sigaction(SIGUSR1, &action, NULL) != 0)
        broken("sigaction");
}

void locks(struct luck *luck) {
    struct shared *one = shared[below(luck, SHARED)];
    for (int turn = 0; turn < 50; turn++) {
        pthread_mutex_lock(&one->lock);
        uint64_t before = one->count;
        one->far_apart[below(luck, sizeof one->far_apart)] = 1;
        one->count = before + 1;
        one->turns++;
        if (below(luck, 10) == 0) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += 200000;
            until.tv_sec += until.tv_nsec / 1000000000;
            until.tv_nsec %= 1000000000;
            pthread_cond_timedwait(&one->changed, &one->lock, &until);
        } else {
            pthread_cond_broadcast(&one->changed);
        }
        pthread_mutex_unlock(&one->lock);
    }
}

void end_locks(void) {
    for (int index = 0; index < SHARED; index++)
        if (shared[index]->count != shared[index]->turns)
            wrong("lock %d: counted %llu in %llu turns", index, (unsigned long long)shared[index]->count,
                  (unsigned long long)shared[index]->turns);
}

void handlers(struct luck *luck) {
    (void)luck;
    handled_once = 0;
    pthread_kill(pthread_self(), SIGUSR1);
}
