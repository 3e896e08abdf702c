// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer tiering`: the kernel's own tiering between NUMA nodes, shown and set.
//!
//! `aquifer_nodes::tiering` reads and decides; `status.rs` prints, `apply.rs` writes; `hot.rs` prints what
//! `aquifer_hotness` finds.

mod apply;
mod hot;
mod status;

use std::process;

use aquifer_nodes::tiering::State;
use aquifer_nodes::{Machine, Tree};

use crate::exit::{ExitCode, Failure};

/// Show and set the kernel's own tiering between NUMA nodes
///
/// Memory behind CXL is a node without CPUs. The kernel can demote cold pages to it, promote hot ones from it, and
/// interleave over nodes by weight. This works on all programs of the machine, managed or not.
#[derive(Clone, Debug, clap::Args)]
#[command(arg_required_else_help = true)]
#[command(after_long_help = "\
Examples:
  aquifer tiering status               what is on, what it has done, what to change
  aquifer tiering status --over 10s    what it does in ten seconds
  aquifer tiering apply --dry-run      what would be written to have promotion and demotion
  aquifer tiering apply --weights dram:3,cxl:1
  aquifer tiering hot                  which memory of the far nodes is hot, as DAMON counts")]
pub struct TieringArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Action {
    Status(status::StatusArgs),
    Apply(apply::ApplyArgs),
    Hot(hot::HotArgs),
}

/// Shows or sets it.
pub fn tiering(args: &TieringArgs) -> Result<process::ExitCode, Failure> {
    match &args.action {
        Action::Status(args) => status::status(args, &Machine::running()),
        Action::Apply(args) => apply::apply(args, &Machine::running()),
        Action::Hot(args) => hot::hot(args, &Machine::running()),
    }
}

fn read(tree: &dyn Tree) -> Result<State, Failure> {
    State::read(tree).map_err(|failure| Failure::new(ExitCode::Failure, failure.to_string(), ""))
}
