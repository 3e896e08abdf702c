// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Touches memory block by block in random order, one word in each block, and then rests.
//
// Each touch is timed separately, so that its cost is seen as the program sees it. A touch that takes longer than
// `--slow-us` has missed: an access to a resident page takes a fraction of a microsecond, even with a page-table walk.
// The order is random, so that nothing can be read ahead. Every word read is checked. While the program rests, it
// measures the CPU time that its process uses, as /proc/self/stat counts it, in ticks.

#include <unistd.h>

#include <ctime>

#include "memory.hpp"
#include "options.hpp"
#include "permutation.hpp"
#include "result.hpp"

static uint64_t cpu_ticks() {
    std::ifstream stat("/proc/self/stat");
    std::string text((std::istreambuf_iterator<char>(stat)), std::istreambuf_iterator<char>());
    // After the name, which may contain spaces: state is field 3, utime and stime are 14 and 15.
    const char *at = std::strrchr(text.c_str(), ')');
    if (at == nullptr) trouble("/proc/self/stat cannot be read");
    unsigned long long user = 0, system = 0;
    if (std::sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system) != 2) trouble("/proc/self/stat has another form");
    return user + system;
}

static void rest(double seconds) {
    const auto whole = static_cast<time_t>(seconds);
    timespec left{whole, static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
    while (::nanosleep(&left, &left) != 0 && errno == EINTR) {}
}

int main(int argc, char **argv) {
    const Options options(argc, argv, "touch: one touch of each block in random order, then rest.",
                          {{"bytes", "256MiB", "bytes of the array"},
                           {"block", "128KiB", "one touch in each block of this many bytes"},
                           {"warm", "1", "rounds over all blocks before those that are measured"},
                           {"rounds", "2", "measured rounds over all blocks"},
                           {"slow-us", "1", "a touch that takes longer has missed"},
                           {"settle", "0", "seconds of rest that do not count"},
                           {"rest", "0", "seconds of rest in which CPU time is counted"},
                           {"seed", "1", "seed of the order"},
                           {"file", "", "put the array into a shared mapping of this new file"},
                           {"footprint", nullptr, "print the bytes of the array and exit"}});
    const uint64_t block = options.size("block");
    if (block < 4096 || block % 4096 != 0) usage_error("--block must be a multiple of 4KiB");
    const uint64_t blocks = options.size("bytes") / block, words = block / 8;
    if (blocks < 2) usage_error("--bytes holds fewer than two blocks");
    const uint64_t warm = options.count("warm", 0, 1000), rounds = options.count("rounds", 0, 1000);
    const double slow_us = options.real("slow-us", 0.1, 1e6);
    const double settle = options.real("settle", 0, 3600), resting = options.real("rest", 0, 3600);
    if (rounds == 0 && resting == 0) usage_error("nothing to measure: --rounds and --rest are both 0");
    if (options.has("footprint")) return std::printf("%" PRIu64 "\n", blocks * block), 0;

    Memory memory(options.text("file"));
    uint64_t *const array = memory.array<uint64_t>(blocks * words);
    // No two pages are equal and none is zero, so a pager has to store every page.
    for (uint64_t word = 0; word < blocks * words; ++word) array[word] = mix64(word) | 1;

    uint64_t wrong = 0, checksum = 0;
    std::vector<float> missed;
    missed.reserve(rounds * blocks);
    double seconds = 0;
    for (uint64_t round = 0; round < warm + rounds; ++round) {
        const Permutation order(blocks, options.count("seed", 0, UINT64_MAX) + round);
        for (uint64_t i = 0; i < blocks; ++i) {
            const uint64_t at = order.forward(i), word = at * words + mix64(at + round) % words;
            const double begin = seconds_now();
            const uint64_t seen = *static_cast<volatile uint64_t *>(array + word);
            const double us = (seconds_now() - begin) * 1e6;
            wrong += seen != (mix64(word) | 1);
            checksum += checksum_term(round, checksum_term(at, seen));
            if (round < warm) continue;
            seconds += us * 1e-6;
            if (us > slow_us) missed.push_back(static_cast<float>(us));
        }
    }

    uint64_t ticks = 0;
    double cpu = 0;
    if (resting > 0) {
        rest(settle);
        const uint64_t ticks_before = cpu_ticks();
        const double cpu_before = cpu_seconds();
        rest(resting);
        cpu = cpu_seconds() - cpu_before;
        ticks = cpu_ticks() - ticks_before;
    }

    std::sort(missed.begin(), missed.end());
    const auto share = [&](double part) { return missed.empty() ? 0.0 : static_cast<double>(missed[static_cast<size_t>(part * static_cast<double>(missed.size() - 1))]); };
    double sum = 0;
    for (const float us : missed) sum += us;
    Result result("touch");
    result.number("footprint_bytes", blocks * block).number("block_bytes", block).number("touches", rounds * blocks);
    result.number("missed", missed.size()).real("missed_mean_us", missed.empty() ? 0 : sum / static_cast<double>(missed.size()));
    result.real("missed_p50_us", share(0.5)).real("missed_p90_us", share(0.9)).real("missed_p99_us", share(0.99));
    result.real("rest_seconds", resting).number("rest_ticks", ticks).real("rest_cpu_us", cpu * 1e6).checksum(checksum);
    if (rounds > 0) result.figure("touches", static_cast<double>(rounds * blocks) / seconds, "touches/s", true);
    return result.print(wrong == 0);
}
