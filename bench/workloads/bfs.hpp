// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Direction-optimizing breadth-first search (Beamer, Asanovic, Patterson, SC 2012), and the verification of its result.
//
// Runs top down while the frontier is small, bottom up while it is large. ALPHA and BETA are the paper's thresholds.

#pragma once

#include "csr.hpp"

class Bfs {
  public:
    Bfs(const Graph &graph, Memory &memory)
        : graph_(graph), words_((graph.vertices + 63) / 64), parent_(memory.array<int32_t>(graph.vertices)), queue_(memory.array<uint32_t>(graph.vertices)),
          front_(memory.array<uint64_t>(words_)), next_(memory.array<uint64_t>(words_)) {}

    static uint64_t bytes(const Graph &graph) { return graph.vertices * 8 + (graph.vertices + 63) / 64 * 16; }

    void run(uint64_t source) {
        const int64_t n = static_cast<int64_t>(graph_.vertices);
#pragma omp parallel for
        for (int64_t v = 0; v < n; ++v) parent_[v] = -1;
        parent_[source] = static_cast<int32_t>(source);
        queue_[0] = static_cast<uint32_t>(source);
        uint64_t begin = 0, end = 1, unexplored = graph_.edges, scout = graph_.degree(source);
        while (begin < end) {
            if (scout > unexplored / ALPHA) {
                uint64_t awake = end - begin, before;
                clear(front_);
                for (uint64_t i = begin; i < end; ++i) front_[queue_[i] / 64] |= 1ull << queue_[i] % 64;
                do {
                    before = awake;
                    awake = bottom_up();
                    std::swap(front_, next_);
                } while (awake >= before || awake > graph_.vertices / BETA);
                // The queue omits vertices found by bottom-up steps, so it restarts with the last frontier.
                begin = end = 0;
                for (uint64_t w = 0; w < words_; ++w)
                    for (uint64_t bits = front_[w]; bits != 0; bits &= bits - 1) queue_[end++] = static_cast<uint32_t>(w * 64 + static_cast<uint64_t>(__builtin_ctzll(bits)));
                scout = 1;
            } else {
                unexplored -= std::min(unexplored, scout);
                uint64_t found = end;
                scout = top_down(begin, end, found);
                begin = end;
                end = found;
            }
        }
    }

    // Hash of the set of reached vertices: equal for every correct tree of one source.
    uint64_t checksum() const {
        uint64_t sum = 0;
#pragma omp parallel for reduction(+ : sum)
        for (int64_t v = 0; v < static_cast<int64_t>(graph_.vertices); ++v)
            if (parent_[v] >= 0) sum += mix64(v);
        return sum;
    }

    // Graph500's rules: the tree is rooted at the source, every tree edge is an edge of the graph, and no edge of the
    // graph spans more than one level or leaves the reached part. Together they prove that depths are shortest
    // distances.
    bool verify(uint64_t source) const {
        const int64_t n = static_cast<int64_t>(graph_.vertices);
        if (parent_[source] != static_cast<int32_t>(source)) return false;
        std::vector<int32_t> depth(n, -1);
        depth[source] = 0;
        std::vector<uint32_t> chain;
        for (int64_t v = 0; v < n; ++v) {
            uint64_t at = v;
            for (chain.clear(); depth[at] < 0 && parent_[at] >= 0; at = static_cast<uint32_t>(parent_[at])) {
                chain.push_back(static_cast<uint32_t>(at));
                if (chain.size() > graph_.vertices) return false;
            }
            if (depth[at] < 0 && !chain.empty()) return false;
            for (int32_t level = depth[at]; !chain.empty(); chain.pop_back()) depth[chain.back()] = ++level;
        }
        uint64_t wrong = 0;
#pragma omp parallel for reduction(+ : wrong) schedule(dynamic, 1024)
        for (int64_t v = 0; v < n; ++v) {
            bool parent_is_neighbour = parent_[v] < 0 || v == static_cast<int64_t>(source);
            for (uint64_t e = graph_.offsets[v]; e < graph_.offsets[v + 1]; ++e) {
                const uint32_t other = graph_.neighbours[e];
                wrong += (depth[v] < 0) != (depth[other] < 0) || std::abs(depth[v] - depth[other]) > 1;
                parent_is_neighbour |= static_cast<int32_t>(other) == parent_[v];
            }
            wrong += !parent_is_neighbour;
        }
        return wrong == 0;
    }

  private:
    static const uint64_t ALPHA = 15, BETA = 18;

    void clear(uint64_t *bitmap) const { std::memset(bitmap, 0, words_ * 8); }

    uint64_t bottom_up() {
        clear(next_);
        uint64_t awake = 0;
        // Each iteration owns one word of `next_`; a chunk of 16 words covers 1024 vertices.
#pragma omp parallel for reduction(+ : awake) schedule(dynamic, 16)
        for (int64_t w = 0; w < static_cast<int64_t>(words_); ++w) {
            const uint64_t last = std::min<uint64_t>(static_cast<uint64_t>(w) * 64 + 64, graph_.vertices);
            for (uint64_t v = static_cast<uint64_t>(w) * 64; v < last; ++v) {
                if (parent_[v] >= 0) continue;
                for (uint64_t e = graph_.offsets[v]; e < graph_.offsets[v + 1]; ++e) {
                    const uint32_t u = graph_.neighbours[e];
                    if ((front_[u / 64] >> u % 64 & 1) == 0) continue;
                    parent_[v] = static_cast<int32_t>(u);
                    next_[w] |= 1ull << v % 64;
                    ++awake;
                    break;
                }
            }
        }
        return awake;
    }

    uint64_t top_down(uint64_t begin, uint64_t end, uint64_t &found) {
        uint64_t scout = 0;
#pragma omp parallel reduction(+ : scout)
        {
            std::vector<uint32_t> mine;
#pragma omp for schedule(dynamic, 64) nowait
            for (int64_t i = static_cast<int64_t>(begin); i < static_cast<int64_t>(end); ++i) {
                const uint32_t u = queue_[i];
                for (uint64_t e = graph_.offsets[u]; e < graph_.offsets[u + 1]; ++e) {
                    const uint32_t v = graph_.neighbours[e];
                    int32_t unseen = -1;
                    if (__atomic_load_n(&parent_[v], __ATOMIC_RELAXED) < 0 &&
                        __atomic_compare_exchange_n(&parent_[v], &unseen, static_cast<int32_t>(u), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
                        mine.push_back(v);
                        scout += graph_.degree(v);
                    }
                }
            }
            const uint64_t at = __atomic_fetch_add(&found, mine.size(), __ATOMIC_RELAXED);
            std::copy(mine.begin(), mine.end(), queue_ + at);
        }
        return scout;
    }

    const Graph &graph_;
    uint64_t words_;
    int32_t *parent_;
    uint32_t *queue_;
    uint64_t *front_, *next_;
};
