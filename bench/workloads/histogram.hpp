// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Counts times in narrow buckets: any percentile is accurate to one part in 64, whatever the times and their number.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

class Histogram {
  public:
    Histogram() : counts_((64 - FINE_BITS + 1) << FINE_BITS) {}

    void add(uint64_t nanoseconds) {
        ++counts_[bucket(nanoseconds)];
        ++count_;
        max_ = std::max(max_, nanoseconds);
    }

    uint64_t count() const { return count_; }
    double max_us() const { return static_cast<double>(max_) / 1e3; }

    // The smallest time, in microseconds, that `part` of all times do not exceed. Rounded up within its bucket, never
    // down.
    double percentile_us(double part) const {
        const double share = std::ceil(part * static_cast<double>(count_));
        const uint64_t wanted = std::max<uint64_t>(1, static_cast<uint64_t>(share));
        uint64_t seen = 0;
        for (size_t at = 0; at < counts_.size(); ++at)
            if ((seen += counts_[at]) >= wanted) return static_cast<double>(std::min(end_of(at) - 1, max_)) / 1e3;
        return 0;
    }

  private:
    static const int FINE_BITS = 6;

    // Below 64 each value has its own bucket; above, each power of two has 64 buckets.
    static size_t bucket(uint64_t time) {
        if (time < 1ull << FINE_BITS) return time;
        const int shift = 63 - __builtin_clzll(time) - FINE_BITS;
        return (static_cast<size_t>(shift) << FINE_BITS) + (time >> shift);
    }
    static uint64_t end_of(size_t bucket) {
        const size_t shift = bucket < 2ull << FINE_BITS ? 0 : (bucket >> FINE_BITS) - 1;
        return (bucket - (shift << FINE_BITS) + 1) << shift;
    }

    std::vector<uint64_t> counts_;
    uint64_t count_ = 0, max_ = 0;
};
