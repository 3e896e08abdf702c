// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Clients of a key-value server in a closed loop: each sends some requests, waits for all their answers, and sends the
// next. One thread drives all clients, as one thread serves them in the server. Checks every value that a read returns.

#pragma once

#include <cstdio>
#include <fcntl.h>
#include <string>
#include <sys/epoll.h>
#include <vector>

#include "histogram.hpp"
#include "server.hpp"
#include "values.hpp"

// At most this many wrong values are reported one by one.
static const uint64_t REPORTED_MAX = 10;

struct Request {
    enum Kind { Get, Set } kind;
    uint32_t key;
    Window window;  // of a Get: the versions that it may find, as known when it is sent
};

// Results of a set of requests.
struct Counts {
    uint64_t gets = 0, sets = 0, wrong = 0;
    double seconds = 0;
    Histogram times;
};

class Clients {
  public:
    Clients(uint64_t count, Versions &versions, Values &values)
        : versions_(versions), values_(values), clients_(count) {
        epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
        if (epoll_ < 0) trouble(std::string("epoll: ") + std::strerror(errno));
        for (Client &client : clients_) {
            client.fd = connect_to_server();
            if (client.fd < 0) trouble(std::string("the server accepts no more connections: ") + std::strerror(errno));
            ::fcntl(client.fd, F_SETFL, O_NONBLOCK);
            client.in.resize(READ_BYTES);
            watch(client, EPOLL_CTL_ADD, EPOLLIN);
        }
    }
    Clients(const Clients &) = delete;
    Clients &operator=(const Clients &) = delete;
    ~Clients() {
        for (const Client &client : clients_) ::close(client.fd);
        ::close(epoll_);
    }

    // Sends the requests that `next(request)` produces, `depth` at a time on each connection, until it produces no
    // more, and waits for the last answer. Calls `now_and_then()` between the answers. The window of a read starts at
    // the version that was certain when the read was sent, and ends with the latest version written when the read is
    // answered; with `windows_fixed`, windows are used as `next` set them.
    template <typename Next, typename Meanwhile>
    void drive(uint64_t depth, bool windows_fixed, Counts &counts, Next next, Meanwhile now_and_then) {
        const double start = seconds_now();
        uint64_t busy = 0, silent = 0;
        for (Client &client : clients_) busy += refill(client, depth, next);
        std::vector<epoll_event> events(clients_.size());
        while (busy > 0) {
            const int timeout = static_cast<int>(REPLY_SECONDS_MAX * 1e3);
            const int ready = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), timeout);
            check_signals();
            // Only the second timeout in a row counts: while the whole machine was suspended, time passed in which no
            // server could answer.
            if (ready > 0) silent = 0;
            if (ready == 0 && ++silent == 2) Server::lost();
            for (int at = 0; at < ready; ++at) {
                Client &client = *static_cast<Client *>(events[at].data.ptr);
                if (events[at].events & EPOLLOUT) flush(client);
                if (!(events[at].events & ~EPOLLOUT) || !receive(client, windows_fixed, counts)) continue;
                if (!refill(client, depth, next)) --busy;
            }
            now_and_then();
        }
        counts.seconds += seconds_now() - start;
    }

  private:
    static const uint64_t READ_BYTES = 64 << 10;

    struct Client {
        int fd = -1;
        std::string out;
        std::vector<char> in;
        std::vector<Request> sent;
        uint64_t out_done = 0, in_begin = 0, in_end = 0, answered = 0, sent_at = 0;
        bool waits_to_write = false;
    };

    static uint64_t nanoseconds_now() {
        const auto time = std::chrono::steady_clock::now().time_since_epoch();
        return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
    }

    // Returns false when there are no more requests.
    template <typename Next> bool refill(Client &client, uint64_t depth, Next &next) {
        client.sent.clear();
        client.out.clear();
        client.answered = client.out_done = 0;
        Request request;
        while (client.sent.size() < depth && next(request)) {
            char name[24];
            const int length = std::snprintf(name, sizeof name, "key:%012u", request.key);
            const bool is_get = request.kind == Request::Get;
            add_command(client.out, is_get ? 2 : 3);
            add_word(client.out, is_get ? "GET" : "SET", 3);
            add_word(client.out, name, static_cast<uint64_t>(length));
            if (!is_get) add_word(client.out, values_.of(request.key, versions_.begin(request.key)), values_.bytes());
            client.sent.push_back(request);
        }
        if (client.sent.empty()) return false;
        client.sent_at = nanoseconds_now();
        flush(client);
        return true;
    }

    void flush(Client &client) {
        while (client.out_done < client.out.size()) {
            const uint64_t left = client.out.size() - client.out_done;
            const ssize_t count = ::send(client.fd, client.out.data() + client.out_done, left, MSG_NOSIGNAL);
            if (count < 0 && (errno == EAGAIN || errno == EINTR)) break;
            if (count <= 0) Server::lost();
            client.out_done += static_cast<uint64_t>(count);
        }
        const bool waits = client.out_done < client.out.size();
        if (waits == client.waits_to_write) return;
        client.waits_to_write = waits;
        watch(client, EPOLL_CTL_MOD, EPOLLIN | (waits ? EPOLLOUT : 0u));
    }

    void watch(Client &client, int how, uint32_t events) {
        epoll_event event{};
        event.events = events;
        event.data.ptr = &client;
        if (::epoll_ctl(epoll_, how, client.fd, &event) != 0) trouble(std::string("epoll: ") + std::strerror(errno));
    }

    // Returns true when all sent requests are answered.
    bool receive(Client &client, bool windows_fixed, Counts &counts) {
        if (client.in_end == client.in.size()) make_room(client);
        const ssize_t count = ::recv(client.fd, client.in.data() + client.in_end, client.in.size() - client.in_end, 0);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
        if (count <= 0) Server::lost();
        client.in_end += static_cast<uint64_t>(count);
        const uint64_t now = nanoseconds_now();
        Reply reply;
        while (client.answered < client.sent.size()) {
            const uint64_t there = client.in_end - client.in_begin;
            const uint64_t taken = read_reply(client.in.data() + client.in_begin, there, reply);
            if (taken == 0) return false;
            take(client.sent[client.answered], reply, windows_fixed, counts);
            counts.times.add(now - client.sent_at);
            client.in_begin += taken;
            ++client.answered;
        }
        if (client.in_begin != client.in_end) trouble("the server answers what it was not asked");
        client.in_begin = client.in_end = 0;
        return true;
    }

    static void make_room(Client &client) {
        std::memmove(client.in.data(), client.in.data() + client.in_begin, client.in_end - client.in_begin);
        client.in_end -= client.in_begin;
        client.in_begin = 0;
        if (client.in_end > client.in.size() / 2) client.in.resize(client.in.size() * 2);
    }

    void take(const Request &request, const Reply &reply, bool windows_fixed, Counts &counts) {
        if (reply.kind == Reply::Error) trouble("the server says: " + reply.text());
        if (request.kind == Request::Set) {
            if (!reply.is("OK")) trouble("the server answers to SET: " + reply.text());
            versions_.end(request.key);
            ++counts.sets;
            return;
        }
        ++counts.gets;
        Window window = request.window;
        if (!windows_fixed) window.high = versions_.window(request.key).high;
        std::string what = "is missing";
        if (reply.kind == Reply::Bytes) what = values_.wrong(request.key, window, reply.data, reply.size);
        if (!what.empty() && ++counts.wrong <= REPORTED_MAX) std::fprintf(stderr, "key %u %s\n", request.key, what.c_str());
    }

    Versions &versions_;
    Values &values_;
    std::vector<Client> clients_;
    int epoll_ = -1;
};
