// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Reads an array from its first word to its last, in one thread, as fast as memory delivers it.
//
// No two words of a page are equal and no page is zero, so a pager has to store every page. Every word read is checked.

#include "memory.hpp"
#include "options.hpp"
#include "result.hpp"

// An odd factor: a bijection, and cheap, so that the check does not limit the rate.
static uint64_t word_at(uint64_t index) { return index * 0x9e3779b97f4a7c15ull + 1; }

int main(int argc, char **argv) {
    const Options options(argc, argv, "sequential_read: passes over an array, in order.",
                          {{"bytes", "1GiB", "bytes of the array"},
                           {"passes", "2", "measured passes over the array"},
                           {"file", "", "put the array into a shared mapping of this new file"},
                           {"footprint", nullptr, "print the bytes of the array and exit"}});
    const uint64_t words = options.size("bytes") / sizeof(uint64_t);
    if (words == 0) usage_error("--bytes is smaller than one word");
    const uint64_t passes = options.count("passes", 1, 1000);
    if (options.has("footprint")) return std::printf("%" PRIu64 "\n", words * sizeof(uint64_t)), 0;

    Memory memory(options.text("file"));
    uint64_t *const array = memory.array<uint64_t>(words);
    const double begin = seconds_now();
    for (uint64_t index = 0; index < words; ++index) array[index] = word_at(index);
    const double setup_seconds = seconds_now() - begin;

    uint64_t wrong = 0;
    std::vector<double> seconds;
    double total_seconds = 0;
    for (uint64_t pass = 0; pass < passes; ++pass) {
        const double start = seconds_now();
        for (uint64_t index = 0; index < words; ++index) wrong += static_cast<volatile uint64_t *>(array)[index] != word_at(index);
        seconds.push_back(seconds_now() - start);
        total_seconds += seconds.back();
    }
    if (wrong != 0) std::fprintf(stderr, "%" PRIu64 " words are wrong\n", wrong);

    const double bytes = static_cast<double>(words * sizeof(uint64_t));
    Result result("sequential_read");
    result.number("footprint_bytes", words * sizeof(uint64_t)).number("passes", passes).real("setup_seconds", setup_seconds);
    result.real("read_seconds", total_seconds).reals("pass_seconds", seconds).checksum(checksum_term(words, word_at(words)));
    result.figure("read", bytes / median_of(seconds) / 1e9, "GB/s", true);
    return result.print(wrong == 0);
}
