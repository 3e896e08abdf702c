// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! sendmmsg(2) and recvmmsg(2) with numbers of messages that few programs use: none, more than UIO_MAXIOV, more than an
//! `int` holds. The program is run twice, alone and managed, and must print the same. When managed, recvmmsg(2) used to
//! end after 1024 messages, and it did not ignore the upper 32 bits of the count's register, as the kernel does.

use std::process::Command;

use aquifer_e2e::build::compile_text;
use aquifer_e2e::evicted_memory::PROLOGUE;
use aquifer_e2e::run::{LIMIT, managed, run};

const PROGRAM: &str = r#"
enum { MANY = 3000 };
static struct mmsghdr *headers;
static struct iovec *entries;
static unsigned char *bytes;
static int ends[2];
/* MANY messages of a byte each, on a page of its own. Headers, vectors and bytes are evicted. */
static void prepare(void) {
    for (int index = 0; index < MANY; index++) {
        memset(&headers[index], 0, sizeof headers[index]);
        entries[index] = (struct iovec){ &bytes[index * PAGE], 1 };
        headers[index].msg_hdr.msg_iov = &entries[index];
        headers[index].msg_hdr.msg_iovlen = 1;
        bytes[index * PAGE] = index % 251;
    }
    press();
}
static void clear(void) {
    for (int index = 0; index < MANY; index++) bytes[index * PAGE] = 0;
    press();
}
static void show(const char *what, long result) {
    int error = result < 0 ? errno : 0, whole = 0, sum = 0;
    for (int index = 0; index < MANY; index++) {
        whole += headers[index].msg_len;
        sum = (sum * 31 + bytes[index * PAGE]) % 65521;
    }
    printf("%s: %ld, %s; %d, %d\n", what, result, error ? strerror(error) : "no error", whole, sum);
}
static int drain(void) {
    static char into[1 << 16];
    int all = 0, more;
    while ((more = recv(ends[1], into, sizeof into, MSG_DONTWAIT)) > 0) all += more;
    return all;
}
static void fill(int count) {
    for (int index = 0; index < count; index++) must(send(ends[0], "x", 1, 0) == 1, "send");
}
#define SEND(what, count) do { prepare(); show(what, sendmmsg(ends[0], headers, (count), 0)); printf("%d came\n", drain()); } while (0)
#define RECEIVE(what, there, count, flags) do { fill(there); prepare(); clear(); \
    show(what, recvmmsg(ends[1], headers, (count), (flags), 0)); printf("%d left\n", drain()); } while (0)
int main(void) {
    alarm(250);
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
    int room = 4 << 20;
    must(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room) == 0 || errno == EPERM, "room");
    headers = malloc(MANY * sizeof *headers);
    entries = malloc(MANY * sizeof *entries);
    bytes = malloc(MANY * PAGE);
    SEND("send none", 0);
    SEND("send some", 7);
    SEND("send the most", 1024);
    SEND("send more", 1025);
    SEND("send many", MANY);
    SEND("send less than none", -1);
    RECEIVE("receive none", 3, 0, MSG_DONTWAIT);
    RECEIVE("receive many of few", 5, MANY, MSG_DONTWAIT);
    RECEIVE("receive many", 200, 200, 0);
    RECEIVE("receive less than none", 9, -1, MSG_DONTWAIT);
    RECEIVE("receive less than none, of none", 0, -1, MSG_DONTWAIT);
    RECEIVE("receive with the first", 4, -1, MSG_WAITFORONE);
    /* A stream has no boundaries: each byte is a message. */
    static unsigned char sent[MANY];
    for (int index = 0; index < MANY; index++) sent[index] = index % 251;
    prepare();
    must(send(ends[0], sent, MANY, 0) == MANY, "send");
    clear();
    show("receive more than are sent at a time", recvmmsg(ends[1], headers, MANY, 0, 0));
    printf("%d left\n", drain());
    fill(6);
    prepare();
    show("receive by register", direct(SYS_recvmmsg, ends[1], (long)headers, (1L << 32) | 2, MSG_DONTWAIT, 0, 0));
    printf("%d left\n", drain());
    prepare();
    show("send by register", direct(SYS_sendmmsg, ends[0], (long)headers, (7L << 32) | 3, 0, 0, 0));
    printf("%d came\n", drain());
    prepare();
    show("a closed descriptor", recvmmsg(-1, headers, -1, 0, 0));
    show("a closed descriptor to send to", sendmmsg(-1, headers, -1, 0));
    show("no socket", sendmmsg(0, headers, -1, 0));
    show("a bad address", recvmmsg(ends[1], (struct mmsghdr *)8, -1, MSG_DONTWAIT, 0));
    show("a bad address and descriptor", sendmmsg(-1, (struct mmsghdr *)8, -1, 0));
    struct timespec bad = { 0, -1 };
    show("a bad timeout", recvmmsg(ends[1], headers, -1, MSG_DONTWAIT, &bad));
    return 0;
}
"#;

#[test]
fn any_number_of_messages_ends_as_without_aquifer() {
    let Some(program) = compile_text("message_counts", &format!("{PROLOGUE}\n{PROGRAM}")) else { return };
    let alone = run(Command::new(&program), LIMIT);
    alone.expect(0);
    for exchange in ["auto", "copy"] {
        let words = ["--dram", "24MiB", "--tier", "dram:", "--exchange", exchange];
        let ended = run(managed(&words, &program, &[]), LIMIT);
        ended.expect(0);
        assert_eq!(ended.stdout, alone.stdout, "{exchange}");
    }
}
