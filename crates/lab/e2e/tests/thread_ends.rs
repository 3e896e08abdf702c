// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What runs at the end of a thread: destructors of thread-local values, in the C library's order.
//!
//! They used to run after the library had stopped handling the thread's calls: a destructor that closed a stream whose
//! buffer was evicted got EFAULT from the C library's write, and the last lines were lost.

use aquifer_e2e::evicted_memory::works;

/// Each way to end a thread, with a stack of the usual size and with the smallest one.
#[test]
fn destructors_write_what_is_in_evicted_buffers() {
    works(
        "destructors",
        "#include <limits.h>
        enum { BUFFER = 1 << 20, LINES = 1000 };
        extern int __cxa_thread_atexit_impl(void (*)(void *), void *, void *);
        extern void *__dso_handle;
        static pthread_key_t streams_of_threads, last; static int files[2], ended, by_hand;
        static __thread int turns;
        static void close_stream(void *stream) {
            if (by_hand) press();
            must(fclose(stream) == 0, \"fclose\");
        }
        static void close_late(void *stream) {
            /* As late as the C library allows. */
            if (++turns < PTHREAD_DESTRUCTOR_ITERATIONS - 1) { pthread_setspecific(last, stream); return; }
            close_stream(stream);
            __atomic_add_fetch(&ended, 1, __ATOMIC_SEQ_CST);
        }
        static FILE *stream_with_lines(int file) {
            FILE *stream = fdopen(dup(file), \"w\");
            must(stream && !setvbuf(stream, (char *)evicted(BUFFER), _IOFBF, BUFFER), \"setvbuf\");
            for (int line = 0; line < LINES; line++) fprintf(stream, \"line %d\\n\", line);
            return stream;
        }
        static void *work(void *way) {
            pthread_setspecific(streams_of_threads, stream_with_lines(files[0]));
            pthread_setspecific(last, stream_with_lines(files[1]));
            __cxa_thread_atexit_impl(close_stream, stream_with_lines(files[0]), &__dso_handle);
            press();
            by_hand = 1;
            if ((long)way == 1) pthread_exit(NULL);
            if ((long)way == 2) { pthread_cancel(pthread_self()); pthread_testcancel(); return (void *)1; }
            return NULL;
        }
        static void check(int file, int streams) {
            static char text[64 << 10];
            char line[32];
            ssize_t len = pread(file, text, sizeof text, 0);
            must(len > 0, \"pread\");
            char *at = text;
            for (int turn = 0; turn < streams * LINES; turn++) {
                int bytes = sprintf(line, \"line %d\\n\", turn % LINES);
                must(at + bytes <= text + len && !memcmp(at, line, bytes), line);
                at += bytes;
            }
            must(at == text + len && ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0, \"no more\");
        }",
        r#"
        must(pthread_key_create(&streams_of_threads, close_stream) == 0, "a key");
        must(pthread_key_create(&last, close_late) == 0, "a key");
        for (int at = 0; at < 2; at++) {
            char path[] = "/tmp/aquifer-e2e-destructors-XXXXXX";
            files[at] = mkstemp(path);
            must(files[at] >= 0 && unlink(path) == 0 && fcntl(files[at], F_SETFL, O_APPEND) == 0, "a file");
        }
        pthread_attr_t attributes;
        for (long kind = 0; kind < 8; kind++) {
            int before = ended, is_detached = kind % 4 == 3;
            by_hand = 0;
            pthread_t thread; void *result;
            pthread_attr_init(&attributes);
            if (kind >= 4) must(pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0, "the smallest stack");
            if (is_detached) pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
            must(pthread_create(&thread, &attributes, work, (void *)(kind % 4)) == 0, "pthread_create");
            if (!is_detached) must(pthread_join(thread, &result) == 0 && result != (void *)1, "pthread_join");
            while (__atomic_load_n(&ended, __ATOMIC_SEQ_CST) == before) usleep(1000);
            check(files[0], 2);
            check(files[1], 1);
        }"#,
    );
}

/// Nothing of a thread is left when it has ended, in whatever way.
#[test]
fn nothing_of_a_thread_is_left() {
    works(
        "left-of-threads",
        "static int count_maps(void) {
            char bytes[4096]; int lines = 0, maps = open(\"/proc/self/maps\", O_RDONLY);
            for (ssize_t got; (got = read(maps, bytes, sizeof bytes)) > 0;)
                for (ssize_t at = 0; at < got; at++) lines += bytes[at] == '\\n';
            close(maps);
            return lines;
        }
        static int count_threads(void) {
            struct stat found;
            must(stat(\"/proc/self/task\", &found) == 0, \"stat\");
            return (int)found.st_nlink;
        }
        static unsigned char *data;
        static void *work(void *way) {
            data[4096 * ((long)way + 1)]++;
            if ((long)way == 1) pthread_exit(NULL);
            if ((long)way == 2) { pthread_cancel(pthread_self()); pthread_testcancel(); }
            return NULL;
        }",
        r#"
        data = evicted(8 << 20);
        int maps = 0, threads = count_threads();
        for (long turn = 0; turn < 400; turn++) {
            pthread_t thread;
            if (turn == 40) maps = count_maps();
            must(pthread_create(&thread, NULL, work, (void *)(turn % 4)) == 0, "pthread_create");
            if (turn % 4 == 3) {
                must(pthread_detach(thread) == 0, "pthread_detach");
                for (int wait = 0; wait < 5000 && count_threads() > threads; wait++) usleep(1000);
            } else must(pthread_join(thread, NULL) == 0, "pthread_join");
        }
        int more = count_maps() - maps;
        if (more > 60) { fprintf(stderr, "%d more mappings\n", more); return 3; }"#,
    );
}
