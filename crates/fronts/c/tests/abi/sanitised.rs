// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The programs of `tests/programs` with AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer: they find what
//! a call of the library writes beyond a buffer of the program, what it uses after it was freed, what it never frees,
//! and undefined behaviour in the programs and in the header's macros. They see what the library does to memory only
//! where it calls the C library for that (memcpy, free), since Rust code is not instrumented here.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use aquifer_test_support::skip;

use crate::built::{Linkage, SANITISERS, compile, folder, run, scratch};
use crate::programs::can_run;

/// Returns whether the C compiler has the sanitizers, and programs with them run here.
fn can_sanitise() -> bool {
    static WHY_NOT: OnceLock<Option<String>> = OnceLock::new();
    let why_not = WHY_NOT.get_or_init(|| {
        std::fs::create_dir_all(scratch()).expect("the target directory can be written");
        let (source, program) = (scratch().join("sanitised.c"), scratch().join("sanitised"));
        let trivial = "#include <stdlib.h>\nint main(void) { free(malloc(8)); return 0; }\n";
        std::fs::write(&source, trivial).expect("it can be written");
        let mut cc = Command::new("cc");
        let compiled = cc.args(SANITISERS).arg("-o").arg(&program).arg(&source).output();
        if !compiled.is_ok_and(|output| output.status.success()) {
            return Some("the C compiler has no sanitizers; install libasan and libubsan".to_owned());
        }
        let ran = Command::new(&program).output().is_ok_and(|output| output.status.success());
        (!ran).then(|| "programs with sanitizers do not run here; LeakSanitizer needs ptrace(2)".to_owned())
    });
    why_not.as_ref().inspect(|why| skip(why)).is_none()
}

fn sanitised(source: &str) -> std::path::PathBuf {
    compile(&folder().join("tests/programs").join(source), Linkage::Sanitised)
}

/// Runs programs of `tests/programs` one after the other.
fn pass(sources: &[&str]) {
    if !can_run() || !can_sanitise() {
        return;
    }
    sources.iter().for_each(|source| {
        run(&sanitised(source));
    });
}

#[test]
fn programs_with_bad_input_and_trouble_are_clean() {
    pass(&["hostile.c", "lost.c", "named_trouble.c", "tiers.c"]);
}

#[test]
fn programs_with_threads_and_contexts_are_clean() {
    pass(&["classes.cpp", "contexts.c", "gathers.c", "threads.c"]);
}

#[test]
fn programs_with_memory_beyond_the_budget_are_clean() {
    pass(&["memory.c", "named.c", "own_faults.c"]);
}

/// A program of the test that tells the library of more room than there is.
#[test]
fn a_buffer_that_is_too_short_is_found() {
    if !can_run() || !can_sanitise() {
        return;
    }
    let source = scratch().join("overrun.c");
    let text = "#include \"check.h\"\nint main(void) {\n    \
        aquifer_mapping_t mapping = filled(small_space(\"dram:size=16MiB\", NULL), PAGE);\n    \
        char *bytes = (char *)malloc(8);\n    \
        OK(aquifer_read(mapping, 0, bytes, 9));\n    return 0;\n}\n";
    std::fs::write(&source, text).expect("it can be written");
    let program: &Path = &compile(&source, Linkage::Sanitised);
    let output = Command::new(program).output().expect("it can be started");
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && report.contains("heap-buffer-overflow"), "{}\n{report}", output.status);
}
