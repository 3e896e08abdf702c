// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Measures what the pager adds to a program's memory: the kernel's figures for the program under `aquifer run`, and
//! what the pager says of itself.
//!
//! The program fills one large mapping and touches it again at random. Without the pager it has its own small mappings
//! and page tables, which are measured first and subtracted.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::build::scratch;
use crate::run::{LIMIT, managed, start, stats};

/// Touches a mapping of `argv[1]` bytes in steps of `argv[2]` bytes, in order and then `argv[3]` times at random (the
/// number of steps is a power of two), checks what it finds, and rests.
pub const PROGRAM: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static uint64_t value(uint64_t step) { return (step + 1) * 0x9e3779b97f4a7c15ull; }
int main(int argc, char **argv) {
    if (argc != 4) return 2;
    uint64_t len = strtoull(argv[1], NULL, 10), step = strtoull(argv[2], NULL, 10);
    uint64_t touches = strtoull(argv[3], NULL, 10), steps = len / step;
    unsigned char *start = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) { perror("mmap"); return 3; }
    if (madvise(start, len, MADV_NOHUGEPAGE) != 0) { perror("madvise"); return 3; }
    for (uint64_t at = 0; at < steps; at++) *(volatile uint64_t *)(start + at * step) = value(at);
    for (uint64_t touch = 0; touch < touches; touch++) {
        uint64_t at = (touch * 2654435761ull + 12345) & (steps - 1);
        uint64_t found = *(volatile uint64_t *)(start + at * step);
        if (found != value(at)) { fprintf(stderr, "step %lu\n", (unsigned long)at); return 1; }
        if (touch % 4 == 0) *(volatile uint64_t *)(start + at * step) = found;
    }
    if (write(1, "rests\n", 6) != 6) return 3;
    sleep(2);
    return 0;
}
"#;

/// The kernel's figures for one process, in bytes, each at its largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Anonymous memory in DRAM: the program's, the frames', the pager's heap and stacks.
    pub anonymous: u64,
    /// The kernel's page tables.
    pub page_tables: u64,
}

impl Memory {
    /// Both.
    pub fn bytes(self) -> u64 {
        self.anonymous + self.page_tables
    }

    fn of(process: u32) -> Option<Self> {
        // Not smaps_rollup: it walks the page tables, and counts a page that is moved meanwhile twice.
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        Some(Self { anonymous: kibibytes(&status, "RssAnon:")?, page_tables: kibibytes(&status, "VmPTE:")? })
    }
}

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// How the program uses its memory.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of its mapping.
    pub len: u64,
    /// It touches one word in each of as many bytes.
    pub step: u64,
    /// How often it touches one of these words at random afterwards.
    pub touches: u64,
}

/// What one run has shown.
#[derive(Debug)]
pub struct Shown {
    /// The largest sum of [`Memory`] that was seen, minus what a run without a pager has besides the mapping.
    pub peak: u64,
    /// The final statistics.
    pub stats: serde_json::Value,
}

impl Shown {
    /// A figure of the statistics.
    pub fn figure(&self, name: &str) -> u64 {
        self.stats[name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", self.stats))
    }

    /// Prints the peak, what is managed and what the pager takes of it, by part.
    pub fn print(&self) {
        let (managed, own) = (self.figure("managed_bytes_peak"), self.figure("overhead_bytes"));
        println!("peak {}, {own} of it the pager's, for {managed} managed", self.peak);
        for part in PARTS {
            println!("{part} {}", self.figure(part));
        }
    }

    /// Pages with contents that are not in local memory, or on standby.
    pub fn evicted_pages(&self) -> u64 {
        let away = self.stats["temperature_bytes"]["away"].as_object().expect("bytes by temperature");
        away.values().filter_map(serde_json::Value::as_u64).sum::<u64>() / 4096
    }
}

/// The parts of `overhead_bytes`.
pub const PARTS: [&str; 7] = [
    "overhead_block_map_bytes",
    "overhead_guards_bytes",
    "overhead_policy_bytes",
    "overhead_frames_bytes",
    "overhead_buffers_bytes",
    "overhead_stacks_bytes",
    "overhead_heap_bytes",
];

impl Shape {
    fn arguments(self) -> [String; 3] {
        [self.len, self.step, self.touches].map(|number| number.to_string())
    }

    /// Bytes of the pages that the program touches.
    fn touched_bytes(self) -> u64 {
        self.len / self.step.max(4096) * 4096
    }

    /// The program without a pager: its memory beside the pages that it touches. Needs all of them in DRAM.
    fn beside(self, program: &Path) -> u64 {
        let mut command = Command::new(program);
        command.args(self.arguments());
        let running = start(command);
        let process = running.child.id();
        let peak = peak(process, || true);
        running.wait(LIMIT).expect(0);
        peak.saturating_sub(self.touched_bytes())
    }

    /// Runs `program` with this budget over this tier.
    pub fn show(self, program: &Path, name: &str, dram: &str, tier: &str) -> Shown {
        self.show_with_messages(program, name, dram, tier).0
    }

    /// As [`show`](Self::show), with what the pager and the command have written.
    pub fn show_with_messages(self, program: &Path, name: &str, dram: &str, tier: &str) -> (Shown, Vec<String>) {
        let beside = self.beside(program);
        let file = scratch(name).join("stats.json");
        let words = ["--dram", dram, "--tier", tier, "--stats-json", file.to_str().expect("a path of ours")];
        let arguments = self.arguments();
        let running = start(managed(&words, program, &arguments.each_ref().map(String::as_str)));
        let process = running.program();
        // Until the launcher has executed the program, the process is the launcher's copy.
        let is_program = || {
            let path = std::fs::read_link(format!("/proc/{process}/exe"));
            path.is_ok_and(|path| path.file_name() == program.file_name())
        };
        let peak = peak(process, is_program).saturating_sub(beside);
        let ended = running.wait(LIMIT);
        ended.expect(0);
        let said = ended.said().into_iter().map(str::to_owned).collect();
        (Shown { peak, stats: stats(&file) }, said)
    }
}

/// The largest sum that a process has until it ends.
fn peak(process: u32, counts: impl Fn() -> bool) -> u64 {
    let mut peak = 0;
    // The figures of a process that has ended, and was not waited for, are missing.
    while let Some(memory) = Memory::of(process) {
        if counts() {
            peak = peak.max(memory.bytes());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    peak
}
