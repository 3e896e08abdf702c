// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/* What can be wrong with the file of a named mapping is an error of its own, and never wrong bytes. */

#define _GNU_SOURCE
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "evict.h"

#define BYTES (4 * MIB)
#define SUPERBLOCKS 2

static char directory[] = "/tmp/aquifer-c-trouble-XXXXXX";

static const char *path_of(const char *name) {
    static char path[128];
    CHECK(snprintf(path, sizeof path, "%s/%s.aquifer", directory, name) > 0);
    return path;
}

static aquifer_space_t space_over(const char *tier) {
    struct aquifer_options options = AQUIFER_OPTIONS_INIT;
    aquifer_space_t space;
    options.dram = "16MiB";
    options.tiers = &tier;
    options.tiers_count = 1;
    options.block_size = "4KiB";
    options.named_in = directory;
    OK(aquifer_open(&options, &space));
    return space;
}

/* Makes a file in which each page begins with a number of its own. */
static void store(const char *name) {
    aquifer_space_t space = space_over("dram:size=16MiB");
    aquifer_mapping_t mapping;
    size_t page;
    OK(aquifer_map_named(space, name, BYTES, &mapping));
    for (page = 0; page < BYTES / PAGE; page++) {
        uint64_t number = number_at(page);
        OK(aquifer_write(mapping, page * PAGE, &number, 8));
    }
    OK(aquifer_snapshot(mapping));
    OK(aquifer_unmap(mapping));
    OK(aquifer_close(space));
}

static unsigned char *load(const char *name, size_t *len) {
    FILE *file = fopen(path_of(name), "rb");
    unsigned char *bytes;
    long end;
    CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0 && (end = ftell(file)) > 0 && fseek(file, 0, SEEK_SET) == 0);
    *len = (size_t)end;
    bytes = (unsigned char *)malloc(*len);
    CHECK(bytes != NULL && fread(bytes, 1, *len, file) == *len && fclose(file) == 0);
    return bytes;
}

static void save(const char *name, const unsigned char *bytes, size_t len, mode_t mode) {
    FILE *file = fopen(path_of(name), "wb");
    CHECK(file != NULL && fwrite(bytes, 1, len, file) == len && fclose(file) == 0);
    CHECK(chmod(path_of(name), mode) == 0);
}

/* The CRC-64 of the NVMe specification, with which a superblock is checked. */
static uint64_t crc_of(const unsigned char *bytes, size_t len) {
    uint64_t crc = UINT64_MAX;
    size_t at, bit;
    for (at = 0; at < len; at++) {
        crc ^= bytes[at];
        for (bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (crc & 1 ? 0x9A6C9329AC4BC9B5u : 0);
        }
    }
    return ~crc;
}

static void files_that_are_not_whole_or_of_another_version(void) {
    aquifer_space_t space = space_over("dram:size=16MiB");
    aquifer_mapping_t mapping = {0};
    unsigned char *bytes;
    size_t len, place;

    store("whole");
    bytes = load("whole", &len);
    save("cut", bytes, 100 * PAGE, 0600);
    EXPECT(AQUIFER_ERR_TRUNCATED, aquifer_map_named(space, "cut", 0, &mapping));
    EXPECT(AQUIFER_ERR_TRUNCATED, aquifer_map_named(space, "cut", BYTES, &mapping));
    save("open", bytes, len, 0644);
    EXPECT(AQUIFER_ERR_REFUSED, aquifer_map_named(space, "open", 0, &mapping));
    for (place = 0; place < SUPERBLOCKS; place++) {
        unsigned char *block = bytes + place * PAGE;
        uint64_t crc;
        block[8] = 9;
        crc = crc_of(block, 56);
        memcpy(block + 56, &crc, 8);
    }
    save("newer", bytes, len, 0600);
    EXPECT(AQUIFER_ERR_VERSION, aquifer_map_named(space, "newer", 0, &mapping));
    CHECK(strchr(aquifer_error_message(), '9') != NULL);
    for (place = 0; place < SUPERBLOCKS; place++) {
        bytes[place * PAGE + 20] ^= 1;
    }
    save("damaged", bytes, len, 0600);
    EXPECT(AQUIFER_ERR_DAMAGED, aquifer_map_named(space, "damaged", 0, &mapping));
    CHECK(mapping.handle == 0);
    free(bytes);
    OK(aquifer_map_named(space, "whole", 0, &mapping));
    OK(aquifer_unmap(mapping));
    OK(aquifer_close(space));
}

static void a_damaged_page_is_lost_and_no_other(void) {
    aquifer_space_t space = space_over("dram:size=16MiB");
    aquifer_mapping_t mapping;
    unsigned char *bytes;
    uint64_t number = number_at(100);
    size_t len, at, page;

    store("disk");
    bytes = load("disk", &len);
    for (at = 0; memcmp(bytes + at, &number, 8) != 0; at += PAGE) {
        CHECK(at + PAGE < len);
    }
    bytes[at + 1000] ^= 1;
    save("disk", bytes, len, 0600);
    free(bytes);
    OK(aquifer_map_named(space, "disk", 0, &mapping));
    for (page = 0; page < BYTES / PAGE; page++) {
        int returned = aquifer_read(mapping, page * PAGE, &number, 8);
        EXPECT(page == 100 ? AQUIFER_ERR_LOST : AQUIFER_OK, returned);
        CHECK(page == 100 || number == number_at(page));
    }
    CHECK(bytes_with(mapping, AQUIFER_LOST) == PAGE);
    /* Everything else can be synced, and the page can be written again. */
    OK(aquifer_write(mapping, 0, &number, 8));
    OK(aquifer_snapshot(mapping));
    OK(aquifer_discard(mapping, 100 * PAGE, PAGE));
    OK(aquifer_write(mapping, 100 * PAGE, &number, 8));
    OK(aquifer_snapshot(mapping));
    OK(aquifer_unmap(mapping));
    OK(aquifer_close(space));
}

/* A sync that includes a change which a tier has lost fails as a whole. */
static void a_sync_of_lost_changes_fails(void) {
    aquifer_space_t space = space_over("failing:corrupt=1:dram:size=16MiB");
    aquifer_mapping_t mapping;
    uint64_t number = 7;

    store("lost");
    OK(aquifer_map_named(space, "lost", 0, &mapping));
    OK(aquifer_write(mapping, 0, &number, 8));
    evict_all(mapping);
    OK(aquifer_write(mapping, MIB, &number, 8));
    EXPECT(AQUIFER_ERR_LOST, aquifer_snapshot(mapping));
    OK(aquifer_sync(mapping, MIB, 8));
    OK(aquifer_unmap(mapping));
    OK(aquifer_map_named(space, "lost", 0, &mapping));
    OK(aquifer_read(mapping, 0, &number, 8));
    CHECK(number == number_at(0));
    OK(aquifer_unmap(mapping));
    OK(aquifer_close(space));
}

static void other_processes(void) {
    aquifer_space_t space = space_over("dram:size=16MiB");
    aquifer_mapping_t mapping, none;
    int status;
    pid_t child;

    store("shared");
    OK(aquifer_map_named(space, "shared", 0, &mapping));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        aquifer_space_t own;
        EXPECT(AQUIFER_ERR_FORKED, aquifer_snapshot(mapping));
        EXPECT(AQUIFER_ERR_FORKED, aquifer_sync(mapping, 0, 8));
        EXPECT(AQUIFER_ERR_FORKED, aquifer_map_named(space, "other", MIB, &none));
        /* In a space of its own, it is any other process. */
        own = space_over("dram:size=16MiB");
        EXPECT(AQUIFER_ERR_ALREADY_OPEN, aquifer_map_named(own, "shared", 0, &none));
        OK(aquifer_close(own));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(aquifer_snapshot(mapping));
    OK(aquifer_unmap(mapping));
    OK(aquifer_close(space));
}

static void limit_files(rlim_t bytes) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

/* By the limit on the size of a file. */
static void a_full_disk(void) {
    aquifer_space_t space = space_over("dram:size=16MiB");
    aquifer_mapping_t mapping;
    unsigned char byte = 0;
    void *address;

    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    OK(aquifer_map_named(space, "full", BYTES, &mapping));
    OK(aquifer_address(mapping, &address));
    memset(address, 1, MIB);
    OK(aquifer_snapshot(mapping));
    limit_files(3 * MIB);
    memset(address, 2, BYTES);
    EXPECT(AQUIFER_ERR_FULL_DISK, aquifer_snapshot(mapping));
    EXPECT(AQUIFER_ERR_FULL_DISK, aquifer_sync(mapping, 0, BYTES));
    OK(aquifer_sync(mapping, 0, PAGE));
    CHECK(((unsigned char *)address)[BYTES - 1] == 2);
    OK(aquifer_unmap(mapping));
    /* The file has what was synced, and nothing else. */
    OK(aquifer_map_named(space, "full", 0, &mapping));
    OK(aquifer_read(mapping, PAGE - 1, &byte, 1));
    CHECK(byte == 2);
    OK(aquifer_read(mapping, PAGE, &byte, 1));
    CHECK(byte == 1);
    limit_files(RLIM_INFINITY);
    OK(aquifer_address(mapping, &address));
    memset(address, 3, BYTES);
    OK(aquifer_snapshot(mapping));
    OK(aquifer_unmap(mapping));
    OK(aquifer_map_named(space, "full", 0, &mapping));
    OK(aquifer_read(mapping, BYTES - 1, &byte, 1));
    CHECK(byte == 3);
    OK(aquifer_unmap(mapping));
    OK(aquifer_close(space));
}

int main(void) {
    char command[64];
    CHECK(crc_of((const unsigned char *)"123456789", 9) == 0xAE8B14860A799888u);
    CHECK(mkdtemp(directory) != NULL);
    files_that_are_not_whole_or_of_another_version();
    a_damaged_page_is_lost_and_no_other();
    a_sync_of_lost_changes_fails();
    other_processes();
    a_full_disk();
    CHECK(snprintf(command, sizeof command, "rm -r %s", directory) > 0 && system(command) == 0);
    return 0;
}
