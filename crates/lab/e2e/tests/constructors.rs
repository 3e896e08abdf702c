// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A library's constructor allocates more than the budget, while dlopen(3) holds the dynamic linker's lock.
//!
//! The pager's threads used to take that lock when they started, while the constructor waited for them: NumPy's
//! OpenBLAS, which allocates in this way, never finished loading.

use std::process::Command;

use aquifer_e2e::build::scratch;
use aquifer_e2e::evicted_memory::works;

const LIBRARY: &str = r#"
#include <stdlib.h>
#include <string.h>
unsigned char *filled;
__attribute__((constructor)) static void fill(void) {
    filled = malloc(64 << 20);
    memset(filled, 5, 64 << 20);
}
"#;

#[test]
fn the_pager_starts_under_dlopen() {
    let directory = scratch("constructors");
    let (source, library) = (directory.join("filled.c"), directory.join("filled.so"));
    std::fs::write(&source, LIBRARY).expect("the scratch directory can be written");
    let flags = ["-shared", "-fPIC", "-O1", "-o"];
    match Command::new("cc").args(flags).arg(&library).arg(&source).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => return aquifer_test_support::skip(format!("cc cannot be started: {error}")),
    }
    let body = format!(
        r#"
    void *library = dlopen("{}", RTLD_NOW);
    if (!library) {{ fprintf(stderr, "%s\n", dlerror()); return 1; }}
    all(*(unsigned char **)dlsym(library, "filled"), 64 << 20, 5, "what the constructor wrote");
"#,
        library.display()
    );
    works("constructors", "#include <dlfcn.h>\n", &body);
}
