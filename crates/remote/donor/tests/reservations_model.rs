// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reservations against a plain model, in seeded histories of reserving, borrowing, releasing, expiry, wiping, reclaim
//! and drain.
//!
//! The bugs it guards against: a tenant takes what is set aside for another one; a slab of a released reservation is
//! lent before it is wiped, or never again; a released reservation counts as wiped too early.

use std::collections::{BTreeMap, BTreeSet};

use aquifer_donor::TenantId;
use aquifer_donor::leases::{LeaseTable, TenantQuota};
use aquifer_test_support::Random;
use aquifer_wire::{BorrowerId, LentSlab, RESERVATION_TOKENS, RangeIndex, Refusal};

const SLABS: u32 = 12;
const QUOTA: u32 = 9;
const LEASE_MS: u64 = 50;
const HISTORIES: u64 = 3000;
const STEPS: usize = 120;

/// A lease as the model knows it.
#[derive(Clone, Copy, Debug)]
struct Held {
    slab: LentSlab,
    token: u64,
    reservation: Option<u64>,
}

#[derive(Debug, Default)]
struct Model {
    now_ms: u64,
    held: BTreeMap<(BorrowerId, u64), Held>,
    /// The tenant and size of each reservation that is not released.
    live: BTreeMap<u64, (u64, u32)>,
    /// The reservation of each slab that came back and is not wiped.
    back: BTreeMap<LentSlab, Option<u64>>,
    wiping: Vec<LentSlab>,
    released: BTreeSet<u64>,
    last_token: u64,
}

fn borrower(tenant: u64, reservation: Option<u64>) -> BorrowerId {
    BorrowerId(u128::from(reservation.unwrap_or(RESERVATION_TOKENS)) << 64 | u128::from(tenant))
}

fn quota(tenant: u64, reservation: Option<u64>) -> TenantQuota {
    TenantQuota { id: TenantId(tenant), quota_slabs: QUOTA, reservation }
}

impl Model {
    fn held_of(&self, reservation: u64) -> u32 {
        self.held.values().filter(|held| held.reservation == Some(reservation)).count() as u32
    }

    fn aside(&self) -> u32 {
        self.live.iter().map(|(token, (_, slabs))| slabs - self.held_of(*token)).sum()
    }

    fn used(&self, tenant: u64) -> u32 {
        let lent = self.held.keys().filter(|(who, _)| who.0 as u64 == tenant).count() as u32;
        let live = self.live.iter().filter(|(_, (of, _))| *of == tenant);
        lent + live.map(|(token, (_, slabs))| slabs - self.held_of(*token)).sum::<u32>()
    }

    /// Slabs that nobody has, wiped or not.
    fn spare(&self) -> u32 {
        SLABS - self.held.len() as u32
    }

    fn end(&mut self, keys: Vec<(BorrowerId, u64)>) {
        for key in keys {
            let held = self.held.remove(&key).expect("it was listed");
            self.back.insert(held.slab, held.reservation);
        }
    }

    fn check(&self, table: &LeaseTable, seed: u64) {
        assert_eq!(table.leased() as usize, self.held.len(), "seed {seed}");
        assert_eq!(table.common(), self.spare() - self.aside(), "seed {seed}");
        for (token, (tenant, slabs)) in &self.live {
            let found = table.reservation(*token).unwrap_or_else(|| panic!("seed {seed}: {token} is lost"));
            let expected = (TenantId(*tenant), *slabs, self.held_of(*token), false);
            assert_eq!((found.tenant, found.slabs, found.held, found.is_released), expected, "seed {seed}");
        }
        for token in &self.released {
            let unwiped = self.back.values().filter(|of| **of == Some(*token)).count() as u32;
            let found = table.reservation(*token);
            assert_eq!(found.map_or(0, |one| one.unwiped), unwiped, "seed {seed}: {token}");
            assert_eq!(found.is_some(), unwiped > 0, "seed {seed}: {token} exists until it is wiped");
        }
    }
}

fn grant(model: &mut Model, table: &mut LeaseTable, random: &mut Random, seed: u64) {
    let (tenant, range) = (random.below(3), random.below(6));
    // Any token: its own, another tenant's, a released one, or none.
    let reservation = if random.below(3) > 0 { Some(1 + random.below(model.last_token.max(1))) } else { None };
    let who = borrower(tenant, reservation);
    let outcome = table.grant(model.now_ms, quota(tenant, reservation), who, RangeIndex(range));
    let key = (who, range);
    let is_free =
        |slab: &LentSlab| !model.back.contains_key(slab) && model.held.values().all(|held| held.slab != *slab);
    let expected = match (model.held.contains_key(&key), reservation) {
        (true, _) => Ok(()),
        (false, Some(token)) => match model.live.get(&token) {
            None => Err(Refusal::NoLease),
            Some((of, _)) if *of != tenant => Err(Refusal::NotYours),
            Some((_, slabs)) if model.held_of(token) >= *slabs => Err(Refusal::Full),
            Some(_) => Ok(()),
        },
        (false, None) if model.used(tenant) >= QUOTA => Err(Refusal::Quota),
        (false, None) if model.aside() > 0 && model.spare() == model.aside() => Err(Refusal::Full),
        (false, None) => Ok(()),
    };
    match (outcome, expected) {
        (Ok(granted), Ok(())) => {
            assert!(model.held.contains_key(&key) || is_free(&granted.slab), "seed {seed}: not wiped, or lent twice");
            model.held.insert(key, Held { slab: granted.slab, token: granted.token, reservation });
        }
        // Everything that nobody has is unwiped, or there is nothing.
        (Err(Refusal::Busy | Refusal::Full), Ok(())) => {
            let wiped = SLABS as usize - model.held.len() - model.back.len();
            assert_eq!(wiped, 0, "seed {seed}: a wiped slab was refused");
        }
        (Err(refusal), Err(expected)) => assert_eq!(refusal, expected, "seed {seed}"),
        (outcome, expected) => panic!("seed {seed}: {outcome:?}, not {expected:?}"),
    }
}

fn step(model: &mut Model, table: &mut LeaseTable, random: &mut Random, seed: u64) {
    match random.below(10) {
        0 => {
            let (tenant, slabs) = (random.below(3), 1 + random.below(5) as u32);
            model.last_token += 1;
            let token = model.last_token;
            let outcome = table.reserve(model.now_ms, quota(tenant, None), slabs, token);
            let expected = match () {
                () if model.used(tenant) + slabs > QUOTA => Err(Refusal::Quota),
                () if model.spare() - model.aside() < slabs => Err(Refusal::Full),
                () => Ok(()),
            };
            assert_eq!(outcome, expected, "seed {seed}");
            if outcome.is_ok() {
                model.live.insert(token, (tenant, slabs));
            }
        }
        1 if model.last_token > 0 => {
            let token = 1 + random.below(model.last_token);
            let had = table.reservation(token).is_some();
            assert_eq!(table.release_reservation(model.now_ms, token), had, "seed {seed}");
            if model.live.remove(&token).is_some() {
                model.released.insert(token);
                let ended = model.held.iter().filter(|(_, held)| held.reservation == Some(token));
                model.end(ended.map(|(key, _)| *key).collect());
            }
        }
        2 => {
            // Everybody has gone silent.
            if random.below(4) == 0 {
                model.now_ms += LEASE_MS + 1;
                table.expire(model.now_ms);
                model.end(model.held.keys().copied().collect());
            } else {
                model.now_ms += 1;
                let all: BTreeSet<BorrowerId> = model.held.keys().map(|(who, _)| *who).collect();
                for who in all {
                    table.renew(model.now_ms, who);
                }
            }
        }
        3 => {
            let nth = random.below(model.held.len().max(1) as u64) as usize;
            if let Some((key, held)) = model.held.iter().nth(nth).map(|(key, held)| (*key, *held)) {
                table.release(model.now_ms, key.0, held.slab.lease(), held.token).expect("it has the newest token");
                model.end(vec![key]);
            }
        }
        4 | 5 => model.wiping.extend(table.take_unwiped()),
        6 => {
            if let Some(slab) = model.wiping.pop() {
                assert!(!table.wiped(slab), "nothing is reclaimed");
                model.back.remove(&slab);
            }
        }
        _ => grant(model, table, random, seed),
    }
}

#[test]
fn what_is_set_aside_is_its_tenants_until_it_is_released_and_wiped() {
    for seed in 0..HISTORIES {
        let (mut random, mut model) = (Random(seed), Model::default());
        let mut table = LeaseTable::new(SLABS, LEASE_MS);
        for _ in 0..STEPS {
            step(&mut model, &mut table, &mut random, seed);
            model.check(&table, seed);
        }
    }
}

#[test]
fn a_drained_donor_lends_and_sets_aside_nothing_new_and_keeps_what_it_has() {
    let mut table = LeaseTable::new(8, LEASE_MS);
    table.reserve(0, quota(1, None), 3, 7).expect("there is room");
    let one = borrower(1, Some(7));
    table.grant(0, quota(1, Some(7)), one, RangeIndex(0)).expect("it is reserved");
    table.grant(0, quota(2, None), borrower(2, None), RangeIndex(0)).expect("there is room");
    table.set_drained(true);
    assert_eq!(table.call_back_common(0, 10), 1, "the lease outside of reservations");
    assert_eq!(table.call_back_common(0, 10), 0, "it was called back before");
    assert_eq!(table.grant(1, quota(2, None), borrower(2, None), RangeIndex(1)), Err(Refusal::Ending));
    assert_eq!(table.reserve(1, quota(2, None), 1, 8), Err(Refusal::Ending));
    table.grant(1, quota(1, Some(7)), one, RangeIndex(1)).expect("it was set aside before");
    // Nothing is revoked when the time is over.
    table.renew(11, borrower(2, None));
    assert_eq!((table.leased(), table.asked()), (3, 0));
    table.set_drained(false);
    table.grant(12, quota(2, None), borrower(2, None), RangeIndex(1)).expect("it lends again");
}

/// What a drain had called back counted as given back in time. So a donor that was drained, which leaves borrowers ten
/// minutes, did not get its memory back within the minute that an administrator had ordered.
#[test]
fn a_drained_donor_reclaims_memory_in_time() {
    let mut table = LeaseTable::new(8, LEASE_MS);
    let who = borrower(2, None);
    (0..4).for_each(|range| _ = table.grant(0, quota(2, None), who, RangeIndex(range)).expect("there is room"));
    table.set_drained(true);
    assert_eq!(table.call_back_common(0, 10 * LEASE_MS), 4);
    assert_eq!(table.reclaim(1, 6, LEASE_MS / 4).len(), 4, "those that nobody has");
    let ends: Vec<u64> = table.leaving(who, RangeIndex(0)).map(|leaving| leaving.ends_by_ms).collect();
    assert_eq!(ends, [10 * LEASE_MS, 10 * LEASE_MS, LEASE_MS / 4 + 1, LEASE_MS / 4 + 1]);
    assert_eq!(table.leaves_whole(who), None);
    table.renew(LEASE_MS / 2, who);
    assert_eq!((table.leased(), table.unwiped()), (2, 2), "they were revoked");
    for now_ms in (1..=20).map(|tenth| tenth * LEASE_MS / 2) {
        table.renew(now_ms, who);
    }
    assert_eq!((table.leased(), table.leaving(who, RangeIndex(0)).count()), (2, 0), "a drain revokes nothing");
    assert_eq!(table.call_back_common(11 * LEASE_MS, LEASE_MS), 0, "its lease has expired");
}

#[test]
fn a_donor_that_reclaims_too_much_says_that_it_breaks_its_reservations() {
    let mut table = LeaseTable::new(8, LEASE_MS);
    table.reserve(0, quota(1, None), 3, 7).expect("there is room");
    assert_eq!(table.reclaim(0, 5, 0).len(), 5);
    assert!(!table.breaks_reservations(), "three are left");
    assert_eq!((table.reservable(), table.common()), (3, 0));
    table.reclaim(1, 3, 0);
    assert!(table.breaks_reservations());
    assert!(table.grant(2, quota(1, Some(7)), borrower(1, Some(7)), RangeIndex(0)).is_err());
}
