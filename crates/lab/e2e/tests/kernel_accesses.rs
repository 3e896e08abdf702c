// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The kernel's own accesses to evicted memory that are not in `calls.rs`: those that happen later, in another thread
//! or process, or while a thread ends. Each program does the same with and without the pager.
//!
//! A page that was given to a pipe by vmsplice(2) used to move, and the reader got another block's bytes. A thread that
//! ended with an evicted robust mutex left its waiters waiting: the kernel reads the mutex once, and takes no fault
//! then. A thread whose stack the program had placed in managed memory had its thread-local memory evicted, and was
//! killed.

use std::process::Command;

use aquifer_e2e::build::compile_text;
use aquifer_e2e::evicted_memory::{PROLOGUE, SETTINGS};
use aquifer_e2e::run::{LIMIT, managed, run};

/// Runs C natively, and then under these settings: the outputs must be equal.
fn same(settings: &[(&str, &str)], name: &str, functions: &str, body: &str) {
    let source = format!("{PROLOGUE}\n{functions}\nint main(void) {{\nalarm(250);\n{body}\nreturn 0;\n}}\n");
    let Some(program) = compile_text(name, &source) else { return };
    let native = run(Command::new(&program), LIMIT);
    native.expect(0);
    for (delivery, exchange) in settings {
        let words = ["--dram", "24MiB", "--tier", "dram:", "--delivery", delivery, "--exchange", exchange];
        let ended = run(managed(&words, &program, &[]), LIMIT);
        assert_eq!(ended.status, Some(0), "{name} with {delivery}, {exchange}: {}{}", ended.stdout, ended.stderr);
        assert_eq!(ended.stdout, native.stdout, "{name} with {delivery}, {exchange}, and without: {}", ended.stderr);
    }
}

#[test]
fn pipes_and_files_pass_on_what_was_there() {
    same(
        &SETTINGS,
        "pipes",
        "#include <sys/sendfile.h>",
        r#"
        int ends[2], others[2], len = 64 << 10;
        must(pipe(ends) == 0 && pipe(others) == 0 && fcntl(ends[1], F_SETPIPE_SZ, 1 << 20) > 0, "pipe");
        static unsigned char near[1 << 20];
        unsigned char *start = evicted_filled(2 << 20, 5);
        struct iovec *vector = (struct iovec *)evicted_filled(1, 0);
        vector[0] = (struct iovec){start + 4096, len - 100}; vector[1] = (struct iovec){start + (1 << 20), 100};
        press();
        must(vmsplice(ends[1], vector, 2, 0) == len, "vmsplice");
        for (int turn = 0; turn < 4; turn++) press();
        must(tee(ends[0], others[1], len, SPLICE_F_NONBLOCK) > 0, "tee");
        must(read(ends[0], near, len) == len, "what was given to the pipe");
        all(near, len, 5, "vmsplice");
        must(read(others[0], near, len) > 0 && *near == 5, "what was copied by tee");
        /* A pipe that is full accepts no more, and says so. */
        struct iovec much = {evicted_filled(4 << 20, 6), 4 << 20};
        press();
        long taken = vmsplice(ends[1], &much, 1, SPLICE_F_NONBLOCK);
        must(taken > 0 && taken <= 1 << 20, "a full pipe");
        while (vmsplice(ends[1], &much, 1, SPLICE_F_NONBLOCK) > 0);
        must(errno == EAGAIN, "no more");
        for (long got = 0, came; got < taken; got += came) {
            came = read(ends[0], near, taken - got);
            must(came > 0, "read");
            all(near, came, 6, "full pipe");
        }
        errno = 0;
        must(vmsplice(0, &much, 1, 0) == -1, "not a pipe");
        printf("%s\n", strerrorname_np(errno));
        /* Offsets that the kernel reads and writes. */
        char path[] = "/tmp/aquifer-e2e-pipes-XXXXXX";
        int file = mkstemp(path), out[2];
        must(file >= 0 && pipe(out) == 0 && write(file, evicted_filled(1 << 20, 7), 1 << 20) == 1 << 20, "file");
        off_t *offset = (off_t *)evicted_filled(1, 0);
        *offset = 4096; press();
        long sent = sendfile(out[1], file, offset, 8192);
        printf("sendfile %ld, offset %ld\n", sent, (long)*offset);
        press();
        sent = splice(file, offset, out[1], NULL, 4096, 0);
        printf("splice %ld, offset %ld\n", sent, (long)*offset);
        must(read(out[0], near, 12288) == 12288, "read");
        all(near, 12288, 7, "sendfile and splice");
        int copy = open("/tmp", O_TMPFILE | O_RDWR, 0600);
        off_t *to = (off_t *)evicted_filled(1, 0);
        *offset = 0; *to = 100; press();
        if (copy >= 0) printf("copy_file_range %d\n", copy_file_range(file, offset, copy, to, 1000, 0) > 0);
        unlink(path);"#,
    );
}

/// With listeners and pages that move, no call traps, so the instruction itself goes unnoticed. That setting is left
/// out.
#[test]
fn pages_given_to_a_pipe_by_the_call_itself_stay_what_they_are() {
    let settings = [SETTINGS[0], SETTINGS[1], SETTINGS[3]];
    same(
        &settings,
        "raw-pipes",
        "",
        r#"
        int ends[2], len = 64 << 10;
        static unsigned char near[64 << 10];
        must(pipe(ends) == 0 && fcntl(ends[1], F_SETPIPE_SZ, 1 << 20) > 0, "pipe");
        struct iovec vector = {evicted_filled(2 << 20, 5) + 4096, len};
        must(direct(SYS_vmsplice, ends[1], (long)&vector, 1, 0, 0, 0) == len, "vmsplice");
        for (int turn = 0; turn < 4; turn++) press();
        must(read(ends[0], near, len) == len, "what was given to the pipe");
        all(near, len, 5, "vmsplice");"#,
    );
}

#[test]
fn zero_copy_sends_are_refused() {
    let body = "int pair = socket(AF_INET, SOCK_STREAM, 0), yes = 1, no = 0;
        if (pair < 0) return 0;
        must(setsockopt(pair, SOL_SOCKET, SO_ZEROCOPY, &no, sizeof no) == 0, \"not asked for\");
        for (int turn = 0; turn < 2; turn++) {
            errno = 0;
            if (setsockopt(pair, SOL_SOCKET, SO_ZEROCOPY, &yes, sizeof yes) != -1 || errno != EOPNOTSUPP) return 7;
            evicted(1);
        }
        must(setsockopt(pair, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes) == 0, \"others\");";
    let source = format!("{PROLOGUE}\nint main(void) {{\n{body}\nreturn 0;\n}}\n");
    let Some(program) = compile_text("zerocopy", &source) else { return };
    let words = ["--dram", "24MiB", "--tier", "dram:"];
    run(managed(&words, &program, &[]), LIMIT).expect(0).expect_line(
        "aquifer: zero-copy sends (SO_ZEROCOPY) are refused (EOPNOTSUPP): a page could move while it is being sent",
    );
}

/// With exchange by copying, asynchronous I/O is refused: `pins.rs`.
#[test]
fn asynchronous_io_finds_its_memory() {
    same(
        &SETTINGS[..3],
        "aio",
        "#include <linux/aio_abi.h>",
        r#"
        aio_context_t *context = (aio_context_t *)evicted_filled(1, 0);
        press();
        if (syscall(SYS_io_setup, 8, context) < 0) { printf("no asynchronous I/O here\n"); return 0; }
        char path[] = "/var/tmp/aquifer-e2e-aio-XXXXXX";
        int file = mkstemp(path);
        int bare = open(path, O_RDWR | O_DIRECT);
        if (bare < 0) bare = dup(file);
        enum { LEN = 1 << 20 };
        unsigned char *out = aligned_alloc(PAGE, 2 << 20), *in = aligned_alloc(PAGE, 2 << 20);
        memset(out, 3, 2 << 20); memset(in, 0, 2 << 20);
        for (int turn = 0; turn < 2; turn++) {
            struct iocb *request = (struct iocb *)evicted_filled(1, 0), **list = (struct iocb **)evicted_filled(1, 0);
            request->aio_fildes = bare; request->aio_nbytes = LEN; request->aio_data = 42;
            request->aio_lio_opcode = turn ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE;
            request->aio_buf = (uint64_t)(turn ? in : out);
            *list = request;
            press();
            must(syscall(SYS_io_submit, *context, 1, list) == 1, "io_submit");
            press();
            struct io_event *event = (struct io_event *)evicted_filled(1, 0);
            must(syscall(SYS_io_getevents, *context, 1, 1, event, NULL) == 1, "io_getevents");
            printf("%d: %lld of %d\n", turn, (long long)event->res, (int)event->data);
        }
        press();
        all(in, LEN, 3, "read");
        must(in[LEN] == 0, "no more than was asked for");
        syscall(SYS_io_destroy, *context);
        unlink(path);"#,
    );
}

/// A ring that is created when memory is already evicted. With signal delivery it is refused: `calls.rs`.
#[test]
fn rings_find_their_memory_with_listeners() {
    same(
        &[("listener", "auto")],
        "late-ring",
        "#include <linux/io_uring.h>
        static struct io_uring_params parameters;
        static char *queue;
        static struct io_uring_sqe *entries;
        static int ring;
        static int transfer(int opcode, int file, void *buffer, unsigned len) {
            entries[0] = (struct io_uring_sqe){.opcode = opcode, .fd = file, .len = len};
            entries[0].addr = (uint64_t)buffer;
            ((unsigned *)(queue + parameters.sq_off.array))[0] = 0;
            __atomic_add_fetch((unsigned *)(queue + parameters.sq_off.tail), 1, __ATOMIC_RELEASE);
            unsigned *tail = (unsigned *)(queue + parameters.sq_off.tail);
            unsigned mask = *(unsigned *)(queue + parameters.sq_off.ring_mask);
            ((unsigned *)(queue + parameters.sq_off.array))[(*tail - 1) & mask] = 0;
            must(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1, \"io_uring_enter\");
            unsigned *head = (unsigned *)(queue + parameters.cq_off.head);
            struct io_uring_cqe *done = (struct io_uring_cqe *)(queue + parameters.cq_off.cqes);
            mask = *(unsigned *)(queue + parameters.cq_off.ring_mask);
            return done[__atomic_fetch_add(head, 1, __ATOMIC_RELEASE) & mask].res;
        }",
        r#"
        enum { LEN = 1 << 20 };
        press();
        ring = (int)syscall(SYS_io_uring_setup, 4, &parameters);
        if (ring < 0 || !(parameters.features & IORING_FEAT_SINGLE_MMAP)) { printf("no io_uring\n"); return 0; }
        queue = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
        entries = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
        must(queue != MAP_FAILED && entries != MAP_FAILED, "mmap");
        char path[] = "/tmp/aquifer-e2e-ring-XXXXXX";
        int file = mkstemp(path);
        unsigned char *out = evicted_filled(LEN, 8), *in = evicted_filled(LEN, 0);
        must(transfer(IORING_OP_WRITE, file, out, LEN) == LEN, "write");
        press();
        must(transfer(IORING_OP_READ, file, in, LEN) == LEN, "read");
        all(in, LEN, 8, "read");
        unsigned char *fixed = evicted_filled(2 << 20, 0);
        struct iovec buffers = {fixed, LEN};
        if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffers, 1) == 0) {
            press();
            must(transfer(IORING_OP_READ_FIXED, file, fixed, LEN) == LEN, "read into a registered buffer");
            press();
            all(fixed, LEN, 8, "registered");
        }
        unlink(path);"#,
    );
}

#[test]
fn a_word_wakes_its_waiters_and_a_robust_mutex_is_recovered() {
    same(
        &SETTINGS,
        "words",
        "static uint32_t *word;
        static pthread_mutex_t *robust[3];
        static void *waiter(void *unused) {
            while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == 0) syscall(SYS_futex, word, FUTEX_WAIT, 0, NULL, NULL, 0);
            return unused;
        }
        static void *dies(void *how) {
            for (int index = 0; index < 3; index++) must(pthread_mutex_lock(robust[index]) == 0, \"lock\");
            press();
            if (how) pthread_exit(NULL);
            return NULL;
        }",
        r#"
        word = (uint32_t *)evicted_filled(1, 0);
        pthread_t threads[4];
        for (int index = 0; index < 4; index++) pthread_create(&threads[index], NULL, waiter, NULL);
        usleep(20000);
        press();
        __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
        press();
        must(syscall(SYS_futex, word, FUTEX_WAKE, 100, NULL, NULL, 0) >= 0, "wake");
        for (int index = 0; index < 4; index++) pthread_join(threads[index], NULL);
        pthread_mutexattr_t kind;
        pthread_mutexattr_init(&kind);
        pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
        for (int how = 0; how < 2; how++) {
            for (int index = 0; index < 3; index++) {
                robust[index] = (pthread_mutex_t *)evicted_filled(1, 0);
                pthread_mutex_init(robust[index], &kind);
            }
            pthread_create(threads, NULL, dies, how ? word : NULL);
            pthread_join(*threads, NULL);
            press();
            for (int index = 0; index < 3; index++) {
                struct timespec until;
                clock_gettime(CLOCK_REALTIME, &until);
                until.tv_sec += 20;
                printf("%s\n", strerrorname_np(pthread_mutex_timedlock(robust[index], &until)));
            }
        }"#,
    );
}

/// The thread-local memory, which the kernel writes to at any time (rseq), is also on that stack.
#[test]
fn a_thread_lives_on_a_stack_in_managed_memory() {
    same(
        &SETTINGS,
        "stacks",
        "static __thread int own = 5;
        static void *deep(void *turns) {
            volatile unsigned char here[200000];
            for (size_t at = 0; at < sizeof here; at += 100) here[at] = at;
            for (long turn = 0; turn < (long)turns; turn++) {
                press();
                sched_yield();
                usleep(1000);
                must(own++ == 5 + turn, \"thread-local memory\");
                for (size_t at = 0; at < sizeof here; at += 100) must(here[at] == (unsigned char)at, \"the stack\");
            }
            return NULL;
        }",
        r#"
        for (int turn = 0; turn < 3; turn++) {
            press();
            unsigned char *stack = aligned_alloc(PAGE, 4 << 20);
            memset(stack, 0, 4 << 20);
            press();
            pthread_attr_t attributes;
            pthread_attr_init(&attributes);
            must(pthread_attr_setstack(&attributes, stack, 4 << 20) == 0, "setstack");
            pthread_t thread;
            must(pthread_create(&thread, &attributes, deep, (void *)4) == 0, "pthread_create");
            press();
            pthread_join(thread, NULL);
            memset(stack, 1, 4 << 20);
            free(stack);
        }"#,
    );
}

#[test]
fn the_programs_own_faults_are_its_own() {
    same(
        &SETTINGS,
        "own-faults",
        "static sigjmp_buf back;
        static volatile int caught;
        static void *volatile where;
        static void on_fault(int signal, siginfo_t *info, void *context) {
            (void)context;
            caught = signal; where = info->si_addr;
            siglongjmp(back, 1);
        }
        static int touch(volatile unsigned char *at) {
            caught = 0;
            if (!sigsetjmp(back, 1)) *at = 1;
            return where == at || !caught ? caught : -caught;
        }",
        r#"
        char path[] = "/tmp/aquifer-e2e-faults-XXXXXX";
        int file = mkstemp(path);
        must(ftruncate(file, 3 * PAGE) == 0, "ftruncate");
        unsigned char *mapped = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        unsigned char *barred = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(barred, 9, 4 << 20);
        press();
        must(mprotect(barred + PAGE, PAGE, PROT_NONE) == 0 && mprotect(barred + (2 << 20), PAGE, PROT_READ) == 0, "rights");
        stack_t stack = {.ss_sp = evicted_filled(1 << 16, 0), .ss_size = 1 << 16};
        for (int alternate = 0; alternate < 2; alternate++) {
            if (alternate) must(sigaltstack(&stack, NULL) == 0, "sigaltstack");
            struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | (alternate ? SA_ONSTACK : 0)};
            sigfillset(&action.sa_mask);
            sigaction(SIGBUS, &action, NULL);
            sigaction(SIGSEGV, &action, NULL);
            press();
            printf("in the file: %d\n", touch(mapped));
            must(ftruncate(file, PAGE) == 0, "ftruncate");
            printf("behind its end: %d\n", touch(mapped + 2 * PAGE));
            must(ftruncate(file, 3 * PAGE) == 0, "ftruncate");
            printf("nowhere: %d\n", touch((unsigned char *)PAGE));
            printf("barred: %d\n", touch(barred + PAGE));
            press();
            printf("read-only: %d\n", touch(barred + (2 << 20)));
            /* The kernel's own answers for memory that is not there stay what they are. */
            errno = 0;
            printf("write: %zd %s\n", write(file, (void *)PAGE, 10), strerrorname_np(errno));
            sigset_t every, before;
            sigfillset(&every);
            pthread_sigmask(SIG_SETMASK, &every, &before);
            press();
            must(barred[3 << 20] == 9, "with every signal blocked");
            must(pwrite(file, barred + (3 << 20), PAGE, 0) == PAGE, "a call with every signal blocked");
            pthread_sigmask(SIG_SETMASK, &before, NULL);
        }
        unlink(path);"#,
    );
}

/// Another process reads memory that is evicted here. With signal delivery nothing could fetch it, so the read is an
/// error.
#[test]
fn another_process_reads_evicted_pages_with_listeners() {
    same(
        &[("listener", "auto"), ("listener", "copy")],
        "remote",
        "",
        r#"
        int go[2];
        unsigned char *start = malloc(4 << 20);
        must(pipe(go) == 0, "pipe");
        pid_t parent = getpid(), child = fork();
        if (child == 0) {
            static unsigned char here[1 << 20];
            char byte;
            must(read(go[0], &byte, 1) == 1, "read");
            struct iovec near = {here, sizeof here}, far = {start + (1 << 20), sizeof here};
            if (process_vm_readv(parent, &near, 1, &far, 1, 0) != sizeof here) _exit(errno == EPERM ? 77 : 1);
            all(here, sizeof here, 4, "from outside");
            _exit(0);
        }
        prctl(PR_SET_PTRACER, child);
        memset(start, 4, 4 << 20);
        press();
        must(write(go[1], "x", 1) == 1, "write");
        int status;
        must(waitpid(child, &status, 0) == child, "waitpid");
        printf("%d\n", WEXITSTATUS(status));"#,
    );
}
