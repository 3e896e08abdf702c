// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Settings to run under: every value of each, and random combinations.

use std::path::Path;
use std::time::Duration;

use crate::build::{scratch, torture};
use crate::run::{Ended, LIMIT, managed, run};

/// The parts of the torture program that a sweep runs: all that need only one process.
pub const PARTS_ALL: &str = "llltkvmapfs";

/// One combination of settings.
#[derive(Clone, Debug)]
pub struct Setting {
    /// `--delivery`.
    pub delivery: &'static str,
    /// `--exchange`.
    pub exchange: &'static str,
    /// `--policy`.
    pub policy: &'static str,
    /// `--block`.
    pub block: &'static str,
    /// `--tier`: `dram:`, or `flash:` without its directory, which is added.
    pub tier: &'static str,
    /// `--prefetch`.
    pub prefetch: &'static str,
    /// `--dram`, in MiB.
    pub dram_mib: u64,
    /// Size of the program's long-lived areas, in MiB.
    pub footprint_mib: u64,
}

impl Setting {
    /// The defaults, with 32 of 110 MiB and a tier in memory.
    pub const PLAIN: Setting = Setting {
        delivery: "auto",
        exchange: "auto",
        policy: "s3fifo",
        block: "auto",
        tier: "dram:",
        prefetch: "on",
        dram_mib: 32,
        footprint_mib: 110,
    };

    /// The setting with number `number` of a sweep.
    pub fn random(number: u64) -> Setting {
        let mut state = number;
        let mut pick = |choices: &[&'static str]| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            choices[(state >> 33) as usize % choices.len()]
        };
        let mut setting = Setting {
            delivery: pick(&["auto", "signal", "listener"]),
            exchange: pick(&["move", "copy"]),
            policy: pick(&["s3fifo", "clock", "lru", "fifo"]),
            block: pick(&["4KiB", "16KiB", "128KiB", "512KiB", "2MiB", "auto"]),
            tier: pick(&["dram:", "flash:"]),
            prefetch: pick(&["on", "off"]),
            ..Setting::PLAIN
        };
        setting.dram_mib = [16, 24, 40, 64][(number % 4) as usize];
        setting.footprint_mib = [100, 140, 200][(number % 3) as usize];
        setting
    }

    /// The arguments for `aquifer run`.
    pub fn words(&self, directory: &Path) -> Vec<String> {
        let tier = if self.tier == "flash:" { format!("flash:{}", directory.display()) } else { self.tier.to_owned() };
        let dram = format!("{}MiB", self.dram_mib);
        [
            ("--dram", dram.as_str()),
            ("--tier", &tier),
            ("--delivery", self.delivery),
            ("--exchange", self.exchange),
            ("--policy", self.policy),
            ("--block", self.block),
            ("--prefetch", self.prefetch),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value.to_owned()])
        .collect()
    }

    /// Runs the torture program. Returns `None` if it cannot be compiled.
    pub fn torture(&self, seed: u64, seconds: u64, parts: &str) -> Option<Ended> {
        self.torture_with(&[], seed, seconds, parts)
    }

    /// Runs the torture program with more arguments for `aquifer run`. If the first is a flag of the setting, it
    /// replaces the setting's value.
    pub fn torture_with(&self, more: &[&str], seed: u64, seconds: u64, parts: &str) -> Option<Ended> {
        let program = torture()?;
        let directory = scratch(&format!("torture-{seed}-{}-{}-{}", self.delivery, self.exchange, self.block));
        let mut words = self.words(&directory);
        if let [flag, ..] = more
            && let Some(at) = words.iter().position(|word| word == flag)
        {
            words.drain(at..at + 2);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let (seed, footprint) = (seed.to_string(), self.footprint_mib.to_string());
        let path = directory.to_str().expect("the target directory is UTF-8");
        let arguments = [&seed, &seconds.to_string(), &footprint, "3", parts, path];
        // The final check reads everything once more, and an emulated disk on a busy machine is slow.
        let limit = Duration::from_secs(seconds * 4) + LIMIT;
        let ended = run(managed(&words, program, &arguments), limit);
        let _ = std::fs::remove_dir_all(&directory);
        Some(ended)
    }
}
