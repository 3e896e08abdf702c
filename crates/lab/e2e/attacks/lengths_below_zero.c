// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors
//
// attack: tiers=dram delivery=signal,listener dram=16MiB
//
// Promise: a call that the kernel refuses is refused the same way while memory is managed, and changes nothing.
// Attempt: transfers whose lengths, taken as signed, are below zero. The kernel transfers nothing. If a part of such a
// length were transferred, it would overwrite the memory after the buffer.
// Broken (exit status 1): a byte after the buffer has changed, or the call's result is not the kernel's.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096, PRESS = 64 << 20, BUFFER = 64, BEHIND = 2 * PAGE, MARK = 7 };

static unsigned char *volatile pressure;
static struct {
    unsigned char buffer[BUFFER], behind[BEHIND];
} memory;
static volatile size_t below_zero = -1;
static int broken;

static void expect(const char *what, long result, int right) {
    if (result != -1 || errno != right) {
        fprintf(stderr, "%s: %ld with errno %d instead of %d\n", what, result, errno, right);
        broken = 1;
    }
    for (int at = 0; at < BEHIND; at++)
        if (memory.behind[at] != MARK) {
            fprintf(stderr, "%s: byte %d behind the buffer is %d\n", what, at, memory.behind[at]);
            broken = 1;
            memset(memory.behind, MARK, BEHIND);
        }
    for (size_t at = 0; at < PRESS; at += PAGE) pressure[at]++;
}

int main(void) {
    pressure = malloc(PRESS);
    memset((void *)pressure, 1, PRESS);
    memset(memory.behind, MARK, BEHIND);
    int file = memfd_create("file", 0), ends[2];
    if (file < 0 || ftruncate(file, 4 * PAGE) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends)) return 77;
    struct iovec one = {memory.buffer, -1}, two[2] = {{memory.buffer, BUFFER}, {memory.buffer, -1}};
    expect("readv", readv(file, &one, 1), EINVAL);
    expect("readv of two", readv(file, two, 2), EINVAL);
    expect("preadv", preadv(file, &one, 1, 0), EINVAL);
    expect("preadv of two", preadv(file, two, 2, 0), EINVAL);
    expect("preadv2", preadv2(file, two, 2, 0, 0), EINVAL);
    expect("writev", writev(file, two, 2), EINVAL);
    expect("pwritev", pwritev(file, &one, 1, 0), EINVAL);
    expect("read", read(file, memory.buffer, below_zero), EFAULT);
    expect("pread", pread(file, memory.buffer, below_zero, 0), EFAULT);
    struct msghdr header = {.msg_iov = two, .msg_iovlen = 2};
    expect("sendmsg", sendmsg(ends[0], &header, 0), EINVAL);
    if (send(ends[0], "bytes", 5, 0) != 5) return 77;
    expect("recvmsg", recvmsg(ends[1], &header, 0), EINVAL);
    // On managed memory, which has been evicted.
    unsigned char *far = malloc(2 << 20);
    memset(far, MARK, 2 << 20);
    one.iov_base = far;
    expect("readv into evicted memory", readv(file, &one, 1), EINVAL);
    for (size_t at = 0; at < 2 << 20; at++)
        if (far[at] != MARK) {
            fprintf(stderr, "byte %zu of evicted memory is %d\n", at, far[at]);
            return 1;
        }
    return broken;
}
