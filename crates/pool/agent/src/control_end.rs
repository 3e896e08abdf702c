// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The agent as an end of the control channel: it reports the ledger, and carries commands out in it.
//!
//! Threads: the keeper's, one call at a time.

use std::sync::Arc;

use aquifer_control::{Deposed, End, Query, Refused, Report};
use aquifer_fabric::Command;

use crate::host::Shared;

/// This host's agent, as its managers see it.
pub(crate) struct HostEnd {
    shared: Arc<Shared>,
}

impl HostEnd {
    pub(crate) fn new(shared: Arc<Shared>) -> HostEnd {
        HostEnd { shared }
    }
}

impl End for HostEnd {
    fn report(&mut self, query: &Query) -> Result<Report, Deposed> {
        let (outcome, stored) = self.shared.change(|ledger| {
            ledger.admit_term(query.term).map_err(|seen| Deposed { seen })?;
            if let Some(directory) = &query.directory {
                ledger.learn(directory.donors.clone());
            }
            Ok(())
        });
        outcome?;
        let (report, seen) = self.shared.change(|ledger| (ledger.report(), ledger.term())).0;
        // State that is not on disk is lost at a restart, so a manager must not act on it.
        stored.map_err(|_| Deposed { seen })?;
        Ok(Report::Host(report))
    }

    fn carry_out(&mut self, command: &Command) -> Result<(), Refused> {
        let (outcome, stored) = self.shared.change(|ledger| ledger.carry_out(command));
        outcome.map_err(Refused::new)?;
        stored.map_err(|error| {
            Refused::new(format!("the agent's state cannot be stored: {error}; free space in its state directory"))
        })
    }
}
