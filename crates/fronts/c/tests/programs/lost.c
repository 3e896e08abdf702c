// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/* Memory that a tier loses is an error of every call that copies it, and can be discarded and used again. */

#include "check.h"

int main(void) {
    aquifer_space_t space = small_space("failing:after=200,on=read:dram:size=64MiB", "4KiB");
    aquifer_mapping_t mapping = filled(space, 24 * MIB);
    size_t at, lost = 0, good = 0, first_lost = 0, index;
    uint64_t number;
    struct aquifer_piece piece;
    aquifer_pin_t pin;
    aquifer_fetch_t fetch;
    struct aquifer_range range;
    aquifer_gather_t gather;

    for (at = 0; at < 24 * MIB; at += 4 * PAGE) {
        int returned = aquifer_read(mapping, at, &number, 8);
        if (returned == AQUIFER_OK) {
            CHECK(number == number_at(at / 8));
            good++;
        } else {
            EXPECT(AQUIFER_ERR_LOST, returned);
            first_lost = lost++ == 0 ? at : first_lost;
        }
    }
    CHECK(good > 0 && lost > 0);
    number = 7;
    index = first_lost / 8;
    piece.offset = first_lost;
    piece.into = &number;
    piece.len = 8;
    range.start = first_lost;
    range.len = 8;
    EXPECT(AQUIFER_ERR_LOST, aquifer_read_in_place(mapping, first_lost, &number, 8));
    EXPECT(AQUIFER_ERR_LOST, aquifer_gather(mapping, 8, &index, 1, &number, 8));
    EXPECT(AQUIFER_ERR_LOST, aquifer_gather_pieces(mapping, &piece, 1));
    OK(aquifer_gather_start(mapping, &piece, 1, &gather));
    EXPECT(AQUIFER_ERR_LOST, aquifer_gather_wait(gather));
    EXPECT(AQUIFER_ERR_LOST, aquifer_gather_poll(gather));
    OK(aquifer_gather_close(gather));
    EXPECT(AQUIFER_ERR_LOST, aquifer_pin(mapping, first_lost, 8, &pin));
    EXPECT(AQUIFER_ERR_LOST, aquifer_fetch(mapping, first_lost, 8));
    EXPECT(AQUIFER_ERR_LOST, aquifer_fetch_start(mapping, &range, 1, &fetch));
    EXPECT(AQUIFER_ERR_LOST, aquifer_write(mapping, first_lost, &number, 8));
    CHECK(number == 7 && bytes_with(mapping, AQUIFER_LOST) >= PAGE);
    OK(aquifer_discard(mapping, first_lost, PAGE));
    OK(aquifer_write(mapping, first_lost, &number, 8));
    number = 0;
    OK(aquifer_read(mapping, first_lost, &number, 8));
    CHECK(number == 7);
    OK(aquifer_unmap(mapping));
    OK(aquifer_close(space));
    return 0;
}
