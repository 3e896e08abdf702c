// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Preloaded into a program that speaks MCTP by the kernel's sockets (AF_MCTP): carries its messages over a Unix socket
// instead, in the packets that crates/pool/fmapi/src/mctp.rs draws. So such a program reaches aquifer-cxl-switchd on a
// kernel without MCTP, and without a bus.
//
// AQUIFER_MCTP_SOCKET names the Unix socket. Only socket, sendto, recvfrom and close are replaced, and only for AF_MCTP;
// poll works on either kind of socket. For programs that use a socket in one thread and wait for one answer at a time.

#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    MCTP_FAMILY = 45,
    PACKET_BYTES = 68,
    HEADER_BYTES = 4,
    BODY_BYTES = PACKET_BYTES - HEADER_BYTES,
    // The switch's 8 KiB, the message type, and the padding of the last packet.
    MESSAGE_BYTES_MAX = 8192 + 1 + BODY_BYTES,
    CCI_HEADER_BYTES = 12,
    OWN_EID = 9,
    VERSION = 1,
    OWNER = 1 << 3,
    END = 1 << 6,
    START = 1 << 7,
    DESCRIPTORS_MAX = 1024,
};

// As linux/mctp.h has it since Linux 5.15; older headers do not.
struct mctp_address {
    sa_family_t family;
    uint16_t reserved;
    uint32_t network;
    uint8_t eid;
    uint8_t type;
    uint8_t tag;
    uint8_t reserved_at_the_end;
};

// What is known of a socket of ours; tag 0 means that the descriptor is not one.
static struct {
    uint8_t tag;
    uint8_t sequence;
    uint8_t eid;
} sockets[DESCRIPTORS_MAX];

static int is_ours(int fd) {
    return fd >= 0 && fd < DESCRIPTORS_MAX && sockets[fd].tag != 0;
}

int socket(int domain, int type, int protocol) {
    if (domain != MCTP_FAMILY) return (int)syscall(SYS_socket, domain, type, protocol);
    const char *path = getenv("AQUIFER_MCTP_SOCKET");
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (path == NULL || strlen(path) >= sizeof address.sun_path) {
        errno = EAFNOSUPPORT;
        return -1;
    }
    strcpy(address.sun_path, path);
    int fd = (int)syscall(SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (fd >= DESCRIPTORS_MAX || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        syscall(SYS_close, fd);
        return -1;
    }
    sockets[fd].tag = 1;
    sockets[fd].sequence = 0;
    return fd;
}

int close(int fd) {
    if (is_ours(fd)) sockets[fd].tag = 0;
    return (int)syscall(SYS_close, fd);
}

// Writes all of these bytes. Without a signal if the switch has ended.
static int write_all(int fd, const uint8_t *bytes, size_t length) {
    while (length > 0) {
        ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return -1;
        bytes += sent;
        length -= (size_t)sent;
    }
    return 0;
}

static int read_all(int fd, uint8_t *bytes, size_t length) {
    while (length > 0) {
        ssize_t got = recv(fd, bytes, length, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            if (got == 0) errno = ECONNRESET;
            return -1;
        }
        bytes += got;
        length -= (size_t)got;
    }
    return 0;
}

ssize_t sendto(int fd, const void *message, size_t length, int flags, const struct sockaddr *to, socklen_t to_bytes) {
    if (!is_ours(fd)) return syscall(SYS_sendto, fd, message, length, flags, to, to_bytes);
    struct mctp_address peer;
    if (to == NULL || to_bytes < sizeof peer || length + 1 > MESSAGE_BYTES_MAX - BODY_BYTES) {
        errno = EINVAL;
        return -1;
    }
    memcpy(&peer, to, sizeof peer);
    uint8_t body[MESSAGE_BYTES_MAX] = { peer.type };
    memcpy(body + 1, message, length);
    sockets[fd].eid = peer.eid;
    size_t total = length + 1;
    for (size_t at = 0; at < total; at += BODY_BYTES) {
        size_t part = total - at < BODY_BYTES ? total - at : BODY_BYTES;
        uint8_t ends = (uint8_t)((at == 0 ? START : 0) | (at + part == total ? END : 0));
        uint8_t marks = (uint8_t)(sockets[fd].tag | OWNER | sockets[fd].sequence << 4 | ends);
        uint8_t packet[PACKET_BYTES] = { VERSION, peer.eid, OWN_EID, marks };
        memcpy(packet + HEADER_BYTES, body + at, part);
        if (write_all(fd, packet, sizeof packet) != 0) return -1;
        sockets[fd].sequence = (sockets[fd].sequence + 1) & 3;
    }
    return (ssize_t)length;
}

ssize_t recvfrom(int fd, void *restrict into, size_t room, int flags, struct sockaddr *restrict from,
                 socklen_t *restrict from_bytes) {
    if (!is_ours(fd)) return syscall(SYS_recvfrom, fd, into, room, flags, from, from_bytes);
    uint8_t body[MESSAGE_BYTES_MAX], packet[PACKET_BYTES];
    size_t length = 0;
    do {
        if (length + BODY_BYTES > sizeof body) {
            errno = EMSGSIZE;
            return -1;
        }
        if (read_all(fd, packet, sizeof packet) != 0) return -1;
        memcpy(body + length, packet + HEADER_BYTES, BODY_BYTES);
        length += BODY_BYTES;
    } while ((packet[3] & END) == 0);
    // The message without its type ends where its header says, and the rest of the last packet is padding.
    const uint8_t *message = body + 1;
    size_t said = CCI_HEADER_BYTES + (message[5] | (size_t)message[6] << 8 | (size_t)(message[7] & 0x1f) << 16);
    size_t bytes = said < length - 1 ? said : length - 1;
    if (from != NULL && from_bytes != NULL && *from_bytes >= sizeof(struct mctp_address)) {
        struct mctp_address peer = { .family = MCTP_FAMILY, .eid = sockets[fd].eid, .type = body[0] };
        memcpy(from, &peer, sizeof peer);
        *from_bytes = sizeof peer;
    }
    memcpy(into, message, bytes < room ? bytes : room);
    return (ssize_t)(bytes < room ? bytes : room);
}

// What a program calls that was built with _FORTIFY_SOURCE.
ssize_t __recvfrom_chk(int fd, void *restrict into, size_t room, size_t object, int flags,
                       struct sockaddr *restrict from, socklen_t *restrict from_bytes) {
    return recvfrom(fd, into, room < object ? room : object, flags, from, from_bytes);
}
