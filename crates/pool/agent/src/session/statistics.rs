// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A connection that shows a program's statistics, until it ends. The program's launcher has it.

use aquifer_agent_wire::{Denial, Request, VERSION};

use super::{Ending, Session};

impl Session {
    pub(super) fn show(&mut self, version: u16) -> Result<(), Ending> {
        if version != VERSION {
            return Err(Ending::Denied(Denial::Version { version: VERSION }));
        }
        let malformed = |why: &str| Ending::Denied(Denial::Malformed { why: why.into() });
        let settings = &self.shared.settings;
        if settings.metrics.is_none() {
            return Err(Ending::Denied(Denial::NoMetrics));
        }
        let segment = self.given.take().ok_or_else(|| malformed("no descriptor came with it"))?;
        let shown = self.shared.shown.show(self.peer, segment, settings.programs_max);
        let _place = shown.map_err(Ending::Denied)?;
        // A program that is only shown takes no place from those that use volumes.
        drop(self.admitted.take());
        self.stream.set_read_timeout(None)?;
        while self.decoder.take::<Request>()?.is_none() {
            self.receive()?;
        }
        Err(malformed("a connection that shows statistics does nothing else"))
    }
}
