// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Measures dependent loads: each thread walks one random cycle through the array, where the next address is known only
// when the previous load has completed.
//
// A node holds its position in the cycle next to the link, so every hop is verified.

#include "memory.hpp"
#include "options.hpp"
#include "permutation.hpp"
#include "result.hpp"

struct Node {
    uint64_t next;   // index of the node that follows in the cycle
    uint64_t place;  // place of this node in the cycle
};

// For the whole pages of the range.
static void advise_huge(void *start, uint64_t bytes) {
    const uintptr_t page = 4096, first = (reinterpret_cast<uintptr_t>(start) + page - 1) / page * page;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(start) + bytes) / page * page;
    if (first < end && ::madvise(reinterpret_cast<void *>(first), end - first, MADV_HUGEPAGE) != 0)
        trouble(std::string("the kernel refuses huge pages: ") + std::strerror(errno));
}

int main(int argc, char **argv) {
    const Options options(argc, argv, "pointer_chase: a random cycle of dependent loads.",
                          {{"bytes", "1GiB", "bytes of the array"},
                           {"node", "64B", "bytes from one node to the next"},
                           {"seconds", "5", "how long to measure"},
                           {"hops", "0", "hops per thread instead of a time; 0: use --seconds"},
                           {"cold", "0", "bytes of other memory, which is written before the walk and never read"},
                           {"huge", nullptr, "ask the kernel for huge pages for the array (MADV_HUGEPAGE)"},
                           {"seed", "1", "which cycle"},
                           {"file", "", "put the array into a shared mapping of this new file"},
                           {"footprint", nullptr, "print the bytes of the array and exit"}});
    const uint64_t node_bytes = options.size("node");
    if (node_bytes < sizeof(Node) || node_bytes % sizeof(Node) != 0) usage_error("--node must be a multiple of 16 bytes");
    const uint64_t count = options.size("bytes") / node_bytes, stride = node_bytes / sizeof(Node);
    if (count < 2) usage_error("--bytes holds fewer than two nodes");
    const uint64_t hops_fixed = options.count("hops", 0, 1ull << 40);
    const double seconds = options.real("seconds", 0.01, 86400);
    const Permutation order(count, options.count("seed", 0, UINT64_MAX));
    if (options.has("footprint")) return std::printf("%" PRIu64 "\n", count * node_bytes), 0;

    Memory memory(options.text("file"));
    Node *const nodes = memory.array<Node>(count * stride);
    const double begin = seconds_now();
    if (options.has("huge")) advise_huge(nodes, count * node_bytes);
    const uint64_t cold_bytes = options.size("cold");
    char *const cold = memory.array<char>(cold_bytes);
    for (uint64_t at = 0; at < cold_bytes; at += 4096) cold[at] = static_cast<char>(at >> 12);
#pragma omp parallel for
    for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) {
        const uint64_t place = order.backward(i);
        nodes[i * stride] = {order.forward(place + 1 == count ? 0 : place + 1), place};
        for (uint64_t s = 1; s < stride; ++s) nodes[i * stride + s] = {static_cast<uint64_t>(i), s};
    }
    const double setup_seconds = seconds_now() - begin;

    uint64_t hops = 0, wrong = 0;
    const double start = seconds_now();
#pragma omp parallel reduction(+ : hops, wrong)
    {
        // Threads start at positions spread over the cycle, so that no thread warms the cache for the next.
        uint64_t place = count / static_cast<uint64_t>(omp_get_num_threads()) * static_cast<uint64_t>(omp_get_thread_num());
        uint64_t at = order.forward(place);
        for (;;) {
            if (hops_fixed != 0 ? hops >= hops_fixed : (hops % 16 == 0 && seconds_now() - start >= seconds)) break;
            const Node node = nodes[at * stride];
            wrong += node.place != place;
            place = place + 1 == count ? 0 : place + 1;
            at = node.next < count ? node.next : order.forward(place);
            ++hops;
        }
    }
    const double elapsed = seconds_now() - start;

    uint64_t checksum = 0;
#pragma omp parallel for reduction(+ : checksum, wrong)
    for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) {
        checksum += checksum_term(i, nodes[i * stride].next);
        wrong += nodes[i * stride].place != order.backward(i);
    }
    if (wrong != 0) std::fprintf(stderr, "%" PRIu64 " nodes are wrong\n", wrong);

    Result result("pointer_chase");
    result.number("footprint_bytes", count * node_bytes).real("setup_seconds", setup_seconds).number("hops", hops).real("seconds", elapsed);
    result.real("ns_per_hop", elapsed * 1e9 * omp_get_max_threads() / static_cast<double>(hops)).checksum(checksum);
    result.figure("hops", static_cast<double>(hops) / elapsed, "hops/s", true);
    return result.print(wrong == 0);
}
