// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The bench as a program, which `aquifer bench` starts with its own arguments.
//!
//! Exit codes: 0 everything that could run did, 1 a run failed, 2 bad arguments, 3 nothing could run, 4 a measured bar
//! was missed (with `--check`), 130 and 143 ended by SIGINT and SIGTERM, with everything cleaned up.

use clap::Parser;

/// Measure a program under Aquifer, kernel swap and mmap, in one memory limit.
#[derive(Parser)]
#[command(name = "aquifer-bench", version)]
struct CommandLine {
    #[command(flatten)]
    bench: aquifer_bench::BenchArgs,
    /// An option of every command of `aquifer`, checked there. The bench writes lines for people.
    #[arg(long, hide = true, value_name = "FORMAT")]
    log_format: Option<String>,
}

fn main() -> std::process::ExitCode {
    aquifer_bench::run(CommandLine::parse().bench)
}
