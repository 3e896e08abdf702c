// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/* The model: what each line of memory must hold, and loads and stores of all sizes that are checked against it. */

#include "torture.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

uint64_t next(struct luck *luck) {
    uint64_t mixed = luck->state += 0x9e3779b97f4a7c15ull;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
    return mixed ^ (mixed >> 31);
}

uint64_t below(struct luck *luck, uint64_t most) { return next(luck) % most; }

void *unmanaged(size_t len) {
    void *start = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        broken("mmap of the model");
    return start;
}

void area_model(struct area *area, unsigned char *start, size_t len) {
    if (area->stamps_max < len / LINE) {
        if (area->stamps)
            munmap(area->stamps, area->stamps_max * sizeof *area->stamps);
        area->stamps_max = len / LINE;
        area->stamps = unmanaged(area->stamps_max * sizeof *area->stamps);
    }
    memset(area->stamps, 0, area->stamps_max * sizeof *area->stamps);
    area->start = start;
    area->len = len;
}

void area_zero(struct area *area, size_t from, size_t to) {
    memset(area->stamps + from / LINE, 0, (to - from) / LINE * sizeof *area->stamps);
}

void line_bytes(const struct area *area, size_t line, unsigned char out[LINE]) {
    uint32_t stamp = area->stamps[line];
    if (stamp == 0) {
        memset(out, 0, LINE);
        return;
    }
    struct luck bytes = {(uint64_t)stamp << 32 | (uint32_t)line};
    for (int at = 0; at < LINE; at += 8) {
        uint64_t word = next(&bytes);
        memcpy(out + at, &word, 8);
    }
}

/* Stores `LINE` bytes with accesses of one size, sometimes unaligned. */
static void store_line(volatile unsigned char *to, const unsigned char *from, uint64_t how) {
    switch (how % 5) {
    case 0:
        memcpy((void *)to, from, LINE);
        break;
    case 1:
        for (int at = 0; at < LINE; at++)
            to[at] = from[at];
        break;
    case 2:
        for (int at = 0; at < LINE; at += 8)
            memcpy((void *)(to + at), from + at, 8);
        break;
    case 3: /* Words across the natural alignment. */
        to[0] = from[0];
        for (int at = 1; at + 4 < LINE; at += 4) {
            uint32_t word;
            memcpy(&word, from + at, 4);
            memcpy((void *)(to + at), &word, 4);
        }
        for (int at = LINE - 3; at < LINE; at++)
            to[at] = from[at];
        break;
    default: /* From the end to the start, two bytes at a time. */
        for (int at = LINE - 2; at >= 0; at -= 2)
            memcpy((void *)(to + at), from + at, 2);
    }
}

void write_lines(struct area *area, size_t from, size_t count, struct luck *luck) {
    unsigned char bytes[LINE];
    for (size_t line = from; line < from + count; line++) {
        /* Zeroes one line in eight, because the pager treats pages of zeros differently. */
        area->stamps[line] = below(luck, 8) ? (uint32_t)next(luck) | 1 : 0;
        line_bytes(area, line, bytes);
        store_line(area->start + line * LINE, bytes, next(luck));
    }
}

/* How many of `count` lines differ from the model. */
static size_t wrong_lines(const struct area *area, size_t from, size_t count) {
    unsigned char bytes[LINE];
    size_t found = 0;
    for (size_t line = from; line < from + count; line++) {
        line_bytes(area, line, bytes);
        found += memcmp(area->start + line * LINE, bytes, LINE) != 0;
    }
    return found;
}

void check_lines(const struct area *area, size_t from, size_t count, const char *what) {
    unsigned char bytes[LINE];
    for (size_t line = from; line < from + count; line++) {
        line_bytes(area, line, bytes);
        if (memcmp(area->start + line * LINE, bytes, LINE) != 0) {
            unsigned char seen[LINE];
            memcpy(seen, area->start + line * LINE, LINE);
            int at = 0;
            while (at < LINE - 1 && seen[at] == bytes[at])
                at++;
            int zeros = 1;
            for (int byte = 0; byte < LINE; byte++)
                zeros &= seen[byte] == 0;
            wrong("%s: %p + %zu holds 0x%02x, must be 0x%02x%s; %zu of %zu lines of %d bytes are wrong%s", what,
                  (void *)area->start, line * LINE + (size_t)at, seen[at], bytes[at],
                  zeros ? " (the line reads as zeros)" : "", wrong_lines(area, from, count), count,
                  LINE, done_last);
        }
    }
}

void check_area(const struct area *area, const char *what) { check_lines(area, 0, area->len / LINE, what); }

void loads_and_stores(struct area *area, struct luck *luck) {
    size_t lines = area->len / LINE;
    size_t from = below(luck, lines);
    size_t most = below(luck, 4) ? 8 : 4096;
    size_t count = 1 + below(luck, most);
    if (count > lines - from)
        count = lines - from;
    switch (below(luck, 8)) {
    case 0: /* Zero a run. */
        memset(area->start + from * LINE, 0, count * LINE);
        memset(area->stamps + from, 0, count * sizeof *area->stamps);
        break;
    case 1: { /* Stride. */
        size_t stride = 1 + below(luck, 200);
        for (size_t line = from, done = 0; line < lines && done < 200; line += stride, done++) {
            check_lines(area, line, 1, "strided load");
            write_lines(area, line, 1, luck);
        }
        break;
    }
    case 2: case 3: case 4:
        check_lines(area, from, count, "load");
        break;
    default:
        write_lines(area, from, count, luck);
        check_lines(area, from, count, "load after store");
    }
}
