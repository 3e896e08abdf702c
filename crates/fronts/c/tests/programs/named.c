// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/*
 * Named mappings keep what was synced; writes in place change what is evicted; hints by range, and the miss-ratio
 * curve.
 */

#define _GNU_SOURCE
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

static aquifer_space_t space_in(const char *directory) {
    const char *tier = "dram:size=64MiB";
    struct aquifer_options options = AQUIFER_OPTIONS_INIT;
    aquifer_space_t space;
    options.dram = "16MiB";
    options.tiers = &tier;
    options.tiers_count = 1;
    options.named_in = directory;
    OK(aquifer_open(&options, &space));
    return space;
}

static void contents_stay(const char *directory) {
    aquifer_space_t space = space_in(directory);
    aquifer_mapping_t mapping, other = {0};
    uint64_t number = 0;
    void *address;
    size_t len;

    EXPECT(AQUIFER_ERR_NOT_FOUND, aquifer_map_named(space, "numbers", 0, &mapping));
    OK(aquifer_map_named(space, "numbers", 32 * MIB, &mapping));
    EXPECT(AQUIFER_ERR_ALREADY_OPEN, aquifer_map_named(space, "numbers", 0, &other));
    OK(aquifer_address(mapping, &address));
    for (len = 0; len < 32 * MIB / 8; len++) {
        ((uint64_t *)address)[len] = number_at(len);
    }
    OK(aquifer_sync(mapping, 0, 16 * MIB));
    OK(aquifer_snapshot(mapping));
    number = 7;
    OK(aquifer_write(mapping, 8 * MIB, &number, 8));
    OK(aquifer_write(mapping, 9 * MIB, &number, 8));
    OK(aquifer_sync(mapping, 9 * MIB, 8));
    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_sync(mapping, 0, 33 * MIB));
    OK(aquifer_unmap(mapping));
    EXPECT(AQUIFER_ERR_HANDLE, aquifer_snapshot(mapping));

    EXPECT(AQUIFER_ERR_OTHER_SIZE, aquifer_map_named(space, "numbers", MIB, &mapping));
    OK(aquifer_map_named(space, "numbers", 0, &mapping));
    OK(aquifer_length(mapping, &len));
    CHECK(len == 32 * MIB);
    OK(aquifer_read(mapping, 31 * MIB, &number, 8));
    CHECK(number == number_at(31 * MIB / 8));
    OK(aquifer_read(mapping, 8 * MIB, &number, 8));
    CHECK(number == number_at(MIB)); /* what was not synced is lost */
    OK(aquifer_read(mapping, 9 * MIB, &number, 8));
    CHECK(number == 7);
    OK(aquifer_unmap(mapping));
    OK(aquifer_close(space));
}

static void trouble(const char *directory) {
    aquifer_space_t space = space_in(directory), nameless = small_space("dram:size=16MiB", NULL);
    aquifer_mapping_t mapping, plain;
    char path[4096];
    FILE *file;

    EXPECT(AQUIFER_ERR_NO_DIRECTORY, aquifer_map_named(nameless, "a", MIB, &mapping));
    EXPECT(AQUIFER_ERR_BAD_NAME, aquifer_map_named(space, "../a", MIB, &mapping));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_map_named(space, NULL, MIB, &mapping));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_map_named(space, "\xff", MIB, &mapping));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_map_named(space, "a", MIB, NULL));
    EXPECT(AQUIFER_ERR_MAPPING_SIZE, aquifer_map_named(space, "a", (size_t)2 << 40, &mapping));
    OK(aquifer_map(nameless, MIB, &plain));
    EXPECT(AQUIFER_ERR_NOT_NAMED, aquifer_sync(plain, 0, MIB));
    EXPECT(AQUIFER_ERR_NOT_NAMED, aquifer_snapshot(plain));
    OK(aquifer_unmap(plain));
    CHECK(snprintf(path, sizeof path, "%s/foreign.aquifer", directory) > 0);
    file = fopen(path, "w");
    CHECK(file != NULL && chmod(path, 0600) == 0);
    CHECK(fprintf(file, "%08192d", 1) == 8192 && fclose(file) == 0);
    EXPECT(AQUIFER_ERR_NOT_OURS, aquifer_map_named(space, "foreign", 0, &mapping));
    CHECK(remove(path) == 0);
    /* The file is removed, or cut off, while it is open. */
    OK(aquifer_map_named(space, "foreign", MIB, &mapping));
    CHECK(remove(path) == 0);
    EXPECT(AQUIFER_ERR_REPLACED, aquifer_snapshot(mapping));
    OK(aquifer_unmap(mapping));
    OK(aquifer_map_named(space, "foreign", MIB, &mapping));
    OK(aquifer_write(mapping, 0, "abc", 3));
    OK(aquifer_snapshot(mapping));
    CHECK(truncate(path, 0) == 0);
    EXPECT(AQUIFER_ERR_TRUNCATED, aquifer_sync(mapping, 0, 3));
    OK(aquifer_unmap(mapping));
    OK(aquifer_close(space));
    OK(aquifer_close(nameless));
}

static void writes_in_place(void) {
    aquifer_space_t space = small_space("dram:size=64MiB", "4KiB");
    aquifer_mapping_t mapping = filled(space, 40 * MIB);
    uint64_t number;
    size_t at;

    for (at = 0; at < 40 * MIB; at += 64 * PAGE) {
        number = ~number_at(at / 8);
        OK(aquifer_write_in_place(mapping, at + 16, &number, 8));
    }
    for (at = 0; at < 40 * MIB; at += 64 * PAGE) {
        OK(aquifer_read(mapping, at + 16, &number, 8));
        CHECK(number == ~number_at(at / 8));
        OK(aquifer_read(mapping, at + 24, &number, 8));
        CHECK(number == number_at(at / 8 + 3));
    }
    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_write_in_place(mapping, 40 * MIB - 4, &number, 8));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_write_in_place(mapping, 0, NULL, 8));
    OK(aquifer_unmap(mapping));
    OK(aquifer_close(space));
}

static void hints_and_curve(void) {
    aquifer_space_t space = small_space("dram:size=64MiB", NULL);
    aquifer_mapping_t mapping = filled(space, 40 * MIB);
    struct aquifer_curve curve = AQUIFER_CURVE_INIT;
    struct aquifer_curve_point points[AQUIFER_CURVE_POINTS];
    size_t count = 1, at, rounds;
    void *address;

    OK(aquifer_priority(mapping, 0, 4 * MIB, AQUIFER_PRIORITY_HIGH));
    OK(aquifer_priority(mapping, 4 * MIB, 4 * MIB, AQUIFER_PRIORITY_LOW));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_priority(mapping, 0, MIB, 2));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_priority(mapping, 0, MIB, -2));
    OK(aquifer_block_size(mapping, 0, 4 * MIB, 4096));
    OK(aquifer_block_size(mapping, 0, 4 * MIB, 0));
    EXPECT(AQUIFER_ERR_BLOCK_SIZE, aquifer_block_size(mapping, 0, MIB, 5000));
    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_block_size(mapping, 40 * MIB, MIB, 4096));

    OK(aquifer_miss_ratio_curve(space, 0.05, 0, &curve, NULL, 0, &count));
    CHECK(curve.samples == 0 && count == 0);
    OK(aquifer_sample_touches(space, 600 * 1000));
    OK(aquifer_address(mapping, &address));
    for (rounds = 0; curve.samples < 100; rounds++) {
        CHECK(rounds < 10 * 1000 * 1000);
        for (at = 0; at < 8 * MIB; at += PAGE) {
            CHECK(*(volatile uint64_t *)((char *)address + at) == number_at(at / 8));
        }
        OK(aquifer_miss_ratio_curve(space, 0.05, 80000, &curve, points, AQUIFER_CURVE_POINTS, &count));
    }
    OK(aquifer_stop_sampling(space));
    CHECK(curve.content_bytes == 40 * MIB && curve.measured_ns > 0 && curve.fetch_ns > 0);
    CHECK(count > 0 && count <= AQUIFER_CURVE_POINTS && points[0].miss_ratio <= 1.0);
    CHECK(points[count - 1].dram_bytes <= 40 * MIB && points[count - 1].fetches_per_s > 0);
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_miss_ratio_curve(space, 0, 0, &curve, NULL, 0, &count));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_miss_ratio_curve(space, 0.05, 0, NULL, NULL, 0, &count));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_miss_ratio_curve(space, 0.05, 0, &curve, NULL, 4, &count));
    OK(aquifer_unmap(mapping));
    OK(aquifer_close(space));
    EXPECT(AQUIFER_ERR_HANDLE, aquifer_sample_touches(space, 1));
}

static void ordinary_memory_alone(void) {
    char *memory = (char *)malloc(MIB);
    struct aquifer_status_run run;
    aquifer_pin_t pin;
    size_t count, start = (size_t)memory;

    CHECK(memory != NULL);
    EXPECT(AQUIFER_ERR_UNMANAGED, aquifer_prefetch(AQUIFER_MEMORY, start, MIB, AQUIFER_READ));
    EXPECT(AQUIFER_ERR_UNMANAGED, aquifer_evict(AQUIFER_MEMORY, start, MIB));
    EXPECT(AQUIFER_ERR_UNMANAGED, aquifer_status(AQUIFER_MEMORY, start, MIB, &run, 1, &count));
    EXPECT(AQUIFER_ERR_UNMANAGED, aquifer_pin(AQUIFER_MEMORY, start, MIB, &pin));
    EXPECT(AQUIFER_ERR_HANDLE, aquifer_read(AQUIFER_MEMORY, start, memory, 0));
    free(memory);
}

int main(void) {
    char directory[] = "/tmp/aquifer-c-named-XXXXXX", command[64];
    CHECK(mkdtemp(directory) != NULL);
    contents_stay(directory);
    trouble(directory);
    CHECK(snprintf(command, sizeof command, "rm -r %s", directory) > 0 && system(command) == 0);
    writes_in_place();
    hints_and_curve();
    ordinary_memory_alone();
    return 0;
}
