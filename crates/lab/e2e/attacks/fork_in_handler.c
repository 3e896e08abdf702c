// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// attack: tiers=flash delivery=signal,listener dram=16MiB limit=60
//
// Promise: calls from a signal handler of the program are served like all other calls of the program. A handler may
// call _Fork(3), and its child has the memory as it was.
// Attempt: signals arrive while the thread forks, so that they are delivered as soon as the pager unblocks them. The
// handler reads a file into memory that is mostly evicted, and forks a child that reads memory.
// Broken: a child that ends by a signal or finds other bytes (1), a call that fails (2).
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FORKS = 40, HANDLED_MIN = 10, ROUNDS_MAX = 400, PAGE_WORDS = 512, READ_BYTES = 64 << 10 };
static uint64_t *area;
static size_t words = (40 << 20) / 8;
static volatile int handled;
static int zeros;

static void wait_for(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (status) _exit(1);
}

static void check(size_t from) {
    for (size_t word = from; word < from + 4 * PAGE_WORDS; word++)
        if (area[word % words] != word % words + 1 && area[word % words] != 0) _exit(1);
}

static void on_alarm(int number) {
    (void)number;
    int errno_before = errno;
    size_t at = (size_t)handled * 7919 * PAGE_WORDS % (words - READ_BYTES / 8);
    if (pread(zeros, area + at, READ_BYTES, 0) != READ_BYTES) _exit(2);
    pid_t child = _Fork();
    if (child < 0) _exit(2);
    if (child == 0) {
        check((size_t)handled * 104729 * PAGE_WORDS);
        _exit(0);
    }
    wait_for(child);
    handled++;
    errno = errno_before;
}

int main(void) {
    area = malloc(words * 8);
    for (size_t word = 0; word < words; word++) area[word] = word + 1;
    zeros = open("/dev/zero", O_RDONLY);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    for (int round = 0; round < ROUNDS_MAX && (round < FORKS || handled < HANDLED_MIN); round++) {
        // Not a periodic timer: the handler would take longer than the period.
        struct itimerval soon = {.it_value = {.tv_usec = 300 + round % 10 * 100}};
        setitimer(ITIMER_REAL, &soon, NULL);
        pid_t child = fork();
        if (child == 0) _exit(0);
        wait_for(child);
        check((size_t)round * 15485863);
    }
    return handled < HANDLED_MIN ? 3 : 0;
}
