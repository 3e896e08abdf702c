// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/* Evicts memory, and waits for that. Programs define _GNU_SOURCE first, for usleep(3). */

#ifndef EVICT_H
#define EVICT_H

#include <unistd.h>

#include "check.h"

/* Evicts all of a mapping to its tier. */
static inline void evict_all(aquifer_mapping_t mapping) {
    size_t len, tries;
    OK(aquifer_length(mapping, &len));
    for (tries = 0; bytes_with(mapping, AQUIFER_STORED) < len; tries++) {
        CHECK(tries < 60000);
        /* A hint may be dropped. */
        if (tries % 4000 == 0) {
            OK(aquifer_evict(mapping, 0, len));
        }
        usleep(1000);
    }
    /* The eviction looks at the range once more, and would take back what arrives meanwhile. */
    usleep(200000);
}

#endif
