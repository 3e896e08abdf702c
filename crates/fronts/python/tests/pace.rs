// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Runs the tests of src/pace.rs, since the library itself cannot be linked into a test program.

#[path = "../src/pace.rs"]
mod pace;
