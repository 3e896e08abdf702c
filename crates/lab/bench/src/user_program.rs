// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A user's program as a workload (`aquifer bench -- PROGRAM`).
//!
//! One run without a limit measures its footprint. Its figure is the elapsed time; exit status 0 is success.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::process::Command;

use crate::args::Settings;
use crate::failure::BenchFailure;
use crate::interrupt::Interrupt;
use crate::plan::local_bytes;
use crate::process::{self, Finished, find_program};
use crate::ratios::Better;
use crate::record::Figure;
use crate::size::{MIB, format_size};
use crate::workload::{Input, Workload};

/// The contenders that run when none is named.
pub const STANDARD: [&str; 4] = ["dram", "aquifer-flash", "swap-disk", "swap-zram"];
/// Local memory in per cent, when the user names none.
pub const LOCAL_PERCENT: u32 = 50;

/// The smallest budget of `aquifer run --dram`.
const LOCAL_BYTES_MIN: u64 = 16 * MIB;
/// Maximum number of processes of one tree that are examined.
const PROCESSES_MAX: usize = 4096;

/// Makes the workload for a command line. It lives as long as the bench.
pub fn workload(words: Vec<OsString>) -> Result<&'static Workload, BenchFailure> {
    let text = |word: OsString| {
        word.into_string()
            .map_err(|word| BenchFailure::usage(format!("'{}' is not UTF-8", word.display()), "use another name"))
    };
    let mut words = words.into_iter().map(text).collect::<Result<Vec<String>, _>>()?;
    let name = words.remove(0);
    let path = find_program(&name).ok_or_else(|| {
        BenchFailure::usage(format!("the program '{name}' is not found"), "give its path, or install it")
    })?;
    let path = std::path::absolute(&path)
        .map_err(|error| BenchFailure::io(format!("cannot find {}", path.display()), &error))?;
    let program: &'static str = path.display().to_string().leak();
    let arguments: Vec<&'static str> = words.into_iter().map(|word| &*word.leak()).collect();
    Ok(Box::leak(Box::new(Workload {
        name: program.rsplit('/').next().unwrap_or(program),
        program,
        arguments: arguments.leak(),
        input: Input::Own,
        no_file: Some("its memory is its own, and cannot be put into a file"),
        processes: 1,
        device_mix: None,
        about: "a program of the user's own",
    })))
}

/// The maximum of the anonymous and shared memory that the program and its descendants have at one time. Sampled every
/// few milliseconds, in one run without a limit, unless `--bytes` gives it.
pub fn footprint(workload: &'static Workload, settings: &Settings, interrupt: &Interrupt) -> Result<u64, BenchFailure> {
    let bytes = match settings.sizing.bytes {
        Some(bytes) => bytes,
        None if settings.plan_only => return Ok(0), // Nothing runs with this value.
        None => measured(workload, settings, interrupt)?,
    };
    match settings.locals.iter().min() {
        Some(percent) if local_bytes(bytes, *percent) < LOCAL_BYTES_MIN => Err(BenchFailure::usage(
            format!(
                "'{}' takes {}, of which {percent} % are less than {}, the smallest budget",
                workload.name,
                format_size(bytes),
                format_size(LOCAL_BYTES_MIN)
            ),
            "use a larger input, or a larger --local",
        )),
        _ => Ok(bytes),
    }
}

fn measured(workload: &Workload, settings: &Settings, interrupt: &Interrupt) -> Result<u64, BenchFailure> {
    let mut command = Command::new(workload.program);
    command.args(workload.arguments);
    let mut max = 0;
    let finished =
        process::run_watched(command, settings.timeout, interrupt, &mut |process| max = max.max(resident(process)))?;
    if finished.timed_out {
        let cause = format!("'{}' is not done after {} s", workload.name, settings.timeout.as_secs());
        return Err(BenchFailure::usage(cause, "use a smaller input, or raise --timeout"));
    }
    if !finished.status.success() {
        let cause = format!("'{}' fails without any limit: {}", workload.name, finished.complaint());
        return Err(BenchFailure::usage(cause, "use a command that ends with 0, and reads no standard input"));
    }
    Ok(max)
}

/// The elapsed time of a run.
pub fn figure(finished: &Finished) -> Figure {
    let value = finished.wall.as_secs_f64();
    Figure { name: "time".into(), value, unit: "s".into(), better: Better::Lower }
}

/// Resident memory of a process and its descendants that is not backed by a file. Memory shared by several processes
/// counts once for each.
pub fn resident(root: u32) -> u64 {
    let mut found = BTreeSet::from([root]);
    let mut new = vec![root];
    let mut sum = 0;
    while let Some(process) = new.pop() {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        sum += ["RssAnon:", "RssShmem:"].map(|name| kibibytes(&status, name) << 10).iter().sum::<u64>();
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
        for thread in threads.flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace().filter_map(|word| word.parse().ok()) {
                if found.len() < PROCESSES_MAX && found.insert(child) {
                    new.push(child);
                }
            }
        }
    }
    sum
}

fn kibibytes(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_becomes_a_workload() {
        let made = workload(["sh", "-c", "exit 0"].map(OsString::from).to_vec()).expect("there is a shell");
        assert_eq!((made.name, made.arguments), ("sh", &["-c", "exit 0"][..]));
        assert!(made.program.starts_with('/') && made.is_own());
        let failure = workload(vec!["no-such-program-at-all".into()]).expect_err("there is none");
        assert!(matches!(failure, BenchFailure::Usage { .. }), "{failure}");
    }

    #[test]
    fn memory_of_a_tree_is_summed() {
        let alone = resident(std::process::id());
        assert!(alone > 100 << 10, "{alone}");
        assert_eq!(kibibytes("VmRSS:\t  12 kB\nRssAnon:\t   7 kB\n", "RssAnon:"), 7);
        assert_eq!(resident(u32::MAX), 0);
    }
}
