// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Background operations: one at a time, waited for, and aborted if they do not end in time.
//!
//! The status of a background operation does not say who started it. The client recognizes another manager's operation,
//! whether under way or ended, only if it is of another command; `commands.rs` therefore reads the state after a bind
//! and an unbind.

use aquifer_fmapi::{AbortBackground, BackgroundStatus, GetBackgroundStatus, Opcode, ReturnCode};

use crate::client::Client;
use crate::failure::{Cause, Effect, Failure};
use crate::tunnel::Hop;

impl Client {
    /// Waits for the background operation that an earlier command of this client left behind at this component, if
    /// there is one.
    pub(crate) fn finish_unfinished(&mut self, path: &[Hop], opcode: Opcode) -> Result<(), Failure> {
        if self.unfinished.as_deref() != Some(path) {
            return Ok(());
        }
        let (status, waited) = self.wait_until_idle(path, opcode)?;
        if status.is_running {
            let cause = Cause::BackgroundUnfinished { percent: status.percent, waited };
            return Err(self.failure(opcode, cause, Effect::NotCarriedOut));
        }
        self.unfinished = None;
        Ok(())
    }

    /// Waits for the background operation of a command that has just started it.
    pub(crate) fn finish_background(&mut self, path: &[Hop], opcode: Opcode) -> Result<(), Failure> {
        self.unfinished = Some(path.to_vec());
        let fail = |failure: Failure| Failure { opcode, effect: Effect::Unknown, ..failure };
        let (status, waited) = self.wait_until_idle(path, opcode).map_err(fail)?;
        if status.opcode != opcode.0 {
            let cause = Cause::BackgroundForeign { found: Opcode(status.opcode) };
            self.unfinished = status.is_running.then(|| path.to_vec());
            return Err(self.failure(opcode, cause, Effect::Unknown));
        }
        if status.is_running {
            return Err(self.abort_late(path, opcode, status.percent, waited));
        }
        self.unfinished = None;
        match ReturnCode(status.return_code) {
            ReturnCode::SUCCESS => Ok(()),
            // It ended without an effect: the peer undoes an unfinished bind or unbind. If it is ours.
            code => Err(self.failure(opcode, Cause::BackgroundFailed(code), Effect::NotCarriedOut)),
        }
    }

    /// Waits until no background operation runs, of this client or another, and returns the last status. When the
    /// limit has passed, that is the status of an operation that still runs.
    pub fn wait_for_background(&mut self) -> Result<BackgroundStatus, Failure> {
        self.wait_until_idle(&[], Opcode::BACKGROUND_STATUS).map(|(status, _)| status)
    }

    /// Asks for the status until no operation runs, or the time is over.
    fn wait_until_idle(
        &mut self,
        path: &[Hop],
        opcode: Opcode,
    ) -> Result<(BackgroundStatus, std::time::Duration), Failure> {
        let begun = self.clock.now();
        loop {
            let status = self.call(path, &GetBackgroundStatus {})?;
            if status.percent > 100 {
                let cause = Cause::Inconsistent { what: format!("a progress of {} %", status.percent) };
                return Err(self.failure(opcode, cause, Effect::Unknown));
            }
            let waited = self.clock.now().saturating_sub(begun);
            if !status.is_running || waited >= self.limits.background {
                return Ok((status, waited));
            }
            self.clock.sleep(self.limits.background_poll);
        }
    }

    /// Aborts our operation, which has not ended in time and would block every other manager.
    fn abort_late(&mut self, path: &[Hop], opcode: Opcode, percent: u8, waited: std::time::Duration) -> Failure {
        if self.call(path, &AbortBackground {}).is_err() {
            let cause = Cause::BackgroundUnfinished { percent, waited };
            return self.failure(opcode, cause, Effect::Unknown);
        }
        self.unfinished = None;
        self.failure(opcode, Cause::BackgroundAborted { waited }, Effect::Unknown)
    }
}
