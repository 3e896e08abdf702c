// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Measures memory itself: the latency of dependent loads (idle), the bandwidth at a mix of reads and writes, or the
// latency while other threads read and write with a delay between their requests (loaded).
//
// The memory comes from one NUMA node, if one is named, and a sample of its pages is looked up to make sure. The
// threads run on the CPUs of one node, if one is named. Every hop and every word that is read is verified.

#include <sched.h>
#include <sys/syscall.h>
#include <time.h>

#include <atomic>

#include "memory.hpp"
#include "options.hpp"
#include "permutation.hpp"
#include "result.hpp"

static constexpr uint64_t LINE = 64, BLOCK = 4096, WORDS = BLOCK / 8;
// The requests between two delays.
static constexpr uint64_t BURST = 1024;

struct alignas(64) Line {
    uint64_t next, place, unused[6];
};

static uint64_t word_at(uint64_t block, uint64_t word) { return block * WORDS + word; }

// Memory of the given node, or from wherever the kernel takes it. Huge pages, so that the latency is that of memory and
// not that of page tables.
static void *memory_on(const std::string &node, uint64_t bytes) {
    const uint64_t rounded = (bytes + (2ull << 20) - 1) & ~((2ull << 20) - 1);
    void *const start = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) trouble("out of memory: mmap of " + std::to_string(rounded) + " bytes failed");
    ::madvise(start, rounded, MADV_HUGEPAGE);
    if (node.empty()) return start;
    const unsigned long number = std::strtoul(node.c_str(), nullptr, 10), mask = number < 64 ? 1ul << number : 0;
    if (::syscall(SYS_mbind, start, rounded, 2 /* MPOL_BIND */, &mask, 65ul, 0ul) != 0)
        trouble("no memory from node " + node + ": " + std::strerror(errno));
    return start;
}

// How many of a sample of pages are not on the node.
static uint64_t pages_elsewhere(const std::string &node, char *start, uint64_t bytes) {
    if (node.empty()) return 0;
    uint64_t elsewhere = 0;
    const uint64_t step = std::max<uint64_t>(BLOCK, bytes / 1024 / BLOCK * BLOCK);
    for (uint64_t at = 0; at + BLOCK <= bytes; at += step) {
        void *page = start + at;
        int status = -1;
        if (::syscall(SYS_move_pages, 0, 1ul, &page, nullptr, &status, 0) != 0) trouble("move_pages failed");
        elsewhere += status != std::atoi(node.c_str());
    }
    return elsewhere;
}

// Runs this thread, and those that it starts, on the CPUs of a list such as 0-3,8.
static void run_on(const std::string &list) {
    if (list.empty()) return;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    std::istringstream parts(list);
    for (std::string part; std::getline(parts, part, ',');) {
        char *rest = nullptr;
        const unsigned long first = std::strtoul(part.c_str(), &rest, 10);
        const unsigned long last = *rest == '-' ? std::strtoul(rest + 1, &rest, 10) : first;
        if (part.empty() || *rest != '\0' || last < first || last >= CPU_SETSIZE) usage_error("--cpus: '" + list + "' is not a list such as 0-3,8");
        for (unsigned long cpu = first; cpu <= last; ++cpu) CPU_SET(cpu, &cpus);
    }
    if (::sched_setaffinity(0, sizeof cpus, &cpus) != 0) trouble("no such CPUs: " + list + ": " + std::strerror(errno));
}

// One random cycle over all lines.
static void link(Line *lines, uint64_t count, uint64_t seed) {
    const Permutation order(count, seed);
#pragma omp parallel for
    for (int64_t place = 0; place < static_cast<int64_t>(count); ++place) {
        const uint64_t next = static_cast<uint64_t>(place) + 1 == count ? 0 : place + 1;
        Line &line = lines[order.forward(place)];
        line.next = order.forward(next);
        line.place = place;
    }
}

// Walks the cycle until `seconds` have passed. Returns hops, wrong ones, and the time.
struct Walk {
    uint64_t hops = 0, wrong = 0;
    double seconds = 0;
};
static Walk walk(const Line *lines, uint64_t count, uint64_t from, double seconds) {
    Walk walk;
    uint64_t at = from, place = lines[from].place;
    const double start = seconds_now();
    do {
        for (int hop = 0; hop < 1024; ++hop) {
            const volatile Line &line = lines[at];
            const uint64_t next = line.next;
            walk.wrong += line.place != place;
            place = place + 1 == count ? 0 : place + 1;
            at = next < count ? next : 0;
        }
        walk.hops += 1024;
        walk.seconds = seconds_now() - start;
    } while (walk.seconds < seconds);
    return walk;
}

static void delay(uint64_t ns) {
    if (ns == 0) return;
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    const uint64_t end = now.tv_sec * 1000000000ull + now.tv_nsec + ns;
    do ::clock_gettime(CLOCK_MONOTONIC, &now);
    while (now.tv_sec * 1000000000ull + now.tv_nsec < end);
}

// Reads and writes a thread's blocks, so many of each in turn, until told to stop.
struct Traffic {
    uint64_t read_bytes = 0, written_bytes = 0, wrong = 0;
};
static Traffic traffic(uint64_t *words, uint64_t blocks, uint64_t reads, uint64_t writes, uint64_t delay_ns, const std::atomic<bool> &stop) {
    Traffic traffic;
    uint64_t turn = 0, block = 0;
    while (!stop.load(std::memory_order_relaxed)) {
        uint64_t *const start = words + block * WORDS;
        for (uint64_t part = 0; part < BLOCK; part += BURST) {
            const uint64_t first = part / 8, last = first + BURST / 8;
            if (turn < reads) {
                uint64_t sum = 0;
                for (uint64_t word = first; word < last; ++word) sum += start[word];
                // The sum of an arithmetic series.
                const uint64_t count = last - first, expected = (word_at(block, first) * 2 + count - 1) * count / 2;
                traffic.wrong += sum != expected;
                traffic.read_bytes += BURST;
            } else {
                for (uint64_t word = first; word < last; ++word) start[word] = word_at(block, word);
                __asm__ volatile("" : : "r"(start) : "memory");
                traffic.written_bytes += BURST;
            }
            delay(delay_ns);
        }
        turn = turn + 1 == reads + writes ? 0 : turn + 1;
        block = block + 1 == blocks ? 0 : block + 1;
    }
    return traffic;
}

int main(int argc, char **argv) {
    const Options options(argc, argv, "memory_speed: the latency and the bandwidth of memory.",
                          {{"measure", "latency", "latency, bandwidth, or loaded: latency while other threads read and write"},
                           {"bytes", "256MiB", "bytes of the working set of each kind of thread"},
                           {"reads", "1", "bandwidth, loaded: how many blocks are read in turn"},
                           {"writes", "0", "and then how many are written"},
                           {"delay", "0", "loaded: nanoseconds between the requests of 1 KiB of a thread"},
                           {"seconds", "0.5", "how long to measure"},
                           {"node", "", "take the memory from this NUMA node"},
                           {"cpus", "", "run on these CPUs, such as 0-3,8"},
                           {"footprint", nullptr, "print the bytes of the arrays and exit"}});
    const std::string measure = options.choice("measure", {"latency", "bandwidth", "loaded"});
    const uint64_t bytes = options.size("bytes"), reads = options.count("reads", 0, 1000), writes = options.count("writes", 0, 1000);
    const uint64_t delay_ns = options.count("delay", 0, 1000000000);
    const double seconds = options.real("seconds", 0.001, 3600);
    const std::string node = options.text("node");
    if (!node.empty() && node.find_first_not_of("0123456789") != std::string::npos) usage_error("--node: '" + node + "' is not a number");
    if (reads + writes == 0) usage_error("--reads and --writes are both 0");
    run_on(options.text("cpus"));
    const bool chases = measure != "bandwidth", moves = measure != "latency";
    const uint64_t threads = static_cast<uint64_t>(omp_get_max_threads());
    // Loaded: one thread chases, all others move; with one CPU, both share it.
    const uint64_t movers = measure == "loaded" ? std::max<uint64_t>(1, threads - 1) : threads;
    const uint64_t lines = bytes / LINE, blocks_each = bytes / BLOCK / movers;
    if (lines < 2 || (moves && blocks_each == 0)) usage_error("--bytes is too small for " + std::to_string(threads) + " threads");
    const uint64_t chased = chases ? lines * LINE : 0, moved = moves ? blocks_each * movers * BLOCK : 0;
    if (options.has("footprint")) return std::printf("%" PRIu64 "\n", chased + moved), 0;

    Line *const cycle = chases ? static_cast<Line *>(memory_on(node, chased)) : nullptr;
    uint64_t *const words = moves ? static_cast<uint64_t *>(memory_on(node, moved)) : nullptr;
    if (chases) link(cycle, lines, 1);
#pragma omp parallel for
    for (int64_t mover = 0; mover < static_cast<int64_t>(moves ? movers : 0); ++mover)
        for (uint64_t block = 0; block < blocks_each; ++block)
            for (uint64_t word = 0; word < WORDS; ++word) words[(mover * blocks_each + block) * WORDS + word] = word_at(block, word);

    Walk walked;
    Traffic all;
    std::atomic<bool> stop{false};
    const double start = seconds_now();
    if (!moves) walked = walk(cycle, lines, 0, seconds);
    if (moves) {
        uint64_t read_bytes = 0, written_bytes = 0, wrong = 0;
#pragma omp parallel num_threads(static_cast <int>(movers + 1)) reduction(+ : read_bytes, written_bytes, wrong)
        if (omp_get_thread_num() == 0) {
            if (chases) {
                walked = walk(cycle, lines, 0, seconds);
            } else {
                const timespec time{static_cast<time_t>(seconds), static_cast<long>((seconds - std::floor(seconds)) * 1e9)};
                ::nanosleep(&time, nullptr);
            }
            stop.store(true);
        } else {
            const uint64_t mover = static_cast<uint64_t>(omp_get_thread_num()) - 1;
            const Traffic one = traffic(words + mover * blocks_each * WORDS, blocks_each, reads, writes, delay_ns, stop);
            read_bytes += one.read_bytes, written_bytes += one.written_bytes, wrong += one.wrong;
        }
        all = {read_bytes, written_bytes, wrong};
    }
    const double elapsed = seconds_now() - start;

    uint64_t elsewhere = 0;
    if (chases) elsewhere += pages_elsewhere(node, reinterpret_cast<char *>(cycle), chased);
    if (moves) elsewhere += pages_elsewhere(node, reinterpret_cast<char *>(words), moved);
    if (elsewhere != 0) std::fprintf(stderr, "%" PRIu64 " pages are not on node %s\n", elsewhere, node.c_str());
    const uint64_t wrong = walked.wrong + all.wrong;
    if (wrong != 0) std::fprintf(stderr, "%" PRIu64 " words are wrong\n", wrong);

    const double rate = static_cast<double>(all.read_bytes + all.written_bytes) / elapsed / 1e9;
    Result result("memory_speed");
    result.text("measure", measure).number("footprint_bytes", chased + moved).real("seconds", elapsed);
    result.number("read_bytes", all.read_bytes).number("written_bytes", all.written_bytes).real("gb_per_second", rate);
    if (chases) {
        const double latency = walked.seconds * 1e9 / static_cast<double>(walked.hops);
        result.figure("latency", latency, "ns", false);
    } else {
        result.figure("bandwidth", rate, "GB/s", true);
    }
    return result.print(wrong == 0 && elsewhere == 0);
}
