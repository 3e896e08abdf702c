// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Runs programs that people use on 40 % of the memory that they take, and says which did what they should.
//!
//! Usage: `programs [--large] [NAME...]`; without names, all of them. Exit status: 0 none went wrong, 1 some did, 2 bad
//! arguments.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use aquifer_e2e::programs::trial::Verdict;
use aquifer_e2e::programs::{ALL, Program, find};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let large = words.iter().any(|word| word == "--large");
    let mut programs: Vec<Program> = Vec::new();
    for word in words.iter().filter(|word| *word != "--large") {
        let Some(program) = find(word) else {
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
    for program in programs {
        match program.judge(large) {
            Ok(Verdict::Works(how)) => println!("{}: works, {how}", program.name),
            Ok(Verdict::Skipped(why)) => println!("{}: skipped, because {why}", program.name),
            Err(why) => {
                failed = true;
                println!("{}: FAILED, {why}", program.name);
                println!("reproduce: programs {}{}", if large { "--large " } else { "" }, program.name);
            }
        }
    }
    ExitCode::from(u8::from(failed))
}
