// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Hands the background workers' queues to members that have joined since those queues were opened.
//!
//! A worker allocates nothing after its start, so the upkeep thread opens the new queue and puts it into the worker's
//! mailbox. Until the worker has taken it, and wherever that is impossible, transfers to the new member take the
//! ordinary path, one at a time.
//!
//! Nobody waits for a lock here: fork(2) may have copied a locked one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use aquifer_tier::TierQueue;

use super::Parts;
use super::place::MEMBERS_MAX;

/// The queue of a worker to one member.
type Letter = (usize, Box<dyn TierQueue>);

/// What one worker has to take.
pub(super) struct Mailbox {
    depth: u32,
    /// Members to which the worker has a queue, or to which one is on its way: one bit each.
    served: AtomicU64,
    has_mail: AtomicBool,
    letters: Mutex<Vec<Letter>>,
}

impl Mailbox {
    /// The queues that have arrived. Returns nothing while the upkeep thread puts one in.
    pub(super) fn collect(&self, mut take: impl FnMut(Letter)) {
        if !self.has_mail.load(Ordering::Acquire) {
            return;
        }
        if let Ok(mut letters) = self.letters.try_lock() {
            self.has_mail.store(false, Ordering::Release);
            letters.drain(..).for_each(&mut take);
        }
    }
}

/// The mailboxes of all workers of this process.
#[derive(Default)]
pub(super) struct Mailboxes(Mutex<Vec<Weak<Mailbox>>>);

impl Mailboxes {
    /// A mailbox for a worker that has queues of this depth to the members in `served`.
    pub(super) fn open(&self, depth: u32, served: u64) -> Arc<Mailbox> {
        let letters = Mutex::new(Vec::with_capacity(MEMBERS_MAX));
        let mailbox =
            Arc::new(Mailbox { depth, served: AtomicU64::new(served), has_mail: AtomicBool::new(false), letters });
        if let Ok(mut all) = self.0.try_lock() {
            all.retain(|other| other.strong_count() > 0);
            all.push(Arc::downgrade(&mailbox));
        }
        mailbox
    }

    /// Opens queues to members that a worker has none to. Runs on the upkeep thread.
    pub(super) fn deliver(&self, parts: &Parts) {
        let Ok(all) = self.0.try_lock() else { return };
        for mailbox in all.iter().filter_map(Weak::upgrade) {
            for (index, member) in parts.members.iter().enumerate() {
                let is_served = mailbox.served.load(Ordering::Relaxed) & 1 << index != 0;
                if is_served || !member.store.is_connected() || !parts.roster.is_in_use(index) {
                    continue;
                }
                let Ok(queue) = member.store.open_queue(mailbox.depth) else { continue };
                let Ok(mut letters) = mailbox.letters.try_lock() else { continue };
                mailbox.served.fetch_or(1 << index, Ordering::Relaxed);
                letters.push((index, queue));
                mailbox.has_mail.store(true, Ordering::Release);
            }
        }
    }
}
