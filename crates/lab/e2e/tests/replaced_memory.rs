// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Calls on memory that the kernel refuses, or that put other memory in the place of managed memory.
//!
//! Each program fills memory, most of which is evicted by `press`, makes one such call, and checks every byte.

use aquifer_e2e::memory_programs::{BOTH, keeps};

/// The defect: what the kernel had refused to empty was forgotten all the same, and read as zeros.
#[test]
fn memory_that_may_not_be_emptied_keeps_its_contents() {
    keeps(
        "sealed",
        &BOTH,
        "enum { MSEAL = 462 };
        unsigned char *start = map(8 * MIB);
        fill(start, 8 * MIB, 5);
        press();
        if (mprotect(start, 8 * MIB, PROT_READ)) return 3;
        if (syscall(MSEAL, start, 8 * MIB, 0)) {
            fprintf(stderr, \"mseal(2): %s\\n\", strerror(errno));
            return errno == ENOSYS ? UNSUPPORTED : 4;
        }
        if (madvise(start, 8 * MIB, MADV_DONTNEED) != -1 || errno != EPERM) return 5;
        right(start, 8 * MIB, 5, \"sealed\");",
    );
}

/// The defect: where a lock failed at a hole, the kernel kept what is before it locked, so that MADV_DONTNEED was
/// refused there; and evicted memory was forgotten.
#[test]
fn a_lock_that_fails_leaves_nothing_locked() {
    keeps(
        "lock-fails",
        &BOTH,
        "struct rlimit limit;
        if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < 8 * MIB && geteuid()) {
            fprintf(stderr, \"8 MiB may not be locked (ulimit -l)\");
            return UNSUPPORTED;
        }
        unsigned char *start = map(8 * MIB);
        if (munmap(start + 4 * MIB, PAGE)) return 3;
        for (int turn = 0; turn < 2; turn++) {
            fill(start, 4 * MIB, 5);
            if (mlock(start + 2 * MIB, 3 * MIB) != -1 || errno != ENOMEM) return 4;
            if (madvise(start, 4 * MIB, MADV_DONTNEED)) { perror(\"MADV_DONTNEED\"); return 5; }
            zero(start, 4 * MIB, \"emptied\");
            if (mlock(start, 2 * MIB) || mlock(start + MIB, 4 * MIB) != -1) return 6;
            if (madvise(start, 2 * MIB, MADV_DONTNEED) != -1 || errno != EINVAL) return 7;
            if (munlock(start, 4 * MIB) || madvise(start, 4 * MIB, MADV_DONTNEED)) return 8;
            press();
        }",
    );
}

/// The defect: mlockall(2) that the kernel refused kept up to half of the budget resident from the pager's start on.
#[test]
fn a_lock_of_everything_that_is_refused_keeps_nothing_resident() {
    keeps(
        "lock-all-refused",
        &BOTH,
        "struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct rights[2] = {{0}};
        struct rlimit none = {0, 0};
        if (syscall(SYS_capget, &header, rights)) return 3;
        rights[0].effective &= ~(1u << CAP_IPC_LOCK);
        if (syscall(SYS_capset, &header, rights) || setrlimit(RLIMIT_MEMLOCK, &none)) return 4;
        unsigned char *start = map(8 * MIB);
        fill(start, 8 * MIB, 5);
        if (mlockall(MCL_CURRENT) != -1 || errno != EPERM) return 5;
        press();
        if (resident(start, 8 * MIB) > 1024) { fprintf(stderr, \"%zu resident\\n\", resident(start, 8 * MIB)); return 6; }
        right(start, 8 * MIB, 5, \"not locked\");",
    );
}

/// The defect: the library knew the source of an mremap(2) that traps, and not its target; nor any shmat(2).
#[test]
fn what_moves_over_managed_memory_by_the_bare_instruction_stays() {
    keeps(
        "moved-over",
        &["signal"],
        "unsigned char *start = map(8 * MIB), *small = map(4 * PAGE);
        fill(start, 8 * MIB, 5);
        fill(small, 4 * PAGE, 9);
        press();
        unsigned char *there = start + MIB;
        if (bare(SYS_mremap, (long)small, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, (long)there) != (long)there)
            return 3;
        right(there, 4 * PAGE, 9, \"moved\");
        right(start, MIB, 5, \"before\");
        press();
        right(there, 4 * PAGE, 9, \"moved, later\");
        right(there + 4 * PAGE, 7 * MIB - 4 * PAGE, 5 + MIB + 4 * PAGE, \"behind\");
        int segment = shmget(IPC_PRIVATE, MIB, 0600 | IPC_CREAT);
        press();
        there += 2 * MIB;
        if (segment < 0 || bare(SYS_shmat, segment, (long)there, SHM_REMAP, 0, 0) != (long)there) return 4;
        if (shmctl(segment, IPC_RMID, NULL)) return 5;
        zero(there, MIB, \"the segment\");
        fill(there, MIB, 9);
        press();
        right(there, MIB, 9, \"the segment, later\");
        right(there + MIB, 4 * MIB, 5 + 4 * MIB, \"behind it\");",
    );
}

/// The defect: nobody saw that shmat(2) can replace memory.
#[test]
fn a_segment_that_is_attached_over_managed_memory_is_left_alone() {
    keeps(
        "attached",
        &BOTH,
        "unsigned char *start = map(8 * MIB), *there = start + MIB;
        for (int turn = 0; turn < 2; turn++) {
            int segment = shmget(IPC_PRIVATE, MIB - 100, 0600 | IPC_CREAT);
            if (segment < 0) return 3;
            fill(start, 8 * MIB, 5);
            press();
            void *attached = turn ? (void *)syscall(SYS_shmat, segment, there, SHM_REMAP)
                                  : shmat(segment, there + 100, SHM_REMAP | SHM_RND);
            if (attached != there || shmctl(segment, IPC_RMID, NULL)) { perror(\"shmat\"); return 4; }
            zero(there, MIB, \"the segment\");
            fill(there, MIB, 9);
            press();
            right(there, MIB, 9, \"the segment, later\");
            right(start, MIB, 5, \"before\");
            right(start + 2 * MIB, 6 * MIB, 5 + 2 * MIB, \"behind\");
            if (shmdt(there) || mmap(there, MIB, RW, PLAIN | MAP_FIXED, -1, 0) != there) return 5;
        }",
    );
}

/// The defect: the kernel populated the new memory before it was registered, and the program ended at the next fetch.
#[test]
fn memory_that_is_replaced_and_populated_stays_managed() {
    keeps(
        "populated",
        &BOTH,
        "unsigned char *start = map(16 * MIB);
        if (mmap(start, MIB, RW, PLAIN | MAP_FIXED | MAP_POPULATE, -1, 0) != start) return 3;
        if (resident(start, MIB) != MIB / PAGE) return 4;
        fill(start, 16 * MIB, 5);
        press();
        for (int turn = 0; turn < 4; turn++) {
            unsigned char *there = start + 4 * turn * MIB + MIB / 2;
            if (mmap(there, 2 * MIB, RW, PLAIN | MAP_FIXED | MAP_POPULATE, -1, 0) != there) return 5;
            if (resident(there, 2 * MIB) != 2 * MIB / PAGE) return 6;
            zero(there, 2 * MIB, \"new\");
            fill(there, 2 * MIB, 9);
            press();
            if (resident(there, 2 * MIB) > 256) return 7;
            right(there, 2 * MIB, 9, \"new, later\");
            right(there + 2 * MIB, MIB, 5 + 4 * turn * MIB + MIB / 2 + 2 * MIB, \"behind\");
        }",
    );
}

/// The defect: where the program had unmapped memory by the bare instruction, and the kernel gave its addresses to a
/// new mapping, an assertion ended the program.
#[test]
fn addresses_that_were_given_up_unseen_can_be_used_again() {
    keeps(
        "used-again",
        &BOTH,
        "for (int turn = 0; turn < 4; turn++) {
            /* In the second half, blocks lie across the ends, and a page stays unmapped. */
            size_t odd = turn < 2 ? 0 : PAGE, len = 4 * MIB - odd;
            unsigned char *start = map(12 * MIB), *own = start + 2 * MIB + odd, *shared = start + 8 * MIB + odd;
            fill(start, 12 * MIB, 5);
            if (turn) press();
            if (bare(SYS_munmap, (long)own, 4 * MIB, 0, 0, 0) || bare(SYS_munmap, (long)shared, 2 * MIB, 0, 0, 0))
                return 3;
            if (mmap(own, len, RW, PLAIN | MAP_FIXED_NOREPLACE, -1, 0) != own) return 4;
            if (mmap(shared, 2 * MIB, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != shared) return 5;
            zero(own, len, \"own\");
            zero(shared, 2 * MIB, \"shared\");
            fill(own, len, 7);
            fill(shared, 2 * MIB, 8);
            press();
            right(start, 2 * MIB + odd, 5, \"before\");
            right(own, len, 7, \"own, later\");
            right(own + 4 * MIB, 2 * MIB, 5 + 6 * MIB + odd, \"between\");
            right(shared, 2 * MIB, 8, \"shared, later\");
            right(shared + 2 * MIB, 2 * MIB - odd, 5 + 10 * MIB + odd, \"behind\");
        }",
    );
}

/// The defect: a call on memory beside a reservation made the library take all of its 2 MiB for open.
#[test]
fn a_reservation_is_managed_when_it_is_opened_after_its_neighbour() {
    keeps(
        "opened-late",
        &BOTH,
        "press();
        unsigned char *area = mmap(NULL, 6 * MIB, PROT_NONE, PLAIN | MAP_NORESERVE, -1, 0);
        area = (unsigned char *)(((uintptr_t)area + 2 * MIB - 1) & ~(uintptr_t)(2 * MIB - 1));
        if (mmap(area, MIB, RW, PLAIN | MAP_FIXED, -1, 0) != area || mprotect(area, MIB, RW)) return 3;
        unsigned char *late = area + MIB;
        if (mprotect(late, MIB, RW)) return 4;
        fill(late, MIB, 5);
        if (madvise(late, MIB, MADV_PAGEOUT)) return 5;
        /* A few blocks may stay: advice is a wish. */
        for (int turn = 0; resident(late, MIB) > MIB / PAGE / 2; turn++) {
            if (turn == 2000) { fprintf(stderr, \"%zu pages stay\\n\", resident(late, MIB)); return 6; }
            usleep(1000);
        }
        right(late, MIB, 5, \"opened late\");",
    );
}

/// The defect: adopted mappings are registered together, and where the kernel refused a part of them, all stayed
/// outside the budget.
#[test]
fn memory_around_a_file_that_was_mapped_unseen_is_kept_within_the_budget() {
    keeps(
        "around-a-file",
        &BOTH,
        "int file = open(\"/proc/self/exe\", O_RDONLY);
        if (file < 0) return 3;
        unsigned char *start = map(20 * MIB), *there = start + 5 * MIB + PAGE;
        fill(start, 20 * MIB, 5);
        long mapped;
        register long r10 __asm__(\"r10\") = MAP_PRIVATE | MAP_FIXED, r8 __asm__(\"r8\") = file, r9 __asm__(\"r9\") = 0;
        __asm__ volatile(\"syscall\" : \"=a\"(mapped) : \"a\"(SYS_mmap), \"D\"(there), \"S\"(3 * PAGE), \"d\"(RW),
                         \"r\"(r10), \"r\"(r8), \"r\"(r9) : \"rcx\", \"r11\", \"memory\");
        if (mapped != (long)there) return 4;
        press();
        if (resident(start, 20 * MIB) > 3072) { fprintf(stderr, \"%zu resident\\n\", resident(start, 20 * MIB)); return 5; }
        if (memcmp(there, \"\\177ELF\", 4)) return 6;
        right(start, 5 * MIB + PAGE, 5, \"before\");
        right(there + 3 * PAGE, 15 * MIB - 4 * PAGE, 5 + 5 * MIB + 4 * PAGE, \"behind\");",
    );
}
