// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Tasks: the part of each stored order that reports do not show as done yet. Kept in memory, the newest ones; the
//! desired state itself does not need them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use aquifer_fabric::{Desired, Millis, Round, Step, Volume, VolumeId};

/// Tasks that are kept.
pub(crate) const TASKS_MAX: usize = 512;

/// A change that takes several rounds, as Redfish shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) id: u64,
    pub(crate) what: String,
    pub(crate) who: String,
    /// Its volumes; `None` stands for the whole pool.
    pub(crate) volumes: Option<BTreeSet<VolumeId>>,
    pub(crate) started: Millis,
    pub(crate) ended: Option<Millis>,
    /// The largest amount of work that was left in any round so far.
    left_max: usize,
    /// How much of it is done: 100 when it has ended. It never falls, although further steps may follow from the first.
    pub(crate) percent: u8,
}

impl Task {
    /// Records how much a round has left.
    fn see(&mut self, left: usize) {
        self.left_max = self.left_max.max(left);
        let done = (self.left_max - left) * 100 / self.left_max.max(1);
        self.percent = self.percent.max(u8::try_from(done.min(99)).unwrap_or(99));
    }
}

/// The newest tasks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks {
    last: u64,
    pub(crate) list: VecDeque<Task>,
}

impl Tasks {
    /// Adds a task and returns its number.
    pub(crate) fn add(&mut self, what: String, who: String, volumes: Option<BTreeSet<VolumeId>>, now: Millis) -> u64 {
        self.last += 1;
        if self.list.len() == TASKS_MAX {
            self.drop_one();
        }
        self.list.push_back(Task {
            id: self.last,
            what,
            who,
            volumes,
            started: now,
            ended: None,
            left_max: 0,
            percent: 0,
        });
        self.last
    }

    /// Drops a task of the account that has the most, so that a program with many orders pushes out nobody else's: the
    /// oldest that has ended, or else the oldest.
    fn drop_one(&mut self) {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        self.list.iter().for_each(|task| *counts.entry(&task.who).or_default() += 1);
        let Some((who, _)) = counts.into_iter().max_by_key(|(_, count)| *count) else { return };
        let oldest =
            |is_wanted: &dyn Fn(&Task) -> bool| self.list.iter().position(|task| task.who == who && is_wanted(task));
        let found = oldest(&|task| task.ended.is_some()).or_else(|| oldest(&|_| true));
        found.map(|index| self.list.remove(index));
    }

    /// Ends the tasks whose volumes are settled, and returns their texts.
    pub(crate) fn end_settled(&mut self, desired: &Desired, round: &Round, now: Millis) -> Vec<String> {
        let mut ended = Vec::new();
        for task in self.list.iter_mut().filter(|task| task.ended.is_none()) {
            if are_settled(task.volumes.as_ref(), desired, round) {
                task.ended = Some(now);
                task.percent = 100;
                ended.push(format!("done: {}", task.what));
            } else {
                let left = left(task.volumes.as_ref(), desired, round);
                task.see(left);
            }
        }
        ended
    }

    /// Returns whether a task is not done yet.
    pub(crate) fn is_any_running(&self) -> bool {
        self.list.iter().any(|task| task.ended.is_none())
    }
}

/// Returns whether volumes, or everything, are as they are desired to be.
fn are_settled(volumes: Option<&BTreeSet<VolumeId>>, desired: &Desired, round: &Round) -> bool {
    match volumes {
        None => is_settled(None, desired, round),
        Some(volumes) => volumes.iter().all(|id| is_settled(Some(*id), desired, round)),
    }
}

/// Returns whether a volume, or everything, is as it is desired to be.
pub(crate) fn is_settled(volume: Option<VolumeId>, desired: &Desired, round: &Round) -> bool {
    let Some(id) = volume else {
        let is_leaving = ending(desired).next().is_some();
        return round.steps.is_empty() && round.waiting.is_empty() && !is_leaving;
    };
    let is_waiting = round.waiting.iter().any(|waiting| waiting.volume == id);
    let is_leaving = desired.volumes.get(&id).is_some_and(|volume| !volume.leaving.is_empty());
    // Steps for LDs name no volume, and count for all.
    let is_stepping = round.steps.iter().any(|step| volume_of(step).is_none_or(|of| of == id));
    !is_waiting && !is_leaving && !is_stepping
}

/// Returns the volumes with members that leave.
pub(crate) fn ending(desired: &Desired) -> impl Iterator<Item = (VolumeId, &Volume)> {
    let ending = desired.volumes.ending().filter_map(|id| desired.volumes.get(&id).map(|volume| (id, volume)));
    ending.filter(|(_, volume)| !volume.leaving.is_empty())
}

/// Returns the number of volumes that do not match their desired state: like [`is_settled`] for each, but in one pass.
pub(crate) fn unsettled(desired: &Desired, round: &Round) -> usize {
    let stepping: Vec<Option<VolumeId>> = round.steps.iter().map(volume_of).collect();
    if stepping.contains(&None) {
        return desired.volumes.len();
    }
    let waiting = round.waiting.iter().map(|waiting| waiting.volume);
    let leaving = ending(desired).map(|(id, _)| id);
    let moving: BTreeSet<VolumeId> = stepping.into_iter().flatten().chain(waiting).chain(leaving).collect();
    moving.iter().filter(|id| desired.volumes.contains_key(id)).count()
}

/// Returns how many steps, waits and departures are left for volumes, or for everything.
fn left(volumes: Option<&BTreeSet<VolumeId>>, desired: &Desired, round: &Round) -> usize {
    let is_its = |of: Option<VolumeId>| of.is_none_or(|of| volumes.is_none_or(|volumes| volumes.contains(&of)));
    let steps = round.steps.iter().filter(|step| is_its(volume_of(step))).count();
    let waiting = round.waiting.iter().filter(|waiting| is_its(Some(waiting.volume))).count();
    let leaving = ending(desired).filter(|(id, _)| is_its(Some(*id))).map(|(_, one)| one.leaving.len());
    steps + waiting + leaving.sum::<usize>()
}

/// Returns the volume of a step, if it names one.
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

#[cfg(test)]
mod tests {
    use aquifer_fabric::{MemberId, NO_LD, SpanId};

    use super::*;

    /// The count equals that of calling `is_settled` for each volume.
    #[test]
    fn volumes_that_are_not_settled_are_counted() {
        let spec = r#"{"size": "1GiB", "pool": "main", "zone": "lab", "class": "tcp"}"#;
        let mut desired = Desired::default();
        for id in 1..=5 {
            let volume = Volume {
                name: format!("v{id}").parse().expect("a name"),
                spec: serde_json::from_str(spec).expect("a specification"),
                spans: Vec::new(),
                leaving: BTreeMap::new(),
                host: None,
                released: false,
                next_member: MemberId(1),
                next_span: SpanId(1),
            };
            desired.volumes.insert(VolumeId(id), volume);
        }
        let donor = || "d".parse().expect("a name");
        let step = |id| Step::Release { donor: donor(), volume: VolumeId(id), member: MemberId(1) };
        let wipe = Step::WipeLd { device: "m".parse().expect("a name"), ld_id: NO_LD };
        for steps in [vec![], vec![step(1), step(1), step(4), step(99)], vec![step(2), wipe]] {
            let round = Round { steps, ..Round::default() };
            let one_by_one = desired.volumes.keys().filter(|id| !is_settled(Some(**id), &desired, &round)).count();
            assert_eq!(unsettled(&desired, &round), one_by_one, "{:?}", round.steps);
        }
    }

    #[test]
    fn a_task_of_some_volumes_waits_for_no_other() {
        let (mut tasks, desired) = (Tasks::default(), Desired::default());
        for ids in [[1, 2], [2, 3]] {
            tasks.add(format!("{ids:?}"), "fmapi".into(), Some(ids.map(VolumeId).into()), Millis(1));
        }
        let step = Step::Release { donor: "d".parse().expect("a name"), volume: VolumeId(3), member: MemberId(1) };
        let round = Round { steps: vec![step], ..Round::default() };
        assert_eq!(tasks.end_settled(&desired, &round, Millis(2)), ["done: [1, 2]"]);
        assert_eq!(tasks.end_settled(&desired, &Round::default(), Millis(3)), ["done: [2, 3]"]);
    }

    #[test]
    fn who_gives_many_orders_pushes_out_nobody_elses_tasks() {
        let mut tasks = Tasks::default();
        tasks.add("move".into(), "amy".into(), None, Millis(1));
        for number in 0..2 * TASKS_MAX {
            tasks.add(format!("bind {number}"), "fmapi".into(), Some([VolumeId(1)].into()), Millis(2));
        }
        assert_eq!((tasks.list.len(), tasks.list[0].what.as_str()), (TASKS_MAX, "move"));
        assert_eq!(tasks.list[1].what, format!("bind {}", TASKS_MAX + 1), "the oldest of fmapi goes first");
    }

    #[test]
    fn progress_never_falls_and_is_whole_only_at_the_end() {
        let mut tasks = Tasks::default();
        tasks.add("grow".into(), "admin".into(), None, Millis(1));
        let task = &mut tasks.list[0];
        let seen: Vec<u8> = [8, 6, 9, 3, 0]
            .map(|left| {
                task.see(left);
                task.percent
            })
            .to_vec();
        assert_eq!(seen, [0, 25, 25, 66, 99]);
        tasks.end_settled(&Desired::default(), &Round::default(), Millis(2));
        assert_eq!((tasks.list[0].percent, tasks.list[0].ended), (100, Some(Millis(2))));
    }
}
