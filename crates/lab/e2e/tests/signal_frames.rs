// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The frames of programs' signals: on stacks that are evicted, and of several signals at once.
//!
//! Before Aquifer moved these frames, the kernel wrote that of a handler without SA_ONSTACK to the stack on which the
//! signal had arrived. On the stack of a coroutine, which is ordinary heap memory, the page below the stack pointer
//! could be evicted; the kernel could not write there, and ended the program by SIGSEGV.

use aquifer_e2e::evicted_memory::works;

/// A thread that evicts memory when asked, and then sends SIGUSR1 to the first thread or sets `go`.
const OTHER: &str = "
    #include <ucontext.h>
    static pthread_t first;
    static volatile int wanted, done, go;
    static void *evict_and_signal(void *none) {
        for (int turn = 1;; turn++) {
            while (wanted < turn) usleep(100);
            press();
            press();
            done = turn;
            if (turn % 2) pthread_kill(first, SIGUSR1);
        }
        return none;
    }";

#[test]
fn a_handler_starts_and_returns_on_a_coroutines_stack_although_that_is_evicted() {
    let functions = format!(
        "{OTHER}
        enum {{ STACK = 256 << 10, STEP = 192 }};
        static ucontext_t home, coroutine;
        static unsigned char *low;
        static volatile int came, depth;
        static void on_signal(int number) {{
            char here, *at = &here;
            if ((unsigned char *)at < low || (unsigned char *)at >= low + STACK) _exit(9);
            int next = wanted + 1;
            /* The whole stack is evicted, the frame too; nothing here touches it. */
            wanted = next;
            while (done < next) ;
            came += number == SIGUSR1;
            go = 1;
        }}
        static void wait_at(int bytes) {{
            volatile unsigned char room[bytes];
            room[0] = 5;
            go = 0;
            wanted = wanted + 1;
            while (!go) ;
            must(room[0] == 5, \"what is above the frame\");
        }}
        static void run(void) {{
            for (int turn = 0; turn < 24; turn++) wait_at(STEP * (turn + 1));
        }}"
    );
    works(
        "evicted-frames",
        &functions,
        r#"
        first = pthread_self();
        low = malloc(STACK);
        memset(low, 7, STACK);
        unsigned char *data = evicted_filled(8 << 20, 3);
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, found;
        must(sigaction(SIGUSR1, &action, NULL) == 0 && sigaction(SIGUSR1, NULL, &found) == 0, "sigaction");
        must(found.sa_handler == on_signal && (found.sa_flags & ~0x04000000) == SA_RESTART, "what was set");
        pthread_t thread;
        must(pthread_create(&thread, NULL, evict_and_signal, NULL) == 0, "pthread_create");
        getcontext(&coroutine);
        coroutine.uc_stack.ss_sp = low;
        coroutine.uc_stack.ss_size = STACK;
        coroutine.uc_link = &home;
        makecontext(&coroutine, run, 0);
        must(swapcontext(&home, &coroutine) == 0 && came == 24, "handlers");
        all(data, 8 << 20, 3, "afterwards");"#,
    );
}

#[test]
fn a_handler_that_interrupts_the_start_of_another_finds_it_as_natively() {
    // The kernel starts the handlers of all pending signals, one after another, before any of them runs.
    works(
        "started-together",
        "#include <ucontext.h>
        enum { STACK = 128 << 10 };
        static unsigned char *data, *stack, *low, *high;
        static volatile int order[8], came; static int flags;
        static void on_signal(int number, siginfo_t *info, void *context);
        static int where(void *at) {
            unsigned char *byte = at;
            return byte >= stack && byte < stack + STACK ? 2 : byte >= low && byte < high ? 1 : 0;
        }
        static void check(int number, siginfo_t *info, ucontext_t *context) {
            char here;
            sigset_t mask;
            int wanted = flags & SA_ONSTACK ? 2 : 1, last = number == SIGUSR1;
            unsigned char *at = (unsigned char *)context->uc_mcontext.gregs[REG_RSP];
            must(where(&here) == wanted && where(context) == wanted && where(info) == wanted, \"the frame's stack\");
            must(info->si_signo == number && info->si_pid == getpid(), \"siginfo\");
            must(where(at) == (last ? 1 : wanted) && at > (unsigned char *)&here, \"the stack that was interrupted\");
            must(sigprocmask(SIG_SETMASK, NULL, &mask) == 0 && sigismember(&mask, number), \"its mask\");
            must(!sigismember(&mask, SIGTERM), \"its mask\");
            must(sigismember(&context->uc_sigmask, SIGUSR1) == !last, \"the mask that was interrupted\");
            if (!last) {
                must(context->uc_mcontext.gregs[REG_RIP] == (long)on_signal, \"a handler's start was interrupted\");
                must(context->uc_mcontext.gregs[REG_RDI] != number, \"of another signal\");
            }
            order[came++] = number;
            press();
            all(data, 1 << 20, 3, \"in a handler\");
        }
        static void on_signal(int number, siginfo_t *info, void *context) { check(number, info, context); }",
        r#"
        pthread_attr_t attributes; void *lowest; size_t len;
        must(pthread_getattr_np(pthread_self(), &attributes) == 0, "attributes");
        must(pthread_attr_getstack(&attributes, &lowest, &len) == 0, "stack");
        low = lowest, high = low + len;
        stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        stack_t given = {.ss_sp = stack, .ss_size = STACK};
        must(sigaltstack(&given, NULL) == 0, "sigaltstack");
        data = evicted_filled(8 << 20, 3);
        int numbers[] = {SIGUSR1, SIGUSR2, SIGWINCH, SIGRTMIN + 3};
        sigset_t these;
        sigemptyset(&these);
        for (int n = 0; n < 4; n++) sigaddset(&these, numbers[n]);
        for (int turn = 0; turn < 6; turn++) {
            flags = turn % 2 ? SA_ONSTACK : 0;
            for (int n = 0; n < 4; n++) {
                struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | flags};
                must(sigaction(numbers[n], &action, NULL) == 0, "sigaction");
            }
            came = 0;
            sigprocmask(SIG_BLOCK, &these, NULL);
            for (int n = 3; n >= 0; n--) kill(getpid(), numbers[n]);
            sigprocmask(SIG_UNBLOCK, &these, NULL);
            must(came == 4, "all of them");
            for (int n = 0; n < 4; n++) must(order[n] == numbers[3 - n], "the last to be started runs first");
        }
        all(data, 8 << 20, 3, "afterwards");"#,
    );
}

#[test]
fn a_coroutine_changes_actions_and_starts_programs_at_the_end_of_its_resident_stack() {
    works(
        "stack-boundary",
        "#include <ucontext.h>
        extern char **environ;
        enum { STACK = 128 << 10, STEP = 96, TURNS = 64 };
        static ucontext_t home, coroutine;
        static unsigned char *low;
        static int turn;
        static void nothing(int number) { (void)number; }
        /* Empties what is below: as if it had never been touched. */
        static void empty_below(void) {
            size_t at;
            __asm__ volatile(\"mov %%rsp, %0\" : \"=r\"(at));
            size_t below = ((at - 512) & ~4095ul) - (size_t)low;
            must(direct(SYS_madvise, (long)low, below, MADV_DONTNEED, 0, 0, 0) == 0, \"madvise\");
        }
        static void at_depth(int bytes) {
            volatile unsigned char room[bytes];
            room[0] = 5;
            empty_below();
            must(signal(SIGUSR2, nothing) != SIG_ERR, \"signal\");
            empty_below();
            struct sigaction action = {.sa_handler = nothing, .sa_flags = SA_ONSTACK};
            must(sigaction(SIGUSR2, &action, NULL) == 0, \"sigaction\");
            empty_below();
            must(signal(SIGSYS, nothing) != SIG_ERR, \"signal\");
            must(room[0] == 5, \"what is above\");
            if (turn % 8) return;
            empty_below();
            char *words[] = {\"true\", NULL};
            pid_t child;
            int status;
            must(posix_spawnp(&child, \"true\", NULL, NULL, words, environ) == 0, \"posix_spawnp\");
            must(waitpid(child, &status, 0) == child && status == 0, \"the child\");
        }
        static void run(void) {
            for (turn = 0; turn < TURNS; turn++) at_depth(64 + STEP * turn);
        }",
        r#"
        low = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        unsigned char *data = evicted_filled(8 << 20, 3);
        getcontext(&coroutine);
        coroutine.uc_stack.ss_sp = low;
        coroutine.uc_stack.ss_size = STACK;
        coroutine.uc_link = &home;
        makecontext(&coroutine, run, 0);
        must(swapcontext(&home, &coroutine) == 0 && turn == TURNS, "the coroutine");
        all(data, 8 << 20, 3, "afterwards");"#,
    );
}
