// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// What the kernel alone takes for a fault that a program resolves by itself: exception, SIGBUS, UFFDIO_COPY of 4 KiB,
// and the return; and for taking a page away again, 64 pages with one call. A pager that resolves each
// fault on the faulting thread cannot be cheaper.
//
// Threads touch pages of their own in random order. Every page is checked.

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <csignal>

#include "options.hpp"
#include "permutation.hpp"
#include "result.hpp"

static constexpr uint64_t PAGE = 4096;
// Pages that one call takes away, as many as the pager's worker takes away together.
static constexpr uint64_t BATCH = 64;
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

static int uffd = -1;
// The contents of every page.
static unsigned char *source = nullptr;

[[noreturn]] static void refused(const char *call) {
    std::fprintf(stderr, "kernel_fault: %s: %s\n", call, std::strerror(errno));
    std::exit(1);
}

static void resolve(int, siginfo_t *info, void *) {
    uffdio_copy copy{};
    copy.dst = reinterpret_cast<uint64_t>(info->si_addr) & ~(PAGE - 1);
    copy.src = reinterpret_cast<uint64_t>(source);
    copy.len = PAGE;
    if (::ioctl(uffd, UFFDIO_COPY, &copy) != 0) ::_exit(2);
}

// `bytes` of memory whose missing pages raise SIGBUS.
static unsigned char *registered(uint64_t bytes) {
    void *memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) refused("mmap");
    if (::madvise(memory, bytes, MADV_NOHUGEPAGE) != 0) refused("madvise");
    uffdio_register range{};
    range.range.start = reinterpret_cast<uint64_t>(memory);
    range.range.len = bytes;
    range.mode = UFFDIO_REGISTER_MODE_MISSING;
    if (::ioctl(uffd, UFFDIO_REGISTER, &range) != 0) refused("UFFDIO_REGISTER");
    return static_cast<unsigned char *>(memory);
}

static void open_userfaultfd() {
    uffd = static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));
    if (uffd < 0) refused("userfaultfd");
    uffdio_api api{};
    api.api = UFFD_API;
    api.features = UFFD_FEATURE_SIGBUS;
    if (::ioctl(uffd, UFFDIO_API, &api) != 0) refused("UFFDIO_API");
    struct sigaction action{};
    action.sa_sigaction = resolve;
    action.sa_flags = SA_SIGINFO;
    ::sigfillset(&action.sa_mask);
    if (::sigaction(SIGBUS, &action, nullptr) != 0) refused("sigaction");
}

// Takes the pages away in the order in which they came.
static void drop(int self, unsigned char *memory, const Permutation &order, uint64_t pages) {
    iovec spans[BATCH];
    for (uint64_t first = 0; first < pages; first += BATCH) {
        const uint64_t count = std::min(BATCH, pages - first);
        for (uint64_t at = 0; at < count; ++at) spans[at] = {memory + order.forward(first + at) * PAGE, PAGE};
        const long dropped = ::syscall(SYS_process_madvise, self, spans, count, MADV_DONTNEED, 0);
        if (dropped == static_cast<long>(count * PAGE)) continue;
        // Before Linux 6.13 this call does not take the advice.
        for (uint64_t at = 0; at < count; ++at)
            if (::madvise(spans[at].iov_base, PAGE, MADV_DONTNEED) != 0) refused("madvise");
    }
}

int main(int argc, char **argv) {
    const Options options(argc, argv, "kernel_fault: the kernel's part of a fault that the program resolves by itself.",
                          {{"pages", "20000", "pages of each thread"},
                           {"rounds", "5", "touches of each page"},
                           {"threads", "1", "threads, each with pages of its own"}});
    const uint64_t pages = options.count("pages", 1, 1 << 24), rounds = options.count("rounds", 1, 1000);
    const int threads = static_cast<int>(options.count("threads", 1, 1024));
    source = static_cast<unsigned char *>(std::aligned_alloc(PAGE, PAGE));
    if (source == nullptr) refused("aligned_alloc");
    std::memset(source, 0x5a, PAGE);
    open_userfaultfd();
    const int self = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
    if (self < 0) refused("pidfd_open");
    const uint64_t len = pages * static_cast<uint64_t>(threads);
    unsigned char *const memory = registered(len * PAGE);
    const Permutation order(pages, 1);

    std::vector<double> fault_us, drop_us;
    uint64_t wrong = 0;
    for (uint64_t round = 0; round < rounds; ++round) {
        const double start = cpu_seconds();
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+ : wrong)
        for (int thread = 0; thread < threads; ++thread) {
            const volatile unsigned char *own = memory + static_cast<uint64_t>(thread) * pages * PAGE;
            for (uint64_t at = 0; at < pages; ++at) wrong += own[order.forward(at) * PAGE] != 0x5a;
        }
        const double touched = cpu_seconds();
#pragma omp parallel for num_threads(threads) schedule(static, 1)
        for (int thread = 0; thread < threads; ++thread)
            drop(self, memory + static_cast<uint64_t>(thread) * pages * PAGE, order, pages);
        const double each = 1e6 / static_cast<double>(len);
        fault_us.push_back((touched - start) * each);
        drop_us.push_back((cpu_seconds() - touched) * each);
    }

    Result result("kernel_fault");
    result.number("threads", static_cast<uint64_t>(threads)).number("faults", len * rounds);
    result.real("drop_us", median_of(drop_us));
    result.figure("fault_us", median_of(fault_us), "us", false);
    return result.print(wrong == 0);
}
