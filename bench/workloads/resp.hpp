// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// The part of Redis' protocol (RESP2) that a load needs: commands as arrays of words, and the replies to them.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "trouble.hpp"

struct Reply {
    enum Kind { Line, Error, Bytes, Nil } kind;
    const char *data;
    uint64_t size;
    std::string text() const { return std::string(data, size); }
    bool is(const char *line) const { return kind == Line && text() == line; }
};

inline void add_word(std::string &out, const char *data, uint64_t size) {
    out += '$';
    out += std::to_string(size);
    out += "\r\n";
    out.append(data, size);
    out += "\r\n";
}
inline void add_word(std::string &out, const std::string &word) { add_word(out, word.data(), word.size()); }
inline void add_command(std::string &out, size_t words) { out += '*' + std::to_string(words) + "\r\n"; }

// Parses one reply. Returns its length in bytes, or 0 if it is incomplete; the reply points into the data.
inline uint64_t read_reply(const char *data, uint64_t size, Reply &reply) {
    const char *const end = static_cast<const char *>(std::memchr(data, '\n', size));
    if (end == nullptr) return 0;
    const uint64_t line = static_cast<uint64_t>(end - data) + 1;
    if (line < 3 || end[-1] != '\r') trouble("the server sends what is no reply");
    switch (data[0]) {
    case '+':
    case ':':
    case '-':
        reply = {data[0] == '-' ? Reply::Error : Reply::Line, data + 1, line - 3};
        return line;
    case '$': {
        const long long count = std::strtoll(data + 1, nullptr, 10);
        if (count < 0) return reply = {Reply::Nil, data, 0}, line;
        const uint64_t bytes = static_cast<uint64_t>(count);
        if (size < line + bytes + 2) return 0;
        reply = {Reply::Bytes, data + line, bytes};
        return line + bytes + 2;
    }
    default: trouble("the server sends what is no reply");
    }
}
