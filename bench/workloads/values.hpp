// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// The values of a key-value store, whose every byte follows from the key and the version of the value, and the record
// of which versions a read may find.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "result.hpp"

// The versions that a read may find: from `low` to `high`, both included.
struct Window {
    uint32_t low, high;
};

class Values {
  public:
    static const uint64_t BYTES_MIN = 16;

    // `bytes`: the size of one value, a multiple of 8.
    explicit Values(uint64_t bytes) : words_(bytes / sizeof(uint64_t)), expected_(words_) {}

    uint64_t bytes() const { return words_ * sizeof(uint64_t); }

    // Key and version in plain form, then incompressible words. A word is zero only with probability 2^-64.
    const char *of(uint32_t key, uint32_t version) {
        const uint64_t seed = mix64(static_cast<uint64_t>(key) << 32 | version);
        expected_[0] = key + 1ull;
        expected_[1] = version;
        for (uint64_t at = 2; at < words_; ++at) expected_[at] = mix64(seed + at);
        return reinterpret_cast<const char *>(expected_.data());
    }

    // What is wrong with bytes that were read as the value of `key`; empty if they are right.
    std::string wrong(uint32_t key, Window window, const char *data, uint64_t size) {
        if (size != bytes()) return "has " + std::to_string(size) + " bytes";
        uint64_t head[2];
        std::memcpy(head, data, sizeof head);
        const bool in_window = head[0] == key + 1ull && head[1] >= window.low && head[1] <= window.high;
        if (in_window && std::memcmp(data, of(key, static_cast<uint32_t>(head[1])), size) == 0) return "";
        const uint64_t zeros = zero_words(data) * sizeof(uint64_t);
        if (zeros != 0) return "has " + std::to_string(zeros) + " bytes of zeros";
        if (head[0] != key + 1ull) return "does not begin with its key";
        if (in_window) return "has wrong bytes in version " + std::to_string(head[1]);
        const std::string allowed = std::to_string(window.low) + " to " + std::to_string(window.high);
        return "has version " + std::to_string(head[1]) + ", where " + allowed + " may be";
    }

  private:
    uint64_t zero_words(const char *data) const {
        uint64_t zeros = 0;
        for (uint64_t at = 0; at < words_; ++at) {
            uint64_t word;
            std::memcpy(&word, data + at * sizeof word, sizeof word);
            zeros += word == 0;
        }
        return zeros;
    }

    uint64_t words_;
    std::vector<uint64_t> expected_;
};

// For each key, the latest version sent and the oldest version that may still be stored. Several writes of one key may
// be in flight on connections that are not ordered among each other; until all of them are answered, any of them may be
// the last.
class Versions {
  public:
    explicit Versions(uint64_t keys) : keys_(keys) {}

    uint64_t keys() const { return keys_.size(); }

    // Starts a write. Returns its version.
    uint32_t begin(uint32_t key) {
        Key &entry = keys_[key];
        ++entry.issued;
        if (entry.in_flight++ == 0) entry.first = entry.issued;
        return entry.issued;
    }

    // A write of the key is answered: versions older than the first write of its group of concurrent writes are gone.
    void end(uint32_t key) {
        Key &entry = keys_[key];
        --entry.in_flight;
        entry.low = std::max(entry.low, entry.first);
    }

    // The window of a read that is sent and answered now.
    Window window(uint32_t key) const { return {keys_[key].low, keys_[key].issued}; }

    // For each key, the oldest version that may still be stored.
    std::vector<uint32_t> lows() const { return each([](const Key &key) { return key.low; }); }
    // For each key, the latest version that has been sent.
    std::vector<uint32_t> highs() const { return each([](const Key &key) { return key.issued; }); }

  private:
    struct Key {
        uint32_t issued = 0, low = 0, first = 0, in_flight = 0;
    };
    template <typename Member> std::vector<uint32_t> each(Member member) const {
        std::vector<uint32_t> all;
        all.reserve(keys_.size());
        for (const Key &key : keys_) all.push_back(member(key));
        return all;
    }
    std::vector<Key> keys_;
};
