// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The lease table against a plain model, under any mix of borrowers, time, accesses, wipes and old tokens.
//!
//! The bugs it guards against: a borrower reads what another one stored, because its slab was passed on too early, too
//! often, or to a borrower that has only an old token; a donor does not get its memory back, or takes from a
//! borrower what it could have had without taking it from anybody.

use std::collections::{BTreeMap, BTreeSet};

use aquifer_donor::TenantId;
use aquifer_donor::leases::{Access, Claim, LeaseTable, TenantQuota};
use aquifer_wire::{BorrowerId, LentSlab, RangeIndex, Refusal, SLAB_BYTES};
use proptest::prelude::*;

const SLABS: u32 = 5;
const QUOTA: u32 = 3;
const LEASE_MS: u64 = 100;

/// The tenant of a borrower. The first two borrowers have the same one, and share its quota.
fn tenant(who: u128) -> TenantId {
    TenantId(who as u64 / 2)
}

fn quota(who: u128) -> TenantQuota {
    TenantQuota { id: tenant(who), quota_slabs: QUOTA, reservation: None }
}

/// The quota of one tenant.
fn full(quota_slabs: u32) -> TenantQuota {
    TenantQuota { id: TenantId(0), quota_slabs, reservation: None }
}

#[derive(Clone, Debug)]
enum Step {
    Advance(u64),
    /// By `who`, with the nth token that was ever given; `shift` pages beyond its range's beginning.
    Begin {
        who: u128,
        nth: usize,
        shift: u64,
    },
    End {
        nth: usize,
    },
    Grant {
        who: u128,
        range: RangeIndex,
    },
    Release {
        who: u128,
        nth: usize,
    },
    ReleaseEvery {
        who: u128,
    },
    Renew {
        who: u128,
    },
    /// Takes memory back.
    Reclaim {
        slabs: u32,
        within_ms: u64,
    },
    TakeUnwiped,
    Wiped {
        nth: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (who, nth) = (|| 0..3u128, || 0..64usize);
    let step = prop_oneof![
        3 => prop_oneof![0..20u64, 80..120u64].prop_map(Step::Advance),
        8 => (who(), nth(), prop_oneof![Just(0), 0..1024u64])
            .prop_map(|(who, nth, shift)| Step::Begin { who, nth, shift }),
        5 => nth().prop_map(|nth| Step::End { nth }),
        8 => (who(), 0..4u64).prop_map(|(who, range)| Step::Grant { who, range: RangeIndex(range) }),
        3 => (who(), nth()).prop_map(|(who, nth)| Step::Release { who, nth }),
        1 => who().prop_map(|who| Step::ReleaseEvery { who }),
        2 => who().prop_map(|who| Step::Renew { who }),
        5 => Just(Step::TakeUnwiped),
        5 => nth().prop_map(|nth| Step::Wiped { nth }),
    ];
    // Few of them, because memory that is taken back is no longer granted.
    let reclaim = (1..SLABS + 2, 1..150u64, 0..120usize);
    (prop::collection::vec(step, 1..120), prop::collection::vec(reclaim, 0..3)).prop_map(|(mut steps, reclaims)| {
        for (slabs, within_ms, at) in reclaims {
            steps.insert(at.min(steps.len()), Step::Reclaim { slabs, within_ms });
        }
        steps
    })
}

#[derive(Clone, Copy, Debug)]
struct Held {
    slab: LentSlab,
    token: u64,
}

#[derive(Default)]
struct Model {
    now_ms: u64,
    /// What each borrower has, by range.
    held: BTreeMap<(u128, RangeIndex), Held>,
    alive_at_ms: BTreeMap<u128, u64>,
    /// Leases that are asked back, and by when.
    leaving: BTreeMap<(u128, RangeIndex), u64>,
    /// Slabs that came back and are not wiped.
    back: BTreeSet<LentSlab>,
    /// Slabs that the donor wants back, and those that it has.
    wanted: usize,
    reclaimed: BTreeSet<LentSlab>,
    /// Whose bytes are in a slab.
    bytes_of: BTreeMap<LentSlab, u128>,
    wiping: Vec<LentSlab>,
    accesses: Vec<Access>,
    /// Every token ever given, with its slab and range.
    given: Vec<(LentSlab, u64, RangeIndex)>,
}

impl Model {
    fn end_due(&mut self) {
        let (now, alive) = (self.now_ms, &self.alive_at_ms);
        let is_dead = |(who, _): &&(u128, RangeIndex)| alive[who] + LEASE_MS <= now;
        let dead: Vec<_> = self.held.keys().filter(is_dead).copied().collect();
        dead.into_iter().for_each(|lease| self.end(lease));
        let due: Vec<_> = self.leaving.iter().filter(|(_, end)| **end <= now).map(|(lease, _)| *lease).collect();
        for lease in due {
            if self.back.len() < self.wanted {
                self.end(lease);
            }
            self.leaving.remove(&lease);
        }
    }

    fn end(&mut self, lease: (u128, RangeIndex)) {
        let held = self.held.remove(&lease).expect("somebody has it");
        self.leaving.remove(&lease);
        self.back.insert(held.slab);
    }

    fn free(&self) -> usize {
        SLABS as usize - self.held.len() - self.back.len() - self.reclaimed.len()
    }

    /// The number of each borrower's slabs that it is not asked to give back.
    fn stocks(&self) -> BTreeMap<u128, usize> {
        let mut stocks = BTreeMap::new();
        for lease in self.held.keys() {
            *stocks.entry(lease.0).or_default() += usize::from(!self.leaving.contains_key(lease));
        }
        stocks
    }

    fn reclaim(&mut self, table: &mut LeaseTable, slabs: u32, within_ms: u64) {
        let taken = table.reclaim(self.now_ms, slabs, within_ms);
        self.wanted = (self.wanted + slabs as usize).min(SLABS as usize - self.reclaimed.len());
        assert_eq!(taken.len(), self.wanted.min(self.free()), "what nobody has goes first");
        self.wanted -= taken.len();
        for slab in taken {
            assert!(self.reclaimed.insert(slab) && !self.back.contains(&slab));
            assert!(self.held.values().all(|held| held.slab != slab), "it was somebody's");
        }
        let end = self.now_ms + within_ms;
        let is_all = self.wanted + self.reclaimed.len() == SLABS as usize;
        let stocks = self.stocks();
        let before = std::mem::take(&mut self.leaving);
        for who in 0..3 {
            for leaving in table.leaving(BorrowerId(who), RangeIndex(0)) {
                assert_eq!(self.held[&(who, leaving.range)].slab, leaving.slab);
                let given = before.get(&(who, leaving.range));
                let expected = given.map_or(end, |given| if is_all { end.min(*given) } else { *given });
                assert_eq!(leaving.ends_by_ms, expected);
                self.leaving.insert((who, leaving.range), leaving.ends_by_ms);
            }
            let ends: BTreeSet<_> =
                table.leaving(BorrowerId(who), RangeIndex(0)).map(|leaving| leaving.ends_by_ms).collect();
            let has = self.held.keys().filter(|(holder, _)| *holder == who).count();
            let is_whole = ends.len() == 1 && table.leaving(BorrowerId(who), RangeIndex(0)).count() == has;
            assert_eq!(table.leaves_whole(BorrowerId(who)), ends.first().filter(|_| is_whole).copied());
        }
        assert!(before.keys().all(|lease| self.leaving.contains_key(lease)), "what was asked back stays asked back");
        let enough = self.wanted.saturating_sub(self.back.len());
        assert_eq!(self.leaving.len(), enough.max(before.len()), "as many are asked back as are needed");
        let after = self.stocks();
        let givers = after.iter().filter(|(who, stock)| stocks[who] > **stock).map(|(_, stock)| *stock);
        if let Some(min) = givers.min() {
            assert!(after.values().all(|stock| *stock <= min + 1), "{stocks:?} became {after:?}");
        }
    }

    fn has(&self, who: u128) -> bool {
        self.held.keys().any(|(holder, _)| *holder == who)
    }

    fn sign_of_life(&mut self, who: u128) {
        if self.has(who) {
            self.alive_at_ms.insert(who, self.now_ms);
        }
    }

    fn touched(&self, slab: LentSlab) -> bool {
        self.accesses.iter().any(|access| access.slab == slab)
    }

    fn expected(&self, who: u128, lease: u64, token: u64) -> Result<RangeIndex, Refusal> {
        let found = self.held.iter().find(|(_, held)| held.slab.lease() == lease);
        match found {
            None => Err(Refusal::NoLease),
            Some(((holder, _), _)) if *holder != who => Err(Refusal::NotYours),
            Some((_, held)) if held.token != token => Err(Refusal::StaleToken),
            Some(((_, range), _)) => Ok(*range),
        }
    }

    fn play(&mut self, table: &mut LeaseTable, step: &Step) {
        self.end_due();
        match *step {
            Step::Advance(by) => self.now_ms += by,
            Step::Grant { who, range } => self.grant(table, who, range),
            Step::Begin { who, nth, shift } => {
                let Some(&(slab, token, range)) = self.given.get(nth) else { return };
                let (offset, bytes) = (range.offset() + shift * 4096, SLAB_BYTES / 2);
                let claim = Claim { lease: slab.lease(), token, offset, bytes };
                let expected = self.expected(who, claim.lease, token).and_then(|range| {
                    let inside = RangeIndex::at(offset) == range && RangeIndex::at(offset + bytes - 1) == range;
                    if inside { Ok(()) } else { Err(Refusal::OutsideLease) }
                });
                let begun = table.begin(self.now_ms, BorrowerId(who), claim);
                assert_eq!(begun.as_ref().map(|_| ()).map_err(|refusal| *refusal), expected);
                if let Ok(access) = begun {
                    assert_eq!((access.slab, access.start), (slab, offset % SLAB_BYTES));
                    assert!(self.bytes_of.get(&slab).is_none_or(|owner| *owner == who), "another one's bytes");
                    self.bytes_of.insert(slab, who);
                    self.accesses.push(access);
                    self.sign_of_life(who);
                }
            }
            Step::End { nth } => {
                if nth < self.accesses.len() {
                    table.end(self.accesses.swap_remove(nth));
                }
            }
            Step::Release { who, nth } => {
                let Some(&(slab, token, _)) = self.given.get(nth) else { return };
                let expected = self.expected(who, slab.lease(), token);
                let released = table.release(self.now_ms, BorrowerId(who), slab.lease(), token);
                assert_eq!(released, expected.map(|_| ()));
                if let Ok(range) = expected {
                    self.sign_of_life(who);
                    self.end((who, range));
                }
            }
            Step::ReleaseEvery { who } => {
                let count = self.held.keys().filter(|(holder, _)| *holder == who).count() as u64;
                assert_eq!(table.release_every(self.now_ms, BorrowerId(who)), count);
                let all: Vec<_> = self.held.keys().filter(|(holder, _)| *holder == who).copied().collect();
                all.into_iter().for_each(|lease| self.end(lease));
            }
            Step::Renew { who } => {
                let count = self.held.keys().filter(|(holder, _)| *holder == who).count() as u64;
                assert_eq!(table.renew(self.now_ms, BorrowerId(who)).0, count);
                self.sign_of_life(who);
            }
            Step::Reclaim { slabs, within_ms } => self.reclaim(table, slabs, within_ms),
            Step::TakeUnwiped => {
                table.expire(self.now_ms);
                if let Some(slab) = table.take_unwiped() {
                    assert!(self.held.values().all(|held| held.slab != slab), "a slab that somebody has is wiped");
                    assert!(!self.touched(slab), "a slab is wiped under an access");
                    self.wiping.push(slab);
                }
            }
            Step::Wiped { nth } => {
                if nth < self.wiping.len() {
                    let slab = self.wiping.swap_remove(nth);
                    self.bytes_of.remove(&slab);
                    assert!(self.back.remove(&slab));
                    assert_eq!(table.wiped(slab), self.wanted > 0);
                    if self.wanted > 0 {
                        self.wanted -= 1;
                        self.reclaimed.insert(slab);
                    }
                }
            }
        }
        self.end_due();
        table.expire(self.now_ms);
        assert_eq!(table.leased() as usize, self.held.len());
        assert_eq!((table.wanted() as usize, table.reclaimed() as usize), (self.wanted, self.reclaimed.len()));
        assert_eq!((table.asked() as usize, table.unwiped() as usize), (self.leaving.len(), self.back.len()));
        assert!(self.wanted <= self.back.len() + self.leaving.len(), "nobody is left who could give what is wanted");
    }

    /// Lets time pass, with nobody giving a sign of life.
    fn pass_time(&mut self, table: &mut LeaseTable) {
        while !self.accesses.is_empty() {
            self.play(table, &Step::End { nth: 0 });
        }
        self.play(table, &Step::Advance(10 * LEASE_MS));
        while !self.back.is_empty() {
            self.play(table, &Step::TakeUnwiped);
            self.play(table, &Step::Wiped { nth: 0 });
        }
        assert_eq!(table.wanted(), 0, "what is wanted back comes back");
    }

    fn grant(&mut self, table: &mut LeaseTable, who: u128, range: RangeIndex) {
        let granted = table.grant(self.now_ms, quota(who), BorrowerId(who), range);
        let before = self.held.get(&(who, range)).copied();
        let count = self.held.keys().filter(|(holder, _)| tenant(*holder) == tenant(who)).count();
        assert_eq!(table.held(tenant(who)) as usize, count + usize::from(granted.is_ok() && before.is_none()));
        match granted {
            Ok(granted) => {
                assert!(!self.reclaimed.contains(&granted.slab), "what was taken back is lent");
                assert!(self.given.iter().all(|(_, token, _)| *token < granted.token), "tokens grow");
                match before {
                    Some(held) => {
                        assert_eq!(held.slab, granted.slab, "a range keeps its slab");
                        assert!(!self.touched(held.slab), "an access with the old token is under way");
                    }
                    None => {
                        assert_eq!(self.wanted, 0, "a donor that wants memory back lends nothing new");
                        assert!(count < QUOTA as usize, "the quota holds");
                        assert!(self.held.values().all(|held| held.slab != granted.slab), "two holders");
                        assert_eq!(self.bytes_of.get(&granted.slab), None, "granted unwiped");
                        assert!(!self.touched(granted.slab), "granted under an access");
                    }
                }
                self.held.insert((who, range), Held { slab: granted.slab, token: granted.token });
                self.given.push((granted.slab, granted.token, range));
                self.alive_at_ms.insert(who, self.now_ms);
            }
            Err(Refusal::Ending) => {
                assert!(before.is_none() && (self.wanted > 0 || self.reclaimed.len() == SLABS as usize));
            }
            Err(Refusal::Busy) => match before {
                Some(held) => assert!(self.touched(held.slab)),
                None => assert!(self.wanted == 0 && self.free() == 0 && !self.back.is_empty(), "nothing will be wiped"),
            },
            Err(Refusal::Quota) => assert_eq!((before.is_none(), count), (true, QUOTA as usize)),
            Err(Refusal::Full) => {
                assert!(before.is_none() && self.wanted == 0 && self.free() == 0 && self.back.is_empty());
            }
            Err(other) => panic!("a grant is not refused for {other:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_table_keeps_its_promises(steps in steps()) {
        let mut table = LeaseTable::new(SLABS, LEASE_MS);
        let mut model = Model::default();
        steps.iter().for_each(|step| model.play(&mut table, step));
        model.pass_time(&mut table);
    }
}

#[test]
fn slabs_revoked_at_once_are_wiped_and_not_lent_again() {
    let mut table = LeaseTable::new(4, LEASE_MS);
    let one = BorrowerId(1);
    let leases: Vec<_> = RangeIndex::all(3).map(|range| table.grant(0, full(8), one, range).unwrap()).collect();
    assert_eq!(table.reclaim(10, 2, 0), [LentSlab(3)], "the one that nobody has");
    assert_eq!((table.leased(), table.endings().revoked, table.wanted()), (2, 1, 1));
    assert_eq!(table.grant(10, full(8), one, RangeIndex(5)), Err(Refusal::Ending));
    let slab = table.take_unwiped().unwrap();
    assert!(leases.iter().any(|granted| granted.slab == slab));
    assert!(table.wiped(slab));
    assert_eq!((table.wanted(), table.reclaimed(), table.lendable()), (0, 2, 2));
    assert_eq!(table.grant(10, full(8), one, RangeIndex(5)), Err(Refusal::Full));
}

#[test]
fn a_tree_gives_back_what_all_of_it_has_and_nobody_else() {
    let mut table = LeaseTable::new(8, LEASE_MS);
    let of = |tree: u128, number: u128| BorrowerId(tree << 64 | number);
    for who in [of(1, u128::from(u64::MAX)), of(2, 0), of(2, 7), of(2, u128::from(u64::MAX)), of(3, 0)] {
        table.grant(0, full(8), who, RangeIndex(0)).unwrap();
    }
    assert_eq!(table.release_tree(0, 2), 3);
    assert_eq!((table.leased(), table.renew(0, of(1, u128::from(u64::MAX))).0, table.renew(0, of(3, 0)).0), (2, 1, 1));
}

#[test]
fn a_slab_goes_round() {
    let (one, other) = (BorrowerId(1), BorrowerId(2));
    let mut table = LeaseTable::new(1, LEASE_MS);
    let granted = table.grant(0, full(8), one, RangeIndex(7)).unwrap();
    assert_eq!((granted.slab, granted.expires_in_ms, table.next_end_ms()), (LentSlab(0), LEASE_MS, Some(LEASE_MS)));
    assert_eq!(table.grant(0, full(8), other, RangeIndex(0)), Err(Refusal::Full));
    assert_eq!(table.grant(0, full(1), one, RangeIndex(8)), Err(Refusal::Quota));
    let claim = Claim { lease: 0, token: granted.token, offset: 7 * SLAB_BYTES, bytes: SLAB_BYTES };
    let access = table.begin(50, one, claim).unwrap();
    assert_eq!(table.next_end_ms(), Some(50 + LEASE_MS), "an access is a sign of life");
    table.expire(50 + LEASE_MS);
    assert_eq!((table.leased(), table.unwiped(), table.endings().expired), (0, 1, 1));
    assert_eq!(table.take_unwiped(), None, "the access has not ended");
    table.end(access);
    assert_eq!(table.take_unwiped(), Some(LentSlab(0)));
    assert_eq!(table.grant(200, full(8), other, RangeIndex(0)), Err(Refusal::Busy), "it is not wiped yet");
    table.wiped(LentSlab(0));
    assert!(table.grant(200, full(8), other, RangeIndex(0)).unwrap().token > granted.token);
    assert_eq!(table.begin(200, one, claim), Err(Refusal::NotYours));
}
