// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/* What the test programs share: checks that say where they failed, and a small space. */

#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aquifer.h"

#define MIB ((size_t)1 << 20)
#define PAGE ((size_t)4096)

#define CHECK(what)                                                                                       \
    do {                                                                                                  \
        if (!(what)) {                                                                                    \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #what, aquifer_error_message()); \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

/* That a call returns this number, and says why if that is an error. */
#define EXPECT(code, call)                                                                                \
    do {                                                                                                  \
        int got_ = (call);                                                                            \
        if (got_ != (code)) {                                                                         \
            fprintf(stderr, "%s:%d: %s is %s, not %s; last error: %s\n", __FILE__, __LINE__, #call,       \
                    aquifer_error_name(got_), #code, aquifer_error_message());                        \
            exit(1);                                                                                      \
        }                                                                                                 \
        if (got_ < 0) {                                                                               \
            const char *why = aquifer_error_message();                                                    \
            CHECK(*why != 0 && strchr(why, '\n') == NULL);                                                \
        }                                                                                                 \
    } while (0)

#define OK(call) EXPECT(AQUIFER_OK, call)

/* The smallest budget over a tier. */
static inline aquifer_space_t small_space(const char *tier, const char *block_size) {
    struct aquifer_options options = AQUIFER_OPTIONS_INIT;
    aquifer_space_t space;
    options.dram = "16MiB";
    options.tiers = &tier;
    options.tiers_count = 1;
    options.block_size = block_size;
    OK(aquifer_open(&options, &space));
    return space;
}

/* The number that `filled` has put at an index. */
static inline uint64_t number_at(size_t index) {
    return (uint64_t)index * 2654435761u + 1;
}

/* A mapping of numbers. */
static inline aquifer_mapping_t filled(aquifer_space_t space, size_t bytes) {
    aquifer_mapping_t mapping;
    void *address;
    size_t index;
    OK(aquifer_map(space, bytes, &mapping));
    OK(aquifer_address(mapping, &address));
    for (index = 0; index < bytes / 8; index++) {
        ((uint64_t *)address)[index] = number_at(index);
    }
    return mapping;
}

/* How much of a mapping has a status. */
static inline size_t bytes_with(aquifer_mapping_t mapping, uint32_t status) {
    size_t len, count, index, bytes = 0, capacity = 4096;
    struct aquifer_status_run *runs = (struct aquifer_status_run *)calloc(capacity, sizeof *runs);
    CHECK(runs != NULL);
    OK(aquifer_length(mapping, &len));
    OK(aquifer_status(mapping, 0, len, runs, capacity, &count));
    for (index = 0; index < (count < capacity ? count : capacity); index++) {
        if (runs[index].status == status) {
            bytes += runs[index].len;
        }
    }
    free(runs);
    return bytes;
}

#endif
