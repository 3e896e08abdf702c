// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// The only program of a guest: its init. Loads the modules next to it, tests most of the guest's memory and its disk if
// it has one, prints the results to the console, and turns the guest off. With `stay` on the kernel's command line it
// frees the memory and keeps running instead, so that the host can observe what happens to the memory. Statically
// linked, because the guest has no libraries.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / sizeof(uint64_t), MODULES = 16, REQUEST = 1 << 20 };

// Turns the guest off. If there is no ACPI to power off with, QEMU's `-no-reboot` turns a reset into an exit.
static void __attribute__((noreturn)) end(void) {
    sync();
    reboot(RB_POWER_OFF);
    reboot(RB_AUTOBOOT);
    for (;;) pause();
}

// Modules are /0.ko, /1.ko and so on, in load order.
static void load_modules(void) {
    for (int i = 0; i < MODULES; i++) {
        char path[16];
        snprintf(path, sizeof path, "/%d.ko", i);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0) return;
        if (syscall(SYS_finit_module, file, "", 0)) perror(path);
        close(file);
    }
}

// The value of word `at` of page `page` in round `round`: consecutive rounds differ in every bit.
static uint64_t word(uint64_t page, uint64_t at, uint64_t round) {
    uint64_t mixed = (page * WORDS + at + 1) * 0x9e3779b97f4a7c15u;
    return round % 2 ? ~mixed : mixed;
}

static void fill(uint64_t *memory, uint64_t page, uint64_t round) {
    for (uint64_t at = 0; at < WORDS; at++) memory[page * WORDS + at] = word(page, at, round);
}

// How many words of the page are wrong; prints the first one.
static uint64_t wrong(const uint64_t *memory, uint64_t page, uint64_t round) {
    uint64_t count = 0;
    for (uint64_t at = 0; at < WORDS; at++) {
        uint64_t found = memory[page * WORDS + at], wanted = word(page, at, round);
        if (found != wanted && count++ == 0)
            printf("guest: page %llu word %llu is %llx, not %llx\n", (unsigned long long)page, (unsigned long long)at,
                   (unsigned long long)found, (unsigned long long)wanted);
    }
    return count;
}

// Fills the memory; inverts every page, in order; inverts them back, in scattered order; checks all of it.
static uint64_t test(uint64_t *memory, uint64_t pages) {
    uint64_t count = 0;
    for (uint64_t page = 0; page < pages; page++) fill(memory, page, 0);
    for (uint64_t page = 0; page < pages; page++) {
        count += wrong(memory, page, 0);
        fill(memory, page, 1);
    }
    // A prime that does not divide the number of pages, so that every page is visited once.
    uint64_t stride = 7919;
    if (pages % stride == 0) pages--;
    for (uint64_t i = 0; i < pages; i++) {
        uint64_t page = i * stride % pages;
        count += wrong(memory, page, 1);
        fill(memory, page, 2);
    }
    for (uint64_t page = 0; page < pages; page++) count += wrong(memory, page, 2);
    return count;
}

// Writes the first pages, as they are since the last round, to the disk in requests that bypass the guest's page cache,
// overwrites the pages, and reads them back: this tests the machine's own accesses to the guest's memory.
static uint64_t test_disk(int disk, uint64_t *memory, uint64_t len) {
    off_t size = lseek(disk, 0, SEEK_END);
    if (size > 0 && (uint64_t)size < len) len = (uint64_t)size;
    len = len / REQUEST * REQUEST;
    char *bytes = (char *)memory;
    for (uint64_t at = 0; at < len; at += REQUEST)
        if (pwrite(disk, bytes + at, REQUEST, (off_t)at) != REQUEST) return perror("guest: pwrite"), 1;
    for (uint64_t page = 0; page < len / PAGE; page++) fill(memory, page, 3);
    for (uint64_t at = 0; at < len; at += REQUEST)
        if (pread(disk, bytes + at, REQUEST, (off_t)at) != REQUEST) return perror("guest: pread"), 1;
    uint64_t count = 0;
    for (uint64_t page = 0; page < len / PAGE; page++) count += wrong(memory, page, 2);
    printf("guest: wrote and read %llu MiB of its disk\n", (unsigned long long)len >> 20);
    return count;
}

int main(void) {
    mkdir("/proc", 0755);
    mkdir("/dev", 0755);
    mount("proc", "/proc", "proc", 0, NULL);
    mount("dev", "/dev", "devtmpfs", 0, NULL);
    int console = open("/dev/console", O_RDWR);
    if (console >= 0)
        for (int i = 0; i < 3; i++) dup2(console, i);
    setvbuf(stdout, NULL, _IOLBF, 0);
    load_modules();
    struct sysinfo info;
    sysinfo(&info);
    uint64_t len = info.freeram / 100 * 85 / PAGE * PAGE;
    uint64_t *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("guest: mmap");
        end();
    }
    printf("guest: tests %llu MiB of %llu MiB\n", (unsigned long long)len >> 20,
           (unsigned long long)info.totalram >> 20);
    uint64_t count = test(memory, len / PAGE);
    int disk = open("/dev/vda", O_RDWR | O_DIRECT | O_CLOEXEC);
    if (disk >= 0) count += test_disk(disk, memory, len);
    else if (errno != ENOENT) perror("guest: /dev/vda");
    printf("guest: %llu wrong words\n", (unsigned long long)count);
    char line[512] = "";
    int commands = open("/proc/cmdline", O_RDONLY);
    if (commands < 0 || read(commands, line, sizeof line - 1) < 0) perror("guest: /proc/cmdline");
    if (!strstr(line, " stay")) end();
    munmap(memory, len);
    printf("guest: gave its memory back\n");
    for (;;) pause();
}
