// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The writer: the only thread that changes the desired state and sends steps.
//!
//! One round: read reports; drop what has ended; carry out orders; replace failing members; store the result as one
//! transaction; answer the orders; send the steps of the reconciler. A crash anywhere costs a round: what was stored is
//! acted on after the restart, what was not stored never happened.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Instant;

use aquifer_fabric::{
    Capacity, Command, Declaration, Desired, Edit, End, Incarnation, Millis, Observed, Step, Term, VolumeId, diff,
    reconcile, settle,
};

use crate::accounts::random;
use crate::events::Events;
use crate::ledger::{Entry, Ledger, LedgerFailure};
use crate::merge::{Merged, merge};
use crate::meters::Meters;
use crate::order::{Act, NotDone, Order, change};
use crate::peers::Peers;
use crate::snapshot::{Snapshot, StepCounts};
use crate::subscriptions::Subscriptions;
use crate::tasks::Tasks;
use crate::tenure::Tenure;

/// Maximum number of terms that a start tries, each greater than what the peers have seen.
const ELECTIONS_MAX: usize = 16;

/// What runs with the store.
pub(crate) type Errand = Box<dyn FnOnce(&mut Ledger) -> Result<(), LedgerFailure> + Send>;
/// What takes the answer to an order.
type Answer = Box<dyn FnOnce(Result<Done, NotDone>) + Send>;

/// Why the writer ends.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Another manager has a greater term.
    Deposed { seen: Term },
    /// A signal ends this manager.
    Ended,
    /// The store failed.
    Ledger(LedgerFailure),
    /// The leadership of the leader was not kept alive in time.
    LeadershipLost,
}

impl Stop {
    /// Whether this manager or another one may lead afterwards.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Deposed { .. } | Self::LeadershipLost => true,
            Self::Ended => false,
            Self::Ledger(failure) => failure.may_pass(),
        }
    }
}

impl From<LedgerFailure> for Stop {
    fn from(failure: LedgerFailure) -> Stop {
        Stop::Ledger(failure)
    }
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Deposed { seen } => {
                write!(f, "another fabric manager has term {seen}; stop one of the two, then start again")
            }
            Self::Ended => f.write_str("a signal ends this manager; start it again"),
            Self::Ledger(failure) => failure.fmt(f),
            Self::LeadershipLost => {
                f.write_str("the lease in etcd was not renewed in time; check the members and the network")
            }
        }
    }
}

/// A request to the writer.
pub(crate) enum Posted {
    /// What needs the store and not the pool: accounts, sessions, the audit log. An error is the store's.
    Errand(Errand),
    /// An order, with the function that takes the answer.
    Order(Order, Answer),
}

/// What became of an order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// Changes to pools, zones and volumes.
    pub(crate) changes: Vec<String>,
    /// Steps that become due.
    pub(crate) steps: Vec<String>,
    /// What could not be adopted.
    pub(crate) remarks: Vec<String>,
    /// The version of the desired state after it.
    pub(crate) version: u64,
    pub(crate) task: Option<u64>,
}

/// What the writer shares with requests.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) snapshot: RwLock<Arc<Snapshot>>,
    pub(crate) events: Events,
    pub(crate) meters: Arc<Meters>,
    subscriptions: Mutex<Subscriptions>,
}

impl Shared {
    /// The subscriptions to events. Locked only for one lookup, never while waiting for the store or a listener.
    pub(crate) fn subscriptions(&self) -> MutexGuard<'_, Subscriptions> {
        self.subscriptions.lock().expect("a panic ends the daemon")
    }

    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read().expect("a panic ends the daemon"))
    }
}

/// The writer.
pub(crate) struct Writer {
    shared: Arc<Shared>,
    pub(crate) ledger: Ledger,
    tenure: Tenure,
    peers: Box<dyn Peers>,
    term: Term,
    desired: Desired,
    observed: Observed,
    sequences: BTreeMap<End, u64>,
    tasks: Tasks,
    unrepaired: Vec<String>,
    rounds: u64,
    steps: StepCounts,
    silent_ms: u64,
}

impl Writer {
    /// Takes a term that all peers accept, reads the state that nobody else changes from then on, waits until no
    /// command of an earlier manager can arrive at a switch, and reads the first reports.
    pub(crate) fn start(
        shared: Arc<Shared>,
        mut ledger: Ledger,
        tenure: Tenure,
        mut peers: Box<dyn Peers>,
        silent_ms: u64,
        now: Millis,
    ) -> Result<Writer, Stop> {
        let mut observed = Observed::default();
        let mut seen = peers.term_min();
        let mut term = Term(0);
        for _ in 0..ELECTIONS_MAX {
            term = ledger.take_term(seen)?;
            let merged = merge(&mut observed, peers.reports(term), now);
            match merged.deposed_by.max(merged.outrun_by) {
                None => {
                    let desired = ledger.reload()?;
                    std::thread::sleep(peers.command_time_max());
                    let (sequences, tasks) = (BTreeMap::new(), Tasks::default());
                    let (unrepaired, rounds, steps) = (Vec::new(), 0, StepCounts::default());
                    let mut writer = Writer {
                        shared,
                        ledger,
                        tenure,
                        peers,
                        term,
                        desired,
                        observed,
                        sequences,
                        tasks,
                        unrepaired,
                        rounds,
                        steps,
                        silent_ms,
                    };
                    writer.store_records(now)?;
                    let topology = writer.peers.topology();
                    writer.publish(&topology, Some(aquifer_fabric::Round::default()));
                    return Ok(writer);
                }
                Some(greater) => seen = greater,
            }
        }
        Err(Stop::Deposed { seen: seen.max(term) })
    }

    /// Reads reports. If one that reports for the first time has seen a greater term, this takes a still greater one.
    fn hear(&mut self, now: Millis) -> Result<Merged, Stop> {
        let mut merged = merge(&mut self.observed, self.peers.reports(self.term), now);
        for _ in 0..ELECTIONS_MAX {
            match (merged.deposed_by, merged.outrun_by) {
                (Some(seen), _) => return Err(Stop::Deposed { seen }),
                (None, None) => return Ok(merged),
                (None, Some(seen)) => self.term = self.ledger.take_term(seen)?,
            }
            self.sequences.clear();
            let again = merge(&mut self.observed, self.peers.reports(self.term), now);
            merged.notices.extend(again.notices);
            (merged.deposed_by, merged.outrun_by) = (again.deposed_by, again.outrun_by);
        }
        Err(Stop::Deposed { seen: merged.outrun_by.unwrap_or(self.term) })
    }

    /// Stores what peers want stored, such as registrations. What is too large is asked for again in the next round.
    fn store_records(&mut self, now: Millis) -> Result<(), Stop> {
        let records = self.peers.records();
        if records.is_empty() {
            return Ok(());
        }
        let entries: Vec<Entry> = records.iter().map(|record| Entry::new("aquifer-fabricd", &record.what)).collect();
        let values: Vec<_> = records.into_iter().map(|record| (record.key, record.value)).collect();
        match self.ledger.keep(&values, &entries, now) {
            Ok(()) => self.peers.recorded(),
            Err(failure) if failure.is_too_large() => {
                self.shared.events.add(now, "NotRecorded", "Warning", format!("registrations: {failure}"));
            }
            Err(failure) => return Err(failure.into()),
        }
        Ok(())
    }

    /// One round. Answers what was posted, and returns whether anything is still under way.
    pub(crate) fn round(&mut self, posted: Vec<Posted>, now: Millis) -> Result<bool, Stop> {
        let begun = Instant::now();
        let mut orders = Vec::new();
        for one in posted {
            match one {
                Posted::Errand(errand) => errand(&mut self.ledger)?,
                Posted::Order(order, answer) => orders.push((order, answer)),
            }
        }
        let outcome = self.round_of(orders, now);
        self.shared.meters.count_round(begun.elapsed());
        outcome
    }

    fn round_of(&mut self, orders: Vec<(Order, Answer)>, now: Millis) -> Result<bool, Stop> {
        self.peers.follow(&self.desired);
        let merged = self.hear(now)?;
        self.store_records(now)?;
        let topology = self.peers.topology();
        for (answers, what) in merged.notices {
            let (kind, severity) = if answers { ("PeerAnswers", "OK") } else { ("PeerSilent", "Warning") };
            self.shared.events.add(now, kind, severity, what);
        }
        for notice in self.peers.take_notices() {
            self.shared.events.add(now, notice.kind, severity(notice.severity), notice.message);
        }
        let mut desired = self.desired.clone();
        let mut entries = Vec::new();
        let before: Vec<VolumeId> = desired.volumes.keys().copied().collect();
        settle(&mut desired, &self.observed, now);
        for id in before.iter().filter(|id| !desired.volumes.contains_key(*id)) {
            entries.push(Entry::new("aquifer-fabricd", format!("volume {id} is released and wiped")));
        }
        let mut answers = Vec::new();
        for (order, answer) in orders {
            let outcome = self.carry_out(&topology, &mut desired, &order, &mut entries);
            answers.push((order, answer, outcome));
        }
        let mut capacity = Capacity::new(&topology, &desired, &self.observed);
        let version = desired.version;
        let mut edit = Edit { topology: &topology, desired: &mut desired, capacity: &mut capacity };
        let unrepaired = edit.repair(&self.observed, now, self.silent_ms);
        if desired.version != version {
            entries.push(Entry::new("aquifer-fabricd", "replace members that are drained, lost or silent"));
        }
        self.unrepaired = unrepaired
            .iter()
            .map(|one| format!("member {} of volume {} cannot be replaced: {}", one.member, one.volume, one.refusal))
            .collect();
        if desired != self.desired || !entries.is_empty() {
            match self.ledger.change(&self.desired, &desired, &entries, now) {
                Ok(()) => self.desired = desired,
                Err(failure) if failure.is_too_large() => {
                    // The store is as before, and so is the desired state: the orders of this round are refused.
                    entries.clear();
                    let line = failure.to_string();
                    answers.iter_mut().for_each(|(_, _, outcome)| *outcome = Err(NotDone::TooLarge(line.clone())));
                }
                Err(failure) => return Err(failure.into()),
            }
        }
        for entry in entries {
            self.shared.events.add(now, "Changed", "OK", format!("{}: {}", entry.who, entry.what));
        }
        for (order, _, outcome) in &mut answers {
            self.act_at_switch(order, outcome);
        }
        self.answer(answers, now);
        self.act(&topology, now)
    }

    /// Carries an order out on the copy of this round.
    fn carry_out(
        &self,
        topology: &aquifer_fabric::Topology,
        desired: &mut Desired,
        order: &Order,
        entries: &mut Vec<Entry>,
    ) -> Result<Done, NotDone> {
        let mut new = desired.clone();
        let draw = || VolumeId(u64::from_le_bytes(random()));
        let outcome = change(topology, &mut new, &self.observed, order, draw);
        let not_adopted = match outcome {
            Ok(not_adopted) => not_adopted,
            Err(not) => {
                return Err(not);
            }
        };
        let changes = diff(&Declaration::of(desired), &Declaration::of(&new));
        let mut changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
        if changes.is_empty() && new != *desired {
            changes.push(format!("~ {}", order.act));
        }
        let mut done = Done {
            changes,
            remarks: not_adopted.iter().map(ToString::to_string).collect(),
            version: new.version,
            ..Done::default()
        };
        if order.is_dry_run {
            let due = reconcile(desired, &self.observed).steps;
            let steps = reconcile(&new, &self.observed).steps;
            done.steps = steps.iter().filter(|step| !due.contains(step)).map(ToString::to_string).collect();
        } else if matches!(order.act, Act::Switch(_)) {
            // Its record is stored before the switch gets it.
            entries.push(Entry::new(&order.who, order.act.to_string()));
        } else if new != *desired {
            entries.push(Entry::new(&order.who, order.act.to_string()));
            *desired = new;
        }
        if matches!(order.act, Act::Switch(_)) {
            done.changes.push(format!("~ {}", order.act));
        }
        Ok(done)
    }

    /// Sends an order to its switch, after its record was stored.
    fn act_at_switch(&mut self, order: &Order, outcome: &mut Result<Done, NotDone>) {
        let (Act::Switch(act), Ok(_), false) = (&order.act, &outcome, order.is_dry_run) else { return };
        if let Err(failure) = self.peers.act(act) {
            *outcome = Err(NotDone::Switch(failure.to_string()));
        }
    }

    /// Answers orders, after what they changed was stored.
    fn answer(&mut self, answers: Vec<(Order, Answer, Result<Done, NotDone>)>, now: Millis) {
        for (order, answer, outcome) in answers {
            let outcome = outcome.map(|mut done| {
                let is_over = matches!(order.act, Act::Switch(_));
                if !order.is_dry_run && !is_over && !done.changes.is_empty() {
                    let volume = order.act.volume().and_then(|name| self.desired.volume_named(name));
                    let volume = volume.map(|(id, _)| id);
                    done.task = Some(self.tasks.add(order.act.to_string(), order.who.clone(), volume, now));
                }
                done
            });
            // What an order changed can be read as soon as it is answered.
            self.publish(&self.peers.topology(), None);
            answer(outcome);
        }
    }

    /// Sends what is due. Returns whether anything is under way.
    fn act(&mut self, topology: &Arc<aquifer_fabric::Topology>, now: Millis) -> Result<bool, Stop> {
        let round = reconcile(&self.desired, &self.observed);
        let commands: Vec<Command> = round.steps.iter().map(|step| self.command(step.clone())).collect();
        if !self.tenure.is_held() {
            return Err(Stop::LeadershipLost);
        }
        let outcomes = self.peers.send(&commands);
        let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        self.shared.meters.count_steps(commands.len(), failed);
        for (command, outcome) in commands.iter().zip(outcomes) {
            self.steps.sent += 1;
            if let Err(failure) = outcome {
                self.steps.failed += 1;
                let what = format!("{}: {failure}", command.step);
                self.shared.events.add(now, "StepFailed", "Warning", what);
            }
            if let End::Device(device) = command.step.end() {
                // Its report is out of date now.
                self.observed.devices.remove(&device);
            }
        }
        self.rounds += 1;
        for what in self.tasks.end_settled(&self.desired, &round, now) {
            self.shared.events.add(now, "TaskDone", "OK", what);
        }
        let leaving = self.desired.volumes.values().any(|volume| volume.released || !volume.leaving.is_empty());
        let is_busy = !round.steps.is_empty() || !round.waiting.is_empty() || leaving || self.tasks.is_any_running();
        self.publish(topology, Some(round));
        Ok(is_busy)
    }

    fn command(&mut self, step: Step) -> Command {
        let end = step.end();
        let incarnation = match &end {
            End::Donor(name) => self.observed.donors.get(name).map(|report| report.incarnation),
            End::Host(name) => self.observed.hosts.get(name).map(|report| report.incarnation),
            End::Device(_) => None,
        };
        let sequence = self.sequences.entry(end).or_default();
        *sequence += 1;
        Command { term: self.term, sequence: *sequence, incarnation: incarnation.unwrap_or(Incarnation(0)), step }
    }

    /// Publishes the states; parts that have not changed are shared with the last snapshot.
    fn publish(&self, topology: &Arc<aquifer_fabric::Topology>, round: Option<aquifer_fabric::Round>) {
        let last = self.shared.snapshot();
        let desired = match *last.desired == self.desired {
            true => Arc::clone(&last.desired),
            false => Arc::new(self.desired.clone()),
        };
        let observed = match *last.observed == self.observed {
            true => Arc::clone(&last.observed),
            false => Arc::new(self.observed.clone()),
        };
        let next = Snapshot {
            topology: Arc::clone(topology),
            desired,
            observed,
            round: round.map_or_else(|| Arc::clone(&last.round), Arc::new),
            unrepaired: self.unrepaired.clone(),
            tasks: self.tasks.clone(),
            inventories: self.peers.inventories(),
            term: self.term,
            rounds: self.rounds,
            steps: self.steps,
        };
        *self.shared.snapshot.write().expect("a panic ends the daemon") = Arc::new(next);
    }
}

/// A severity as Redfish writes it.
fn severity(of: aquifer_cxl_peers::Severity) -> &'static str {
    match of {
        aquifer_cxl_peers::Severity::Ok => "OK",
        aquifer_cxl_peers::Severity::Warning => "Warning",
        aquifer_cxl_peers::Severity::Critical => "Critical",
    }
}
