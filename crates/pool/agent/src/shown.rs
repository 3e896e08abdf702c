// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The programs whose statistics are shown to this agent: their launchers have passed descriptors of the segments.
//!
//! Other users may forge a segment. Reading one is safe whatever it contains, and takes a bounded time
//! (`aquifer_stats`). What it says about the program's process is checked, so that no user's statistics appear as those
//! of another user's process, and each process appears once: Prometheus would take one of two samples with the same
//! labels.
//!
//! The faults of all programs are counted for managers, too: by how each program's counts grow while it is shown. So
//! the counts of programs that have ended stay in the sum, and what a forged segment can add to it is bounded
//! (`aquifer_control::Faults`).
//!
//! Threads: one for each launcher (`session.rs`), the one that writes the metrics, and those of the control channels.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use aquifer_agent_wire::Denial;
use aquifer_control::Faults;
use aquifer_exporter::processes::{children, namespaced, pid_here, runs_as, unit_of};
use aquifer_stats::{Gauge, Latencies, SettleTime, Snapshot};

use crate::host_state::share_of;
use crate::session::Peer;

/// Maximum number of programs that are shown. The metrics of so many take about 20 MiB, and a scrape may have 64.
const SHOWN_MAX: usize = 1024;

/// How old a program may be whose faults all count, in whole seconds. A launcher shows its program a second after the
/// start, and after a lost connection not before 5 s have passed: so nothing counts twice. What an older program has
/// counted before it was shown, such as to an agent that was killed, is of the past.
const NEW_S_MAX: u64 = 4;

/// The programs that are shown now, and the faults of all that are or were shown.
#[derive(Debug, Default)]
pub(crate) struct ShownPrograms(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    programs: BTreeMap<Segment, Shown>,
    faults: Faults,
}

/// The device and the inode of a segment.
type Segment = (u64, u64);

/// A program's statistics, and the launcher that shows them.
#[derive(Debug)]
struct Shown {
    launcher: Peer,
    segment: File,
    /// The faults that are counted already, and when they were read.
    counted: Faults,
    counted_at: Instant,
}

impl Shown {
    /// Adds the faults since the last call. Waits for nothing: managers wait for the sum.
    fn count(&mut self, sum: &mut Faults) {
        let Ok(latencies) = aquifer_stats::read_fault_latencies(self.segment.as_fd()) else { return };
        let (faults, now) = (faults_of(&latencies), Instant::now());
        if let Some(grown) = faults.since(&self.counted, now.duration_since(self.counted_at)) {
            sum.add(&grown);
        }
        (self.counted, self.counted_at) = (faults, now);
    }
}

/// Returns the faults of a program, by how long they took.
fn faults_of(latencies: &Latencies) -> Faults {
    let buckets = (0..).zip(latencies.quarters()).filter(|(_, count)| *count > 0).collect();
    Faults { sum_ns: latencies.sum_ns(), buckets }
}

/// Returns whether a program has just started, by its own word.
fn is_new(snapshot: &Snapshot) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    now.saturating_sub(snapshot.gauge(Gauge::StartTimeUnixS)) <= NEW_S_MAX
}

/// A program's place among those that are shown, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    shown: Arc<ShownPrograms>,
    segment: Segment,
}

impl Drop for Place {
    /// The last counts of a program are read when its launcher has seen it end.
    fn drop(&mut self) {
        let mut state = self.shown.lock();
        let State { programs, faults } = &mut *state;
        if let Some(mut shown) = programs.remove(&self.segment) {
            shown.count(faults);
        }
    }
}

impl ShownPrograms {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows a program's statistics until the place is dropped, on a host whose agent serves up to `programs` programs.
    pub(crate) fn show(self: &Arc<Self>, launcher: Peer, segment: OwnedFd, programs: usize) -> Result<Place, Denial> {
        let malformed = |why: String| Denial::Malformed { why };
        if launcher.pid == 0 {
            return Err(malformed("the agent cannot see the program's process".into()));
        }
        let snapshot = aquifer_stats::read(segment.as_fd()).map_err(|failure| malformed(failure.to_string()))?;
        let counted = if is_new(&snapshot) { Faults::default() } else { faults_of(&snapshot.fault_latencies()) };
        let segment = File::from(segment);
        let found = segment.metadata().map_err(|error| malformed(error.to_string()))?;
        let key = (found.dev(), found.ino());
        let max = programs.min(SHOWN_MAX);
        let mut state = self.lock();
        let shown = &mut state.programs;
        let own = shown.values().filter(|shown| shown.launcher.uid == launcher.uid).count();
        if shown.len() >= max || own >= share_of(launcher.uid, max) || shown.contains_key(&key) {
            return Err(Denial::Busy { programs: max });
        }
        shown.insert(key, Shown { launcher, segment, counted, counted_at: Instant::now() });
        Ok(Place { shown: Arc::clone(self), segment: key })
    }

    /// Returns how many programs are shown.
    pub(crate) fn count(&self) -> usize {
        self.lock().programs.len()
    }

    /// Returns the faults of all programs that are or were shown.
    pub(crate) fn faults(&self) -> Faults {
        let mut state = self.lock();
        let State { programs, faults } = &mut *state;
        programs.values_mut().for_each(|shown| shown.count(faults));
        faults.clone()
    }

    /// Returns the present numbers of each program, with its systemd unit. The wait for segments whose writers have
    /// died is bounded for all of them together.
    pub(crate) fn read(&self) -> Vec<(Snapshot, Option<String>)> {
        let timeout = SettleTime::default();
        let read =
            |shown: &Shown| Some((aquifer_stats::read_in(shown.segment.as_fd(), &timeout).ok()?, shown.launcher));
        let mut snapshots: Vec<(Snapshot, Peer)> = self.lock().programs.values().filter_map(read).collect();
        // Always in the same order, so that a process that two segments name is always that of the same one.
        snapshots.sort_by_key(|(_, launcher)| launcher.pid);
        let mut taken = BTreeSet::new();
        let named = snapshots.into_iter().filter_map(|(mut snapshot, launcher)| {
            let program = match snapshot.pid() {
                Some(written) => process_of(written, launcher),
                // It has not written anything yet.
                None => children(launcher.pid).first().copied(),
            };
            let pid = [program, Some(launcher.pid)].into_iter().flatten().find(|pid| taken.insert(*pid))?;
            snapshot.set_pid(Some(pid));
            Some((snapshot, unit_of(pid)))
        });
        named.collect()
    }
}

/// Returns the process of a program whose segment says that it has the number `written`; `None` if it is not the
/// launcher's user's.
fn process_of(written: u32, launcher: Peer) -> Option<u32> {
    let mut holders = children(launcher.pid);
    holders.push(launcher.pid);
    let pid = pid_here(written, &holders, namespaced)?;
    (launcher.uid == 0 || runs_as(pid, launcher.uid)).then_some(pid)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::Ordering;

    use aquifer_stats::{Counters, FaultKind};
    use aquifer_sys::shared_segment::SharedSegment;

    use super::*;

    /// The words of all latencies in a segment, which a golden file of `aquifer_stats` pins.
    const LATENCIES: Range<usize> = 286..2406;

    fn own_uid() -> u32 {
        std::fs::metadata("/proc/self").unwrap().uid()
    }

    fn peer(uid: u32) -> Peer {
        Peer { uid, gid: 0, pid: std::process::id() }
    }

    fn segment(counters: &Counters) -> OwnedFd {
        counters.descriptor().unwrap().try_clone_to_owned().unwrap()
    }

    #[test]
    fn statistics_are_shown_until_their_place_is_dropped() {
        let shown = Arc::new(ShownPrograms::default());
        let counters = Counters::create().unwrap();
        let place = shown.show(peer(own_uid()), segment(&counters), 8).unwrap();
        assert_eq!((shown.count(), shown.read()[0].0.pid()), (1, Some(std::process::id())));
        let again = shown.show(peer(own_uid()), segment(&counters), 8);
        assert_eq!(again.err(), Some(Denial::Busy { programs: 8 }), "it is shown already");
        drop(place);
        assert_eq!((shown.count(), shown.read().len()), (0, 0));
    }

    #[test]
    fn only_statistics_are_shown_and_no_user_takes_every_place() {
        let shown = Arc::new(ShownPrograms::default());
        let file = OwnedFd::from(File::open("/dev/null").unwrap());
        assert!(matches!(shown.show(peer(5), file, 4), Err(Denial::Malformed { .. })));
        let many: Vec<Counters> = (0..5).map(|_| Counters::create().unwrap()).collect();
        let unseen = Peer { pid: 0, ..peer(5) };
        assert!(matches!(shown.show(unseen, segment(&many[0]), 4), Err(Denial::Malformed { .. })));
        let places: Vec<Place> =
            many.iter().map_while(|counters| shown.show(peer(5), segment(counters), 4).ok()).collect();
        assert_eq!(places.len(), 3);
        let last = shown.show(peer(6), segment(&many[3]), 4).unwrap();
        assert!(shown.show(peer(0), segment(&many[4]), 4).is_err(), "four places are taken");
        drop(last);
    }

    /// Another user's process, or one that another segment has named, is not this program.
    #[test]
    fn a_segment_cannot_appear_as_a_process_of_another_user_or_program() {
        let shown = Arc::new(ShownPrograms::default());
        let (first, second) = (Counters::create().unwrap(), Counters::create().unwrap());
        for counters in [&first, &second] {
            counters.set(Gauge::Pid, 1);
        }
        let places = [&first, &second].map(|counters| shown.show(peer(own_uid() + 1), segment(counters), 8).unwrap());
        // Both name process 1, which is another user's; their launcher is the same process, which is named once.
        let pids: Vec<Option<u32>> = shown.read().iter().map(|(snapshot, _)| snapshot.pid()).collect();
        assert_eq!(pids, [Some(std::process::id())]);
        drop(places);
    }

    /// Returns statistics of a program that started at this time.
    fn started(at: u64) -> Counters {
        let counters = Counters::create().unwrap();
        counters.set(Gauge::StartTimeUnixS, at);
        counters
    }

    fn now_s() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
    }

    #[test]
    fn the_faults_of_programs_that_have_ended_stay_in_the_sum() {
        let shown = Arc::new(ShownPrograms::default());
        let (first, second) = (started(now_s()), started(now_s()));
        // What a program has counted in its first second counts, too.
        first.record(FaultKind::Fetch, 9000);
        let places = [&first, &second].map(|counters| shown.show(peer(own_uid()), segment(counters), 8).unwrap());
        second.record(FaultKind::Fresh, 30_000);
        assert_eq!((shown.faults().count(), shown.faults().sum_ns), (2, 39_000));
        first.record(FaultKind::Wait, 1_000_000);
        drop(places);
        let sum = shown.faults();
        assert_eq!((sum.count(), sum.sum_ns), (3, 1_039_000));
        // Its counts are in buckets of the same bounds: each time is within its own by less than a quarter.
        for (share, us) in [(0.3, 9.0), (0.6, 30.0), (1.0, 1000.0)] {
            let found = sum.quantile_us(share).unwrap();
            assert!((found - us).abs() <= us / 4.0, "{found}, not {us}");
        }
    }

    #[test]
    fn what_an_older_program_has_counted_before_is_of_the_past() {
        let shown = Arc::new(ShownPrograms::default());
        let old = started(now_s() - 60);
        old.record(FaultKind::Fetch, 9000);
        let place = shown.show(peer(own_uid()), segment(&old), 8).unwrap();
        assert_eq!(shown.faults().count(), 0);
        old.record(FaultKind::Fetch, 9000);
        assert_eq!(shown.faults().count(), 1);
        drop(place);
        let _again = shown.show(peer(own_uid()), segment(&old), 8).unwrap();
        assert_eq!(shown.faults().count(), 1, "nothing counts twice");
    }

    #[test]
    fn forged_counts_are_left_out_and_those_that_fall_have_begun_again() {
        let shown = Arc::new(ShownPrograms::default());
        let (honest, forger) = (started(now_s()), started(now_s()));
        let _places = [&honest, &forger].map(|counters| shown.show(peer(own_uid()), segment(counters), 8).unwrap());
        let words = SharedSegment::attach_inherited(forger.descriptor().unwrap().as_raw_fd()).unwrap();
        let write = |count| words.words()[LATENCIES].iter().for_each(|word| word.store(count, Ordering::Relaxed));
        for count in [u64::MAX, 0, u64::MAX / 600, 1 << 40] {
            write(count);
            honest.record(FaultKind::Fetch, 9000);
            shown.faults();
        }
        assert_eq!(shown.faults().count(), 4);
        write(0);
        forger.record(FaultKind::Fetch, 9000);
        assert_eq!(shown.faults().count(), 5);
    }
}
