// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The writer: the only thread that changes the desired state and sends steps.
//!
//! One round: read reports; drop what has ended; carry out orders; replace failing members; store the result as one
//! transaction; answer the orders; send the steps of the reconciler. A crash anywhere costs a round: what was stored is
//! acted on after the restart, what was not stored never happened.
//!
//! Next on the path: `writer/hearing.rs`, how reports are read; `writer/storing.rs`, how the result is stored;
//! `fabric/src/reconcile.rs`, which steps to send; `peers.rs`, how they are sent.

mod causes;
mod hearing;
mod orders;
mod posted;
mod stop;
mod storing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use aquifer_control::COMMANDS_MAX;
use aquifer_fabric::{
    Backlog, Command, Desired, Edit, End, ExpiryClock, Incarnation, Jump, Millis, Observed, Round, RunningCapacity,
    Step, Term, Topology, Unrepaired, pass_over_ids_in_use, settle_some,
};

use crate::manager_store::{Entry, ManagerStore};
use crate::newest_reports::Unheard;
use crate::order::Order;
use crate::peers::{Peers, SendFailure};
use crate::snapshot::{Snapshot, StepCounts};
use crate::tasks::{Tasks, volume_of};
use crate::tenure::Tenure;
use crate::term_claims::Claims;
use causes::{Causes, begin_order, begin_steps, end_order, end_steps};
use posted::Answer;
pub(crate) use posted::{Done, Posted, Shared};
pub(crate) use stop::Stop;
use storing::{CHANGED_MAX, Draft, Drafts, Said};

/// How soon the next round is useful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Nothing is under way.
    Idle,
    /// New steps were carried out, so the next round begins at once.
    Moving,
    /// Something has to be waited for, such as a report.
    Waiting,
}

/// The state of the thread that alone changes the desired state.
pub(crate) struct Writer {
    shared: Arc<Shared>,
    pub(crate) store: ManagerStore,
    tenure: Tenure,
    peers: Box<dyn Peers>,
    term: Term,
    desired: Desired,
    observed: Observed,
    /// What peers say of greater terms.
    claims: Claims,
    unheard: Unheard,
    /// How many donors and hosts had reported in the last round.
    heard: usize,
    /// When this writer began, and the clock by which volumes expire.
    begun: Instant,
    expiry: ExpiryClock,
    /// What is left to do, and what is free, from round to round.
    backlog: Backlog,
    capacity: RunningCapacity,
    /// The steps of the last round.
    due: Vec<Step>,
    sequences: BTreeMap<End, u64>,
    tasks: Tasks,
    causes: Causes,
    unrepaired: Vec<String>,
    /// How many volumes a round drops, and how many it repairs: fewer while the store takes no larger transaction.
    changed_max: usize,
    /// What the last round gave up because of its size.
    given_up: Option<String>,
    said: Said,
    rounds: u64,
    steps: StepCounts,
    silent_ms: u64,
}

impl Writer {
    /// Takes a term that is greater than those that peers have seen, and reads the first reports; reads the state,
    /// which nobody else changes from then on; waits until no command of an earlier manager can arrive at a switch.
    pub(crate) fn start(
        shared: Arc<Shared>,
        mut store: ManagerStore,
        tenure: Tenure,
        peers: Box<dyn Peers>,
        silent_ms: u64,
        now: Millis,
    ) -> Result<Writer, Stop> {
        let term = store.take_term(peers.term_min())?;
        let mut writer = Writer {
            shared,
            store,
            tenure,
            peers,
            term,
            desired: Desired::default(),
            observed: Observed { asked_since: Some(now), ..Observed::default() },
            claims: Claims::default(),
            unheard: Unheard::default(),
            heard: 0,
            begun: Instant::now(),
            expiry: ExpiryClock::default(),
            backlog: Backlog::default(),
            capacity: RunningCapacity::default(),
            due: Vec::new(),
            sequences: BTreeMap::new(),
            tasks: Tasks::default(),
            causes: Causes::default(),
            unrepaired: Vec::new(),
            changed_max: CHANGED_MAX,
            given_up: None,
            said: Said::default(),
            rounds: 0,
            steps: StepCounts::default(),
            silent_ms,
        };
        writer.expiry.follow(now, 0);
        writer.hear_all(now)?;
        writer.desired = writer.store.reload()?;
        writer.desired.first_member = writer.term.first_member();
        std::thread::sleep(writer.peers.command_time_max());
        writer.store_records(now)?;
        let topology = writer.peers.topology();
        writer.publish(&topology, Round::default());
        Ok(writer)
    }

    /// Runs one round. Answers what was posted, and returns how soon the next round makes sense.
    pub(crate) fn round(&mut self, posted: Vec<Posted>, now: Millis) -> Result<Pace, Stop> {
        let begun = Instant::now();
        self.store.begin_round();
        let mut orders = Vec::new();
        for one in posted {
            match one {
                // The caller of a refused errand has its answer already.
                Posted::Errand(errand) => match errand(&mut self.store) {
                    Err(failure) if !failure.is_refused() => return Err(failure.into()),
                    Ok(()) | Err(_) => {}
                },
                Posted::Order(order, answer) => orders.push((order, answer)),
            }
        }
        let outcome = self.round_of(orders, now);
        self.say_not_stored(now);
        self.shared.meters.count_round(begun.elapsed());
        outcome
    }

    fn round_of(&mut self, orders: Vec<(Order, Answer)>, now: Millis) -> Result<Pace, Stop> {
        self.peers.follow(&self.desired);
        self.hear(now)?;
        self.store_records(now)?;
        let topology = self.peers.topology();
        for notice in self.peers.take_notices() {
            self.shared.events.add(now, notice.kind, severity(notice.severity), notice.message);
        }
        let mut desired = self.desired.clone();
        let heard = self.observed.donors.len() + self.observed.hosts.len();
        if std::mem::replace(&mut self.heard, heard) != heard {
            pass_over_ids_in_use(&mut desired, &self.observed);
        }
        let expire_by = self.time_to_expire_by(now);
        settle_some(&mut desired, &self.observed, expire_by, self.changed_max);
        let mut entries = self.dropped(&desired);
        let settled = Draft { desired: desired.clone(), entries: entries.clone() };
        let (mut answers, mut operations) = (Vec::new(), Vec::new());
        for (order, answer) in orders {
            operations.push(begin_order(&self.shared.telemetry, &order, self.rounds));
            let outcome = self.carry_out(&topology, &mut desired, &order, &mut entries);
            answers.push((order, answer, outcome));
        }
        let ordered = Draft { desired: desired.clone(), entries: entries.clone() };
        self.repair(&topology, &mut desired, &mut entries, now);
        let drafts = Drafts { settled, ordered, repaired: Draft { desired, entries } };
        let entries = self.store_round(drafts, &mut answers, now)?;
        for entry in entries {
            self.shared.events.add(now, "Changed", "OK", format!("{}: {}", entry.who, entry.what));
        }
        for ((order, _, outcome), mut operation) in answers.iter_mut().zip(operations) {
            self.act_at_switch(&topology, order, outcome);
            end_order(&mut operation, outcome);
            if let Ok(done) = outcome {
                self.causes.note(order, &operation, done);
            }
        }
        self.answer(answers, now);
        self.act(&topology, now)
    }

    /// Returns the time by which volumes expire in this round, and says so if the clock has jumped.
    fn time_to_expire_by(&mut self, now: Millis) -> Millis {
        let monotonic_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (expire_by, jump) = self.expiry.follow(now, monotonic_ms);
        if let Some(Jump { by_ms, grace_ms }) = jump {
            let line = format!(
                "the clock of this machine has jumped ahead by {} s: volumes expire by it only in {} min; set the clock \
                 right, or extend the expiry times of volumes that are to stay",
                by_ms / 1000,
                grace_ms / 60_000
            );
            eprintln!("aquifer-fabricd: {line}");
            self.shared.events.add(now, "ClockJumped", "Warning", line);
        }
        expire_by
    }

    /// Returns audit records of the volumes that a settled state no longer has.
    fn dropped(&self, settled: &Desired) -> Vec<Entry> {
        let ids = self.desired.volumes.differences(&settled.volumes).into_iter();
        let gone = ids.filter(|id| !settled.volumes.contains_key(id));
        gone.map(|id| Entry::new("aquifer-fabricd", format!("volume {id} is released and wiped"))).collect()
    }

    /// Replaces failing members.
    fn repair(&mut self, topology: &Arc<Topology>, desired: &mut Desired, entries: &mut Vec<Entry>, now: Millis) {
        self.backlog.follow(desired, &self.observed);
        let capacity = self.capacity.follow(topology, desired, &self.observed);
        let version = desired.version;
        let mut edit = Edit { topology, desired, capacity };
        let ailing = self.backlog.ailing();
        let unrepaired = edit.repair_these(ailing, &self.observed, now, self.silent_ms, self.changed_max);
        if desired.version != version {
            entries.push(Entry::new("aquifer-fabricd", "replace members that are drained, lost or silent"));
        }
        let called = |one: &Unrepaired| {
            let (volume, refusal) = (desired.called(one.volume), &one.refusal);
            format!("member {} of volume {volume} cannot be replaced: {refusal}", one.member)
        };
        self.unrepaired = unrepaired.iter().map(called).collect();
    }

    /// Sends what is due.
    fn act(&mut self, topology: &Arc<Topology>, now: Millis) -> Result<Pace, Stop> {
        self.backlog.follow(&self.desired, &self.observed);
        let round = self.backlog.round();
        let is_heard = !self.is_only_contradicted(topology);
        let steps = in_turn(&round.steps, self.rounds).filter(|_| is_heard);
        let mut commands: Vec<Command> = steps.map(|step| self.command(step.clone())).collect();
        if !self.tenure.is_held() {
            return Err(Stop::LeadershipLost);
        }
        let operations = begin_steps(&self.shared.telemetry, &mut commands);
        let outcomes = self.peers.send(&commands);
        end_steps(operations, &outcomes);
        let is_failure = |failure: &SendFailure| *failure != SendFailure::Pending;
        let are_done = outcomes.iter().all(Result::is_ok);
        let failed = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).filter(|one| is_failure(one)).count();
        self.shared.meters.count_steps(commands.len(), failed);
        for (command, outcome) in commands.iter().zip(outcomes) {
            self.steps.sent += 1;
            if let Err(failure) = outcome
                && is_failure(&failure)
            {
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
        let is_ending = self.desired.volumes.ending().next().is_some();
        let is_busy = !round.steps.is_empty() || !round.waiting.is_empty() || is_ending || self.tasks.is_any_running();
        // A step that is repeated waits for something; one that is new may have made the next one possible.
        let is_moving = !round.steps.is_empty() && round.steps != self.due && are_done;
        self.due.clone_from(&round.steps);
        self.causes.keep_unsettled(&self.desired, &round);
        self.publish(topology, round);
        Ok(match (is_moving, is_busy) {
            (true, _) => Pace::Moving,
            (false, true) => Pace::Waiting,
            (false, false) => Pace::Idle,
        })
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
        let cause = self.causes.of(volume_of(&step));
        let incarnation = incarnation.unwrap_or(Incarnation(0));
        Command { term: self.term, sequence: *sequence, incarnation, step, cause }
    }

    /// Returns the number of rounds in which each peer was asked once, if nothing is awaited.
    pub(crate) fn turns(&self) -> u32 {
        self.peers.turns()
    }

    /// Publishes the states; parts that have not changed are shared with the last snapshot.
    fn publish(&self, topology: &Arc<Topology>, round: Round) {
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
            round: Arc::new(round),
            unrepaired: self.unrepaired.clone(),
            tasks: self.tasks.clone(),
            inventories: self.peers.inventories(),
            faults: self.peers.faults(),
            term: self.term,
            rounds: self.rounds,
            steps: self.steps,
            newest_event: self.shared.events.newest(),
        };
        *self.shared.snapshot.write().expect("a panic ends the daemon") = Arc::new(next);
    }
}

/// Returns a severity as Redfish writes it.
fn severity(of: aquifer_cxl_peers::Severity) -> &'static str {
    match of {
        aquifer_cxl_peers::Severity::Ok => "OK",
        aquifer_cxl_peers::Severity::Warning => "Warning",
        aquifer_cxl_peers::Severity::Critical => "Critical",
    }
}

/// Returns the steps of a round, from another one on in each round: an end takes only the first [`COMMANDS_MAX`], and
/// steps that are refused or wait in each round must not keep the others from it.
fn in_turn(steps: &[Step], rounds: u64) -> impl Iterator<Item = &Step> {
    let turns = steps.len().div_ceil(COMMANDS_MAX).max(1);
    let (first, last) = steps.split_at((rounds % turns as u64) as usize * COMMANDS_MAX);
    last.iter().chain(first)
}
