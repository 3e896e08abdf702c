// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Tests the components of a load: the distribution of the Zipf generator, what counts as a wrong value, and which
// versions a read may find. Seeds are fixed, so the outcome is always the same.

#include <cinttypes>
#include <cstdio>
#include <string>
#include <vector>

#include "histogram.hpp"
#include "permutation.hpp"
#include "resp.hpp"
#include "values.hpp"
#include "zipf.hpp"

static int failed = 0;

static void check(bool right, const std::string &what) {
    if (right) return;
    std::fprintf(stderr, "wrong: %s\n", what.c_str());
    ++failed;
}

// Each rank must occur as often as Zipf's law says, within five standard deviations.
static void ranks_follow_the_law(uint64_t n, double exponent) {
    const uint64_t draws = 2000000;
    const Zipf zipf(n, exponent);
    Random random{mix64(n)};
    std::vector<uint64_t> seen(n + 1);
    for (uint64_t at = 0; at < draws; ++at) {
        const uint64_t rank = zipf.draw([&] { return random.uniform(); });
        if (rank < 1 || rank > n) return check(false, "a rank out of range");
        ++seen[rank];
    }
    double sum = 0;
    for (uint64_t rank = 1; rank <= n; ++rank) sum += std::pow(static_cast<double>(rank), -exponent);
    for (const uint64_t rank : {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{10}, n / 10, n / 2, n}) {
        const double expected = static_cast<double>(draws) * std::pow(static_cast<double>(rank), -exponent) / sum;
        const double off = std::fabs(static_cast<double>(seen[rank]) - expected);
        const std::string which = "rank " + std::to_string(rank) + " of " + std::to_string(n);
        const std::string times = std::to_string(seen[rank]) + " times, not " + std::to_string(expected);
        check(off <= 5 * std::sqrt(expected) + 1, which + " was drawn " + times);
    }
}

static void scattered_ranks_are_each_key_once() {
    const uint64_t n = 1000;
    const Permutation scatter(n, 7);
    std::vector<int> hits(n);
    for (uint64_t rank = 0; rank < n; ++rank) ++hits[scatter.forward(rank)];
    for (const int hit : hits) check(hit == 1, "a key has none or several ranks");
}

static void scrambled_ranks_are_those_of_ycsb() {
    const Scrambled scrambled(1000);
    const Zipf ranks(Scrambled::ITEMS, 0.99);
    Random random{mix64(3)};
    std::vector<uint64_t> hits(1000);
    const uint64_t draws = 1000000;
    for (uint64_t draw = 0; draw < draws; ++draw)
        ++hits[scrambled.key(ranks.draw([&] { return random.uniform(); }) - 1)];
    std::vector<uint64_t> order = hits;
    std::sort(order.rbegin(), order.rend());
    // Of 10^10 ranks the first has one part in 26.469 (YCSB's constant zeta), and each key its part of all others.
    const double first = static_cast<double>(order[0]) / draws;
    check(first > 0.036 && first < 0.041, "the most popular key has " + std::to_string(first));
    check(hits[scrambled.key(0)] == order[0] && hits[scrambled.key(1)] == order[1], "the first ranks are not the first keys");
    check(order[999] > 100, "a key is hardly ever drawn, although many ranks share it");
}

static void percentiles_are_right_to_one_part_in_64() {
    Histogram times;
    check(times.percentile_us(0.99) == 0, "no times have no percentile");
    for (uint64_t time = 1; time <= 1000000; ++time) times.add(time * 10);
    for (const double part : {0.0001, 0.5, 0.99, 0.999}) {
        const double found = times.percentile_us(part), expected = part * 1e4;
        const bool right = found >= expected && found <= expected * (1 + 1.0 / 64);
        check(right, "percentile " + std::to_string(part) + " is " + std::to_string(found));
    }
    check(times.percentile_us(1) == times.max_us() && times.max_us() == 1e4, "the largest time");
    Histogram extremes;
    extremes.add(0);
    extremes.add(UINT64_MAX);
    check(extremes.percentile_us(0.5) == 0, "the first bucket");
    check(extremes.percentile_us(1) == extremes.max_us(), "the last bucket");
}

static void wrong_values_are_told_apart() {
    Values values(1024);
    const std::string right(values.of(5, 7), 1024);
    const auto complaint = [&](uint32_t key, Window window, const std::string &data) {
        return values.wrong(key, window, data.data(), data.size());
    };
    const auto has = [](const std::string &text, const char *part) { return text.find(part) != std::string::npos; };
    check(complaint(5, {7, 7}, right).empty() && complaint(5, {1, 9}, right).empty(), "a right value is refused");
    check(has(complaint(5, {8, 9}, right), "has version 7, where 8 to 9"), "an old version is taken");
    check(has(complaint(5, {1, 6}, right), "has version 7"), "a version that was never written is taken");
    check(has(complaint(6, {7, 7}, right), "does not begin with its key"), "another key's value is taken");
    check(has(complaint(5, {7, 7}, right.substr(0, 1016)), "has 1016 bytes"), "a short value is taken");
    check(has(complaint(5, {7, 7}, std::string(1024, '\0')), "1024 bytes of zeros"), "zeros are taken");
    for (size_t at = 0; at < right.size(); at += 8) {
        std::string damaged = right;
        damaged[at] ^= 1;
        check(!complaint(5, {7, 7}, damaged).empty(), "a wrong byte is taken");
        damaged.replace(at, 8, 8, '\0');
        check(has(complaint(5, {7, 7}, damaged), "8 bytes of zeros"), "a zero word is taken");
    }
}

static void any_of_the_writes_under_way_may_be_the_last() {
    Versions versions(2);
    const auto is = [&](uint32_t low, uint32_t high) {
        const Window window = versions.window(1);
        return window.low == low && window.high == high && versions.lows()[1] == low && versions.highs()[1] == high;
    };
    check(versions.begin(1) == 1 && is(0, 1), "what is sent may be there, or not yet");
    versions.end(1);
    check(is(1, 1), "what is answered is there");
    check(versions.begin(1) == 2 && versions.begin(1) == 3 && is(1, 3), "two writes at once");
    versions.end(1);
    check(is(2, 3), "one of two is answered, and nobody knows which of them is the last");
    versions.end(1);
    check(is(2, 3), "both are answered, and either may be the last");
    versions.begin(1);
    versions.end(1);
    check(is(4, 4), "a write that was alone settles it");
}

static void replies_are_read_whole_or_not_at_all() {
    const std::string text = "$5\r\nab\r\nc\r\n+OK\r\n$-1\r\n-ERR no\r\n:12\r\n";
    Reply reply{};
    for (size_t size = 0; size < 11; ++size)
        check(read_reply(text.data(), size, reply) == 0, "a part of a reply is taken for all of it");
    uint64_t at = read_reply(text.data(), text.size(), reply);
    check(at == 11 && reply.kind == Reply::Bytes && reply.text() == "ab\r\nc", "bytes");
    at += read_reply(text.data() + at, text.size() - at, reply);
    check(reply.is("OK"), "a line");
    at += read_reply(text.data() + at, text.size() - at, reply);
    check(reply.kind == Reply::Nil, "nothing");
    at += read_reply(text.data() + at, text.size() - at, reply);
    check(reply.kind == Reply::Error && reply.text() == "ERR no", "an error");
    at += read_reply(text.data() + at, text.size() - at, reply);
    check(reply.is("12") && at == text.size(), "a number");
}

int main() {
    ranks_follow_the_law(1000, 0.99);
    ranks_follow_the_law(100000, 1.0);
    ranks_follow_the_law(524288, 0.99);
    scattered_ranks_are_each_key_once();
    scrambled_ranks_are_those_of_ycsb();
    percentiles_are_right_to_one_part_in_64();
    wrong_values_are_told_apart();
    any_of_the_writes_under_way_may_be_the_last();
    replies_are_read_whole_or_not_at_all();
    if (failed == 0) std::printf("checks: all right\n");
    return failed == 0 ? 0 : 1;
}
