// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Drives the switch: carries out its orders at the pool's manager, and lets it take over what the manager has.
//!
//! Threads: all of it runs on one thread, so that a state is never adopted that was read before the last order ended.
//! An order is over when the manager has stored it and, for a bind and an unbind, when the volume has settled. The
//! program may be killed at any point: an order is one request to the manager, and what is stored there is what the
//! next start finds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use aquifer_cxl_switch::{Adopted, AdoptedBinding, Ending, Order, Progress};
use aquifer_cxl_switchd::Server;
use aquifer_fmapi::ReturnCode;
use serde_json::Value;

use crate::adoption::adopted;
use crate::amendment::{Change, Plan, body, plan};
use crate::config::Config;
use crate::labels::{labelled, labels};
use crate::places::Places;
use crate::pool::Pool;
use crate::settling::Wait;
use crate::trouble::Trouble;
use crate::view::{Ld, View};

/// How often the manager is asked whether others have changed something: for a few numbers, however large the pool is.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How often donors, hosts and volumes are read although nothing seems to have changed.
const READ_INTERVAL: Duration = Duration::from_secs(10);
/// How often a volume is looked at that has to settle.
const SETTLE_INTERVAL: Duration = Duration::from_millis(50);
/// How long a label is left alone after it was written, at least.
const LABEL_PAUSE: Duration = Duration::from_secs(5);
/// How long a label is left alone after the manager has refused it.
const LABEL_REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// Labels that are written after one look.
const LABELS_PER_LOOK: usize = 16;
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
    /// Until when labels are left alone.
    labels_wait: BTreeMap<Ld, Instant>,
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
        Self {
            config,
            places,
            pool,
            server,
            orders,
            seen: None,
            shown: Adopted::default(),
            labels_wait: BTreeMap::new(),
        }
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
                    self.note(&order, ending);
                    self.server.conclude(id, ending);
                    self.seen = None;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let was = self.shown.clone();
            let looked = self.look();
            if let Ok(Some(view)) = &looked {
                self.label(view, &was);
            }
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
        self.shown = adopted(&view, &self.places, &self.shown);
        self.server.adopt(&self.shown);
        let is_moving = view.lds().any(|(_, volume)| volume.is_moving());
        self.seen = Some(Seen { at: Instant::now(), summary, is_moving });
        Ok(Some(view))
    }

    /// Notes a bind that is done as shown, so that the next look leaves it at its vPPB.
    fn note(&mut self, order: &Order, ending: Ending) {
        if let (Order::Bind { vcs_id, vppb_id, device, ld_id }, Ending::Done) = (order, ending) {
            let (vcs_id, vppb_id, device, ld_id) = (*vcs_id, *vppb_id, *device, *ld_id);
            self.shown.bindings.retain(|it| (it.device, it.ld_id) != (device, ld_id));
            let progress = Progress::Bound;
            self.shown.bindings.push(AdoptedBinding { vcs_id, vppb_id, device, ld_id, progress });
        }
    }

    fn carry_out(&mut self, order: &Order) -> Ending {
        // Requests to the manager are included. If it does not answer them, the switch may end the order before.
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
            let why = if is_elsewhere { "another pool has a volume of that name; release it" } else { &changed.reason };
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
        self.report(&format!("LD {ld_id} of donor {donor} is still waiting for its host; see 'aquifer fabric status'"));
        Ending::Unknown(ReturnCode::RETRY_REQUIRED)
    }

    /// Writes into the labels of volumes where they are shown, each with a request of its own, so that one that is
    /// refused holds up no other. Nothing waits for it: without it, what somebody else has bound may be at another vPPB
    /// after a restart.
    fn label(&mut self, view: &View, was: &Adopted) {
        let now = Instant::now();
        self.labels_wait.retain(|_, until| *until > now);
        let changes = labels(view, &self.places, was, &self.shown);
        // That a binding is over is seen only once.
        let is_due = |(ld, _, label): &(&Ld, _, Value)| label.is_null() || !self.labels_wait.contains_key(*ld);
        let due = changes.filter(is_due).take(LABELS_PER_LOOK);
        let due: Vec<(Ld, Value)> = due
            .map(|(ld, volume, label)| {
                let change = Change { ld: ld.clone(), change: labelled(label), found: Some(volume) };
                (ld.clone(), body(&[change]))
            })
            .collect();
        for (ld, body) in due {
            let changed = self.pool.change(&body);
            let wait = match changed.ending {
                Ending::Done => label_pause(),
                // Another program has done the same, or the volume has changed: the next look tells.
                _ if changed.is_stale => continue,
                Ending::Refused(ReturnCode::INVALID_INPUT) => LABEL_REFUSED_PAUSE,
                // The manager does not answer, which the next look reports.
                _ => return,
            };
            if wait == LABEL_REFUSED_PAUSE {
                self.report(&format!(
                    "cannot write the vPPB into the label of LD {} of donor {}: {}",
                    ld.1, ld.0, changed.reason
                ));
            }
            self.labels_wait.insert(ld, now + wait);
        }
    }
}

/// Returns how long a label is left alone after it was written. Programs in front of one pool wait for different times,
/// so that two that disagree do not go on for ever.
fn label_pause() -> Duration {
    LABEL_PAUSE + Duration::from_secs(u64::from(std::process::id() % 10))
}
