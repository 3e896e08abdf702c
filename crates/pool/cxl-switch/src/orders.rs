// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Orders to the driver of a driven switch: what a manager asks of it, the driver carries out, and says how that ended.
//!
//! A driven switch stands before memory that is not its own: a pool's manager decides there. So a bind, an unbind and
//! an allocation have two phases. The switch checks the request as far as it can, and orders: a bind or an unbind runs
//! in the background until its order ends, and Set LD Allocations, which is no background command, is answered only
//! then. The second phase is the driver's [`Switch::conclude`]. There is one order at a time; the FM API's answer to
//! another one is Busy.
//!
//! An answer that is late is made by carrying the request out again, with the driver's decision at hand, so tunnels and
//! lengths are treated as in any other request.
//!
//! Every order has a limit. One that the driver has not ended by then ends as [`Ending::Unknown`], and what the driver
//! says later is ignored. What really happened is in the next state that the switch adopts (`adopted.rs`).

use aquifer_fmapi::ReturnCode;

use crate::background::Job;
use crate::context::{Connection, Context};
use crate::injection::AnswerFailure;
use crate::outcome::{Effect, Outcome, Reply};
use crate::switch::{Cci, Switch};

/// What the driver of a driven switch is to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Logical devices get these sizes, all of them or none. They are bound nowhere.
    Allocate {
        /// The device of the logical devices.
        device: usize,
        /// The logical devices that change, each with its new size in bytes; 0 gives its memory back.
        lds: Vec<(u8, u64)>,
    },
    /// A vPPB is bound to a logical device that has memory.
    Bind {
        /// The virtual CXL switch.
        vcs_id: u8,
        /// The vPPB in that switch.
        vppb_id: u8,
        /// The device of the logical device.
        device: usize,
        /// The logical device.
        ld_id: u8,
    },
    /// A vPPB is unbound.
    Unbind {
        /// The virtual CXL switch.
        vcs_id: u8,
        /// The vPPB in that switch.
        vppb_id: u8,
        /// The device of the logical device.
        device: usize,
        /// The logical device.
        ld_id: u8,
    },
}

/// How an order has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was carried out.
    Done,
    /// It was refused: everything is as before it.
    Refused(ReturnCode),
    /// It may have been carried out, or still be under way. The next adopted state shows which.
    Unknown(ReturnCode),
}

impl Ending {
    /// Returns the return code that the manager gets.
    pub(crate) fn return_code(self) -> ReturnCode {
        match self {
            Self::Done => ReturnCode::SUCCESS,
            Self::Refused(code) | Self::Unknown(code) if code != ReturnCode::SUCCESS => code,
            // A driver that refuses with Success would make the switch say what is not so.
            Self::Refused(_) | Self::Unknown(_) => ReturnCode::INTERNAL_ERROR,
        }
    }
}

/// What waits for the end of an order.
#[derive(Clone, Debug)]
enum Waiting {
    /// A bind or an unbind in the background.
    Background,
    /// The answer to a request.
    Request {
        connection: Connection,
        bytes: Vec<u8>,
        /// How the answer fails, as injected.
        failure: Option<AnswerFailure>,
        /// The device whose logical devices change.
        device: usize,
    },
}

#[derive(Clone, Debug)]
struct Running {
    id: u64,
    due_ns: u64,
    waiting: Waiting,
}

/// The orders of a driven switch: at most one runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orders {
    /// How long an order may take; None for a switch that carries everything out itself.
    limit_ns: Option<u64>,
    last_id: u64,
    running: Option<Running>,
}

impl Orders {
    /// Creates the orders of a driven switch.
    pub fn of_driven(limit_ns: u64) -> Self {
        Self { limit_ns: Some(limit_ns), ..Self::default() }
    }

    /// Returns true for a driven switch.
    pub fn is_driven(&self) -> bool {
        self.limit_ns.is_some()
    }

    /// Returns true while an order runs.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns when the running order ends by itself.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.running.as_ref().map(|running| running.due_ns)
    }

    /// Returns how long an order may take.
    pub fn limit_ns(&self) -> Option<u64> {
        self.limit_ns
    }

    /// Returns whether the sizes of a device's logical devices are being changed.
    pub fn resizes(&self, device: usize) -> bool {
        let waiting = self.running.as_ref().map(|running| &running.waiting);
        matches!(waiting, Some(Waiting::Request { device: of, .. }) if *of == device)
    }

    fn begin(&mut self, context: &mut Context, order: Order, waiting: Waiting) {
        assert!(self.running.is_none(), "one order at a time");
        self.last_id += 1;
        let due_ns = context.now_ns.saturating_add(self.limit_ns.unwrap_or_default());
        self.running = Some(Running { id: self.last_id, due_ns, waiting });
        context.effect(Effect::Ordered { id: self.last_id, order });
    }
}

impl Switch {
    /// Orders a bind or an unbind, which runs in the background.
    pub(crate) fn order_job(&mut self, context: &mut Context, job: &Job) {
        let Job { is_bind, vcs_id, vppb_id, target } = *job;
        let device = self.device_of_port(target.port_id).expect("a logical device was found there");
        let ld_id = target.ld_id.unwrap_or_default();
        let order = match is_bind {
            true => Order::Bind { vcs_id, vppb_id, device, ld_id },
            false => Order::Unbind { vcs_id, vppb_id, device, ld_id },
        };
        self.orders.begin(context, order, Waiting::Background);
    }

    /// Keeps the request whose order has begun, to be answered later.
    pub(crate) fn order_and_wait(
        &mut self,
        context: &mut Context,
        order: Order,
        bytes: &[u8],
        failure: Option<AnswerFailure>,
    ) {
        let Order::Allocate { device, .. } = order else { unreachable!("binds run in the background") };
        let (connection, bytes) = (context.connection, bytes.to_vec());
        self.orders.begin(context, order, Waiting::Request { connection, bytes, failure, device });
    }

    /// Says how an order has ended. Nothing happens where the order has ended before, by its limit.
    pub fn conclude(&mut self, now_ns: u64, id: u64, ending: Ending) -> Outcome {
        let mut context = self.begin(now_ns);
        if self.orders.running.as_ref().is_some_and(|running| running.id == id) {
            self.end_order(&mut context, ending);
        }
        self.end(context)
    }

    /// Ends the order that has reached its limit.
    pub(crate) fn end_late_order(&mut self, context: &mut Context) {
        if self.orders.deadline_ns().is_some_and(|due_ns| due_ns <= context.now_ns) {
            self.end_order(context, Ending::Unknown(ReturnCode::INTERNAL_ERROR));
        }
    }

    fn end_order(&mut self, context: &mut Context, ending: Ending) {
        let Some(running) = self.orders.running.take() else { return };
        match running.waiting {
            Waiting::Background => self.end_job(context, ending),
            Waiting::Request { connection, bytes, failure, .. } => {
                let mut again = Context { connection, room: usize::MAX, ..Context::of_nobody(context.now_ns) };
                again.decision = Some(ending);
                let answer = self.converse(&mut again, Cci::Switch, &bytes, None);
                context.outcome.append(again.outcome);
                let answer = answer.expect("the request was accepted before");
                let bytes = answer.encode(connection.dialect);
                let reply = Reply { connection: connection.id, due_ns: context.now_ns, bytes, is_of_order: true };
                match failure {
                    Some(failure) => context.outcome.replies.extend(failure.spoil(reply)),
                    None => context.outcome.replies.push(reply),
                }
            }
        }
    }
}
