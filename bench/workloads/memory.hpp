// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Allocates the large arrays of a workload: with malloc, as any program would, or in a shared mapping of a file.
//
// The file variant is the competing approach "mmap a file on the same disk". The file must not exist yet; it is
// unlinked as soon as it is open, so nothing remains however the program exits. With UMap (-DWITH_UMAP), UMap pages the
// file instead of the kernel's page cache, and every array has its own file: UMap 2.1 ignores the offset that it is
// given, so arrays in one file would overlap.

#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "trouble.hpp"

#ifdef WITH_UMAP
#include <umap/umap.h>
#endif

class Memory {
  public:
    // An empty path selects the heap.
    explicit Memory(const std::string &path) : path_(path) {}

    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;

    template <typename T> T *array(uint64_t count) {
        return static_cast<T *>(bytes(count * sizeof(T)));
    }

    // Bytes allocated so far: the program's footprint.
    uint64_t footprint() const { return footprint_; }

  private:
    void *bytes(uint64_t size) {
        footprint_ += size;
        if (path_.empty()) {
            void *memory = std::malloc(size == 0 ? 1 : size);
            if (memory == nullptr) trouble("out of memory: malloc of " + std::to_string(size) + " bytes failed");
            return memory;
        }
        // Every array starts at a 2 MiB boundary of the file, a multiple of every pager's page size.
        const uint64_t grain = 2ull << 20;
        const uint64_t rounded = (size + grain - 1) / grain * grain;
        open_file();
        const int failed = ::posix_fallocate(file_, static_cast<off_t>(file_end_), static_cast<off_t>(rounded));
        if (failed != 0) trouble(std::string("no room for the file of --file: ") + std::strerror(failed));
#ifdef WITH_UMAP
        void *memory = ::umap(nullptr, rounded, PROT_READ | PROT_WRITE, UMAP_PRIVATE, file_, static_cast<off_t>(file_end_));
        if (memory == UMAP_FAILED) trouble("umap failed");
#else
        void *memory = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_SHARED, file_, static_cast<off_t>(file_end_));
        if (memory == MAP_FAILED) trouble(std::string("mmap of --file failed: ") + std::strerror(errno));
#endif
        file_end_ += rounded;
        return memory;
    }

    // Opens the file for the next array: with UMap a new one, otherwise one for all.
    void open_file() {
        int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
#ifdef WITH_UMAP
        flags |= O_DIRECT;
        file_end_ = 0;
#else
        if (file_ >= 0) return;
#endif
        file_ = ::open(path_.c_str(), flags, 0600);
        if (file_ < 0) trouble("cannot create " + path_ + ": " + std::strerror(errno) + " (it must not exist, in a directory that can be written)");
        ::unlink(path_.c_str());
    }

    const std::string path_;
    int file_ = -1;
    uint64_t file_end_ = 0;
    uint64_t footprint_ = 0;
};
