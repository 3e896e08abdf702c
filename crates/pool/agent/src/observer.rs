// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Writes the text of a scrape: the agent's own metrics, and those of the programs that are shown to it.
//!
//! Threads: the caller's. It holds the lock of the host state while it counts, and no lock while it writes.

use std::fmt;
use std::sync::Arc;

use aquifer_control::Keeper;
use aquifer_stats::to_prometheus_of_units;

use crate::exposition::{ManagerReading, Readings, exposition};
use crate::host::Shared;

/// What writes the metrics of a running agent.
pub struct Observer {
    shared: Arc<Shared>,
    keeper: Arc<Keeper>,
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

impl Observer {
    pub(crate) fn new(shared: Arc<Shared>, keeper: Arc<Keeper>) -> Observer {
        Observer { shared, keeper }
    }

    /// Returns the metrics as Prometheus text.
    pub fn metrics(&self) -> String {
        let (figures, is_stored) = self.shared.figures();
        let managers = self.shared.settings.managers.iter().zip(self.keeper.channels());
        let managers = managers.map(|(address, (status, since))| ManagerReading::new(address, status, since));
        let readings = Readings {
            managers: managers.collect(),
            figures,
            is_stored,
            shown: self.shared.shown.count(),
            refused: self.shared.refusals.read(),
            spans: self.shared.telemetry.counts(),
        };
        exposition(&readings) + &to_prometheus_of_units(&self.shared.shown.read())
    }
}
