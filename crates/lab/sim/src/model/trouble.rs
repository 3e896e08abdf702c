// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What goes wrong, and what takes long.

use std::cell::{Cell, RefCell};

use crate::random::Random;

/// A kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A read from the tier fails.
    Read,
    /// A read returns other bytes than were written, once. Another way to read them returns the right ones.
    Lie,
    /// After a `Lie`, no other way to read returns the right bytes.
    Corruption,
    /// A write to the tier fails. None of it or a part of it is written.
    Write,
    /// The kernel refuses to release a block.
    Refuse,
    /// The kernel copies where it should move.
    Copy,
    /// The kernel drops only some of several sealed blocks.
    Partial,
}

/// All kinds.
pub const KINDS: [Kind; 7] =
    [Kind::Read, Kind::Lie, Kind::Corruption, Kind::Write, Kind::Refuse, Kind::Copy, Kind::Partial];

/// Number of failures in a row, once failures have begun. Greater than the number of attempts of one fault.
const FAILING: u64 = 24;

/// The maximum share of transfers that take long, in percent, and the maximum time that one takes.
const SLOW_PERCENT_MAX: u64 = 30;
const SLOW_NS_MAX: u64 = 200_000_000;

/// How slow the tier is.
pub struct Delays {
    percent: u64,
    /// How long a delayed transfer takes; a random time if `None`.
    each_ns: Option<u64>,
    luck: RefCell<Random>,
}

impl Delays {
    /// In one world of three, some transfers are delayed. Delays are drawn from `seed` alone, so that all other random
    /// choices are the same with and without delays.
    pub fn new(seed: u64) -> Self {
        let mut luck = Random::new(seed);
        let percent = if luck.below(3) == 0 { 1 + luck.below(SLOW_PERCENT_MAX) } else { 0 };
        Self { percent, each_ns: None, luck: RefCell::new(luck) }
    }

    /// No transfer takes any time.
    #[cfg(test)]
    pub fn none() -> Self {
        Self { percent: 0, each_ns: None, luck: RefCell::new(Random::new(1)) }
    }

    /// Every transfer takes this time.
    #[cfg(test)]
    pub fn of_each(each_ns: u64) -> Self {
        Self { percent: 100, each_ns: Some(each_ns), luck: RefCell::new(Random::new(1)) }
    }

    /// Whether any transfer takes long.
    pub fn are_on(&self) -> bool {
        self.percent > 0
    }

    /// How long the next transfer takes, in nanoseconds; most take no time.
    pub fn next_ns(&self) -> u64 {
        let mut luck = self.luck.borrow_mut();
        match self.percent > luck.below(100) {
            true => self.each_ns.unwrap_or_else(|| 1 + luck.below(SLOW_NS_MAX)),
            false => 0,
        }
    }
}

/// How likely each kind of failure is, and how many failures have happened.
pub struct Trouble {
    /// In percent of the opportunities.
    percent: Cell<[u32; KINDS.len()]>,
    /// A kind, and how many of its opportunities are left; the last `FAILING` of them are failures.
    after: Cell<Option<(Kind, u64)>>,
    luck: RefCell<Random>,
    happened: Cell<u64>,
}

impl Trouble {
    /// Nothing goes wrong yet. `seed` is the source of randomness.
    pub fn new(seed: u64) -> Self {
        Self {
            percent: Cell::default(),
            after: Cell::new(None),
            luck: RefCell::new(Random::new(seed)),
            happened: Cell::new(0),
        }
    }

    /// From now on each kind fails in this percentage of its opportunities.
    pub fn set(&self, percent: [u32; KINDS.len()]) {
        self.percent.set(percent);
    }

    /// Failures of this kind: none for the next `count` opportunities, then `FAILING` in a row.
    pub fn fail_after(&self, kind: Kind, count: u64) {
        self.after.set(Some((kind, count + FAILING - 1)));
    }

    /// Nothing goes wrong any more.
    pub fn end(&self) {
        self.percent.set([0; KINDS.len()]);
        self.after.set(None);
    }

    /// Whether there is a failure at this opportunity.
    pub fn strikes(&self, kind: Kind) -> bool {
        let percent = self.percent.get()[kind as usize];
        let mut strikes = percent > 0 && self.below(100) < u64::from(percent);
        if let Some((failing, left)) = self.after.get()
            && failing == kind
        {
            strikes |= left < FAILING;
            self.after.set((left > 0).then(|| (kind, left - 1)));
        }
        self.happened.set(self.happened.get() + u64::from(strikes));
        strikes
    }

    /// How many failures there were.
    pub fn happened(&self) -> u64 {
        self.happened.get()
    }

    /// A random number below `bound`.
    pub fn below(&self, bound: u64) -> u64 {
        self.luck.borrow_mut().below(bound)
    }
}
