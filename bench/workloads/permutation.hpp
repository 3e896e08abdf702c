// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Permutes 0..n-1 without a table: a balanced Feistel network of four rounds, with cycle walking if n is no power of
// four. Both directions cost a few multiplications, so a random cycle through an array can be written in address order.

#pragma once

#include <cstdint>

#include "result.hpp"

class Permutation {
  public:
    Permutation(uint64_t n, uint64_t key) : n_(n), key_(key) {
        while (half_ < 32 && (1ull << (2 * half_)) < n) ++half_;
        mask_ = (1ull << half_) - 1;
    }

    uint64_t forward(uint64_t x) const {
        do {
            uint64_t left = x >> half_, right = x & mask_;
            for (uint64_t round = 0; round < 4; ++round) {
                const uint64_t next = left ^ (spread(right, round) & mask_);
                left = right;
                right = next;
            }
            x = left << half_ | right;
        } while (x >= n_);
        return x;
    }

    uint64_t backward(uint64_t x) const {
        do {
            uint64_t left = x >> half_, right = x & mask_;
            for (uint64_t round = 4; round-- > 0;) {
                const uint64_t before = right ^ (spread(left, round) & mask_);
                right = left;
                left = before;
            }
            x = left << half_ | right;
        } while (x >= n_);
        return x;
    }

  private:
    uint64_t spread(uint64_t value, uint64_t round) const { return mix64(value + (round + 1) * 0x632be59bd9b4e019ull + key_ * 0xd1342543de82ef95ull); }

    uint64_t n_, key_, half_ = 1, mask_;
};
