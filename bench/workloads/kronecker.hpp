// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Generates the Graph500 Kronecker graph (A=.57, B=.19, C=.19, 16 edges per vertex) as an undirected simple graph:
// labels shuffled, both directions present, no loops, no duplicates, rows sorted.
//
// Each edge is a function of its number and the seed alone. The edge list is therefore never stored: it is generated
// twice, once to count and once to place, and the graph does not depend on the number of threads.

#pragma once

#include "csr.hpp"
#include "permutation.hpp"

class Kronecker {
  public:
    Kronecker(uint64_t scale, uint64_t seed) : scale_(scale), seed_(mix64(seed)), labels_(1ull << scale, seed + 1) {}

    template <typename Use> void edge(uint64_t number, Use use) const {
        const uint64_t a = probability(0.57), ab = probability(0.57 + 0.19), abc = probability(0.57 + 0.19 + 0.19);
        uint64_t from = 0, to = 0, random = 0;
        for (uint64_t level = 0; level < scale_; ++level) {
            // One 64-bit draw serves two levels, with 32 bits each.
            random = level % 2 == 0 ? mix64(seed_ ^ (number * 32 + level / 2)) : random >> 32;
            const uint64_t r = random & UINT32_MAX;
            from = from << 1 | (r >= ab);
            to = to << 1 | ((r >= a && r < ab) || r >= abc);
        }
        if (from != to) use(labels_.forward(from), labels_.forward(to));
    }

  private:
    static uint64_t probability(double p) { return static_cast<uint64_t>(p * 4294967296.0); }
    uint64_t scale_, seed_;
    Permutation labels_;
};

inline Graph build_kronecker(Memory &memory, uint64_t scale, uint64_t edge_factor, uint64_t seed) {
    Graph graph;
    graph.scale = scale;
    graph.vertices = 1ull << scale;
    const int64_t n = static_cast<int64_t>(graph.vertices), generated = static_cast<int64_t>(edge_factor << scale);
    const Kronecker kronecker(scale, seed);
    std::vector<uint64_t> cursor(n + 1, 0);

#pragma omp parallel for
    for (int64_t e = 0; e < generated; ++e)
        kronecker.edge(e, [&](uint64_t u, uint64_t v) {
            __atomic_fetch_add(&cursor[u], 1, __ATOMIC_RELAXED);
            __atomic_fetch_add(&cursor[v], 1, __ATOMIC_RELAXED);
        });
    uint64_t total = 0;
    for (int64_t v = 0; v <= n; ++v) {
        const uint64_t degree = cursor[v];
        cursor[v] = total;
        total += degree;
    }
    std::vector<uint64_t> begin(cursor);
    uint32_t *const neighbours = memory.array<uint32_t>(total);
#pragma omp parallel for
    for (int64_t e = 0; e < generated; ++e)
        kronecker.edge(e, [&](uint64_t u, uint64_t v) {
            neighbours[__atomic_fetch_add(&cursor[u], 1, __ATOMIC_RELAXED)] = static_cast<uint32_t>(v);
            neighbours[__atomic_fetch_add(&cursor[v], 1, __ATOMIC_RELAXED)] = static_cast<uint32_t>(u);
        });

    graph.offsets = memory.array<uint64_t>(n + 1);
#pragma omp parallel for schedule(dynamic, 4096)
    for (int64_t v = 0; v < n; ++v) {
        uint32_t *const first = neighbours + begin[v], *const last = neighbours + begin[v + 1];
        std::sort(first, last);
        cursor[v] = static_cast<uint64_t>(std::unique(first, last) - first);  // the degree from here on
    }
    // Compacts the rows over the gaps that duplicates left. Rows only move towards the front.
    uint64_t end = 0;
    for (int64_t v = 0; v < n; ++v) {
        graph.offsets[v] = end;
        std::memmove(neighbours + end, neighbours + begin[v], cursor[v] * sizeof(uint32_t));
        end += cursor[v];
    }
    graph.offsets[n] = end;
    graph.edges = end;
    graph.neighbours = neighbours;
    return graph;
}
