// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Measures reads and updates of random records, uniform or Zipf, from many threads.
//
// A record carries a mark derived from its own index, and a count of its updates. Every access checks the mark, and at
// the end the counts must add up to the number of updates: wrong or lost bytes cannot go unnoticed. A permutation
// scatters Zipf ranks over the array, as a hash table scatters its keys.

#include "memory.hpp"
#include "options.hpp"
#include "permutation.hpp"
#include "result.hpp"
#include "zipf.hpp"

static const uint64_t COUNT_BITS = 32, COUNT_MASK = (1ull << COUNT_BITS) - 1;

int main(int argc, char **argv) {
    const Options options(argc, argv, "random_access: reads and updates of random records.",
                          {{"bytes", "1GiB", "bytes of the array"},
                           {"record", "64B", "bytes of one record"},
                           {"distribution", "uniform", "uniform or zipf"},
                           {"exponent", "0.99", "skew of zipf"},
                           {"updates", "50", "per cent of the accesses that update"},
                           {"seconds", "5", "how long to measure"},
                           {"ops", "0", "accesses per thread instead of a time; 0: use --seconds"},
                           {"seed", "1", "seed of the access sequence"},
                           {"threads", "0", "threads; 0: as OpenMP chooses"},
                           {"disjoint", nullptr, "each thread uses a part of the array of its own"},
                           {"file", "", "put the array into a shared mapping of this new file"},
                           {"footprint", nullptr, "print the bytes of the array and exit"}});
    const uint64_t record = options.size("record");
    if (record < 8 || record % 8 != 0) usage_error("--record must be a multiple of 8 bytes");
    const uint64_t count = options.size("bytes") / record, stride = record / 8;
    if (count < 2) usage_error("--bytes holds fewer than two records");
    const bool zipf = options.choice("distribution", {"uniform", "zipf"}) == "zipf";
    const Zipf ranks(count, options.real("exponent", 0.01, 5));
    const uint64_t updates_percent = options.count("updates", 0, 100);
    const uint64_t ops_fixed = options.count("ops", 0, 1ull << 40), seed = options.count("seed", 0, UINT64_MAX);
    const double seconds = options.real("seconds", 0.01, 86400);
    if (const uint64_t threads = options.count("threads", 0, 1024)) omp_set_num_threads(static_cast<int>(threads));
    const bool disjoint = options.has("disjoint");
    if (disjoint && zipf) usage_error("--disjoint is for the uniform distribution");
    if (options.has("footprint")) return std::printf("%" PRIu64 "\n", count * record), 0;

    Memory memory(options.text("file"));
    uint64_t *const words = memory.array<uint64_t>(count * stride);
    const double begin = seconds_now();
#pragma omp parallel for
    for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) {
        words[i * stride] = mix64(i) << COUNT_BITS;
        for (uint64_t w = 1; w < stride; ++w) words[i * stride + w] = static_cast<uint64_t>(i) + w;
    }
    const double setup_seconds = seconds_now() - begin;

    const Permutation scatter(count, 7);
    uint64_t ops = 0, updates = 0, wrong = 0;
    const double start = seconds_now(), cpu_start = cpu_seconds();
#pragma omp parallel reduction(+ : ops, updates, wrong)
    {
        const uint64_t thread = static_cast<uint64_t>(omp_get_thread_num());
        Random random{mix64(seed * 1000003 + thread)};
        const uint64_t parts = disjoint ? static_cast<uint64_t>(omp_get_num_threads()) : 1;
        const uint64_t part = count / parts, first = disjoint ? thread * part : 0;
        for (;;) {
            if (ops_fixed != 0 ? ops >= ops_fixed : (ops % 16 == 0 && seconds_now() - start >= seconds)) break;
            const uint64_t index = zipf ? scatter.forward(ranks.draw([&] { return random.uniform(); }) - 1)
                                        : first + static_cast<uint64_t>((static_cast<unsigned __int128>(random.next()) * part) >> 64);
            uint64_t *const word = words + index * stride;
            uint64_t seen;
            if (random.next() % 100 < updates_percent) {
                seen = __atomic_fetch_add(word, 1, __ATOMIC_RELAXED);
                ++updates;
            } else {
                seen = __atomic_load_n(word, __ATOMIC_RELAXED);
            }
            wrong += (seen >> COUNT_BITS) != (mix64(index) & (UINT64_MAX >> COUNT_BITS));
            ++ops;
        }
    }
    const double elapsed = seconds_now() - start, cpu = cpu_seconds() - cpu_start;

    // More than 2^32 updates of a record would carry into the mark and be reported as wrong, not pass.
    uint64_t counted = 0, checksum = 0;
#pragma omp parallel for reduction(+ : counted, checksum, wrong)
    for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) {
        const uint64_t word = words[i * stride];
        counted += word & COUNT_MASK;
        wrong += (word >> COUNT_BITS) != (mix64(i) & (UINT64_MAX >> COUNT_BITS));
        for (uint64_t w = 1; w < stride; ++w) wrong += words[i * stride + w] != static_cast<uint64_t>(i) + w;
        checksum += checksum_term(i, word >> COUNT_BITS);
    }
    if (wrong != 0 || counted != updates)
        std::fprintf(stderr, "%" PRIu64 " wrong words, %" PRIu64 " updates counted of %" PRIu64 "\n", wrong, counted, updates);

    Result result("random_access");
    result.number("footprint_bytes", count * record).text("distribution", zipf ? "zipf" : "uniform");
    result.number("updates_percent", updates_percent).real("setup_seconds", setup_seconds);
    result.number("ops", ops).number("updates", updates).real("seconds", elapsed);
    result.real("cpu_seconds", cpu).checksum(checksum);
    result.figure("ops", static_cast<double>(ops) / elapsed, "ops/s", true);
    return result.print(wrong == 0 && counted == updates);
}
