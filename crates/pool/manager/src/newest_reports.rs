// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Keeps the newest report of each donor, host and device, and notes since when a silent one has been silent. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

use aquifer_fabric::{Availability, DeviceReport, DonorReport, End, HostReport, Millis, Observed, SharedMap, Term};

use crate::peers::{Reported, Reports, Silent};
use crate::term_claims::{Claim, Claims};

/// An event about a peer, for the log and the event service.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// Its name in our message registry.
    pub(crate) kind: &'static str,
    pub(crate) severity: &'static str,
    pub(crate) what: String,
}

/// What follows from a round of reports, besides the observed state.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    /// The greatest rejected term that a peer claims to have seen. Only the store says whether another manager has
    /// taken one.
    pub(crate) contradicted_by: Option<Term>,
    /// How many claims were rejected, also of peers whose earlier claim was.
    pub(crate) claims_rejected: usize,
    /// The accepted terms that peers have seen: this manager must take a greater one.
    pub(crate) outrun_by: BTreeMap<End, Term>,
    /// Peers that became silent, answer again, or claim a term that is rejected.
    pub(crate) notices: Vec<Notice>,
}

/// Peers that have not reported since this manager was elected, and of which that was said.
#[derive(Debug, Default)]
pub(crate) struct Unheard(BTreeSet<End>);

/// What this manager remembers of peers besides their reports, and the time.
pub(crate) struct Hearing<'a> {
    pub(crate) claims: &'a mut Claims,
    pub(crate) unheard: &'a mut Unheard,
    pub(crate) now: Millis,
    /// From when one that has not reported yet is missed.
    pub(crate) missed_from: Millis,
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
pub(crate) fn merge(observed: &mut Observed, reports: Reports, hearing: &mut Hearing<'_>) -> Merged {
    let mut merged = Merged::default();
    one_kind(("donor", End::Donor), &mut observed.donors, reports.donors, hearing, &mut merged);
    one_kind(("host", End::Host), &mut observed.hosts, reports.hosts, hearing, &mut merged);
    one_kind(("device", End::Device), &mut observed.devices, reports.devices, hearing, &mut merged);
    merged
}

fn one_kind<K: Ord + Clone + Display, R: Report + Clone + PartialEq>(
    (kind, end): (&str, fn(K) -> End),
    known: &mut SharedMap<K, R>,
    reports: BTreeMap<K, Reported<R>>,
    hearing: &mut Hearing<'_>,
    merged: &mut Merged,
) {
    let Hearing { claims, unheard, now, missed_from } = hearing;
    let mut notice = |kind, severity, what| merged.notices.push(Notice { kind, severity, what });
    for (name, report) in reports {
        match report {
            Ok(report) => {
                claims.reported(&end(name.clone()));
                let before = known.shared(&name);
                if unheard.0.remove(&end(name.clone())) || before.is_some_and(|known| !known.is_answering()) {
                    notice("PeerAnswers", "OK", format!("{kind} {name} answers again"));
                }
                // A report that says the same as before is dropped in favour of the old allocation, so that others see
                // without a comparison that nothing has changed.
                if !before.is_some_and(|before| Arc::ptr_eq(before, &report) || **before == *report) {
                    known.insert_shared(name, report);
                }
            }
            Err(Silent::Deposed { seen }) => {
                let of = end(name.clone());
                match claims.judge(&of, known.contains_key(&name), seen, *now) {
                    Claim::Outruns => drop(merged.outrun_by.insert(of, seen)),
                    claim => {
                        merged.contradicted_by = merged.contradicted_by.max(Some(seen));
                        merged.claims_rejected += 1;
                        miss(known, &name, *now);
                        if claims.reject(of) {
                            let what = claim.rejection(&format!("{kind} {name}"), seen);
                            notice("TermRejected", "Critical", what);
                        }
                    }
                }
            }
            Err(Silent::NoAnswer) => {
                if miss(known, &name, *now) {
                    notice("PeerSilent", "Warning", format!("{kind} {name} does not answer"));
                } else if !known.contains_key(&name) && *now >= *missed_from && unheard.0.insert(end(name.clone())) {
                    let what = format!("{kind} {name} has not answered since this manager was elected");
                    notice("PeerSilent", "Warning", what);
                }
            }
        }
    }
}

/// Notes since when a peer has been silent. Returns whether it answered until now.
fn miss<K: Ord + Clone, R: Report + Clone>(known: &mut SharedMap<K, R>, name: &K, now: Millis) -> bool {
    // One that has never reported stays unknown: nothing is guessed about it but its silence
    // (`Observed::asked_since`).
    if !known.get(name).is_some_and(Report::is_answering) {
        return false;
    }
    let silent = known.value_mut(name).map(Report::availability);
    silent.into_iter().for_each(|availability| *availability = Availability::Gone { since: now });
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: Millis = Millis(u64::MAX);

    fn reports(report: Result<DonorReport, Silent>) -> Reports {
        Reports { donors: [("d0".parse().expect("a name"), report.map(Arc::new))].into(), ..Reports::default() }
    }

    fn merge(observed: &mut Observed, claims: &mut Claims, report: Result<DonorReport, Silent>, now: u64) -> Merged {
        let unheard = &mut Unheard::default();
        super::merge(observed, reports(report), &mut Hearing { claims, unheard, now: Millis(now), missed_from: FAR })
    }

    #[test]
    fn silence_is_dated_from_its_beginning() {
        let (mut observed, mut claims) = (Observed::default(), Claims::default());
        let mut merge = |report, now| {
            let merged = merge(&mut observed, &mut claims, report, now);
            (observed.donors.values().next().map(|donor| donor.availability), merged)
        };
        assert_eq!(merge(Err(Silent::NoAnswer), 1).0, None, "one that never reported stays unknown");
        merge(Ok(DonorReport::default()), 2);
        for now in [3, 4, 5] {
            assert_eq!(merge(Err(Silent::NoAnswer), now).0, Some(Availability::Gone { since: Millis(3) }));
        }
        let (_, merged) = merge(Ok(DonorReport::default()), 6);
        let again = Notice { kind: "PeerAnswers", severity: "OK", what: "donor d0 answers again".to_owned() };
        assert_eq!(merged.notices, [again]);
    }

    #[test]
    fn one_that_was_silent_before_this_manager_is_missed_once() {
        let (mut observed, mut claims, mut unheard) = <(Observed, Claims, Unheard)>::default();
        let mut notices = |report, now| {
            let (claims, unheard, now) = (&mut claims, &mut unheard, Millis(now));
            let mut hearing = Hearing { claims, unheard, now, missed_from: Millis(10) };
            let merged = super::merge(&mut observed, reports(report), &mut hearing);
            merged.notices.into_iter().map(|notice| notice.what).collect::<Vec<_>>()
        };
        assert_eq!(notices(Err(Silent::NoAnswer), 9), [""; 0]);
        let missed = "donor d0 has not answered since this manager was elected";
        assert_eq!(notices(Err(Silent::NoAnswer), 10), [missed]);
        assert_eq!(notices(Err(Silent::NoAnswer), 11), [""; 0]);
        assert_eq!(notices(Ok(DonorReport::default()), 12), ["donor d0 answers again"]);
        assert_eq!(notices(Err(Silent::NoAnswer), 13), ["donor d0 does not answer"]);
    }

    #[test]
    fn a_claim_of_a_peer_that_has_reported_is_silence_and_is_said_once() {
        let (mut observed, mut claims) = (Observed::default(), Claims::default());
        let first = merge(&mut observed, &mut claims, Err(Silent::Deposed { seen: Term(9) }), 1);
        assert_eq!((first.contradicted_by, first.outrun_by.len()), (None, 1), "it is met for the first time");
        assert_eq!(first.claims_rejected, 0);
        merge(&mut observed, &mut claims, Ok(DonorReport::default()), 2);
        for (now, notices) in [(3, 1), (4, 0)] {
            let merged = merge(&mut observed, &mut claims, Err(Silent::Deposed { seen: Term(9 + now) }), now);
            assert_eq!((merged.contradicted_by, merged.outrun_by.len()), (Some(Term(9 + now)), 0));
            assert_eq!(merged.notices.len(), notices, "{:?}", merged.notices);
            assert_eq!(merged.claims_rejected, 1, "each counts");
            let donor = observed.donors.values().next().expect("it reported once");
            assert_eq!(donor.availability, Availability::Gone { since: Millis(3) });
        }
        merge(&mut observed, &mut claims, Ok(DonorReport::default()), 5);
        let again = merge(&mut observed, &mut claims, Err(Silent::Deposed { seen: Term(99) }), 6);
        assert_eq!((again.notices.len(), again.notices[0].severity), (1, "Critical"));
    }

    #[test]
    fn a_term_that_no_manager_takes_is_never_followed() {
        let (mut observed, mut claims) = (Observed::default(), Claims::default());
        let merged = merge(&mut observed, &mut claims, Err(Silent::Deposed { seen: Term(u64::MAX - 1) }), 7);
        assert_eq!((merged.contradicted_by, merged.outrun_by.len()), (Some(Term(u64::MAX - 1)), 0));
        assert!(merged.notices[0].what.contains("more than a day ahead"), "{:?}", merged.notices);
        assert!(observed.donors.is_empty(), "it has never reported");
    }
}
