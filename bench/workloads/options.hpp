// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Parses the command line of a workload: `--name value` or `--name=value`, and bare words; after `--` all words are
// bare.
//
// Sizes carry units (64MiB, 1GiB, 4096). A wrong argument ends the program with exit code 2 and one line that says what
// was wrong. Exit code 1 is reserved for a wrong result.

#pragma once

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

struct Flag {
    const char *name;      // without the two dashes
    const char *standard;  // the value when the flag is absent; nullptr: the flag takes no value
    const char *help;
};

[[noreturn]] inline void usage_error(const std::string &message) {
    std::fprintf(stderr, "error: %s (see --help)\n", message.c_str());
    std::exit(2);
}

// "1.5GiB" is 1610612736. KB, MB, GB are powers of 1000; KiB, MiB, GiB of 1024.
inline uint64_t parse_size(const std::string &what, const std::string &text) {
    char *rest = nullptr;
    errno = 0;
    const double number = std::strtod(text.c_str(), &rest);
    if (rest == text.c_str() || errno != 0 || !(number >= 0)) usage_error(what + ": '" + text + "' is not a size such as 64MiB");
    static const std::map<std::string, double> units = {
        {"", 1},           {"B", 1},          {"KiB", 1024.0},       {"K", 1024.0},    {"KB", 1e3},
        {"MiB", 1048576.0}, {"M", 1048576.0}, {"MB", 1e6},           {"GiB", 1073741824.0},
        {"G", 1073741824.0}, {"GB", 1e9},     {"TiB", 1099511627776.0}, {"TB", 1e12},
    };
    const auto unit = units.find(rest);
    if (unit == units.end()) usage_error(what + ": unknown unit '" + rest + "', use KiB, MiB or GiB");
    const double bytes = number * unit->second;
    if (bytes > 9e18) usage_error(what + ": '" + text + "' is too large");
    return static_cast<uint64_t>(bytes);
}

class Options {
  public:
    Options(int argc, char **argv, const char *about, std::vector<Flag> flags) : flags_(std::move(flags)) {
        for (const Flag &flag : flags_)
            if (flag.standard != nullptr) values_[flag.name] = flag.standard;
        for (int i = 1; i < argc; ++i) {
            const std::string word = argv[i];
            if (word == "--help" || word == "-h") help(about);
            if (word == "--") {
                words_.insert(words_.end(), argv + i + 1, argv + argc);
                break;
            }
            if (word.rfind("--", 0) != 0) {
                words_.push_back(word);
                continue;
            }
            const size_t equals = word.find('=');
            const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
            const Flag &flag = find(name);
            if (flag.standard == nullptr) {
                if (equals != std::string::npos) usage_error("--" + name + " takes no value");
                values_[name] = "yes";
            } else if (equals != std::string::npos) {
                values_[name] = word.substr(equals + 1);
            } else if (i + 1 < argc) {
                values_[name] = argv[++i];
            } else {
                usage_error("--" + name + " needs a value");
            }
        }
    }

    const std::vector<std::string> &words() const { return words_; }
    bool has(const std::string &name) const { return values_.count(name) != 0; }
    const std::string &text(const std::string &name) const { return values_.at(name); }
    uint64_t size(const std::string &name) const { return parse_size("--" + name, text(name)); }

    uint64_t count(const std::string &name, uint64_t low, uint64_t high) const {
        char *rest = nullptr;
        errno = 0;
        const std::string &value = text(name);
        const unsigned long long number = std::strtoull(value.c_str(), &rest, 10);
        if (value.empty() || value[0] == '-' || *rest != '\0' || errno != 0 || number < low || number > high)
            usage_error("--" + name + ": '" + value + "' is not a number from " + std::to_string(low) + " to " + std::to_string(high));
        return number;
    }

    double real(const std::string &name, double low, double high) const {
        char *rest = nullptr;
        const std::string &value = text(name);
        const double number = std::strtod(value.c_str(), &rest);
        if (value.empty() || *rest != '\0' || !(number >= low && number <= high))
            usage_error("--" + name + ": '" + value + "' is not a number from " + std::to_string(low) + " to " + std::to_string(high));
        return number;
    }

    std::string choice(const std::string &name, const std::vector<std::string> &choices) const {
        std::string listed;
        for (const std::string &one : choices) {
            if (one == text(name)) return one;
            listed += (listed.empty() ? "" : ", ") + one;
        }
        usage_error("--" + name + ": '" + text(name) + "' is none of " + listed);
    }

  private:
    const Flag &find(const std::string &name) const {
        for (const Flag &flag : flags_)
            if (name == flag.name) return flag;
        usage_error("unknown flag --" + name);
    }

    [[noreturn]] void help(const char *about) const {
        std::printf("%s\nFlags:\n", about);
        for (const Flag &flag : flags_) {
            const std::string standard = flag.standard == nullptr || *flag.standard == '\0' ? "" : std::string(" [") + flag.standard + "]";
            std::printf("  --%-18s %s%s\n", flag.name, flag.help, standard.c_str());
        }
        std::printf("  --%-18s %s\n\nThreads: OMP_NUM_THREADS. Exit code: 0 verified, 1 wrong result or trouble, 2 bad arguments.\n", "help", "this text");
        std::exit(0);
    }

    std::vector<Flag> flags_;
    std::map<std::string, std::string> values_;
    std::vector<std::string> words_;
};
