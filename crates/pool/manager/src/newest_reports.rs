// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Keeps the newest report of each donor, host and device, and notes since when a silent one has been silent. Pure.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use aquifer_fabric::{Availability, DeviceReport, DonorReport, HostReport, Millis, Observed, SharedMap, Term};

use crate::peers::{Reported, Reports, Silent};

/// What follows from a round of reports, besides the observed state.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    /// The greatest term seen by a peer that has reported to this manager before: another manager was elected.
    pub(crate) deposed_by: Option<Term>,
    /// The greatest term seen by a peer that reports to this manager for the first time. There need not be another
    /// manager: this one's state may have been lost.
    pub(crate) outrun_by: Option<Term>,
    /// Peers that became silent or answer again, as lines for people.
    pub(crate) notices: Vec<(bool, String)>,
}

trait Report {
    fn is_answering(&self) -> bool;
    fn availability(&mut self) -> &mut Availability;
}

impl Report for DonorReport {
    fn is_answering(&self) -> bool {
        self.availability.answers()
    }

    fn availability(&mut self) -> &mut Availability {
        &mut self.availability
    }
}

impl Report for HostReport {
    fn is_answering(&self) -> bool {
        self.availability.answers()
    }

    fn availability(&mut self) -> &mut Availability {
        &mut self.availability
    }
}

impl Report for DeviceReport {
    fn is_answering(&self) -> bool {
        self.availability.answers()
    }

    fn availability(&mut self) -> &mut Availability {
        &mut self.availability
    }
}

/// Takes over what was reported.
pub(crate) fn merge(observed: &mut Observed, reports: Reports, now: Millis) -> Merged {
    let mut merged = Merged::default();
    one_kind("donor", &mut observed.donors, reports.donors, now, &mut merged);
    one_kind("host", &mut observed.hosts, reports.hosts, now, &mut merged);
    one_kind("device", &mut observed.devices, reports.devices, now, &mut merged);
    merged
}

fn one_kind<K: Ord + Clone + Display, R: Report + Clone + PartialEq>(
    kind: &str,
    known: &mut SharedMap<K, R>,
    reports: BTreeMap<K, Reported<R>>,
    now: Millis,
    merged: &mut Merged,
) {
    for (name, report) in reports {
        match report {
            Ok(report) => {
                let before = known.shared(&name);
                if before.is_some_and(|known| !known.is_answering()) {
                    merged.notices.push((true, format!("{kind} {name} answers again")));
                }
                // A report that says the same as before is dropped in favour of the old allocation, so that others see
                // without a comparison that nothing has changed.
                if !before.is_some_and(|before| Arc::ptr_eq(before, &report) || **before == *report) {
                    known.insert_shared(name, report);
                }
            }
            Err(Silent::Deposed { seen }) if known.contains_key(&name) => {
                merged.deposed_by = merged.deposed_by.max(Some(seen));
            }
            Err(Silent::Deposed { seen }) => merged.outrun_by = merged.outrun_by.max(Some(seen)),
            Err(Silent::NoAnswer) => {
                // One that has never reported stays unknown: nothing is guessed about it.
                if !known.get(&name).is_some_and(Report::is_answering) {
                    continue;
                }
                let silent = known.value_mut(&name).map(Report::availability);
                silent.into_iter().for_each(|availability| *availability = Availability::Gone { since: now });
                merged.notices.push((false, format!("{kind} {name} does not answer")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports(report: Result<DonorReport, Silent>) -> Reports {
        Reports { donors: [("d0".parse().expect("a name"), report.map(Arc::new))].into(), ..Reports::default() }
    }

    #[test]
    fn silence_is_dated_from_its_beginning() {
        let mut observed = Observed::default();
        merge(&mut observed, reports(Err(Silent::NoAnswer)), Millis(1));
        assert!(observed.donors.is_empty(), "one that never reported stays unknown");
        merge(&mut observed, reports(Ok(DonorReport::default())), Millis(2));
        for now in [3, 4, 5] {
            merge(&mut observed, reports(Err(Silent::NoAnswer)), Millis(now));
        }
        let donor = observed.donors.values().next().expect("it reported once");
        assert_eq!(donor.availability, Availability::Gone { since: Millis(3) });
        let merged = merge(&mut observed, reports(Ok(DonorReport::default())), Millis(6));
        assert_eq!(merged.notices, [(true, "donor d0 answers again".to_owned())]);
        let merged = merge(&mut observed, reports(Err(Silent::Deposed { seen: Term(9) })), Millis(7));
        assert_eq!((merged.deposed_by, merged.outrun_by), (Some(Term(9)), None));
        let merged = merge(&mut Observed::default(), reports(Err(Silent::Deposed { seen: Term(9) })), Millis(7));
        assert_eq!((merged.deposed_by, merged.outrun_by), (None, Some(Term(9))), "it is met for the first time");
    }
}
