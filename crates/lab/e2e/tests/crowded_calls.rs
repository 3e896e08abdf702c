// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! System calls that touch more ranges than can be pinned, and more callers than the budget has blocks to pin.
//!
//! recvmmsg(2) with 32 messages used to pin as many as it could and let the kernel try the rest: 116 of 82,716
//! datagrams were consumed and lost, and no error reached the program. And a small buffer did not count, although it
//! kept a whole block resident: 400 threads blocked in a read of 4 KiB, each in a block of 1 MiB, left no victim, and
//! the next fault ended the program with SIGBUS.

use aquifer_e2e::build::compile_text;
use aquifer_e2e::evicted_memory::{PROLOGUE, works};
use aquifer_e2e::run::{LIMIT, managed, run};

/// Allocates buffers in separate blocks.
const SPREAD: &str = r#"
#include <sys/ipc.h>
#include <sys/msg.h>
#include <linux/aio_abi.h>
enum { STRIDE = 1 << 20 };
/* `count` pieces of memory, each in a block of its own. */
static unsigned char *spread(int count) {
    unsigned char *start = malloc((size_t)count * STRIDE);
    for (int n = 0; n < count; n++) start[(size_t)n * STRIDE] = 1;
    return start;
}
#define PIECE(start, n) ((start) + (size_t)(n) * STRIDE + (n) % 200 * 4096)
"#;

#[test]
fn no_datagram_is_lost_by_recvmmsg_under_pressure() {
    let functions = format!(
        "{SPREAD}{}",
        r#"
        enum { DATAGRAMS = 6000, MANY = 48, BYTES = 2000 };
        static int ends[2];
        static void *send_all(void *unused) {
            (void)unused;
            static int words[BYTES / 4];
            for (int n = 0; n < DATAGRAMS; n++) {
                for (int w = 0; w < BYTES / 4; w++) words[w] = n + w;
                must(send(ends[1], words, BYTES, 0) == BYTES, "send");
            }
            return NULL;
        }
        "#
    );
    works(
        "recvmmsg",
        &functions,
        r#"
        must(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0, "socketpair");
        unsigned char *buffers = spread(2 * MANY);
        struct mmsghdr *headers = calloc(MANY, sizeof *headers);
        struct iovec *vectors = calloc(2 * MANY, sizeof *vectors);
        pthread_t sender;
        must(pthread_create(&sender, NULL, send_all, NULL) == 0, "thread");
        for (int next = 0; next < DATAGRAMS;) {
            for (int n = 0; n < MANY; n++) {
                vectors[2 * n] = (struct iovec){PIECE(buffers, 2 * n), 1000};
                vectors[2 * n + 1] = (struct iovec){PIECE(buffers, 2 * n + 1), 1000};
                headers[n].msg_hdr = (struct msghdr){.msg_iov = &vectors[2 * n], .msg_iovlen = 2};
            }
            if (next % 8 == 0) press();
            int got = recvmmsg(ends[0], headers, MANY, MSG_WAITFORONE, NULL);
            must(got > 0, "recvmmsg");
            for (int n = 0; n < got; n++, next++) {
                must(headers[n].msg_len == BYTES, "a datagram is whole");
                for (int w = 0; w < BYTES / 4; w++) {
                    int half = w >= 250, found = ((int *)vectors[2 * n + half].iov_base)[w - 250 * half];
                    if (found != next + w) {
                        fprintf(stderr, "datagram %d holds %d at word %d\n", next, found, w);
                        exit(1);
                    }
                }
            }
        }
        "#,
    );
}

/// Received data is complete and in order, with the addresses and flags that the kernel returned.
#[test]
fn calls_with_a_thousand_ranges_touch_all_of_them() {
    works(
        "thousand",
        SPREAD,
        r#"
        enum { COUNT = 1000, SOME = 100 };
        unsigned char *buffers = spread(SOME);
        struct iovec *vectors = calloc(COUNT, sizeof *vectors), *others = calloc(COUNT, sizeof *others);
        for (int n = 0; n < COUNT; n++) vectors[n] = (struct iovec){PIECE(buffers, n % SOME) + n / SOME * 100, 64};
        #define SET(base) for (int n = 0; n < COUNT; n++) memset(vectors[n].iov_base, (base) + n % 251, 64); press()
        #define LOOK(base, count, what) \
            for (int n = 0; n < (count); n++) \
                all(vectors[n].iov_base, 64, (unsigned char)((base) + n % 251), what)
        int ends[2], file = memfd_create("pieces", 0);
        must(file >= 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0, "setup");
        SET(1);
        must(writev(file, vectors, COUNT) == COUNT * 64, "writev");
        SET(2);
        must(preadv(file, vectors, COUNT, 0) == COUNT * 64, "preadv");
        LOOK(1, COUNT, "preadv");
        SET(3);
        struct msghdr *message = calloc(1, sizeof *message);
        *message = (struct msghdr){.msg_iov = vectors, .msg_iovlen = COUNT};
        must(sendmsg(ends[1], message, 0) == COUNT * 64, "sendmsg");
        SET(4);
        *message = (struct msghdr){.msg_iov = vectors, .msg_iovlen = COUNT};
        must(recvmsg(ends[0], message, 0) == COUNT * 64, "recvmsg");
        LOOK(3, COUNT, "recvmsg");
        /* sendmmsg and recvmmsg of messages with names, control data and one piece each. */
        SET(5);
        struct mmsghdr *headers = calloc(SOME, sizeof *headers);
        int udp[2] = {socket(AF_INET, SOCK_DGRAM, 0), socket(AF_INET, SOCK_DGRAM, 0)}, yes = 1, room = 1 << 20;
        struct { uint16_t family, port; uint32_t host; char rest[8]; } *name = calloc(1, 16), *names;
        names = calloc(SOME, 4096);
        socklen_t len = 16;
        name->family = AF_INET;
        name->host = 0x0100007f;
        must(bind(udp[0], (void *)name, 16) == 0 && getsockname(udp[0], (void *)name, &len) == 0, "bind");
        setsockopt(udp[0], SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
        must(setsockopt(udp[0], SOL_SOCKET, SO_TIMESTAMP, &yes, sizeof yes) == 0, "setsockopt");
        unsigned char *controls = malloc(SOME * 4096);
        for (int done = 0; done < SOME;) {
            for (int n = 0; n < SOME; n++)
                headers[n].msg_hdr = (struct msghdr){.msg_iov = &vectors[n], .msg_iovlen = 1,
                                                     .msg_name = name, .msg_namelen = 16};
            press();
            int sent = sendmmsg(udp[1], headers + done, SOME - done, 0);
            must(sent > 0 && headers[done].msg_len == 64, "sendmmsg");
            done += sent;
        }
        SET(6);
        for (int n = 0; n < SOME; n++) {
            char *own = (char *)names + n * 4096;
            headers[n].msg_hdr = (struct msghdr){.msg_iov = &vectors[n], .msg_iovlen = 1,
                                                 .msg_name = own, .msg_namelen = 128,
                                                 .msg_control = controls + n * 4096, .msg_controllen = 128};
        }
        press();
        struct timespec *late = calloc(1, sizeof *late);
        late->tv_sec = 60;
        must(recvmmsg(udp[0], headers, SOME, 0, late) == SOME, "recvmmsg");
        LOOK(5, SOME, "recvmmsg");
        for (int n = 0; n < SOME; n++) {
            struct msghdr *header = &headers[n].msg_hdr;
            must(headers[n].msg_len == 64 && header->msg_namelen == 16, "a datagram's lengths");
            must(*(uint32_t *)((char *)names + n * 4096 + 4) == 0x0100007f, "a datagram's name");
            must(CMSG_FIRSTHDR(header) && CMSG_FIRSTHDR(header)->cmsg_type == SO_TIMESTAMP, "a datagram's time");
        }
        /* process_vm_readv of this process's own memory. */
        SET(7);
        unsigned char *copy = malloc(COUNT * 64);
        struct iovec one = {copy, COUNT * 64};
        must(process_vm_readv(getpid(), &one, 1, vectors, COUNT, 0) == COUNT * 64, "process_vm_readv");
        for (int n = 0; n < COUNT; n++) all(copy + n * 64, 64, (unsigned char)(7 + n % 251), "process_vm_readv");
        memset(copy, 9, COUNT * 64);
        press();
        must(process_vm_writev(getpid(), &one, 1, vectors, COUNT, 0) == COUNT * 64, "process_vm_writev");
        for (int n = 0; n < COUNT; n++) all(vectors[n].iov_base, 64, 9, "process_vm_writev");
        /* io_submit of more requests than can be pinned. Where pages are copied it is refused. */
        aio_context_t *context = calloc(1, sizeof *context);
        if (syscall(SYS_io_setup, SOME, context) == 0) {
            struct iocb *requests = calloc(SOME, sizeof *requests), **list = calloc(SOME, sizeof *list);
            struct io_event *events = calloc(SOME, sizeof *events);
            SET(8);
            for (int n = 0; n < SOME; n++) {
                requests[n] = (struct iocb){.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = file, .aio_nbytes = 64,
                                            .aio_buf = (uintptr_t)vectors[n].iov_base, .aio_offset = n * 64};
                list[n] = &requests[n];
            }
            press();
            must(syscall(SYS_io_submit, *context, SOME, list) == SOME, "io_submit");
            must(syscall(SYS_io_getevents, *context, SOME, SOME, events, NULL) == SOME, "io_getevents");
            for (int n = 0; n < SOME; n++) must(events[n].res == 64, "a request");
            LOOK(1, SOME, "io_submit");
        }
        "#,
    );
}

/// `blocked THREADS`: that number of threads wait in system calls with small buffers, each in a separate block, while
/// the program uses its memory; then each wait ends.
const BLOCKED: &str = r#"
static int threads, count_waiting;
static int (*ends)[2];
static unsigned char *buffers;
enum { KINDS = 10 };
static void *wait_for_it(void *number) {
    int n = (int)(long)number, in = ends[n][0];
    unsigned char *buffer = PIECE(buffers, n);
    memset(buffer, 0, 4096);
    __atomic_fetch_add(&count_waiting, 1, __ATOMIC_SEQ_CST);
    struct iovec *vector = (struct iovec *)(buffer + 2048);
    struct msghdr *message = (struct msghdr *)(buffer + 2560);
    struct pollfd *polled = (struct pollfd *)(buffer + 2048);
    struct epoll_event *events = (struct epoll_event *)(buffer + 2048);
    fd_set *set = (fd_set *)(buffer + 2048);
    struct timeval *late = (struct timeval *)(buffer + 3072);
    struct mmsghdr *messages = (struct mmsghdr *)(buffer + 3072);
    struct { long type; unsigned char text[64]; } *queued = (void *)(buffer + 2048);
    switch (n % KINDS) {
    case 0: must(read(in, buffer, 2048) == 64, "read"); break;
    case 1:
        *vector = (struct iovec){buffer, 2048};
        must(readv(in, vector, 1) == 64, "readv");
        break;
    case 2: must(recv(in, buffer, 2048, 0) == 64, "recv"); break;
    case 3:
        *vector = (struct iovec){buffer, 2048};
        *message = (struct msghdr){.msg_iov = vector, .msg_iovlen = 1};
        must(recvmsg(in, message, 0) == 64, "recvmsg");
        break;
    case 4:
        *polled = (struct pollfd){.fd = in, .events = POLLIN};
        must(poll(polled, 1, -1) == 1 && polled->revents == POLLIN, "poll");
        must(read(in, buffer, 2048) == 64, "read after poll");
        break;
    case 5: {
        int epoll = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = 77};
        must(epoll_ctl(epoll, EPOLL_CTL_ADD, in, &event) == 0, "epoll_ctl");
        must(epoll_wait(epoll, events, 16, -1) == 1 && events->data.u64 == 77, "epoll_wait");
        must(read(in, buffer, 2048) == 64, "read after epoll_wait");
        close(epoll);
        break;
    }
    case 6:
        if (in >= FD_SETSIZE) { must(read(in, buffer, 2048) == 64, "read"); break; }
        FD_ZERO(set);
        FD_SET(in, set);
        late->tv_sec = 100;
        must(select(in + 1, set, NULL, NULL, late) == 1 && FD_ISSET(in, set), "select");
        must(read(in, buffer, 2048) == 64, "read after select");
        break;
    case 7:
        *vector = (struct iovec){buffer, 2048};
        *messages = (struct mmsghdr){.msg_hdr = {.msg_iov = vector, .msg_iovlen = 1}};
        must(recvmmsg(in, messages, 1, 0, NULL) == 1 && messages->msg_len == 64, "recvmmsg");
        break;
    case 8:
        must(msgrcv(ends[n][1], queued, 64, n + 1, 0) == 64, "msgrcv");
        memcpy(buffer, queued->text, 64);
        break;
    case 9:
        must(direct(SYS_read, in, (long)buffer, 2048, 0, 0, 0) == 64, "read by the instruction");
        break;
    }
    all(buffer, 64, n % 251 + 1, "what was waited for");
    return NULL;
}
int main(int words_count, char **words) {
    alarm(250);
    must(words_count == 2, "arguments");
    threads = atoi(words[1]);
    struct rlimit files = {1 << 14, 1 << 14};
    setrlimit(RLIMIT_NOFILE, &files);
    int queue = msgget(IPC_PRIVATE, 0600);
    must(queue >= 0, "msgget");
    ends = calloc(threads, sizeof *ends);
    buffers = spread(threads);
    pthread_t *ids = calloc(threads, sizeof *ids);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 128 << 10);
    for (int n = 0; n < threads; n++) {
        if (n % KINDS == 8) ends[n][1] = queue;
        else must(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends[n]) == 0, "socketpair");
        must(pthread_create(&ids[n], &attributes, wait_for_it, (void *)(long)n) == 0, "thread");
    }
    while (__atomic_load_n(&count_waiting, __ATOMIC_SEQ_CST) < threads) usleep(1000);
    usleep(300000);
    for (int turn = 0; turn < 3; turn++) press();
    unsigned char *text = evicted(4096);
    for (int n = 0; n < threads; n++) {
        struct { long type; unsigned char text[64]; } message = {.type = n + 1};
        memset(text, n % 251 + 1, 64);
        memcpy(message.text, text, 64);
        if (n % KINDS == 8) must(msgsnd(queue, &message, 64, 0) == 0, "msgsnd");
        else must(write(ends[n][1], text, 64) == 64, "write");
    }
    for (int n = 0; n < threads; n++) must(pthread_join(ids[n], NULL) == 0, "join");
    msgctl(queue, IPC_RMID, NULL);
    return 0;
}
"#;

#[test]
fn a_thousand_blocked_threads_leave_room_for_faults() {
    let Some(program) = compile_text("blocked", &format!("{PROLOGUE}{SPREAD}{BLOCKED}")) else { return };
    for (delivery, exchange, threads) in
        [("signal", "auto", "400"), ("auto", "auto", "2000"), ("listener", "copy", "1000")]
    {
        let words = ["--dram", "16MiB", "--block", "1MiB", "--tier", "dram:size=4GiB", "--delivery", delivery];
        let words = [&words[..], &["--exchange", exchange]].concat();
        let ended = run(managed(&words, &program, &[threads]), LIMIT);
        let reported = format!("{threads} threads with {delivery}, {exchange}: {}{}", ended.stdout, ended.stderr);
        assert_eq!(ended.status, Some(0), "{reported}");
    }
}
