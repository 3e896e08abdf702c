// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/* Tiers that fail in mid-batch, that lie, and that are slow: errors, and never wrong bytes. */

#define _GNU_SOURCE
#include "evict.h"

#define BLOCK ((size_t)64 << 10)
#define BLOCKS 128
/* A read in place for each block of a batch. */
#define BATCH_BYTES (BLOCKS * BLOCK)

struct batch {
    aquifer_mapping_t mapping;
    size_t good;
    size_t lost;
};

static void fetch_a_block(void *argument, size_t block) {
    struct batch *batch = (struct batch *)argument;
    uint64_t number = 0;
    int returned = aquifer_fetch(batch->mapping, block * BLOCK, PAGE);
    if (returned == AQUIFER_OK) {
        /* It may have been evicted again, and lost then. */
        returned = aquifer_read(batch->mapping, block * BLOCK, &number, 8);
        CHECK(returned == AQUIFER_ERR_LOST || (returned == AQUIFER_OK && number == number_at(block * BLOCK / 8)));
        batch->good += returned == AQUIFER_OK;
    } else {
        EXPECT(AQUIFER_ERR_LOST, returned);
        EXPECT(AQUIFER_ERR_LOST, aquifer_read(batch->mapping, block * BLOCK, &number, 8));
        batch->lost++;
    }
}

static void a_tier_fails_in_the_middle_of_contexts(void) {
    struct batch batch = {{0}, 0, 0};
    aquifer_space_t space = small_space("failing:after=60,on=read:dram:size=64MiB", "64KiB");
    uint64_t number = 7;

    batch.mapping = filled(space, BATCH_BYTES);
    evict_all(batch.mapping);
    OK(aquifer_contexts_run(space, BLOCKS, fetch_a_block, &batch, NULL, NULL));
    CHECK(batch.good > 0 && batch.lost > 0);
    OK(aquifer_discard(batch.mapping, 0, BATCH_BYTES));
    OK(aquifer_write(batch.mapping, 8, &number, 8));
    OK(aquifer_read(batch.mapping, 0, &number, 8));
    CHECK(number == 0);
    OK(aquifer_read(batch.mapping, 8, &number, 8));
    CHECK(number == 7);
    OK(aquifer_unmap(batch.mapping));
    OK(aquifer_close(space));
}

static void a_tier_fails_in_the_middle_of_a_gather(void) {
    aquifer_space_t space = small_space("failing:after=60,on=read:dram:size=64MiB", "64KiB");
    aquifer_mapping_t mapping = filled(space, BATCH_BYTES);
    struct aquifer_piece pieces[BLOCKS];
    uint64_t found[BLOCKS] = {0};
    aquifer_gather_t gather;
    size_t block;

    evict_all(mapping);
    for (block = 0; block < BLOCKS; block++) {
        pieces[block].offset = block * BLOCK;
        pieces[block].into = &found[block];
        pieces[block].len = 8;
    }
    OK(aquifer_gather_start(mapping, pieces, BLOCKS, &gather));
    EXPECT(AQUIFER_ERR_LOST, aquifer_gather_wait(gather));
    EXPECT(AQUIFER_ERR_LOST, aquifer_gather_poll(gather));
    OK(aquifer_gather_close(gather));
    for (block = 0; block < BLOCKS; block++) {
        CHECK(found[block] == 0 || found[block] == number_at(block * BLOCK / 8));
    }
    OK(aquifer_unmap(mapping));
    OK(aquifer_close(space));
}

static void a_tier_lies_sometimes(void) {
    aquifer_space_t space = small_space("failing:corrupt=2:dram:size=64MiB", "4KiB");
    aquifer_mapping_t mapping = filled(space, 2 * MIB);
    uint64_t number;
    size_t at, good = 0;

    evict_all(mapping);
    for (at = 0; at < 2 * MIB; at += PAGE) {
        int returned = aquifer_read_in_place(mapping, at + 8, &number, 8);
        CHECK(returned == AQUIFER_ERR_LOST || (returned == AQUIFER_OK && number == number_at(at / 8 + 1)));
        good += returned == AQUIFER_OK;
    }
    CHECK(good > 0);
    OK(aquifer_unmap(mapping));
    OK(aquifer_close(space));
}

static void a_tier_always_lies(void) {
    aquifer_space_t space = small_space("failing:corrupt=1:dram:size=64MiB", "4KiB");
    aquifer_mapping_t mapping = filled(space, MIB);
    struct aquifer_statistics statistics = AQUIFER_STATISTICS_INIT;
    uint64_t number = 7;
    size_t index = 3 * PAGE / 8;
    aquifer_pin_t pin;

    evict_all(mapping);
    EXPECT(AQUIFER_ERR_LOST, aquifer_read(mapping, 0, &number, 8));
    EXPECT(AQUIFER_ERR_LOST, aquifer_read_in_place(mapping, PAGE, &number, 8));
    EXPECT(AQUIFER_ERR_LOST, aquifer_fetch(mapping, 2 * PAGE, 8));
    EXPECT(AQUIFER_ERR_LOST, aquifer_gather(mapping, 8, &index, 1, &number, 8));
    EXPECT(AQUIFER_ERR_LOST, aquifer_pin(mapping, 4 * PAGE, 8, &pin));
    EXPECT(AQUIFER_ERR_LOST, aquifer_write(mapping, 5 * PAGE, &number, 8));
    OK(aquifer_space_statistics(space, &statistics));
    CHECK(number == 7 && statistics.errors > 0 && bytes_with(mapping, AQUIFER_LOST) >= PAGE);
    OK(aquifer_unmap(mapping));
    OK(aquifer_close(space));
}

static void a_tier_is_slow(void) {
    aquifer_space_t space = small_space("failing:every=1,on=read,times=0,delay=500ms:dram:size=16MiB", "64KiB");
    aquifer_mapping_t mapping = filled(space, BLOCK), other;
    struct aquifer_range range = {0, 8};
    aquifer_fetch_t fetch;
    uint64_t number;

    evict_all(mapping);
    other = filled(space, BLOCK);
    OK(aquifer_fetch_start(mapping, &range, 1, &fetch));
    EXPECT(AQUIFER_ERR_TIMEOUT, aquifer_fetch_wait(fetch, 10));
    OK(aquifer_prefetch(mapping, 0, BLOCK, AQUIFER_READ));
    /* Memory that is resident does not wait for the tier. */
    OK(aquifer_read(other, BLOCK - 8, &number, 8));
    CHECK(number == number_at(BLOCK / 8 - 1));
    EXPECT(AQUIFER_PENDING, aquifer_fetch_poll(fetch));
    OK(aquifer_fetch_wait(fetch, -1));
    OK(aquifer_fetch_close(fetch));
    OK(aquifer_read(mapping, 0, &number, 8));
    CHECK(number == number_at(0));
    OK(aquifer_unmap(mapping));
    OK(aquifer_unmap(other));
    OK(aquifer_close(space));
}

int main(void) {
    a_tier_fails_in_the_middle_of_contexts();
    a_tier_fails_in_the_middle_of_a_gather();
    a_tier_lies_sometimes();
    a_tier_always_lies();
    a_tier_is_slow();
    return 0;
}
