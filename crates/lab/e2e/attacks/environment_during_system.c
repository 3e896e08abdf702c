// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// attack: tiers=dram delivery=signal dram=16MiB limit=30
//
// Promise: the environment that system(3) uses has the entries that descendants need, and the program does not notice
// (see crates/fronts/preload/src/descendants.rs).
// Attempt: the program's environment lacks these entries. One thread waits in system(3), which therefore uses another
// environment than the program's. Meanwhile another thread calls setenv(3); it looks at the environment when the first
// thread and its stack are gone.
// Broken: an entry of the environment is in memory that is gone (1, or a signal); a descendant is not managed (2).
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;
static int status;

/* Overwrites what system(3) had on the stack. */
__attribute__((noinline)) static int overwrite(void) {
    volatile char scrap[64 << 10];
    for (size_t at = 0; at < sizeof scrap; at++) scrap[at] = 'x';
    return scrap[status & 1] == 'x';
}

static void *wait_long(void *command) {
    status = system(command);
    return overwrite() ? NULL : command;
}

int main(void) {
    clearenv();
    setenv("PATH", "/usr/bin:/bin", 1);
    pthread_t thread;
    pthread_create(&thread, NULL, wait_long, "sleep 0.5; test -n \"$LD_PRELOAD\"");
    usleep(200000);
    setenv("MEANWHILE", "1", 1);
    pthread_join(thread, NULL);
    int entries = 0;
    for (char **entry = environ; *entry; entry++, entries++)
        if (strncmp(*entry, "PATH=", 5) && strncmp(*entry, "MEANWHILE=", 10) && strncmp(*entry, "LD_PRELOAD=", 11) &&
            strncmp(*entry, "AQUIFER_CONFIG=", 15))
            return 1;
    if (!getenv("MEANWHILE") || getenv("NONE")) return 1;
    return status ? 2 : 0;
}
