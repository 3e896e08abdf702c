// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Measures sustained bandwidth with the four kernels of McCalpin's STREAM: copy c=a, scale b=s*c, add c=a+b, triad
// a=b+s*c.
//
// Bytes are counted as STREAM counts them (two or three arrays per kernel, no write-allocate); the rate of a kernel is
// its best over all iterations but the first. `stream_static` (-DSTATIC_BYTES=...) has its arrays in .bss, as the
// original does.

#include "memory.hpp"
#include "options.hpp"
#include "result.hpp"

#ifdef STATIC_BYTES
static const char *const PROGRAM = "stream_static";
static double static_a[STATIC_BYTES / 24], static_b[STATIC_BYTES / 24], static_c[STATIC_BYTES / 24];
#else
static const char *const PROGRAM = "stream";
#endif

static const double SCALAR = 3.0;

// Every element must have the value that the recurrence gives; the tolerance is STREAM's own for double.
static uint64_t wrong_elements(const double *array, int64_t count, double expected) {
    uint64_t wrong = 0;
#pragma omp parallel for reduction(+ : wrong)
    for (int64_t i = 0; i < count; ++i)
        wrong += !(std::fabs(array[i] - expected) <= 1e-13 * std::fabs(expected));
    return wrong;
}

int main(int argc, char **argv) {
    const Options options(argc, argv, "stream: copy, scale, add and triad over three arrays of doubles.",
                          {{"bytes", "1GiB", "bytes of the three arrays together"},
                           {"iterations", "10", "times that each kernel runs; the first is not counted"},
                           {"file", "", "put the arrays into a shared mapping of this new file"},
                           {"footprint", nullptr, "print the bytes of the arrays and exit"}});
    const uint64_t bytes = options.size("bytes");
    const int iterations = static_cast<int>(options.count("iterations", 2, 1000));
    const int64_t count = static_cast<int64_t>(bytes / (3 * sizeof(double)));
    if (count < 1) usage_error("--bytes is smaller than one element of each array");
    if (options.has("footprint")) return std::printf("%" PRIu64 "\n", static_cast<uint64_t>(count) * 24), 0;

    Memory memory(options.text("file"));
#ifdef STATIC_BYTES
    if (!options.text("file").empty()) usage_error("--file does not go with static arrays");
    if (count > STATIC_BYTES / 24) usage_error("--bytes is more than the static arrays hold, " + std::to_string(STATIC_BYTES) + " bytes");
    double *const a = static_a, *const b = static_b, *const c = static_c;
#else
    double *const a = memory.array<double>(count), *const b = memory.array<double>(count), *const c = memory.array<double>(count);
#endif

    const double begin = seconds_now();
#pragma omp parallel for
    for (int64_t i = 0; i < count; ++i) {
        a[i] = 1.0;
        b[i] = 2.0;
        c[i] = 0.0;
    }
    const double setup_seconds = seconds_now() - begin;

    std::vector<double> seconds[4];
    double expected_a = 1.0, expected_b = 2.0, expected_c = 0.0;
    for (int k = 0; k < iterations; ++k) {
        double marks[5];
        marks[0] = seconds_now();
#pragma omp parallel for
        for (int64_t i = 0; i < count; ++i) c[i] = a[i];
        marks[1] = seconds_now();
#pragma omp parallel for
        for (int64_t i = 0; i < count; ++i) b[i] = SCALAR * c[i];
        marks[2] = seconds_now();
#pragma omp parallel for
        for (int64_t i = 0; i < count; ++i) c[i] = a[i] + b[i];
        marks[3] = seconds_now();
#pragma omp parallel for
        for (int64_t i = 0; i < count; ++i) a[i] = b[i] + SCALAR * c[i];
        marks[4] = seconds_now();
        expected_c = expected_a;
        expected_b = SCALAR * expected_c;
        expected_c = expected_a + expected_b;
        expected_a = expected_b + SCALAR * expected_c;
        for (int kernel = 0; k > 0 && kernel < 4; ++kernel) seconds[kernel].push_back(marks[kernel + 1] - marks[kernel]);
    }

    const uint64_t wrong = wrong_elements(a, count, expected_a) + wrong_elements(b, count, expected_b) + wrong_elements(c, count, expected_c);
    if (wrong != 0) std::fprintf(stderr, "%" PRIu64 " elements are wrong\n", wrong);

    const char *const names[4] = {"copy", "scale", "add", "triad"};
    const int arrays[4] = {2, 2, 3, 3};
    Result result(PROGRAM);
    result.number("footprint_bytes", static_cast<uint64_t>(count) * 24).number("iterations", iterations).real("setup_seconds", setup_seconds);
    double best[4];
    for (int kernel = 0; kernel < 4; ++kernel) {
        const double moved = static_cast<double>(arrays[kernel]) * sizeof(double) * static_cast<double>(count);
        best[kernel] = moved / *std::min_element(seconds[kernel].begin(), seconds[kernel].end()) / 1e9;
        const std::string name = names[kernel];
        result.real((name + "_best_gb_s").c_str(), best[kernel]);
        result.real((name + "_median_gb_s").c_str(), moved / median_of(seconds[kernel]) / 1e9);
        result.reals((name + "_seconds").c_str(), seconds[kernel]);
    }
    uint64_t bits = 0;
    std::memcpy(&bits, &expected_a, sizeof bits);
    result.checksum(checksum_term(static_cast<uint64_t>(count), bits));
    result.figure("triad", best[3], "GB/s", true);
    return result.print(wrong == 0);
}
