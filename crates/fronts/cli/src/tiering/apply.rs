// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer tiering apply`: writes what differs from the wanted settings, or shows what it would write.

use std::process;

use aquifer_nodes::placement::{Placement, Request, plan};
use aquifer_nodes::tiering::{Balancing, Damon, KDAMONDS, State, Wanted, WeightsWanted, changes, stop_writes};
use aquifer_nodes::{Nodes, Tree, Write, write_all};
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser;
use serde_json::json;

use super::read;
use crate::exit::{ExitCode, Failure, say};
use crate::output;
use crate::run::on_or_off;

/// Set the kernel's tiering; without options, turn on promotion and demotion where there is far memory
///
/// Only settings that differ are written. They need root, last until the machine is restarted, and affect every
/// program.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  aquifer tiering apply --dry-run
  aquifer tiering apply --demotion on --balancing tiering --promote-rate 1000
  aquifer tiering apply --weights dram:3,cxl:1
  aquifer tiering apply --weights default
  aquifer tiering apply --damon on")]
pub struct ApplyArgs {
    /// Whether reclaim moves cold pages to a slower node
    #[arg(long, value_name = "on|off", action = clap::ArgAction::Set, value_parser = on_or_off())]
    demotion: Option<bool>,

    /// What NUMA balancing does: nothing (off), move pages beside the CPU (placement), or promote hot ones (tiering)
    #[arg(long, value_name = "MODE", value_parser = balancing())]
    balancing: Option<Balancing>,

    /// How much memory may be promoted per second, in MB
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
    promote_rate: Option<u64>,

    /// The weights for interleaving: shares of nodes, as for 'aquifer run --numa', or default
    #[arg(long, value_name = "SHARES|default")]
    weights: Option<String>,

    /// Whether DAMON moves pages that nobody has touched for 30s to the first far node, 256MiB a second at most, and
    /// counts accesses to the far nodes for 'aquifer tiering hot'
    #[arg(long, value_name = "on|off", action = clap::ArgAction::Set, value_parser = on_or_off())]
    damon: Option<bool>,

    /// Print what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,

    /// One JSON object per file, each on a line
    #[arg(long)]
    json: bool,
}

fn balancing() -> impl TypedValueParser<Value = Balancing> {
    PossibleValuesParser::new(["off", "placement", "tiering"]).map(|word| match word.as_str() {
        "off" => Balancing::Off,
        "placement" => Balancing::Placement,
        _ => Balancing::Tiering,
    })
}

/// Writes, and prints each file and its value.
pub fn apply(args: &ApplyArgs, tree: &dyn Tree) -> Result<process::ExitCode, Failure> {
    let state = read(tree)?;
    let wanted = wanted(args, &state, tree)?;
    let failure = |cause: String| Failure::new(ExitCode::Failure, cause, "");
    let writes = changes(tree, &state, &wanted).map_err(|error| failure(error.to_string()))?;
    let outcome = if args.dry_run { Ok(()) } else { write_all(tree, &writes) };
    let done = outcome.as_ref().map_or_else(|failure| failure.done, |()| writes.len());
    let mut written = writes[..done].to_vec();
    if outcome.is_err() {
        written.extend(give_back_damon(tree, &writes[..done]));
    }
    output::print(&lines(&written, args))?;
    if writes.is_empty() && !args.json {
        say(&"nothing differs, so nothing is written");
    }
    outcome.map_err(|error| failure(error.to_string()))?;
    Ok(ExitCode::Success.into())
}

/// Ends the threads of DAMON that were made before a write failed: a kernel before 6.11 does not know their action.
/// Otherwise nobody could use DAMON, and the next attempt would take them for another program's.
fn give_back_damon(tree: &dyn Tree, done: &[Write]) -> Vec<Write> {
    let is_damon = |write: &Write| write.path.starts_with(KDAMONDS);
    let made = if done.iter().any(is_damon) { Damon::read(tree) } else { None };
    let mut undone = made.as_ref().map(stop_writes).unwrap_or_default();
    let done = write_all(tree, &undone).map_or_else(|failure| failure.done, |()| undone.len());
    undone.truncate(done);
    undone
}

fn wanted(args: &ApplyArgs, state: &State, tree: &dyn Tree) -> Result<Wanted, Failure> {
    let wanted = Wanted {
        demotion: args.demotion,
        balancing: args.balancing,
        promote_rate_max_mbps: args.promote_rate,
        weights: args.weights.as_deref().map(|text| weights(text, tree)).transpose()?,
        damon: args.damon,
    };
    Ok(if wanted == Wanted::default() { Wanted::recommended(state) } else { wanted })
}

fn weights(text: &str, tree: &dyn Tree) -> Result<WeightsWanted, Failure> {
    if text == "default" {
        return Ok(WeightsWanted::Default);
    }
    let usage = |why: String| Failure::new(ExitCode::Usage, format!("--weights {}: {why}", text.escape_debug()), "");
    let request: Request = text.parse().map_err(usage)?;
    let nodes = Nodes::read(tree).map_err(|error| usage(error.to_string()))?;
    match plan(&request, &nodes).map_err(|error| usage(error.to_string()))? {
        Placement::Weighted(shares) => Ok(WeightsWanted::Shares(shares)),
        Placement::Interleave(nodes) => Ok(WeightsWanted::Shares(nodes.into_iter().map(|node| (node, 1)).collect())),
        Placement::Bind(_) | Placement::ByKernelWeights(_) => {
            Err(usage("weights take at least two groups with shares; write for example dram:3,cxl:1".into()))
        }
    }
}

fn lines(writes: &[Write], args: &ApplyArgs) -> String {
    let line = |write: &Write| {
        if args.json {
            let object = json!({ "path": write.path, "value": write.value, "written": !args.dry_run });
            format!("{object}\n")
        } else {
            format!("{write}\n")
        }
    };
    writes.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use aquifer_nodes::Fixture;

    use super::*;

    fn tree() -> Fixture {
        let node = |node: u32, file: &str| format!("/sys/devices/system/node/node{node}/{file}");
        let weight = |node: u32| format!("/sys/kernel/mm/mempolicy/weighted_interleave/node{node}");
        Fixture::new()
            .with("/sys/devices/system/node/online", "0-1")
            .with(&node(0, "cpulist"), "0")
            .with(&node(0, "meminfo"), "Node 0 MemTotal: 1024 kB")
            .with(&node(1, "cpulist"), "")
            .with(&node(1, "meminfo"), "Node 1 MemTotal: 1024 kB")
            .with("/sys/kernel/mm/numa/demotion_enabled", "false")
            .with("/proc/sys/kernel/numa_balancing", "0")
            .with(&weight(0), "1")
            .with(&weight(1), "1")
    }

    const NOTHING: ApplyArgs = ApplyArgs {
        demotion: None,
        balancing: None,
        promote_rate: None,
        weights: None,
        damon: None,
        dry_run: false,
        json: false,
    };

    #[test]
    fn a_dry_run_writes_nothing() {
        let tree = tree();
        assert!(apply(&ApplyArgs { dry_run: true, ..NOTHING }, &tree).is_ok());
        assert!(tree.written().is_empty());
        assert!(apply(&NOTHING, &tree).is_ok());
        assert_eq!(tree.written().len(), 2);
    }

    #[test]
    fn a_write_that_fails_is_an_error_at_each_step() {
        for failing in 0..2 {
            let tree = tree().failing_after(failing);
            let failure = apply(&NOTHING, &tree).unwrap_err();
            assert_eq!((failure.code, tree.written().len()), (ExitCode::Failure, failing));
        }
    }

    /// A kernel that does not know the action kept the threads that were made for it: DAMON was in use by nobody, and
    /// the next attempt blamed another program.
    #[test]
    fn damon_is_given_back_where_it_cannot_be_set_up() {
        let start = Damon { kdamonds: Vec::new() };
        let with_blocks = || {
            tree()
                .with("/sys/devices/system/memory/block_size_bytes", "8000000")
                .with("/sys/devices/system/node/node0/memory0/state", "online")
                .with(&format!("{KDAMONDS}/nr_kdamonds"), "0")
        };
        let state = State::read(&with_blocks()).unwrap();
        let wanted = Wanted { damon: Some(true), ..Wanted::default() };
        assert_eq!(state.damon, Some(start));
        let writes = changes(&with_blocks(), &state, &wanted).unwrap();
        let files = writes.iter().filter(|write| write.path != format!("{KDAMONDS}/nr_kdamonds"));
        let known = files.filter(|write| !write.path.ends_with("/action"));
        let tree = known.fold(with_blocks(), |tree, write| tree.with(&write.path, ""));
        let failure = apply(&ApplyArgs { damon: Some(true), ..NOTHING }, &tree).unwrap_err();
        assert!(failure.to_string().contains("schemes/0/action cannot be set"), "{failure}");
        assert_eq!(tree.text(&format!("{KDAMONDS}/nr_kdamonds")).unwrap(), "0");
    }

    #[test]
    fn weights_are_shares_of_at_least_two_groups() {
        let shares = |text: &str| weights(text, &tree()).map_err(|failure| failure.to_string());
        assert_eq!(shares("dram:3,cxl:1"), Ok(WeightsWanted::Shares(vec![(0, 3), (1, 1)])));
        assert_eq!(shares("dram:2,node1:2"), Ok(WeightsWanted::Shares(vec![(0, 1), (1, 1)])));
        assert_eq!(shares("default"), Ok(WeightsWanted::Default));
        for text in ["dram", "dram,cxl", "node7:1,dram:1", "x"] {
            assert!(shares(text).unwrap_err().starts_with("--weights "), "{text}");
        }
    }
}
