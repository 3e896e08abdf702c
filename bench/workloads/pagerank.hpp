// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// PageRank by pulling: every vertex sums the contributions of its neighbours, for up to 20 rounds or until the change
// is small.
//
// Each round reads only the previous round's scores (Jacobi), so the scores do not depend on the number of threads.

#pragma once

#include "csr.hpp"

class PageRank {
  public:
    PageRank(const Graph &graph, Memory &memory) : graph_(graph), score_(memory.array<float>(graph.vertices)), given_(memory.array<float>(graph.vertices)) {}

    static uint64_t bytes(const Graph &graph) { return graph.vertices * 8; }

    void run(double tolerance, uint64_t rounds_max) {
        const int64_t n = static_cast<int64_t>(graph_.vertices);
#pragma omp parallel for
        for (int64_t v = 0; v < n; ++v) score_[v] = static_cast<float>(1.0 / static_cast<double>(n));
        for (rounds_ = 0; rounds_ < rounds_max;) {
            change_ = round(true);
            ++rounds_;
            if (change_ < tolerance) break;
        }
    }

    uint64_t rounds() const { return rounds_; }

    // One more round must change the scores less than the last one did: the iteration is a contraction by the damping
    // factor.
    bool verify() {
        const double next = round(false);
        return std::isfinite(next) && next <= DAMPING * change_ + 1e-5;
    }

    uint64_t checksum() const {
        uint64_t sum = 0;
#pragma omp parallel for reduction(+ : sum)
        for (int64_t v = 0; v < static_cast<int64_t>(graph_.vertices); ++v) {
            uint32_t bits;
            std::memcpy(&bits, &score_[v], sizeof bits);
            sum += checksum_term(v, bits);
        }
        return sum;
    }

  private:
    static constexpr double DAMPING = 0.85;

    double round(bool keep) {
        const int64_t n = static_cast<int64_t>(graph_.vertices);
        const float base = static_cast<float>((1.0 - DAMPING) / static_cast<double>(n));
        double change = 0;
#pragma omp parallel for
        for (int64_t v = 0; v < n; ++v) given_[v] = graph_.degree(v) == 0 ? 0.0f : score_[v] / static_cast<float>(graph_.degree(v));
#pragma omp parallel for reduction(+ : change) schedule(dynamic, 16384)
        for (int64_t v = 0; v < n; ++v) {
            float gathered = 0;
            for (uint64_t e = graph_.offsets[v]; e < graph_.offsets[v + 1]; ++e) gathered += given_[graph_.neighbours[e]];
            const float fresh = base + static_cast<float>(DAMPING) * gathered;
            change += std::fabs(fresh - score_[v]);
            if (keep) score_[v] = fresh;
        }
        return change;
    }

    const Graph &graph_;
    float *score_, *given_;
    uint64_t rounds_ = 0;
    double change_ = 0;
};
