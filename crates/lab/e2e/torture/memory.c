// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/* The guarantees of malloc and mmap: contents survive growing, memory is zero where the interface says so, and holes
 * affect nothing around them. */

#include "torture.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void zeros(const unsigned char *start, size_t len, const char *what) {
    for (size_t at = 0; at < len; at++)
        if (start[at] != 0)
            wrong("%s: byte %zu of %zu is 0x%02x, must be zero", what, at, len, start[at]);
}

static __thread struct area allocated, mapped;

/* Makes a child forget the models, which are in memory shared with its parent: if the child is killed, the parent goes
 * on with them while a grandchild may still run. */
void leave_models(void) { memset(&allocated, 0, sizeof allocated), memset(&mapped, 0, sizeof mapped); }

void allocations(struct luck *luck, size_t largest) {
    size_t len = LINE + below(luck, below(luck, 4) ? 20000 : largest) / LINE * LINE;
    unsigned char *start;
    int zeroed = 0;
    switch (below(luck, 4)) {
    case 0:
        start = calloc(len / LINE, LINE);
        zeroed = 1;
        break;
    case 1: {
        void *aligned = NULL;
        if (posix_memalign(&aligned, (size_t)64 << below(luck, 10), len) != 0)
            broken("posix_memalign");
        start = aligned;
        break;
    }
    default:
        start = malloc(len);
    }
    if (!start)
        broken("malloc");
    if (zeroed)
        zeros(start, len, "calloc");
    area_model(&allocated, start, len);
    write_lines(&allocated, 0, len / LINE, luck);
    for (int turn = 0; turn < 3; turn++) {
        size_t before = len;
        len = below(luck, 2) ? len + below(luck, len) / LINE * LINE : LINE + below(luck, len) / LINE * LINE;
        start = realloc(start, len);
        if (!start)
            broken("realloc");
        /* The model's stamps do not move with the memory: only the start changes. */
        if (len / LINE > allocated.stamps_max) {
            uint32_t *stamps = unmanaged(len / LINE * sizeof *stamps);
            memcpy(stamps, allocated.stamps, before / LINE * sizeof *stamps);
            munmap(allocated.stamps, allocated.stamps_max * sizeof *stamps);
            allocated.stamps = stamps;
            allocated.stamps_max = len / LINE;
        }
        allocated.start = start;
        allocated.len = len < before ? len : before;
        check_area(&allocated, "realloc");
        allocated.len = len;
        if (len > before)
            write_lines(&allocated, before / LINE, (len - before) / LINE, luck);
    }
    check_area(&allocated, "before free");
    free(start);
}

void mappings(struct luck *luck) {
    const size_t page = 4096;
    size_t pages = 20 + below(luck, below(luck, 3) ? 300 : 3000), len = pages * page;
    unsigned char *start = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        broken("mmap");
    area_model(&mapped, start, len);
    zeros(start, len, "fresh mapping");
    write_lines(&mapped, 0, len / LINE, luck);
    size_t from = below(luck, pages - 2) * page, to = from + (1 + below(luck, pages - 1 - from / page)) * page;
    switch (below(luck, 5)) {
    case 0: /* Holes at several places, each of which reads as zeros. */
        for (int turn = 0; turn < 3; turn++) {
            if (madvise(start + from, to - from, MADV_DONTNEED) != 0)
                broken("madvise");
            area_zero(&mapped, from, to);
            check_area(&mapped, "MADV_DONTNEED");
            from = below(luck, pages - 2) * page;
            to = from + (1 + below(luck, 3)) * page;
            to = to > len ? len : to;
        }
        break;
    case 1: /* A hole in the address space. What is around it stays. */
        if (munmap(start + from, to - from) != 0)
            broken("munmap");
        check_lines(&mapped, 0, from / LINE, "before a hole");
        check_lines(&mapped, to / LINE, (len - to) / LINE, "behind a hole");
        write_lines(&mapped, to / LINE, (len - to) / LINE, luck);
        check_lines(&mapped, to / LINE, (len - to) / LINE, "behind a hole, written again");
        munmap(start, from);
        munmap(start + to, len - to);
        return;
    case 2: { /* Protected, left alone for a while, and read again. */
        int rights = below(luck, 2) ? PROT_NONE : PROT_READ;
        if (mprotect(start + from, to - from, rights) != 0)
            broken("mprotect");
        snprintf(done_last, sizeof done_last, ", of which bytes %zu to %zu had rights %d", from, to, rights);
        /* Immediately, or after it has had time to be evicted: a transfer of it may be in progress. */
        for (int turn = (int)below(luck, 2) * 3; turn > 0; turn--)
            allocations(luck, (size_t)8 << 20);
        if (mprotect(start + from, to - from, PROT_READ | PROT_WRITE) != 0)
            broken("mprotect back");
        check_area(&mapped, "after mprotect");
        done_last[0] = 0;
        break;
    }
    case 3: { /* Grown by moving. */
        size_t longer = len + (1 + below(luck, 200)) * page;
        unsigned char *moved = mremap(start, len, longer, MREMAP_MAYMOVE);
        if (moved == MAP_FAILED)
            wrong("mremap fails: %s", strerror(errno));
        mapped.start = start = moved;
        check_area(&mapped, "mremap");
        zeros(start + len, longer - len, "what mremap added");
        len = longer;
        break;
    }
    default: /* A new mapping in the middle of the old one. */
        if (mmap(start + from, to - from, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
            start + from)
            broken("mmap MAP_FIXED");
        area_zero(&mapped, from, to);
        check_area(&mapped, "MAP_FIXED");
        write_lines(&mapped, 0, mapped.len / LINE, luck);
        check_area(&mapped, "MAP_FIXED, written again");
    }
    if (munmap(start, len) != 0)
        broken("munmap");
}
