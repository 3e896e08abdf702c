// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Orders: carried out on the copy of a round, and answered after what they changed was stored.

use std::sync::Arc;

use aquifer_fabric::{Declaration, Desired, Millis, Topology, VolumeId, diff};

use super::posted::Answer;
use super::{Done, Writer};
use crate::accounts::random;
use crate::manager_store::Entry;
use crate::order::{Act, NotDone, Order, change, descriptions};
use crate::tasks::volume_of;

impl Writer {
    /// Carries an order out on the copy of this round.
    pub(super) fn carry_out(
        &mut self,
        topology: &Arc<Topology>,
        desired: &mut Desired,
        order: &Order,
        entries: &mut Vec<Entry>,
    ) -> Result<Done, NotDone> {
        let mut new = desired.clone();
        let draw = || VolumeId(u64::from_le_bytes(random()));
        let capacity = self.capacity.follow(topology, desired, &self.observed);
        let remarks = change(topology, &mut new, &self.observed, capacity, order, draw)?;
        let (before, after) = Declaration::of_both(desired, &new);
        let mut changes: Vec<String> = diff(&before, &after).iter().map(ToString::to_string).collect();
        if changes.is_empty() && new != *desired {
            changes.push(format!("~ {}", order.act));
        }
        let mut done = Done { changes, remarks, version: new.version, ..Done::default() };
        if order.is_dry_run {
            let mut ahead = self.backlog.clone();
            ahead.follow(desired, &self.observed);
            let due = ahead.round().steps;
            ahead.follow(&new, &self.observed);
            let steps = ahead.round().steps;
            let name_of = |id| new.volumes.get(&id).or_else(|| desired.volumes.get(&id)).map(|volume| &volume.name);
            for step in steps.iter().filter(|step| !due.contains(step)) {
                done.steps.push(step.to_string());
                done.named_steps.push(step.with_name(volume_of(step).and_then(name_of)));
            }
        } else if matches!(order.act, Act::Switch(_)) {
            // Its record is stored before the switch gets it.
            entries.push(Entry::new(&order.who, order.act.to_string()));
        } else if new != *desired {
            entries
                .extend(descriptions(&order.act, &done.changes).into_iter().map(|what| Entry::new(&order.who, what)));
            done.volumes = desired.volumes.differences(&new.volumes).into_iter().collect();
            *desired = new;
        }
        if matches!(order.act, Act::Switch(_)) {
            done.changes.push(format!("~ {}", order.act));
        }
        Ok(done)
    }

    /// Sends an order to its switch, after its record was stored.
    pub(super) fn act_at_switch(&mut self, topology: &Topology, order: &Order, outcome: &mut Result<Done, NotDone>) {
        let (Act::Switch(act), Ok(_), false) = (&order.act, &outcome, order.is_dry_run) else { return };
        if self.is_only_contradicted(topology) {
            let why = "every donor and host that answers has seen the greater term of another manager; ask that one";
            *outcome = Err(NotDone::Switch(why.into()));
            return;
        }
        if let Err(failure) = self.peers.act(act) {
            *outcome = Err(NotDone::Switch(failure.to_string()));
        }
    }

    /// Answers orders, after what they changed was stored.
    pub(super) fn answer(&mut self, answers: Vec<(Order, Answer, Result<Done, NotDone>)>, now: Millis) {
        // The backlog follows what was stored, so that nothing looks settled before its steps are sent.
        self.backlog.follow(&self.desired, &self.observed);
        for (order, answer, outcome) in answers {
            let outcome = outcome.map(|mut done| {
                let is_over = matches!(order.act, Act::Switch(_));
                if !order.is_dry_run && !is_over && !done.changes.is_empty() {
                    let is_of_volumes = order.act.volume().is_some() || matches!(order.act, Act::Amend(_));
                    let volumes = is_of_volumes.then(|| done.volumes.iter().copied().collect());
                    let mut texts = descriptions(&order.act, &done.changes).into_iter();
                    let what = texts.next().unwrap_or_default();
                    let what = if texts.next().is_some() { format!("{what}, and more") } else { what };
                    done.task = Some(self.tasks.add(what, order.who.clone(), volumes, now));
                }
                done
            });
            // What an order changed can be read as soon as it is answered.
            self.publish(&self.peers.topology(), self.backlog.round());
            answer(outcome);
        }
    }
}
