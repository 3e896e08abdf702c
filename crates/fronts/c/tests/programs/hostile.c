// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/* Bad arguments, stale handles and forked children are errors, and what is good goes on. */

#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void nothing(void *argument, size_t index) {
    (void)argument;
    (void)index;
}

static void options_that_cannot_be(void) {
    const char *tier = "dram:size=16MiB", *bad = "tape:/dev/st0", *none = NULL;
    const char *many[6] = {tier, tier, tier, tier, tier, tier};
    struct aquifer_options good = AQUIFER_OPTIONS_INIT, options;
    struct {
        struct aquifer_options options;
        size_t newer;
    } newer;
    aquifer_space_t space = {0};

    good.dram = "16MiB";
    good.tiers = &tier;
    good.tiers_count = 1;
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_open(NULL, &space));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_open(&good, NULL));
#define REFUSED(code, member, value) \
    options = good;                  \
    options.member = value;          \
    EXPECT(code, aquifer_open(&options, &space));
    REFUSED(AQUIFER_ERR_ARGUMENT, size, 0);
    REFUSED(AQUIFER_ERR_ARGUMENT, size, offsetof(struct aquifer_options, named_in) - 1);
    REFUSED(AQUIFER_ERR_ARGUMENT, size, SIZE_MAX);
    REFUSED(AQUIFER_ERR_DRAM, dram, NULL);
    REFUSED(AQUIFER_ERR_DRAM, dram, "much");
    REFUSED(AQUIFER_ERR_ARGUMENT, dram, "\xff");
    REFUSED(AQUIFER_ERR_DRAM, dram, "1MiB");
    REFUSED(AQUIFER_ERR_DRAM, dram, "1024TiB");
    REFUSED(AQUIFER_ERR_ARGUMENT, tiers, NULL);
    REFUSED(AQUIFER_ERR_ARGUMENT, tiers, &none);
    REFUSED(AQUIFER_ERR_TIER_SPEC, tiers_count, 0);
    REFUSED(AQUIFER_ERR_TIER_SPEC, tiers, &bad);
    REFUSED(AQUIFER_ERR_POLICY, policy, "mru");
    REFUSED(AQUIFER_ERR_BLOCK_SIZE, block_size, "3KiB");
    REFUSED(AQUIFER_ERR_ARGUMENT, without_system_calls, 2);
    REFUSED(AQUIFER_ERR_ARGUMENT, reserved, 1);
    options = good;
    options.tiers = many;
    options.tiers_count = SIZE_MAX;
    EXPECT(AQUIFER_ERR_TIER_SPEC, aquifer_open(&options, &space));
    CHECK(space.handle == 0);

    /* A program that was built with a newer header. */
    newer.options = good;
    newer.options.size = sizeof newer;
    newer.newer = 1;
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_open(&newer.options, &space));
    newer.newer = 0;
    OK(aquifer_open(&newer.options, &space));
    OK(aquifer_close(space));
    EXPECT(AQUIFER_ERR_HANDLE, aquifer_close(space));
}

static void ranges_that_cannot_be(aquifer_mapping_t mapping) {
    char byte = 7;
    struct aquifer_histogram histogram;
    aquifer_pin_t pin;
    size_t count, len = MIB;

    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_read(mapping, len, &byte, 1));
    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_read(mapping, SIZE_MAX, &byte, 1));
    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_write(mapping, SIZE_MAX - 1, &byte, 1));
    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_read_in_place(mapping, len, &byte, 1));
    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_prefetch(mapping, len, 1, AQUIFER_READ));
    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_evict(mapping, 1, SIZE_MAX));
    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_stream(mapping, SIZE_MAX, SIZE_MAX));
    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_pattern(mapping, 0, len + 1, AQUIFER_NORMAL));
    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_status(mapping, 0, len + 1, NULL, 0, &count));
    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_temperature(mapping, 0, len + 1, NULL, 0, &count));
    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_histogram(mapping, 0, len + 1, &histogram));
    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_pin(mapping, 0, len + 1, &pin));
    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_fetch(mapping, 0, len + 1));
    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_discard(mapping, 0, len + 1));
    CHECK(aquifer_ready(mapping, len, 1) == 0 && aquifer_ready(mapping, SIZE_MAX, SIZE_MAX) == 0);
    EXPECT(AQUIFER_ERR_EMPTY_RANGE, aquifer_evict(mapping, 0, 0));
    EXPECT(AQUIFER_ERR_EMPTY_RANGE, aquifer_pin(mapping, 0, 0, &pin));
    EXPECT(AQUIFER_ERR_EMPTY_RANGE, aquifer_fetch(mapping, 0, 0));
    EXPECT(AQUIFER_ERR_UNALIGNED, aquifer_discard(mapping, 1, PAGE));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_prefetch(mapping, 0, 1, 7));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_pattern(mapping, 0, 1, -1));
    CHECK(byte == 7);
}

static void pointers_that_cannot_be(aquifer_space_t space, aquifer_mapping_t mapping) {
    char bytes[64];
    size_t indices[2] = {0, 1}, *odd = (size_t *)(void *)((char *)indices + 1);
    struct aquifer_range range = {0, 8}, outside = {MIB, 8};
    struct aquifer_piece piece = {0, NULL, 8}, pieces[3] = {{0, bytes, 8}, {8, bytes + 16, 8}, {16, bytes + 7, 4}};
    struct aquifer_context_options stack = AQUIFER_CONTEXT_OPTIONS_INIT;
    struct aquifer_statistics statistics = AQUIFER_STATISTICS_INIT;
    aquifer_fetch_t fetch;
    aquifer_gather_t gather;
    void *address, *large = calloc(MIB, 1);

    CHECK(large != NULL);
    OK(aquifer_address(mapping, &address));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_map(space, 1, NULL));
    EXPECT(AQUIFER_ERR_MAPPING_SIZE, aquifer_map(space, 0, &mapping));
    EXPECT(AQUIFER_ERR_MAPPING_SIZE, aquifer_map(space, SIZE_MAX, &mapping));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_address(mapping, NULL));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_length(mapping, NULL));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_read(mapping, 0, NULL, 1));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_read(mapping, 0, bytes, SIZE_MAX));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_read(mapping, 0, (char *)address + 4, 8));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_write(mapping, 0, NULL, 1));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_write(mapping, 8, address, 9));
    OK(aquifer_write(mapping, 8, address, 8));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_status(mapping, 0, 1, NULL, 1, indices));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_status(mapping, 0, 1, NULL, 0, NULL));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_histogram(mapping, 0, 1, NULL));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_pin(mapping, 0, 1, NULL));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_space_limits(space, NULL));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_space_statistics(space, NULL));
    statistics.size = 8;
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_space_statistics(space, &statistics));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_space_statistics_json(space, NULL, 8, NULL));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_gather(mapping, 8, NULL, 2, bytes, 16));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_gather(mapping, 8, odd, 1, bytes, 8));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_gather(mapping, 8, indices, SIZE_MAX / 2, bytes, 8));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_gather(mapping, 8, indices, 2, address, 16));
    EXPECT(AQUIFER_ERR_BUFFER_SIZE, aquifer_gather(mapping, 8, indices, 2, bytes, 15));
    EXPECT(AQUIFER_ERR_BUFFER_SIZE, aquifer_gather(mapping, SIZE_MAX, indices, 2, bytes, 16));
    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_gather(mapping, MIB / 2 + 1, indices + 1, 1, large, MIB / 2 + 1));
    free(large);
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_gather_pieces(mapping, NULL, 1));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_gather_pieces(mapping, &piece, 1));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_gather_start(mapping, &piece, 1, &gather));
    /* Elsewhere in the mapping: another piece may be copied from there. */
    piece.into = (char *)address + 8;
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_gather_pieces(mapping, &piece, 1));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_gather_start(mapping, &piece, 1, &gather));
    piece.into = bytes;
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_gather_start(mapping, &piece, 1, NULL));
    /* Two destinations with a byte in common, in any order; nothing is copied. */
    memset(bytes, 7, sizeof bytes);
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_gather_pieces(mapping, pieces, 3));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_gather_start(mapping, pieces, 3, &gather));
    pieces[1].into = bytes;
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_gather_pieces(mapping, pieces, 2));
    CHECK(bytes[0] == 7 && bytes[7] == 7 && bytes[10] == 7);
    /* Neighbours do not overlap, and a piece of no bytes overlaps nothing. */
    pieces[1].into = bytes + 16;
    pieces[2].into = bytes + 8;
    OK(aquifer_gather_pieces(mapping, pieces, 3));
    pieces[2].into = bytes + 4;
    pieces[2].len = 0;
    OK(aquifer_gather_pieces(mapping, pieces, 3));
    /* Over what the call reads: the pieces, and the indices. */
    pieces[0].into = &pieces[1];
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_gather_pieces(mapping, pieces, 3));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_gather(mapping, 8, indices, 2, indices, 16));
    OK(aquifer_gather_pieces(mapping, NULL, 0));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_fetch_start(mapping, NULL, 1, &fetch));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_fetch_start(mapping, &range, SIZE_MAX, &fetch));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_fetch_start(mapping, &range, 1, NULL));
    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_fetch_start(mapping, &outside, 1, &fetch));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_contexts_run(space, 1, NULL, NULL, NULL, NULL));
    stack.stack_bytes = 1;
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_contexts_run(space, 1, nothing, NULL, &stack, NULL));
}

/* Every call, with a handle that is none. */
static int refuses_all(aquifer_space_t space, aquifer_mapping_t mapping, aquifer_pin_t pin, aquifer_fetch_t fetch,
                       aquifer_gather_t gather, int code) {
    struct aquifer_options_free {
        struct aquifer_histogram histogram;
        struct aquifer_limits limits;
        struct aquifer_statistics statistics;
    } result = {{{0}, {0}}, AQUIFER_LIMITS_INIT, AQUIFER_STATISTICS_INIT};
    char bytes[8];
    size_t number = 0;
    void *address;
    struct aquifer_range range = {0, 1};
    struct aquifer_piece piece = {0, bytes, 8};
    aquifer_mapping_t new_mapping;
    aquifer_pin_t new_pin;
    aquifer_fetch_t new_fetch;
    aquifer_gather_t new_gather;
    int codes[] = {
        aquifer_map(space, 1, &new_mapping),
        aquifer_space_limits(space, &result.limits),
        aquifer_space_statistics(space, &result.statistics),
        aquifer_space_statistics_json(space, bytes, 8, NULL),
        aquifer_space_histogram(space, &result.histogram),
        aquifer_contexts_run(space, 1, nothing, NULL, NULL, NULL),
        aquifer_address(mapping, &address),
        aquifer_length(mapping, &number),
        aquifer_read(mapping, 0, bytes, 8),
        aquifer_write(mapping, 0, bytes, 8),
        aquifer_read_in_place(mapping, 0, bytes, 8),
        aquifer_discard(mapping, 0, PAGE),
        aquifer_prefetch(mapping, 0, 1, AQUIFER_READ),
        aquifer_evict(mapping, 0, 1),
        aquifer_stream(mapping, 0, 1),
        aquifer_pattern(mapping, 0, 1, AQUIFER_NORMAL),
        aquifer_status(mapping, 0, 1, NULL, 0, &number),
        aquifer_temperature(mapping, 0, 1, NULL, 0, &number),
        aquifer_histogram(mapping, 0, 1, &result.histogram),
        aquifer_ready(mapping, 0, 1),
        aquifer_pin(mapping, 0, 1, &new_pin),
        aquifer_fetch(mapping, 0, 1),
        aquifer_fetch_start(mapping, &range, 1, &new_fetch),
        aquifer_gather(mapping, 8, &number, 1, bytes, 8),
        aquifer_gather_pieces(mapping, &piece, 1),
        aquifer_gather_start(mapping, &piece, 1, &new_gather),
        aquifer_fetch_poll(fetch),
        aquifer_fetch_wait(fetch, 0),
        aquifer_fetch_close(fetch),
        aquifer_gather_poll(gather),
        aquifer_gather_wait(gather),
        aquifer_gather_close(gather),
        aquifer_unpin(pin),
        aquifer_unmap(mapping),
        aquifer_close(space),
    };
    size_t index;
    for (index = 0; index < sizeof codes / sizeof *codes; index++) {
        if (codes[index] != code) {
            fprintf(stderr, "call %zu gives %s\n", index, aquifer_error_name(codes[index]));
            return 0;
        }
    }
    return 1;
}

static void a_forked_child_is_refused(aquifer_space_t space, aquifer_mapping_t mapping) {
    aquifer_pin_t pin;
    aquifer_fetch_t fetch;
    aquifer_gather_t gather;
    struct aquifer_range range = {0, 8};
    char bytes[8];
    struct aquifer_piece piece = {0, bytes, 8};
    int status;
    pid_t child;

    OK(aquifer_pin(mapping, 0, 8, &pin));
    OK(aquifer_fetch_start(mapping, &range, 1, &fetch));
    OK(aquifer_gather_start(mapping, &piece, 1, &gather));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        aquifer_space_t own;
        aquifer_mapping_t numbers;
        if (!refuses_all(space, mapping, pin, fetch, gather, AQUIFER_ERR_FORKED)) {
            _exit(1);
        }
        /* A space of the child's. */
        own = small_space("dram:size=16MiB", NULL);
        numbers = filled(own, MIB);
        if (aquifer_unmap(numbers) != 0 || aquifer_close(own) != 0) {
            _exit(2);
        }
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(aquifer_fetch_close(fetch));
    OK(aquifer_gather_wait(gather));
    OK(aquifer_gather_close(gather));
    OK(aquifer_unpin(pin));
    CHECK(refuses_all((aquifer_space_t){1}, (aquifer_mapping_t){UINT64_MAX - 1}, pin, fetch, gather,
                      AQUIFER_ERR_HANDLE));
    /* Handles of the wrong kind. */
    CHECK(refuses_all((aquifer_space_t){mapping.handle}, (aquifer_mapping_t){space.handle},
                      (aquifer_pin_t){space.handle}, (aquifer_fetch_t){space.handle}, (aquifer_gather_t){mapping.handle},
                      AQUIFER_ERR_HANDLE));
}

int main(void) {
    aquifer_space_t space;
    aquifer_mapping_t mapping;
    aquifer_pin_t pin;
    uint64_t number;

    CHECK(*aquifer_error_message() == 0 && aquifer_error_errno() == 0);
    CHECK(strcmp(aquifer_error_name(INT_MIN), "AQUIFER_ERR_OTHER") == 0);
    options_that_cannot_be();
    space = small_space("dram:size=16MiB", NULL);
    mapping = filled(space, MIB);
    ranges_that_cannot_be(mapping);
    pointers_that_cannot_be(space, mapping);
    a_forked_child_is_refused(space, mapping);
    /* All of that has changed nothing, but what was written. */
    OK(aquifer_read(mapping, 16, &number, 8));
    CHECK(number == number_at(2));
    /* A pin keeps the memory of a mapping whose handle is gone. */
    OK(aquifer_pin(mapping, 0, 1, &pin));
    EXPECT(AQUIFER_ERR_PINNED, aquifer_unmap(mapping));
    EXPECT(AQUIFER_ERR_HANDLE, aquifer_unmap(mapping));
    OK(aquifer_unpin(pin));
    OK(aquifer_close(space));
    return 0;
}
