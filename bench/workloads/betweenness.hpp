// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Betweenness centrality from a few sources (Brandes 2001): counts shortest paths level by level outwards, then gathers
// dependencies level by level inwards.
//
// Verification: the dependencies of one source add up to the sum of (distance - 1) over the reached vertices.

#pragma once

#include "csr.hpp"

class Betweenness {
  public:
    Betweenness(const Graph &graph, Memory &memory)
        : graph_(graph), score_(memory.array<float>(graph.vertices)), depth_(memory.array<int32_t>(graph.vertices)), paths_(memory.array<double>(graph.vertices)),
          queue_(memory.array<uint32_t>(graph.vertices)) {}

    static uint64_t bytes(const Graph &graph) { return graph.vertices * 20; }

    void run(const std::vector<uint64_t> &sources) {
#pragma omp parallel for
        for (int64_t v = 0; v < static_cast<int64_t>(graph_.vertices); ++v) score_[v] = 0;
        correct_ = true;
        for (const uint64_t source : sources) {
            outwards(source);
            inwards(source);
        }
    }

    bool verified() const { return correct_; }

    // The level sets are exact; the scores are floats whose last bits depend on the order of additions.
    uint64_t checksum() const { return levels_checksum_; }

  private:
    void outwards(uint64_t source) {
        const int64_t n = static_cast<int64_t>(graph_.vertices);
#pragma omp parallel for
        for (int64_t v = 0; v < n; ++v) {
            depth_[v] = -1;
            paths_[v] = 0;
        }
        depth_[source] = 0;
        paths_[source] = 1;
        queue_[0] = static_cast<uint32_t>(source);
        levels_.assign({0, 1});
        for (int32_t level = 0; levels_[level] < levels_[level + 1]; ++level) {
            uint64_t found = levels_[level + 1];
#pragma omp parallel
            {
                std::vector<uint32_t> mine;
#pragma omp for schedule(dynamic, 64) nowait
                for (int64_t i = static_cast<int64_t>(levels_[level]); i < static_cast<int64_t>(levels_[level + 1]); ++i) {
                    const uint32_t u = queue_[i];
                    for (uint64_t e = graph_.offsets[u]; e < graph_.offsets[u + 1]; ++e) {
                        const uint32_t v = graph_.neighbours[e];
                        int32_t seen = __atomic_load_n(&depth_[v], __ATOMIC_RELAXED);
                        if (seen < 0 && __atomic_compare_exchange_n(&depth_[v], &seen, level + 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
                            mine.push_back(v);
                            seen = level + 1;
                        }
                        if (seen == level + 1) add(&paths_[v], paths_[u]);
                    }
                }
                const uint64_t at = __atomic_fetch_add(&found, mine.size(), __ATOMIC_RELAXED);
                std::copy(mine.begin(), mine.end(), queue_ + at);
            }
            levels_.push_back(found);
        }
    }

    void inwards(uint64_t source) {
        double dependencies = 0, interior = 0;
        uint64_t reached = 0;
        for (int64_t level = static_cast<int64_t>(levels_.size()) - 2; level >= 0; --level) {
            double sum = 0;
#pragma omp parallel for schedule(dynamic, 64) reduction(+ : sum, reached)
            for (int64_t i = static_cast<int64_t>(levels_[level]); i < static_cast<int64_t>(levels_[level + 1]); ++i) {
                const uint32_t u = queue_[i];
                double gathered = 0;
                for (uint64_t e = graph_.offsets[u]; e < graph_.offsets[u + 1]; ++e) {
                    const uint32_t v = graph_.neighbours[e];
                    if (depth_[v] == level + 1) gathered += paths_[v];
                }
                const double dependency = paths_[u] * gathered;
                // From here on, only levels nearer to the source read this entry, and they need this quotient.
                paths_[u] = (1 + dependency) / paths_[u];
                if (u == source) continue;
                score_[u] += static_cast<float>(dependency);
                sum += dependency;
                reached += checksum_term(u, static_cast<uint64_t>(level));
            }
            dependencies += sum;
            if (level > 0) interior += static_cast<double>(level - 1) * static_cast<double>(levels_[level + 1] - levels_[level]);
        }
        levels_checksum_ = mix64(levels_checksum_ ^ reached);
        // The rounding error of long sums of doubles is far below 1e-6.
        correct_ = correct_ && std::fabs(dependencies - interior) <= 1e-6 * std::max(interior, 1.0);
    }

    static void add(double *target, double value) {
        double seen;
        __atomic_load(target, &seen, __ATOMIC_RELAXED);
        double wanted = seen + value;
        while (!__atomic_compare_exchange(target, &seen, &wanted, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) wanted = seen + value;
    }

    const Graph &graph_;
    float *score_;
    int32_t *depth_;
    double *paths_;  // shortest paths from the source; on the way back (1 + dependency) / paths
    uint32_t *queue_;
    std::vector<uint64_t> levels_;  // queue_[levels_[d]..levels_[d+1]] are the vertices at distance d
    uint64_t levels_checksum_ = 0;
    bool correct_ = true;
};
