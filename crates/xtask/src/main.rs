// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Developer tasks that are more than one command: `cargo xtask --help`.
//!
//! Exit codes: 0 no complaints; 1 complaints, one line each on standard error.

#![forbid(unsafe_code)]

mod arch;
mod ci;
mod crate_graph;
mod deb;
mod licences;
mod man3;
mod skips;
mod test_counts;
mod test_programs;
mod test_run;
mod test_schedule;
mod tidy;
mod walks;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer tasks", disable_help_subcommand = true)]
enum Task {
    /// Compare the edges between crates with the one table, and draw it
    Arch,
    /// Everything that CI runs, in order, with the time of each step
    Ci,
    /// Build the Debian packages from programs that are built already
    Deb(deb::DebArgs),
    /// Compare the licences of all dependencies with the list in deny.toml
    Licences,
    /// Make the manual pages of the C library from its header
    Man3 {
        /// Where to put them
        #[arg(long)]
        dir: PathBuf,
    },
    /// Licence lines, file names, lengths, unfinished work, words that we do not say
    Tidy,
}

fn main() -> ExitCode {
    let root = root();
    let complaints = match Task::parse() {
        Task::Arch => arch::check(&root),
        Task::Ci => ci::run(&root),
        Task::Deb(args) => deb::build(&root, &args),
        Task::Licences => licences::check(&root),
        Task::Man3 { dir } => man3::write(&root, &dir),
        Task::Tidy => tidy::check(&root),
    };
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The repository: two levels above this crate.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().nth(2).expect("the crate lies in crates/xtask").to_path_buf()
}
