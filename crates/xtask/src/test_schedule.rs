// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which test program runs next, beside those that run already. Pure.

/// Test programs that run beside each other. Most of them wait much of the time: for a guest, a donor, a timeout.
pub const LANES: usize = 2;

/// The slow ones, slowest first, so that none of them is the last to end.
const SLOW: &[&str] = &[
    "programs",
    "advice",
    "console",
    "forks",
    "virtual_machines",
    "rdma",
    "far_nodes",
    "older_kernels",
    "donor_loss",
    "packages",
    "transports",
    "attacks",
    "forks_below",
    "stress",
    "torture",
    "process_trees",
    "stacks",
];

/// Test programs of which only one runs at a time, since they take a lock of the whole machine.
const ONE_AT_A_TIME: &[&str] = &["bench_library", "bench_program", "bench_server"];

/// Test programs beside which nothing runs, and why.
const ALONE: &[(&str, &str)] = &[
    ("own_use", "measures the processor time that the library takes"),
    ("set", "changes budgets, and judges how soon a program follows"),
];

/// The order in which test programs start.
pub struct Schedule {
    /// Indices of those that have not started, in the order in which they should.
    waiting: Vec<usize>,
    running: Vec<usize>,
    names: Vec<String>,
}

impl Schedule {
    /// A schedule for test programs with these names: slow ones first, those that run alone last.
    pub fn new(names: Vec<String>) -> Self {
        let slow = |name: &str| SLOW.iter().position(|slow| *slow == name).unwrap_or(SLOW.len());
        let mut waiting: Vec<usize> = (0..names.len()).collect();
        waiting.sort_by_key(|index| (is_alone(&names[*index]), slow(&names[*index]), *index));
        Self { waiting, running: Vec::new(), names }
    }

    /// The index of the next to start now, if one may.
    pub fn start_next(&mut self) -> Option<usize> {
        let at = (0..self.waiting.len()).find(|at| self.may_start(self.waiting[*at]))?;
        let index = self.waiting.remove(at);
        self.running.push(index);
        Some(index)
    }

    /// One that was started has ended.
    pub fn end(&mut self, index: usize) {
        self.running.retain(|running| *running != index);
    }

    /// Whether all have started and ended.
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    fn may_start(&self, index: usize) -> bool {
        let name = self.names[index].as_str();
        let mut running = self.running.iter().map(|index| self.names[*index].as_str());
        if is_alone(name) {
            return self.running.is_empty();
        }
        let is_in_the_way =
            |other: &str| is_alone(other) || (ONE_AT_A_TIME.contains(&name) && ONE_AT_A_TIME.contains(&other));
        self.running.len() < LANES && !running.any(is_in_the_way)
    }
}

fn is_alone(name: &str) -> bool {
    ALONE.iter().any(|(alone, _)| *alone == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(names: &[&str]) -> Schedule {
        Schedule::new(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn slow_ones_start_first_and_all_lanes_are_used() {
        let mut schedule = schedule(&["a", "forks", "b", "programs"]);
        assert_eq!([schedule.start_next(), schedule.start_next(), schedule.start_next()], [Some(3), Some(1), None]);
        schedule.end(3);
        assert_eq!([schedule.start_next(), schedule.start_next()], [Some(0), None]);
        schedule.end(0);
        schedule.end(1);
        assert_eq!(schedule.start_next(), Some(2));
        assert!(!schedule.is_done());
        schedule.end(2);
        assert!(schedule.is_done());
    }

    #[test]
    fn benches_never_run_beside_each_other_and_others_pass_them() {
        let mut schedule = schedule(&["bench_program", "bench_server", "a"]);
        assert_eq!([schedule.start_next(), schedule.start_next()], [Some(0), Some(2)]);
        schedule.end(2);
        assert_eq!(schedule.start_next(), None);
        schedule.end(0);
        assert_eq!(schedule.start_next(), Some(1));
    }

    #[test]
    fn nothing_runs_beside_one_that_runs_alone() {
        let mut schedule = schedule(&["own_use", "a", "set"]);
        assert_eq!([schedule.start_next(), schedule.start_next()], [Some(1), None]);
        schedule.end(1);
        assert_eq!([schedule.start_next(), schedule.start_next()], [Some(0), None]);
        schedule.end(0);
        assert_eq!(schedule.start_next(), Some(2));
    }
}
