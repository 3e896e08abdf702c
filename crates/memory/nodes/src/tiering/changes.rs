// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides what to write so that the kernel's tiering is as wanted, and what to advise.
//!
//! Only what differs is written. The order matters: promotion comes before demotion, so that nothing is demoted that
//! could not come back.

use super::damon::{self, DamonFailure, stop_writes};
use super::state::{BALANCING, DEMOTION, PROMOTE_RATE, State};
use crate::tree::{Tree, Write};
use crate::weights;

/// A mode of NUMA balancing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balancing {
    /// None.
    Off,
    /// Pages move to the node of the CPUs that use them.
    Placement,
    /// Hot pages of slower nodes move to faster ones.
    Tiering,
}

impl Balancing {
    /// The kernel's number for it.
    pub const fn number(self) -> u64 {
        match self {
            Balancing::Off => 0,
            Balancing::Placement => 1,
            Balancing::Tiering => 2,
        }
    }

    /// The bit by which the kernel promotes.
    pub const PROMOTES: u64 = 2;
}

/// The weights that are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightsWanted {
    /// Those of the kernel.
    Default,
    /// These.
    Shares(Vec<(u32, u8)>),
}

/// What is wanted; `None` leaves a setting as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Whether reclaim demotes.
    pub demotion: Option<bool>,
    /// The mode of NUMA balancing.
    pub balancing: Option<Balancing>,
    /// How much memory may be promoted per second, in MB.
    pub promote_rate_max_mbps: Option<u64>,
    /// The weights for interleaving.
    pub weights: Option<WeightsWanted>,
    /// Whether DAMON moves cold pages.
    pub damon: Option<bool>,
}

impl Wanted {
    /// What a machine with far memory should have: promotion and demotion.
    pub fn recommended(state: &State) -> Wanted {
        if !state.has_far_memory() {
            return Wanted::default();
        }
        let promotes = state.balancing.is_some_and(|mode| mode & Balancing::PROMOTES != 0);
        Wanted {
            demotion: state.demotion.map(|_| true),
            balancing: state.balancing.filter(|_| !promotes).map(|_| Balancing::Tiering),
            ..Wanted::default()
        }
    }
}

/// What to write, in order. Nothing if everything is as wanted.
pub fn changes(tree: &dyn Tree, state: &State, wanted: &Wanted) -> Result<Vec<Write>, DamonFailure> {
    let mut writes = Vec::new();
    if let Some(balancing) = wanted.balancing.filter(|wanted| state.balancing != Some(wanted.number())) {
        writes.push(Write::new(BALANCING, balancing.number().to_string()));
    }
    if let Some(rate) = wanted.promote_rate_max_mbps.filter(|rate| state.promote_rate_max_mbps != Some(*rate)) {
        writes.push(Write::new(PROMOTE_RATE, rate.to_string()));
    }
    if let Some(demotion) = wanted.demotion.filter(|wanted| state.demotion != Some(*wanted)) {
        writes.push(Write::new(DEMOTION, if demotion { "true" } else { "false" }));
    }
    match (&wanted.weights, &state.weights) {
        (Some(WeightsWanted::Default), Some(weights)) => writes.extend(weights::default_writes(weights)),
        (Some(WeightsWanted::Shares(shares)), weights) => {
            let is_set = |node: u32, share: u8| {
                weights.as_ref().is_some_and(|weights| weights.by_node.get(&node) == Some(&share))
            };
            let differing: Vec<(u32, u8)> =
                shares.iter().copied().filter(|(node, share)| !is_set(*node, *share)).collect();
            writes.extend(weights::writes(&differing));
        }
        _ => {}
    }
    match wanted.damon {
        Some(true) => writes.extend(damon::start_writes(tree, state.damon.as_ref())?),
        Some(false) => writes.extend(state.damon.as_ref().map(stop_writes).unwrap_or_default()),
        None => {}
    }
    Ok(writes)
}

/// What an operator should know or change, one sentence each.
pub fn advice(state: &State) -> Vec<String> {
    let mut advice = Vec::new();
    if !state.has_far_memory() {
        advice.push("every node with memory has CPUs, so the kernel has nothing to tier".into());
        return advice;
    }
    match state.demotion {
        None => advice.push("this kernel cannot demote: it takes Linux 5.18 and CONFIG_MIGRATION".into()),
        Some(false) => advice.push("cold pages are not demoted: 'aquifer tiering apply --demotion on'".into()),
        Some(true) => {}
    }
    match state.balancing {
        None => advice.push("this kernel cannot promote: it takes CONFIG_NUMA_BALANCING".into()),
        Some(mode) if mode & Balancing::PROMOTES == 0 => {
            advice.push("hot pages are not promoted: 'aquifer tiering apply --balancing tiering'".into());
        }
        Some(_) => {}
    }
    if state.levels.len() == 1 && state.demotion == Some(true) {
        advice.push(
            "all nodes are in one level of the kernel's tiers, so nothing is demoted; see the firmware's HMAT".into(),
        );
    }
    if let Some(doubt) = &state.counters.doubt {
        advice.push(doubt.clone());
    }
    advice
}
