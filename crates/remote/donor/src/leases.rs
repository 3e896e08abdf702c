// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Grants, renews, revokes and expires leases: every decision about which borrower has which slab, and until when.
//!
//! Pure: time is an argument, in milliseconds of a clock that never goes back, and other modules keep the memory. A
//! lease covers one slab, is named by the slab's number, and is for one range of the borrower's tier. What must hold,
//! and is checked against a model in `tests/leases_model.rs`:
//!
//! - No slab has two holders.
//! - No slab is granted that has not been wiped since its last holder.
//! - A tenant's borrowers together have no more slabs than its quota.
//! - A token is accepted only while it is the last one given for its slab.
//! - A slab that the donor has reclaimed is never granted again.
//! - What is set aside for one reservation is granted to nobody else.
//!
//! Next on the path: `leases/reserve.rs`, how memory is set aside; `leases/reclaim.rs`, how it is reclaimed;
//! `memory.rs`, which wipes. Called by `service.rs`.

mod reclaim;
mod reserve;

pub use reclaim::Leaving;
pub use reserve::Reservation;

use std::collections::{BTreeMap, VecDeque};

use aquifer_wire::{BorrowerId, LentSlab, RangeIndex, Refusal, SLAB_BYTES};

use crate::tenants::TenantId;

/// The maximum number of slabs of one donor: 32 TiB. Borrowers keep a slab's number and its token in one word.
pub const SLABS_MAX: u32 = 1 << 24;

/// The state of a slab.
///
/// ```text
///          grant             release, expire, revoke             take_unwiped            wiped
///   Free ─────────► Leased ───────────────────────────► Unwiped ──────────────► Wiping ────┬────► Free
///    │                                                                                     │
///    └──────────────────────────────► Reclaimed ◄──────────────────────────────────────────┘
///               reclaim                              wiped, while the donor wants more back
/// ```
///
/// A slab with accesses in progress stays `Unwiped` until the last one has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Leased { holder: BorrowerId, range: RangeIndex },
    Unwiped,
    Wiping,
    Reclaimed,
}

#[derive(Clone, Copy, Debug)]
struct Slab {
    state: State,
    /// The last token given for it.
    token: u64,
    /// Accesses that have begun and not ended.
    accesses: u32,
    /// The token of the reservation that it belongs to until it is wiped; 0: none.
    reservation: u64,
}

#[derive(Debug)]
struct Borrower {
    tenant: TenantId,
    /// The slab of each of its ranges.
    ranges: BTreeMap<RangeIndex, LentSlab>,
    /// The ranges that are revoked, and when: their leases end then, whatever the borrower does.
    leaving: BTreeMap<RangeIndex, u64>,
    /// Other ranges that it is asked to give back, and until when: an operator drains the donor. Their leases stay.
    called: BTreeMap<RangeIndex, u64>,
    /// When its leases end, unless it gives a sign of life before then.
    expires_at_ms: u64,
    /// The token of the reservation that its slabs are from; 0: none.
    reservation: u64,
}

impl Borrower {
    /// When the first of its leases ends without a sign of life.
    fn end_ms(&self) -> u64 {
        self.leaving.values().min().map_or(self.expires_at_ms, |end| self.expires_at_ms.min(*end))
    }
}

/// The tenant for which a slab is granted, and its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantQuota {
    /// The tenant of the borrower.
    pub id: TenantId,
    /// How many slabs the tenant's borrowers may have together, with what is set aside for the tenant.
    pub quota_slabs: u32,
    /// The token of the reservation from which the slab is taken. Without one, the slab comes from memory that is not
    /// set aside. A borrower always uses the same token.
    pub reservation: Option<u64>,
}

/// What was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The slab, whose number names the lease.
    pub slab: LentSlab,
    /// The token that the holder has to present.
    pub token: u64,
    /// When the lease ends without a sign of life.
    pub expires_in_ms: u64,
}

/// A right to access some bytes of a slab, from [`LeaseTable::begin`] to [`LeaseTable::end`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an access that never ends keeps its slab for ever"]
pub struct Access {
    /// The slab.
    pub slab: LentSlab,
    /// The start of the bytes in the slab.
    pub start: u64,
}

/// An access that a borrower asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The lease that has to allow the access.
    pub lease: u64,
    /// The lease's token, as far as the borrower knows.
    pub token: u64,
    /// The start of the bytes in the borrower's tier.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// How many leases ended in each way without being given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endings {
    /// The borrower gave no sign of life.
    pub expired: u64,
    /// The donor revoked them.
    pub revoked: u64,
}

/// The lease table: which borrower has which slab, and until when.
#[derive(Debug)]
pub struct LeaseTable {
    slabs: Vec<Slab>,
    /// Slabs that can be granted, the next one last.
    free: Vec<LentSlab>,
    /// Slabs that came back, the first one in front.
    unwiped: VecDeque<LentSlab>,
    borrowers: BTreeMap<BorrowerId, Borrower>,
    /// How many slabs each tenant's borrowers have; tenants without slabs are not in the map.
    held: BTreeMap<TenantId, u32>,
    /// Reservations by their tokens.
    reservations: BTreeMap<u64, Reservation>,
    /// How many slabs are set aside and not lent.
    aside: u32,
    /// `true` while nothing new is lent or set aside, because an operator drains this donor.
    is_drained: bool,
    lease_ms: u64,
    last_token: u64,
    leased: u32,
    /// How many slabs the donor still wants to reclaim.
    wanted: u32,
    reclaimed: u32,
    endings: Endings,
    /// No lease ends before this time.
    due_ms: u64,
}

impl LeaseTable {
    /// A table of `slabs` slabs, none of them lent. Leases last `lease_ms` from their borrower's last sign of life.
    ///
    /// # Panics
    /// With more than [`SLABS_MAX`] slabs.
    pub fn new(slabs: u32, lease_ms: u64) -> LeaseTable {
        assert!(slabs <= SLABS_MAX, "a donor has {SLABS_MAX} slabs at most");
        LeaseTable {
            slabs: vec![Slab { state: State::Free, token: 0, accesses: 0, reservation: 0 }; slabs as usize],
            free: LentSlab::all(slabs).rev().collect(),
            unwiped: VecDeque::new(),
            borrowers: BTreeMap::new(),
            held: BTreeMap::new(),
            reservations: BTreeMap::new(),
            aside: 0,
            is_drained: false,
            lease_ms,
            last_token: 0,
            leased: 0,
            wanted: 0,
            reclaimed: 0,
            endings: Endings::default(),
            due_ms: u64::MAX,
        }
    }

    /// This table with tokens that are greater than this one.
    #[must_use]
    pub fn with_tokens_after(self, last_token: u64) -> LeaseTable {
        LeaseTable { last_token, ..self }
    }

    /// Grants a slab for a range of a borrower's tier. If the range has a slab, the borrower gets a new token for the
    /// same slab. A borrower must always have the same tenant.
    pub fn grant(
        &mut self,
        now_ms: u64,
        tenant: TenantQuota,
        who: BorrowerId,
        range: RangeIndex,
    ) -> Result<Granted, Refusal> {
        self.expire(now_ms);
        let held = self.borrowers.get(&who);
        let slab = match held.and_then(|borrower| borrower.ranges.get(&range)) {
            // An access with the old token is still in progress; it would take effect after the new token is known.
            Some(slab) if self.slabs[slab.index()].accesses > 0 => return Err(Refusal::Busy),
            Some(slab) => *slab,
            None => {
                self.may_take(tenant)?;
                self.take_free(tenant, who, range)?
            }
        };
        self.last_token += 1;
        self.slabs[slab.index()].token = self.last_token;
        self.touch(now_ms, who);
        self.due_ms = self.due_ms.min(now_ms.saturating_add(self.lease_ms));
        Ok(Granted { slab, token: self.last_token, expires_in_ms: self.expires_in_ms(now_ms, who) })
    }

    fn take_free(&mut self, tenant: TenantQuota, who: BorrowerId, range: RangeIndex) -> Result<LentSlab, Refusal> {
        let reservation = tenant.reservation.unwrap_or(0);
        let nothing = match (self.is_draining(), self.lacks_wiped()) {
            (true, _) => Refusal::Ending,
            // This is transient: a slab that came back can be granted once it is wiped.
            (false, true) => Refusal::Busy,
            (false, false) => Refusal::Full,
        };
        let slab = self.free.pop().ok_or(nothing)?;
        let place = &mut self.slabs[slab.index()];
        assert_eq!(place.state, State::Free, "what is on the list is free");
        assert_eq!(place.accesses, 0, "nobody touches what is free");
        place.state = State::Leased { holder: who, range };
        place.reservation = reservation;
        self.leased += 1;
        *self.held.entry(tenant.id).or_default() += 1;
        self.take_reserved(reservation);
        let (ranges, leaving, called) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let new = || Borrower { tenant: tenant.id, ranges, leaving, called, expires_at_ms: 0, reservation };
        self.borrowers.entry(who).or_insert_with(new).ranges.insert(range, slab);
        Ok(slab)
    }

    /// A sign of life: extends all leases of the borrower. Returns their number, and how long they last.
    pub fn renew(&mut self, now_ms: u64, who: BorrowerId) -> (u64, u64) {
        self.expire(now_ms);
        self.touch(now_ms, who);
        let leases = self.borrowers.get(&who).map_or(0, |borrower| borrower.ranges.len() as u64);
        (leases, self.expires_in_ms(now_ms, who))
    }

    fn touch(&mut self, now_ms: u64, who: BorrowerId) {
        if let Some(borrower) = self.borrowers.get_mut(&who) {
            borrower.expires_at_ms = now_ms.saturating_add(self.lease_ms);
        }
    }

    fn expires_in_ms(&self, now_ms: u64, who: BorrowerId) -> u64 {
        self.borrowers.get(&who).map_or(self.lease_ms, |borrower| borrower.end_ms().saturating_sub(now_ms))
    }

    /// The slab of a lease and its range, if the lease is the borrower's and the token is the last one.
    fn check(&self, who: BorrowerId, lease: u64, token: u64) -> Result<(LentSlab, RangeIndex), Refusal> {
        let slab = LentSlab::of_lease(lease).ok_or(Refusal::NoLease)?;
        let Slab { state: State::Leased { holder, range }, token: last, .. } =
            *self.slabs.get(slab.index()).ok_or(Refusal::NoLease)?
        else {
            return Err(Refusal::NoLease);
        };
        match (holder == who, token == last) {
            (false, _) => Err(Refusal::NotYours),
            (true, false) => Err(Refusal::StaleToken),
            (true, true) => Ok((slab, range)),
        }
    }

    /// Gives one lease back.
    pub fn release(&mut self, now_ms: u64, who: BorrowerId, lease: u64, token: u64) -> Result<(), Refusal> {
        self.expire(now_ms);
        let (slab, range) = self.check(who, lease, token)?;
        self.touch(now_ms, who);
        assert_eq!(self.end_one(who, range), slab, "a slab and its range belong together");
        Ok(())
    }

    fn end_one(&mut self, who: BorrowerId, range: RangeIndex) -> LentSlab {
        let borrower = self.borrowers.get_mut(&who).expect("a holder of a slab is known");
        let slab = borrower.ranges.remove(&range).expect("a lease is for a range");
        borrower.leaving.remove(&range);
        borrower.called.remove(&range);
        let tenant = borrower.tenant;
        if borrower.ranges.is_empty() {
            self.borrowers.remove(&who);
        }
        self.came_back(tenant, slab);
        slab
    }

    /// Gives back everything that a borrower has. Returns the number of leases.
    pub fn release_every(&mut self, now_ms: u64, who: BorrowerId) -> u64 {
        self.expire(now_ms);
        self.end_every(who)
    }

    /// Gives back everything that the borrowers of a tree have. Returns the number of leases.
    pub fn release_tree(&mut self, now_ms: u64, tree: u64) -> u64 {
        self.expire(now_ms);
        let first = u128::from(tree) << 64;
        let all = BorrowerId(first)..=BorrowerId(first | u128::from(u64::MAX));
        let members: Vec<BorrowerId> = self.borrowers.range(all).map(|(who, _)| *who).collect();
        members.into_iter().map(|who| self.end_every(who)).sum()
    }

    fn end_every(&mut self, who: BorrowerId) -> u64 {
        let Some(borrower) = self.borrowers.remove(&who) else { return 0 };
        borrower.ranges.values().for_each(|slab| self.came_back(borrower.tenant, *slab));
        borrower.ranges.len() as u64
    }

    fn came_back(&mut self, tenant: TenantId, slab: LentSlab) {
        let held = self.held.get_mut(&tenant).expect("the slabs of a tenant are counted");
        *held -= 1;
        if *held == 0 {
            self.held.remove(&tenant);
        }
        self.slabs[slab.index()].state = State::Unwiped;
        self.leased -= 1;
        self.return_reserved(self.slabs[slab.index()].reservation);
        self.unwiped.push_back(slab);
    }

    /// Ends the leases that have expired.
    pub fn expire(&mut self, now_ms: u64) {
        if now_ms < self.due_ms {
            return;
        }
        let is_dead = |(who, borrower): (&BorrowerId, &Borrower)| (borrower.expires_at_ms <= now_ms).then_some(*who);
        let dead: Vec<BorrowerId> = self.borrowers.iter().filter_map(is_dead).collect();
        for who in dead {
            self.endings.expired += self.end_every(who);
        }
        // After the expired leases: slabs that came back through them need not be taken from other borrowers.
        self.revoke_due(now_ms);
        let called = self.borrowers.values().filter_map(|borrower| borrower.called.values().min().copied());
        self.due_ms = self.next_end_ms().into_iter().chain(called).min().unwrap_or(u64::MAX);
    }

    /// Begins an access: the bytes stay the borrower's until [`LeaseTable::end`]. This is also a sign of life.
    pub fn begin(&mut self, now_ms: u64, who: BorrowerId, claim: Claim) -> Result<Access, Refusal> {
        self.expire(now_ms);
        let (slab, range) = self.check(who, claim.lease, claim.token)?;
        let start = claim.offset % SLAB_BYTES;
        if RangeIndex::at(claim.offset) != range || claim.bytes > SLAB_BYTES - start {
            return Err(Refusal::OutsideLease);
        }
        self.touch(now_ms, who);
        self.slabs[slab.index()].accesses += 1;
        Ok(Access { slab, start })
    }

    /// Begins an access to a whole slab, as [`begin`](Self::begin) does for some bytes.
    pub fn begin_slab(&mut self, now_ms: u64, who: BorrowerId, lease: u64, token: u64) -> Result<Access, Refusal> {
        self.expire(now_ms);
        let (slab, _) = self.check(who, lease, token)?;
        self.touch(now_ms, who);
        self.slabs[slab.index()].accesses += 1;
        Ok(Access { slab, start: 0 })
    }

    /// Ends an access. Returns whether the slab came back in the meantime and can be wiped now.
    pub fn end(&mut self, access: Access) -> bool {
        let slab = &mut self.slabs[access.slab.index()];
        slab.accesses = slab.accesses.checked_sub(1).expect("an access ends once");
        slab.accesses == 0 && slab.state == State::Unwiped
    }

    /// A slab that came back and that nobody accesses any more. The caller has to wipe it.
    pub fn take_unwiped(&mut self) -> Option<LentSlab> {
        let idle = |slab: &LentSlab| self.slabs[slab.index()].accesses == 0;
        let place = self.unwiped.iter().position(idle)?;
        let slab = self.unwiped.remove(place).expect("the place was just found");
        self.slabs[slab.index()].state = State::Wiping;
        Some(slab)
    }

    /// Records that a slab is wiped. Returns whether the donor has reclaimed it for good.
    pub fn wiped(&mut self, slab: LentSlab) -> bool {
        assert_eq!(self.slabs[slab.index()].state, State::Wiping, "only what was taken is wiped");
        let reservation = std::mem::take(&mut self.slabs[slab.index()].reservation);
        self.wiped_reserved(reservation);
        let is_wanted = self.wanted > 0;
        if is_wanted {
            self.take_back(slab);
        } else {
            self.slabs[slab.index()].state = State::Free;
            self.free.push(slab);
        }
        is_wanted
    }

    /// When the next leases end without a sign of life; `None` while there are no leases.
    pub fn next_end_ms(&self) -> Option<u64> {
        self.borrowers.values().map(Borrower::end_ms).min()
    }

    /// The number of slabs.
    pub fn slabs(&self) -> u32 {
        self.slabs.len() as u32
    }

    /// How many slabs are lent.
    pub fn leased(&self) -> u32 {
        self.leased
    }

    /// How many slabs came back and cannot be granted yet.
    pub fn unwiped(&self) -> u32 {
        self.slabs() - self.leased - self.free.len() as u32 - self.reclaimed
    }

    /// Whether no slab can be granted before one that came back has been wiped.
    pub fn lacks_wiped(&self) -> bool {
        self.free.is_empty() && self.unwiped() > 0
    }

    /// How many borrowers have a lease.
    pub fn borrowers(&self) -> usize {
        self.borrowers.len()
    }

    /// How many slabs a tenant's borrowers have.
    pub fn held(&self, tenant: TenantId) -> u32 {
        self.held.get(&tenant).copied().unwrap_or(0)
    }

    /// How many slabs can be lent, now or later.
    pub fn lendable(&self) -> u32 {
        self.slabs() - self.reclaimed - self.wanted
    }

    /// How long leases last.
    pub fn lease_ms(&self) -> u64 {
        self.lease_ms
    }

    /// How many leases ended without being given back.
    pub fn endings(&self) -> Endings {
        self.endings
    }
}
