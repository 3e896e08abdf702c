// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Runs common programs on 40 % of the memory that they take, and reports which of them worked.
//!
//! Usage: `programs [--large] [--tier KIND] [NAME...]`; without names, all programs; without a kind, all kinds of the
//! program, one after the other. Exit status: 0 no failure, 1 failures, 2 bad arguments.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use aquifer_e2e::programs::trial::Verdict;
use aquifer_e2e::programs::{ALL, Program, find};
use aquifer_e2e::tier_kinds::TierKind;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let (mut large, mut wanted) = (false, None);
    let mut programs: Vec<Program> = Vec::new();
    while let Some(word) = words.next() {
        if word == "--large" {
            large = true;
            continue;
        }
        if word == "--tier" {
            match TierKind::parse(&words.next().unwrap_or_default()) {
                Ok(kind) => wanted = Some(kind),
                Err(why) => {
                    let names = TierKind::ALL.map(TierKind::name).join(", ");
                    eprintln!("programs: {why}; use --tier with one of: {names}");
                    return ExitCode::from(2);
                }
            }
            continue;
        }
        let Some(program) = find(&word) else {
            let names = ALL.map(|program| program.name).join(", ");
            eprintln!("programs: '{word}' is none of them; use --large and any of: {names}");
            return ExitCode::from(2);
        };
        programs.push(program);
    }
    if programs.is_empty() {
        programs.extend(ALL);
    }
    let mut failed = false;
    let trials = programs.iter().flat_map(|program| {
        let kinds = wanted.map_or_else(|| program.kinds().to_vec(), |kind| vec![kind]);
        kinds.into_iter().map(move |kind| (program, kind))
    });
    for (program, kind) in trials {
        let (name, tier) = (program.name, kind.name());
        match program.judge(large, kind) {
            Ok(Verdict::Works(how)) => println!("{name} over {tier}: works, {how}"),
            Ok(Verdict::Skipped(why)) => println!("{name} over {tier}: skipped, because {why}"),
            Err(why) => {
                failed = true;
                println!("{name} over {tier}: FAILED, {why}");
                println!("reproduce: programs {}--tier {tier} {name}", if large { "--large " } else { "" });
            }
        }
    }
    ExitCode::from(u8::from(failed))
}
