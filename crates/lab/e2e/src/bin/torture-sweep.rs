// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Runs the torture program under random settings, and reports every failure.
//!
//! Usage: `torture-sweep [FIRST [COUNT [SECONDS]]]`. Number N always means the same settings and seed. Exit status: 0
//! no failures, 1 failures, 2 bad arguments.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use aquifer_e2e::matrix::{PARTS_ALL, Setting};

fn main() -> ExitCode {
    let numbers: Result<Vec<u64>, _> = std::env::args().skip(1).map(|text| text.parse()).collect();
    let Ok(numbers) = numbers else {
        eprintln!("usage: torture-sweep [FIRST [COUNT [SECONDS]]], all numbers");
        return ExitCode::from(2);
    };
    let argument = |index: usize, default| numbers.get(index).copied().unwrap_or(default);
    let (first, count, seconds) = (argument(0, 1), argument(1, 50), argument(2, 5));
    let mut failed = 0;
    for number in first..first + count {
        let setting = Setting::random(number);
        let Some(ended) = setting.torture(number, seconds, PARTS_ALL) else { return ExitCode::from(2) };
        if ended.status == Some(0) {
            println!("{number}: right  {setting:?}");
            continue;
        }
        failed += 1;
        let end = ended.status.map_or("it hangs".to_owned(), |status| format!("status {status}"));
        println!("{number}: FAILED, {end}  {setting:?}\n{}", ended.stderr.trim_end());
        println!("reproduce: torture-sweep {number} 1 {seconds}");
    }
    println!("{failed} of {count} failed");
    ExitCode::from(u8::from(failed > 0))
}
