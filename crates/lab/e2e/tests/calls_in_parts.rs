// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A call whose memory cannot be pinned is made in parts, and must look like one call.
//!
//! Each part of a sendmsg(2) used to carry the descriptors again, so the receiver got one copy for each MiB; and the
//! pieces of two threads' large fwrite(3) on one stream were interleaved.

use aquifer_e2e::evicted_memory::works;

/// On a stream socket the descriptors go with the first bytes, the sender's identity with all of them, and the only
/// byte out of band is the last one.
#[test]
fn descriptors_are_sent_once_and_identities_with_every_part() {
    works(
        "rights",
        "enum { LEN = 12 << 20, OTHER_USER = 4242 };
        static int pair[2], descriptors, strangers; static size_t came;
        static void *receive(void *user) {
            for (;;) {
                char bytes[32 << 10];
                _Alignas(struct cmsghdr) char control[1024];
                struct iovec in = {bytes, sizeof bytes};
                struct msghdr message = {.msg_iov = &in, .msg_iovlen = 1, .msg_control = control,
                                         .msg_controllen = sizeof control};
                ssize_t got = recvmsg(pair[1], &message, 0);
                must(got >= 0, \"recvmsg\");
                if (!got) return NULL;
                all((unsigned char *)bytes, got, 7, \"what came\");
                came += got;
                for (struct cmsghdr *each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each)) {
                    if (each->cmsg_type == SCM_RIGHTS)
                        descriptors += (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                    if (each->cmsg_type == SCM_CREDENTIALS)
                        strangers += ((struct ucred *)CMSG_DATA(each))->uid != (uid_t)(long)user;
                }
            }
        }
        static size_t count_to_end(int socket) {
            size_t count = 0;
            char bytes[32 << 10];
            for (ssize_t got; (got = recv(socket, bytes, sizeof bytes, 0)) > 0;) count += got;
            return count;
        }
        static void *receive_urgent(void *socket) { return (void *)count_to_end((int)(long)socket); }",
        r#"
        int yes = 1;
        uid_t user = geteuid() ? getuid() : OTHER_USER;
        must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
        must(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) == 0, "SO_PASSCRED");
        unsigned char *data = evicted_filled(LEN, 7);
        pthread_t thread;
        must(pthread_create(&thread, NULL, receive, (void *)(long)user) == 0, "pthread_create");
        struct {
            struct cmsghdr first; struct ucred identity; _Alignas(8) struct cmsghdr second; int descriptor;
        } control = {
            {CMSG_LEN(sizeof(struct ucred)), SOL_SOCKET, SCM_CREDENTIALS}, {getpid(), user, getgid()},
            {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}, 0};
        struct iovec out = {data, LEN};
        struct msghdr message = {.msg_iov = &out, .msg_iovlen = 1, .msg_control = &control,
                                 .msg_controllen = sizeof control};
        must(sendmsg(pair[0], &message, 0) == LEN, "sendmsg");
        must(shutdown(pair[0], SHUT_WR) == 0 && pthread_join(thread, NULL) == 0, "the end");
        must(came == LEN, "all bytes");
        if (descriptors != 1) { fprintf(stderr, "%d descriptors came\n", descriptors); return 3; }
        if (strangers) { fprintf(stderr, "%d parts have another sender\n", strangers); return 4; }

        for (int kind = 0; kind < 2; kind++) {
            void *count;
            must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
            if (send(pair[0], "", 1, MSG_OOB) < 0) { must(errno == EOPNOTSUPP, "before Linux 5.15"); return 0; }
            must(recv(pair[1], &yes, 1, MSG_OOB) == 1, "out of band");
            must(pthread_create(&thread, NULL, receive_urgent, (void *)(long)pair[1]) == 0, "pthread_create");
            message = (struct msghdr){.msg_iov = &out, .msg_iovlen = 1};
            ssize_t sent = kind ? sendmsg(pair[0], &message, MSG_OOB) : send(pair[0], data, LEN, MSG_OOB);
            must(sent == LEN, "out of band");
            must(shutdown(pair[0], SHUT_WR) == 0 && pthread_join(thread, &count) == 0, "the end");
            if ((size_t)count != LEN - 1) { fprintf(stderr, "%zu bytes out of band\n", LEN - (size_t)count); return 5; }
        }"#,
    );
}

/// fwrite(3) and fread(3) hold the stream's lock from the first byte to the last.
#[test]
fn records_of_two_threads_on_one_stream_stay_whole() {
    works(
        "records",
        "enum { RECORD = 1 << 20, RECORDS = 12 };
        static FILE *stream;
        static void *write_records(void *number) {
            unsigned char *record = evicted_filled(RECORD, (int)(long)number);
            for (int turn = 0; turn < RECORDS; turn++)
                must(fwrite(record, RECORD, 1, stream) == 1, \"fwrite\");
            return NULL;
        }
        static void *read_records(void *number) {
            unsigned char *record = evicted(RECORD);
            for (int turn = 0; turn < RECORDS; turn++) {
                must(fread(record, RECORD, 1, stream) == 1, \"fread\");
                all(record, RECORD, record[0], number ? \"one reader's record\" : \"the other's\");
            }
            return NULL;
        }
        static void by_two(void *(*work)(void *)) {
            pthread_t threads[2];
            for (long n = 0; n < 2; n++) must(pthread_create(&threads[n], NULL, work, (void *)n) == 0, \"thread\");
            for (int n = 0; n < 2; n++) must(pthread_join(threads[n], NULL) == 0, \"join\");
        }",
        r#"
        char path[] = "/tmp/aquifer-e2e-records-XXXXXX";
        int file = mkstemp(path);
        must(file >= 0 && unlink(path) == 0 && (stream = fdopen(file, "w+")) != NULL, "a file");
        by_two(write_records);
        must(fflush(stream) == 0, "fflush");
        unsigned char *record = malloc(RECORD);
        for (int turn = 0, of[2] = {0}; turn < 2 * RECORDS; turn++) {
            must(pread(file, record, RECORD, (off_t)turn * RECORD) == RECORD, "pread");
            all(record, RECORD, record[0], "a written record");
            must(record[0] < 2 && ++of[record[0]] <= RECORDS, "each record once");
        }
        /* Readers would share pieces just as writers do. */
        rewind(stream);
        by_two(read_records);"#,
    );
}

/// What is smaller than the stream's buffer is copied by the C library, and everything else must not reach the kernel
/// from the program's memory. Every fwrite(3) of one line used to map, zero and unmap a buffer of 256 KiB: GNU sort
/// took half as long again.
#[test]
fn small_records_go_through_the_streams_own_buffer() {
    works(
        "small-records",
        "enum { LEN = 1 << 20 };
        static const struct { int mode; size_t buffer; } kinds[] =
            {{_IOFBF, 0}, {_IOFBF, 100}, {_IOFBF, 1000}, {_IONBF, 0}, {_IOLBF, 4096}, {_IOFBF, 64 << 10}};
        static long faults(void) {
            struct rusage usage;
            must(getrusage(RUSAGE_THREAD, &usage) == 0, \"getrusage\");
            return usage.ru_minflt;
        }",
        r#"
        unsigned char *data = malloc(LEN), *back;
        for (size_t at = 0; at < LEN; at++) data[at] = (at >> 8) * 7 + at;
        for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
            FILE *stream = tmpfile();
            must(stream != NULL, "tmpfile");
            if (kinds[kind].mode != _IOFBF || kinds[kind].buffer)
                must(setvbuf(stream, NULL, kinds[kind].mode, kinds[kind].buffer) == 0, "setvbuf");
            press();
            size_t piece = 1, at = 0;
            for (; at < LEN; at += piece, piece = piece * 3 % 5003) {
                if (piece > LEN - at) piece = LEN - at;
                must(fwrite(data + at, 1, piece, stream) == piece, "fwrite");
            }
            must(fflush(stream) == 0 && ftell(stream) == LEN, "all of it");
            rewind(stream);
            back = evicted(LEN);
            for (at = 0, piece = 1; at < LEN; at += piece, piece = piece * 3 % 5003) {
                if (piece > LEN - at) piece = LEN - at;
                must(fread(back + at, piece, 1, stream) == 1, "fread");
            }
            must(fread(back, 1, 1, stream) == 0 && feof(stream), "the end");
            must(memcmp(data, back, LEN) == 0, "what was written");
            free(back);
            fclose(stream);
        }
        FILE *nowhere = fopen("/dev/null", "w");
        long before = 0;
        for (int line = 0; line < 21000; line++) {
            if (line == 1000) before = faults();
            must(fwrite(data + line * 40, 40, 1, nowhere) == 1, "a line");
        }
        long more = faults() - before;
        if (more > 5000) { fprintf(stderr, "20,000 lines took %ld faults\n", more); return 6; }"#,
    );
}

/// The C library unlocks the stream of a thread that is cancelled inside fwrite(3) or fread(3).
#[test]
fn a_cancelled_thread_leaves_the_stream_unlocked() {
    works(
        "cancelled-streams",
        "enum { LEN = 4 << 20 };
        static FILE *streams[2]; static unsigned char *data; static volatile int begun;
        static void *transfer(void *kind) {
            begun = 1;
            if (kind) (void)!fread(data, 1, LEN, streams[0]); else fwrite(data, 1, LEN, streams[1]);
            return NULL;
        }",
        r#"
        int ends[2];
        must(pipe(ends) == 0, "pipe");
        must((streams[0] = fdopen(ends[0], "r")) && (streams[1] = fdopen(ends[1], "w")), "fdopen");
        data = evicted_filled(LEN, 3);
        for (long turn = 0; turn < 6; turn++) {
            long kind = turn < 3;
            pthread_t thread; void *result;
            begun = 0;
            must(pthread_create(&thread, NULL, transfer, (void *)kind) == 0, "pthread_create");
            while (!begun) sched_yield();
            usleep(100000);
            must(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0, "pthread_join");
            must(result == PTHREAD_CANCELED, "cancelled");
            must(ftrylockfile(streams[!kind]) == 0, "the stream is unlocked");
            funlockfile(streams[!kind]);
        }
        press();
        _exit(0);"#,
    );
}
