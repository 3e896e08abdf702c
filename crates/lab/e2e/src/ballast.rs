// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A library that is loaded into the programs of a test suite. Before a program's `main`, it takes more memory than the
//! budget, so that the pager runs even in a program that needs little. When the program exits, it checks that memory.

use std::path::PathBuf;

use crate::build::compile_library;

/// The variable with the amount of memory, in MiB. Without it the library does nothing.
pub const SIZE_VARIABLE: &str = "AQUIFER_E2E_BALLAST_MIB";
/// The variable with the names of the programs that take ballast, separated by commas. Without it all programs do.
pub const ONLY_VARIABLE: &str = "AQUIFER_E2E_BALLAST_ONLY";

/// Not in a constructor: the constructors of other libraries run before that of the preload library, which runs last.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { PAGE = 4096, LOOK_EVERY = 64, WRONG = 99 };
typedef int (*program)(int, char **, char **);
static size_t len;
static unsigned char *memory;
static program real_main;
static void take(void) {
    const char *mib = getenv("AQUIFER_E2E_BALLAST_MIB"), *only = getenv("AQUIFER_E2E_BALLAST_ONLY");
    if (!mib || (only && !strstr(only, program_invocation_short_name))) return;
    len = (size_t)atoi(mib) << 20;
    memory = malloc(len);
    for (size_t at = 0; memory && at < len; at += PAGE) memset(memory + at, (int)(at / PAGE), PAGE);
}
__attribute__((destructor)) static void look(void) {
    for (size_t at = 0; memory && at < len; at += LOOK_EVERY)
        if (memory[at] != (unsigned char)(at / PAGE)) {
            fprintf(stderr, "ballast: byte %zu is %d\n", at, memory[at]);
            _exit(WRONG);
        }
}
static int with_ballast(int count, char **words, char **environment) {
    take();
    return real_main(count, words, environment);
}
int __libc_start_main(program main, int count, char **words, void (*init)(void), void (*fini)(void), void (*end)(void),
                      void *stack) {
    int (*next)(program, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
    *(void **)&next = dlsym(RTLD_NEXT, "__libc_start_main");
    real_main = main;
    return next(with_ballast, count, words, init, fini, end, stack);
}
"#;

/// Compiles the library. Returns `None`, and reports a skip, if there is no C compiler.
pub fn library() -> Option<PathBuf> {
    compile_library("ballast", SOURCE)
}
