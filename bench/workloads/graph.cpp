// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Builds Kronecker graphs, loads them, and runs BFS, PageRank and betweenness centrality on them.
//
// `build` writes the finished graph to a file, and the kernels read that file, so that the memory of the build does not
// count as theirs. A trial's time includes neither loading nor verification.

#include "betweenness.hpp"
#include "bfs.hpp"
#include "kronecker.hpp"
#include "options.hpp"
#include "pagerank.hpp"

static int build(const Options &options) {
    const std::string out = options.text("out");
    if (out.empty()) usage_error("build needs --out FILE");
    const uint64_t scale = options.count("scale", 1, 30), seed = options.count("seed", 0, UINT64_MAX);
    Memory memory("");
    const double begin = seconds_now();
    const Graph graph = build_kronecker(memory, scale, options.count("edge-factor", 1, 1024), seed);
    const double built = seconds_now();
    save_graph(graph, seed, out);
    Result result("graph");
    result.text("kernel", "build").number("vertices", graph.vertices).number("edges", graph.edges);
    result.number("footprint_bytes", graph.offsets_bytes() + graph.neighbours_bytes()).real("save_seconds", seconds_now() - built);
    result.checksum(graph_checksum(graph)).figure("build", built - begin, "s", false);
    return result.print(true);
}

// Sources that have neighbours; the same ones for the same seed.
static uint64_t source_of(const Graph &graph, uint64_t seed, uint64_t number) {
    for (uint64_t attempt = 0; attempt < 100000; ++attempt) {
        const uint64_t v = mix64(seed * 0x51ed27 + number * 100003 + attempt) % graph.vertices;
        if (graph.degree(v) > 0) return v;
    }
    trouble("the graph has no edges");
}

struct Trials {
    std::vector<double> seconds;
    uint64_t rounds = 0;  // PageRank: rounds of the last trial
    uint64_t checksum = 0;
    bool verified = true;

    void add(double duration, uint64_t sum, bool correct) {
        seconds.push_back(duration);
        checksum = mix64(checksum ^ sum);
        verified = verified && correct;
    }
};

static Trials run_bfs(const Graph &graph, Memory &memory, uint64_t trials, uint64_t seed) {
    Bfs bfs(graph, memory);
    Trials done;
    for (uint64_t t = 0; t < trials; ++t) {
        const uint64_t source = source_of(graph, seed, t);
        const double begin = seconds_now();
        bfs.run(source);
        const double end = seconds_now();
        // The full verification reads the whole graph again, so only the last trial gets it; the checksum covers the
        // others.
        done.add(end - begin, bfs.checksum(), t + 1 < trials || bfs.verify(source));
    }
    return done;
}

static Trials run_pr(const Graph &graph, Memory &memory, uint64_t trials) {
    PageRank pagerank(graph, memory);
    Trials done;
    for (uint64_t t = 0; t < trials; ++t) {
        const double begin = seconds_now();
        pagerank.run(1e-4, 20);
        const double end = seconds_now();
        done.rounds = pagerank.rounds();
        done.add(end - begin, pagerank.checksum(), t + 1 < trials || pagerank.verify());
    }
    return done;
}

static Trials run_bc(const Graph &graph, Memory &memory, uint64_t trials, uint64_t seed, uint64_t count) {
    Betweenness betweenness(graph, memory);
    Trials done;
    for (uint64_t t = 0; t < trials; ++t) {
        std::vector<uint64_t> sources;
        for (uint64_t i = 0; i < count; ++i) sources.push_back(source_of(graph, seed, t * count + i));
        const double begin = seconds_now();
        betweenness.run(sources);
        const double end = seconds_now();
        done.add(end - begin, betweenness.checksum(), betweenness.verified());
    }
    return done;
}

static Trials run_load(const GraphFile &file, Graph &graph, uint64_t trials) {
    Trials done;
    for (uint64_t t = 0; t < trials; ++t) {
        const double begin = seconds_now();
        file.read(graph);
        const uint64_t sum = graph_checksum(graph);
        done.add(seconds_now() - begin, sum, sum == file.checksum());
    }
    return done;
}

int main(int argc, char **argv) {
    const Options options(argc, argv,
                          "graph: Kronecker graphs of Graph500.\n\n"
                          "  graph build --scale 22 --out FILE    make a graph and write it to a file\n"
                          "  graph bfs|pr|bc|load --graph FILE    run a kernel on it; load = read and checksum\n",
                          {{"scale", "22", "build: log2 of the number of vertices"},
                           {"edge-factor", "16", "build: generated edges per vertex"},
                           {"out", "", "build: where the graph goes"},
                           {"graph", "", "kernels: the graph to read"},
                           {"trials", "3", "kernels: how often to run"},
                           {"seed", "1", "of the graph, or of the choice of sources"},
                           {"sources", "1", "bc: sources of one trial"},
                           {"file", "", "kernels: put the arrays into a shared mapping of this new file"},
                           {"footprint", nullptr, "kernels: print the bytes of the arrays and exit"}});
    if (options.words().size() != 1) usage_error("name one of build, bfs, pr, bc, load");
    const std::string kernel = options.words()[0];
    if (kernel == "build") return build(options);
    if (kernel != "bfs" && kernel != "pr" && kernel != "bc" && kernel != "load") usage_error("'" + kernel + "' is none of build, bfs, pr, bc, load");
    if (options.text("graph").empty()) usage_error(kernel + " needs --graph FILE");
    const uint64_t trials = options.count("trials", 1, 1000), seed = options.count("seed", 0, UINT64_MAX);

    const GraphFile file(options.text("graph"));
    const uint64_t kernel_bytes = kernel == "bfs" ? Bfs::bytes(file.shape()) : kernel == "pr" ? PageRank::bytes(file.shape())
                                : kernel == "bc" ? Betweenness::bytes(file.shape()) : 0;
    if (options.has("footprint")) return std::printf("%" PRIu64 "\n", file.bytes() + kernel_bytes), 0;

    Memory memory(options.text("file"));
    Graph graph = file.allocate(memory);
    const double begin = seconds_now();
    if (kernel != "load") file.read(graph);
    const double load_seconds = seconds_now() - begin;
    const Trials done = kernel == "bfs" ? run_bfs(graph, memory, trials, seed) : kernel == "pr" ? run_pr(graph, memory, trials)
                      : kernel == "bc" ? run_bc(graph, memory, trials, seed, options.count("sources", 1, 64)) : run_load(file, graph, trials);

    Result result("graph");
    result.text("kernel", kernel).number("vertices", graph.vertices).number("edges", graph.edges).number("footprint_bytes", memory.footprint());
    if (kernel == "pr") result.number("rounds", done.rounds);
    if (kernel != "load") result.real("load_seconds", load_seconds);
    result.reals("seconds", done.seconds).checksum(done.checksum).figure(kernel.c_str(), median_of(done.seconds), "s", false);
    return result.print(done.verified);
}
