// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Drives the switch: carries out its orders at the pool's manager, and lets it take over what the manager has.
//!
//! Threads: all of it runs on one thread, so that a state is never adopted that was read before the last order ended.
//! An order is over when the manager has stored it and, for a bind and an unbind, when the volume has settled. The
//! program may be killed at any point: an order is one request to the manager, and what is stored there is what the
//! next start finds.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use aquifer_cxl_switch::{Ending, Order};
use aquifer_cxl_switchd::{Failure, Server};
use aquifer_fmapi::ReturnCode;

use crate::adoption::adopted;
use crate::amendment::{Plan, plan};
use crate::config::Config;
use crate::places::Places;
use crate::pool::Pool;
use crate::view::Ld;

/// How often the manager is asked for what others have changed.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How often a volume is looked at that has to settle.
const SETTLE_INTERVAL: Duration = Duration::from_millis(50);
/// How long an order may take, requests included; the switch then ends it itself.
pub(crate) const ORDER_WAIT_MAX: Duration = Duration::from_secs(55);
/// How long a start waits for the manager.
const START_WAIT_MAX: Duration = Duration::from_secs(30);

/// Drives a switch.
pub(crate) struct Driver {
    pub config: Config,
    pub places: Places,
    pub pool: Pool,
    pub server: Arc<Server>,
    pub orders: Receiver<(u64, Order)>,
}

/// Writes a line to standard error. Where that is full or closed, the line is lost.
fn report(what: &str) {
    let _ = writeln!(io::stderr(), "aquifer-pool-switchd: {what}");
}

impl Driver {
    /// Lets the switch take over what the manager has, for the first time.
    pub fn start(&mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + START_WAIT_MAX;
        loop {
            match self.adopt() {
                Ok(()) => return Ok(()),
                Err(failure) if Instant::now() >= deadline => return Err(failure),
                Err(_) => std::thread::sleep(LOOK_INTERVAL),
            }
        }
    }

    /// Carries out orders and looks for changes. Returns only when the switch is gone.
    pub fn run(mut self) {
        let mut is_silent = false;
        loop {
            match self.orders.recv_timeout(LOOK_INTERVAL) {
                Ok((id, order)) => {
                    let ending = self.carry_out(&order);
                    self.server.conclude(id, ending);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let looked = self.adopt();
            // Of several failures in a row, only the first one is reported.
            if let (Err(failure), false) = (&looked, is_silent) {
                report(&format!("the switch shows what was last known: {failure}"));
            }
            is_silent = looked.is_err();
        }
    }

    fn adopt(&mut self) -> Result<(), Failure> {
        let view = self.pool.read()?;
        self.server.adopt(&adopted(&view, &self.places, self.config.vppbs));
        Ok(())
    }

    fn carry_out(&mut self, order: &Order) -> Ending {
        let view = match self.pool.read() {
            Ok(view) => view,
            Err(failure) => {
                report(&format!("{order:?} is refused: {failure}"));
                return Ending::Refused(ReturnCode::RETRY_REQUIRED);
            }
        };
        let (body, settles) = match plan(order, &view, &self.places, &self.config) {
            Plan::Ended(ending) => return ending,
            Plan::Request(body, settles) => (body, settles),
        };
        let (ending, reason) = self.pool.change(&body);
        if ending != Ending::Done {
            report(&format!("{order:?} ends with {ending:?}: {}", reason.as_deref().unwrap_or("no reason")));
            return ending;
        }
        settles.map_or(Ending::Done, |ld| self.wait_until_settled(&ld, matches!(order, Order::Bind { .. })))
    }

    /// Waits until a bind or an unbind that is stored is carried out, too.
    fn wait_until_settled(&mut self, ld: &Ld, is_bind: bool) -> Ending {
        let deadline = Instant::now() + Duration::from_secs(self.config.settle_seconds);
        let mut looked = Instant::now();
        while Instant::now() < deadline {
            // The rest of the pool goes on meanwhile. What the order concerns stays as it is in the switch, and a
            // failure is reported when the order has ended.
            if looked.elapsed() >= LOOK_INTERVAL {
                looked = Instant::now();
                let _ = self.adopt();
            }
            // A manager that is silent for a moment changes nothing: it has stored the order.
            if let Ok(found) = self.pool.read_volume(ld) {
                let is_wanted = found.as_ref().is_some_and(|volume| volume.host.is_some());
                let is_leaving = found.as_ref().is_some_and(|volume| volume.is_leaving);
                match found {
                    _ if is_wanted != is_bind => return Ending::Unknown(ReturnCode::INTERNAL_ERROR),
                    Some(volume) if is_bind && volume.is_settled => return Ending::Done,
                    _ if !is_bind && !is_leaving => return Ending::Done,
                    _ => {}
                }
            }
            std::thread::sleep(SETTLE_INTERVAL);
        }
        report(&format!("LD {} of donor {} waits for its host; see 'aquifer fabric status'", ld.1, ld.0));
        Ending::Unknown(ReturnCode::RETRY_REQUIRED)
    }
}
