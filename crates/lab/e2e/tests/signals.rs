// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Signals of a program whose memory is evicted: blocked, handled, sent to itself, and left by a jump.
//!
//! Under signal delivery a fault is a signal. A thread that had blocked all signals used to be ended by its next fault;
//! a thread that is cancelled, or jumps out of a wait, must leave nothing pinned.

use aquifer_e2e::build::compile_text;
use aquifer_e2e::evicted_memory::{PROLOGUE, SETTINGS, works};
use aquifer_e2e::run::{LIMIT, managed, run};

/// The kernel ends a program whose fault cannot be signalled.
#[test]
fn blocking_every_signal_is_no_end() {
    works(
        "masks",
        "static unsigned char *data; static volatile int handled;
        static void on_signal(int number) { handled += number > 0; press(); all(data, 4 << 20, 8, \"in a handler\"); }
        static void *blind(void *unused) {
            (void)unused;
            sigset_t every;
            sigfillset(&every);
            must(pthread_sigmask(SIG_SETMASK, &every, NULL) == 0, \"pthread_sigmask\");
            press();
            all(data, 4 << 20, 8, \"all signals blocked\");
            must(direct(SYS_pread64, open(\"/proc/self/exe\", O_RDONLY), (long)evicted(1), 1000, 0, 0, 0) == 1000, \"pread64\");
            return NULL;
        }",
        r#"
        pthread_t thread;
        data = evicted_filled(4 << 20, 8);
        must(pthread_create(&thread, NULL, blind, NULL) == 0 && pthread_join(thread, NULL) == 0, "thread");
        struct sigaction action = {.sa_handler = on_signal};
        sigfillset(&action.sa_mask);
        must(sigaction(SIGUSR1, &action, NULL) == 0, "sigaction");
        for (int turn = 0; turn < 3; turn++) { press(); raise(SIGUSR1); }
        sigset_t every, before;
        sigfillset(&every);
        must(sigprocmask(SIG_SETMASK, &every, &before) == 0, "sigprocmask");
        press();
        all(data, 4 << 20, 8, "sigprocmask");
        uint64_t mask = ~0ull;
        direct(SYS_rt_sigprocmask, SIG_SETMASK, (long)&mask, 0, 8, 0, 0);
        press();
        all(data, 4 << 20, 8, "rt_sigprocmask");
        kill(getpid(), SIGUSR1);
        sigdelset(&every, SIGUSR1);
        sigsuspend(&every);
        must(handled == 4, "sigsuspend");
        must(sigprocmask(SIG_SETMASK, &before, NULL) == 0, "sigprocmask");
        stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16}, found;
        must(sigaltstack(&stack, NULL) == 0 && sigaltstack(NULL, &found) == 0 && found.ss_sp == stack.ss_sp, "sigaltstack");
        press();
        all(data, 4 << 20, 8, "on another stack");"#,
    );
}

/// The program's own actions for the signals that the pager uses.
#[test]
fn the_programs_own_handlers_for_our_signals_are_kept() {
    works(
        "wishes",
        "static volatile int seen; static sigjmp_buf out;
        static void on_sys(int number, siginfo_t *info, void *context) { (void)number, (void)context; seen += info->si_code == SI_TKILL || info->si_code == SI_USER; }
        static void on_bus(int number) { (void)number; siglongjmp(out, 1); }",
        r#"
        struct sigaction action = {.sa_sigaction = on_sys, .sa_flags = SA_SIGINFO}, found;
        sigaddset(&action.sa_mask, SIGUSR1);
        must(sigaction(SIGSYS, &action, NULL) == 0, "sigaction");
        unsigned char *data = evicted_filled(4 << 20, 8);
        raise(SIGSYS);
        must(seen == 1, "SIGSYS before");
        memset(&found, 255, sizeof found);
        must(sigaction(SIGSYS, NULL, &found) == 0 && found.sa_sigaction == on_sys, "remembered");
        for (int number = 1; number < 64; number++)
            must(sigismember(&found.sa_mask, number) == (number == SIGUSR1), "the mask is remembered");
        must(signal(SIGBUS, on_bus) != SIG_ERR, "signal");
        char path[] = "/tmp/aquifer-e2e-wishes-XXXXXX";
        int file = mkstemp(path);
        must(ftruncate(file, PAGE) == 0, "ftruncate");
        volatile char *behind = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, file, 0);
        for (volatile int turn = 0; turn < 3; turn++) {
            if (!sigsetjmp(out, 1)) { char lost = behind[PAGE]; (void)lost; return 9; }
            press();
            all(data, 4 << 20, 8, "after a SIGBUS of the program's own");
        }
        unlink(path);"#,
    );
}

/// Regression test: the pager's handler swallowed a SIGBUS or SIGSYS that a program sent to itself, so its default
/// action did not end the program.
#[test]
fn sigbus_and_sigsys_that_a_program_raises_keep_their_action() {
    let main = "int main(int count, char **words) { evicted(1); int number = atoi(words[1]); (void)count;
        if (*words[2] == 'i') must(signal(number, SIG_IGN) != SIG_ERR, \"signal\");
        raise(number); press(); return 0; }";
    let Some(program) = compile_text("own-signals", &format!("{PROLOGUE}\n{main}\n")) else { return };
    for (delivery, exchange) in SETTINGS {
        let words = ["--dram", "24MiB", "--tier", "dram:", "--delivery", delivery, "--exchange", exchange];
        for number in [7, 31] {
            run(managed(&words, &program, &[&number.to_string(), "ignored"]), LIMIT).expect(0);
            run(managed(&words, &program, &[&number.to_string(), "default"]), LIMIT).expect(128 + number);
        }
    }
}

/// Wrapped and trapped calls are cancellation points, as in the C library, and a cancelled call releases its pins.
#[test]
fn a_waiting_thread_can_be_cancelled() {
    works(
        "cancel",
        "static int ends[2], pair[2], cleaned; static unsigned char *far;
        static void clean(void *unused) { (void)unused; __atomic_add_fetch(&cleaned, 1, __ATOMIC_SEQ_CST); }
        static void *waiter(void *kind) {
            pthread_cleanup_push(clean, NULL);
            char near[16];
            struct pollfd one = {.fd = ends[0], .events = POLLIN};
            switch ((long)kind) {
            case 0: (void)!read(ends[0], near, sizeof near); break;
            case 1: (void)!read(ends[0], far, 1 << 20); break;
            case 2: poll(&one, 1, -1); break;
            case 3: recv(pair[0], far, 1 << 20, 0); break;
            case 4: { struct iovec in = {far, 100}; struct msghdr message = {.msg_iov = &in, .msg_iovlen = 1};
                      recvmsg(pair[0], &message, 0); break; }
            case 5: pause(); break;
            case 6: { struct timespec long_time = {100, 0}; nanosleep(&long_time, NULL); break; }
            case 7: { struct timespec *far_time = (struct timespec *)far;
                      *far_time = (struct timespec){100, 0};
                      nanosleep(far_time, NULL); break; }
            default: for (;;) pthread_testcancel();
            }
            pthread_cleanup_pop(0);
            return NULL;
        }",
        r#"
        must(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "pipe");
        far = evicted(8 << 20);
        for (int turn = 0; turn < 40; turn++)
            for (long kind = 0; kind < 9; kind++) {
                pthread_t thread; void *result;
                must(pthread_create(&thread, NULL, waiter, (void *)kind) == 0, "pthread_create");
                usleep(turn % 4 * 700);
                must(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0, "pthread_join");
                must(result == PTHREAD_CANCELED, "cancelled");
            }
        press();
        must(cleaned == 360, "cleaned up");"#,
    );
}

/// A thread can be cancelled wherever it is at that moment: between its calls, in the library's code, or in the kernel.
/// The code that runs for a trapped call used to be cancellable only at its own calls; elsewhere SIGABRT ended the
/// process.
#[test]
fn a_busy_thread_can_be_cancelled_at_any_moment() {
    works(
        "cancel-busy",
        "#include <semaphore.h>
        enum { KINDS = 8, ENTRIES = 600 };
        static int ends[2], cleaned; static unsigned char *far; static sem_t never; static volatile int begun;
        static struct iovec vector[ENTRIES];
        static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
        static pthread_cond_t nobody = PTHREAD_COND_INITIALIZER;
        static void clean(void *held) { cleaned++; if (held) pthread_mutex_unlock(held); }
        static void *caller(void *kind) {
            char near[64];
            struct timespec *far_moment = (struct timespec *)far;
            pthread_cleanup_push(clean, (long)kind == 1 ? &lock : NULL);
            if ((long)kind > 4) pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
            for (;; begun = 1) switch ((long)kind) {
            case 0: sem_wait(&never); break;
            case 1: pthread_mutex_lock(&lock); pthread_cond_wait(&nobody, &lock); break;
            case 2: nanosleep(far_moment, NULL); break;
            case 3: (void)!preadv2(ends[0], vector, ENTRIES, -1, 0); break;
            case 4: (void)!read(ends[0], far, 1000); break;
            case 5: (void)!read(ends[0], near, sizeof near); break;
            case 6: (void)!preadv2(ends[0], vector, ENTRIES, -1, 0); break;
            default: direct(SYS_pread64, ends[0], (long)far, 100, 0, 0, 0); break;
            }
            pthread_cleanup_pop(0);
            return NULL;
        }",
        r#"
        must(pipe2(ends, O_NONBLOCK) == 0 && sem_init(&never, 0, 0) == 0, "pipe");
        far = evicted(8 << 20);
        *(struct timespec *)far = (struct timespec){0, 1};
        for (int index = 0; index < ENTRIES; index++) vector[index] = (struct iovec){far + index * 100, 100};
        press();
        for (int turn = 0; turn < 100; turn++)
            for (long kind = 0; kind < KINDS; kind++) {
                pthread_t thread; void *result;
                begun = 0;
                must(pthread_create(&thread, NULL, caller, (void *)kind) == 0, "pthread_create");
                if (kind < 2) usleep(turn % 4 * 100); else while (!begun) sched_yield();
                for (volatile int spin = 0; spin < turn * 7919 % 20000; spin++);
                must(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0, "pthread_join");
                must(result == PTHREAD_CANCELED, "cancelled");
            }
        must(cleaned == 100 * KINDS, "cleaned up");"#,
    );
}

/// siglongjmp out of a wait leaves nothing behind, however often it is done.
#[test]
fn a_wait_can_be_left_by_a_jump() {
    works(
        "jump",
        "static sigjmp_buf out; static void on_alarm(int number) { (void)number; siglongjmp(out, 1); }",
        r#"
        int ends[2];
        must(pipe(ends) == 0 && signal(SIGVTALRM, on_alarm) != SIG_ERR && signal(SIGUSR1, on_alarm) != SIG_ERR, "setup");
        unsigned char *far = evicted(34 << 20);
        timer_t timer;
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
        must(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create");
        for (volatile int turn = 0; turn < 3000; turn++) {
            struct itimerspec soon = {.it_value.tv_nsec = 200000};
            if (sigsetjmp(out, 1)) continue;
            must(timer_settime(timer, 0, &soon, NULL) == 0, "timer_settime");
            if (turn % 2) (void)!read(ends[0], far + turn * (130ul << 10) % (33 << 20), 10000);
            else direct(SYS_read, ends[0], (long)(far + turn * (130ul << 10) % (33 << 20)), 10000, 0, 0, 0);
            return 9;
        }
        alarm(0);
        far = evicted_filled(16 << 20, 7);
        press();
        all(far, 16 << 20, 7, "afterwards");
        must(write(ends[1], far, 1000) == 1000 && read(ends[0], evicted(1), 1000) == 1000, "pipe");"#,
    );
}

/// siglongjmp out of a call with many entries leaves nothing behind either, at any point, although the library copies
/// the entries to memory that it allocates.
#[test]
fn a_call_with_many_entries_can_be_left_by_a_jump() {
    works(
        "jump-entries",
        "static sigjmp_buf out; static void on_alarm(int number) { (void)number; siglongjmp(out, 1); }",
        r#"
        int ends[2];
        must(pipe(ends) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0 && signal(SIGALRM, on_alarm) != SIG_ERR, "setup");
        struct iovec *vector = (struct iovec *)evicted(1);
        /* Now: what is allocated inside is not managed. */
        unsigned char *far = evicted_filled(1, 7), *into = evicted(1);
        for (int index = 0; index < 60; index++) vector[index] = (struct iovec){(char *)vector + 1024 + index * 32, 32};
        for (volatile int turn = 0; turn < 2000; turn++) {
            if (sigsetjmp(out, 1)) continue;
            struct itimerval soon = {.it_value.tv_usec = 50 + turn % 50};
            must(setitimer(ITIMER_REAL, &soon, NULL) == 0, "setitimer");
            for (;;) (void)!readv(ends[0], vector, 60);
        }
        press();
        must(write(ends[1], far, 1000) == 1000, "write");
        press();
        must(read(ends[0], into, 1000) == 1000, "read");
        all(into, 1000, 7, "read");"#,
    );
}

#[test]
fn handlers_for_our_signals_that_were_set_early_are_shown_and_run_once() {
    // Set before the pager started, with SA_ONSTACK, they used to be shown as Aquifer's own.
    works(
        "early-handlers",
        "static volatile int came;
        static void on_signal(int number, siginfo_t *info, void *context) {
            must(info->si_signo == number && info->si_pid == getpid() && context, \"siginfo\");
            came++;
        }",
        r#"
        int numbers[] = {SIGBUS, SIGSYS}, flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND;
        stack_t given = {.ss_sp = malloc(64 << 10), .ss_size = 64 << 10};
        must(sigaltstack(&given, NULL) == 0, "sigaltstack");
        struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = flags}, found;
        for (int n = 0; n < 2; n++) must(sigaction(numbers[n], &action, NULL) == 0, "sigaction");
        unsigned char *data = evicted_filled(8 << 20, 3);
        for (int n = 0; n < 2; n++) {
            must(sigaction(numbers[n], NULL, &found) == 0 && found.sa_sigaction == on_signal, "the handler");
            must((found.sa_flags & ~0x04000000) == flags, "the flags");
            raise(numbers[n]);
            must(came == n + 1, "it ran");
            must(sigaction(numbers[n], NULL, &found) == 0 && found.sa_handler == SIG_DFL, "SA_RESETHAND");
        }
        all(data, 8 << 20, 3, "afterwards");"#,
    );
}

#[test]
fn a_child_of_vfork_has_actions_of_its_own() {
    works(
        "vfork-actions",
        "static volatile int came, others;
        static int numbers[] = {SIGBUS, SIGSYS, SIGUSR1, SIGUSR2};
        static void on_signal(int number) { came += number > 0; }
        static void on_other(int number) { others += number > 0; }",
        r#"
        static unsigned char *data;
        data = evicted_filled(8 << 20, 3);
        static struct sigaction action = {.sa_handler = on_signal}, other = {.sa_handler = on_other}, found;
        for (int n = 0; n < 4; n++) must(sigaction(numbers[n], &action, NULL) == 0, "sigaction");
        static int status;
        static pid_t child;
        if ((child = vfork()) == 0) {
            for (int n = 0; n < 4; n++) signal(numbers[n], SIG_DFL);
            if (sigaction(SIGUSR2, &other, NULL) != 0 || kill(getpid(), SIGUSR2) != 0) _exit(1);
            _exit(others == 1 ? 0 : 2);
        }
        must(waitpid(child, &status, 0) == child && status == 0, "the child");
        for (int n = 0; n < 4; n++) {
            must(sigaction(numbers[n], NULL, &found) == 0 && found.sa_handler == on_signal, "the parent's action");
            raise(numbers[n]);
        }
        must(came == 4 && others == 1, "handlers");
        all(data, 8 << 20, 3, "afterwards");"#,
    );
}

#[test]
fn many_signals_that_are_not_deferred_come_at_once() {
    // The kernel starts a handler with SA_NODEFER for each of them before the first one runs.
    works(
        "not-deferred",
        "enum { COUNT = 400 };
        static volatile int came;
        static void on_signal(int number, siginfo_t *info, void *context) {
            must(number == SIGRTMIN + 2 && context, \"the signal\");
            came += info->si_value.sival_int;
        }",
        r#"
        unsigned char *data = evicted_filled(8 << 20, 3);
        struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_NODEFER};
        must(sigaction(SIGRTMIN + 2, &action, NULL) == 0, "sigaction");
        sigset_t one, mask;
        sigemptyset(&one);
        sigaddset(&one, SIGRTMIN + 2);
        sigprocmask(SIG_BLOCK, &one, NULL);
        for (int n = 0; n < COUNT; n++) must(sigqueue(getpid(), SIGRTMIN + 2, (union sigval){n}) == 0, "sigqueue");
        press();
        sigprocmask(SIG_UNBLOCK, &one, NULL);
        must(came == COUNT * (COUNT - 1) / 2, "each of them");
        must(sigprocmask(SIG_SETMASK, NULL, &mask) == 0 && !sigismember(&mask, SIGRTMIN + 2), "the mask");
        all(data, 8 << 20, 3, "afterwards");"#,
    );
}

#[test]
fn a_handler_may_leave_every_signal_blocked() {
    works(
        "mask-in-context",
        "#include <ucontext.h>
        static void on_signal(int number, siginfo_t *info, void *context) {
            must(number && info, \"the signal\");
            sigfillset(&((ucontext_t *)context)->uc_sigmask);
        }",
        r#"
        unsigned char *data = evicted_filled(8 << 20, 3);
        struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
        sigset_t mask;
        for (int turn = 0; turn < 2; turn++) {
            must(sigaction(SIGUSR1, &action, NULL) == 0 && raise(SIGUSR1) == 0, "sigaction");
            must(sigprocmask(SIG_SETMASK, NULL, &mask) == 0 && sigismember(&mask, SIGTERM), "all are blocked");
            press();
            all(data, 8 << 20, 3, "afterwards");
            sigemptyset(&mask);
            sigprocmask(SIG_SETMASK, &mask, NULL);
            /* Without a stack of the program's, its frame stays where it is. */
            action.sa_flags |= SA_ONSTACK;
        }"#,
    );
}
