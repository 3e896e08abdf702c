// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which lease each range of the tier has, as this process knows it: one word for each slab.
//!
//! A relative may know better: processes of a family share the tier's slabs, not these words. So a word may be old, and
//! the donor refuses what is asked with it. Tokens grow with every grant, so of two words the greater one is newer.
//!
//! Threads: any, also in a signal handler. Locks nothing.
//!
//! | bits  | what                                                                       |
//! |-------|----------------------------------------------------------------------------|
//! | 0     | 1: this process may write with the token; it was granted to it, and nothing that it sent with it is on its way still |
//! | 1–24  | the donor's slab                                                           |
//! | 25–63 | the token; 0 where there is no lease                                       |

use std::sync::atomic::{AtomicU64, Ordering};

const SLAB_BITS: u32 = 24;
const TOKEN_SHIFT: u32 = SLAB_BITS + 1;
const MAY_WRITE: u64 = 1;

/// A lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease(u64);

impl Lease {
    /// One that this process was granted. `None` when the donor's numbers are beyond those of a donor.
    pub(crate) fn granted(slab: u64, token: u64) -> Option<Lease> {
        let fits = slab < 1 << SLAB_BITS && token > 0 && token < 1 << (64 - TOKEN_SHIFT);
        fits.then_some(Lease(token << TOKEN_SHIFT | slab << 1 | MAY_WRITE))
    }

    pub(crate) fn slab(self) -> u64 {
        self.0 >> 1 & ((1 << SLAB_BITS) - 1)
    }

    pub(crate) fn token(self) -> u64 {
        self.0 >> TOKEN_SHIFT
    }

    pub(crate) fn may_write(self) -> bool {
        self.0 & MAY_WRITE != 0
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Ranges(Box<[AtomicU64]>);

impl Ranges {
    pub(crate) fn new(count: usize) -> Ranges {
        Ranges((0..count).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn lease(&self, range: u64) -> Option<Lease> {
        let word = self.0[range as usize].load(Ordering::Acquire);
        (word != 0).then_some(Lease(word))
    }

    /// There is a new lease.
    pub(crate) fn learn(&self, range: u64, lease: Lease) {
        // Of two grants at the same time, the greater one is what the donor goes by.
        self.0[range as usize].fetch_max(lease.0, Ordering::AcqRel);
    }

    /// What was sent with this lease may arrive still: before this process writes again, it needs a new token, by which
    /// the donor refuses the old one.
    pub(crate) fn doubt(&self, range: u64, lease: Lease) {
        let doubted = lease.0 & !MAY_WRITE;
        let _ = self.0[range as usize].compare_exchange(lease.0, doubted, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The lease is over.
    pub(crate) fn forget(&self, range: u64, lease: Lease) {
        for known in [lease.0, lease.0 & !MAY_WRITE] {
            let _ = self.0[range as usize].compare_exchange(known, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// In a forked child: what its parent sends counts as on its way.
    pub(crate) fn doubt_all(&self) {
        for word in &self.0 {
            word.fetch_and(!MAY_WRITE, Ordering::AcqRel);
        }
    }

    /// Whether there is any lease.
    pub(crate) fn any(&self) -> bool {
        self.0.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_the_newest_token_stays() {
        let (slab, token) = ((1 << 24) - 1, (1 << 39) - 1);
        let lease = Lease::granted(slab, token).unwrap();
        assert_eq!((lease.slab(), lease.token(), lease.may_write()), (slab, token, true));
        assert!(Lease::granted(1 << 24, 1).is_none() && Lease::granted(1, 1 << 39).is_none());
        assert!(Lease::granted(1, 0).is_none());
        let ranges = Ranges::new(1);
        let (old, new) = (Lease::granted(9, 1).unwrap(), Lease::granted(3, 2).unwrap());
        ranges.learn(0, new);
        ranges.learn(0, old);
        assert_eq!(ranges.lease(0), Some(new));
        ranges.doubt(0, old);
        assert!(ranges.lease(0).unwrap().may_write(), "only what is still known is doubted");
        ranges.doubt_all();
        assert!(!ranges.lease(0).unwrap().may_write());
        ranges.forget(0, old);
        assert!(ranges.any());
        ranges.forget(0, new);
        assert!(!ranges.any());
    }
}
