// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How hot each block is, judged by what user space can see: refaults, rescues and age.
//!
//! Pure; allocates only in [`Temperatures::grow`]; two bytes per block. The engine says when an epoch ends,
//! so that there is no clock here. A temperature halves with each epoch in which nothing was seen, and is
//! computed when asked for: the end of an epoch touches no block.
//!
//! Other sources (read-protect faults, DAMON, a device's hotness unit) report through [`Temperatures::touched`].

use crate::{policy::Arrival, units::BlockIndex};

/// 0 is cold, 255 as hot as it gets. Steps mean nothing by themselves; order does.
pub type Temperature = u8;

/// First touch ever.
const FRESH: u8 = 8;
/// Refault after everything resident was replaced at least once.
const REFAULT_LATE: u8 = 16;
/// Refault sooner than that.
const REFAULT_SOON: u8 = 48;
/// Touched on standby: it should not have left.
const RESCUED: u8 = 64;
/// A report of another source.
const TOUCHED: u8 = 32;
/// Number of classes that [`Temperatures::histogram`] counts.
pub const CLASSES: usize = 9;

#[derive(Clone, Copy, Default)]
struct Reading {
    temperature: u8,
    /// Low byte of the epoch in which the temperature was written.
    epoch: u8,
}

/// The temperatures of all blocks.
#[derive(Default)]
pub struct Temperatures {
    readings: Vec<Reading>,
    epoch: u64,
}

impl Temperatures {
    /// Makes room for block indices below `blocks`. New blocks are cold. Never gives room back.
    pub fn grow(&mut self, blocks: u32) {
        if blocks as usize > self.readings.len() {
            let reading = Reading { temperature: 0, epoch: self.epoch as u8 };
            self.readings.resize(blocks as usize, reading);
        }
    }

    /// An epoch ends: whatever is not seen from now on is half as hot. About one turnover of the resident
    /// set is a good length. Once in 64 epochs all blocks are brought up to date, so that one byte of
    /// epoch is enough; between them the call takes constant time.
    pub fn end_epoch(&mut self) {
        self.epoch += 1;
        if self.epoch.is_multiple_of(64) {
            for index in 0..self.readings.len() {
                self.write(index, self.read(index));
            }
        }
    }

    /// `block` arrived in the resident set of `resident_pages` pages.
    pub fn arrived(&mut self, block: BlockIndex, arrival: Arrival, resident_pages: u64) {
        let heat = match arrival {
            Arrival::Fresh => {
                self.write(block.0 as usize, FRESH);
                return;
            }
            Arrival::Prefetched => return, // Nobody asked for it yet.
            Arrival::Refault { distance } if distance <= resident_pages => REFAULT_SOON,
            Arrival::Refault { .. } => REFAULT_LATE,
            Arrival::Rescued => RESCUED,
        };
        self.heat(block, heat);
    }

    /// Another source saw `block` touched.
    pub fn touched(&mut self, block: BlockIndex) {
        self.heat(block, TOUCHED);
    }

    /// `block` has no contents any more, or belongs to another page.
    pub fn forget(&mut self, block: BlockIndex) {
        self.write(block.0 as usize, 0);
    }

    /// How hot `block` is now.
    pub fn of(&self, block: BlockIndex) -> Temperature {
        self.read(block.0 as usize)
    }

    /// Blocks per class of temperature: class 0 is zero, class `n` holds `2^(n-1)..2^n`.
    pub fn histogram(&self) -> [u32; CLASSES] {
        let mut counts = [0; CLASSES];
        for index in 0..self.readings.len() {
            counts[(u8::BITS - self.read(index).leading_zeros()) as usize] += 1;
        }
        counts
    }

    fn heat(&mut self, block: BlockIndex, heat: u8) {
        let index = block.0 as usize;
        self.write(index, self.read(index).saturating_add(heat));
    }

    fn read(&self, index: usize) -> u8 {
        let Reading { temperature, epoch } = self.readings[index];
        let age = (self.epoch as u8).wrapping_sub(epoch);
        temperature.checked_shr(u32::from(age)).unwrap_or(0)
    }

    fn write(&mut self, index: usize, temperature: u8) {
        self.readings[index] = Reading { temperature, epoch: self.epoch as u8 };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLOCK: BlockIndex = BlockIndex(0);

    fn of_one() -> Temperatures {
        let mut temperatures = Temperatures::default();
        temperatures.grow(1);
        temperatures
    }

    fn after(arrivals: &[Arrival]) -> Temperature {
        let mut temperatures = of_one();
        arrivals.iter().for_each(|arrival| temperatures.arrived(BLOCK, *arrival, 100));
        temperatures.of(BLOCK)
    }

    #[test]
    fn what_comes_back_sooner_is_hotter() {
        let order = [
            after(&[Arrival::Prefetched]),
            after(&[Arrival::Fresh]),
            after(&[Arrival::Refault { distance: 1000 }]),
            after(&[Arrival::Refault { distance: 50 }]),
            after(&[Arrival::Rescued]),
            after(&[Arrival::Rescued, Arrival::Rescued]),
        ];
        assert!(order.is_sorted() && order[0] == 0, "{order:?}");
    }

    #[test]
    fn a_block_that_is_not_seen_cools_and_stays_cold() {
        let mut temperatures = of_one();
        temperatures.arrived(BLOCK, Arrival::Rescued, 100);
        let mut before = temperatures.of(BLOCK);
        for epoch in 0..1000 {
            temperatures.end_epoch();
            let now = temperatures.of(BLOCK);
            assert!(now <= before, "epoch {epoch}: {now} after {before}");
            before = now;
        }
        assert_eq!(before, 0);
    }

    #[test]
    fn the_histogram_counts_every_block_once() {
        let mut temperatures = Temperatures::default();
        temperatures.grow(10);
        temperatures.arrived(BlockIndex(3), Arrival::Rescued, 1);
        temperatures.touched(BlockIndex(4));
        assert_eq!(temperatures.histogram(), [8, 0, 0, 0, 0, 0, 1, 1, 0]);
    }

    proptest! {
        /// Lazily cooled temperatures are those of a table that halves every block at every epoch.
        #[test]
        fn cooling_on_demand_is_cooling(steps in proptest::collection::vec((0..4u32, 0..3u8), 0..800)) {
            let mut temperatures = Temperatures::default();
            temperatures.grow(4);
            let mut model = [0u8; 4];
            for (block, what) in steps {
                match what {
                    0 => {
                        temperatures.touched(BlockIndex(block));
                        model[block as usize] = model[block as usize].saturating_add(TOUCHED);
                    }
                    _ => {
                        temperatures.end_epoch();
                        model.iter_mut().for_each(|heat| *heat /= 2);
                    }
                }
                for index in 0..4 {
                    prop_assert_eq!(temperatures.of(BlockIndex(index)), model[index as usize]);
                }
            }
        }
    }
}
