// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A program with a locale forks, and its child needs a worker.
//!
//! The C library makes each new thread read the program's locale while every signal is blocked. The locale was in
//! managed memory and evicted, and SIGBUS ended the child without a message. This happened with Python, which always
//! has a locale.

use aquifer_e2e::evicted_memory::works;

#[test]
fn the_worker_of_a_forked_child_starts_though_most_pages_are_evicted() {
    let functions = "#include <locale.h>\n";
    let body = r#"
    if (!setlocale(LC_ALL, "C.UTF-8")) { puts("skipped, because there is no locale C.UTF-8"); return 0; }
    unsigned char *start = evicted(48 << 20);
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        for (int turn = 0; turn < 4; turn++) {
            all(start, 48 << 20, 1, "in the child");
            /* A change of mappings is where a child that has had many faults gets its worker. */
            free(malloc(8 << 20));
            usleep(20000);
        }
        _exit(0);
    }
    int status = 0;
    must(waitpid(child, &status, 0) == child, "waitpid");
    if (status) { fprintf(stderr, "the child ended with %d\n", status); return 1; }
"#;
    works("locale", functions, body);
}
