// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Says which pages have arrived, for callers that have asked for them with [`Advice::WillNeed`](super::Advice), and
//! publishes presence.
//!
//! Pure. A caller is woken by the report that ends the work on the block, as a fault is.

use super::Engine;
use crate::block::State;
use crate::map::presence::Presence;
use crate::units::PageIndex;

/// Where a page that was asked for is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// In the tier: nobody fetches it now.
    Away,
    /// A thread works on it. From now on its report is for this caller, too.
    Busy,
    /// The page is not managed.
    Foreign,
    /// In DRAM, or without contents: a touch needs no transfer.
    Here,
    /// Lost.
    Lost,
}

impl Engine {
    /// Where the block with `page` is. Call it again after the next report if it is `Busy`.
    pub fn has_arrived(&mut self, page: PageIndex) -> Arrived {
        let Some(block) = self.map.find(page) else { return Arrived::Foreign };
        match self.map.block(block).state {
            State::Empty | State::Resident | State::Standby => Arrived::Here,
            State::Poisoned => Arrived::Lost,
            State::Stored => Arrived::Away,
            State::Changing | State::Cleaning | State::Fetching | State::Installing | State::Leaving => {
                self.map.block_mut(block).wanted = true;
                Arrived::Busy
            }
        }
    }

    /// Whether callers wait for pages that they have asked for: then every arrival counts as waited for, since the
    /// worker may begin and end a fetch between two questions.
    pub fn await_arrivals(&mut self, are_awaited: bool) {
        self.arrivals_are_awaited = are_awaited;
    }

    /// From now on publishes which of the pages `start..end`, a mapping without contents, are at their addresses.
    /// Allocates.
    pub fn publish_presence(&mut self, start: PageIndex, end: PageIndex) -> std::sync::Arc<Presence> {
        self.map.publish_presence(start, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Advice, Plan, Settings, Task, Transfers};
    use crate::map::Delivery;
    use crate::policy::{self, PolicyName};
    use crate::units::Order;

    #[test]
    fn a_caller_waits_for_what_is_being_fetched_and_presence_follows_residency() {
        let settings = Settings { prefetch: true, ..Settings::PLAIN };
        let mut engine = Engine::new(settings, policy::build(PolicyName::Fifo));
        let (page, end) = (PageIndex(0), PageIndex(64));
        let presence = engine.publish_presence(page, end);
        engine.add(page, end, Order::DEFAULT, Delivery::Signal, &mut |page, _| page.0 == 0);
        assert!(presence.has(0, 32) && !presence.has(31, 33));
        assert_eq!((engine.has_arrived(page), engine.has_arrived(PageIndex(64))), (Arrived::Here, Arrived::Foreign));
        engine.advise(page, PageIndex(32), Advice::PageOut);
        let (mut plan, transfers) = (Plan::new(), Transfers { blocks: 32, pages: u32::MAX });
        let mut tasks = 0;
        while engine.has_departures() {
            engine.plan(&mut plan, transfers);
            for task in std::mem::take(&mut plan.tasks) {
                tasks += 1;
                match task {
                    Task::Evict { block, .. } => {
                        assert!(!presence.has(0, 1), "cleared before the pages are taken away");
                        assert_eq!(engine.has_arrived(page), Arrived::Busy);
                        assert!(engine.evicted(block), "the caller waits for it");
                    }
                    Task::Clean { block, .. } => {
                        engine.slot_for(block).expect("the tier has room");
                        engine.cleaned(block, crate::engine::CleanVerdict::Stored, &[7; 32]);
                    }
                    other => panic!("unforeseen: {other:?}"),
                }
            }
        }
        assert_eq!((tasks, engine.has_arrived(page)), (2, Arrived::Away));
        engine.advise(page, PageIndex(32), Advice::WillNeed);
        engine.plan(&mut plan, transfers);
        let Some(Task::Fetch { block, .. }) = plan.tasks.first().copied() else { panic!("no fetch") };
        engine.await_arrivals(true);
        assert!(engine.read_ahead_arrived(block), "a caller waits for some arrival");
        assert_eq!((engine.has_arrived(page), presence.has(0, 1)), (Arrived::Here, false));
    }
}
