// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Children of vfork(2), which have their parent's memory and threads, descriptors and signal actions of their own.
//!
//! What such a child did for itself was taken for its parent's: a pager that it started had its threads and its
//! userfaultfd, both of which end with it, and the parent was ended by SIGSYS.

use aquifer_e2e::evicted_memory::works;

#[test]
fn a_child_that_outgrows_the_budget_leaves_the_pager_to_its_parent() {
    works(
        "vfork-outgrows",
        "enum { LEN = 16 << 20, MORE = 48 << 20 };
        static unsigned char *more; static char data[64];",
        r#"
        unsigned char *mine = malloc(LEN);
        memset(mine, 7, LEN);
        pid_t child = vfork();
        if (child == 0) {
            more = mmap(NULL, MORE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            access("/", R_OK);
            _exit(more == MAP_FAILED);
        }
        int status;
        must(waitpid(child, &status, 0) == child && status == 0, "the child");
        for (int turn = 0; turn < 2; turn++) {
            memset(more, 9 + turn, MORE);
            all(mine, LEN, 7, "the parent's");
            all(more, MORE, 9 + turn, "what the child has mapped");
        }
        int file = open("/proc/self/statm", O_RDONLY);
        must(read(file, data, sizeof data - 1) > 0, "statm");
        long pages = atol(strchr(data, ' '));
        if (pages > 48 << 8) { fprintf(stderr, "%ld pages are resident\n", pages); return 3; }"#,
    );
}

#[test]
fn a_forked_child_traps_its_calls_after_a_child_of_its_own_has_set_an_action() {
    works(
        "vfork-in-fork",
        "static volatile int handled;
        static void on_signal(int number) { handled += number == SIGUSR1; }",
        r#"
        pid_t child = fork();
        if (child == 0) {
            struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
            child = vfork();
            if (child == 0) {
                sigaction(SIGUSR2, &action, NULL);
                _exit(0);
            }
            int status;
            must(waitpid(child, &status, 0) == child && status == 0, "the child of vfork");
            unsigned char *data = evicted_filled(4 << 20, 8);
            must(sigaction(SIGUSR1, &action, NULL) == 0, "sigaction");
            press();
            must(raise(SIGUSR1) == 0 && handled == 1, "raise");
            int file = open("/proc/self/exe", O_RDONLY);
            must(direct(SYS_pread64, file, (long)evicted(1), 1000, 0, 0, 0) == 1000, "pread64");
            child = fork();
            if (child == 0) { all(data, 4 << 20, 8, "in the child"); _exit(0); }
            must(child > 0 && waitpid(child, &status, 0) == child && status == 0, "the child's child");
            _exit(0);
        }
        int status;
        must(waitpid(child, &status, 0) == child && status == 0, "the child");"#,
    );
}

#[test]
fn a_child_that_gives_up_its_signal_stack_leaves_its_parents() {
    works(
        "vfork-stack",
        "static char *low; static volatile int handled;
        static void on_signal(int number) {
            char here;
            handled += number && &here >= low && &here < low + (1 << 16);
        }",
        r#"
        press();
        low = malloc(1 << 16);
        stack_t own = {.ss_sp = low, .ss_size = 1 << 16}, found;
        must(sigaltstack(&own, NULL) == 0, "sigaltstack");
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
        must(sigaction(SIGUSR1, &action, NULL) == 0, "sigaction");
        pid_t child = vfork();
        if (child == 0) {
            stack_t none = {.ss_flags = SS_DISABLE};
            sigaltstack(&none, NULL);
            _exit(0);
        }
        int status;
        must(waitpid(child, &status, 0) == child && status == 0, "the child");
        must(sigaltstack(NULL, &found) == 0 && found.ss_sp == low && !(found.ss_flags & SS_DISABLE), "the parent's stack");
        must(raise(SIGUSR1) == 0 && handled == 1, "its handler is on it");"#,
    );
}

#[test]
fn file_actions_that_are_evicted_are_carried_out() {
    works(
        "spawn-actions",
        "extern char **environ;",
        r#"
        posix_spawn_file_actions_t *actions = malloc(sizeof *actions);
        posix_spawnattr_t *attributes = malloc(sizeof *attributes);
        must(posix_spawn_file_actions_init(actions) == 0 && posix_spawnattr_init(attributes) == 0, "init");
        for (int number = 0; number < 100; number++) {
            char *filler[64];
            for (int at = 0; at < 64; at++) filler[at] = malloc(3000);
            must(posix_spawn_file_actions_addopen(actions, 50, "/dev/null", O_RDONLY, 0) == 0, "addopen");
            for (int at = 0; at < 64; at++) free(filler[at]);
        }
        must(posix_spawn_file_actions_addchdir_np(actions, "/usr/bin") == 0, "addchdir");
        char *words[] = {"true", NULL};
        for (int turn = 0; turn < 3; turn++) {
            press();
            press();
            pid_t child;
            int status, result = posix_spawn(&child, "./true", actions, attributes, words, environ);
            if (result) { fprintf(stderr, "posix_spawn: %s\n", strerror(result)); return 2; }
            must(waitpid(child, &status, 0) == child && status == 0, "the child");
        }"#,
    );
}
