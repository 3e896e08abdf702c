// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a manager knows of the faults on its hosts: for each host, how its counts have grown between the two newest
//! answers of its agent. Pure.
//!
//! Agents are asked at different times. So the rate of the pool is the sum of the hosts' rates, each over the host's
//! own interval, and does not rise and fall with the times at which answers happen to come.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::faults::Faults;
use crate::registration::EndId;

/// How old the newest answer of an agent may be, and how long the interval before it: twice the longest time between
/// two questions (`channel.rs`).
const AGE_MAX: Duration = Duration::from_secs(20);
/// How long figures are kept for those who ask, since every round does.
const KEPT: Duration = Duration::from_secs(1);

/// The faults of programs, as the agents of their hosts have counted them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultFigures {
    /// The number of hosts whose agents have given figures lately.
    pub hosts: usize,
    /// The faults of these hosts in a second.
    pub per_second: f64,
    /// The faults of these hosts in their newest intervals, which are 5 to 10 seconds long.
    pub newest: Faults,
    /// All faults that agents have counted since the manager began to ask.
    pub total: Faults,
}

/// The newest counts of one host.
#[derive(Debug)]
struct Host {
    counts: Faults,
    at: Instant,
    /// The growth in the interval before these counts, and its length.
    interval: Option<(Faults, Duration)>,
}

/// The newest counts of all hosts, and the growth of all of them.
#[derive(Debug, Default)]
pub(crate) struct Measurements {
    hosts: BTreeMap<EndId, Host>,
    total: Faults,
    kept: Option<(Instant, Arc<FaultFigures>)>,
}

impl Measurements {
    /// Takes the answer of an agent; `None` if it has no figures.
    pub(crate) fn take(&mut self, host: &EndId, counts: Option<Faults>, now: Instant) {
        let before = self.hosts.remove(host);
        let Some(counts) = counts else { return };
        let interval = before.and_then(|before| {
            let elapsed = now.saturating_duration_since(before.at);
            let grown = counts.since(&before.counts, elapsed)?;
            self.total.add(&grown);
            (elapsed <= AGE_MAX).then_some((grown, elapsed))
        });
        self.hosts.insert(host.clone(), Host { counts, at: now, interval });
    }

    /// Forgets a host.
    pub(crate) fn forget(&mut self, host: &EndId) {
        self.hosts.remove(host);
    }

    /// Returns the figures of this moment, or those of a moment ago.
    pub(crate) fn figures(&mut self, now: Instant) -> Arc<FaultFigures> {
        if let Some((at, figures)) = &self.kept
            && now.saturating_duration_since(*at) < KEPT
        {
            return Arc::clone(figures);
        }
        let mut figures = FaultFigures { total: self.total.clone(), ..FaultFigures::default() };
        for host in self.hosts.values().filter(|host| now.saturating_duration_since(host.at) <= AGE_MAX) {
            let Some((grown, elapsed)) = &host.interval else { continue };
            figures.hosts += 1;
            // Two answers of one host are not closer to each other, except over two connections.
            figures.per_second += grown.count() as f64 / elapsed.as_secs_f64().max(1.0);
            figures.newest.add(grown);
        }
        let figures = Arc::new(figures);
        self.kept = Some((now, Arc::clone(&figures)));
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registration::Kind;

    fn host(name: &str) -> EndId {
        EndId::new(Kind::Host, name).expect("a name")
    }

    fn counts(count: u64) -> Option<Faults> {
        Some(Faults { sum_ns: count * 9000, buckets: [(40, count)].into() })
    }

    #[test]
    fn rates_are_over_each_hosts_own_interval_and_their_sum_is_the_pools() {
        let (mut all, begun) = (Measurements::default(), Instant::now());
        let at = |s: u64| begun + Duration::from_secs(s);
        all.take(&host("h1"), counts(1_000_000), at(0));
        all.take(&host("h2"), counts(0), at(3));
        assert_eq!(*all.figures(at(3)), FaultFigures::default(), "one answer is no interval");
        all.take(&host("h1"), counts(1_000_500), at(5));
        all.take(&host("h2"), counts(200), at(13));
        let figures = all.figures(at(13));
        assert_eq!((figures.hosts, figures.per_second), (2, 120.0));
        assert_eq!((figures.newest.count(), figures.newest.mean_us()), (700, Some(9.0)));
        assert_eq!(figures.total, figures.newest);
        // An agent that was restarted counts from nothing, and one that has no figures any more is left out.
        all.take(&host("h1"), counts(50), at(15));
        all.take(&host("h2"), None, at(15));
        let figures = all.figures(at(15));
        assert_eq!((figures.hosts, figures.per_second, figures.total.count()), (1, 5.0, 750));
        all.forget(&host("h1"));
        assert_eq!(all.figures(at(17)).hosts, 0);
    }

    #[test]
    fn figures_are_of_the_last_seconds_only() {
        let (mut all, begun) = (Measurements::default(), Instant::now());
        let at = |s: u64| begun + Duration::from_secs(s);
        all.take(&host("h1"), counts(0), at(0));
        all.take(&host("h1"), counts(10), at(5));
        assert_eq!(all.figures(at(25)).hosts, 1);
        assert_eq!(all.figures(at(26)).hosts, 0, "its agent does not answer any more");
        // It is back: what it has counted meanwhile is in the total, and says nothing about the last seconds.
        all.take(&host("h1"), counts(90), at(100));
        let figures = all.figures(at(100));
        assert_eq!((figures.hosts, figures.total.count()), (0, 90));
        all.take(&host("h1"), counts(95), at(105));
        assert_eq!(all.figures(at(105)).per_second, 1.0);
    }

    #[test]
    fn an_agent_that_lies_spoils_no_figures_of_others() {
        let (mut all, begun) = (Measurements::default(), Instant::now());
        let at = |s: u64| begun + Duration::from_secs(s);
        let absurd =
            || Some(Faults { sum_ns: u64::MAX, buckets: (0..=255).map(|bucket| (bucket, u64::MAX)).collect() });
        for (s, lie, honest) in [(0, counts(0), 0), (5, absurd(), 10), (10, counts(0), 20), (15, absurd(), 30)] {
            all.take(&host("liar"), lie, at(s));
            all.take(&host("h1"), counts(honest), at(s));
            let figures = all.figures(at(s));
            assert!(figures.per_second <= 2.0 && figures.total.count() <= 30, "{figures:?}");
        }
        assert_eq!(all.figures(at(15)).per_second, 2.0);
    }

    #[test]
    fn figures_are_added_up_once_a_second() {
        let (mut all, begun) = (Measurements::default(), Instant::now());
        let first = all.figures(begun);
        assert!(Arc::ptr_eq(&first, &all.figures(begun + KEPT / 2)));
        assert!(!Arc::ptr_eq(&first, &all.figures(begun + KEPT)));
    }
}
