// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// What programs do in the guest with far memory (far-nodes.sh):
//
//   far-nodes count PAGES          touches PAGES pages and prints how many are on each node
//   far-nodes fill MIB             fills MIB of memory, verifies it, and prints how many words were wrong, and how
//                                  much the memory files on nodes 0 and 1 have grown
//   far-nodes interleave A B PAGES touches PAGES pages that the kernel interleaves over nodes A and B by its weights,
//                                  and prints how many are on each
//   far-nodes reread MIB           fills MIB of memory, then verifies it again and again, and prints a line each time
//   far-nodes hold NODE KIB FILE   has KIB of memory on NODE until FILE exists, and prints where it is then

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, NODES = 8, BIND = 2, WEIGHTED_INTERLEAVE = 6, WAIT_US = 100000, WAITS_MAX = 3000 };

static volatile char *map(size_t bytes) {
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) exit(2);
    // A huge page takes one turn of an interleaving, and would count as 512 pages.
    madvise(start, bytes, MADV_NOHUGEPAGE);
    return start;
}

static void count(volatile char *start, size_t pages) {
    long nodes[NODES] = {0}, absent = 0;
    for (size_t page = 0; page < pages; page++) {
        void *address = (void *)(start + page * PAGE);
        int status = -1;
        if (syscall(SYS_move_pages, 0, 1ul, &address, NULL, &status, 0)) exit(3);
        if (status >= 0 && status < NODES) nodes[status]++;
        else absent++;
    }
    printf("pages");
    for (int node = 0; node < 4; node++) printf(" n%d=%ld", node, nodes[node]);
    printf(" absent=%ld\n", absent);
    fflush(stdout);
}

static uint64_t word(size_t at) { return (at + 1) * 0x9e3779b97f4a7c15u; }

/* KiB of memory files on a node. */
static long files_kib(int node) {
    char path[64], line[256];
    long kib = -1;
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", node);
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    while (fgets(line, sizeof line, file))
        if (strstr(line, " Shmem:")) sscanf(strchr(line, ':') + 1, "%ld", &kib);
    fclose(file);
    return kib;
}

static int fill(size_t mib) {
    long before[2] = {files_kib(0), files_kib(1)};
    size_t words = (mib << 20) / 8;
    volatile uint64_t *memory = (volatile uint64_t *)map(mib << 20);
    for (size_t at = 0; at < words; at++) memory[at] = word(at);
    long wrong = 0;
    for (size_t at = 0; at < words; at++) wrong += memory[at] != word(at);
    printf("filled %zu MiB wrong %ld\n", mib, wrong);
    printf("files near %ld KiB far %ld KiB\n", files_kib(0) - before[0], files_kib(1) - before[1]);
    return wrong != 0;
}

static int hold(int node, size_t kib, const char *file) {
    unsigned long mask = 1ul << node;
    volatile char *start = map(kib << 10);
    if (syscall(SYS_mbind, start, kib << 10, BIND, &mask, 64ul, 0)) return 2;
    memset((char *)start, 1, kib << 10);
    puts("holding");
    fflush(stdout);
    for (int waits = 0; access(file, F_OK) && waits < WAITS_MAX; waits++) usleep(WAIT_US);
    count(start, (kib << 10) / PAGE);
    return 0;
}

static int interleave(int one, int other, size_t pages) {
    unsigned long mask = 1ul << one | 1ul << other;
    volatile char *start = map(pages * PAGE);
    if (syscall(SYS_mbind, start, pages * PAGE, WEIGHTED_INTERLEAVE, &mask, 64ul, 0)) return 2;
    for (size_t page = 0; page < pages; page++) start[page * PAGE] = 1;
    count(start, pages);
    return 0;
}

static int reread(size_t mib) {
    size_t words = (mib << 20) / 8;
    volatile uint64_t *memory = (volatile uint64_t *)map(mib << 20);
    for (size_t at = 0; at < words; at++) memory[at] = word(at);
    for (int times = 0; times < WAITS_MAX; times++) {
        for (size_t at = 0; at < words; at++) {
            if (memory[at] == word(at)) continue;
            printf("wrong word %zu\n", at);
            return 1;
        }
        printf("read %d\n", times);
        fflush(stdout);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "count")) {
        size_t pages = strtoul(argv[2], NULL, 10);
        volatile char *start = map(pages * PAGE);
        for (size_t page = 0; page < pages; page++) start[page * PAGE] = 1;
        count(start, pages);
        return 0;
    }
    if (argc == 3 && !strcmp(argv[1], "fill")) return fill(strtoul(argv[2], NULL, 10));
    if (argc == 5 && !strcmp(argv[1], "interleave"))
        return interleave(atoi(argv[2]), atoi(argv[3]), strtoul(argv[4], NULL, 10));
    if (argc == 3 && !strcmp(argv[1], "reread")) return reread(strtoul(argv[2], NULL, 10));
    if (argc == 5 && !strcmp(argv[1], "hold")) return hold(atoi(argv[2]), strtoul(argv[3], NULL, 10), argv[4]);
    return 64;
}
