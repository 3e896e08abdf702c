# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
# A C++ source whose templates are instantiated for each of its classes.
use strict;
use warnings;
print "#include <algorithm>\n#include <map>\n#include <memory>\n#include <string>\n#include <unordered_map>\n",
    "#include <vector>\n";
for my $n (1 .. $ARGV[0]) {
    print <<"CPP";
struct C$n {
    long key;
    std::string name;
    std::vector<std::string> words;
    bool operator<(const C$n &other) const { return key < other.key || (key == other.key && name < other.name); }
};
std::map<C$n, std::string> ordered$n;
std::unordered_map<std::string, C$n> hashed$n;
void work$n(std::vector<C$n> &all) {
    std::sort(all.begin(), all.end());
    for (C$n &one : all) {
        hashed$n\[one.name] = one;
        ordered$n\[one] = one.name;
        one.words.push_back(one.name + std::to_string($n));
    }
    all.erase(std::remove_if(all.begin(), all.end(), [](const C$n &one) { return one.key % $n == 0; }), all.end());
}
CPP
}
