// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Drives the switch: carries out its orders at the pool's manager, and lets it take over what the manager has.
//!
//! Threads: all of it runs on one thread, so that a state is never adopted that was read before the last order ended.
//! An order is over when the manager has stored it and, for a bind and an unbind, when the volume has settled. The
//! program may be killed at any point: an order is one request to the manager, and what is stored there is what the
//! next start finds.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use aquifer_cxl_switch::{Adopted, Ending, Order};
use aquifer_cxl_switchd::Server;
use aquifer_fmapi::ReturnCode;
use serde_json::Value;

use crate::adoption::adopted;
use crate::amendment::{Plan, plan};
use crate::config::Config;
use crate::labels::labelled;
use crate::places::Places;
use crate::pool::Pool;
use crate::settling::Wait;
use crate::trouble::Trouble;
use crate::view::View;

/// How often the manager is asked whether others have changed something: for a few numbers, however large the pool is.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How often donors, hosts and volumes are read although nothing seems to have changed.
const READ_INTERVAL: Duration = Duration::from_secs(10);
/// How often a volume is looked at that has to settle.
const SETTLE_INTERVAL: Duration = Duration::from_millis(50);
/// How long labels are left alone after a change of them that failed.
const LABELS_INTERVAL: Duration = Duration::from_secs(60);
/// How long an order may take, requests included; the switch then ends it itself.
pub(crate) const ORDER_WAIT_MAX: Duration = Duration::from_secs(55);
/// How long a start waits for the manager.
const START_WAIT_MAX: Duration = Duration::from_secs(30);

/// What was read last.
pub(crate) struct Seen {
    at: Instant,
    /// What the manager had in short just before.
    summary: Value,
    /// True where a volume of a logical device was not yet as it is desired to be.
    is_moving: bool,
}

/// Drives a switch.
pub(crate) struct Driver {
    config: Config,
    places: Places,
    pool: Pool,
    server: Arc<Server>,
    orders: Receiver<(u64, Order)>,
    /// What was read last; none where it may have changed since.
    seen: Option<Seen>,
    /// What the switch has taken over last.
    shown: Adopted,
    /// Until when labels are left alone, because the manager has not changed them.
    labels_wait: Option<Instant>,
}

impl Driver {
    /// Drives a switch at a pool's manager. Orders come from the switch.
    pub fn new(
        config: Config,
        places: Places,
        pool: Pool,
        server: Arc<Server>,
        orders: Receiver<(u64, Order)>,
    ) -> Self {
        Self { config, places, pool, server, orders, seen: None, shown: Adopted::default(), labels_wait: None }
    }

    /// Has a line written to standard error, and does not wait for that.
    fn report(&self, what: &str) {
        self.server.report(what);
    }

    /// Lets the switch take over what the manager has, for the first time.
    pub fn start(&mut self) -> Result<(), Trouble> {
        let deadline = Instant::now() + START_WAIT_MAX;
        loop {
            match self.pool.check().and_then(|()| self.look()) {
                Ok(view) => {
                    let unknown = view.map(|view| self.places.unknown(&view)).unwrap_or_default();
                    unknown.iter().for_each(|line| self.report(line));
                    return Ok(());
                }
                // A manager that starts, too, has none of these.
                Err(trouble) if trouble.is_final || Instant::now() >= deadline => return Err(trouble),
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
                    self.seen = None;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let looked = self.look();
            // Of several failures in a row, only the first one is reported.
            if let (Err(trouble), false) = (&looked, is_silent) {
                self.report(&format!("the switch shows what was last known: {trouble}"));
            }
            is_silent = looked.is_err();
        }
    }

    /// Lets the switch take over what the manager has, if that may have changed. Returns what it has taken over.
    fn look(&mut self) -> Result<Option<View>, Trouble> {
        // Before the rest, so that what changes in between is seen at the next look.
        let summary = self.pool.read_summary()?;
        let is_same = |seen: &Seen| seen.summary == summary && !seen.is_moving && seen.at.elapsed() < READ_INTERVAL;
        if self.seen.as_ref().is_some_and(is_same) {
            return Ok(None);
        }
        self.seen = None;
        let view = self.pool.read()?;
        self.shown = adopted(&view, &self.places, self.config.vppbs, &self.shown);
        self.server.adopt(&self.shown);
        self.label(&view);
        let is_moving = view.lds().any(|(_, volume)| volume.is_moving());
        self.seen = Some(Seen { at: Instant::now(), summary, is_moving });
        Ok(Some(view))
    }

    fn carry_out(&mut self, order: &Order) -> Ending {
        // Requests to the manager are included, so that the switch does not end the order before its driver does.
        let until = Instant::now() + Duration::from_secs(self.config.settle_seconds);
        let view = match self.pool.read() {
            Ok(view) => view,
            Err(trouble) => {
                self.report(&format!("{order:?} is refused: {trouble}"));
                return Ending::Refused(ReturnCode::RETRY_REQUIRED);
            }
        };
        let (body, wait) = match plan(order, &view, &self.places, &self.config) {
            Plan::Ended(ending) => return ending,
            Plan::Request(body, wait) => (body, wait),
        };
        let changed = self.pool.change(&body);
        if changed.ending != Ending::Done {
            let is_elsewhere = changed.is_stale && self.is_still_planned(order, &body);
            let ending = if is_elsewhere { Ending::Refused(ReturnCode::INVALID_INPUT) } else { changed.ending };
            let why =
                if is_elsewhere { "a volume of that name is in another pool; release it" } else { &changed.reason };
            self.report(&format!("{order:?} ends with {ending:?}: {why}"));
            return ending;
        }
        wait.map_or(Ending::Done, |wait| self.wait_until_settled(&wait, until))
    }

    /// Returns whether an order would be the same request again. If the manager has just refused it as based on another
    /// state, what has changed is not to be seen from this pool, and repetitions will not help.
    fn is_still_planned(&mut self, order: &Order, body: &Value) -> bool {
        let Ok(view) = self.pool.read() else { return false };
        matches!(plan(order, &view, &self.places, &self.config), Plan::Request(again, _) if again == *body)
    }

    /// Waits until a bind or an unbind that is stored is carried out, too.
    fn wait_until_settled(&mut self, wait: &Wait, until: Instant) -> Ending {
        let mut looked = Instant::now();
        while Instant::now() < until {
            // The rest of the pool goes on meanwhile. What the order concerns stays as it is in the switch, and a
            // failure is reported when the order has ended.
            if looked.elapsed() >= LOOK_INTERVAL {
                looked = Instant::now();
                let _ = self.look();
            }
            // A manager that is silent for a moment changes nothing: it has stored the order.
            let found = self.pool.read_volume(&wait.ld, &wait.volume_id);
            if let Some(ending) = found.ok().and_then(|found| wait.ending(found.as_ref())) {
                return ending;
            }
            std::thread::sleep(SETTLE_INTERVAL);
        }
        let (donor, ld_id) = &wait.ld;
        self.report(&format!("LD {ld_id} of donor {donor} waits for its host; see 'aquifer fabric status'"));
        Ending::Unknown(ReturnCode::RETRY_REQUIRED)
    }

    /// Writes into the labels of volumes where they are shown. Nothing waits for it: without it, what somebody else has
    /// bound may be at another vPPB after a restart.
    fn label(&mut self, view: &View) {
        if self.labels_wait.is_some_and(|until| Instant::now() < until) {
            return;
        }
        let Some(body) = labelled(view, &self.places, &self.shown) else { return };
        let changed = self.pool.change(&body);
        self.labels_wait = None;
        if changed.ending != Ending::Done {
            self.report(&format!("no vPPB is written into labels: {}", changed.reason));
            self.labels_wait = Some(Instant::now() + LABELS_INTERVAL);
        }
    }
}
