// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Orders to the driver of a driven switch: what a manager asks of it, the driver carries out, and says how that ended.
//!
//! A driven switch stands before memory that is not its own: a pool's manager decides there. So a bind, an unbind and
//! an allocation have two phases. The switch checks the request as far as it can, and orders: a bind or an unbind runs
//! in the background until its order ends, and Set LD Allocations, which is no background command, is answered only
//! then. The second phase is the driver's [`Switch::conclude`]. There is one order at a time: during a bind or an
//! unbind, which `background.rs` has, the answer to another one is Busy; while a request waits, it is Retry Required.
//!
//! A request that waits leaves the headers of itself and of the tunnels that carried it. Its answer, and the tunnels'
//! around it, are made from these. That the answer fits was checked before.
//!
//! Every order has a limit. One that the driver has not ended by then ends as [`Ending::Unknown`], and what the driver
//! says later is ignored. What really happened is in the next state that the switch adopts (`adopted.rs`).

use aquifer_fmapi::{Header, Message, Request, Response, ReturnCode, Tunnelled};

use crate::background::Job;
use crate::context::{Answer, Connection, Context};
use crate::injection::AnswerFailure;
use crate::outcome::{Effect, Outcome, Reply};
use crate::switch::Switch;

/// What the driver of a driven switch is to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Logical devices get these sizes, all of them or none. Of those that are bound, the size that is shown is listed.
    Allocate {
        /// The device of the logical devices.
        device: usize,
        /// Logical devices with successive numbers, each with its size in bytes; 0 gives its memory back. Those that
        /// the switch shows with this size are listed, too: it may no longer be so.
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

/// What a request orders whose answer waits for the driver.
#[derive(Clone, Debug)]
pub(crate) struct Ordered {
    device: usize,
    lds: Vec<(u8, u64)>,
    /// The headers of the request and of the tunnels that carried it, innermost first.
    pub headers: Vec<Header>,
}

/// A request whose answer waits for the driver.
#[derive(Clone, Debug)]
struct Waiting {
    order_id: u64,
    due_ns: u64,
    ordered: Ordered,
    connection: Connection,
    /// How the answer fails, as injected.
    failure: Option<AnswerFailure>,
}

/// The orders of a driven switch, except those of its background operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orders {
    /// How long an order may take; None for a switch that carries everything out itself.
    limit_ns: Option<u64>,
    last_id: u64,
    waiting: Option<Waiting>,
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

    /// Returns true while a request waits for the driver.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Returns when the request that waits is answered even without the driver.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.waiting.as_ref().map(|waiting| waiting.due_ns)
    }

    /// Returns how long an order may take; None for a switch that is not driven.
    pub fn limit_ns(&self) -> Option<u64> {
        self.limit_ns
    }

    /// Returns whether the sizes of a device's logical devices are being changed.
    pub fn resizes(&self, device: usize) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.ordered.device == device)
    }

    /// Orders something from the driver. Returns the number of the order.
    fn begin(&mut self, context: &mut Context, order: Order) -> u64 {
        self.last_id += 1;
        context.effect(Effect::Ordered { id: self.last_id, order });
        self.last_id
    }
}

impl Switch {
    /// Orders a bind or an unbind, which runs in the background. Returns the number of the order.
    pub(crate) fn order_job(&mut self, context: &mut Context, job: &Job) -> u64 {
        let Job { is_bind, vcs_id, vppb_id, target, .. } = *job;
        let device = self.device_of_port(target.port_id).expect("a logical device was found there");
        let ld_id = target.ld_id.unwrap_or_default();
        let order = match is_bind {
            true => Order::Bind { vcs_id, vppb_id, device, ld_id },
            false => Order::Unbind { vcs_id, vppb_id, device, ld_id },
        };
        self.orders.begin(context, order)
    }

    /// Checks a request that the driver of a driven switch decides, and leaves in the context what it orders. Returns
    /// `None` for any other request.
    pub(crate) fn answer_of_driver(
        &mut self,
        context: &mut Context,
        device: usize,
        request: &Request,
    ) -> Option<Answer> {
        let Request::SetLdAllocations(set) = request else { return None };
        if !self.orders.is_driven() {
            return None;
        }
        let bound = self.bound_lds(device);
        let order = self.devices[device].order_allocations(context, set, bound);
        Some(order.and_then(|lds| {
            self.check_idle()?;
            context.ordered = Some(Ordered { device, lds, headers: Vec::new() });
            // Nobody gets this answer.
            Err(ReturnCode::RETRY_REQUIRED)
        }))
    }

    /// Orders what a request has left in the context, and keeps the request, to be answered later.
    pub(crate) fn order_and_wait(&mut self, context: &mut Context, ordered: Ordered, failure: Option<AnswerFailure>) {
        let order = Order::Allocate { device: ordered.device, lds: ordered.lds.clone() };
        let order_id = self.orders.begin(context, order);
        let due_ns = context.now_ns.saturating_add(self.orders.limit_ns.unwrap_or_default());
        let connection = context.connection;
        self.orders.waiting = Some(Waiting { order_id, due_ns, ordered, connection, failure });
    }

    /// Says how an order has ended. Nothing happens where the order has ended before, by its limit.
    pub fn conclude(&mut self, now_ns: u64, id: u64, ending: Ending) -> Outcome {
        let mut context = self.begin(now_ns);
        if self.background.order_id() == Some(id) {
            self.end_job(&mut context, ending);
        } else if self.orders.waiting.as_ref().is_some_and(|waiting| waiting.order_id == id) {
            self.end_request(&mut context, ending);
        }
        self.end(context)
    }

    /// Answers the request whose order has reached its limit.
    pub(crate) fn end_late_request(&mut self, context: &mut Context) {
        if self.orders.deadline_ns().is_some_and(|due_ns| due_ns <= context.now_ns) {
            self.end_request(context, Ending::Unknown(ReturnCode::INTERNAL_ERROR));
        }
    }

    /// Answers the request that waits, and shows what was done.
    fn end_request(&mut self, context: &mut Context, ending: Ending) {
        let Some(Waiting { ordered, connection, failure, .. }) = self.orders.waiting.take() else { return };
        let answer = match ending {
            Ending::Done => {
                let allocations = self.devices[ordered.device].apply_order(context, &ordered.lds);
                Ok(Response::SetLdAllocations(allocations))
            }
            Ending::Refused(_) | Ending::Unknown(_) => Err(ending.return_code()),
        };
        let bytes = answer_through(&ordered.headers, answer, connection);
        let reply = Reply { connection: connection.id, due_ns: context.now_ns, bytes, is_of_order: true };
        context.outcome.answer(reply, failure.as_ref());
    }
}

/// Returns the message that answers a request, in the tunnels that carried it.
fn answer_through(headers: &[Header], answer: Answer, connection: Connection) -> Vec<u8> {
    let (request, tunnels) = headers.split_first().expect("a request has a header");
    let code = answer.as_ref().err().copied().unwrap_or(ReturnCode::SUCCESS);
    let innermost = Message::answer(request, code, answer.as_ref().ok(), connection.dialect);
    tunnels.iter().fold(innermost.encode(connection.dialect), |message, tunnel| {
        let carried = Response::Tunnel(Tunnelled { message });
        Message::answer(tunnel, ReturnCode::SUCCESS, Some(&carried), connection.dialect).encode(connection.dialect)
    })
}
