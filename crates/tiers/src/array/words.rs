// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What is reported about an array's members: which are gone and what that means, which are back, and which are not
//! trusted.
//!
//! Each change is reported once, but a hiccup is not. Each process of a family reports what it has seen itself.
//!
//! Threads: the pager's upkeep thread. May allocate.

use std::sync::atomic::Ordering;

use super::Parts;
use super::care::GIVEN_UP_AFTER;
use super::member::Member;

/// What is reported about a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Told {
    There,
    Gone,
    Distrusted,
}

impl Told {
    fn of(member: &Member) -> Option<Told> {
        match member.lost_for() {
            Some(time) => (time > GIVEN_UP_AFTER).then_some(Told::Gone),
            None if member.is_distrusted() => Some(Told::Distrusted),
            None => Some(Told::There),
        }
    }
}

impl Parts {
    /// See the module.
    pub(super) fn tell(&self, say: &mut dyn FnMut(&str)) {
        self.tell_of_damage(say);
        for member in &self.members {
            let name = member.store.name();
            if member.was_anew.swap(false, Ordering::AcqRel) {
                say(&format!(
                    "the donor at {name} was started anew, and has nothing of what it had; {}",
                    self.remains()
                ));
            }
            let Some(now) = Told::of(member).filter(|now| member.is_news(*now)) else { continue };
            match now {
                Told::There => say(&format!("the donor at {name} is back")),
                Told::Gone => say(&format!(
                    "the donor at {name} does not answer; {}; start it, or check the network to it",
                    self.remains()
                )),
                Told::Distrusted => say(&format!(
                    "the memory of the donor at {name} does not keep what is stored there, and is not believed any more; \
                     others get what it had; replace it, or start it anew"
                )),
            }
        }
    }

    fn tell_of_damage(&self, say: &mut dyn FnMut(&str)) {
        let pages = self.care.damaged_pages.swap(0, Ordering::Relaxed);
        if pages > 0 {
            say(&format!(
                "{pages} pages were copied from donors that no longer have what was stored, and no other donor has it; \
                 a program that reads them gets an error; check the memory of the donors"
            ));
        }
    }

    fn remains(&self) -> &'static str {
        if self.shape.is_redundant() { "others have that, and get it" } else { "that is lost" }
    }
}
