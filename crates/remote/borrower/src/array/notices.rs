// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Notices about an array's members: which are gone and what that means, which are back, and which are in quarantine.
//! Also, which of the files that protect connections to them cannot be used.
//!
//! Each change is reported once; a short interruption is not reported. Each process of a family reports what it has
//! seen itself.
//!
//! Threads: the pager's upkeep thread. May allocate.

use std::sync::atomic::Ordering;

use super::Parts;
use super::member::Member;
use super::repair::GIVEN_UP_AFTER;

/// What is reported about a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Notice {
    Present,
    Lost,
    Quarantined,
    /// Lost, because its certificate is revoked.
    Revoked,
}

impl Notice {
    fn of(member: &Member) -> Option<Notice> {
        match member.lost_for() {
            Some(time) if time <= GIVEN_UP_AFTER => None,
            Some(_) => Some(if member.is_revoked() { Notice::Revoked } else { Notice::Lost }),
            None if member.is_quarantined() => Some(Notice::Quarantined),
            None => Some(Notice::Present),
        }
    }
}

impl Parts {
    /// Reports through `say` which members were lost, have come back or were quarantined since the last call.
    pub(super) fn report_changes(&self, say: &mut dyn FnMut(&str)) {
        self.report_damage(say);
        // Members usually have the same files.
        let mut of_files: Vec<String> = self.in_use().filter_map(|it| self.members[it].store.take_notice()).collect();
        of_files.sort_unstable();
        of_files.dedup();
        of_files.iter().for_each(|line| say(line));
        for member in self.in_use().map(|index| &self.members[index]) {
            let name = member.store.name();
            if member.was_restarted.swap(false, Ordering::AcqRel) {
                say(&format!("the donor at {name} was restarted, and its slabs were lost; {}", self.remains()));
            }
            let Some(now) = Notice::of(member).filter(|now| member.is_news(*now)) else { continue };
            match now {
                Notice::Present => say(&format!("the donor at {name} is back")),
                Notice::Lost => say(&format!(
                    "the donor at {name} does not answer; {}; start it, or check the network to it",
                    self.remains()
                )),
                Notice::Revoked => say(&format!(
                    "the donor at {name} is not used any more: its certificate was revoked, says the list in crl=; {}; \
                     borrow from another donor, or have a new certificate signed for this one",
                    self.remains()
                )),
                Notice::Quarantined => say(&format!(
                    "the donor at {name} repeatedly returned corrupt data and is quarantined: it gets nothing more, and its \
                     slabs are rebuilt elsewhere; check its memory, and restart it"
                )),
            }
        }
    }

    fn report_damage(&self, say: &mut dyn FnMut(&str)) {
        let pages = self.repair.damaged_pages.swap(0, Ordering::Relaxed);
        if pages > 0 {
            say(&format!(
                "{pages} pages were copied from donors that no longer have what was stored, and no other donor has it; \
                 a program that reads them gets an error; check the memory of the donors"
            ));
        }
    }

    fn remains(&self) -> &'static str {
        if self.shape.is_redundant() { "other donors have what it held" } else { "what it held is lost" }
    }
}
