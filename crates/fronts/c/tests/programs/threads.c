// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/* Threads use handles while another thread closes them: each call succeeds, or fails because the handle is closed or
   the range is pinned. */

#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

#define THREADS 4
#define ROUNDS 60

static _Atomic uint64_t shared_mapping;
static _Atomic uint64_t shared_gather;
static aquifer_space_t space;

static void *use(void *argument) {
    size_t index = (size_t)(uintptr_t)argument;
    while (atomic_load(&shared_mapping) != UINT64_MAX) {
        aquifer_mapping_t mapping = {atomic_load(&shared_mapping)};
        aquifer_gather_t gather = {atomic_load(&shared_gather)};
        uint64_t number = 0;
        int returned = aquifer_read(mapping, index * 8, &number, 8);
        CHECK(returned == AQUIFER_ERR_HANDLE || (returned == AQUIFER_OK && number == number_at(index)));
        returned = aquifer_gather(mapping, 8, &index, 1, &number, 8);
        CHECK(returned == AQUIFER_ERR_HANDLE || (returned == AQUIFER_OK && number == number_at(index)));
        returned = aquifer_gather_poll(gather);
        CHECK(returned == AQUIFER_ERR_HANDLE || returned == AQUIFER_ERR_CLOSED || returned >= 0);
        /* A copy in another thread pins the range until it ends. */
        returned = aquifer_evict(mapping, 0, MIB);
        CHECK(returned == AQUIFER_ERR_HANDLE || returned == AQUIFER_ERR_PINNED || returned == AQUIFER_OK);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    size_t index, round;
    static uint64_t found[64];

    space = small_space("emulated:cmm-h,size=32MiB", "4KiB");
    for (index = 0; index < THREADS; index++) {
        CHECK(pthread_create(&threads[index], NULL, use, (void *)(uintptr_t)(index * 1000)) == 0);
    }
    for (round = 0; round < ROUNDS; round++) {
        aquifer_mapping_t mapping = filled(space, MIB);
        struct aquifer_piece pieces[64];
        aquifer_gather_t gather;
        int returned;
        for (index = 0; index < 64; index++) {
            pieces[index].offset = index * 16000;
            pieces[index].into = &found[index];
            pieces[index].len = 8;
        }
        OK(aquifer_gather_start(mapping, pieces, 64, &gather));
        atomic_store(&shared_gather, gather.handle);
        atomic_store(&shared_mapping, mapping.handle);
        returned = aquifer_gather_wait(gather);
        CHECK(returned == AQUIFER_OK);
        OK(aquifer_gather_close(gather));
        /* The calls of other threads have a share of it. */
        returned = aquifer_unmap(mapping);
        CHECK(returned == AQUIFER_OK || returned == AQUIFER_ERR_PINNED);
        for (index = 0; index < 64; index++) {
            CHECK(found[index] == number_at(index * 2000));
            found[index] = 0;
        }
    }
    atomic_store(&shared_mapping, UINT64_MAX);
    for (index = 0; index < THREADS; index++) {
        CHECK(pthread_join(threads[index], NULL) == 0);
    }
    OK(aquifer_close(space));
    return 0;
}
