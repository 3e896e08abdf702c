// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Prints what the pager takes of its budget for a program that maps much and touches little of it, on a sparse file.
//!
//! Usage: `own-use [GIB [DRAM [STEP_KIB [TIER]]]]`: the program maps GIB gibibytes (64; a power of two) under
//! `--dram DRAM` (2GiB) over TIER (a file), and touches one page in every STEP_KIB kibibytes (4096) once in order, and
//! some of them again at random.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::own_use::{PARTS, PROGRAM, Shape};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| words.get(index).map_or(Ok(default), |word| word.parse());
    let (Ok(gib), Ok(kib)) = (number(0, 64), number(2, 4096)) else {
        eprintln!("usage: own-use [GIB [DRAM [STEP_KIB [TIER]]]]");
        return ExitCode::from(2);
    };
    let dram = words.get(1).map_or("2GiB", String::as_str);
    let Some(program) = compile_text("own-use", PROGRAM) else { return ExitCode::from(2) };
    let shape = Shape { len: gib << 30, step: kib << 10, touches: 2000 };
    let tier = words.get(3).cloned().unwrap_or_else(|| format!("flash:{}", scratch("own-use-tier").display()));
    let shown = shape.show(&program, "own-use", dram, &tier);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!("managed                    {:>10.1} MiB", mib(shown.figure("managed_bytes_peak")));
    println!("budget                     {:>10.1} MiB", mib(shown.figure("dram_budget_bytes")));
    println!("peak, by the kernel        {:>10.1} MiB", mib(shown.peak));
    println!("stored, in slabs           {:>10.1} MiB", mib(shown.figure("stored_bytes_peak")));
    println!("the pager                  {:>10.1} MiB", mib(shown.figure("overhead_bytes")));
    for part in PARTS {
        println!("  {part:<24} {:>10.1} MiB", mib(shown.figure(part)));
    }
    let tables: u64 = PARTS[..3].iter().map(|part| shown.figure(part)).sum();
    let evicted = shown.evicted_pages();
    println!("evicted pages              {evicted:>10}");
    println!("tables per evicted page    {:>10.1} bytes", tables as f64 / evicted.max(1) as f64);
    ExitCode::SUCCESS
}
