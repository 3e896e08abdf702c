// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a fabric manager needs of donors, agents and switches: reports, and a way to send commands.
//!
//! The trait promises little, because the reconciler needs little: a report is whole and was true when it was made; a
//! command is carried out at most once, by the rules of `aquifer_fabric::Gate`, or is lost. An implementation bounds
//! each wait by a constant with a name, and answers for every donor, host and device of its topology.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aquifer_control::FaultFigures;
use aquifer_cxl_peers::{Act, Inventory, Notice, Reached};
use aquifer_fabric::{
    Command, Desired, DeviceId, DeviceReport, DonorId, DonorReport, End, HostId, HostReport, SwitchId, Term, Topology,
};

/// Why there is no report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Silent {
    /// It has seen a greater term.
    Deposed {
        /// The greater term that it has seen.
        seen: Term,
    },
    /// It did not answer in time.
    NoAnswer,
}

/// A report, or why there is none. One that has not changed should be the same allocation as before: it is then seen
/// without a comparison.
pub type Reported<R> = Result<Arc<R>, Silent>;

/// The reports of one round.
#[derive(Clone, Debug, Default)]
pub struct Reports {
    /// The reports of donors.
    pub donors: BTreeMap<DonorId, Reported<DonorReport>>,
    /// The reports of hosts.
    pub hosts: BTreeMap<HostId, Reported<HostReport>>,
    /// The reports of devices, from their switches.
    pub devices: BTreeMap<DeviceId, Reported<DeviceReport>>,
}

/// Why a command was not carried out, as far as the sender knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendFailure {
    /// It may or may not have arrived.
    Lost,
    /// The peer is slow, and its time for an answer is not over.
    Pending,
    /// The peer has refused it.
    Refused {
        /// Why the peer has refused it, in one line.
        why: String,
    },
}

impl fmt::Display for SendFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost => f.write_str("no answer; it is sent again if it is still due"),
            Self::Pending => f.write_str("no answer yet; wait"),
            Self::Refused { why } => f.write_str(why),
        }
    }
}

/// What is stored on behalf of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The key in the store.
    pub key: String,
    /// The value; `None` deletes it.
    pub value: Option<Vec<u8>>,
    /// What the audit log says about it.
    pub what: String,
}

/// Whose reports a round needs.
#[derive(Clone, Copy, Debug)]
pub enum Asked<'a> {
    /// All reports.
    All,
    /// The reports of those from which something is awaited. The others are asked in turns.
    Awaited(&'a BTreeSet<End>),
}

/// Donors, agents and switches.
pub trait Peers: Send {
    /// Returns what they are and where. This may change from round to round, as they register and leave.
    fn topology(&self) -> Arc<Topology>;

    /// Returns how long a command to a switch may take until it is carried out or lost. A newly started manager waits
    /// that long before its first command, since a switch refuses nothing.
    fn command_time_max(&self) -> Duration;

    /// Returns a lower bound: the term of a manager that starts now must be greater, whatever its store says: managers
    /// with separate stores must not have the same term.
    fn term_min(&self) -> Term {
        Term(0)
    }

    /// Passes on the desired state before the reports of a round, so that donors learn whether they are drained.
    fn follow(&mut self, desired: &Desired) {
        let _ = desired;
    }

    /// Returns what is to be stored on behalf of peers, such as new registrations. It is returned again until it is
    /// [`recorded`](Self::recorded).
    fn records(&mut self) -> Vec<Record> {
        Vec::new()
    }

    /// Notes that what `records` returned last is stored.
    fn recorded(&mut self) {}

    /// Returns a report of each of those that are asked, and perhaps of others. Those that have seen a greater term
    /// report only that term.
    fn reports(&mut self, term: Term, asked: Asked<'_>) -> Reports;

    /// Returns the number of rounds in which everybody was asked once.
    fn turns(&self) -> u32 {
        1
    }

    /// Sends commands, and returns what became of each, in their order.
    fn send(&mut self, commands: &[Command]) -> Vec<Result<(), SendFailure>>;

    /// Takes note of what hosts reach of devices that are not among these peers. Real hosts see that for themselves.
    fn see_reached(&mut self, _reached: Reached) {}

    /// Carries out an operator's order to a switch.
    fn act(&mut self, act: &Act) -> Result<(), SendFailure> {
        Err(SendFailure::Refused { why: format!("no switch here can {act}; add it to the configuration") })
    }

    /// Returns what happened at switches since the last call.
    fn take_notices(&mut self) -> Vec<Notice> {
        Vec::new()
    }

    /// Returns the faults of programs, as agents count them. By default no agent does.
    fn faults(&self) -> Arc<FaultFigures> {
        Arc::default()
    }

    /// Returns what was read last of each switch that is not simulated.
    fn inventories(&self) -> BTreeMap<SwitchId, Arc<Inventory>> {
        BTreeMap::new()
    }
}
