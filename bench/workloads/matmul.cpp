// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Measures a blocked product of square matrices of doubles, C = A B. Threads share the block rows of C.
//
// The entries are small whole numbers, so the product is exact and Freivalds' test (C x = A (B x) for a random x) must
// hold to the last bit.

#include "memory.hpp"
#include "options.hpp"
#include "result.hpp"

static double entry(uint64_t matrix, uint64_t index) { return static_cast<double>(mix64(matrix << 48 ^ index) % 17) - 8.0; }

// y = M x
static std::vector<double> times(const double *matrix, int64_t n, const std::vector<double> &x) {
    std::vector<double> y(n);
#pragma omp parallel for
    for (int64_t i = 0; i < n; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < n; ++j) sum += matrix[i * n + j] * x[j];
        y[i] = sum;
    }
    return y;
}

// Adds the product of a block of A and a block of B to a block of C. Takes four rows at a time, so that each row of B
// is used four times.
static void multiply_block(const double *a, const double *b, double *c, int64_t n, int64_t i0, int64_t i1, int64_t k0, int64_t k1, int64_t j0, int64_t j1) {
    int64_t i = i0;
    for (; i + 4 <= i1; i += 4) {
        double *const c0 = c + i * n, *const c1 = c0 + n, *const c2 = c1 + n, *const c3 = c2 + n;
        for (int64_t k = k0; k < k1; ++k) {
            const double a0 = a[i * n + k], a1 = a[(i + 1) * n + k], a2 = a[(i + 2) * n + k], a3 = a[(i + 3) * n + k];
            const double *const row = b + k * n;
#pragma omp simd
            for (int64_t j = j0; j < j1; ++j) {
                c0[j] += a0 * row[j];
                c1[j] += a1 * row[j];
                c2[j] += a2 * row[j];
                c3[j] += a3 * row[j];
            }
        }
    }
    for (; i < i1; ++i)
        for (int64_t k = k0; k < k1; ++k)
            for (int64_t j = j0; j < j1; ++j) c[i * n + j] += a[i * n + k] * b[k * n + j];
}

int main(int argc, char **argv) {
    const Options options(argc, argv, "matmul: blocked product of two square matrices of doubles.",
                          {{"bytes", "384MiB", "bytes of the three matrices together"},
                           {"block", "256", "side of a block"},
                           {"trials", "1", "how often to multiply"},
                           {"file", "", "put the matrices into a shared mapping of this new file"},
                           {"footprint", nullptr, "print the bytes of the matrices and exit"}});
    const int64_t n = static_cast<int64_t>(std::sqrt(static_cast<double>(options.size("bytes")) / 24.0));
    const int64_t block = static_cast<int64_t>(options.count("block", 4, 1 << 16));
    const uint64_t trials = options.count("trials", 1, 1000);
    if (n < 1) usage_error("--bytes is smaller than one element of each matrix");
    if (options.has("footprint")) return std::printf("%" PRIu64 "\n", static_cast<uint64_t>(n * n) * 24), 0;

    Memory memory(options.text("file"));
    double *const a = memory.array<double>(n * n), *const b = memory.array<double>(n * n), *const c = memory.array<double>(n * n);
    const double begin = seconds_now();
#pragma omp parallel for
    for (int64_t i = 0; i < n * n; ++i) {
        a[i] = entry(1, i);
        b[i] = entry(2, i);
    }
    const double setup_seconds = seconds_now() - begin;

    std::vector<double> seconds;
    for (uint64_t trial = 0; trial < trials; ++trial) {
        const double start = seconds_now();
#pragma omp parallel for schedule(dynamic, 1)
        for (int64_t i0 = 0; i0 < n; i0 += block) {
            const int64_t i1 = std::min(i0 + block, n);
            std::fill(c + i0 * n, c + i1 * n, 0.0);
            for (int64_t k0 = 0; k0 < n; k0 += block)
                for (int64_t j0 = 0; j0 < n; j0 += block)
                    multiply_block(a, b, c, n, i0, i1, k0, std::min(k0 + block, n), j0, std::min(j0 + block, n));
        }
        seconds.push_back(seconds_now() - start);
    }

    std::vector<double> x(n);
    for (int64_t i = 0; i < n; ++i) x[i] = entry(3, i);
    const std::vector<double> left = times(c, n, x), right = times(a, n, times(b, n, x));
    uint64_t checksum = 0;
    for (int64_t i = 0; i < n; ++i) checksum += checksum_term(i, static_cast<uint64_t>(static_cast<int64_t>(left[i])));

    const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
    Result result("matmul");
    result.number("footprint_bytes", static_cast<uint64_t>(n * n) * 24).number("n", n).number("block", block).real("setup_seconds", setup_seconds);
    result.reals("seconds", seconds).checksum(checksum).figure("matmul", flops / median_of(seconds) / 1e9, "GFLOP/s", true);
    return result.print(left == right);
}
