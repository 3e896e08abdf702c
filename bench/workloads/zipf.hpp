// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Draws ranks that follow Zipf's law, the random numbers for it, and the keys of ranks in YCSB.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "result.hpp"

// Draws ranks 1..n with probability proportional to rank^-exponent, by rejection-inversion
// (Hoermann and Derflinger 1996): no table, no sum over n.
class Zipf {
  public:
    Zipf(uint64_t n, double exponent) : n_(static_cast<double>(n)), s_(exponent) {
        low_ = integral(1.5) - 1.0;
        high_ = integral(n_ + 0.5);
        shortcut_ = 2.0 - inverse(integral(2.5) - std::pow(2.0, -s_));
    }

    template <typename Uniform> uint64_t draw(Uniform uniform) const {
        for (;;) {
            const double u = high_ + uniform() * (low_ - high_);
            const double x = inverse(u);
            const double k = std::min(std::max(std::floor(x + 0.5), 1.0), n_);
            if (k - x <= shortcut_ || u >= integral(k + 0.5) - std::pow(k, -s_)) return static_cast<uint64_t>(k);
        }
    }

  private:
    double integral(double x) const { return s_ == 1.0 ? std::log(x) : (std::pow(x, 1.0 - s_) - 1.0) / (1.0 - s_); }
    double inverse(double y) const {
        return s_ == 1.0 ? std::exp(y) : std::pow(std::max(0.0, 1.0 + y * (1.0 - s_)), 1.0 / (1.0 - s_));
    }
    double n_, s_, low_, high_, shortcut_;
};

// Scrambles ranks as YCSB does (ScrambledZipfianGenerator): ranks are drawn of ten thousand million items, however many
// keys there are, and a rank's key is its FNV-1a hash, as a signed number without its sign, modulo the keys. So several
// ranks share a key, and the most popular key has about 4 % of the requests.
class Scrambled {
  public:
    static constexpr uint64_t ITEMS = 10000000000;
    explicit Scrambled(uint64_t keys) : keys_(keys) {}

    uint64_t key(uint64_t rank) const {
        uint64_t hash = 0xcbf29ce484222325;
        for (int byte = 0; byte < 8; ++byte, rank >>= 8) hash = (hash ^ (rank & 0xff)) * 0x100000001b3;
        const int64_t with_sign = static_cast<int64_t>(hash);
        return (with_sign < 0 ? -static_cast<uint64_t>(with_sign) : static_cast<uint64_t>(with_sign)) % keys_;
    }

  private:
    uint64_t keys_;
};

struct Random {
    uint64_t state;
    uint64_t next() { return mix64(state++); }
    double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
};
