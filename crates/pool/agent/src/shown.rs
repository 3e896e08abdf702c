// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The programs whose statistics are shown to this agent: their launchers have passed descriptors of the segments.
//!
//! Other users may forge a segment. Reading one is safe whatever it contains, and takes a bounded time
//! (`aquifer_stats`). What it says about the program's process is checked, so that no user's statistics appear as those
//! of another user's process, and each process appears once: Prometheus would take one of two samples with the same
//! labels.
//!
//! Threads: one for each launcher (`session.rs`), and the one that writes the metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aquifer_agent_wire::Denial;
use aquifer_exporter::processes::{children, namespaced, pid_here, runs_as, unit_of};
use aquifer_stats::{SettleTime, Snapshot};

use crate::host_state::share_of;
use crate::session::Peer;

/// Maximum number of programs that are shown. The metrics of so many take about 20 MiB, and a scrape may have 64.
const SHOWN_MAX: usize = 1024;

/// The programs that are shown now.
#[derive(Debug, Default)]
pub(crate) struct ShownPrograms(Mutex<BTreeMap<Segment, Shown>>);

/// The device and the inode of a segment.
type Segment = (u64, u64);

/// A program's statistics, and the launcher that shows them.
#[derive(Debug)]
struct Shown {
    launcher: Peer,
    segment: File,
}

/// A program's place among those that are shown, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    shown: Arc<ShownPrograms>,
    segment: Segment,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shown.lock().remove(&self.segment);
    }
}

impl ShownPrograms {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Segment, Shown>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows a program's statistics until the place is dropped, on a host whose agent serves up to `programs` programs.
    pub(crate) fn show(self: &Arc<Self>, launcher: Peer, segment: OwnedFd, programs: usize) -> Result<Place, Denial> {
        let malformed = |why: String| Denial::Malformed { why };
        if launcher.pid == 0 {
            return Err(malformed("the agent cannot see the program's process".into()));
        }
        aquifer_stats::read(segment.as_fd()).map_err(|failure| malformed(failure.to_string()))?;
        let segment = File::from(segment);
        let found = segment.metadata().map_err(|error| malformed(error.to_string()))?;
        let key = (found.dev(), found.ino());
        let max = programs.min(SHOWN_MAX);
        let mut shown = self.lock();
        let own = shown.values().filter(|shown| shown.launcher.uid == launcher.uid).count();
        if shown.len() >= max || own >= share_of(launcher.uid, max) || shown.contains_key(&key) {
            return Err(Denial::Busy { programs: max });
        }
        shown.insert(key, Shown { launcher, segment });
        Ok(Place { shown: Arc::clone(self), segment: key })
    }

    /// Returns how many programs are shown.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Returns the present numbers of each program, with its systemd unit. The wait for segments whose writers have
    /// died is bounded for all of them together.
    pub(crate) fn read(&self) -> Vec<(Snapshot, Option<String>)> {
        let timeout = SettleTime::default();
        let read =
            |shown: &Shown| Some((aquifer_stats::read_in(shown.segment.as_fd(), &timeout).ok()?, shown.launcher));
        let mut snapshots: Vec<(Snapshot, Peer)> = self.lock().values().filter_map(read).collect();
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
    use aquifer_stats::{Counters, Gauge};

    use super::*;

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
}
