// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Tasks: what orders that are stored still have to do until reports show that it is done. Kept in memory, the newest
//! ones; the desired state itself does not need them.

use std::collections::VecDeque;

use aquifer_fabric::{Desired, Millis, Round, Step, VolumeId};

/// Tasks that are kept.
pub(crate) const TASKS_MAX: usize = 512;

/// A task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) id: u64,
    pub(crate) what: String,
    pub(crate) who: String,
    /// Its volume; `None` stands for the whole pool.
    pub(crate) volume: Option<VolumeId>,
    pub(crate) started: Millis,
    pub(crate) ended: Option<Millis>,
}

/// The tasks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks {
    last: u64,
    pub(crate) list: VecDeque<Task>,
}

impl Tasks {
    /// Adds a task and returns its number.
    pub(crate) fn add(&mut self, what: String, who: String, volume: Option<VolumeId>, now: Millis) -> u64 {
        self.last += 1;
        if self.list.len() == TASKS_MAX {
            self.list.pop_front();
        }
        self.list.push_back(Task { id: self.last, what, who, volume, started: now, ended: None });
        self.last
    }

    /// Ends the tasks whose volumes are settled, and returns their texts.
    pub(crate) fn end_settled(&mut self, desired: &Desired, round: &Round, now: Millis) -> Vec<String> {
        let mut ended = Vec::new();
        for task in self.list.iter_mut().filter(|task| task.ended.is_none()) {
            if is_settled(task.volume, desired, round) {
                task.ended = Some(now);
                ended.push(format!("done: {}", task.what));
            }
        }
        ended
    }

    /// Whether a task is not done yet.
    pub(crate) fn is_any_running(&self) -> bool {
        self.list.iter().any(|task| task.ended.is_none())
    }
}

/// Whether a volume, or everything, is as it is desired to be.
pub(crate) fn is_settled(volume: Option<VolumeId>, desired: &Desired, round: &Round) -> bool {
    let Some(id) = volume else {
        let leaving = desired.volumes.values().any(|volume| !volume.leaving.is_empty());
        return round.steps.is_empty() && round.waiting.is_empty() && !leaving;
    };
    let is_waiting = round.waiting.iter().any(|waiting| waiting.volume == id);
    let is_leaving = desired.volumes.get(&id).is_some_and(|volume| !volume.leaving.is_empty());
    // Steps for LDs name no volume, and count for all.
    let is_stepping = round.steps.iter().any(|step| volume_of(step).is_none_or(|of| of == id));
    !is_waiting && !is_leaving && !is_stepping
}

/// The volume of a step, if it names one.
pub(crate) fn volume_of(step: &Step) -> Option<VolumeId> {
    match step {
        Step::AddDynamicCapacity { volume, .. }
        | Step::ForgetLease { volume, .. }
        | Step::ForgetLeft { volume, .. }
        | Step::Grant { volume, .. }
        | Step::Join { volume, .. }
        | Step::Leave { volume, .. }
        | Step::Present { volume, .. }
        | Step::Release { volume, .. }
        | Step::ReleaseDynamicCapacity { volume, .. }
        | Step::Withdraw { volume, .. } => Some(*volume),
        Step::BindVppb { .. } | Step::UnbindVppb { .. } | Step::WipeLd { .. } => None,
    }
}
