// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Small blocks that were read are write-protected, and system calls can write to them all the same.
//!
//! A block that lost some of its pages, or whose number changed because a hole was cut before it, used to be mistaken
//! for one without protection, although its other pages were still protected: under signal delivery read(2) into them
//! got EFAULT.

use aquifer_e2e::build::compile_text;
use aquifer_e2e::run::{LIMIT, managed, run};

/// `program HOW`: reads blocks, frees a part or cuts a hole as HOW says, and reads from a pipe into the rest.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
enum { PAGE = 4096, PAGES = 64 * 256, REGION = 512, TOUCHED = 64 };
int main(int count, char **words) {
    if (count != 2) return 2;
    int cut = !strcmp(words[1], "cut"), ends[2], failed = 0;
    unsigned char *memory = mmap(0, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char sent[PAGE];
    if (memory == MAP_FAILED || pipe(ends)) return 3;
    for (long page = 0; page < PAGES; page++) memset(memory + page * PAGE, 1 + page % 251, PAGE);
    for (long first = 0; first < PAGES; first += REGION) {
        unsigned char *region = memory + first * PAGE;
        for (int page = 0; page < TOUCHED; page++) (void)*(volatile unsigned char *)(region + page * PAGE);
        if (cut) munmap(region + 4 * PAGE, 4 * PAGE);
        for (int page = 16; page < TOUCHED; page += 4) {
            if (!cut) madvise(region + page * PAGE, PAGE, MADV_DONTNEED);
            memset(sent, page, PAGE);
            if (write(ends[1], sent, PAGE) != PAGE) return 4;
            if (read(ends[0], region + (page + 2) * PAGE, PAGE) != PAGE) { perror("read"); return 5; }
            failed |= memcmp(region + (page + 2) * PAGE, sent, PAGE);
            failed |= region[(page + 1) * PAGE] != 1 + (first + page + 1) % 251;
            failed |= !cut && region[page * PAGE] != 0;
        }
    }
    if (failed) fprintf(stderr, "wrong bytes\n");
    return failed ? 6 : 0;
}
"#;

#[test]
fn a_call_writes_to_what_is_left_of_a_sealed_block() {
    let Some(program) = compile_text("seals", PROGRAM) else { return };
    for block in ["4KiB", "16KiB", "auto"] {
        for (delivery, exchange) in [("signal", "auto"), ("signal", "copy"), ("listener", "auto")] {
            let words = ["--dram", "16MiB", "--tier", "dram:", "--block", block];
            let words = [&words[..], &["--delivery", delivery, "--exchange", exchange]].concat();
            for how in ["discard", "cut"] {
                let ended = run(managed(&words, &program, &[how]), LIMIT);
                assert_eq!(ended.status, Some(0), "{how}, {words:?}: {}{}", ended.stdout, ended.stderr);
            }
        }
    }
}
