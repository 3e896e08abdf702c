// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// A private server: Redis, which is reached through a socket in its directory, or `aquifer cache`, which is reached
// through a port of this machine. It runs under any given command, and ends with this program however it ends.

#pragma once

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <fstream>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <string>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "resp.hpp"
#include "result.hpp"

// The server loads a dump before its first answer; the largest dumps take minutes.
static const double START_SECONDS_MAX = 600;
// A server that fetches or swaps is slow, but one that does not answer for this long hangs.
static const double REPLY_SECONDS_MAX = 120;
// Time to end after SHUTDOWN, which includes freeing memory and swap.
static const double END_SECONDS_MAX = 120;
// Time to end after SIGTERM, when no result depends on the server any more.
static const double GRACE_SECONDS = 3;

// Names in the server's directory. Short and related process, because a socket path is limited to 107 bytes.
static const char *const SOCKET_NAME = "redis.sock";
static const char *const DUMP_NAME = "dump.rdb";
static const char *const LOG_NAME = "redis.log";

inline volatile std::sig_atomic_t stop_signal = 0;
inline pid_t server_process = 0;
// The initial working directory, to which relative paths in the server's command refer.
inline int start_directory = AT_FDCWD;
// The port of `aquifer cache`; 0 for Redis.
inline uint16_t server_port = 0;

// Ends the program if a signal has arrived, so that the signal is reported and not the error that it caused.
inline void check_signals() {
    if (stop_signal != 0) trouble("ended by signal " + std::to_string(stop_signal));
}

inline bool ended_within(double seconds, int &status) {
    for (const double start = seconds_now();; ::usleep(10000)) {
        if (::waitpid(server_process, &status, WNOHANG) == server_process) return server_process = 0, true;
        if (seconds_now() - start > seconds) return false;
    }
}

// Runs at every kind of exit.
inline void end_server() {
    int status;
    if (server_process == 0) return;
    ::kill(server_process, SIGTERM);
    if (ended_within(GRACE_SECONDS, status)) return;
    ::kill(server_process, SIGKILL);
    ended_within(END_SECONDS_MAX, status);
}

inline int connect_to_port() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) trouble(std::string("socket: ") + std::strerror(errno));
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (::connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0) return fd;
    ::close(fd);
    return -1;
}

inline int connect_to_server() {
    if (server_port != 0) return connect_to_port();
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof address.sun_path, "%s", SOCKET_NAME);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) trouble(std::string("socket: ") + std::strerror(errno));
    if (::connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0) return fd;
    ::close(fd);
    return -1;
}

class Server {
  public:
    enum Kind { Redis, Cache };

    // `command`: the words up to and including Redis' own program, or all words of `aquifer cache` but the address. The
    // working directory is the server's directory. `cores`: the CPUs that it may use; 0 for all.
    explicit Server(const std::vector<std::string> &command, const std::string &directory, Kind kind = Redis,
                    uint64_t cores = 0)
        : kind_(kind), cores_(cores) {
        std::vector<std::string> words = command;
        const auto add = [&](std::initializer_list<const char *> more) {
            words.insert(words.end(), more.begin(), more.end());
        };
        if (kind_ == Cache) {
            add({"--listen", "127.0.0.1:0"});
        } else {
            add({"--port", "0", "--unixsocket", SOCKET_NAME, "--dir", directory.c_str()});
            add({"--dbfilename", DUMP_NAME, "--save", "", "--appendonly", "no", "--daemonize", "no"});
        }
        start(words);
        control_ = greet();
        process_ = info("server", "process_id");
    }
    Server(const Server &) = delete;
    Server &operator=(const Server &) = delete;
    ~Server() {
        ::close(control_);
        server_port = 0;
    }

    // Sends one command and returns its reply, on a connection that is used for nothing else.
    std::string ask(const std::vector<std::string> &words) {
        std::string request;
        add_command(request, words.size());
        for (const std::string &word : words) add_word(request, word);
        const ssize_t sent = ::send(control_, request.data(), request.size(), MSG_NOSIGNAL);
        if (sent != static_cast<ssize_t>(request.size())) lost();
        std::string answer;
        Reply reply;
        while (read_reply(answer.data(), answer.size(), reply) == 0) {
            char piece[4096];
            const ssize_t count = ::recv(control_, piece, sizeof piece, 0);
            if (count < 0 && errno == EINTR && stop_signal == 0) continue;
            if (count <= 0) lost();
            answer.append(piece, static_cast<size_t>(count));
        }
        if (reply.kind == Reply::Error) trouble("the server says to " + words[0] + ": " + reply.text());
        return reply.text();
    }

    // One value from INFO.
    std::string info(const char *section, const std::string &name) {
        const std::string text = "\r\n" + ask({"INFO", section});
        const size_t at = text.find("\r\n" + name + ":");
        if (at == std::string::npos) trouble("INFO has no " + name);
        const size_t begin = at + name.size() + 3;
        return text.substr(begin, text.find("\r\n", begin) - begin);
    }

    // Process id of the server itself, even if another program started it.
    const std::string &process() const { return process_; }

    void end() {
        if (kind_ == Cache) {
            ::kill(server_process, SIGTERM);
        } else {
            std::string request;
            add_command(request, 2);
            add_word(request, "SHUTDOWN");
            add_word(request, "NOSAVE");
            ::send(control_, request.data(), request.size(), MSG_NOSIGNAL);
        }
        int status = 0;
        if (!ended_within(END_SECONDS_MAX, status)) trouble("the server does not end");
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
        trouble("the server ended with status " + std::to_string(status) + ": " + last_words());
    }

    // The last line of output from the server or the program it runs under.
    static std::string last_words() {
        std::ifstream log(LOG_NAME);
        std::string line, last = "it said nothing";
        while (std::getline(log, line))
            if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
        return last;
    }

    [[noreturn]] static void lost() {
        check_signals();
        trouble("the server does not answer any more: " + last_words());
    }

  private:
    // The first CPUs that this program may use.
    static void use_cores(uint64_t cores) {
        cpu_set_t all, some;
        CPU_ZERO(&some);
        if (::sched_getaffinity(0, sizeof all, &all) != 0) ::_exit(127);
        uint64_t chosen = 0;
        for (int cpu = 0; cpu < CPU_SETSIZE && chosen < cores; ++cpu) {
            if (!CPU_ISSET(cpu, &all)) continue;
            CPU_SET(cpu, &some);
            ++chosen;
        }
        if (::sched_setaffinity(0, sizeof some, &some) != 0) ::_exit(127);
    }

    // The port that `aquifer cache` has printed; 0 if it has not yet.
    static uint16_t printed_port() {
        std::ifstream log(LOG_NAME);
        std::string line;
        const std::string before = "listening on 127.0.0.1:";
        while (std::getline(log, line))
            if (line.rfind(before, 0) == 0)
                return static_cast<uint16_t>(std::strtoul(line.c_str() + before.size(), nullptr, 10));
        return 0;
    }

    void start(const std::vector<std::string> &words) {
        std::vector<char *> arguments;
        for (const std::string &word : words) arguments.push_back(const_cast<char *>(word.c_str()));
        arguments.push_back(nullptr);
        const int log = ::open(LOG_NAME, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (log < 0) trouble(std::string(LOG_NAME) + ": " + std::strerror(errno));
        const pid_t parent = ::getpid();
        server_process = ::fork();
        if (server_process < 0) trouble(std::string("fork: ") + std::strerror(errno));
        if (server_process == 0) {
            // Ends the server if this program is killed.
            ::prctl(PR_SET_PDEATHSIG, SIGTERM);
            if (::getppid() != parent || ::fchdir(start_directory) != 0) ::_exit(127);
            if (cores_ != 0) use_cores(cores_);
            ::dup2(log, STDOUT_FILENO);
            ::dup2(log, STDERR_FILENO);
            ::execvp(arguments[0], arguments.data());
            std::fprintf(stderr, "%s cannot be started: %s\n", arguments[0], std::strerror(errno));
            ::_exit(127);
        }
        ::close(log);
    }

    // Connects, and waits until the server answers.
    int greet() {
        for (const double start = seconds_now(); seconds_now() - start < START_SECONDS_MAX; ::usleep(10000)) {
            check_signals();
            int status = 0;
            if (ended_within(0, status)) trouble("the server does not start: " + last_words());
            if (kind_ == Cache && (server_port = printed_port()) == 0) continue;
            const int fd = connect_to_server();
            if (fd < 0) continue;
            const timeval timeout{static_cast<time_t>(REPLY_SECONDS_MAX), 0};
            ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
            char answer[8] = {};
            if (::send(fd, "PING\r\n", 6, MSG_NOSIGNAL) != 6) lost();
            if (::recv(fd, answer, sizeof answer - 1, 0) <= 0) lost();
            if (std::strcmp(answer, "+PONG\r\n") == 0) return fd;
            ::close(fd);  // It is still loading its dump.
        }
        trouble("the server does not answer");
    }

    const Kind kind_;
    const uint64_t cores_;
    int control_ = -1;
    std::string process_;
};
