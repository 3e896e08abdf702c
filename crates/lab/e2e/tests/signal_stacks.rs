// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Programs' alternate signal stacks: freed while they are set, and used by handlers as in a native run.
//!
//! A fault used to be signalled on whatever stack the program had last given to sigaltstack(2). Ruby frees that memory
//! when it exits; the kernel could not write the signal's frame there and ended the program by SIGSEGV, in one run of
//! six.

use aquifer_e2e::evicted_memory::works;

const STACK: &str = "
    #include <ucontext.h>
    #include <execinfo.h>
    #include <linux/futex.h>
    #include <time.h>
    enum { STACK = 64 << 10 };
    static unsigned char *data, *stack;
    static int on_stack(void) {
        unsigned char here;
        unsigned char *volatile at = &here;
        return at >= stack && at < stack + STACK;
    }
    static void use_stack(int flags) {
        if (!stack) stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        stack_t given = {.ss_sp = stack, .ss_size = STACK, .ss_flags = flags};
        must(sigaltstack(&given, NULL) == 0, \"sigaltstack\");
    }
    static void handle(int number, void (*handler)(int, siginfo_t *, void *), int flags) {
        struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags}, found;
        sigemptyset(&action.sa_mask);
        must(sigaction(number, &action, NULL) == 0 && sigaction(number, NULL, &found) == 0, \"sigaction\");
        must(found.sa_sigaction == handler && (found.sa_flags & ~0x04000000) == action.sa_flags, \"what was set\");
    }
";

fn with_stacks(name: &str, functions: &str, body: &str) {
    works(name, &format!("{STACK}\n{functions}"), body);
}

#[test]
fn a_stack_that_is_freed_while_it_is_set_does_not_end_the_program() {
    with_stacks(
        "freed-stack",
        "static void *on_a_thread(void *none) {
            unsigned char *own = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            stack_t given = {.ss_sp = own, .ss_size = STACK};
            must(sigaltstack(&given, NULL) == 0 && munmap(own, STACK) == 0, \"a thread's\");
            all(data, 8 << 20, 3, \"on a thread\");
            return none;
        }",
        r#"
        use_stack(0);
        must(munmap(stack, STACK) == 0, "munmap");
        data = evicted_filled(8 << 20, 3);
        all(data, 8 << 20, 3, "wrapped");
        press();
        /* By the system call itself, once calls trap and once they may not yet. */
        stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        stack_t given = {.ss_sp = stack, .ss_size = STACK}, found;
        must(direct(SYS_sigaltstack, (long)&given, 0, 0, 0, 0, 0) == 0, "direct");
        must(direct(SYS_sigaltstack, 0, (long)&found, 0, 0, 0, 0) == 0 && found.ss_sp == stack, "direct");
        all(data, 1 << 20, 3, "one fault takes it over");
        must(munmap(stack, STACK) == 0, "munmap");
        press();
        all(data, 8 << 20, 3, "direct");
        pthread_t thread;
        must(pthread_create(&thread, NULL, on_a_thread, NULL) == 0 && pthread_join(thread, NULL) == 0, "thread");"#,
    );
}

#[test]
fn handlers_run_on_the_programs_stack_with_its_masks_and_can_be_left() {
    with_stacks(
        "handlers",
        "static volatile int outer, inner; static sigjmp_buf out;
        static void on_inner(int number, siginfo_t *info, void *context) {
            must(on_stack() && number == SIGUSR2 && info->si_code == SI_TKILL && context, \"inner\");
            all(data, 1 << 20, 3, \"in an inner handler\");
            inner++;
        }
        static void on_outer(int number, siginfo_t *info, void *context) {
            unsigned char mine[4096];
            stack_t found, other = {.ss_sp = data, .ss_size = STACK};
            sigset_t mask;
            memset(mine, 77, sizeof mine);
            must(on_stack() && number == SIGUSR1 && info->si_pid == getpid() && context, \"outer\");
            must(sigaltstack(NULL, &found) == 0 && found.ss_flags == SS_ONSTACK && found.ss_sp == stack, \"known\");
            must(sigaltstack(&other, NULL) == -1 && errno == EPERM, \"not while it is used\");
            must(sigprocmask(SIG_SETMASK, NULL, &mask) == 0 && sigismember(&mask, SIGUSR1), \"mask\");
            must(!sigismember(&mask, SIGUSR2) && !sigismember(&mask, SIGTERM), \"mask\");
            press();
            raise(SIGUSR2);
            all(mine, sizeof mine, 77, \"below an inner handler\");
            all(data, 1 << 20, 3, \"in a handler\");
            void *frames[64];
            must(backtrace(frames, 64) > 3, \"unwinding\");
            outer++;
        }
        static void on_jump(int number, siginfo_t *info, void *context) {
            must(on_stack() && info && context, \"jump\");
            data[number]++;
            siglongjmp(out, 1);
        }",
        r#"
        use_stack(0);
        data = evicted_filled(8 << 20, 3);
        handle(SIGUSR1, on_outer, SA_ONSTACK);
        handle(SIGUSR2, on_inner, SA_ONSTACK);
        for (int turn = 0; turn < 3; turn++) { raise(SIGUSR1); all(data, 8 << 20, 3, "between"); }
        must(outer == 3 && inner == 3, "all of them came");
        sigset_t mask, without;
        must(sigprocmask(SIG_SETMASK, NULL, &mask) == 0 && !sigismember(&mask, SIGUSR1), "mask");
        handle(SIGUSR2, on_jump, SA_ONSTACK);
        for (volatile int turn = 0; turn < 3000; turn++)
            if (!sigsetjmp(out, 1)) { raise(SIGUSR2); return 9; }
        must(data[SIGUSR2] == (unsigned char)(3 + 3000), "jumps");
        data[SIGUSR2] = 3;
        /* Read and put back by the system call itself. */
        struct { void *handler; unsigned long flags; void *restorer; unsigned long mask; } kernels = {0};
        must(direct(SYS_rt_sigaction, SIGUSR2, 0, (long)&kernels, 8, 0, 0) == 0, "direct");
        must(direct(SYS_rt_sigaction, SIGUSR2, (long)&kernels, 0, 8, 0, 0) == 0, "direct");
        if (!sigsetjmp(out, 1)) { raise(SIGUSR2); return 9; }
        must(data[SIGUSR2] == 4, "direct");
        data[SIGUSR2] = 3;
        /* In a call that waits. */
        handle(SIGUSR2, on_inner, SA_ONSTACK | SA_RESETHAND);
        sigemptyset(&without);
        sigaddset(&without, SIGUSR2);
        sigprocmask(SIG_BLOCK, &without, NULL);
        raise(SIGUSR2);
        sigemptyset(&without);
        must(sigsuspend(&without) == -1 && errno == EINTR && inner == 4, "sigsuspend");
        struct sigaction found;
        must(sigaction(SIGUSR2, NULL, &found) == 0 && found.sa_handler == SIG_DFL, "reset");"#,
    );
}

#[test]
fn registers_survive_handlers_that_come_at_any_moment() {
    with_stacks(
        "registers",
        "static volatile int came;
        static void on_tick(int number, siginfo_t *info, void *context) {
            double sum = number;
            for (int turn = 1; turn < 20; turn++) sum = sum * 1.5 + (double)(uintptr_t)info / turn;
            data[(uintptr_t)(came * 7919) % (8 << 20)] = 3;
            must(on_stack() && context && sum != 0, \"tick\");
            came++;
        }
        static double work(void) {
            double sum = 0;
            for (int turn = 0; turn < 30; turn++)
                for (size_t at = 0; at < 8 << 20; at += 512) sum = sum * 0.999 + data[at] * (turn + 0.25);
            return sum;
        }",
        r#"
        data = evicted_filled(8 << 20, 3);
        double wanted = work();
        use_stack(0);
        handle(SIGALRM, on_tick, SA_ONSTACK | SA_RESTART);
        struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
        for (int turn = 0; turn < 3; turn++) {
            setitimer(ITIMER_REAL, &often, NULL);
            press();
            must(work() == wanted, "a sum");
        }
        int ends[2];
        must(pipe(ends) == 0, "pipe");
        for (int turn = 0; turn < 200; turn++) {
            struct timespec pause = {0, 500000};
            nanosleep(&pause, NULL);
            must(write(ends[1], data, 1000) == 1000 && read(ends[0], data + (4 << 20), 1000) == 1000, "a pipe");
        }
        setitimer(ITIMER_REAL, &never, NULL);
        must(came > 10, "ticks");
        all(data, 8 << 20, 3, "afterwards");"#,
    );
}

#[test]
fn overflows_of_stacks_are_handled_and_a_stack_can_disarm_itself() {
    with_stacks(
        "overflow",
        "static sigjmp_buf out; static volatile int came;
        static void on_fault(int number, siginfo_t *info, void *context) {
            must(on_stack() && (number == SIGSEGV || number == SIGBUS) && info->si_addr && context, \"fault\");
            all(data, 1 << 20, 3, \"in the handler\");
            came++;
            siglongjmp(out, 1);
        }
        static int deep(volatile unsigned char *above) {
            volatile unsigned char mine[4096];
            mine[0] = above ? above[0] + 1 : 0;
            return came > 1000 ? 0 : deep(mine) + mine[0];
        }
        static void on_signal(int number, siginfo_t *info, void *context) {
            stack_t found;
            must(on_stack() && number && info && context, \"disarmed\");
            must(sigaltstack(NULL, &found) == 0 && found.ss_flags & SS_DISABLE, \"none while its handler runs\");
            press();
            came++;
        }
        static void *overflows(void *none) {
            unsigned char *before = stack;
            stack = NULL;
            use_stack(0);
            if (!sigsetjmp(out, 1)) deep(NULL);
            stack = before;
            return none;
        }",
        r#"
        data = evicted_filled(8 << 20, 3);
        use_stack(0);
        handle(SIGSEGV, on_fault, SA_ONSTACK);
        handle(SIGBUS, on_fault, SA_ONSTACK);
        for (volatile int turn = 0; turn < 3; turn++)
            if (!sigsetjmp(out, 1)) { press(); return deep(NULL); }
        must(came == 3, "overflows");
        pthread_t thread;
        must(pthread_create(&thread, NULL, overflows, NULL) == 0 && pthread_join(thread, NULL) == 0 && came == 4, "thread");
        char path[] = "/tmp/aquifer-e2e-overflow-XXXXXX";
        int file = mkstemp(path);
        must(ftruncate(file, PAGE) == 0, "ftruncate");
        unlink(path);
        unsigned char *volatile beyond = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, file, 0);
        for (volatile int turn = 0; turn < 3; turn++)
            if (!sigsetjmp(out, 1)) { press(); return beyond[PAGE]; }
        must(came == 7, "SIGBUS of the program's own");
        use_stack(1 << 31);
        handle(SIGUSR1, on_signal, SA_ONSTACK);
        for (int turn = 0; turn < 3; turn++) {
            stack_t found;
            raise(SIGUSR1);
            must(sigaltstack(NULL, &found) == 0 && found.ss_sp == stack && found.ss_flags == 1 << 31, "armed again");
        }
        must(came == 10, "disarming");
        all(data, 8 << 20, 3, "afterwards");"#,
    );
}

#[test]
fn a_thread_that_waits_is_interrupted_on_its_own_stack() {
    // SBCL's collector searches that stack. A futex wait on managed memory used to be made in the handler of a trapped
    // call, so that the context of the next handler pointed to the library's stack.
    with_stacks(
        "waiting",
        "enum { WAITERS = 4, PIECE = 4096, ROUNDS = 200 };
        static struct { int ready, came, outside; pthread_t id; char *low, *high; } *waiters;
        static __thread int mine;
        static void on_signal(int number, siginfo_t *info, void *context) {
            char *at = (char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RSP];
            must(number == SIGUSR2 && info, \"the signal\");
            if (at < waiters[mine].low || at >= waiters[mine].high) waiters[mine].outside++;
            __atomic_add_fetch(&waiters[mine].came, 1, __ATOMIC_SEQ_CST);
        }
        static void *wait_and_tell(void *number) {
            mine = (int)(long)number;
            pthread_attr_t attributes; void *low; size_t len;
            must(pthread_getattr_np(pthread_self(), &attributes) == 0, \"attributes\");
            must(pthread_attr_getstack(&attributes, &low, &len) == 0, \"stack\");
            waiters[mine].low = low, waiters[mine].high = (char *)low + len;
            __atomic_store_n(&waiters[mine].ready, 1, __ATOMIC_SEQ_CST);
            int *words = (int *)(data + (size_t)mine * (1 << 20));
            for (int round = 1; round <= ROUNDS; round++) {
                int *word = words + round % 200 * (PIECE / 4);
                struct timespec soon = {.tv_nsec = 1000000};
                for (;;) {
                    int seen = __atomic_load_n(word, __ATOMIC_SEQ_CST);
                    if (seen == round) break;
                    long done = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, round % 3 ? NULL : &soon, NULL, 0);
                    must(done == 0 || errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT, \"futex\");
                }
            }
            must(syscall(SYS_futex, NULL, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0) == -1 && errno == EFAULT, \"no word\");
            return NULL;
        }",
        r#"
        data = evicted_filled(8 << 20, 0);
        waiters = mmap(NULL, 1 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        handle(SIGUSR2, on_signal, SA_RESTART);
        for (long n = 0; n < WAITERS; n++)
            must(pthread_create(&waiters[n].id, NULL, wait_and_tell, (void *)n) == 0, "pthread_create");
        for (int n = 0; n < WAITERS; n++) while (!__atomic_load_n(&waiters[n].ready, __ATOMIC_SEQ_CST)) usleep(1000);
        for (int round = 1; round <= ROUNDS; round++) {
            if (round % 10 == 0) press();
            for (int n = 0; n < WAITERS; n++) {
                if (round % 10 == 5) usleep(2000), pthread_kill(waiters[n].id, SIGUSR2);
                int *word = (int *)(data + (size_t)n * (1 << 20)) + round % 200 * (PIECE / 4);
                __atomic_store_n(word, round, __ATOMIC_SEQ_CST);
                syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
            }
        }
        int outside = 0, came = 0;
        for (int n = 0; n < WAITERS; n++) {
            must(pthread_join(waiters[n].id, NULL) == 0, "pthread_join");
            outside += waiters[n].outside, came += waiters[n].came;
        }
        must(came > 0, "signals came");
        if (outside) { fprintf(stderr, "%d of %d handlers saw another stack\n", outside, came); return 4; }"#,
    );
}

#[test]
fn a_handler_above_the_frame_it_interrupts_leaves_the_calls_memory_pinned() {
    // Aquifer released the pins of a waiting call: the handler's call had a higher stack pointer, so Aquifer took the
    // waiting call for one that a jump had left.
    works(
        "stack-above",
        "enum { SIZE = 64 << 10, LEN = 1000 };
        static int ends[2], others[2]; static unsigned char *into, *from; static pthread_t reader;
        static volatile int handled;
        static void on_signal(int number) {
            (void)number;
            must(write(others[1], from, LEN) == LEN, \"a call in the handler\");
            handled++;
        }
        static void *interrupt(void *none) {
            usleep(100000);
            for (int turn = 1; turn <= 3; turn++) {
                must(pthread_kill(reader, SIGUSR1) == 0, \"pthread_kill\");
                while (handled < turn) usleep(1000);
                usleep(10000);
                press();
            }
            must(write(ends[1], from, LEN) == LEN, \"what the reader waits for\");
            return none;
        }
        __attribute__((noinline)) static ssize_t read_below(void) {
            char room[1024];
            __asm__ volatile(\"\" : : \"r\"(room) : \"memory\");
            ssize_t got = read(ends[0], into, LEN);
            __asm__ volatile(\"\" : : \"r\"(room) : \"memory\");
            return got;
        }",
        r#"
        unsigned char own[SIZE];
        stack_t given = {.ss_sp = own, .ss_size = sizeof own};
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK | SA_RESTART};
        must(pipe(ends) == 0 && pipe(others) == 0 && sigaltstack(&given, NULL) == 0, "setup");
        must(sigaction(SIGUSR1, &action, NULL) == 0, "sigaction");
        from = evicted_filled(LEN, 5);
        into = evicted(LEN);
        reader = pthread_self();
        pthread_t thread;
        must(pthread_create(&thread, NULL, interrupt, NULL) == 0, "pthread_create");
        must(read_below() == LEN, "read");
        all(into, LEN, 5, "what was read");
        must(pthread_join(thread, NULL) == 0 && handled == 3, "pthread_join");"#,
    );
}

#[test]
fn a_program_that_asks_the_kernel_itself_keeps_the_stack_that_it_finds() {
    // As Go's runtime does on each thread of a program with C. Its handler compares its frame with that stack, and
    // ended the program.
    with_stacks(
        "found-stack",
        "static __thread stack_t found; static __thread int came; static pthread_barrier_t turn;
        static void on_signal(int number, siginfo_t *info, void *context) {
            char here, *at = &here, *low = found.ss_sp;
            must(number == SIGUSR1 && info && context && at > low && at < low + found.ss_size, \"the stack that was found\");
            all(data, data ? 1 << 20 : 0, 3, \"in a handler\");
            came++;
        }
        static void ask(void) {
            must(direct(SYS_sigaltstack, 0, (long)&found, 0, 0, 0, 0) == 0, \"direct\");
            if (!(found.ss_flags & SS_DISABLE)) return;
            found = (stack_t){.ss_sp = malloc(STACK), .ss_size = STACK};
            must(direct(SYS_sigaltstack, (long)&found, 0, 0, 0, 0, 0) == 0, \"none was found\");
        }
        static void *on_a_thread(void *none) {
            ask();
            pthread_kill(pthread_self(), SIGUSR1);
            pthread_barrier_wait(&turn);
            pthread_barrier_wait(&turn);
            for (int i = 0; i < 3; i++) pthread_kill(pthread_self(), SIGUSR1), all(data, 8 << 20, 3, \"on a thread\");
            must(came == 4, \"on a thread\");
            return none;
        }",
        r#"
        ask();
        handle(SIGUSR1, on_signal, SA_ONSTACK | SA_RESTART);
        raise(SIGUSR1);
        pthread_t thread;
        pthread_barrier_init(&turn, NULL, 2);
        must(pthread_create(&thread, NULL, on_a_thread, NULL) == 0, "thread");
        pthread_barrier_wait(&turn);
        data = evicted_filled(8 << 20, 3);
        raise(SIGUSR1);
        pthread_barrier_wait(&turn);
        press();
        for (int i = 0; i < 3; i++) raise(SIGUSR1), all(data, 8 << 20, 3, "afterwards");
        must(pthread_join(thread, NULL) == 0 && came == 5, "came");
        /* What it sets itself counts from then on. */
        use_stack(0);
        found = (stack_t){.ss_sp = stack, .ss_size = STACK};
        raise(SIGUSR1);"#,
    );
}

#[test]
fn handlers_that_jump_out_of_waits_keep_their_stack() {
    // Each of them had a smaller part of Aquifer's stack left for the next, and at last ran on Aquifer's itself.
    with_stacks(
        "jumps-from-waits",
        "enum { JUMPS = 100 };
        static sigjmp_buf out;
        static volatile int came, elsewhere;
        static void on_signal(int number, siginfo_t *info, void *context) {
            must(number && info && context, \"arguments\");
            elsewhere += !on_stack();
            came++;
            siglongjmp(out, 1);
        }",
        r#"
        use_stack(0);
        data = evicted_filled(8 << 20, 3);
        handle(SIGALRM, on_signal, SA_ONSTACK);
        int ends[2];
        must(pipe(ends) == 0, "pipe");
        struct itimerval soon = {.it_value = {.tv_usec = 3000}};
        char *into = malloc(100);
        for (volatile int turn = 0; turn < JUMPS; turn++) {
            if (sigsetjmp(out, 1)) continue;
            must(setitimer(ITIMER_REAL, &soon, NULL) == 0, "setitimer");
            direct(SYS_read, ends[0], (long)into, 100, 0, 0, 0);
            return 5;
        }
        must(came == JUMPS, "each signal");
        if (elsewhere) { fprintf(stderr, "%d of %d handlers ran elsewhere\n", elsewhere, came); return 4; }
        all(data, 8 << 20, 3, "afterwards");"#,
    );
}

#[test]
fn a_handler_without_a_stack_of_its_own_sees_who_called() {
    // Its frame stays where the kernel has put it, on Aquifer's stack.
    with_stacks(
        "unmoved-backtrace",
        "#include <execinfo.h>
        static volatile int depth;
        static void *frames[64];
        static void on_signal(int number) { depth = number ? backtrace(frames, 64) : 0; }
        static void __attribute__((noinline)) one(int again) {
            if (again) one(again - 1); else must(raise(SIGUSR1) == 0, \"raise\");
            depth++;
        }",
        r#"
        backtrace(frames, 64);
        data = evicted_filled(8 << 20, 3);
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
        must(sigaction(SIGUSR1, &action, NULL) == 0, "sigaction");
        one(20);
        if (depth < 21 + 20) { fprintf(stderr, "only %d frames\n", depth - 21); return 4; }
        all(data, 8 << 20, 3, "afterwards");"#,
    );
}
