// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory that the donor takes back: orders to reclaim it, and the notices that borrowers get of them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use aquifer_wire::{BorrowerId, EVERY_LEASE, Message, RangeIndex, SLAB_BYTES};

use super::Service;
use crate::leases::Leaving;

impl Service {
    /// Reclaims memory, in whole slabs: free slabs immediately, the rest from borrowers within this time. Returns the
    /// bytes that borrowers still have to give back.
    pub(crate) fn reclaim(&self, bytes: u64, within: Duration) -> u64 {
        self.order_back(bytes, within);
        // A slab that is not wiped yet would count as one that a borrower still has.
        self.await_taken_back();
        self.draining_bytes()
    }

    /// As [`reclaim`](Self::reclaim), but does not wait for the wiper.
    pub(crate) fn order_back(&self, bytes: u64, within: Duration) {
        let slabs = u32::try_from(bytes.div_ceil(SLAB_BYTES)).unwrap_or(u32::MAX);
        let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        let taken = self.table().reclaim(self.now_ms(), slabs, within_ms);
        // Release pairs with the Acquire in `order`: a connection that sees the order also finds the leases.
        self.orders.fetch_add(1, Ordering::Release);
        taken.into_iter().for_each(|slab| self.slabs.give_back(slab));
        self.keeper.notify_all();
    }

    /// Lends nothing new, and calls back what is lent outside of reservations, or ends that.
    pub(crate) fn set_drained(&self, is_drained: bool, within: Duration) {
        let mut table = self.table();
        table.set_drained(is_drained);
        let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        let asked = if is_drained { table.call_back_common(self.now_ms(), within_ms) } else { 0 };
        drop(table);
        if asked > 0 {
            // As in `order_back`.
            self.orders.fetch_add(1, Ordering::Release);
            self.keeper.notify_all();
        }
    }

    /// The number of the last order to reclaim memory; 0: there was none.
    pub(crate) fn order(&self) -> u64 {
        self.orders.load(Ordering::Acquire)
    }

    /// The notices of a borrower's revoked leases from range `from` on, at most `max` of them, and the range from
    /// which the next call continues, if there are more.
    pub(crate) fn revocations(
        &self,
        who: BorrowerId,
        from: RangeIndex,
        max: usize,
    ) -> (Vec<Message>, Option<RangeIndex>) {
        let table = self.table();
        let now_ms = self.now_ms();
        let within_ms = |end: u64| end.saturating_sub(now_ms);
        if from == RangeIndex(0)
            && let Some(end) = table.leaves_whole(who)
        {
            return (vec![Message::Revoke { lease: EVERY_LEASE, range: from, within_ms: within_ms(end) }], None);
        }
        let mut leaving = table.leaving(who, from);
        let notices = leaving.by_ref().take(max).map(|Leaving { range, slab, ends_by_ms }| Message::Revoke {
            lease: slab.lease(),
            range,
            within_ms: within_ms(ends_by_ms),
        });
        (notices.collect(), leaving.next().map(|next| next.range))
    }
}
