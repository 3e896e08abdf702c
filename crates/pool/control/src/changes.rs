// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The changes of a report since an earlier one. Pure.
//!
//! The report of a large pool's end lists hundreds of leases or volumes, of which one bind changes one. Changes hold
//! the new report with only the volumes that have changed, and name the volumes that it no longer lists. Next:
//! `reports.rs`.

use std::collections::{BTreeMap, BTreeSet};

use aquifer_fabric::{DonorReport, HostReport, VolumeId};
use serde::{Deserialize, Serialize};

use crate::message::Report;

/// The changes of a donor's report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DonorChanges {
    /// The new report, with only the leases of volumes that it lists differently.
    pub report: DonorReport,
    /// The volumes that it no longer lists.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub gone: BTreeSet<VolumeId>,
}

/// The changes of an agent's report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HostChanges {
    /// The new report, with only the volumes that it lists differently in each of its lists.
    pub report: HostReport,
    /// The volumes that programs can no longer use.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub gone: BTreeSet<VolumeId>,
    /// The volumes of which no member is listed as left any more.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub left_gone: BTreeSet<VolumeId>,
    /// The volumes that have no trouble any more.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub trouble_gone: BTreeSet<VolumeId>,
}

/// The changes of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Changes {
    /// The changes of a donor's report.
    Donor(Box<DonorChanges>),
    /// The changes of a report by a host's agent.
    Host(Box<HostChanges>),
}

impl Changes {
    /// Returns what leads from one report to another of the same kind.
    pub fn between(old: &Report, new: &Report) -> Option<Changes> {
        match (old, new) {
            (Report::Donor(old), Report::Donor(new)) => Some(Changes::Donor(Box::new(DonorChanges::between(old, new)))),
            (Report::Host(old), Report::Host(new)) => Some(Changes::Host(Box::new(HostChanges::between(old, new)))),
            (Report::Donor(_), Report::Host(_)) | (Report::Host(_), Report::Donor(_)) => None,
        }
    }
}

impl DonorChanges {
    fn between(old: &DonorReport, new: &DonorReport) -> DonorChanges {
        let (leases, gone) = differences(&old.leases, &new.leases);
        let DonorReport { incarnation, availability, term, capacity, leases: _ } = *new;
        DonorChanges { report: DonorReport { incarnation, availability, term, capacity, leases }, gone }
    }

    /// Makes the older report the new one.
    pub fn apply(self, report: &mut DonorReport) {
        let mut leases = std::mem::take(&mut report.leases);
        replace(&mut leases, &self.gone, self.report.leases);
        *report = DonorReport { leases, ..self.report };
    }
}

impl HostChanges {
    fn between(old: &HostReport, new: &HostReport) -> HostChanges {
        let (volumes, gone) = differences(&old.volumes, &new.volumes);
        let (left, left_gone) = differences(&old.left, &new.left);
        let (trouble, trouble_gone) = differences(&old.trouble, &new.trouble);
        let HostReport { incarnation, availability, term, volumes: _, left: _, trouble: _ } = *new;
        let report = HostReport { incarnation, availability, term, volumes, left, trouble };
        HostChanges { report, gone, left_gone, trouble_gone }
    }

    /// Makes the older report the new one.
    pub fn apply(self, report: &mut HostReport) {
        let HostReport { mut volumes, mut left, mut trouble, .. } = std::mem::take(report);
        replace(&mut volumes, &self.gone, self.report.volumes);
        replace(&mut left, &self.left_gone, self.report.left);
        replace(&mut trouble, &self.trouble_gone, self.report.trouble);
        *report = HostReport { volumes, left, trouble, ..self.report };
    }
}

/// Returns the entries that differ, as they are now, and the keys that are gone.
fn differences<V: Clone + PartialEq>(
    old: &BTreeMap<VolumeId, V>,
    new: &BTreeMap<VolumeId, V>,
) -> (BTreeMap<VolumeId, V>, BTreeSet<VolumeId>) {
    let differs = new.iter().filter(|(id, value)| old.get(*id) != Some(*value));
    let gone = old.keys().filter(|id| !new.contains_key(*id));
    (differs.map(|(id, value)| (*id, value.clone())).collect(), gone.copied().collect())
}

fn replace<V>(entries: &mut BTreeMap<VolumeId, V>, gone: &BTreeSet<VolumeId>, new: BTreeMap<VolumeId, V>) {
    gone.iter().for_each(|id| drop(entries.remove(id)));
    entries.extend(new);
}
