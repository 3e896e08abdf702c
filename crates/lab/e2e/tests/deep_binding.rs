// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Libraries loaded with RTLD_DEEPBIND free what the program has allocated, and the other way round.
//!
//! Such a library's `free` used to be the C library's, but the memory came from the preload library's heap: PHP, which
//! loads its extensions in this way, was aborted at its start.

use std::path::{Path, PathBuf};
use std::process::Command;

use aquifer_e2e::build::scratch;
use aquifer_e2e::evicted_memory::{PROLOGUE, SETTINGS};
use aquifer_e2e::run::{LIMIT, managed, run};

const LIBRARY: &str = "
    #include <stdlib.h>
    #include <string.h>
    void release(void *memory) { free(memory); }
    void *allocate(unsigned long len) { return memset(malloc(len), 5, len); }
    void *enlarge(void *memory, unsigned long len) { return realloc(memory, len); }
";

const MAIN: &str = "
    #include <dlfcn.h>
    int main(int count, char **words) {
        must(count == 2, \"the library\");
        for (int turn = 0; turn < 3; turn++) {
            /* The second by the path that is beside this program, where dlopen(3) searches for its caller. */
            const char *name = turn == 1 ? strrchr(words[1], '/') + 1 : words[1];
            void *library = turn == 2 ? dlmopen(LM_ID_BASE, name, RTLD_NOW | RTLD_DEEPBIND)
                                      : dlopen(name, RTLD_NOW | RTLD_DEEPBIND);
            if (!library) { fprintf(stderr, \"%s\\n\", dlerror()); return 3; }
            void (*release)(void *) = dlsym(library, \"release\");
            void *(*allocate)(unsigned long) = dlsym(library, \"allocate\");
            void *(*enlarge)(void *, unsigned long) = dlsym(library, \"enlarge\");
            for (unsigned long len = 1; len < 64 << 20; len *= 3) {
                unsigned char *ours = malloc(len), *theirs = allocate(len);
                memset(ours, 5, len);
                ours = enlarge(ours, 2 * len);
                all(ours, len, 5, \"enlarged\");
                all(theirs, len, 5, \"allocated\");
                release(ours);
                free(theirs);
            }
            must(dlclose(library) == 0, \"dlclose\");
        }
        must(dlopen(\"/nowhere.so\", RTLD_NOW | RTLD_DEEPBIND) == NULL && dlerror(), \"dlerror\");
        return 0;
    }
";

fn linked(scratch: &Path, name: &str, text: &str, words: &[&str]) -> Option<PathBuf> {
    let (source, built) = (scratch.join(format!("{name}.c")), scratch.join(name));
    std::fs::write(&source, text).expect("the target directory can be written to");
    let Ok(output) = Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&built).arg(&source).args(words).output()
    else {
        aquifer_test_support::skip("cc cannot be started");
        return None;
    };
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Some(built)
}

#[test]
fn memory_can_be_freed_across_deep_binding() {
    let scratch = scratch("deep-binding");
    let Some(library) = linked(&scratch, "libdeep.so", LIBRARY, &["-shared", "-fPIC"]) else { return };
    // With the program's own directory in its run path, as programs with plugins have.
    let Some(program) = linked(&scratch, "main", &format!("{PROLOGUE}\n{MAIN}"), &["-Wl,-rpath,$ORIGIN"]) else {
        return;
    };
    for (delivery, exchange) in SETTINGS {
        let words = ["--dram", "24MiB", "--tier", "dram:", "--delivery", delivery, "--exchange", exchange];
        run(managed(&words, &program, &[library.to_str().expect("a plain name")]), LIMIT).expect(0);
    }
}
