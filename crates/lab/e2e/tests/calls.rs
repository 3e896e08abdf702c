// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! System calls on evicted memory: none may fail or lose a byte because of the pager.
//!
//! Under signal delivery the kernel's own accesses to missing pages are errors, and only calls through the library's
//! wrappers used to work: `getdents64` by `syscall(2)` got EFAULT, and a message above 256 KiB was truncated. Each
//! program here has its memory evicted before every call (`aquifer_e2e::evicted_memory`).

use std::process::Command;

use aquifer_e2e::build::compile_text;
use aquifer_e2e::evicted_memory::{PROLOGUE, SETTINGS, works, works_with};
use aquifer_e2e::run::{LIMIT, managed, run};

/// Calls by `syscall(2)`, the one function for all calls, and by the instruction itself.
#[test]
fn direct_calls_find_their_memory() {
    let call = "
        static long (*call)(long, long, long, long, long, long, long);
        static long by_libc(long n, long a, long b, long c, long d, long e, long f) {
            long result = syscall(n, a, b, c, d, e, f);
            return result < 0 ? -errno : result;
        }
        static void expect(long result, long least, const char *what) {
            if (result < least) { fprintf(stderr, \"%s: %s\\n\", what, strerror((int)-result)); exit(1); }
        }
        #define A(len) ((long)evicted(len))
        #define CALL(n, a, b, c, d, e, f) expect(call(SYS_##n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f)), 0, #n)";
    works(
        "direct",
        call,
        r#"
        char path[] = "/tmp/aquifer-e2e-direct-XXXXXX";
        int file = mkstemp(path), ends[2], list = open("/", O_RDONLY | O_DIRECTORY), epoll = epoll_create1(0);
        must(file >= 0 && pipe(ends) == 0, "setup");
        for (int kind = 0; kind < 2; kind++) {
            call = kind ? direct : by_libc;
            CALL(stat, "/", A(1), 0, 0, 0, 0);
            CALL(fstat, file, A(1), 0, 0, 0, 0);
            CALL(statx, AT_FDCWD, "/", 0, STATX_ALL, A(1), 0);
            CALL(newfstatat, AT_FDCWD, strcpy((char *)A(1), "/"), A(1), 0, 0, 0);
            CALL(getdents64, list, A(32768), 32768, 0, 0, 0);
            lseek(list, 0, SEEK_SET);
            CALL(readlink, "/proc/self/exe", A(1), 4096, 0, 0, 0);
            CALL(getcwd, A(1), 4096, 0, 0, 0, 0);
            CALL(uname, A(1), 0, 0, 0, 0, 0);
            CALL(sysinfo, A(1), 0, 0, 0, 0, 0);
            CALL(clock_gettime, CLOCK_MONOTONIC, A(1), 0, 0, 0, 0);
            CALL(getrusage, RUSAGE_SELF, A(1), 0, 0, 0, 0);
            CALL(prlimit64, 0, RLIMIT_NOFILE, 0, A(1), 0, 0);
            CALL(sched_getaffinity, 0, 128, A(1), 0, 0, 0);
            CALL(ioctl, ends[0], FIONREAD, A(1), 0, 0, 0);
            CALL(rt_sigprocmask, SIG_BLOCK, 0, A(1), 8, 0, 0);
            CALL(rt_sigaction, SIGUSR2, 0, A(1), 8, 0, 0);
            CALL(sigaltstack, 0, A(1), 0, 0, 0, 0);
            unsigned char *random = (unsigned char *)A(1 << 20);
            expect(call(SYS_getrandom, (long)random, 1 << 20, 0, 0, 0, 0), 1 << 20, "getrandom");
            size_t ones = 0;
            for (size_t at = 0; at < 1 << 20; at++) ones += random[at] == 1;
            must(ones < 8192, "getrandom filled everything");
            struct timespec *time = (struct timespec *)evicted_filled(1, 0);
            time->tv_nsec = 1000; press();
            CALL(nanosleep, time, time, 0, 0, 0, 0);
            uint32_t *word = (uint32_t *)evicted_filled(1, 0);
            expect(-call(SYS_futex, (long)word, FUTEX_WAIT, 1, 0, 0, 0), EAGAIN, "futex");
            must(call(SYS_futex, (long)evicted_filled(1, 0), FUTEX_WAIT, 1, 0, 0, 0) == -EAGAIN, "futex in evicted memory");
            struct pollfd *wait = (struct pollfd *)evicted_filled(1, 0);
            *wait = (struct pollfd){.fd = ends[1], .events = POLLOUT}; press();
            must(call(SYS_poll, (long)wait, 1, 1000, 0, 0, 0) == 1 && wait->revents == POLLOUT, "poll");
            struct epoll_event *event = (struct epoll_event *)evicted_filled(1, 0);
            event->events = EPOLLOUT; event->data.u64 = 7; press();
            CALL(epoll_ctl, epoll, EPOLL_CTL_ADD, ends[1], event, 0, 0);
            struct epoll_event *events = (struct epoll_event *)A(64 * 12);
            must(call(SYS_epoll_wait, epoll, (long)events, 64, 1000, 0, 0) == 1 && events->data.u64 == 7, "epoll_wait");
            CALL(epoll_ctl, epoll, EPOLL_CTL_DEL, ends[1], 0, 0, 0);
            unsigned char *data = evicted_filled(3 << 20, 9);
            expect(call(SYS_pwrite64, file, (long)data, 3 << 20, 0, 0, 0), 3 << 20, "pwrite64");
            data = evicted_filled(3 << 20, 0);
            expect(call(SYS_pread64, file, (long)data, 3 << 20, 0, 0, 0), 3 << 20, "pread64");
            all(data, 3 << 20, 9, "pread64");
            struct iovec *vector = (struct iovec *)evicted_filled(1, 0);
            unsigned char *one = evicted_filled(1 << 20, 0), *two = evicted_filled(1 << 20, 0);
            vector[0] = (struct iovec){one, 1 << 20}; vector[1] = (struct iovec){two, 1 << 20}; press();
            expect(call(SYS_preadv2, file, (long)vector, 2, 0, 0, 0), 2 << 20, "preadv2");
            all(one, 1 << 20, 9, "preadv2"), all(two, 1 << 20, 9, "preadv2");
            struct iovec near = {evicted_filled(2 << 20, 0), 2 << 20};
            struct iovec far = {evicted_filled(2 << 20, 4), 2 << 20};
            press();
            expect(call(SYS_process_vm_readv, getpid(), (long)&near, 1, (long)&far, 1, 0), 2 << 20, "process_vm_readv");
            all(near.iov_base, 2 << 20, 4, "process_vm_readv");
        }
        unlink(path);"#,
    );
}

/// Words that calls find through a structure, and words that clone(2) fills.
#[test]
fn words_behind_structures_are_found_and_filled() {
    works_with(
        &[("signal", "auto"), ("auto", "auto")],
        "words",
        "struct waiter { uint64_t value, address; uint32_t flags, reserved; };
         static uint32_t *word(uint32_t value) {
             uint32_t *word = (uint32_t *)evicted_filled(1, 0); *word = value; return word;
         }",
        r#"
        struct waiter *waiters = (struct waiter *)evicted_filled(1, 0);
        for (int at = 0; at < 2; at++) waiters[at] = (struct waiter){5, (uintptr_t)word(5), 2, 0};
        struct timespec limit;
        clock_gettime(CLOCK_MONOTONIC, &limit);
        press();
        must(syscall(449, waiters, 2, 0, &limit, CLOCK_MONOTONIC) == -1 && errno != EFAULT, "futex_waitv");
        press();
        must(syscall(456, waiters, 0, 1, 1) >= 0 || errno != EFAULT, "futex_requeue");
        for (int kind = 0; kind < 2; kind++) {
            uint32_t *parent = word(0), *child = word(0), *pidfd = word(-1);
            uint64_t structure[8] = {CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_PIDFD, (uintptr_t)pidfd,
                                     (uintptr_t)child, (uintptr_t)parent, SIGCHLD, 0, 0, 0};
            for (int at = 0; at < PAGE; at++) ((unsigned char *)(child + 1))[at] = 7;
            press();
            long made = kind ? syscall(435, structure, sizeof structure)
                             : syscall(SYS_clone, CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | SIGCHLD, 0, parent, child, 0);
            if (made == 0) {
                /* The page around the word is the parent's. */
                all((unsigned char *)(child + 1), PAGE, 7, "the child's page");
                syscall(SYS_exit_group, *child == (uint32_t)getpid() ? 0 : 7);
            }
            int status = -1;
            must(made > 0 && waitpid(made, &status, 0) == made && status == 0, "a child");
            must(*parent == made && (!kind || (int)*pidfd > 2), "the parent gets the child's ids");
        }
        uint32_t *pidfd = word(-1);
        press();
        long made = syscall(SYS_clone, CLONE_PIDFD | SIGCHLD, 0, pidfd, 0, 0);
        if (made == 0) syscall(SYS_exit_group, 0);
        must(made > 0 && waitpid(made, NULL, 0) == made && (int)*pidfd > 2, "clone with a descriptor");"#,
    );
}

/// Calls that the C library makes internally, with memory that the program gave to it.
#[test]
fn the_librarys_own_calls_find_their_memory() {
    works(
        "library",
        "",
        r#"
        char path[] = "/tmp/aquifer-e2e-library-XXXXXX";
        int file = mkstemp(path);
        FILE *stream = fdopen(file, "w+");
        must(stream && !setvbuf(stream, (char *)evicted(1 << 20), _IOFBF, 1 << 20), "setvbuf");
        for (int line = 0; line < 200000; line++) {
            if (line % 50000 == 0) press();
            fprintf(stream, "%d\n", line);
        }
        press();
        rewind(stream);
        for (int line = 0, found; line < 200000; line++) {
            if (line % 50000 == 0) press();
            must(fscanf(stream, "%d", &found) == 1 && found == line, "fscanf");
        }
        fclose(stream);
        unlink(path);
        must(getcwd((char *)evicted(1), 4096) != NULL, "getcwd");
        must(realpath("/proc/self/exe", (char *)evicted(1)) != NULL, "realpath");
        int pair[2]; socklen_t *len = (socklen_t *)evicted_filled(1, 0);
        must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
        *len = 4; press();
        must(getsockopt(pair[0], SOL_SOCKET, SO_TYPE, evicted(1), len) == 0, "getsockopt");
        must(clock_getres(CLOCK_REALTIME, (struct timespec *)evicted(1)) == 0, "clock_getres");
        must(getrlimit(RLIMIT_NOFILE, (struct rlimit *)evicted(1)) == 0, "getrlimit");
        must(sched_getaffinity(0, 128, (cpu_set_t *)evicted(1)) == 0, "sched_getaffinity");
        must(pipe((int *)evicted(1)) == 0, "pipe");
        must(times((void *)evicted(1)) != -1, "times");
        struct sockaddr_un name = {AF_UNIX, {0}}, *from = (struct sockaddr_un *)evicted(1);
        int listener = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
        must(bind(listener, (void *)&name, sizeof(sa_family_t)) == 0 && listen(listener, 1) == 0, "listen");
        socklen_t bound = sizeof name;
        must(getsockname(listener, (void *)&name, &bound) == 0, "getsockname");
        must(connect(client, memcpy(evicted(1), &name, bound), bound) == 0, "connect");
        *len = sizeof *from; press();
        must(accept(listener, (void *)from, len) >= 0, "accept");
        char **words = (char **)evicted_filled(1, 0);
        char *shell = strcpy((char *)evicted(1), "/bin/sh"), *option = strcpy((char *)evicted(1), "-c");
        char *text = strcpy((char *)evicted(1), "exit 7");
        words[0] = shell; words[1] = option; words[2] = text; press();
        int status; pid_t child;
        must(posix_spawn(&child, shell, NULL, NULL, words, NULL) == 0, "posix_spawn");
        must(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7, "spawned");
        must(WEXITSTATUS(system("exit 5")) == 5, "system");
        press();"#,
    );
}

/// No table lists the pointers in such structures: the library searches the structures when a call fails.
#[test]
fn targets_of_a_structures_pointers_are_found() {
    works(
        "inner",
        "#include <linux/ethtool.h>
         #include <linux/filter.h>
         #include <linux/sockios.h>
         #include <net/if.h>
         #include <sys/select.h>",
        r#"
        for (int kind = 0; kind < 2; kind++) {
            int meet = socket(AF_INET, SOCK_DGRAM, 0), pair[2];
            must(meet >= 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0, "sockets");
            /* The structure is on the stack, or evicted as well. */
            struct ifconf near = {0}, *list = kind ? (struct ifconf *)evicted(1) : &near;
            char *room = (char *)evicted(16384);
            list->ifc_len = 16384; list->ifc_buf = room; press();
            must(ioctl(meet, SIOCGIFCONF, list) == 0 && list->ifc_len < 16384, "SIOCGIFCONF");
            struct ifreq one = {.ifr_name = "lo"}, *name = kind ? (struct ifreq *)evicted(1) : &one;
            struct ethtool_value *link = (struct ethtool_value *)evicted(1);
            *name = one; name->ifr_data = (char *)link; link->cmd = ETHTOOL_GLINK; press();
            must(ioctl(meet, SIOCETHTOOL, name) == 0 && link->data <= 1, "SIOCETHTOOL");
            struct sock_fprog stack, *program = kind ? (struct sock_fprog *)evicted(1) : &stack;
            struct sock_filter *filter = (struct sock_filter *)evicted(1);
            filter[0] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
            program->len = 1; program->filter = filter; press();
            must(setsockopt(pair[1], SOL_SOCKET, SO_ATTACH_FILTER, program, sizeof *program) == 0, "SO_ATTACH_FILTER");
            must(send(pair[0], "x", 1, 0) == 1 && recv(pair[1], &one, 1, MSG_DONTWAIT) == -1, "the filter filters");
            sigset_t *mask = (sigset_t *)evicted(1);
            struct timespec *limit = (struct timespec *)evicted_filled(1, 0);
            sigemptyset(mask); limit->tv_nsec = 1000; press();
            must(pselect(0, NULL, NULL, NULL, limit, mask) == 0, "pselect");
            errno = 0;
            must(ioctl(meet, SIOCGIFCONF, (void *)8) == -1 && errno == EFAULT, "a wrong address stays one");
            list->ifc_buf = (char *)8; press();
            must(ioctl(meet, SIOCGIFCONF, list) == -1 && errno == EFAULT, "a wrong address in a structure, too");
        }"#,
    );
}

/// An address for which the kernel returns EFAULT must not end the program because the library reads it first: some
/// programs test whether an address is readable by passing it to rt_sigprocmask(2).
#[test]
fn a_wrong_address_is_an_error_and_no_crash() {
    works(
        "wrong",
        "static void fails(long result, int number, const char *what) {
            if (result != -number) { fprintf(stderr, \"%s: %s\\n\", what, strerror((int)-result)); exit(1); }
        }
        #define WRONG(n, a, b, c, d, e) fails(direct(SYS_##n, a, b, c, d, e, 0), EFAULT, #n)",
        r#"
        char path[] = "/tmp/aquifer-e2e-wrong-XXXXXX";
        int file = mkstemp(path), pair[2];
        must(file >= 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0, "descriptors");
        unlink(path);
        press();
        const long wrong[] = {8, 4096, -4096, 0x7ffffffff000};
        for (int at = 0; at < 4; at++) {
            long there = wrong[at];
            WRONG(rt_sigprocmask, ~0, there, 0, 8, 0);
            WRONG(rt_sigprocmask, SIG_BLOCK, there, 0, 8, 0);
            WRONG(rt_sigprocmask, SIG_BLOCK, 0, there, 8, 0);
            WRONG(rt_sigaction, SIGUSR2, there, 0, 8, 0);
            WRONG(rt_sigaction, SIGUSR2, 0, there, 8, 0);
            WRONG(rt_sigaction, SIGBUS, there, 0, 8, 0);
            WRONG(sigaltstack, there, 0, 0, 0, 0);
            WRONG(writev, file, there, 1, 0, 0);
            WRONG(readv, file, there, 20, 0, 0);
            WRONG(sendmsg, pair[0], there, 0, 0, 0);
            WRONG(recvmsg, pair[0], there, MSG_DONTWAIT, 0, 0);
            WRONG(sendmmsg, pair[0], there, 1, 0, 0);
            WRONG(process_vm_readv, getpid(), there, 1, there, 1);
            WRONG(ppoll, 0, 0, 0, there, 8);
            WRONG(setsockopt, pair[0], SOL_SOCKET, SO_ZEROCOPY, there, 4);
            WRONG(execve, there, 0, 0, 0, 0);
            WRONG(execve, (long)"/bin/true", there, 0, 0, 0);
            WRONG(clone3, there, 88, 0, 0, 0);
            errno = 0;
            must(writev(file, (struct iovec *)there, 1) == -1 && errno == EFAULT, "writev");
            errno = 0;
            must(sigprocmask(SIG_BLOCK, NULL, NULL) == 0, "sigprocmask");
        }
        /* Longer than there is memory, and than a message may be. */
        unsigned char *message = evicted(1);
        fails(direct(SYS_sendto, pair[0], (long)message, 1L << 40, 0, 0, 0), EMSGSIZE, "sendto");"#,
    );
}

/// Above 256 KiB, the size of a former bounce buffer, the rest of a message used to be lost.
#[test]
fn a_large_message_stays_whole() {
    works(
        "messages",
        "static void *reader(void *pair) {
            unsigned char *got = evicted_filled(32 << 20, 0);
            for (size_t done = 0; done < 32 << 20;) {
                ssize_t came = recv(((int *)pair)[1], got + done, (32 << 20) - done, 0);
                must(came > 0, \"recv\");
                done += came;
            }
            all(got, 32 << 20, 6, \"stream\");
            return NULL;
        }",
        r#"
        for (int kind = 0; kind < 2; kind++) {
            int pair[2], room = 40 << 20;
            must(socketpair(AF_UNIX, kind ? SOCK_SEQPACKET : SOCK_DGRAM, 0, pair) == 0, "socketpair");
            if (setsockopt(pair[0], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room)) return 0;
            /* The last is more than one call may pin of a budget of 24 MiB, and near what the kernel takes. */
            const size_t lengths[] = {200 << 10, (1 << 20) + 13, 3200 << 10};
            for (int index = 0; index < 3; index++) {
                size_t len = lengths[index];
                unsigned char *sent = evicted_filled(len, 5), *got = evicted_filled(12 << 20, 0);
                must(send(pair[0], sent, len, 0) == (ssize_t)len, "send");
                press();
                must(recv(pair[1], got, 12 << 20, 0) == (ssize_t)len, "recv");
                all(got, len, 5, "recv");
                struct iovec out[3] = {{sent, 1000}, {sent + 1000, len - 2000}, {sent + len - 1000, 1000}};
                struct iovec in[2] = {{got, len / 2}, {got + len / 2, len}};
                struct msghdr message = {.msg_iov = out, .msg_iovlen = 3};
                press();
                must(sendmsg(pair[0], &message, 0) == (ssize_t)len, "sendmsg");
                memset(got, 0, len); press();
                message = (struct msghdr){.msg_iov = in, .msg_iovlen = 2};
                must(direct(SYS_recvmsg, pair[1], (long)&message, 0, 0, 0, 0) == (ssize_t)len, "recvmsg");
                must(!(message.msg_flags & MSG_TRUNC), "whole");
                all(got, len, 5, "recvmsg");
                free(sent), free(got);
            }
        }
        int pair[2]; pthread_t thread;
        must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
        must(pthread_create(&thread, NULL, reader, pair) == 0, "pthread_create");
        must(send(pair[0], evicted_filled(32 << 20, 6), 32 << 20, 0) == 32 << 20, "a blocking send is whole");
        pthread_join(thread, NULL);"#,
    );
}

/// io_submit(2) with vectors, as QEMU uses it for its guests' disks: the list used to be mistaken for the buffer, and
/// the request ended with EFAULT.
#[test]
fn asynchronous_requests_find_their_memory() {
    // With exchange by copying, such requests are refused: `pins.rs`.
    works_with(
        &SETTINGS[..3],
        "asynchronous",
        "#include <linux/aio_abi.h>
        static aio_context_t context;
        static long request(int kind, int file, void *start, long count, long at) {
            struct iocb one = {.aio_lio_opcode = kind, .aio_fildes = file, .aio_buf = (uintptr_t)start,
                               .aio_nbytes = count, .aio_offset = at}, *list[] = {&one};
            struct io_event event;
            must(direct(SYS_io_submit, (long)context, 1, (long)list, 0, 0, 0) == 1, \"io_submit\");
            must(direct(SYS_io_getevents, (long)context, 1, 1, (long)&event, 0, 0) == 1, \"io_getevents\");
            return (long)event.res;
        }",
        r#"
        enum { LEN = 1 << 20, PARTS = 4 };
        char path[] = "/var/tmp/aquifer-e2e-asynchronous-XXXXXX";
        int file = mkstemp(path);
        unlink(path);
        unsigned char *parts[PARTS];
        for (int part = 0; part < PARTS; part++) parts[part] = evicted_filled(LEN, part + 1);
        if (direct(SYS_io_setup, 4, (long)&context, 0, 0, 0, 0)) return 0;
        struct iovec *vector = (struct iovec *)evicted(PARTS * sizeof *vector);
        for (int part = 0; part < PARTS; part++) vector[part] = (struct iovec){parts[part], LEN};
        press();
        must(request(IOCB_CMD_PWRITEV, file, vector, PARTS, 0) == PARTS * LEN, "a vector, written");
        for (int part = 0; part < PARTS; part++) vector[part] = (struct iovec){parts[PARTS - 1 - part], LEN};
        press();
        must(request(IOCB_CMD_PREADV, file, vector, PARTS, 0) == PARTS * LEN, "a vector, read");
        for (int part = 0; part < PARTS; part++) all(parts[part], LEN, PARTS - part, "a vector");
        press();
        must(request(IOCB_CMD_PREAD, file, parts[0], LEN, 0) == LEN, "one buffer, read");
        all(parts[0], LEN, 1, "one buffer");"#,
    );
}

/// A transfer larger than the budget, vectored, and without the page cache.
#[test]
fn a_large_transfer_with_a_file_stays_whole() {
    works(
        "files",
        "",
        r#"
        enum { LEN = 40 << 20 };
        char path[] = "/var/tmp/aquifer-e2e-files-XXXXXX";
        int file = mkstemp(path);
        unsigned char *sent = evicted_filled(LEN, 3), *got = evicted_filled(LEN, 0);
        must(write(file, sent, LEN) == LEN, "write");
        must(pread(file, got, LEN, 0) == LEN, "pread");
        all(got, LEN, 3, "pread");
        memset(got, 0, LEN);
        struct iovec in[2] = {{got, LEN / 3}, {got + LEN / 3, LEN - LEN / 3}};
        must(preadv(file, in, 2, 0) == LEN, "preadv");
        all(got, LEN, 3, "preadv");
        must(pread(file, got, LEN, LEN - 100) == 100, "the end of a file");
        int bare = open(path, O_RDWR | O_DIRECT);
        if (bare >= 0) {
            unsigned char *aligned = aligned_alloc(PAGE, 8 << 20);
            memset(aligned, 4, 8 << 20); press();
            must(pwrite(bare, aligned, 8 << 20, 0) == 8 << 20, "pwrite, O_DIRECT");
            memset(aligned, 0, 8 << 20); press();
            must(pread(bare, aligned, 1 << 20, 0) == 1 << 20, "pread, O_DIRECT");
            all(aligned, 1 << 20, 4, "O_DIRECT");
        }
        unlink(path);"#,
    );
}

/// A ring's transfers happen outside of system calls. If a ring exists when the pager starts, listeners serve all
/// memory; creating a later one is refused with an error, so that no transfer fails.
#[test]
fn io_uring_works_or_is_refused() {
    // `pins.rs` tests rings with exchange by copying.
    works_with(
        &SETTINGS[..3],
        "rings",
        "#include <linux/io_uring.h>
        static struct io_uring_params parameters;
        static char *submissions, *completions;
        static struct io_uring_sqe *entries;
        static int make(void) {
            int ring = (int)direct(SYS_io_uring_setup, 4, (long)&parameters, 0, 0, 0, 0);
            if (ring < 0) return ring;
            submissions = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
            completions = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
            entries = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
            must(submissions != MAP_FAILED && completions != MAP_FAILED && entries != MAP_FAILED, \"mmap\");
            return ring;
        }
        static long transfer(int ring, int file, void *buffer, unsigned len) {
            entries[0] = (struct io_uring_sqe){.opcode = IORING_OP_READ, .fd = file, .len = len};
            entries[0].addr = (uint64_t)buffer;
            ((unsigned *)(submissions + parameters.sq_off.array))[0] = 0;
            ((unsigned *)(submissions + parameters.sq_off.array))[1] = 0;
            __atomic_add_fetch((unsigned *)(submissions + parameters.sq_off.tail), 1, __ATOMIC_RELEASE);
            must(direct(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) == 1, \"io_uring_enter\");
            unsigned *head = (unsigned *)(completions + parameters.cq_off.head);
            struct io_uring_cqe *done = (struct io_uring_cqe *)(completions + parameters.cq_off.cqes);
            unsigned mask = *(unsigned *)(completions + parameters.cq_off.ring_mask);
            return done[__atomic_fetch_add(head, 1, __ATOMIC_RELEASE) & mask].res;
        }",
        r#"
        int early = make(), file = open("/proc/self/exe", O_RDONLY);
        if (early < 0) return 0;
        unsigned char *far = evicted(2 << 20), *near = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        for (int turn = 0; turn < 2; turn++) {
            must(transfer(early, file, far + (1 << 20), 8192) == 8192, "a far read");
            must(pread(file, near, 8192, 0) == 8192 && !memcmp(far + (1 << 20), near, 8192), "what was read");
            press();
        }"#,
    );
    let body = "int main(void) { char parameters[120] = {0}; evicted(1);
                return direct(SYS_io_uring_setup, 4, (long)parameters, 0, 0, 0, 0) != -ENOSYS; }";
    let Some(program) = compile_text("late-rings", &format!("{PROLOGUE}\n{body}\n")) else { return };
    for delivery in ["signal", "auto"] {
        let words = ["--dram", "24MiB", "--tier", "dram:", "--delivery", delivery];
        run(managed(&words, &program, &[]), LIMIT).expect(0).expect_line(
            "aquifer: io_uring is refused (ENOSYS) beside memory with signal delivery; run with --delivery listener",
        );
    }
}

#[test]
fn calls_of_32_bit_code_keep_their_numbers() {
    // Their number of getpid(2) is that of writev(2) in 64-bit code.
    let body = "int main(void) {
        evicted(1);
        for (int turn = 0; turn < 2; turn++) {
            long result;
            __asm__ volatile(\"int $0x80\" : \"=a\"(result) : \"a\"(20) : \"r8\", \"r9\", \"r10\", \"r11\", \"memory\");
            must(result == getpid(), \"getpid\");
            press();
        }
        return 0;
    }";
    let Some(program) = compile_text("int80", &format!("{PROLOGUE}\n{body}\n")) else { return };
    if run(Command::new(&program), LIMIT).status != Some(0) {
        let why = "this kernel has no CONFIG_IA32_EMULATION";
        return aquifer_test_support::skip_part("int 0x80", why);
    }
    for delivery in ["signal", "auto"] {
        run(managed(&["--dram", "24MiB", "--tier", "dram:", "--delivery", delivery], &program, &[]), LIMIT).expect(0);
    }
}
