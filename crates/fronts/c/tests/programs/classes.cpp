// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/* The header works from C++, with handles in classes. */

#include <numeric>
#include <utility>
#include <vector>

#include "check.h"

namespace {

class Space {
public:
    explicit Space(const char *tier) : space_(small_space(tier, nullptr)) {}
    ~Space() { aquifer_close(space_); }
    Space(const Space &) = delete;
    Space &operator=(const Space &) = delete;
    aquifer_space_t get() const { return space_; }

private:
    aquifer_space_t space_;
};

template <typename T> class Array {
public:
    Array(const Space &space, std::size_t count) {
        void *address = nullptr;
        OK(aquifer_map(space.get(), count * sizeof(T), &mapping_));
        OK(aquifer_address(mapping_, &address));
        begin_ = static_cast<T *>(address);
        end_ = begin_ + count;
    }
    ~Array() { aquifer_unmap(mapping_); }
    Array(const Array &) = delete;
    Array &operator=(const Array &) = delete;
    T *begin() { return begin_; }
    T *end() { return end_; }
    std::vector<T> gather(const std::vector<std::size_t> &indices) {
        std::vector<T> found(indices.size());
        OK(aquifer_gather(mapping_, sizeof(T), indices.data(), indices.size(), found.data(), found.size() * sizeof(T)));
        return found;
    }

private:
    aquifer_mapping_t mapping_ = {0};
    T *begin_ = nullptr;
    T *end_ = nullptr;
};

} // namespace

int main() {
    Space space("dram:size=64MiB");
    Array<double> numbers(space, 3 << 20);
    std::iota(numbers.begin(), numbers.end(), 0.0);
    CHECK((numbers.gather({3, 2999999, 1000000, 3}) == std::vector<double>{3, 2999999, 1000000, 3}));
    std::size_t calls = 0;
    auto count = [](void *argument, std::size_t) { ++*static_cast<std::size_t *>(argument); };
    OK(aquifer_contexts_run(space.get(), 100, count, &calls, nullptr, nullptr));
    CHECK(calls == 100);
    return 0;
}
