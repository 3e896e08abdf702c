// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a fabric manager needs of donors, agents and switches: reports, and a way to send commands.
//!
//! The trait promises little, because the reconciler needs little: a report is whole and was true when it was made; a
//! command is carried out at most once, by the rules of `aquifer_fabric::Gate`, or is lost. An implementation bounds
//! each wait by a constant with a name, and answers for every donor, host and device of its topology.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aquifer_fabric::{
    Command, Desired, DeviceId, DeviceReport, DonorId, DonorReport, HostId, HostReport, Term, Topology,
};

/// Why there is no report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Silent {
    /// It has seen a greater term.
    Deposed {
        /// That term.
        seen: Term,
    },
    /// It did not answer in time.
    NoAnswer,
}

/// The reports of one round.
#[derive(Clone, Debug, Default)]
pub struct Reports {
    /// Of donors.
    pub donors: BTreeMap<DonorId, Result<DonorReport, Silent>>,
    /// Of hosts.
    pub hosts: BTreeMap<HostId, Result<HostReport, Silent>>,
    /// Of devices, from their switches.
    pub devices: BTreeMap<DeviceId, Result<DeviceReport, Silent>>,
}

/// Why a command was not carried out, as far as the sender knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendFailure {
    /// It may have arrived or not.
    Lost,
    /// It was refused.
    Refused {
        /// Why.
        why: String,
    },
}

impl fmt::Display for SendFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost => f.write_str("no answer; it is sent again if it is still due"),
            Self::Refused { why } => f.write_str(why),
        }
    }
}

/// Donors, agents and switches.
pub trait Peers: Send {
    /// What they are and where. It may change from round to round, as they register and leave.
    fn topology(&self) -> Arc<Topology>;

    /// How long a command to a switch may take until it is carried out or lost. A newly started manager waits that long
    /// before its first command, since a switch refuses nothing.
    fn command_time_max(&self) -> Duration;

    /// What the term of a manager that starts now exceeds, whatever its store says. Managers whose stores are not the same
    /// must not have the same term.
    fn term_min(&self) -> Term {
        Term(0)
    }

    /// Shows the desired state before the reports of a round: donors are told whether they are drained.
    fn follow(&mut self, desired: &Desired) {
        let _ = desired;
    }

    /// A report of each. Those that have seen a greater term report nothing but that.
    fn reports(&mut self, term: Term) -> Reports;

    /// Sends commands, and returns what became of each, in their order.
    fn send(&mut self, commands: &[Command]) -> Vec<Result<(), SendFailure>>;
}
