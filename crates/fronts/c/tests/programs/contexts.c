// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/* Contexts, fetches and gathers find the right bytes, overlap, and can be given up. */

#define _DEFAULT_SOURCE
#include <unistd.h>

#include "check.h"

#define LOOKUPS 3000
#define NUMBERS (24 * MIB / 8)

struct world {
    aquifer_space_t space;
    aquifer_mapping_t mapping;
    const uint64_t *numbers;
    size_t good;
    size_t inner;
    int order[64];
    size_t ordered;
    aquifer_fetch_t fetch;
};

static size_t place(size_t key) {
    return (key * 2654435761u) % NUMBERS;
}

static void look_up(void *argument, size_t key) {
    struct world *world = (struct world *)argument;
    size_t index = place(key);
    /* What is on the stack stays there while other contexts run. */
    volatile size_t copy = key;
    if (!aquifer_ready(world->mapping, index * 8, 8)) {
        OK(aquifer_fetch(world->mapping, index * 8, 8));
    }
    CHECK(copy == key);
    world->good += world->numbers[index] == number_at(index);
}

static void count_one(void *argument, size_t index) {
    (void)index;
    CHECK(aquifer_context_yield() == 1);
    ((struct world *)argument)->inner++;
}

/* Waits in every way, and runs contexts of its own. */
static void wait_in_all_ways(void *argument, size_t number) {
    struct world *world = (struct world *)argument;
    struct aquifer_range ranges[3] = {{number * 100000, 8}, {number * 200000 + 8, 3000}, {MIB, 1}};
    uint64_t found[4];
    struct aquifer_piece pieces[2] = {{8 * place(number), &found[0], 8}, {8 * place(number + 1), &found[1], 8}};
    aquifer_fetch_t fetch;
    aquifer_gather_t gather;

    OK(aquifer_fetch_start(world->mapping, ranges, 3, &fetch));
    OK(aquifer_fetch_wait(fetch, number % 2 ? -1 : 600000));
    EXPECT(AQUIFER_OK, aquifer_fetch_poll(fetch));
    OK(aquifer_fetch_close(fetch));
    OK(aquifer_gather_start(world->mapping, pieces, 2, &gather));
    OK(aquifer_gather_wait(gather));
    EXPECT(AQUIFER_OK, aquifer_gather_poll(gather));
    OK(aquifer_gather_close(gather));
    CHECK(found[0] == number_at(place(number)) && found[1] == number_at(place(number + 1)));
    if (number == 3) {
        OK(aquifer_contexts_run(world->space, 5, count_one, world, NULL, NULL));
        CHECK(world->inner == 5);
    }
    CHECK(aquifer_context_yield() == 1);
}

/* Contexts that wait for each other: none keeps another from beginning. */
static void take_turns(void *argument, size_t number) {
    struct world *world = (struct world *)argument;
    int round;
    for (round = 0; round < 4; round++) {
        world->order[world->ordered++] = (int)number;
        aquifer_context_yield();
    }
}

/* One fetch, for which several contexts wait, and which another one polls last. */
static void wait_for_one(void *argument, size_t number) {
    struct world *world = (struct world *)argument;
    if (number == 3) {
        CHECK(aquifer_fetch_poll(world->fetch) >= 0);
    } else {
        OK(aquifer_fetch_wait(world->fetch, number == 0 ? 600000 : -1));
    }
    world->inner++;
}

/* A tier that takes so long that all of them wait. */
static void several_wait_for_one(void) {
    struct world world = {{0}, {0}, NULL, 0, 0, {0}, 0, {0}};
    struct aquifer_range range = {0, 8};
    size_t tries;

    world.space = small_space("failing:every=1,on=read,times=0,delay=100ms:dram:size=16MiB", "64KiB");
    world.mapping = filled(world.space, 128 << 10);
    OK(aquifer_evict(world.mapping, 0, 128 << 10));
    for (tries = 0; tries < 10000 && bytes_with(world.mapping, AQUIFER_STORED) < 128 << 10; tries++) {
        usleep(1000);
    }
    OK(aquifer_fetch_start(world.mapping, &range, 1, &world.fetch));
    OK(aquifer_contexts_run(world.space, 4, wait_for_one, &world, NULL, NULL));
    CHECK(world.inner == 4);
    OK(aquifer_fetch_close(world.fetch));
    OK(aquifer_unmap(world.mapping));
    OK(aquifer_close(world.space));
}

static void gathers(const struct world *world) {
    size_t indices[500], index;
    uint64_t found[500] = {0};
    struct aquifer_piece pieces[500];
    aquifer_gather_t gather, given_up;
    int polled;

    for (index = 0; index < 500; index++) {
        indices[index] = place(index + 10000);
        pieces[index].offset = 8 * indices[index];
        pieces[index].into = &found[index];
        pieces[index].len = 8;
    }
    OK(aquifer_gather(world->mapping, 8, indices, 500, found, sizeof found));
    for (index = 0; index < 500; index++) {
        CHECK(found[index] == number_at(indices[index]));
    }
    memset(found, 0, sizeof found);
    OK(aquifer_gather_start(world->mapping, pieces, 500, &given_up));
    CHECK(aquifer_gather_poll(given_up) >= 0);
    OK(aquifer_gather_close(given_up));
    EXPECT(AQUIFER_ERR_HANDLE, aquifer_gather_poll(given_up));
    memset(found, 0, sizeof found);
    OK(aquifer_gather_start(world->mapping, pieces, 500, &gather));
    while ((polled = aquifer_gather_poll(gather)) == AQUIFER_PENDING) {
    }
    OK(polled);
    OK(aquifer_gather_close(gather));
    for (index = 0; index < 500; index++) {
        CHECK(found[index] == number_at(indices[index]));
    }
}

int main(void) {
    struct world world = {{0}, {0}, NULL, 0, 0, {0}, 0, {0}};
    struct aquifer_contexts_report report = AQUIFER_CONTEXTS_REPORT_INIT;
    struct aquifer_context_options options = AQUIFER_CONTEXT_OPTIONS_INIT;
    struct aquifer_range all[3] = {{0, 4096}, {8 * MIB, 4096}, {16 * MIB, 4096}};
    aquifer_fetch_t fetch;
    void *address;
    size_t turn, left;

    world.space = small_space("emulated:cmm-h,size=64MiB", "4KiB");
    world.mapping = filled(world.space, 24 * MIB);
    OK(aquifer_address(world.mapping, &address));
    world.numbers = (const uint64_t *)address;
    OK(aquifer_pattern(world.mapping, 0, 24 * MIB, AQUIFER_RANDOM));
    CHECK(aquifer_context_yield() == 0);

    OK(aquifer_contexts_run(world.space, LOOKUPS, look_up, &world, NULL, &report));
    CHECK(report.contexts == LOOKUPS && world.good == LOOKUPS && report.in_flight_max > 1);
    options.stack_bytes = 256 << 10;
    OK(aquifer_contexts_run(world.space, 40, wait_in_all_ways, &world, &options, &report));
    CHECK(report.contexts == 40);
    OK(aquifer_contexts_run(world.space, 0, look_up, &world, NULL, &report));
    CHECK(report.contexts == 0);
    OK(aquifer_contexts_run(world.space, 8, take_turns, &world, NULL, NULL));
    /* The second one has begun before the first one's last turn. */
    for (turn = 0; world.order[turn] != 1; turn++) {
        CHECK(turn < 31);
    }
    for (left = 0; turn < 32; turn++) {
        left += world.order[turn] == 0;
    }
    CHECK(world.ordered == 32 && left > 0);
    gathers(&world);
    several_wait_for_one();

    /* A fetch that is waited for outside contexts, and one that is given up. */
    OK(aquifer_fetch_start(world.mapping, all, 3, &fetch));
    OK(aquifer_fetch_wait(fetch, INT64_MAX));
    CHECK(world.numbers[MIB] == number_at(MIB));
    OK(aquifer_fetch_close(fetch));
    OK(aquifer_fetch_start(world.mapping, all, 3, &fetch));
    OK(aquifer_unmap(world.mapping));
    CHECK(aquifer_fetch_poll(fetch) != AQUIFER_PENDING);
    OK(aquifer_fetch_close(fetch));
    OK(aquifer_close(world.space));
    return 0;
}
