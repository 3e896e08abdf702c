// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Each program of `tests/programs`, with the shared library; and with the static one, of which one program shows that
//! it is whole. The programs check themselves.

use aquifer_test_support::skip;

use crate::built::{Linkage, compile, folder, run};

/// Returns whether this machine can have spaces.
pub fn can_run() -> bool {
    aquifer::probe().inspect_err(|why| skip(why)).is_ok()
}

fn passes(source: &str, linkage: Linkage) -> String {
    let program = compile(&folder().join("tests/programs").join(source), linkage);
    if can_run() { run(&program) } else { String::new() }
}

#[test]
fn memory_keeps_its_bytes_with_the_shared_library() {
    passes("memory.c", Linkage::Shared);
}

#[test]
fn memory_keeps_its_bytes_with_the_static_library() {
    let version = passes("memory.c", Linkage::Static);
    assert!(version.is_empty() || version.trim() == env!("CARGO_PKG_VERSION"), "{version}");
}

#[test]
fn bad_arguments_and_stale_handles_are_errors() {
    passes("hostile.c", Linkage::Shared);
}

#[test]
fn contexts_fetches_and_gathers_find_their_bytes() {
    passes("contexts.c", Linkage::Shared);
}

#[test]
fn many_gathers_sleep_and_leave_descriptors() {
    passes("gathers.c", Linkage::Shared);
}

#[test]
fn lost_memory_is_an_error_and_can_be_used_again() {
    passes("lost.c", Linkage::Shared);
}

#[test]
fn tiers_that_fail_lie_or_are_slow_are_errors_and_never_wrong_bytes() {
    passes("tiers.c", Linkage::Shared);
}

#[test]
fn what_is_wrong_with_a_named_mapping_is_an_error_of_its_own() {
    passes("named_trouble.c", Linkage::Shared);
}

#[test]
fn named_mappings_writes_in_place_and_curves_are_those_of_the_crate() {
    passes("named.c", Linkage::Shared);
}

#[test]
fn threads_resolve_their_own_faults_and_system_calls_fail() {
    passes("own_faults.c", Linkage::Shared);
}

#[test]
fn threads_may_use_handles_that_others_close() {
    passes("threads.c", Linkage::Shared);
}

#[test]
fn the_header_works_from_cpp() {
    passes("classes.cpp", Linkage::Shared);
    passes("classes.cpp", Linkage::Static);
}
