// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The stacks that the program calls from: small ones, and ones in managed memory.
//!
//! The pager used to be started, and to work, on the stack of the thread that allocated memory. A thread with 16 KiB
//! ended by SIGSEGV when its memory outgrew the budget; a coroutine, whose stack is on the heap without a guard page,
//! wrote over its neighbours. And while the pager worked for a coroutine with every signal blocked, a page of that very
//! stack could be evicted: a SIGBUS that could not be delivered.

use aquifer_e2e::evicted_memory::works;

/// The work on each of these stacks: allocates more memory than the budget, and checks its contents.
const TAKE: &str = "
    enum { BLOCKS = 40, BLOCK = 1 << 20 };
    static unsigned char *blocks[BLOCKS];
    static void take(void) {
        for (int turn = 0; turn < BLOCKS; turn++) {
            blocks[turn] = aligned_alloc(PAGE, BLOCK);
            memset(blocks[turn], turn, BLOCK);
        }
        for (int turn = 0; turn < BLOCKS; turn++)
            for (int at = 0; at < BLOCK; at += PAGE) must(blocks[turn][at] == turn, \"what was put there\");
        for (int turn = 0; turn < BLOCKS; turn++) {
            must(madvise(blocks[turn], BLOCK, MADV_DONTNEED) == 0 && blocks[turn][0] == 0, \"madvise\");
            free(blocks[turn]);
        }
    }";

#[test]
fn the_pager_starts_on_the_smallest_stack_that_a_thread_can_have() {
    let functions = format!("#include <limits.h>\n{TAKE}\nstatic void *run(void *none) {{ take(); return none; }}");
    works(
        "small-stack",
        &functions,
        "pthread_attr_t attributes;
        pthread_t thread;
        pthread_attr_init(&attributes);
        must(pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0, \"setstacksize\");
        must(pthread_create(&thread, &attributes, run, NULL) == 0, \"pthread_create\");
        must(pthread_join(thread, NULL) == 0, \"pthread_join\");",
    );
}

#[test]
fn coroutines_on_the_heap_take_memory_and_read_files() {
    let functions = format!(
        r#"#include <ucontext.h>
        {TAKE}
        static ucontext_t home, *coroutine;
        static void run(void) {{
            for (int turn = 0; turn < 2; turn++) {{
                take();
                int file = open("/dev/zero", O_RDONLY);
                unsigned char *into = evicted_filled(PAGE, 3);
                must(read(file, into, PAGE) == PAGE, "read");
                all(into, PAGE, 0, "what was read");
                close(file);
                free(into);
                swapcontext(coroutine, &home);
            }}
        }}"#
    );
    works(
        "coroutines",
        &functions,
        r#"
        /* Four of them share one block of the pager's, with bytes between that nobody may write to. */
        enum { COUNT = 4, STACK = 48 << 10, BETWEEN = 16 << 10 };
        unsigned char *stacks = malloc(COUNT * (STACK + BETWEEN));
        memset(stacks, 77, COUNT * (STACK + BETWEEN));
        static ucontext_t all_of_them[COUNT];
        for (int number = 0; number < COUNT; number++) {
            getcontext(&all_of_them[number]);
            all_of_them[number].uc_stack.ss_sp = stacks + BETWEEN + number * (STACK + BETWEEN);
            all_of_them[number].uc_stack.ss_size = STACK;
            all_of_them[number].uc_link = &home;
            makecontext(&all_of_them[number], run, 0);
        }
        for (int turn = 0; turn < 2; turn++)
            for (int number = 0; number < COUNT; number++) {
                coroutine = &all_of_them[number];
                swapcontext(&home, coroutine);
                press();
            }
        for (int number = 0; number < COUNT; number++)
            all(stacks + number * (STACK + BETWEEN), BETWEEN, 77, "between the stacks");"#,
    );
}
