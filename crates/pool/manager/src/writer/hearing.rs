// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How the writer reads reports, and what it makes of ends that have seen greater terms.
//!
//! Nobody's word ends a leadership. When an end says that it has seen a greater term, this manager looks whether its
//! term is still the stored one. If it is not, another manager was elected. If it is, `term_claims.rs` says whether the
//! claim is accepted, which makes this manager take a greater term, or rejected, which makes the end count as silent.
//!
//! Next on the path: `newest_reports.rs`, where reports are kept.

use aquifer_fabric::{Availability, End, Millis, Topology};

use super::{Stop, Writer};
use crate::newest_reports::{Hearing, Merged, Notice, merge};
use crate::peers::Asked;

/// Maximum number of greater terms that are taken in one round. Further claims wait for the next round.
const ELECTIONS_MAX: usize = 16;

impl Writer {
    /// Reads the reports of those that are awaited.
    pub(super) fn hear(&mut self, now: Millis) -> Result<(), Stop> {
        let awaited = self.backlog.awaited();
        let merged = self.ask(Asked::Awaited(&awaited), now)?;
        self.catch_up(merged, now)
    }

    /// Reads all reports.
    pub(super) fn hear_all(&mut self, now: Millis) -> Result<(), Stop> {
        let merged = self.ask(Asked::All, now)?;
        self.catch_up(merged, now)
    }

    /// Asks for reports, and says what is to be said about them.
    fn ask(&mut self, asked: Asked<'_>, now: Millis) -> Result<Merged, Stop> {
        let reports = self.peers.reports(self.term, asked);
        let began = self.observed.asked_since.unwrap_or(now);
        let missed_from = Millis(began.0.saturating_add(self.silent_ms));
        let mut hearing = Hearing { claims: &mut self.claims, unheard: &mut self.unheard, now, missed_from };
        let mut merged = merge(&mut self.observed, reports, &mut hearing);
        if merged.contradicted_by.is_some()
            && let Some(seen) = self.store.successor()?
        {
            return Err(Stop::Deposed { seen });
        }
        self.shared.meters.count_rejected_claims(merged.claims_rejected);
        for Notice { kind, severity, what } in std::mem::take(&mut merged.notices) {
            if severity == "Critical" {
                eprintln!("aquifer-fabricd: {what}");
            }
            self.shared.events.add(now, kind, severity, what);
        }
        Ok(merged)
    }

    /// Takes a greater term as long as there are accepted claims of one.
    fn catch_up(&mut self, mut merged: Merged, now: Millis) -> Result<(), Stop> {
        for _ in 0..ELECTIONS_MAX {
            let Some(seen) = merged.outrun_by.values().max().copied() else { return Ok(()) };
            self.term = self.store.take_term(seen)?;
            self.desired.first_member = self.term.first_member();
            self.claims.follow(merged.outrun_by);
            self.sequences.clear();
            merged = self.ask(Asked::All, now)?;
        }
        Ok(())
    }

    /// Returns whether no donor and no host answers, and one of them says that it has seen a greater term. Two managers
    /// with stores of their own cannot know of each other; then the ends of the earlier one all follow the later one.
    /// Switches would still obey both, so the earlier one sends them nothing. While any end answers, an end that lies
    /// prevents nothing.
    pub(super) fn is_only_contradicted(&self, topology: &Topology) -> bool {
        let parts = topology.parts();
        let is_registered = |end: &End| match end {
            End::Donor(donor) => parts.donors.contains_key(donor),
            End::Host(host) => parts.hosts.contains_key(host),
            End::Device(_) => false,
        };
        if !self.claims.rejected().any(is_registered) {
            return false;
        }
        let donors = self.observed.donors.values().map(|report| report.availability);
        let mut all = donors.chain(self.observed.hosts.values().map(|report| report.availability));
        !all.any(Availability::answers)
    }
}
