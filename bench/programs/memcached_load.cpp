// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Starts a memcached, stores values of 400 to 1200 bytes in it, reads and changes them by Zipf's law, and checks every
// byte that comes back.

#include <csignal>
#include <string>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "zipf.hpp"

static const uint64_t KEYS = 150000, BATCHES = 20000, BATCH_KEYS = 16;
static const double START_SECONDS_MAX = 60;
static pid_t server = 0;
static char directory[] = "/tmp/memcached_load.XXXXXX";

static void remove_traces() {
    if (server != 0) ::kill(server, SIGTERM), ::waitpid(server, nullptr, 0);
    ::unlink((std::string(directory) + "/socket").c_str());
    ::rmdir(directory);
}

[[noreturn]] static void trouble(const std::string &what) {
    std::fprintf(stderr, "memcached_load: %s\n", what.c_str());
    std::exit(1);
}

static std::string value_of(uint64_t key, uint32_t turn) {
    const uint64_t word = mix64(key * 1000003 + turn);
    char text[17];
    std::snprintf(text, sizeof text, "%016" PRIx64, word);
    std::string value;
    const uint64_t bytes = 400 + mix64(key) % 801;
    while (value.size() < bytes) value += text;
    value.resize(bytes);
    return value;
}

// A connection to the server, with what has been received and not been read.
class Connection {
  public:
    explicit Connection(const std::string &socket) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::snprintf(address.sun_path, sizeof address.sun_path, "%s", socket.c_str());
        fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        for (const double start = seconds_now();; ::usleep(10000)) {
            if (::connect(fd_, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0) return;
            if (::waitpid(server, nullptr, WNOHANG) == server) server = 0, trouble("memcached has ended");
            if (seconds_now() - start > START_SECONDS_MAX) trouble("memcached does not start");
        }
    }

    void send(const std::string &text) {
        for (size_t sent = 0; sent < text.size();) {
            const ssize_t bytes = ::write(fd_, text.data() + sent, text.size() - sent);
            if (bytes <= 0) trouble("memcached takes nothing more");
            sent += static_cast<size_t>(bytes);
        }
    }

    std::string line() {
        size_t end;
        while ((end = received_.find("\r\n", at_)) == std::string::npos) receive();
        std::string found = received_.substr(at_, end - at_);
        at_ = end + 2;
        return found;
    }

    std::string bytes(size_t count) {
        while (received_.size() - at_ < count + 2) receive();
        std::string found = received_.substr(at_, count);
        at_ += count + 2;
        return found;
    }

  private:
    void receive() {
        received_.erase(0, at_);
        at_ = 0;
        char buffer[65536];
        const ssize_t bytes = ::read(fd_, buffer, sizeof buffer);
        if (bytes <= 0) trouble("memcached answers no more");
        received_.append(buffer, static_cast<size_t>(bytes));
    }

    int fd_;
    size_t at_ = 0;
    std::string received_;
};

static void store(std::string &requests, uint64_t key, uint32_t turn) {
    const std::string value = value_of(key, turn);
    requests += "set key:" + std::to_string(key) + " 0 0 " + std::to_string(value.size()) + " noreply\r\n" + value + "\r\n";
}

int main() {
    if (::mkdtemp(directory) == nullptr) trouble("no directory can be made in /tmp");
    std::atexit(remove_traces);
    const std::string socket = std::string(directory) + "/socket";
    server = ::fork();
    if (server == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::execlp("memcached", "memcached", "-u", "root", "-s", socket.c_str(), "-m", "2048", "-t", "2", nullptr);
        std::fprintf(stderr, "memcached cannot be started\n");
        ::_exit(127);
    }
    Connection connection(socket);
    std::vector<uint32_t> turns(KEYS);
    std::string requests;
    for (uint64_t key = 0; key < KEYS; ++key) {
        store(requests, key, 0);
        if (key % BATCH_KEYS == 0 || key + 1 == KEYS) connection.send(requests), requests.clear();
    }

    const Zipf ranks(Scrambled::ITEMS, 0.99);
    const Scrambled scrambled(KEYS);
    Random random{1};
    uint64_t wrong = 0;
    for (uint64_t batch = 0; batch < BATCHES; ++batch) {
        requests = "get";
        for (uint64_t number = 0; number < BATCH_KEYS; ++number)
            requests += " key:" + std::to_string(scrambled.key(ranks.draw([&] { return random.uniform(); }) - 1));
        connection.send(requests + "\r\n");
        uint64_t found = 0, changed = KEYS;
        for (std::string header; (header = connection.line()) != "END"; ++found) {
            // VALUE key:NUMBER FLAGS BYTES
            const uint64_t key = std::stoull(header.substr(10));
            const std::string value = connection.bytes(std::stoul(header.substr(header.rfind(' ') + 1)));
            wrong += value != value_of(key, turns[key]);
            changed = key;
        }
        wrong += BATCH_KEYS - found;
        requests.clear();
        if (changed == KEYS) continue;
        store(requests, changed, ++turns[changed]);
        connection.send(requests);
    }
    if (wrong != 0) trouble(std::to_string(wrong) + " values are wrong");
}
