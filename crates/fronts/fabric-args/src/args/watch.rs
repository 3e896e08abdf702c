// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The flags of all commands that list a state.

use clap::Args;

/// Whether a list is printed once or repeatedly.
#[derive(Clone, Copy, Debug, Args)]
pub struct Watch {
    /// Print it again every --interval seconds, until interrupted
    #[arg(long)]
    pub watch: bool,
    /// Seconds between two updates of --watch
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
}
