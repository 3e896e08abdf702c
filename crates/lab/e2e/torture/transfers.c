// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

/* System calls and stdio whose buffers are in managed memory: for all sizes, the received bytes must be the sent
 * ones, and no call may fail because its buffer is evicted. */

#include "torture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int open_scratch(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/torture-XXXXXX", directory);
    int file = mkstemp(path);
    if (file < 0)
        broken("mkstemp");
    unlink(path);
    return file;
}

/* Chooses a run of lines, and room for a second run of the same length elsewhere in the area. */
static size_t two_runs(struct area *area, struct luck *luck, size_t *from, size_t *to) {
    size_t lines = area->len / LINE;
    size_t most = below(luck, 4) ? 200 : 20000;
    size_t count = 1 + below(luck, most);
    if (count > lines / 2)
        count = lines / 2;
    *from = below(luck, lines / 2 - count + 1);
    *to = lines / 2 + below(luck, lines - lines / 2 - count + 1);
    return count;
}

static void copied(struct area *area, size_t from, size_t to, size_t count, const char *what) {
    unsigned char line[LINE];
    /* Line contents depend on the line number, so the copy is compared with its source and then overwritten with new
     * lines. */
    for (size_t at = 0; at < count; at++) {
        line_bytes(area, from + at, line);
        if (memcmp(area->start + (to + at) * LINE, line, LINE) != 0)
            wrong("%s: line %zu of %zu differs from what was sent", what, at, count);
    }
}

static void whole(ssize_t done, size_t len, const char *what) {
    if (done < 0)
        wrong("%s of %zu bytes fails: %s", what, len, strerror(errno));
    if ((size_t)done != len)
        wrong("%s of %zu bytes ends after %zd", what, len, done);
}

void transfers(struct area *area, struct luck *luck) {
    size_t from, to, count = two_runs(area, luck, &from, &to), len = count * LINE;
    unsigned char *source = area->start + from * LINE, *target = area->start + to * LINE;
    const char *what = "read";
    int file = open_scratch();
    switch (below(luck, 4)) {
    case 0:
        whole(write(file, source, len), len, "write");
        if (lseek(file, 0, SEEK_SET) != 0)
            broken("lseek");
        whole(read(file, target, len), len, what);
        break;
    case 1:
        what = "pread";
        whole(pwrite(file, source, len, 4097), len, "pwrite");
        whole(pread(file, target, len, 4097), len, what);
        break;
    case 2: {
        what = "fread";
        FILE *stream = fdopen(dup(file), "w+");
        if (!stream)
            broken("fdopen");
        whole((ssize_t)(fwrite(source, LINE, count, stream) * LINE), len, "fwrite");
        rewind(stream);
        whole((ssize_t)(fread(target, 1, len, stream)), len, what);
        fclose(stream);
        break;
    }
    default: { /* A pipe: a read of more bytes than it has must return those that it has, without waiting. */
        what = "read from a pipe";
        int ends[2];
        size_t part = len < 65536 ? len : 65536;
        count = part / LINE;
        if (pipe(ends) != 0)
            broken("pipe");
        whole(write(ends[1], source, part), part, "write to a pipe");
        whole(read(ends[0], target, len), part, what);
        close(ends[0]);
        close(ends[1]);
    }
    }
    close(file);
    copied(area, from, to, count, what);
    write_lines(area, to, count, luck);
}

/* Structures that the kernel writes or reads in other system calls. */
void kernel_structures(struct area *area, struct luck *luck) {
    size_t line = below(luck, area->len / LINE - 200) & ~(size_t)63;
    unsigned char *at = area->start + line * LINE;
    check_lines(area, line, 200, "before a system call");
    switch (below(luck, 4)) {
    case 0: {
        struct stat *found = (struct stat *)at;
        if (stat("/", found) != 0)
            wrong("stat fails: %s", strerror(errno));
        if (!S_ISDIR(found->st_mode))
            wrong("stat: / is no directory");
        break;
    }
    case 1: {
        int file = open("/proc/self", O_RDONLY | O_DIRECTORY);
        long got = syscall(SYS_getdents64, file, at, 128 * LINE);
        close(file);
        if (got <= 0)
            wrong("getdents64 fails: %s", strerror(errno));
        break;
    }
    case 2: {
        int ends[2];
        struct pollfd *ready = (struct pollfd *)at;
        if (pipe(ends) != 0 || write(ends[1], "x", 1) != 1)
            broken("pipe");
        *ready = (struct pollfd){.fd = ends[0], .events = POLLIN};
        int count = poll(ready, 1, 1000);
        close(ends[0]);
        close(ends[1]);
        if (count != 1 || ready->revents != POLLIN)
            wrong("poll returns %d: %s", count, strerror(errno));
        break;
    }
    default: {
        int ends[2], set = epoll_create1(0);
        struct epoll_event *event = (struct epoll_event *)at;
        if (set < 0 || pipe(ends) != 0 || write(ends[1], "x", 1) != 1)
            broken("epoll_create1");
        *event = (struct epoll_event){.events = EPOLLIN, .data.u64 = 42};
        int added = epoll_ctl(set, EPOLL_CTL_ADD, ends[0], event);
        int count = added == 0 ? epoll_wait(set, event, 8, 1000) : -1;
        close(set);
        close(ends[0]);
        close(ends[1]);
        if (count != 1 || event->data.u64 != 42)
            wrong("epoll returns %d: %s", count, strerror(errno));
    }
    }
    write_lines(area, line, 200, luck);
}

void vectors(struct area *area, struct luck *luck) {
    size_t from, to, count = two_runs(area, luck, &from, &to), len = count * LINE;
    unsigned char *source = area->start + from * LINE, *target = area->start + to * LINE;
    size_t cut = below(luck, len + 1);
    struct iovec out[2] = {{source, cut}, {source + cut, len - cut}};
    struct iovec in[2] = {{target, len - cut}, {target + len - cut, cut}};
    int file = open_scratch();
    if (below(luck, 2)) {
        whole(writev(file, out, 2), len, "writev");
        if (lseek(file, 0, SEEK_SET) != 0)
            broken("lseek");
        whole(readv(file, in, 2), len, "readv");
    } else {
        whole(pwritev(file, out, 2, 100), len, "pwritev");
        whole(preadv(file, in, 2, 100), len, "preadv");
    }
    close(file);
    copied(area, from, to, count, "readv");
    write_lines(area, to, count, luck);
}

void messages(struct area *area, struct luck *luck) {
    size_t from, to, count = two_runs(area, luck, &from, &to);
    count = count > 512 ? 512 : count;
    size_t len = count * LINE;
    unsigned char *source = area->start + from * LINE, *target = area->start + to * LINE;
    int ends[2], kind = below(luck, 2) ? SOCK_STREAM : SOCK_DGRAM;
    if (socketpair(AF_UNIX, kind, 0, ends) != 0)
        broken("socketpair");
    struct iovec out = {source, len}, in = {target, len};
    struct msghdr sent = {.msg_iov = &out, .msg_iovlen = 1}, got = {.msg_iov = &in, .msg_iovlen = 1};
    if (below(luck, 2))
        whole(send(ends[0], source, len, 0), len, "send");
    else
        whole(sendmsg(ends[0], &sent, 0), len, "sendmsg");
    switch (below(luck, 3)) {
    case 0:
        whole(recv(ends[1], target, len, MSG_WAITALL), len, "recv");
        break;
    case 1:
        whole(recvmsg(ends[1], &got, MSG_WAITALL), len, "recvmsg");
        break;
    default:
        whole(recvfrom(ends[1], target, len, MSG_WAITALL, NULL, NULL), len, "recvfrom");
    }
    close(ends[0]);
    close(ends[1]);
    copied(area, from, to, count, "a message");
    write_lines(area, to, count, luck);
}
