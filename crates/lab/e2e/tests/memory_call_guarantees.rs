// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The guarantees of system calls on memory, with one small program for each guarantee that was once broken.
//!
//! Each program fills 96 MiB, most of which is evicted, performs one operation, and checks every byte.

use aquifer_e2e::memory_programs::{self, BOTH};

/// Runs `body` as `main` under every delivery and exchange.
fn keeps(name: &str, body: &str) {
    memory_programs::keeps(name, &BOTH, body);
}

/// The kernel does not move pages between mappings with different protections, so such blocks are copied. Memory that
/// may not be read used to be mistaken for missing memory, and was fetched as zeros.
#[test]
fn memory_that_may_not_be_touched_for_a_while_keeps_its_contents() {
    for (name, rights) in [("none", "PROT_NONE"), ("read-only", "PROT_READ")] {
        let body = format!(
            "unsigned char *start = map(16 << 20);
            fill(start, 16 << 20, 5);
            if (mprotect(start, 16 << 20, {rights})) return 3;
            press();
            if (mprotect(start, 16 << 20, PROT_READ | PROT_WRITE)) return 3;
            right(start, 16 << 20, 5, \"{name}\");"
        );
        keeps(&format!("protected-{name}"), &body);
    }
}

/// One page in the middle of a block may not be touched, as below a stack. The kernel copies to one mapping at a time,
/// and refused to install such a block: the program was ended.
#[test]
fn a_page_that_may_not_be_touched_leaves_its_neighbours_usable() {
    keeps(
        "guard-pages",
        "unsigned char *start = map(16 << 20);
        fill(start, 16 << 20, 5);
        for (size_t at = 20 * PAGE; at < 16 << 20; at += 1 << 20)
            if (mprotect(start + at, PAGE, PROT_NONE)) return 3;
        press();
        for (size_t at = 0; at < 16 << 20; at += 512) {
            if (at % (1 << 20) / PAGE == 20) continue;
            if (*(uint64_t *)(start + at) != 5 + at + 1) { fprintf(stderr, \"byte %zu\\n\", at); return 1; }
        }
        if (mprotect(start, 16 << 20, PROT_READ | PROT_WRITE)) return 3;
        right(start, 16 << 20, 5, \"behind guard pages\");",
    );
}

/// The preload library's own calls of mmap and munmap bypassed the pager, so the pages of the old place stayed in the
/// pager's map.
#[test]
fn a_mapping_that_grows_elsewhere_keeps_its_contents() {
    keeps(
        "mremap",
        "unsigned char *start = map(32 << 20);
        fill(start, 32 << 20, 5);
        for (size_t len = 32 << 20; len < (size_t)LEN; len += 16 << 20) {
            start = mremap(start, len, len + (16 << 20), MREMAP_MAYMOVE);
            if (start == MAP_FAILED) return 3;
            right(start, 32 << 20, 5, \"mremap\");
            zero(start + (32 << 20), len - (16 << 20), \"what mremap added\");
            press();
        }
        start = mremap(start, LEN, 8 << 20, 0);
        if (start == MAP_FAILED) return 3;
        right(start, 8 << 20, 5, \"shrunk\");",
    );
}

/// Pages that cannot be read used to be copied all the same, which ended the program, and read-only pages became
/// writable after the move. MREMAP_DONTUNMAP was refused, and so was any growth in place.
#[test]
fn a_mapping_keeps_its_rights_wherever_it_moves() {
    keeps(
        "mremap-rights",
        "enum { PART = 8 << 20 };
        unsigned char *start = map(4 * PART), *mark = start + 2 * PART, *moved;
        fill(start, 4 * PART, 5);
        if (mprotect(start, PART, PROT_NONE) || mprotect(start + PART, PART, PROT_READ)) return 3;
        press();
        for (int turn = 0; turn < 2; turn++) {
            size_t len = turn ? PART : PART / 2;
            moved = mremap(start + PART, PART, len, MREMAP_MAYMOVE | MREMAP_FIXED, map(PART));
            if (moved == MAP_FAILED) { perror(\"read-only\"); return 4; }
            right(moved, len, 5 + PART, \"read-only\");
            int pipes[2];
            /* EFAULT where it may not be written to. */
            if (pipe(pipes) || write(pipes[1], \"x\", 1) != 1 || read(pipes[0], moved + len - 1, 1) != -1) return 5;
            if (mremap(moved, len, PART, MREMAP_MAYMOVE | MREMAP_FIXED, start + PART) != start + PART) return 6;
            if (len < PART) {
                if (mprotect(start + PART, PART, PROT_READ | PROT_WRITE)) return 7;
                zero(start + PART + len, PART - len, \"what was cut off\");
                fill(start + PART, PART, 5 + PART);
                if (mprotect(start + PART, PART, PROT_READ)) return 7;
            }
        }
        moved = mremap(start, PART, 2 * PART, MREMAP_MAYMOVE);
        if (moved == MAP_FAILED || moved == start) { perror(\"closed\"); return 8; }
        press();
        if (mprotect(moved, 2 * PART, PROT_READ | PROT_WRITE)) return 9;
        right(moved, PART, 5, \"closed\");
        zero(moved + PART, PART, \"what was added\");
        right(mark, 2 * PART, 5 + 2 * PART, \"what stayed\");
        if (mremap(mark, PART, PART, MREMAP_DONTUNMAP) != MAP_FAILED) return 10;
        unsigned char *other = mremap(mark, PART, PART, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
        if (other == MAP_FAILED || other == mark) { perror(\"DONTUNMAP\"); return 11; }
        press();
        right(other, PART, 5 + 2 * PART, \"moved and not unmapped\");
        zero(mark, PART, \"the old place\");
        fill(mark, PART, 9);
        press();
        right(mark, PART, 9, \"the old place, written again\");
        unsigned char *room = map(3 * PART);
        fill(room, PART, 7);
        if (mremap(room, PART, 2 * PART, 0) != MAP_FAILED) return 12;
        if (munmap(room + PART, 2 * PART)) return 13;
        press();
        if (mremap(room, PART, 2 * PART, 0) != room) { perror(\"in place\"); return 14; }
        right(room, PART, 7, \"in place\");
        zero(room + PART, PART, \"what grew\");
        fill(room + PART, PART, 7 + PART);
        press();
        right(room, 2 * PART, 7, \"grown\");",
    );
}

/// A block loses its pages part by part while it is resident; its eviction then has nothing to take, and its fetch
/// nothing to install.
#[test]
fn a_block_given_back_in_parts_reads_as_zeros() {
    keeps(
        "parts",
        "unsigned char *start = map(LEN);
        for (size_t at = 0; at < LEN; at += 128 << 10) {
            fill(start + at, 128 << 10, 9);
            if (madvise(start + at, 64 << 10, MADV_DONTNEED)) return 3;
            if (at % (256 << 10) && madvise(start + at + (64 << 10), 64 << 10, MADV_DONTNEED)) return 3;
        }
        press();
        for (size_t at = 0; at < LEN; at += 128 << 10) {
            zero(start + at, 64 << 10, \"first half\");
            if (at % (256 << 10)) zero(start + at + (64 << 10), 64 << 10, \"second half\");
            else for (size_t word = 64 << 10; word < 128 << 10; word += 512)
                if (*(uint64_t *)(start + at + word) != 9 + word + 1) return 1;
        }",
    );
}

/// The end of a block after a hole within it used to be forgotten: its pages were resident, but the map called it
/// empty.
#[test]
fn both_sides_of_a_hole_within_a_block_keep_their_contents() {
    keeps(
        "holes",
        "unsigned char *start = map(LEN);
        fill(start, LEN, 3);
        for (size_t at = 40 << 10; at < LEN; at += 1 << 20)
            if (munmap(start + at, 16 << 10)) return 3;
        press();
        for (size_t at = 0; at < LEN; at += 512) {
            size_t within = at % (1 << 20);
            if (within >= 40 << 10 && within < 56 << 10) continue;
            if (*(uint64_t *)(start + at) != 3 + at + 1) { fprintf(stderr, \"byte %zu\\n\", at); return 1; }
        }",
    );
}

/// Memory that was populated before it was registered, and exceeds the budget, is reduced to the budget. Only private
/// memory is counted: pages of the tier that a fetch read through a shared mapping are the tier's, not the program's.
#[test]
fn memory_populated_at_once_comes_down_to_the_budget() {
    keeps(
        "populate",
        "unsigned char *start = mmap(NULL, LEN, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (start == MAP_FAILED) return 3;
        fill(start, LEN, 1);
        right(start, LEN, 1, \"populated\");
        for (int turn = 0; turn < 1000; turn++) {
            long resident = 0, shared = 0, all;
            FILE *file = fopen(\"/proc/self/statm\", \"r\");
            if (!file || fscanf(file, \"%ld %ld %ld\", &all, &resident, &shared) != 3) return 3;
            fclose(file);
            if ((resident - shared) * PAGE < (24 + 8) << 20) return 0;
            usleep(100000);
        }
        fprintf(stderr, \"never came down to the budget\\n\");
        return 1;",
    );
}

/// A read from a pipe returns the available bytes. When the library read in pieces, it waited for more after a full
/// piece.
#[test]
fn a_read_from_a_pipe_does_not_wait_for_more_than_there_is() {
    keeps(
        "pipe",
        "int ends[2];
        unsigned char *start = malloc(LEN);
        fill(start, LEN, 4);
        if (pipe(ends) || fcntl(ends[1], F_SETPIPE_SZ, 1 << 20) < 1 << 20) return 3;
        alarm(250);
        for (size_t len = 4096; len <= 512 << 10; len *= 2) {
            if (write(ends[1], start + (8 << 20), len) != (ssize_t)len) return 1;
            for (size_t done = 0; done < len;) {
                ssize_t came = read(ends[0], start + (40 << 20) + done, (1 << 20) - done);
                if (came <= 0) return 1;
                done += came;
            }
            right(start + (40 << 20), len, 4 + (8 << 20), \"what came through the pipe\");
        }",
    );
}

/// Memory moves to a given address, also over evicted memory; and is populated on request.
#[test]
fn memory_moves_to_a_given_place_and_is_populated() {
    keeps(
        "moves",
        "unsigned char *start = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        unsigned char *plain = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (start == MAP_FAILED || plain == MAP_FAILED) return 3;
        size_t part = 8 << 20;
        fill(start, LEN, 1);
        unsigned char *from = start + part, *to = start + 3 * part;
        if (mremap(from, part, part, MREMAP_MAYMOVE | MREMAP_FIXED, from + PAGE) != MAP_FAILED) return 4;
        if (mremap(from, part, part / 2, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) { perror(\"mremap\"); return 5; }
        right(to, part / 2, 1 + part, \"moved\");
        right(to + part / 2, part / 2, 1 + 3 * part + part / 2, \"behind it\");
        *plain = 77;
        if (mremap(plain, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, start) != start) { perror(\"plain\"); return 6; }
        for (size_t at = 4 * part; at < LEN; at += PAGE) (void)*(volatile unsigned char *)(start + at);
        if (*start != 77) { fprintf(stderr, \"%d is where 77 was moved to\\n\", *start); return 7; }
        right(start + PAGE, part - PAGE, 1 + PAGE, \"behind the plain page\");
        if (madvise(start + 4 * part, LEN - 4 * part, 22)) { perror(\"MADV_POPULATE_READ\"); return 8; }
        if (madvise(start + 4 * part, LEN - 4 * part, 23)) { perror(\"MADV_POPULATE_WRITE\"); return 9; }
        right(start + 4 * part, LEN - 4 * part, 1 + 4 * part, \"populated\");",
    );
}
