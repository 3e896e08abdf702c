// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/* Memory keeps its bytes beyond the budget, whatever hints are given, and says where it is. */

#include "check.h"

static void waits_until_evicted(aquifer_mapping_t mapping, size_t bytes) {
    int tries;
    for (tries = 0; bytes_with(mapping, AQUIFER_STORED) < bytes; tries++) {
        CHECK(tries < 100000);
        if (tries % 200 == 0) {
            OK(aquifer_evict(mapping, 0, bytes));
        }
        CHECK(aquifer_context_yield() == 0);
    }
}

static void queries(aquifer_space_t space, aquifer_mapping_t mapping) {
    struct aquifer_histogram of_space, of_mapping;
    struct aquifer_temperature_run hot[4];
    struct aquifer_statistics statistics = AQUIFER_STATISTICS_INIT;
    struct aquifer_limits limits = AQUIFER_LIMITS_INIT;
    char json[8192], few[8];
    size_t count, needed, class_index;
    uint64_t bytes = 0;

    OK(aquifer_space_statistics(space, &statistics));
    CHECK(statistics.size == sizeof statistics && statistics.evicted_blocks > 0);
    CHECK(statistics.resident_bytes <= 16 * MIB && statistics.errors == 0);
    OK(aquifer_space_limits(space, &limits));
    CHECK(limits.prefetch_bytes_max == MIB && limits.pin_bytes_max > 0 && limits.serves_system_calls <= 1);
    OK(aquifer_space_statistics_json(space, json, sizeof json, &needed));
    CHECK(needed == strlen(json) + 1 && strstr(json, "\"evicted_blocks\"") != NULL);
    OK(aquifer_space_statistics_json(space, few, sizeof few, NULL));
    CHECK(strlen(few) == sizeof few - 1 && memcmp(few, json, sizeof few - 1) == 0);
    OK(aquifer_space_statistics_json(space, NULL, 0, &needed));
    OK(aquifer_space_histogram(space, &of_space));
    OK(aquifer_histogram(mapping, 0, 48 * MIB, &of_mapping));
    for (class_index = 0; class_index < AQUIFER_CLASSES; class_index++) {
        bytes += of_mapping.resident_bytes[class_index] + of_mapping.away_bytes[class_index];
        CHECK(aquifer_class_name(class_index) != NULL);
    }
    CHECK(bytes == 48 * MIB && aquifer_class_name(AQUIFER_CLASSES) == NULL);
    OK(aquifer_temperature(mapping, 0, 48 * MIB, hot, 4, &count));
    CHECK(count > 0 && hot[0].len > 0 && hot[0].temperature <= 255);
}

static void hints(aquifer_space_t space, aquifer_mapping_t mapping) {
    struct aquifer_limits limits = AQUIFER_LIMITS_INIT;
    aquifer_pin_t pin, other;
    struct aquifer_status_run runs[2];
    size_t count;

    OK(aquifer_space_limits(space, &limits));
    OK(aquifer_pattern(mapping, 0, 48 * MIB, AQUIFER_RANDOM));
    OK(aquifer_pattern(mapping, 0, 48 * MIB, AQUIFER_NORMAL));
    OK(aquifer_prefetch(mapping, 0, limits.prefetch_bytes_max, AQUIFER_READ));
    EXPECT(AQUIFER_ERR_BEYOND_BUDGET, aquifer_prefetch(mapping, 0, limits.prefetch_bytes_max + 1, AQUIFER_WRITE));
    OK(aquifer_stream(mapping, 8 * MIB, MIB));
    OK(aquifer_pin(mapping, 4 * MIB, 100, &pin));
    OK(aquifer_pin(mapping, 4 * MIB + 50, 100, &other));
    CHECK(aquifer_ready(mapping, 4 * MIB, 100) == 1);
    EXPECT(AQUIFER_ERR_PINNED, aquifer_evict(mapping, 4 * MIB, MIB));
    EXPECT(AQUIFER_ERR_PINNED, aquifer_discard(mapping, 4 * MIB, PAGE));
    OK(aquifer_unpin(pin));
    OK(aquifer_unpin(other));
    EXPECT(AQUIFER_ERR_HANDLE, aquifer_unpin(other));
    EXPECT(AQUIFER_ERR_PINNED_TOO_MUCH, aquifer_pin(mapping, 0, 48 * MIB, &pin));
    OK(aquifer_status(mapping, 0, 48 * MIB, runs, 2, &count));
    CHECK(count >= 2 && runs[0].start == 0 && runs[1].start == runs[0].len);
    OK(aquifer_status(mapping, 0, 48 * MIB, NULL, 0, &count));
    CHECK(count >= 2);
}

int main(void) {
    aquifer_space_t space = small_space("dram:size=128MiB", "64KiB");
    aquifer_mapping_t mapping = filled(space, 48 * MIB);
    unsigned char bytes[20] = "across two pages";
    uint64_t *numbers, number;
    void *address;
    size_t index, len;

    OK(aquifer_address(mapping, &address));
    OK(aquifer_length(mapping, &len));
    CHECK(len == 48 * MIB && (uintptr_t)address % (2 * MIB) == 0);
    numbers = (uint64_t *)address;
    queries(space, mapping);
    hints(space, mapping);
    for (index = 0; index < 48 * MIB / 8; index += 511) {
        CHECK(numbers[index] == number_at(index));
    }
    OK(aquifer_write(mapping, PAGE - 8, bytes, sizeof bytes));
    memset(bytes, 0, sizeof bytes);
    OK(aquifer_read(mapping, PAGE - 8, bytes, sizeof bytes));
    CHECK(strcmp((char *)bytes, "across two pages") == 0);
    OK(aquifer_discard(mapping, 0, 2 * PAGE));
    OK(aquifer_read(mapping, 2 * PAGE - 8, &number, 8));
    CHECK(number == 0);
    waits_until_evicted(mapping, 2 * MIB - 2 * PAGE);
    OK(aquifer_read_in_place(mapping, MIB, &number, 8));
    CHECK(number == number_at(MIB / 8));
    OK(aquifer_read(mapping, 48 * MIB, NULL, 0));
    EXPECT(AQUIFER_ERR_IN_USE, aquifer_close(space));
    OK(aquifer_unmap(mapping));
    printf("%s\n", aquifer_version());
    return 0;
}
