// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Stores what a round has changed, and says what is given up when the store refuses it.
//!
//! A round is stored as one transaction. If the store takes none of that size, the round is stored without its repair,
//! or else without its orders. A refusal for any other reason concerns every transaction, so that the whole round is
//! given up. Nothing is lost by that: the next round drops and repairs the same volumes again, and the sender of an
//! order gets an error with the remedy.

use aquifer_fabric::{Desired, Millis, VolumeId};

use super::posted::Answer;
use super::{Done, Stop, Writer};
use crate::manager_store::{Entry, ManagerStoreFailure};
use crate::order::{NotDone, Order};
use crate::peers::Record;

/// Maximum number of volumes that one round releases or drops, and of those that it repairs. A volume has some KiB as
/// JSON, and etcd takes 1.5 MB by default.
pub(super) const CHANGED_MAX: usize = 256;
/// Maximum number of records of peers in one transaction: each may have 3 KiB.
const RECORDS_MAX: usize = 128;

/// The desired state after a part of a round, with the audit records of its changes.
#[derive(Clone)]
pub(super) struct Draft {
    pub(super) desired: Desired,
    pub(super) entries: Vec<Entry>,
}

impl Draft {
    fn has_changed(&self, since: &Desired) -> bool {
        self.desired != *since || !self.entries.is_empty()
    }

    fn is_like(&self, other: &Draft) -> bool {
        self.entries.len() == other.entries.len() && self.desired == other.desired
    }
}

/// The drafts of a round. Each has what the one before has.
pub(super) struct Drafts {
    /// What has ended is dropped.
    pub(super) settled: Draft,
    /// Orders are carried out.
    pub(super) ordered: Draft,
    /// Failing members are replaced.
    pub(super) repaired: Draft,
}

/// What the writer has said about the store last, so that it says nothing twice.
#[derive(Debug, Default)]
pub(super) struct Said {
    not_stored: Option<String>,
    not_recorded: Option<String>,
}

impl Writer {
    /// Stores a round, and returns the audit records that are stored with it. Orders that are not stored have failed.
    pub(super) fn store_round(
        &mut self,
        drafts: Drafts,
        answers: &mut [(Order, Answer, Result<Done, NotDone>)],
        now: Millis,
    ) -> Result<Vec<Entry>, Stop> {
        let Drafts { settled, ordered, repaired } = drafts;
        let mut given_up: Vec<VolumeId> = Vec::new();
        let mut refused: Option<ManagerStoreFailure> = None;
        let mut stored = None;
        let mut tried: Option<&Draft> = None;
        for draft in [&repaired, &ordered, &settled] {
            if tried.is_some_and(|before| before.is_like(draft)) {
                continue;
            }
            tried = Some(draft);
            if !draft.has_changed(&self.desired) {
                stored = Some(draft);
                break;
            }
            match self.store.change(&self.desired, &draft.desired, &draft.entries, now) {
                Ok(()) => {
                    stored = Some(draft);
                    break;
                }
                Err(failure) if failure.is_refused() => {
                    let is_too_large = failure.is_too_large();
                    refused = Some(failure);
                    if !is_too_large {
                        break;
                    }
                }
                Err(failure) => return Err(failure.into()),
            }
        }
        let Some(failure) = refused else {
            self.changed_max = (self.changed_max * 2).min(CHANGED_MAX);
            self.given_up = None;
            self.desired = repaired.desired;
            return Ok(repaired.entries);
        };
        if failure.is_too_large() {
            self.changed_max = (self.changed_max / 2).max(1);
        }
        if stored.is_none_or(|draft| !draft.is_like(&ordered)) {
            refuse_orders(answers, &failure);
        }
        if stored.is_none() {
            given_up.extend(self.desired.volumes.differences(&settled.desired.volumes));
        }
        given_up.extend(ordered.desired.volumes.differences(&repaired.desired.volumes));
        self.give_up(&given_up, &failure);
        let Some(draft) = stored.cloned() else { return Ok(Vec::new()) };
        self.desired = draft.desired;
        Ok(draft.entries)
    }

    /// Notes volumes that are neither dropped nor repaired in this round.
    fn give_up(&mut self, volumes: &[VolumeId], failure: &ManagerStoreFailure) {
        let lines = volumes.iter().map(|id| format!("the change of volume {id} is not stored: {failure}"));
        self.unrepaired.extend(lines);
        let line = format!("{} volumes are not dropped or repaired yet: {failure}", volumes.len());
        self.given_up = (!volumes.is_empty()).then_some(line);
    }

    /// Reports what the store refuses, once for each reason. The writer goes on: what is stored is still acted on.
    pub(super) fn say_not_stored(&mut self, now: Millis) {
        let line = self.store.refusal().map(|failure| failure.to_string()).or_else(|| self.given_up.clone());
        if let Some(line) = line.as_ref().filter(|line| self.said.not_stored.as_ref() != Some(*line)) {
            eprintln!("aquifer-fabricd: {line}");
            self.shared.events.add(now, "NotStored", "Critical", line.clone());
        }
        self.said.not_stored = line;
    }

    /// Stores what peers want stored, such as registrations. What is refused is asked for again in the next round.
    pub(super) fn store_records(&mut self, now: Millis) -> Result<(), Stop> {
        let records = self.peers.records();
        if records.is_empty() {
            return Ok(());
        }
        let mut refused = None;
        for part in records.chunks(RECORDS_MAX) {
            if let Err(failure) = self.store_some(part, now) {
                if !failure.is_refused() {
                    return Err(failure.into());
                }
                refused = Some(format!("registrations: {failure}"));
                break;
            }
        }
        match &refused {
            None => self.peers.recorded(),
            Some(line) if self.said.not_recorded != refused => {
                self.shared.events.add(now, "NotRecorded", "Warning", line.clone());
            }
            Some(_) => {}
        }
        self.said.not_recorded = refused;
        Ok(())
    }

    fn store_some(&mut self, records: &[Record], now: Millis) -> Result<(), ManagerStoreFailure> {
        let entries: Vec<Entry> = records.iter().map(|record| Entry::new("aquifer-fabricd", &record.what)).collect();
        let values: Vec<_> = records.iter().map(|record| (record.key.clone(), record.value.clone())).collect();
        self.store.keep(&values, &entries, now)
    }
}

/// Makes the orders of a round fail that would have changed something.
fn refuse_orders(answers: &mut [(Order, Answer, Result<Done, NotDone>)], failure: &ManagerStoreFailure) {
    let is_lost = |order: &Order, outcome: &Result<Done, NotDone>| {
        !order.is_dry_run && outcome.as_ref().is_ok_and(|done| !done.changes.is_empty())
    };
    let count = answers.iter().filter(|(order, _, outcome)| is_lost(order, outcome)).count();
    for (order, _, outcome) in answers {
        if is_lost(order, outcome) {
            *outcome = Err(match failure.is_too_large() {
                false => NotDone::NotStored(failure.to_string()),
                true if count == 1 => NotDone::TooLarge(failure.to_string()),
                true => NotDone::NotStored(format!(
                    "{count} orders that arrived at the same time are together too large for the store; try again"
                )),
            });
        }
    }
}
