// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Prints the result of a workload as one line of JSON on stdout, and has the arithmetic for it.
//
// Every program says which of its numbers is *the* figure: `"figure":{"name","value","unit","better"}`. A tool that
// compares runs needs to know nothing else about the program.

#pragma once

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

inline double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// CPU time of all threads of this process.
inline double cpu_seconds() {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

inline double median_of(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// The finaliser of splitmix64 (Steele, Lea, Flood 2014): a cheap bijection that spreads every bit.
inline uint64_t mix64(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// The sum of terms does not depend on their order, so that threads may add their parts in any order; each term still
// depends on its position.
inline uint64_t checksum_term(uint64_t position, uint64_t value) { return mix64(position ^ mix64(value)); }

// The kernel's counts for a process.
struct Usage {
    uint64_t resident_bytes = 0, peak_resident_bytes = 0, minor_faults = 0, major_faults = 0;
};

// Resident set (VmRSS), its peak (VmHWM) and faults of a process; zeros if /proc is missing.
inline Usage usage_of(const std::string &process) {
    Usage usage;
    std::string line;
    std::ifstream status("/proc/" + process + "/status");
    while (std::getline(status, line)) {
        if (line.rfind("VmHWM:", 0) == 0) usage.peak_resident_bytes = std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
        if (line.rfind("VmRSS:", 0) == 0) usage.resident_bytes = std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
    }
    // The name of the program is in parentheses and may contain any character; after it, minflt is word 8 and majflt
    // word 10.
    std::ifstream stat("/proc/" + process + "/stat");
    std::getline(stat, line);
    std::istringstream words(line.substr(std::min(line.rfind(')') + 1, line.size())));
    std::string word;
    for (int at = 1; at <= 10 && words >> word; ++at) {
        if (at == 8) usage.minor_faults = std::strtoull(word.c_str(), nullptr, 10);
        if (at == 10) usage.major_faults = std::strtoull(word.c_str(), nullptr, 10);
    }
    return usage;
}

class Result {
  public:
    explicit Result(const std::string &program) { text("program", program); }

    Result &text(const char *name, const std::string &value) { return raw(name, "\"" + value + "\""); }
    Result &number(const char *name, uint64_t value) { return raw(name, std::to_string(value)); }
    Result &real(const char *name, double value) { return raw(name, format(value)); }
    Result &reals(const char *name, const std::vector<double> &values) {
        std::string list;
        for (const double value : values) list += (list.empty() ? "" : ",") + format(value);
        return raw(name, "[" + list + "]");
    }
    Result &checksum(uint64_t value) {
        char digits[32];
        std::snprintf(digits, sizeof digits, "%016" PRIx64, value);
        return text("checksum", digits);
    }
    Result &figure(const char *name, double value, const char *unit, bool higher_is_better) {
        return raw("figure", std::string("{\"name\":\"") + name + "\",\"value\":" + format(value) + ",\"unit\":\"" + unit +
                                 "\",\"better\":\"" + (higher_is_better ? "higher" : "lower") + "\"}");
    }

    // Prints the line and returns the exit code of the program. `usage` is this process's own unless another process
    // did the work.
    int print(bool verified, const Usage &usage = usage_of("self")) {
        number("threads", static_cast<uint64_t>(omp_get_max_threads()));
        number("peak_resident_bytes", usage.peak_resident_bytes);
        number("minor_faults", usage.minor_faults);
        number("major_faults", usage.major_faults);
        raw("verified", verified ? "true" : "false");
        std::printf("{%s}\n", line_.c_str());
        std::fflush(stdout);
        if (!verified) std::fprintf(stderr, "error: the result is wrong\n");
        return verified ? 0 : 1;
    }

  private:
    static std::string format(double value) {
        char digits[40];
        std::snprintf(digits, sizeof digits, "%.9g", value);
        return digits;
    }
    Result &raw(const char *name, const std::string &value) {
        line_ += (line_.empty() ? "\"" : ",\"") + std::string(name) + "\":" + value;
        return *this;
    }
    std::string line_;
};
