// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The switch's background operation: one at a time, a bind or an unbind, which ends after a set time. CXL 3.1, section
//! 8.2.9.1.2.

use aquifer_fmapi::{BackgroundStatus, Opcode, ReturnCode};

use crate::virtual_switch::Target;

/// An operation that has passed this percentage is not aborted: it ends by itself. The figure is QEMU's.
const ABORT_PERCENT_MAX: u64 = 85;

/// The bind or unbind that runs in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// True for a bind, false for an unbind.
    pub is_bind: bool,
    /// The virtual CXL switch.
    pub vcs_id: u8,
    /// The vPPB that is bound or unbound.
    pub vppb_id: u8,
    /// What the vPPB is bound to, or unbound from.
    pub target: Target,
}

impl Job {
    fn opcode(&self) -> Opcode {
        if self.is_bind { Opcode::BIND_VPPB } else { Opcode::UNBIND_VPPB }
    }
}

#[derive(Clone, Copy, Debug)]
struct Running {
    job: Job,
    started_ns: u64,
    due_ns: u64,
    /// True for one that never ends by itself: an injected failure, or one that the driver ends.
    is_stalled: bool,
    /// How it will end.
    return_code: ReturnCode,
}

impl Running {
    /// Returns the progress, below 100 while it runs.
    fn percent(&self, now_ns: u64) -> u64 {
        let whole = self.due_ns.saturating_sub(self.started_ns).max(1);
        (now_ns.saturating_sub(self.started_ns).saturating_mul(100) / whole).min(99)
    }
}

/// The background operation of a switch: one bind or unbind at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Background {
    running: Option<Running>,
    last: BackgroundStatus,
    /// Injected into the next operation: that it stalls, or the return code that it ends with.
    next_is_stalled: bool,
    next_return_code: Option<ReturnCode>,
}

impl Background {
    /// Returns true while an operation runs.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns the operation that runs.
    pub fn job(&self) -> Option<Job> {
        self.running.map(|running| running.job)
    }

    /// Starts an operation. The caller has made sure that none runs.
    pub fn start(&mut self, now_ns: u64, duration_ns: u64, job: Job) {
        assert!(self.running.is_none(), "one background operation at a time");
        self.running = Some(Running {
            job,
            started_ns: now_ns,
            due_ns: now_ns.saturating_add(duration_ns),
            is_stalled: std::mem::take(&mut self.next_is_stalled),
            return_code: self.next_return_code.take().unwrap_or(ReturnCode::SUCCESS),
        });
    }

    /// Makes the running operation one that the driver ends.
    pub fn leave_to_driver(&mut self) {
        if let Some(running) = &mut self.running {
            running.is_stalled = true;
        }
    }

    /// Returns when the running operation ends by itself.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.running.filter(|running| !running.is_stalled).map(|running| running.due_ns)
    }

    /// Returns the operation that is due by now, and the return code planned for it. The caller then calls
    /// [`Background::end`].
    pub fn due(&self, now_ns: u64) -> Option<(Job, ReturnCode)> {
        let running = self.running.filter(|running| !running.is_stalled && running.due_ns <= now_ns)?;
        Some((running.job, running.return_code))
    }

    /// Ends the operation with this return code.
    pub fn end(&mut self, return_code: ReturnCode) {
        let Some(running) = self.running.take() else { return };
        self.last = BackgroundStatus {
            is_running: false,
            percent: 100,
            opcode: running.job.opcode().0,
            return_code: return_code.0,
            vendor_status: 0,
        };
    }

    /// Returns the running operation if it can still be aborted.
    pub fn abortable(&self, now_ns: u64) -> Option<Job> {
        self.running
            .filter(|running| running.is_stalled || running.percent(now_ns) <= ABORT_PERCENT_MAX)
            .map(|it| it.job)
    }

    /// Returns the answer to Background Operation Status (0002h).
    pub fn status(&self, now_ns: u64) -> BackgroundStatus {
        let Some(running) = &self.running else { return self.last };
        BackgroundStatus {
            is_running: true,
            percent: running.percent(now_ns) as u8,
            opcode: running.job.opcode().0,
            return_code: 0,
            vendor_status: 0,
        }
    }

    /// Makes the running operation, or else the next one, never end.
    pub fn stall(&mut self) {
        match &mut self.running {
            Some(running) => running.is_stalled = true,
            None => self.next_is_stalled = true,
        }
    }

    /// Makes the running operation, or else the next one, end with this return code.
    pub fn fail(&mut self, return_code: ReturnCode) {
        match &mut self.running {
            Some(running) => running.return_code = return_code,
            None => self.next_return_code = Some(return_code),
        }
    }
}
