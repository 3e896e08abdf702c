// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A signal handler of the program interrupts a function that the library wraps. While such a function created a thread
//! or set the locale, the handler used to count as the library's own code: memory that it mapped was not managed, and
//! its calls could meet evicted memory. These functions now run with signals blocked, and a new thread still starts
//! with its creator's mask.

use aquifer_e2e::evicted_memory::works_with;

const FUNCTIONS: &str = r#"
#include <locale.h>
enum { HANDLED = 300, LEN = 1 << 20 };
static unsigned char *mapped[HANDLED];
static int handled;
static void on_signal(int signal) {
    (void)signal;
    int before = errno;
    int index = handled < HANDLED ? __sync_fetch_and_add(&handled, 1) : HANDLED;
    if (index < HANDLED) {
        unsigned char *start = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mapped[index] = start == MAP_FAILED ? 0 : start;
    }
    errno = before;
}
static sigset_t mask(void) {
    sigset_t now;
    must(pthread_sigmask(SIG_SETMASK, 0, &now) == 0, "the mask");
    return now;
}
static void must_be_mask(const sigset_t *wanted) {
    sigset_t now = mask();
    for (int signal = 1; signal < 65; signal++)
        if (sigismember(&now, signal) != sigismember(wanted, signal)) {
            fprintf(stderr, "the thread has signal %d %s\n",
                signal, sigismember(&now, signal) ? "blocked" : "unblocked");
            exit(1);
        }
}
static void *thread(void *wanted) {
    must_be_mask(wanted);
    return 0;
}
static void make_thread(void) {
    pthread_t made;
    sigset_t own = mask();
    must(pthread_create(&made, 0, thread, &own) == 0 && pthread_join(made, 0) == 0, "a thread");
}
static void set_locale(void) {
    must(setlocale(LC_ALL, "C.UTF-8") || setlocale(LC_ALL, "C"), "setlocale");
    must(setlocale(LC_ALL, "C") != 0, "setlocale");
}
static void stream(void) {
    static FILE *from;
    static unsigned char *into;
    if (!into) into = evicted(1 << 20);
    if (!from) from = fopen("/dev/zero", "r");
    must(fread(into, 1, 1 << 20, from) == 1 << 20, "fread");
}
/* How many of the mapped ranges are not registered with userfaultfd. */
static int unmanaged(void) {
    char line[4096];
    unsigned long start = 0, end = 0;
    int count = 0;
    FILE *smaps = fopen("/proc/self/smaps", "r");
    must(smaps != 0, "smaps");
    while (fgets(line, sizeof line, smaps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) { start = from; end = to; }
        if (strncmp(line, "VmFlags:", 8) || strstr(line, " um")) continue;
        for (int index = 0; index < HANDLED; index++)
            count += (unsigned long)mapped[index] >= start && (unsigned long)mapped[index] < end;
    }
    fclose(smaps);
    return count;
}
static void interrupted(void (*call)(void), const char *what) {
    handled = 0;
    memset(mapped, 0, sizeof mapped);
    timer_t timer;
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
    struct itimerspec often = { { 0, 100000 }, { 0, 100000 } };
    must(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &often, 0) == 0, "a timer");
    while (handled < HANDLED) call();
    timer_delete(timer);
    int wrong = unmanaged();
    if (wrong) { fprintf(stderr, "%s: %d of %d mappings of handlers are not managed\n", what, wrong, HANDLED); exit(1); }
    for (int index = 0; index < HANDLED; index++) must(munmap(mapped[index], LEN) == 0, "munmap");
}
"#;

const BODY: &str = r#"
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    must(sigaction(SIGUSR1, &action, 0) == 0, "sigaction");
    free(evicted(8 << 20));
    interrupted(set_locale, "setlocale");
    interrupted(make_thread, "pthread_create");
    interrupted(stream, "fread");
    sigset_t some;
    sigemptyset(&some);
    sigaddset(&some, SIGUSR2);
    sigaddset(&some, SIGTERM);
    must(pthread_sigmask(SIG_BLOCK, &some, 0) == 0, "a mask");
    make_thread();
    pthread_t made;
    pthread_attr_t attributes;
    sigdelset(&some, SIGUSR2);
    sigaddset(&some, SIGHUP);
    must(pthread_attr_init(&attributes) == 0 && pthread_attr_setsigmask_np(&attributes, &some) == 0, "attributes");
    must(pthread_create(&made, &attributes, thread, &some) == 0 && pthread_join(made, 0) == 0, "a thread with a mask");
"#;

#[test]
fn a_handler_that_interrupts_a_call_of_the_library_is_the_programs() {
    works_with(&[("signal", "auto"), ("listener", "auto")], "handlers_within_calls", FUNCTIONS, BODY);
}
