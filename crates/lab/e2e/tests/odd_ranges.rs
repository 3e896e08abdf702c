// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Calls with impossible ranges, and others that the kernel refuses, lose none of the program's memory.
//!
//! stress-ng's mremap stressor makes such calls, and the pager used to end it: the end of the range had wrapped around.

use aquifer_e2e::evicted_memory::works;

#[test]
fn ranges_that_wrap_around_or_are_not_of_pages_change_nothing() {
    let functions = r#"
static void refused(long result, const char *what) { must(result < 0, what); }
"#;
    let body = r#"
    enum { LEN = 8 << 20 };
    unsigned char *start = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(start, 7, LEN);
    press();
    size_t wraps[] = {~(size_t)0, ~(size_t)4095, (size_t)0 - (size_t)start, (size_t)1 << 62};
    for (int i = 0; i < 4; i++) {
        size_t len = wraps[i];
        refused(munmap(start, len), "munmap of a range that wraps");
        refused((long)mremap(start, len, LEN, MREMAP_MAYMOVE), "mremap from a range that wraps");
        refused((long)mremap(start, LEN, len, MREMAP_MAYMOVE), "mremap to a range that wraps");
        refused((long)mremap(start, LEN, len, MREMAP_MAYMOVE | MREMAP_FIXED, start + (64 << 20)), "mremap, fixed");
        refused((long)mmap(start, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), "mmap");
    }
    refused(madvise(start, ~(size_t)0, MADV_DONTNEED), "madvise of a range that wraps");
    refused(madvise(start + 1, PAGE, MADV_DONTNEED), "madvise of a range that begins within a page");
    refused(munmap(start + 1, PAGE), "munmap of a range that begins within a page");
    all(start, LEN, 7, "after calls that were refused");
"#;
    works("odd-ranges", functions, body);
}

/// The pager used to forget the contents before it asked the kernel, and a thread that touched them faulted for ever.
#[test]
fn ranges_that_the_kernel_refuses_to_replace_or_unmap_keep_their_contents() {
    works(
        "refused",
        r#"enum { LEN = 64 << 20, MSEAL = 462 };
        static unsigned char *start;
        static void kept(long result, const char *what) {
            must(result == -1, what);
            for (size_t at = 0; at < LEN; at += PAGE)
                if (start[at] != (at / PAGE) % 251) {
                    fprintf(stderr, "%s: page %zu has %d\n", what, at / PAGE, start[at]);
                    exit(1);
                }
        }
        static long mapped(int protection, int flags, int file, long offset) {
            return (long)mmap(start + (3 << 20) + PAGE, LEN / 2, protection, flags | MAP_FIXED, file, offset);
        }"#,
        r#"
        enum { READ_WRITE = PROT_READ | PROT_WRITE };
        start = mmap(NULL, LEN, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t at = 0; at < LEN; at += PAGE) start[at] = (at / PAGE) % 251;
        int readable = open("/etc/passwd", O_RDONLY), writable = open("/dev/null", O_WRONLY);
        kept(mapped(READ_WRITE, MAP_PRIVATE, 999, 0), "no such descriptor");
        kept(mapped(READ_WRITE, MAP_SHARED, readable, 0), "a file to read only");
        kept(mapped(PROT_READ, MAP_PRIVATE, writable, 0), "a file to write only");
        kept(mapped(READ_WRITE, MAP_PRIVATE, readable, 123), "an odd offset");
        kept(mapped(READ_WRITE, 0, readable, 0), "neither private nor shared");
        long middle = (long)start + (5 << 20);
        long args[] = {PROT_READ, MAP_PRIVATE | MAP_FIXED, 999, 0};
        must(direct(SYS_mmap, middle, LEN / 4, args[0], args[1], args[2], args[3]) == -EBADF, "mmap by itself");
        kept(-1, "mmap by itself");
        /* Since Linux 6.10. */
        if (direct(MSEAL, middle, LEN / 4, 0, 0, 0, 0) == 0) {
            kept(munmap(start, LEN), "munmap of sealed memory");
            kept((long)mremap(start, LEN, LEN / 16, 0), "mremap of sealed memory");
            kept(mapped(READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), "mmap over sealed memory");
            must(direct(SYS_munmap, middle, PAGE, 0, 0, 0, 0) == -EPERM, "munmap by itself");
            kept(-1, "munmap by itself");
        }"#,
    );
}
