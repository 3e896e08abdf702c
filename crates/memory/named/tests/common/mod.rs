// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A disk in memory that loses its power, tears writes and fails; and a model of a mapping's pages.

#![allow(dead_code, reason = "each test file that includes this uses its part of it")]

use std::cell::RefCell;
use std::rc::Rc;

use aquifer_named::format::PAGE;
use aquifer_named::{Activity, Failure, Medium, MediumFailure, Store};

/// Bytes that a disk writes as a whole.
pub const SECTOR: usize = 512;

/// SplitMix64 (Steele, Lea and Flood 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let number = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// One call that changes the disk.
#[derive(Clone, Debug)]
pub enum Step {
    /// A sync that returned an error: what was written before it may be durable or not, and no later sync changes that.
    FailedSync,
    Grow(u64),
    Sync,
    Write(u64, Vec<u8>),
}

#[derive(Debug, Default)]
pub struct State {
    /// What a read returns: every write so far.
    pub bytes: Vec<u8>,
    /// What has happened since the disk was made.
    pub steps: Vec<Step>,
    /// How many calls succeed before all further ones fail, and the error number.
    pub fails_after: Option<(usize, i32)>,
    /// The pages that fit.
    pub pages_max: Option<u64>,
    pub calls: usize,
}

/// A disk, and its handles.
#[derive(Clone, Debug, Default)]
pub struct Disk(pub Rc<RefCell<State>>);

impl Disk {
    pub fn of(bytes: Vec<u8>) -> Self {
        let disk = Disk::default();
        disk.0.borrow_mut().bytes = bytes;
        disk
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.0.borrow().bytes.clone()
    }

    /// The number of steps so far.
    pub fn steps(&self) -> usize {
        self.0.borrow().steps.len()
    }

    fn call(&self, activity: Activity) -> Result<std::cell::RefMut<'_, State>, MediumFailure> {
        let mut state = self.0.borrow_mut();
        state.calls += 1;
        match state.fails_after {
            Some((calls, errno)) if state.calls > calls => Err(MediumFailure { activity, errno }),
            _ => Ok(state),
        }
    }
}

impl Medium for Disk {
    fn pages(&self) -> Result<u64, MediumFailure> {
        Ok(self.0.borrow().bytes.len() as u64 / PAGE as u64)
    }

    fn read(&self, place: u64, into: &mut [u8]) -> Result<(), MediumFailure> {
        assert_eq!(into.as_ptr().align_offset(PAGE), 0, "direct transfers are aligned");
        let start = place as usize * PAGE;
        into.copy_from_slice(&self.0.borrow().bytes[start..start + into.len()]);
        Ok(())
    }

    fn write(&self, place: u64, from: &[u8]) -> Result<(), MediumFailure> {
        assert_eq!(from.as_ptr().align_offset(PAGE), 0, "direct transfers are aligned");
        let mut state = self.call(Activity::Write)?;
        let start = place as usize * PAGE;
        state.bytes[start..start + from.len()].copy_from_slice(from);
        state.steps.push(Step::Write(place, from.to_vec()));
        Ok(())
    }

    fn grow(&self, pages: u64) -> Result<(), MediumFailure> {
        let mut state = self.call(Activity::Grow)?;
        if state.pages_max.is_some_and(|pages_max| pages > pages_max) {
            return Err(MediumFailure { activity: Activity::Grow, errno: 28 });
        }
        let len = state.bytes.len().max(pages as usize * PAGE);
        state.bytes.resize(len, 0);
        state.steps.push(Step::Grow(pages));
        Ok(())
    }

    fn sync(&self) -> Result<(), MediumFailure> {
        let synced = self.call(Activity::Sync).map(drop);
        self.0.borrow_mut().steps.push(if synced.is_ok() { Step::Sync } else { Step::FailedSync });
        synced
    }
}

/// Whether each step is a change that the disk may have lost: the first sync after it has not come yet, or has failed.
pub fn is_uncertain(steps: &[Step]) -> Vec<bool> {
    let (mut uncertain, mut is_confirmed) = (vec![false; steps.len()], false);
    for (step, uncertain) in steps.iter().zip(&mut uncertain).rev() {
        match step {
            Step::Sync => is_confirmed = true,
            Step::FailedSync => is_confirmed = false,
            Step::Grow(_) | Step::Write(..) => *uncertain = !is_confirmed,
        }
    }
    uncertain
}

/// What survives when the power fails after `steps`: what the disk has confirmed, and of each uncertain step all,
/// nothing, or some sectors, as `chance` decides.
pub fn survivors(steps: &[Step], chance: &mut dyn FnMut() -> Survival) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (step, is_uncertain) in steps.iter().zip(is_uncertain(steps)) {
        let survival = if is_uncertain { chance() } else { Survival::All };
        match step {
            Step::FailedSync | Step::Sync => {}
            Step::Grow(pages) => {
                if survival != Survival::Nothing {
                    bytes.resize(bytes.len().max(*pages as usize * PAGE), 0);
                }
            }
            Step::Write(place, from) => {
                for (sector, from) in from.chunks(SECTOR).enumerate() {
                    if survival.has(sector) {
                        let at = *place as usize * PAGE + sector * SECTOR;
                        bytes.resize(bytes.len().max(at + SECTOR), 0);
                        bytes[at..at + SECTOR].copy_from_slice(from);
                    }
                }
            }
        }
    }
    bytes
}

/// What survives of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    All,
    Nothing,
    /// The sectors whose bits are set.
    Sectors(u64),
}

impl Survival {
    fn has(self, sector: usize) -> bool {
        match self {
            Survival::All => true,
            Survival::Nothing => false,
            Survival::Sectors(bits) => bits >> (sector % 64) & 1 != 0,
        }
    }
}

/// The pages of a mapping.
pub type Pages = Vec<[u8; PAGE]>;

/// A page whose bytes follow from a number; zeros for 0.
pub fn page(number: u64) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    let mut random = Random(number);
    if number != 0 {
        page.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
    }
    page
}

/// Everything in a file, with each page checked.
pub fn contents(store: &Store<Disk>) -> Pages {
    (0..store.pages())
        .map(|index| {
            let mut found = [0; PAGE];
            let place = store.lookup().place(index);
            if place != 0 {
                let start = place as usize * PAGE;
                found.copy_from_slice(&store.medium().0.borrow().bytes[start..start + PAGE]);
            }
            assert_eq!(aquifer_core::guard::of_page(&found), store.guard(index), "page {index} at place {place}");
            found
        })
        .collect()
}

/// Puts pages and commits.
pub fn sync(store: &mut Store<Disk>, changes: &[(usize, u64)]) -> Result<usize, Failure> {
    let mut draft = store.draft()?;
    for (index, number) in changes {
        draft.put(*index, &page(*number))?;
    }
    draft.commit().map(|changed| changed.len())
}
