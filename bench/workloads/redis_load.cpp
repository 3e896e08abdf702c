// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Loads a private Redis server with values, requests them by Zipf's law, and checks every byte that comes back.
//
// The words after `--` start the server, as in `redis_load -- aquifer run --dram 300MiB --`; without any, it runs
// natively. With --cache, they are all of the command of `aquifer cache`, which is loaded instead. The figure is the number of requests answered per second, measured after all keys have been loaded and a
// warm-up with the same requests. At the end every key is read. With --save, BGSAVE runs while the requests go on, and
// the figure covers these requests; then a native server loads the dump, in which each key must have a value that it
// had when BGSAVE was called.

#include <dirent.h>
#include <sys/stat.h>

#include <iostream>

#include "clients.hpp"
#include "options.hpp"
#include "permutation.hpp"
#include "result.hpp"
#include "zipf.hpp"

// Requests sent at the same time on a connection in unmeasured phases.
static const uint64_t BULK_DEPTH = 32;
// Interval between checks whether the server is still saving.
static const double SAVING_LOOK_SECONDS = 0.1;
static const double SAVING_SECONDS_MAX = 1200;

static const auto nothing = [] {};

// The server's directory: private to this program, and removed at the end with the server's files if this program
// created it.
static std::string directory;
static bool directory_is_new = false;

static void remove_traces() {
    end_server();
    for (const char *name : {SOCKET_NAME, DUMP_NAME, LOG_NAME}) ::unlink(name);
    if (!directory_is_new || ::chdir("/") != 0) return;
    ::rmdir(directory.c_str());
}

static void enter_directory(const std::string &wanted) {
    if (wanted.empty()) {
        const char *temporary = std::getenv("TMPDIR");
        directory = std::string(temporary == nullptr ? "/tmp" : temporary) + "/redis_load.XXXXXX";
        if (::mkdtemp(directory.data()) == nullptr) trouble(directory + " cannot be made: " + std::strerror(errno));
        directory_is_new = true;
    } else {
        directory_is_new = ::mkdir(wanted.c_str(), 0700) == 0;
        directory = wanted;
    }
    char *const real = ::realpath(directory.c_str(), nullptr);
    if (real == nullptr) trouble(directory + ": " + std::strerror(errno));
    directory = real;
    std::free(real);
    start_directory = ::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (::chdir(directory.c_str()) != 0) trouble(directory + ": " + std::strerror(errno));
    if (!directory_is_new && ::access(DUMP_NAME, F_OK) == 0)
        trouble(directory + " holds a dump already; name another --dir");
    std::atexit(remove_traces);
}

// Generates random requests.
class Load {
  public:
    Load(uint64_t keys, double exponent, bool is_scrambled, uint64_t sets_percent, uint64_t seed, Versions &versions)
        : versions_(versions),
          ranks_(is_scrambled ? Scrambled::ITEMS : keys, exponent),
          scatter_(keys, 7),
          scrambled_(keys),
          is_scrambled_(is_scrambled),
          random_{mix64(seed)},
          sets_percent_(sets_percent) {}

    // Scatters ranks over the keys, so that neighbours in memory are not requested equally often.
    bool draw(Request &request) {
        const uint64_t rank = ranks_.draw([&] { return random_.uniform(); }) - 1;
        const uint64_t key = is_scrambled_ ? scrambled_.key(rank) : scatter_.forward(rank);
        request.key = static_cast<uint32_t>(key);
        request.kind = random_.next() % 100 < sets_percent_ ? Request::Set : Request::Get;
        request.window = versions_.window(request.key);
        return true;
    }

  private:
    Versions &versions_;
    const Zipf ranks_;
    const Permutation scatter_;
    const Scrambled scrambled_;
    const bool is_scrambled_;
    Random random_;
    uint64_t sets_percent_;
};

// Requests each key once, in order. `window` gives the versions that a read of a key may find.
template <typename Window>
static void each_key(Clients &clients, uint64_t keys, Request::Kind kind, Counts &counts, Window window) {
    uint64_t next = 0;
    const auto one = [&](Request &request) {
        if (next == keys) return false;
        const uint32_t key = static_cast<uint32_t>(next++);
        request = {kind, key, window(key)};
        return true;
    };
    clients.drive(BULK_DEPTH, true, counts, one, nothing);
}

// The versions that BGSAVE may have saved: for each key those between the call and its answer.
struct Snapshot {
    std::vector<uint32_t> lows, highs;
    double seconds = 0;
};

// Calls BGSAVE and sends requests until it is finished.
static Snapshot save_under(Clients &clients, uint64_t depth, Load &load, Server &server, const Versions &versions,
                           Counts &counts) {
    Snapshot snapshot;
    const double start = seconds_now();
    double looked = 0;
    bool saving = true;
    const auto look = [&] {
        const double now = seconds_now();
        if (!saving || now - looked < SAVING_LOOK_SECONDS) return;
        looked = now;
        if (snapshot.lows.empty()) {
            snapshot.lows = versions.lows();
            server.ask({"BGSAVE"});
            snapshot.highs = versions.highs();
        }
        saving = server.info("persistence", "rdb_bgsave_in_progress") != "0";
        if (now - start > SAVING_SECONDS_MAX) trouble("BGSAVE does not end");
    };
    clients.drive(depth, false, counts, [&](Request &request) { return saving && load.draw(request); }, look);
    snapshot.seconds = seconds_now() - start;
    const std::string status = server.info("persistence", "rdb_last_bgsave_status");
    if (status != "ok") trouble("BGSAVE ends with " + status + ": " + Server::last_words());
    return snapshot;
}

// Reads the dump through a native server.
static Counts read_dump(const std::string &program, uint64_t connections, Versions &versions, Values &values,
                       const Snapshot &snapshot) {
    Counts counts;
    Server server({program}, directory);
    const std::string keys = server.ask({"DBSIZE"});
    if (keys != std::to_string(versions.keys())) {
        std::fprintf(stderr, "the dump has %s keys of %" PRIu64 "\n", keys.c_str(), versions.keys());
        ++counts.wrong;
    }
    Clients clients(connections, versions, values);
    const auto then = [&](uint32_t key) { return Window{snapshot.lows[key], snapshot.highs[key]}; };
    each_key(clients, versions.keys(), Request::Get, counts, then);
    server.end();
    return counts;
}

static void tell(Result &result, const Counts &counts) {
    result.number("gets", counts.gets).number("sets", counts.sets).real("seconds", counts.seconds);
    result.real("p50_us", counts.times.percentile_us(0.5)).real("p99_us", counts.times.percentile_us(0.99));
    result.real("p999_us", counts.times.percentile_us(0.999)).real("max_us", counts.times.max_us());
    result.figure("requests", static_cast<double>(counts.gets + counts.sets) / counts.seconds, "req/s", true);
}

int main(int argc, char **argv) {
    const Options options(argc, argv, "redis_load: Zipf requests to a Redis of its own, under what is behind --.",
                          {{"bytes", "512MiB", "bytes of all values"},
                           {"value", "1KiB", "bytes of one value"},
                           {"exponent", "0.99", "skew of zipf"},
                           {"sets", "10", "per cent of the requests that are SET; the others are GET"},
                           {"connections", "50", "connections"},
                           {"pipeline", "1", "requests that are sent at once on each connection"},
                           {"scrambled", nullptr, "draw keys as YCSB does: of 10^10 ranks, hashed"},
                           {"cores", "0", "CPUs that the server may use; 0 for all"},
                           {"cache", nullptr, "what is behind -- is all of `aquifer cache`, and runs instead of Redis"},
                           {"warmup", "10", "seconds of requests before they count"},
                           {"seconds", "10", "how long to measure"},
                           {"seed", "1", "seed of the requests"},
                           {"server", "redis-server", "the server's program"},
                           {"dir", "", "directory for socket, dump and log [a new one]"},
                           {"save", nullptr, "measure while BGSAVE is under way, and look at the dump"},
                           {"planted", nullptr, "zero a few bytes of one value behind our back: that must be found"},
                           {"footprint", nullptr, "print what it has resident natively with all values, and exit"}});
    const uint64_t value_bytes = options.size("value");
    if (value_bytes < Values::BYTES_MIN || value_bytes % 8 != 0)
        usage_error("--value must be a multiple of 8 bytes, and 16 at least");
    const uint64_t keys = options.size("bytes") / value_bytes;
    if (keys < 2 || keys > UINT32_MAX) usage_error("--bytes holds fewer than two values, or more than 2^32");
    const double exponent = options.real("exponent", 0.01, 5), warmup = options.real("warmup", 0, 86400);
    const double seconds = options.real("seconds", 0.01, 86400);
    const uint64_t sets_percent = options.count("sets", 0, 100), seed = options.count("seed", 0, UINT64_MAX);
    const uint64_t connections = options.count("connections", 1, 1000), depth = options.count("pipeline", 1, 10000);
    const std::string program = options.text("server");
    std::vector<std::string> command = options.has("footprint") ? std::vector<std::string>() : options.words();
    const Server::Kind kind = options.has("cache") && !options.has("footprint") ? Server::Cache : Server::Redis;
    if (kind == Server::Redis) command.push_back(program);
    else if (options.has("save") || options.has("planted")) usage_error("--cache cannot save, and has no planted error");
    else if (command.empty()) usage_error("--cache needs the command of aquifer cache behind --");
    const uint64_t cores = options.count("cores", 0, 1024);

    struct sigaction stopper{};
    stopper.sa_handler = [](int signal) { stop_signal = signal; };
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &stopper, nullptr);
    enter_directory(options.text("dir"));

    Versions versions(keys);
    Values values(value_bytes);
    Load load(keys, exponent, options.has("scrambled"), sets_percent, seed, versions);
    Counts loaded, warm, measured, saving, read, dump;
    Snapshot snapshot;
    Usage usage;
    uint64_t resident_bytes = 0;
    {
        Server server(command, directory, kind, cores);
        Clients clients(connections, versions, values);
        const auto now = [&](uint32_t key) { return versions.window(key); };
        each_key(clients, keys, Request::Set, loaded, now);
        // Redis' own figure (used_memory_rss) is some tenths of a second old.
        resident_bytes = usage_of(server.process()).resident_bytes;
        if (!options.has("footprint")) {
            if (options.has("planted")) server.ask({"SETRANGE", "key:000000000001", "8", std::string(8, '\0')});
            const auto until = [&](double end) {
                return [&, end](Request &request) { return seconds_now() < end && load.draw(request); };
            };
            clients.drive(depth, false, warm, until(seconds_now() + warmup), nothing);
            if (options.has("save")) snapshot = save_under(clients, depth, load, server, versions, saving);
            else clients.drive(depth, false, measured, until(seconds_now() + seconds), nothing);
            each_key(clients, keys, Request::Get, read, now);
            usage = usage_of(server.process());
        }
        server.end();
    }
    if (options.has("footprint")) return std::printf("%" PRIu64 "\n", resident_bytes), 0;
    if (options.has("save")) dump = read_dump(program, connections, versions, values, snapshot);

    const uint64_t wrong = warm.wrong + measured.wrong + saving.wrong + read.wrong + dump.wrong;
    if (wrong != 0) std::fprintf(stderr, "%" PRIu64 " values are wrong, %" PRIu64 " in the dump\n", wrong, dump.wrong);
    Result result("redis_load");
    const uint64_t checked = warm.gets + measured.gets + saving.gets + read.gets + dump.gets;
    result.number("keys", keys).number("value_bytes", value_bytes).real("exponent", exponent);
    result.number("cores", cores).number("sets_percent", sets_percent).number("connections", connections).number("pipeline", depth);
    result.real("load_seconds", loaded.seconds).number("loaded_resident_bytes", resident_bytes);
    result.number("values_checked", checked);
    if (options.has("save")) result.real("save_seconds", snapshot.seconds).number("dump_keys", dump.gets);
    tell(result, options.has("save") ? saving : measured);
    return result.print(wrong == 0, usage);
}
