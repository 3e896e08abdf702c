// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Calls with ranges that no memory can have: the kernel refuses them, and nothing of the program's is lost by it.
//!
//! stress-ng's mremap stressor makes such calls, and the pager ended it: the end of the range had wrapped around.

use aquifer_e2e::away::works;

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
        refused(munmap(start, len), "munmap of what wraps");
        refused((long)mremap(start, len, LEN, MREMAP_MAYMOVE), "mremap from what wraps");
        refused((long)mremap(start, LEN, len, MREMAP_MAYMOVE), "mremap to what wraps");
        refused((long)mremap(start, LEN, len, MREMAP_MAYMOVE | MREMAP_FIXED, start + (64 << 20)), "mremap, fixed");
        refused((long)mmap(start, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), "mmap");
    }
    refused(madvise(start, ~(size_t)0, MADV_DONTNEED), "madvise of what wraps");
    refused(madvise(start + 1, PAGE, MADV_DONTNEED), "madvise of what begins within a page");
    refused(munmap(start + 1, PAGE), "munmap of what begins within a page");
    all(start, LEN, 7, "after calls that were refused");
"#;
    works("odd-ranges", functions, body);
}
