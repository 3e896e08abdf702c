// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The lease table against a plain model, under any mix of borrowers, time, accesses, wipes and old tokens.
//!
//! The trouble it guards against: a borrower that reads what another one stored, because its slab was given on too
//! early, too often, or to somebody who only remembers an old token.

use std::collections::BTreeMap;

use aquifer_donor::leases::{Access, Claim, LeaseTable};
use aquifer_wire::{BorrowerId, Refusal, SLAB_BYTES};
use proptest::prelude::*;

const SLABS: u32 = 5;
const QUOTA: u32 = 3;
const LEASE_MS: u64 = 100;

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
        range: u64,
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
    Revoke {
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
        8 => (who(), 0..4u64).prop_map(|(who, range)| Step::Grant { who, range }),
        3 => (who(), nth()).prop_map(|(who, nth)| Step::Release { who, nth }),
        1 => who().prop_map(|who| Step::ReleaseEvery { who }),
        2 => who().prop_map(|who| Step::Renew { who }),
        5 => Just(Step::TakeUnwiped),
        5 => nth().prop_map(|nth| Step::Wiped { nth }),
    ];
    // At most one revocation, near the end: nothing is granted behind it.
    (prop::collection::vec(step, 1..120), prop::option::of((0..60u64, 100..120usize))).prop_map(
        |(mut steps, revoke)| {
            if let Some((within_ms, at)) = revoke {
                steps.insert(at.min(steps.len()), Step::Revoke { within_ms });
            }
            steps
        },
    )
}

#[derive(Clone, Copy, Debug)]
struct Held {
    slab: u32,
    token: u64,
}

#[derive(Default)]
struct Model {
    now_ms: u64,
    /// What each borrower has, by range.
    held: BTreeMap<(u128, u64), Held>,
    alive_at_ms: BTreeMap<u128, u64>,
    revoked_at_ms: Option<u64>,
    /// Whose bytes are in a slab.
    bytes_of: BTreeMap<u32, u128>,
    wiping: Vec<u32>,
    accesses: Vec<Access>,
    /// Every token ever given, with its slab and range.
    given: Vec<(u32, u64, u64)>,
}

impl Model {
    fn end_due(&mut self) {
        let (now, alive) = (self.now_ms, &self.alive_at_ms);
        let revoked = self.revoked_at_ms.is_some_and(|end| end <= now);
        self.held.retain(|(who, _), _| !revoked && alive[who] + LEASE_MS > now);
    }

    fn has(&self, who: u128) -> bool {
        self.held.keys().any(|(holder, _)| *holder == who)
    }

    fn sign_of_life(&mut self, who: u128) {
        if self.has(who) {
            self.alive_at_ms.insert(who, self.now_ms);
        }
    }

    fn touched(&self, slab: u32) -> bool {
        self.accesses.iter().any(|access| access.slab == slab)
    }

    fn expected(&self, who: u128, lease: u64, token: u64) -> Result<u64, Refusal> {
        let found = self.held.iter().find(|(_, held)| u64::from(held.slab) == lease);
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
                let (offset, bytes) = (range * SLAB_BYTES + shift * 4096, SLAB_BYTES / 2);
                let claim = Claim { lease: u64::from(slab), token, offset, bytes };
                let expected = self.expected(who, claim.lease, token).and_then(|range| {
                    let inside = offset / SLAB_BYTES == range && (offset + bytes - 1) / SLAB_BYTES == range;
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
                let expected = self.expected(who, u64::from(slab), token);
                let released = table.release(self.now_ms, BorrowerId(who), u64::from(slab), token);
                assert_eq!(released, expected.map(|_| ()));
                if let Ok(range) = expected {
                    self.sign_of_life(who);
                    self.held.remove(&(who, range));
                }
            }
            Step::ReleaseEvery { who } => {
                let count = self.held.keys().filter(|(holder, _)| *holder == who).count() as u64;
                assert_eq!(table.release_every(self.now_ms, BorrowerId(who)), count);
                self.held.retain(|(holder, _), _| *holder != who);
            }
            Step::Renew { who } => {
                let count = self.held.keys().filter(|(holder, _)| *holder == who).count() as u64;
                assert_eq!(table.renew(self.now_ms, BorrowerId(who)).0, count);
                self.sign_of_life(who);
            }
            Step::Revoke { within_ms } => {
                table.revoke_every(self.now_ms, within_ms);
                self.revoked_at_ms = Some(self.now_ms + within_ms);
                self.end_due();
            }
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
                    table.wiped(slab);
                }
            }
        }
        self.end_due();
        table.expire(self.now_ms);
        assert_eq!(table.leased() as usize, self.held.len());
    }

    fn grant(&mut self, table: &mut LeaseTable, who: u128, range: u64) {
        let granted = table.grant(self.now_ms, BorrowerId(who), range);
        let before = self.held.get(&(who, range)).copied();
        let count = self.held.keys().filter(|(holder, _)| *holder == who).count();
        match granted {
            Ok(granted) => {
                assert!(self.revoked_at_ms.is_none(), "a donor that ends lends nothing");
                assert!(self.given.iter().all(|(_, token, _)| *token < granted.token), "tokens grow");
                match before {
                    Some(held) => {
                        assert_eq!(held.slab, granted.slab, "a range keeps its slab");
                        assert!(!self.touched(held.slab), "an access with the old token is under way");
                    }
                    None => {
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
            Err(Refusal::Ending) => assert!(self.revoked_at_ms.is_some()),
            Err(Refusal::Busy) => assert!(before.is_some_and(|held| self.touched(held.slab))),
            Err(Refusal::Quota) => assert_eq!((before.is_none(), count), (true, QUOTA as usize)),
            Err(Refusal::Full) => assert!(before.is_none() && table.leased() + table.unwiped() == SLABS),
            Err(other) => panic!("a grant is not refused for {other:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_table_keeps_its_promises(steps in steps()) {
        let mut table = LeaseTable::new(SLABS, QUOTA, LEASE_MS);
        let mut model = Model::default();
        steps.iter().for_each(|step| model.play(&mut table, step));
    }
}

#[test]
fn a_slab_goes_round() {
    let (one, other) = (BorrowerId(1), BorrowerId(2));
    let mut table = LeaseTable::new(1, 1, LEASE_MS);
    let granted = table.grant(0, one, 7).unwrap();
    assert_eq!((granted.slab, granted.expires_in_ms, table.next_end_ms()), (0, LEASE_MS, Some(LEASE_MS)));
    assert_eq!(table.grant(0, other, 0), Err(Refusal::Full));
    assert_eq!(table.grant(0, one, 8), Err(Refusal::Quota));
    let claim = Claim { lease: 0, token: granted.token, offset: 7 * SLAB_BYTES, bytes: SLAB_BYTES };
    let access = table.begin(50, one, claim).unwrap();
    assert_eq!(table.next_end_ms(), Some(50 + LEASE_MS), "an access is a sign of life");
    table.expire(50 + LEASE_MS);
    assert_eq!((table.leased(), table.unwiped(), table.endings().expired), (0, 1, 1));
    assert_eq!(table.take_unwiped(), None, "the access has not ended");
    table.end(access);
    assert_eq!(table.take_unwiped(), Some(0));
    assert_eq!(table.grant(200, other, 0), Err(Refusal::Full), "it is not wiped yet");
    table.wiped(0);
    assert!(table.grant(200, other, 0).unwrap().token > granted.token);
    assert_eq!(table.begin(200, one, claim), Err(Refusal::NotYours));
}
