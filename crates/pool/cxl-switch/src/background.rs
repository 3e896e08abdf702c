// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The switch's background operation: one at a time, a bind or an unbind. It ends after a set time, or, in a driven
//! switch, when the driver says so. CXL 3.1, section 8.2.9.1.2.

use aquifer_fmapi::{BackgroundStatus, Opcode, ReturnCode};

use crate::orders::Ending;
use crate::virtual_switch::{Target, VppbState};

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
    /// What the vPPB was before, and is again if the operation is refused.
    pub before: VppbState,
}

impl Job {
    fn opcode(&self) -> Opcode {
        if self.is_bind { Opcode::BIND_VPPB } else { Opcode::UNBIND_VPPB }
    }
}

/// What ends an operation.
#[derive(Clone, Copy, Debug)]
enum Ends {
    /// The driver ends the order with this number. When it is due, its end is unknown.
    ByDriver { order_id: u64 },
    /// It ends so when it is due.
    ByItself(Ending),
    /// Nothing but an abort, as injected.
    Stalled,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    job: Job,
    started_ns: u64,
    due_ns: u64,
    ends: Ends,
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

    /// Starts an operation that takes a set time. The caller has made sure that none runs.
    pub fn start(&mut self, now_ns: u64, duration_ns: u64, job: Job) {
        let ending = self.next_return_code.take().map_or(Ending::Done, Ending::Refused);
        let is_stalled = std::mem::take(&mut self.next_is_stalled);
        self.run(now_ns, duration_ns, job, if is_stalled { Ends::Stalled } else { Ends::ByItself(ending) });
    }

    /// Starts an operation that the driver ends, within a limit. The caller has made sure that none runs.
    pub fn start_ordered(&mut self, now_ns: u64, limit_ns: u64, job: Job, order_id: u64) {
        self.run(now_ns, limit_ns, job, Ends::ByDriver { order_id });
    }

    fn run(&mut self, now_ns: u64, duration_ns: u64, job: Job, ends: Ends) {
        assert!(self.running.is_none(), "one background operation at a time");
        self.running = Some(Running { job, started_ns: now_ns, due_ns: now_ns.saturating_add(duration_ns), ends });
    }

    /// Returns the number of the order that the running operation waits for.
    pub fn order_id(&self) -> Option<u64> {
        match self.running?.ends {
            Ends::ByDriver { order_id } => Some(order_id),
            Ends::ByItself(_) | Ends::Stalled => None,
        }
    }

    /// Returns when the running operation ends by itself.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.running.filter(|running| !matches!(running.ends, Ends::Stalled)).map(|running| running.due_ns)
    }

    /// Returns how the operation ends that is due by now. The caller then calls [`Background::end`].
    pub fn due(&self, now_ns: u64) -> Option<Ending> {
        match self.running.filter(|running| running.due_ns <= now_ns)?.ends {
            Ends::ByDriver { .. } => Some(Ending::Unknown(ReturnCode::INTERNAL_ERROR)),
            Ends::ByItself(ending) => Some(ending),
            Ends::Stalled => None,
        }
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

    /// Returns whether the running operation can still be aborted.
    pub fn can_abort(&self, now_ns: u64) -> bool {
        self.running.is_some_and(|running| match running.ends {
            Ends::ByDriver { .. } => false,
            Ends::ByItself(_) => running.percent(now_ns) <= ABORT_PERCENT_MAX,
            Ends::Stalled => true,
        })
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

    /// Makes the running operation, or else the next one, never end. The driver's operations are not concerned.
    pub fn stall(&mut self) {
        match self.running.as_mut().map(|running| &mut running.ends) {
            Some(Ends::ByDriver { .. }) => {}
            Some(ends) => *ends = Ends::Stalled,
            None => self.next_is_stalled = true,
        }
    }

    /// Makes the running operation, or else the next one, end with this return code, unless it never ends. The
    /// driver's operations are not concerned.
    pub fn fail(&mut self, return_code: ReturnCode) {
        match self.running.as_mut().map(|running| &mut running.ends) {
            Some(Ends::ByDriver { .. } | Ends::Stalled) => {}
            Some(Ends::ByItself(ending)) => *ending = Ending::Refused(return_code),
            None => self.next_return_code = Some(return_code),
        }
    }
}
