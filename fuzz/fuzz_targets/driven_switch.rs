// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| aquifer_fuzz::targets::driven_switch(bytes));
