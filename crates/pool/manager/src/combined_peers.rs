// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Joins CXL switches with the other peers, which are donors, hosts, and simulated switches.
//!
//! A device is one of ours if a switch of the configuration has it; everything else goes to the other peers. Before
//! these report, they are given what hosts can reach of our devices, since simulated agents cannot look for themselves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aquifer_control::FaultFigures;
use aquifer_cxl_peers::{Act, Inventory, NotDone, Notice, Reached, Switches};
use aquifer_fabric::{Command, Desired, End, Step, SwitchId, Term, Topology};

use crate::peers::{Asked, Peers, Record, Reports, SendFailure, Silent};

/// CXL switches and other peers as one.
pub(crate) struct Combined {
    others: Box<dyn Peers>,
    switches: Switches,
    topology: Arc<Topology>,
    /// What the topology was made from.
    others_topology: Arc<Topology>,
    inventories: BTreeMap<SwitchId, Arc<Inventory>>,
    notices: Vec<Notice>,
}

impl Combined {
    /// Combines these peers with these switches, which have not been asked yet.
    pub(crate) fn new(others: Box<dyn Peers>, switches: Switches) -> Combined {
        let topology = others.topology();
        let (inventories, notices) = (BTreeMap::new(), Vec::new());
        Combined { others, switches, topology: Arc::clone(&topology), others_topology: topology, inventories, notices }
    }

    /// Rebuilds the topology if a part of it has changed.
    fn join_topologies(&mut self) {
        let (others, inventories) = (self.others.topology(), self.switches.inventories());
        let is_same = |name: &SwitchId, now: &Arc<Inventory>| {
            self.inventories.get(name).is_some_and(|before| Arc::ptr_eq(before, now))
        };
        let is_unchanged = inventories.iter().all(|(name, now)| is_same(name, now));
        if is_unchanged && Arc::ptr_eq(&others, &self.others_topology) {
            return;
        }
        let topology = self.switches.topology(&others);
        if topology != *self.topology {
            self.topology = Arc::new(topology);
        }
        (self.others_topology, self.inventories) = (others, inventories);
    }
}

fn failure(not: NotDone) -> SendFailure {
    match not {
        NotDone::Lost(_) => SendFailure::Lost,
        NotDone::Busy(why) | NotDone::Refused(why) => SendFailure::Refused { why },
    }
}

impl Peers for Combined {
    fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.topology)
    }

    fn command_time_max(&self) -> Duration {
        self.switches.command_time_max().max(self.others.command_time_max())
    }

    fn term_min(&self) -> Term {
        self.others.term_min()
    }

    fn follow(&mut self, desired: &Desired) {
        self.others.follow(desired);
    }

    fn records(&mut self) -> Vec<Record> {
        self.others.records()
    }

    fn recorded(&mut self) {
        self.others.recorded();
        self.join_topologies();
    }

    fn reports(&mut self, term: Term, asked: Asked<'_>) -> Reports {
        let devices = self.switches.reports();
        self.join_topologies();
        self.others.see_reached(self.switches.reached());
        let mut reports = self.others.reports(term, asked);
        let ours = devices.into_iter().map(|(name, report)| (name, report.map(Arc::new).ok_or(Silent::NoAnswer)));
        reports.devices.extend(ours);
        reports
    }

    fn turns(&self) -> u32 {
        self.others.turns()
    }

    fn send(&mut self, commands: &[Command]) -> Vec<Result<(), SendFailure>> {
        let is_ours = |command: &Command| match command.step.end() {
            End::Device(name) => self.switches.has(&name),
            End::Donor(_) | End::Host(_) => false,
        };
        let (ours, others): (Vec<usize>, Vec<usize>) = (0..commands.len()).partition(|at| is_ours(&commands[*at]));
        let steps: Vec<Step> = ours.iter().map(|at| commands[*at].step.clone()).collect();
        let commands_of_others: Vec<Command> = others.iter().map(|at| commands[*at].clone()).collect();
        let mut outcomes = vec![Ok(()); commands.len()];
        // Hosts first: what leaves a host is confirmed a round later, so no step of this round waits for it.
        for (at, outcome) in others.into_iter().zip(self.others.send(&commands_of_others)) {
            outcomes[at] = outcome;
        }
        for (at, outcome) in ours.into_iter().zip(self.switches.send(&steps)) {
            if let Err(NotDone::Lost(why)) = &outcome {
                let (kind, severity) = ("SwitchSilent", aquifer_cxl_peers::Severity::Warning);
                self.notices.push(Notice { kind, severity, message: why.clone() });
            }
            outcomes[at] = outcome.map_err(failure);
        }
        outcomes
    }

    fn see_reached(&mut self, reached: Reached) {
        self.others.see_reached(reached);
    }

    fn act(&mut self, act: &Act) -> Result<(), SendFailure> {
        self.switches.act(act).map_err(failure)
    }

    fn take_notices(&mut self) -> Vec<Notice> {
        let mut notices = std::mem::take(&mut self.notices);
        notices.extend(self.switches.take_notices());
        notices.extend(self.others.take_notices());
        notices
    }

    fn faults(&self) -> Arc<FaultFigures> {
        self.others.faults()
    }

    fn inventories(&self) -> BTreeMap<SwitchId, Arc<Inventory>> {
        self.switches.inventories()
    }
}
