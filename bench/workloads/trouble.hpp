// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// Ends a workload that cannot go on: one line that says why, and exit code 1.

#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

[[noreturn]] inline void trouble(const std::string &message) {
    std::fprintf(stderr, "error: %s\n", message.c_str());
    std::exit(1);
}
