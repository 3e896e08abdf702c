// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Locked memory: up to half the budget stays resident, more is refused, and nothing waits for a locked page to be
//! evicted.

use aquifer_e2e::build::compile_small;
use aquifer_e2e::run::{LIMIT, managed, run};

/// Memory is locked up to half the budget, and the rest is still evicted. Locking more fails with ENOMEM, and so does a
/// lock on future mappings: when such a lock was granted, it took every frame, and the program ended.
#[test]
fn memory_is_locked_up_to_half_the_budget() {
    let body = "char *start = touch(80); size_t mib = 1 << 20;\
        if (mlock(start, 60 * mib) != -1 || errno != ENOMEM) return 2;\
        if (mlockall(MCL_CURRENT) != -1 || errno != ENOMEM) return 3;\
        if (mlockall(MCL_CURRENT | MCL_FUTURE) != -1 || errno != ENOMEM) return 4;\
        if (mlock(start + 10 * mib, 6 * mib)) { perror(\"mlock\"); return 5; }\
        if (mlock(start + 20 * mib, 4 * mib)) { perror(\"mlock\"); return 5; }\
        if (mlock(start + 40 * mib, 4 * mib) != -1 || errno != ENOMEM) return 6;\
        for (int turn = 0; turn < 4; turn++) {\
            for (size_t at = 0; at < 80 * mib; at += 64) if (start[at] != (char)(at >> 12 | 1)) return 7;\
            static unsigned char there[6 << 8];\
            if (mincore((void *)((size_t)(start + 10 * mib) & ~4095ul), 6 * mib, there)) return 8;\
            for (size_t page = 0; page < sizeof there; page++) if (!(there[page] & 1)) return 9;\
        }\
        if (munlock(start + 10 * mib, 14 * mib) || mlock(start + 40 * mib, 8 * mib)) { perror(\"again\"); return 10; }\
        if (munlockall() || mlock(start + 60 * mib, 8 * mib)) { perror(\"munlockall\"); return 11; }\
        free(start); start = touch(80); if (mlock(start, 8 * mib)) return 12;\
        for (size_t at = 0; at < 80 * mib; at += 64) if (start[at] != (char)(at >> 12 | 1)) return 13;\
        return 0;";
    let Some(program) = compile_small("half-locked", body) else { return };
    for delivery in ["signal", "listener"] {
        for exchange in ["move", "copy"] {
            let words = ["--dram", "24MiB", "--tier", "dram:", "--delivery", delivery, "--exchange", exchange];
            let ended = run(managed(&words, &program, &[]), LIMIT);
            assert_eq!(ended.status, Some(0), "{delivery}, {exchange}: {}", ended.stderr);
        }
    }
}

/// A lock used to be forgotten when its memory moved or grew.
#[test]
fn locked_memory_stays_locked_where_it_moves() {
    let body = "size_t mib = 1 << 20; char *start = touch(80);\
        char *one = mmap(0, 16 * mib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\
        for (size_t at = 0; at < 16 * mib; at += 64) one[at] = (char)(at >> 12 | 1);\
        if (munmap(one + 4 * mib, 12 * mib) || mlock(one, 4 * mib)) return 2;\
        char *two = mremap(one, 4 * mib, 6 * mib, MREMAP_MAYMOVE);\
        if (two == MAP_FAILED) { perror(\"grow\"); return 3; }\
        char *place = mmap(0, 8 * mib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\
        two = mremap(two, 6 * mib, 8 * mib, MREMAP_MAYMOVE | MREMAP_FIXED, place);\
        if (two != place) { perror(\"move\"); return 4; }\
        if (mremap(two, 8 * mib, 40 * mib, MREMAP_MAYMOVE) != MAP_FAILED || errno != EAGAIN) return 5;\
        for (size_t at = 0; at < 80 * mib; at += 64) if (start[at] != (char)(at >> 12 | 1)) return 6;\
        static unsigned char there[8 << 8];\
        if (mincore(two, 8 * mib, there)) return 7;\
        for (size_t page = 0; page < sizeof there; page++) if (!(there[page] & 1)) return 8;\
        for (size_t at = 0; at < 4 * mib; at += 64) if (two[at] != (char)(at >> 12 | 1)) return 9;\
        unsigned long locked = 0; char line[256]; FILE *status = fopen(\"/proc/self/status\", \"r\");\
        while (fgets(line, sizeof line, status)) sscanf(line, \"VmLck: %lu\", &locked);\
        if (locked < 8 << 10 || locked > 9 << 10) { fprintf(stderr, \"%lu KiB locked\\n\", locked); return 10; }\
        if (munlockall() || munmap(two, 8 * mib)) return 11;\
        return 0;";
    let Some(program) = compile_small("moved-locked", body) else { return };
    for delivery in ["signal", "listener"] {
        for exchange in ["move", "copy"] {
            let words = ["--dram", "24MiB", "--tier", "dram:", "--delivery", delivery, "--exchange", exchange];
            let ended = run(managed(&words, &program, &[]), LIMIT);
            assert_eq!(ended.status, Some(0), "{delivery}, {exchange}: {}", ended.stderr);
        }
    }
}

/// Memory locked before the pager starts stays locked afterwards; and MCL_FUTURE does not end the program.
#[test]
fn memory_locked_early_stays() {
    let body = "size_t mib = 1 << 20; char *first = touch(8);\
        if (mlockall(MCL_FUTURE) != -1 || errno != ENOMEM) return 2;\
        if (mlock(first, 8 * mib)) { perror(\"mlock\"); return 3; }\
        char *start = touch(80);\
        static unsigned char there[8 << 8];\
        for (size_t at = 0; at < 80 * mib; at += 64) if (start[at] != (char)(at >> 12 | 1)) return 4;\
        if (mincore((void *)((size_t)first & ~4095ul), 8 * mib, there)) return 5;\
        for (size_t page = 0; page < sizeof there; page++) if (!(there[page] & 1)) return 6;\
        for (size_t at = 0; at < 8 * mib; at += 64) if (first[at] != (char)(at >> 12 | 1)) return 7;\
        return 0;";
    let Some(program) = compile_small("early-locked", body) else { return };
    for delivery in ["signal", "listener"] {
        let words = ["--dram", "24MiB", "--tier", "dram:", "--delivery", delivery];
        let ended = run(managed(&words, &program, &[]), LIMIT);
        assert_eq!(ended.status, Some(0), "{delivery}: {}", ended.stderr);
    }
}

/// MADV_DONTNEED empties what is before the first locked page, and is EINVAL there, as without Aquifer. A stack that a
/// thread had before the pager started is pinned, but not locked: where it was taken for locked, evicted memory around
/// it kept its old contents.
#[test]
fn memory_with_locked_or_pinned_pages_is_emptied_as_by_the_kernel() {
    let body = "void *nothing(void *none) { return none; } size_t mib = 1 << 20;\
        char *a = mmap(0, 16 * mib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\
        pthread_attr_t attr; pthread_t thread; pthread_attr_init(&attr);\
        if (pthread_attr_setstack(&attr, a + mib, mib)) return 2;\
        for (int turn = 0; turn < 300; turn++)\
            if (pthread_create(&thread, &attr, nothing, 0) || pthread_join(thread, 0)) return 3;\
        char *locked = mmap(0, 8 * mib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\
        if (mlock(locked, 4096)) { perror(\"mlock\"); return 4; }\
        char *start = touch(80);\
        for (int turn = 0; turn < 1100; turn++) if (mlock(start + 40 * mib, 4096)) { perror(\"again\"); return 5; }\
        for (size_t at = 0; at < 16 * mib; at += 64) a[at] = 7;\
        for (size_t at = 0; at < 8 * mib; at += 64) locked[at] = 8;\
        if (mlock(locked + 4 * mib, 4096)) { perror(\"mlock\"); return 6; }\
        if (munlock(locked, 4096)) return 7;\
        for (size_t at = 0; at < 80 * mib; at += 64) if (start[at] != (char)(at >> 12 | 1)) return 8;\
        if (madvise(a, 16 * mib, MADV_DONTNEED)) { perror(\"empty\"); return 9; }\
        if (madvise(locked, 8 * mib, MADV_DONTNEED) != -1 || errno != EINVAL) return 10;\
        for (size_t at = 0; at < 16 * mib; at += 64) if (a[at]) { fprintf(stderr, \"%zx\\n\", at); return 11; }\
        for (size_t at = 0; at < 8 * mib; at += 64) if (locked[at] != (at < 4 * mib ? 0 : 8)) return 12;\
        return 0;";
    let Some(program) = compile_small("pinned-emptied", body) else { return };
    for delivery in ["signal", "listener"] {
        for exchange in ["move", "copy"] {
            let words = ["--dram", "24MiB", "--tier", "dram:", "--delivery", delivery, "--exchange", exchange];
            let ended = run(managed(&words, &program, &[]), LIMIT);
            assert_eq!(ended.status, Some(0), "{delivery}, {exchange}: {}", ended.stderr);
        }
    }
}

/// A process has 1024 entries for pins. When locked memory has taken them all, a further lock fails with ENOMEM, and
/// calls still find their memory.
#[test]
fn calls_work_when_nothing_more_can_be_pinned() {
    let body = "char *start = touch(80); size_t mib = 1 << 20; int locked = 0;\
        while (locked < 1100 && mlock(start + (size_t)locked * 2 * 4096, 1) == 0) locked++;\
        if (locked != 1024 || errno != ENOMEM) { fprintf(stderr, \"%d: %m\\n\", locked); return 2; }\
        for (int turn = 0; turn < 4; turn++) {\
            char *far = start + 20 * mib;\
            for (size_t at = 40 * mib; at < 80 * mib; at += 4096) start[at]++;\
            int file = memfd_create(\"zeros\", 0);\
            if (ftruncate(file, 3 * mib)) return 7;\
            if (read(file, far, 3 * mib) != (ssize_t)(3 * mib)) { perror(\"read\"); return 3; }\
            int zeros = open(\"/dev/zero\", O_RDONLY);\
            if (read(zeros, far, 3 * mib) != (ssize_t)(3 * mib) || close(zeros)) { perror(\"/dev/zero\"); return 8; }\
            for (size_t at = 40 * mib; at < 80 * mib; at += 4096) start[at]++;\
            if (fstat(file, (void *)far)) { perror(\"fstat\"); return 4; }\
            if (close(file) || far[mib] || far[3 * mib - 1] || !far[3 * mib]) return 5;\
            static char stack[1 << 16]; stack_t given = {.ss_sp = turn % 2 ? stack : far, .ss_size = 1 << 16};\
            if (sigaltstack(&given, NULL)) { perror(\"sigaltstack\"); return 6; }\
        }\
        return 0;";
    let Some(program) = compile_small("all-pinned", body) else { return };
    for delivery in ["signal", "listener"] {
        // Small blocks, so that the entries are used up before half the budget is locked.
        let words = ["--dram", "24MiB", "--tier", "dram:", "--block", "4KiB", "--exchange", "copy"];
        let words = [&words[..], &["--delivery", delivery]].concat();
        let ended = run(managed(&words, &program, &[]), LIMIT);
        assert_eq!(ended.status, Some(0), "{delivery}: {}", ended.stderr);
    }
}

/// A page in the middle of each 512 KiB is locked without any wrapper. The pages of a block that the kernel moved
/// before it came to the locked page used to be lost.
#[test]
fn memory_that_is_locked_past_us_loses_nothing_around_it() {
    let body = "char *start = touch(80); size_t mib = 1 << 20, locked = 0;\
        for (size_t at = mib + mib / 4; at < 16 * mib; at += mib / 2) {\
            long result = 149; /* mlock(2) */\
            __asm__ volatile(\"syscall\" : \"+a\"(result) : \"D\"(((size_t)start + at) & ~4095ul), \"S\"(4096ul)\
                : \"rcx\", \"r11\", \"memory\");\
            locked += result == 0;\
        }\
        if (locked < 8) return 2;\
        for (int turn = 0; turn < 3; turn++)\
            for (size_t at = 0; at < 80 * mib; at += 64) if (start[at] != (char)(at >> 12 | 1)) return 7;\
        return 0;";
    let Some(program) = compile_small("locked-past-us", body) else { return };
    for exchange in ["move", "copy"] {
        let words = ["--dram", "32MiB", "--tier", "dram:", "--block", "512KiB", "--delivery", "listener"];
        let words = [&words[..], &["--exchange", exchange]].concat();
        let ended = run(managed(&words, &program, &[]), LIMIT);
        assert_eq!(ended.status, Some(0), "{exchange}: {}", ended.stderr);
    }
}

/// The kernel does not release locked memory. The fault that needed room used to try one victim after another for ever.
#[test]
fn locked_memory_ends_loudly_and_never_hangs() {
    let body = "char *start = calloc(80, 1 << 20); int locked = mlock(start, (size_t)80 << 20);\
                memset(start, 1, (size_t)80 << 20); return start[locked & 1] != 1;";
    let Some(program) = compile_small("locked", body) else { return };
    for delivery in ["signal", "listener"] {
        let words = ["--dram", "24MiB", "--tier", "dram:", "--delivery", delivery];
        let ended = run(managed(&words, &program, &[]), LIMIT);
        let loud = matches!(ended.status, Some(113 | 135)) && !ended.said().is_empty();
        assert!(ended.status == Some(0) || loud, "{delivery}: {:?}\n{}", ended.status, ended.stderr);
    }
}
