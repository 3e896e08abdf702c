// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The table of flags.

use std::path::PathBuf;

use clap::Args;

/// Give the programs of this host the volumes of the pool that are bound to it
///
/// The agent registers this host with the fabric manager, presents and withdraws volumes as ordered, and serves
/// programs at a Unix socket: `aquifer run --tier pool:VOLUME` gets the volume's donors from it. Programs go on without
/// the agent and without the manager; only changes wait.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "\
Examples:
  aquifer agent
  aquifer agent --config ./agent.toml --check
  aquifer run --dram 1GiB --tier pool:db -- ./program

The settings are in docs/agent.md. On SIGHUP, the agent reads again which users may open which
volumes; other settings need a restart.

Exit status: 0 ended by SIGTERM or SIGINT; 1 it cannot be started; 2 bad arguments or a bad
configuration; 125 the program cannot be started.")]
pub struct AgentArgs {
    /// The configuration
    #[arg(long, default_value = "/etc/aquifer/agent.toml", value_name = "FILE")]
    pub config: PathBuf,
    /// Check the configuration and the certificates that it names, and start nothing
    #[arg(long)]
    pub check: bool,
}
