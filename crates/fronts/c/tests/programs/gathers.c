// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/* Many gathers at a time: contexts that gather sleep while the tier works, and however many gathers there are, they
   leave the program most of its descriptors. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/resource.h>
#include <time.h>

#include "evict.h"

#define CONTEXTS 1000
#define PIECES 3
#define GATHERS 200
#define BYTES (24 * MIB)
/* More than one queue and what the library opens meanwhile, and far fewer than there are contexts. */
#define DESCRIPTORS_LEFT 24
/* The queues of a space, and what the library opens meanwhile. */
#define DESCRIPTORS_OF_GATHERS 80
#define DESCRIPTORS_MAX 4096

struct world {
    aquifer_space_t space;
    aquifer_mapping_t mapping;
    aquifer_gather_t gather;
    uint64_t found[PIECES];
    size_t good;
    int closes;
};

/* A device that takes 10 ms for a read, however many there are. */
static void write_profile(const char *path) {
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    fputs("description = \"A slow device\"\n"
          "[read]\nlatency_ns = [[0.0, 10_000_000], [1.0, 10_000_000]]\n"
          "request_ns = 100\nbytes_per_second = 6_500_000_000\n"
          "[write]\nlatency_ns = [[0.0, 1_000], [1.0, 1_000]]\n"
          "request_ns = 100\nbytes_per_second = 6_500_000_000\n",
          file);
    CHECK(fclose(file) == 0);
}

static int descriptors(void) {
    int number, count = 0;
    for (number = 0; number < DESCRIPTORS_MAX; number++) {
        count += fcntl(number, F_GETFD) >= 0;
    }
    return count;
}

static double seconds(clockid_t clock) {
    struct timespec now;
    CHECK(clock_gettime(clock, &now) == 0);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Pieces in pages that no other number has. */
static void pieces_of(size_t number, uint64_t *found, struct aquifer_piece *pieces) {
    size_t piece;
    for (piece = 0; piece < PIECES; piece++) {
        pieces[piece].offset = ((number * PIECES + piece) * 2 % (BYTES / PAGE)) * PAGE + 8 * piece;
        pieces[piece].into = &found[piece];
        pieces[piece].len = 8;
    }
}

static int are_right(size_t number, const uint64_t *found) {
    struct aquifer_piece pieces[PIECES];
    uint64_t own[PIECES];
    size_t piece, right = 0;
    pieces_of(number, own, pieces);
    for (piece = 0; piece < PIECES; piece++) {
        right += found[piece] == number_at(pieces[piece].offset / 8);
    }
    return right == PIECES;
}

static void gather_in_a_context(void *argument, size_t number) {
    struct world *world = (struct world *)argument;
    struct aquifer_piece pieces[PIECES];
    uint64_t found[PIECES];
    aquifer_gather_t gather;
    int copy;

    pieces_of(number, found, pieces);
    OK(aquifer_gather_start(world->mapping, pieces, PIECES, &gather));
    OK(aquifer_gather_wait(gather));
    EXPECT(AQUIFER_OK, aquifer_gather_poll(gather));
    OK(aquifer_gather_close(gather));
    /* The program can still open something. */
    copy = dup(0);
    CHECK(copy >= 0 && close(copy) == 0);
    world->good += are_right(number, found);
}

static void contexts_share_a_queue_and_sleep(struct world *world) {
    struct aquifer_contexts_report report = AQUIFER_CONTEXTS_REPORT_INIT;
    struct rlimit before, few;
    double wall, cpu;
    int highest;

    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    for (highest = DESCRIPTORS_MAX; highest > 0 && fcntl(highest - 1, F_GETFD) < 0; highest--) {
    }
    few = before;
    few.rlim_cur = (rlim_t)highest + DESCRIPTORS_LEFT;
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    wall = seconds(CLOCK_MONOTONIC);
    cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
    OK(aquifer_contexts_run(world->space, CONTEXTS, gather_in_a_context, world, NULL, &report));
    wall = seconds(CLOCK_MONOTONIC) - wall;
    cpu = seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    printf("%.3f s, %.3f s of CPU time, %llu runs, %llu contexts at a time\n", wall, cpu,
           (unsigned long long)report.runs, (unsigned long long)report.in_flight_max);
    CHECK(report.contexts == CONTEXTS && world->good == CONTEXTS);
    CHECK(report.in_flight_max > 1);
    /* A context runs when it begins, and when pieces of it have arrived. */
    CHECK(report.runs <= CONTEXTS * (PIECES + 2));
    CHECK(cpu < wall / 2);
    /* Nothing has become resident, but pages that were read again. */
    CHECK(bytes_with(world->mapping, AQUIFER_STORED) > BYTES / 2);
}

/* Contexts that wait for one gather, which another one polls or closes. */
static void wait_for_one(void *argument, size_t number) {
    struct world *world = (struct world *)argument;
    if (number < 3) {
        EXPECT(world->closes ? AQUIFER_ERR_CLOSED : AQUIFER_OK, aquifer_gather_wait(world->gather));
    } else if (world->closes) {
        OK(aquifer_gather_close(world->gather));
    } else {
        CHECK(aquifer_gather_poll(world->gather) >= 0);
    }
    world->good++;
}

static void several_contexts_wait_for_one_gather(struct world *world, int closes) {
    struct aquifer_piece pieces[PIECES];
    size_t number = 1100 + (size_t)closes;

    pieces_of(number, world->found, pieces);
    OK(aquifer_gather_start(world->mapping, pieces, PIECES, &world->gather));
    world->closes = closes;
    world->good = 0;
    OK(aquifer_contexts_run(world->space, 4, wait_for_one, world, NULL, NULL));
    CHECK(world->good == 4);
    if (!closes) {
        CHECK(are_right(number, world->found));
        OK(aquifer_gather_close(world->gather));
    }
}

/* Outside of contexts, all of them are polled before the first one ends. */
static void many_gathers_leave_descriptors(const struct world *world) {
    static uint64_t found[GATHERS][PIECES];
    static aquifer_gather_t all[GATHERS];
    struct aquifer_piece pieces[PIECES];
    int polled, before = descriptors();
    size_t number;

    for (number = 0; number < GATHERS; number++) {
        pieces_of(number + 1200, found[number], pieces);
        OK(aquifer_gather_start(world->mapping, pieces, PIECES, &all[number]));
    }
    CHECK(descriptors() <= before + DESCRIPTORS_OF_GATHERS);
    for (number = 0; number < GATHERS; number++) {
        CHECK(aquifer_gather_poll(all[number]) >= 0);
    }
    CHECK(descriptors() <= before + DESCRIPTORS_OF_GATHERS);
    /* The last ones first: they need nothing of the first ones. */
    for (number = GATHERS; number-- > 0;) {
        while (number % 2 == 0 && (polled = aquifer_gather_poll(all[number])) == AQUIFER_PENDING) {
            usleep(100);
        }
        OK(aquifer_gather_wait(all[number]));
        OK(aquifer_gather_close(all[number]));
        CHECK(are_right(number + 1200, found[number]));
    }
    CHECK(descriptors() <= before + DESCRIPTORS_OF_GATHERS / 4);
}

int main(void) {
    struct world world = {{0}, {0}, {0}, {0}, 0, 0};
    char directory[] = "/tmp/aquifer-gathers-XXXXXX", profile[64], tier[128];

    CHECK(mkdtemp(directory) != NULL);
    snprintf(profile, sizeof profile, "%s/slow.toml", directory);
    write_profile(profile);
    snprintf(tier, sizeof tier, "emulated:%s,size=64MiB", profile);
    world.space = small_space(tier, "4KiB");
    CHECK(remove(profile) == 0 && remove(directory) == 0);
    world.mapping = filled(world.space, BYTES);
    evict_all(world.mapping);
    contexts_share_a_queue_and_sleep(&world);
    several_contexts_wait_for_one_gather(&world, 0);
    several_contexts_wait_for_one_gather(&world, 1);
    many_gathers_leave_descriptors(&world);
    OK(aquifer_unmap(world.mapping));
    OK(aquifer_close(world.space));
    return 0;
}
