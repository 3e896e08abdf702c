// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// attack: tiers=dram delivery=signal,listener dram=16MiB
//
// Promise: the pager's own memory stays within what it needs, whatever the program does with addresses that it finds.
// Attempt: lock every mapping of /proc/self/maps, one after the other, as LTP's mlock03 does. The address range that is
// reserved for frames is several times as large as the machine's memory: if it were locked, it would fill that memory.
// Broken (exit status 1, or the end by SIGALRM): more than 512 MiB are resident, or one lock takes longer than 2 s.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PRESS = 64 << 20, MAPPINGS_MAX = 4096, RESIDENT_KIB_MAX = 512 << 10 };

static struct { unsigned long start, end; } mappings[MAPPINGS_MAX];

static long resident_kib(void) {
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmRSS: %ld kB", &kib) == 1) break;
    if (status) fclose(status);
    return kib;
}

int main(void) {
    unsigned char *pressure = mmap(0, PRESS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pressure == MAP_FAILED) return 77;
    for (size_t at = 0; at < PRESS; at += 4096) pressure[at] = (unsigned char)(at >> 12) | 1;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    size_t count = 0;
    while (maps && count < MAPPINGS_MAX && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx", &mappings[count].start, &mappings[count].end) == 2) count++;
    if (maps) fclose(maps);
    for (size_t which = 0; which < count; which++) {
        void *start = (void *)mappings[which].start;
        size_t len = mappings[which].end - mappings[which].start;
        alarm(2);
        if (mlock(start, len) == 0) munlock(start, len);
        alarm(0);
        long kib = resident_kib();
        if (kib > RESIDENT_KIB_MAX) {
            fprintf(stderr, "%ld KiB are resident after a lock of %zu KiB\n", kib, len >> 10);
            return 1;
        }
    }
    for (size_t at = 0; at < PRESS; at += 4096)
        if (pressure[at] != ((unsigned char)(at >> 12) | 1)) return 1;
    return 0;
}
