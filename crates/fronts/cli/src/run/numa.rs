// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `--numa`: over which nodes the program's pages are spread. `auto` spreads them by measured bandwidth
//! (`numa/measured.rs`).
//!
//! `aquifer_nodes::placement` decides; this file reads the machine and sets the policy of the thread that starts the
//! program, which the program inherits, with everything that it starts. The pager in the program allocates its frames
//! under the same policy, so what stays local within `--dram` is spread, too.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use aquifer_nodes::placement::{Decision, Placement, PolicyKind, Request, decide, plan};
use aquifer_nodes::weights::{self, Weights};
use aquifer_nodes::{Machine, Nodes, Tree, write_all};
use aquifer_sys::numa::{NODES_MAX, NodeMask, Policy, set_policy};
use nix::unistd::geteuid;

use crate::exit::{ExitCode, Failure, say};

mod measured;

/// How the user wants the program's pages spread over nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Spreads them by the nodes' measured bandwidth.
    Auto,
    /// Spreads them by these shares.
    Shares(Request),
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spread::Auto => f.write_str("auto"),
            Spread::Shares(request) => request.fmt(f),
        }
    }
}

impl FromStr for Spread {
    type Err = String;

    fn from_str(text: &str) -> Result<Spread, String> {
        if text == "auto" { Ok(Spread::Auto) } else { text.parse().map(Spread::Shares) }
    }
}

/// Finds the nodes of a request on this machine. `state_dir` is where a measurement is kept. Returns `None` if there is
/// nothing to spread the program over.
pub fn check(spread: &Spread, state_dir: &str, quiet: bool) -> Result<Option<Placement>, Failure> {
    let failure = |why: String| Failure::new(ExitCode::CannotStart, format!("--numa: {why}"), "");
    let nodes = Nodes::read(&Machine::running()).map_err(|error| failure(error.to_string()))?;
    match spread {
        Spread::Auto => measured::placement(&nodes, Path::new(state_dir), quiet),
        Spread::Shares(request) => plan(request, &nodes).map(Some).map_err(|error| failure(error.to_string())),
    }
}

/// The policy of this thread until it is dropped: whatever the thread starts meanwhile inherits it.
pub struct Placed(());

impl Placed {
    /// Sets the policy for a placement. With `strict`, refuses one that is not exactly as requested.
    pub fn enter(placement: &Placement, strict: bool, quiet: bool) -> Result<Placed, Failure> {
        let decision = carry_out(&Machine::running(), placement, geteuid().is_root());
        if let Some(departure) = &decision.departure {
            if strict {
                return Err(Failure::new(ExitCode::Refused, format!("--numa: {departure}"), ""));
            }
            say(&format!("--numa: {departure}"));
        }
        if let Some(notice) = decision.notice.as_ref().filter(|_| !quiet) {
            say(&format!("--numa: {notice}"));
        }
        let Some(mask) = NodeMask::of(decision.nodes.iter().copied()) else {
            let cause = format!("--numa: a node of {NODES_MAX} or more cannot be named");
            return Err(Failure::new(ExitCode::CannotStart, cause, "name nodes with smaller numbers"));
        };
        let policy = match decision.policy {
            PolicyKind::Bind => Policy::Bind(mask),
            PolicyKind::Interleave => Policy::Interleave(mask),
            PolicyKind::WeightedInterleave => Policy::WeightedInterleave(mask),
        };
        set_policy(policy).map_err(|errno| {
            let cause = format!("--numa: the kernel refuses the nodes {:?}: {errno}", decision.nodes);
            let remedy = "name nodes that this process may use (Mems_allowed_list in /proc/self/status)";
            Failure::new(ExitCode::CannotStart, cause, remedy)
        })?;
        Ok(Placed(()))
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        // The launcher's own few pages may come from anywhere.
        let _ = set_policy(Policy::Default);
    }
}

/// Decides, and sets the machine's weights where they have to be set. Where they cannot be, decides without them.
fn carry_out(tree: &dyn Tree, placement: &Placement, may_set: bool) -> Decision {
    let before = Weights::read(tree);
    let decision = decide(placement, before.as_ref(), may_set);
    if write_all(tree, &decision.writes).is_ok() {
        return decision;
    }
    // Some of them may have been set; a machine where that can be undone is left as it was.
    let shares: Vec<(u32, u8)> = before.iter().flat_map(|weights| weights.by_node.clone()).collect();
    let _ = write_all(tree, &weights::writes(&shares));
    decide(placement, Weights::read(tree).as_ref(), false)
}

#[cfg(test)]
mod tests {
    use aquifer_nodes::Fixture;

    use super::*;

    fn tree() -> Fixture {
        let weight = |node| format!("/sys/kernel/mm/mempolicy/weighted_interleave/node{node}");
        Fixture::new().with(&weight(0), "1").with(&weight(1), "1")
    }

    #[test]
    fn what_was_typed_is_shown_as_typed() {
        for text in ["auto", "dram:3,cxl:1", "node1"] {
            assert_eq!(text.parse::<Spread>().unwrap().to_string(), text);
        }
        assert!("auto:3".parse::<Spread>().unwrap_err().contains("not a group"));
    }

    #[test]
    fn weights_that_cannot_be_written_are_missed_and_reported() {
        let placement = Placement::Weighted(vec![(0, 3), (1, 2)]);
        let set = carry_out(&tree(), &placement, true);
        assert_eq!((set.policy, set.departure), (PolicyKind::WeightedInterleave, None));
        for failing in 0..2 {
            let missed = carry_out(&tree().failing_after(failing), &placement, true);
            assert_eq!(missed.policy, PolicyKind::Interleave);
            assert!(missed.departure.is_some(), "{failing}");
        }
    }
}
