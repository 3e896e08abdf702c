// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The space that a program used in a tier is free again when `aquifer run` returns.
//!
//! The file of a flash tier used to remain for a second or more after its program, with all stored data: it was
//! registered with an io_uring, and the kernel releases the rings of ended processes later, asynchronously.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::run::{LIMIT, managed, run, start};

/// Fills 256 MiB, reports that, and then checks the contents: once if it has an argument, otherwise until it is killed.
const PROGRAM: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
enum { LEN = 256 << 20 };
int main(int argc, char **argv) {
    (void)argv;
    unsigned char *start = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return 3;
    for (size_t place = 0; place < LEN; place += 512) *(volatile uint64_t *)(start + place) = place + 1;
    puts("filled");
    fflush(stdout);
    do {
        for (size_t place = 0; place < LEN; place += 4096)
            if (*(volatile uint64_t *)(start + place) != place + 1) return 1;
    } while (argc == 1);
    return 0;
}
"#;

/// A private file system until drop, so that nothing else allocates or frees space on it.
struct Disk(PathBuf);

impl Disk {
    fn new(name: &str) -> Option<Disk> {
        let directory = scratch(name);
        let (image, point) = (directory.join("image"), directory.join("disk"));
        std::fs::create_dir_all(&point).ok()?;
        std::fs::File::create(&image).ok()?.set_len(640 << 20).ok()?;
        let did = |program: &str, words: &[&Path]| {
            Command::new(program).args(words).output().is_ok_and(|output| output.status.success())
        };
        let made = did("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), &image])
            && did("mount", &["-o".as_ref(), "loop".as_ref(), &image, &point]);
        if !made {
            aquifer_test_support::skip(
                "losetup or mkfs.ext4 refuses: no file system can be made and mounted here, which takes root",
            );
            return None;
        }
        Some(Disk(point))
    }

    fn used(&self) -> u64 {
        let output = Command::new("stat").args(["-f", "-c", "%b %f %S"]).arg(&self.0).output().expect("stat(1)");
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [all, free, bytes] = numbers[..] else { panic!("stat says {text}") };
        (all - free) * bytes
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
        if let Some(directory) = self.0.parent() {
            let _ = std::fs::remove_file(directory.join("image"));
        }
    }
}

/// The file system's own metadata varies by some blocks.
const NOTHING: u64 = 1 << 20;

#[test]
fn the_room_on_a_disk_is_back_when_the_command_returns() {
    let Some(program) = compile_text("tier_space", PROGRAM) else { return };
    let Some(disk) = Disk::new("room-disk") else { return };
    let before = disk.used();
    for tier in ["", "/named", "/kept"] {
        if tier == "/kept" {
            let mut new = std::fs::OpenOptions::new();
            new.write(true).create_new(true).mode(0o600).open(disk.0.join("kept")).unwrap();
        }
        let flash = format!("flash:{}{tier},size=400MiB", disk.0.display());
        let words = ["--dram", "32MiB", "--tier", &flash];
        let ended = run(managed(&words, &program, &["once"]), LIMIT);
        let left = disk.used().saturating_sub(before);
        ended.expect(0);
        assert!(left < NOTHING, "'{tier}': {left} bytes are still used");
        // Killed in the middle of its transfers.
        let running = start(managed(&words, &program, &[]));
        let child = running.program();
        aquifer_e2e::run::eventually("something is stored", || disk.used() > before + (64 << 20));
        assert!(Command::new("kill").args(["-KILL", &child.to_string()]).status().is_ok_and(|status| status.success()));
        let ended = running.wait(LIMIT);
        assert_eq!(ended.status, Some(128 + 9), "{}", ended.stderr);
        // Requests in flight at the kill keep the file until the disk has completed them.
        let is_back = || disk.used().saturating_sub(before) < NOTHING;
        aquifer_e2e::run::eventually(&format!("'{tier}', killed: the room is back"), is_back);
    }
}
