// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/* A space that serves no system calls: threads fetch what they touch, on whatever stack they have, and a system call
   that is given evicted memory fails. */

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define BYTES (48 * MIB)
#define THREADS 2

/* What was the whole struct before `without_system_calls` was added, and before `named_in`. */
#define SIZE_BEFORE 56
#define SIZE_FIRST 48

struct share {
    uint64_t *numbers;
    size_t first;
};

static struct aquifer_options options(void) {
    static const char *tier = "dram:size=64MiB";
    struct aquifer_options options = AQUIFER_OPTIONS_INIT;
    options.dram = "16MiB";
    options.tiers = &tier;
    options.tiers_count = 1;
    options.block_size = "4KiB";
    options.without_system_calls = 1;
    return options;
}

static uint32_t serves_system_calls(aquifer_space_t space) {
    struct aquifer_limits limits = AQUIFER_LIMITS_INIT;
    OK(aquifer_space_limits(space, &limits));
    return limits.serves_system_calls;
}

/* Every other page, written and then read. */
static void *use(void *argument) {
    struct share *share = (struct share *)argument;
    size_t page, index, words = PAGE / 8;
    for (page = share->first; page < BYTES / PAGE; page += THREADS) {
        for (index = page * words; index < (page + 1) * words; index++) {
            share->numbers[index] = number_at(index);
        }
    }
    for (page = share->first; page < BYTES / PAGE; page += THREADS) {
        for (index = page * words; index < (page + 1) * words; index++) {
            CHECK(share->numbers[index] == number_at(index));
        }
    }
    return NULL;
}

/* From two threads with the smallest stacks, and none of their own for signals. */
static void threads_use_all(uint64_t *numbers) {
    struct share shares[THREADS];
    pthread_t threads[THREADS];
    pthread_attr_t small;
    size_t index;
    CHECK(pthread_attr_init(&small) == 0);
    CHECK(pthread_attr_setstacksize(&small, (size_t)sysconf(_SC_THREAD_STACK_MIN)) == 0);
    for (index = 0; index < THREADS; index++) {
        shares[index].numbers = numbers;
        shares[index].first = index;
        CHECK(pthread_create(&threads[index], &small, use, &shares[index]) == 0);
    }
    for (index = 0; index < THREADS; index++) {
        CHECK(pthread_join(threads[index], NULL) == 0);
    }
    CHECK(pthread_attr_destroy(&small) == 0);
}

/* Where a page is that is in the tier only. */
static size_t evicted(aquifer_mapping_t mapping) {
    static struct aquifer_status_run runs[BYTES / PAGE];
    size_t count, index;
    OK(aquifer_status(mapping, 0, BYTES, runs, BYTES / PAGE, &count));
    for (index = 0; index < count; index++) {
        if (runs[index].status == AQUIFER_STORED) {
            return runs[index].start;
        }
    }
    CHECK(!"48 MiB do not fit into 16 MiB");
    return 0;
}

static void system_calls_fail_unless_memory_is_pinned(aquifer_mapping_t mapping, char *bytes) {
    char copy[PAGE];
    int ends[2];
    size_t start = evicted(mapping);
    aquifer_pin_t pin;
    CHECK(pipe(ends) == 0);
    CHECK(write(ends[1], bytes + start, PAGE) == -1 && errno == EFAULT);
    OK(aquifer_read(mapping, start, copy, PAGE));
    CHECK(write(ends[1], copy, PAGE) == (ssize_t)PAGE && read(ends[0], copy, PAGE) == (ssize_t)PAGE);
    start = evicted(mapping);
    OK(aquifer_pin(mapping, start, PAGE, &pin));
    CHECK(write(ends[1], bytes + start, PAGE) == (ssize_t)PAGE);
    OK(aquifer_unpin(pin));
    CHECK(read(ends[0], copy, PAGE) == (ssize_t)PAGE && memcmp(copy, bytes + start, PAGE) == 0);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

/* The library's calls copy from and to other memory of such spaces. */
static void calls_copy_between_mappings(aquifer_mapping_t mapping, aquifer_mapping_t other, char *others) {
    size_t from = evicted(mapping), to = evicted(other), index;
    uint64_t number;
    OK(aquifer_read(mapping, from, others + to, PAGE));
    memcpy(&number, others + to, 8);
    CHECK(number == number_at(from / 8));
    from = evicted(other);
    OK(aquifer_write(mapping, BYTES - PAGE, others + from, PAGE));
    OK(aquifer_read(mapping, BYTES - PAGE, &number, 8));
    CHECK(number == number_at(from / 8));
    index = evicted(mapping) / 8;
    to = evicted(other);
    OK(aquifer_gather(mapping, 8, &index, 1, others + to, 8));
    memcpy(&number, others + to, 8);
    CHECK(number == number_at(index));
    from = evicted(mapping);
    to = evicted(other);
    OK(aquifer_read_in_place(mapping, from, others + to, 8));
    memcpy(&number, others + to, 8);
    CHECK(number == number_at(from / 8));
    to = evicted(mapping);
    from = evicted(other);
    OK(aquifer_write_in_place(mapping, to, others + from, 8));
    OK(aquifer_read(mapping, to, &number, 8));
    memcpy(others, others + from, 8);
    CHECK(memcmp(others, &number, 8) == 0);
}

/* The documentation says so: the kernel ends a process whose fault it cannot signal. */
static void a_thread_that_blocks_the_signal_ends_its_process(void) {
    pid_t child = fork();
    int status;
    CHECK(child >= 0);
    if (child == 0) {
        struct rlimit no_core = {0, 0};
        struct aquifer_options own = options();
        aquifer_space_t space;
        aquifer_mapping_t mapping;
        sigset_t all;
        void *address;
        (void)setrlimit(RLIMIT_CORE, &no_core);
        OK(aquifer_open(&own, &space));
        mapping = filled(space, BYTES);
        OK(aquifer_address(mapping, &address));
        CHECK(sigfillset(&all) == 0 && sigprocmask(SIG_BLOCK, &all, NULL) == 0);
        _exit(((volatile char *)address)[evicted(mapping)] == 0 ? 2 : 3);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

/* A program that was built before the member existed: its struct ends there, and what is behind it means nothing. */
static void older_programs_get_what_they_know(aquifer_space_t usual) {
    size_t sizes[] = {SIZE_FIRST, SIZE_BEFORE}, index;
    CHECK(offsetof(struct aquifer_options, named_in) == SIZE_FIRST);
    CHECK(offsetof(struct aquifer_options, without_system_calls) == SIZE_BEFORE);
    for (index = 0; index < sizeof sizes / sizeof *sizes; index++) {
        struct aquifer_options older = options();
        aquifer_space_t space;
        older.size = sizes[index];
        older.reserved = 7;
        OK(aquifer_open(&older, &space));
        CHECK(serves_system_calls(space) == serves_system_calls(usual));
        OK(aquifer_close(space));
    }
}

int main(void) {
    struct aquifer_options own = options();
    struct aquifer_statistics statistics = AQUIFER_STATISTICS_INIT;
    aquifer_space_t space, usual = small_space("dram:size=16MiB", NULL);
    aquifer_mapping_t mapping, other;
    void *address, *others;

    older_programs_get_what_they_know(usual);
    OK(aquifer_close(usual));
    OK(aquifer_open(&own, &space));
    CHECK(serves_system_calls(space) == 0);
    OK(aquifer_map(space, BYTES, &mapping));
    OK(aquifer_address(mapping, &address));
    threads_use_all((uint64_t *)address);
    OK(aquifer_space_statistics(space, &statistics));
    CHECK(statistics.fetched_bytes > 0 && statistics.resident_bytes <= 16 * MIB && statistics.errors == 0);
    system_calls_fail_unless_memory_is_pinned(mapping, (char *)address);
    OK(aquifer_unmap(mapping));
    OK(aquifer_close(space));

    OK(aquifer_open(&own, &space));
    OK(aquifer_open(&own, &usual));
    mapping = filled(space, BYTES);
    other = filled(usual, BYTES);
    OK(aquifer_address(other, &others));
    calls_copy_between_mappings(mapping, other, (char *)others);
    OK(aquifer_unmap(other));
    OK(aquifer_close(usual));
    OK(aquifer_unmap(mapping));
    OK(aquifer_close(space));
    a_thread_that_blocks_the_signal_ends_its_process();
    return 0;
}
