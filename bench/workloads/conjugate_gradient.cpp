// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Solves A x = b by conjugate gradients (Hestenes and Stiefel 1952), for a sparse, symmetric, positive definite matrix
// without structure, as in the CG benchmark of the NAS Parallel Benchmarks.
//
// A is 1 on the diagonal plus the Laplacian of a random weighted graph, in which EDGES permutations lead from each row
// to another one. All rows have the same number of entries (the format is ELLPACK). The product A p streams the matrix
// and reads p in random order. b is A times a known vector.

#include "memory.hpp"
#include "options.hpp"
#include "permutation.hpp"
#include "result.hpp"

static const int64_t EDGES = 8;
static const int64_t ENTRIES = 2 * EDGES + 1;
// Rows of which one thread forms a partial sum. The partial sums are added in their order, so that the result does not
// depend on the number of threads.
static const int64_t PIECE = 4096;

static uint64_t row_bytes() { return ENTRIES * (sizeof(double) + sizeof(uint32_t)) + 4 * sizeof(double); }

// Calls `sum_of(begin, end)` for each piece of the rows, and adds up what it returns.
template <typename F> static double sum_of_pieces(int64_t rows, F &&sum_of) {
    std::vector<double> sums((rows + PIECE - 1) / PIECE);
#pragma omp parallel for schedule(dynamic, 4)
    for (int64_t piece = 0; piece < static_cast<int64_t>(sums.size()); ++piece) sums[piece] = sum_of(piece * PIECE, std::min((piece + 1) * PIECE, rows));
    double sum = 0;
    for (const double part : sums) sum += part;
    return sum;
}

class Matrix {
  public:
    Matrix(int64_t rows, uint64_t seed, Memory &memory)
        : rows_(rows), values_(memory.array<double>(rows * ENTRIES)), columns_(memory.array<uint32_t>(rows * ENTRIES)) {
        std::vector<Permutation> paths;
        for (int64_t path = 0; path < EDGES; ++path) paths.emplace_back(rows, seed * EDGES + path);
#pragma omp parallel for
        for (int64_t row = 0; row < rows; ++row) fill(row, paths);
    }

    int64_t rows() const { return rows_; }

    // y = A x for the rows of a piece; returns their part of x . y.
    double multiply(const double *x, double *y, int64_t begin, int64_t end) const {
        double product = 0;
        for (int64_t row = begin; row < end; ++row) {
            double sum = 0;
            for (int64_t at = row * ENTRIES; at < (row + 1) * ENTRIES; ++at) sum += values_[at] * x[columns_[at]];
            y[row] = sum;
            product += x[row] * sum;
        }
        return product;
    }

  private:
    // Weights are multiples of 2^-10 between 0.5 and 1.5, so that sums of them are exact.
    static double weight(int64_t path, uint64_t row) {
        return 0.5 + static_cast<double>(mix64(static_cast<uint64_t>(path) << 48 ^ row) % 1024) / 1024.0;
    }

    void fill(int64_t row, const std::vector<Permutation> &paths) {
        double *const values = values_ + row * ENTRIES;
        uint32_t *const columns = columns_ + row * ENTRIES;
        double diagonal = 1;
        for (int64_t path = 0; path < EDGES; ++path) {
            const uint64_t to = paths[path].forward(row), from = paths[path].backward(row);
            const double out = weight(path, row), in = weight(path, from);
            columns[2 * path] = static_cast<uint32_t>(to);
            values[2 * path] = -out;
            columns[2 * path + 1] = static_cast<uint32_t>(from);
            values[2 * path + 1] = -in;
            diagonal += out + in;
        }
        columns[ENTRIES - 1] = static_cast<uint32_t>(row);
        values[ENTRIES - 1] = diagonal;
    }

    int64_t rows_;
    double *values_;
    uint32_t *columns_;
};

class ConjugateGradient {
  public:
    ConjugateGradient(const Matrix &matrix, Memory &memory)
        : matrix_(matrix), rows_(matrix.rows()), x_(memory.array<double>(rows_)), r_(memory.array<double>(rows_)), p_(memory.array<double>(rows_)),
          q_(memory.array<double>(rows_)) {}

    void run(uint64_t iterations) {
        each_row([&](int64_t row) { p_[row] = solution(row); });
        multiply();
        each_row([&](int64_t row) {
            x_[row] = 0;
            r_[row] = p_[row] = q_[row];
        });
        first_ = residual_ = sum_over_rows([&](int64_t row) { return r_[row] * r_[row]; });
        for (uint64_t iteration = 0; iteration < iterations; ++iteration) {
            const double alpha = residual_ / multiply();
            const double next = sum_over_rows([&](int64_t row) {
                x_[row] += alpha * p_[row];
                r_[row] -= alpha * q_[row];
                return r_[row] * r_[row];
            });
            const double beta = next / residual_;
            residual_ = next;
            each_row([&](int64_t row) { p_[row] = r_[row] + beta * p_[row]; });
        }
    }

    // How much smaller the residual's norm became.
    double reduction() const { return std::sqrt(residual_ / first_); }

    // The residual that the iteration carried along must be that of the found x: A times its distance from the known
    // solution. All eigenvalues of A are 1 or more, so a small residual means a small distance. Overwrites p and q.
    bool verify() {
        each_row([&](int64_t row) { p_[row] = solution(row) - x_[row]; });
        multiply();
        const double found = sum_over_rows([&](int64_t row) { return q_[row] * q_[row]; });
        return std::isfinite(found) && std::fabs(found - residual_) <= 1e-12 * first_ && found <= 1e-4 * first_;
    }

    uint64_t checksum() const {
        uint64_t sum = 0;
#pragma omp parallel for reduction(+ : sum)
        for (int64_t row = 0; row < rows_; ++row) {
            uint64_t bits;
            std::memcpy(&bits, &x_[row], sizeof bits);
            sum += checksum_term(row, bits);
        }
        return sum;
    }

  private:
    static double solution(int64_t row) { return static_cast<double>(mix64(row) % 17) - 8.0; }

    // q = A p; returns p . q.
    double multiply() {
        return sum_of_pieces(rows_, [&](int64_t begin, int64_t end) { return matrix_.multiply(p_, q_, begin, end); });
    }

    template <typename F> double sum_over_rows(F &&term) const {
        return sum_of_pieces(rows_, [&](int64_t begin, int64_t end) {
            double sum = 0;
            for (int64_t row = begin; row < end; ++row) sum += term(row);
            return sum;
        });
    }

    template <typename F> void each_row(F &&work) const {
#pragma omp parallel for
        for (int64_t row = 0; row < rows_; ++row) work(row);
    }

    const Matrix &matrix_;
    const int64_t rows_;
    double *const x_, *const r_, *const p_, *const q_;
    double first_ = 0, residual_ = 0;
};

int main(int argc, char **argv) {
    const Options options(argc, argv, "conjugate_gradient: solves a sparse system of equations without structure.",
                          {{"bytes", "1GiB", "bytes of the matrix and of the four vectors together"},
                           {"iterations", "10", "iterations of one trial; with fewer than 8, the result is not yet good enough"},
                           {"trials", "1", "how often to solve it"},
                           {"seed", "1", "of the matrix"},
                           {"file", "", "put matrix and vectors into a shared mapping of this new file"},
                           {"footprint", nullptr, "print the bytes of matrix and vectors and exit"}});
    const uint64_t rows = options.size("bytes") / row_bytes();
    const uint64_t iterations = options.count("iterations", 1, 1000), trials = options.count("trials", 1, 1000), seed = options.count("seed", 0, 1ull << 32);
    if (rows < 2 || rows > UINT32_MAX) usage_error("--bytes: a matrix has 2 to 4294967295 rows of " + std::to_string(row_bytes()) + " bytes");
    if (options.has("footprint")) return std::printf("%" PRIu64 "\n", rows * row_bytes()), 0;

    Memory memory(options.text("file"));
    const double begin = seconds_now();
    const Matrix matrix(static_cast<int64_t>(rows), seed, memory);
    const double setup_seconds = seconds_now() - begin;
    ConjugateGradient solver(matrix, memory);
    std::vector<double> seconds;
    for (uint64_t trial = 0; trial < trials; ++trial) {
        const double start = seconds_now();
        solver.run(iterations);
        seconds.push_back(seconds_now() - start);
    }
    const uint64_t checksum = solver.checksum();
    const double reduction = solver.reduction();

    Result result("conjugate_gradient");
    result.number("footprint_bytes", memory.footprint()).number("rows", rows).number("entries", rows * ENTRIES).number("iterations", iterations);
    result.real("setup_seconds", setup_seconds).real("reduction", reduction).reals("seconds", seconds).checksum(checksum);
    result.figure("cg", median_of(seconds), "s", false);
    return result.print(solver.verify());
}
