// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How memory is set aside for a tenant, as a fabric manager orders it: a reservation.
//!
//! A reservation has a token, which names it and fences it. Borrowers of its tenant that present the token get their
//! slabs from it; nobody else does. A slab that comes back is set aside again, until the reservation is released: then
//! all its leases end, and it exists until its last slab is wiped.
//!
//! Pure, as `leases.rs` is.

use aquifer_wire::{BorrowerId, RangeIndex, Refusal};

use super::{Borrower, LeaseTable, TenantQuota};
use crate::tenants::TenantId;

/// Memory that is set aside for one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Whom it is for.
    pub tenant: TenantId,
    /// How many slabs.
    pub slabs: u32,
    /// How many of them are lent.
    pub held: u32,
    /// How many slabs came back from it and are not wiped yet.
    pub unwiped: u32,
    /// `true` when it was released: nothing is granted from it any more.
    pub is_released: bool,
}

impl LeaseTable {
    /// Sets slabs aside, all or none. `token` is greater than the tokens of all earlier reservations.
    ///
    /// # Panics
    /// If the token is 0 or has a reservation.
    pub fn reserve(&mut self, now_ms: u64, tenant: TenantQuota, slabs: u32, token: u64) -> Result<(), Refusal> {
        assert!(token > 0 && !self.reservations.contains_key(&token), "a token names one reservation");
        self.expire(now_ms);
        if self.is_drained || self.is_draining() {
            return Err(Refusal::Ending);
        }
        if self.used(tenant.id).saturating_add(slabs) > tenant.quota_slabs {
            return Err(Refusal::Quota);
        }
        if self.common() < slabs {
            return Err(Refusal::Full);
        }
        self.aside += slabs;
        let new = Reservation { tenant: tenant.id, slabs, held: 0, unwiped: 0, is_released: false };
        self.reservations.insert(token, new);
        Ok(())
    }

    /// Releases a reservation: its leases end now. Returns whether there was one.
    pub fn release_reservation(&mut self, now_ms: u64, token: u64) -> bool {
        self.expire(now_ms);
        let Some(reservation) = self.reservations.get_mut(&token) else { return false };
        if !reservation.is_released {
            reservation.is_released = true;
            self.aside -= reservation.slabs - reservation.held;
        }
        let of_it = self.borrowers.iter().filter(|(_, borrower)| borrower.reservation == token);
        let of_it: Vec<BorrowerId> = of_it.map(|(who, _)| *who).collect();
        for who in of_it {
            self.end_every(who);
        }
        self.forget_if_wiped(token);
        true
    }

    /// A reservation. `None`: there never was one with this token, or all of it is wiped after its release.
    pub fn reservation(&self, token: u64) -> Option<Reservation> {
        self.reservations.get(&token).copied()
    }

    /// All reservations, by their tokens.
    pub fn reservations(&self) -> impl Iterator<Item = (u64, Reservation)> {
        self.reservations.iter().map(|(token, reservation)| (*token, *reservation))
    }

    /// How many slabs are set aside for a tenant or lent to it.
    pub fn used(&self, tenant: TenantId) -> u32 {
        let of_tenant = self.reservations.values().filter(|one| one.tenant == tenant && !one.is_released);
        self.held(tenant) + of_tenant.map(|one| one.slabs - one.held).sum::<u32>()
    }

    /// How many slabs can be lent or set aside, now or when they are wiped, to the first that asks.
    pub fn common(&self) -> u32 {
        (self.free.len() as u32 + self.unwiped()).saturating_sub(self.wanted).saturating_sub(self.aside)
    }

    /// How many slabs reservations could have at most: all that no lease outside of reservations has.
    pub fn reservable(&self) -> u32 {
        let held: u32 = self.reservations.values().map(|one| one.held).sum();
        self.lendable().saturating_sub(self.leased - held)
    }

    /// Whether the donor reclaims so much that it cannot keep its reservations.
    pub fn breaks_reservations(&self) -> bool {
        let reserved: u32 = self.reservations.values().filter(|one| !one.is_released).map(|one| one.slabs).sum();
        self.lendable() < reserved || self.lendable() == 0
    }

    /// Lends and sets aside nothing new, or does again. What is lent and set aside already stays.
    pub fn set_drained(&mut self, is_drained: bool) {
        self.is_drained = is_drained;
        if !is_drained {
            self.borrowers.values_mut().for_each(|borrower| borrower.called.clear());
        }
    }

    /// Whether an operator drains this donor.
    pub fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// Calls back the leases outside of reservations. They are not revoked when their time is over. Returns how many
    /// were called back for the first time.
    pub fn call_back_common(&mut self, now_ms: u64, within_ms: u64) -> u32 {
        self.expire(now_ms);
        let ends_by_ms = now_ms.saturating_add(within_ms);
        let mut asked = 0;
        for borrower in self.borrowers.values_mut().filter(|borrower| borrower.reservation == 0) {
            let Borrower { ranges, leaving, called, .. } = borrower;
            let stays = |range: &&RangeIndex| !leaving.contains_key(range) && !called.contains_key(range);
            let new: Vec<RangeIndex> = ranges.keys().filter(stays).copied().collect();
            asked += new.len() as u32;
            called.extend(new.into_iter().map(|range| (range, ends_by_ms)));
        }
        if asked > 0 {
            self.due_ms = self.due_ms.min(ends_by_ms);
        }
        asked
    }

    /// Whether a tenant may have one more slab.
    pub(super) fn may_take(&self, tenant: TenantQuota) -> Result<(), Refusal> {
        let Some(token) = tenant.reservation else {
            return match () {
                () if self.used(tenant.id) >= tenant.quota_slabs => Err(Refusal::Quota),
                () if self.is_drained => Err(Refusal::Ending),
                // Without reservations, the list of free slabs decides alone.
                () if self.aside > 0 && self.common() == 0 && !self.is_draining() => Err(Refusal::Full),
                () => Ok(()),
            };
        };
        match self.reservations.get(&token) {
            Some(one) if one.is_released => Err(Refusal::NoLease),
            Some(one) if one.tenant != tenant.id => Err(Refusal::NotYours),
            Some(one) if one.held >= one.slabs => Err(Refusal::Full),
            Some(_) => Ok(()),
            None => Err(Refusal::NoLease),
        }
    }

    pub(super) fn take_reserved(&mut self, token: u64) {
        if let Some(reservation) = self.reservations.get_mut(&token) {
            reservation.held += 1;
            self.aside -= 1;
        }
    }

    pub(super) fn return_reserved(&mut self, token: u64) {
        if let Some(reservation) = self.reservations.get_mut(&token) {
            reservation.held -= 1;
            reservation.unwiped += 1;
            self.aside += u32::from(!reservation.is_released);
        }
    }

    pub(super) fn wiped_reserved(&mut self, token: u64) {
        if let Some(reservation) = self.reservations.get_mut(&token) {
            reservation.unwiped -= 1;
            self.forget_if_wiped(token);
        }
    }

    fn forget_if_wiped(&mut self, token: u64) {
        let is_over = |one: &Reservation| one.is_released && one.held == 0 && one.unwiped == 0;
        if self.reservations.get(&token).is_some_and(is_over) {
            self.reservations.remove(&token);
        }
    }
}
