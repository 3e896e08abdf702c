// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Holds an undirected graph as compressed sparse rows, in memory and in a file.
//
// The file is little-endian; the arrays start at page boundaries:
//
// | offset            | bytes     | field      | meaning                                       |
// |-------------------|-----------|------------|-----------------------------------------------|
// | 0                 | 8         | magic      | "CSRGRAPH"                                    |
// | 8                 | 8         | version    | 1                                             |
// | 16                | 8         | vertices   | n                                             |
// | 24                | 8         | edges      | m, directed: each undirected edge twice       |
// | 32                | 8         | scale      | log2 n                                        |
// | 40                | 8         | seed       | of the generator                              |
// | 48                | 8         | checksum   | of both arrays                                |
// | 4096              | 8 (n + 1) | offsets    | row v is neighbours[offsets[v]..offsets[v+1]] |
// | next multiple of 4096 | 4 m   | neighbours | ascending within a row                        |

#pragma once

#include <sys/stat.h>

#include "memory.hpp"
#include "result.hpp"

struct GraphHeader {
    char magic[8];
    uint64_t version, vertices, edges, scale, seed, checksum;
};

static const uint64_t GRAPH_PAGE = 4096;

struct Graph {
    uint64_t vertices = 0, edges = 0, scale = 0;
    uint64_t *offsets = nullptr;
    uint32_t *neighbours = nullptr;

    uint64_t degree(uint64_t v) const { return offsets[v + 1] - offsets[v]; }
    uint64_t offsets_bytes() const { return (vertices + 1) * sizeof(uint64_t); }
    uint64_t neighbours_bytes() const { return edges * sizeof(uint32_t); }
    uint64_t neighbours_at() const { return GRAPH_PAGE + (offsets_bytes() + GRAPH_PAGE - 1) / GRAPH_PAGE * GRAPH_PAGE; }
};

// Mixes words within a 4 KiB piece, then adds up the pieces, so that threads can share the work.
inline uint64_t bytes_checksum(const void *bytes, uint64_t size, uint64_t salt) {
    const char *const begin = static_cast<const char *>(bytes);
    const int64_t pieces = static_cast<int64_t>((size + GRAPH_PAGE - 1) / GRAPH_PAGE);
    uint64_t sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int64_t piece = 0; piece < pieces; ++piece) {
        const uint64_t from = static_cast<uint64_t>(piece) * GRAPH_PAGE, to = std::min(from + GRAPH_PAGE, size);
        uint64_t state = salt;
        for (uint64_t at = from; at < to; at += 8) {
            uint64_t word = 0;
            std::memcpy(&word, begin + at, std::min<uint64_t>(8, to - at));
            state = (state ^ word) * 0x9fb21c651e98df25ull;
            state ^= state >> 32;
        }
        sum += checksum_term(static_cast<uint64_t>(piece), state);
    }
    return sum;
}

inline uint64_t graph_checksum(const Graph &graph) {
    return bytes_checksum(graph.offsets, graph.offsets_bytes(), 1) + bytes_checksum(graph.neighbours, graph.neighbours_bytes(), 2);
}

inline void write_all(int file, const void *bytes, uint64_t size, uint64_t at) {
    const char *from = static_cast<const char *>(bytes);
    while (size > 0) {
        const ssize_t written = ::pwrite(file, from, std::min<uint64_t>(size, 64 << 20), static_cast<off_t>(at));
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) trouble(std::string("cannot write the graph: ") + std::strerror(errno));
        from += written, at += static_cast<uint64_t>(written), size -= static_cast<uint64_t>(written);
    }
}

// Writes to a temporary file next to the target and renames it, so that an interrupted build leaves no partial graph
// under the final name.
inline void save_graph(const Graph &graph, uint64_t seed, const std::string &path) {
    const std::string unfinished = path + ".part";
    const int file = ::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) trouble("cannot create " + unfinished + ": " + std::strerror(errno));
    const GraphHeader header = {{'C', 'S', 'R', 'G', 'R', 'A', 'P', 'H'}, 1, graph.vertices, graph.edges, graph.scale, seed, graph_checksum(graph)};
    write_all(file, &header, sizeof header, 0);
    write_all(file, graph.offsets, graph.offsets_bytes(), GRAPH_PAGE);
    write_all(file, graph.neighbours, graph.neighbours_bytes(), graph.neighbours_at());
    if (::fsync(file) != 0 || ::close(file) != 0) trouble(std::string("cannot write the graph: ") + std::strerror(errno));
    if (::rename(unfinished.c_str(), path.c_str()) != 0) trouble("cannot rename to " + path + ": " + std::strerror(errno));
}

class GraphFile {
  public:
    explicit GraphFile(const std::string &path) : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
        if (file_ < 0) trouble("cannot open the graph " + path + ": " + std::strerror(errno) + " (make it with: graph build --out " + path + ")");
        struct stat status{};
        if (::pread(file_, &header_, sizeof header_, 0) != static_cast<ssize_t>(sizeof header_) || std::memcmp(header_.magic, "CSRGRAPH", 8) != 0 ||
            header_.version != 1 || header_.vertices == 0 || header_.vertices > 1ull << 31 || header_.edges > 1ull << 40 || ::fstat(file_, &status) != 0)
            trouble(path + " is not a graph of this program");
        shape_.vertices = header_.vertices, shape_.edges = header_.edges, shape_.scale = header_.scale;
        if (static_cast<uint64_t>(status.st_size) != shape_.neighbours_at() + shape_.neighbours_bytes()) trouble(path + " is cut short");
    }
    ~GraphFile() { ::close(file_); }
    GraphFile(const GraphFile &) = delete;
    GraphFile &operator=(const GraphFile &) = delete;

    uint64_t checksum() const { return header_.checksum; }
    uint64_t bytes() const { return shape_.offsets_bytes() + shape_.neighbours_bytes(); }
    const Graph &shape() const { return shape_; }

    Graph allocate(Memory &memory) const {
        Graph graph = shape_;
        graph.offsets = memory.array<uint64_t>(graph.vertices + 1);
        graph.neighbours = memory.array<uint32_t>(graph.edges);
        return graph;
    }

    void read(Graph &graph) const {
        read_all(graph.offsets, graph.offsets_bytes(), GRAPH_PAGE);
        read_all(graph.neighbours, graph.neighbours_bytes(), graph.neighbours_at());
    }

  private:
    void read_all(void *bytes, uint64_t size, uint64_t at) const {
        char *to = static_cast<char *>(bytes);
        while (size > 0) {
            const ssize_t got = ::pread(file_, to, size, static_cast<off_t>(at));
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) trouble("cannot read " + path_ + ": " + (got == 0 ? "it ends too early" : std::strerror(errno)));
            to += got, at += static_cast<uint64_t>(got), size -= static_cast<uint64_t>(got);
        }
    }

    std::string path_;
    int file_;
    GraphHeader header_{};
    Graph shape_;
};
