// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How hot each block is, judged by what user space can see: arrivals, and absence.
//!
//! Pure, allocates nothing, and uses three bytes per block. An arrival makes a block hotter, the more so the sooner
//! after its eviction. The temperature of an evicted block that is not asked for halves with each epoch. An epoch is
//! one turnover of the budget, in evicted pages, so there is no clock. A resident block keeps its temperature: nothing
//! shows whether it is used.
//!
//! Halving is computed on demand. The histogram follows it exactly, since its classes are powers of two: the end of an
//! epoch moves every class of evicted pages down by one, and touches no block. Each end of an epoch also refreshes a
//! few blocks, only so that two bytes for the epoch are enough (`SWEEP_EPOCHS`).
//!
//! Units and interpretation: `docs/temperature.md`.
//!
//! Called by `map/heat.rs`.

use crate::block::State;
use crate::policy::Arrival;

/// 0 is cold, 255 the hottest. Only the order of two temperatures has a meaning, not their difference.
pub type Temperature = u8;

/// Added by the first touch ever.
const FRESH: u8 = 8;
/// Added to a block that was read ahead of a stream and then touched by it. Streams pass once, so this equals a late
/// refault.
const READ_AHEAD: u8 = 16;
/// Added by a refault after everything resident was replaced at least once.
const REFAULT_LATE: u8 = 16;
/// Added by a refault sooner than that.
const REFAULT_SOON: u8 = 48;
/// Added by a touch on standby: the block should not have been evicted.
const RESCUED: u8 = 64;

/// Classes of a histogram: class 0 is temperature 0, class `n` holds `2^(n-1)..2^n`.
pub const CLASSES: usize = 9;

/// The temperatures of each class, as text.
pub const CLASS_NAMES: [&str; CLASSES] = ["0", "1", "2-3", "4-7", "8-15", "16-31", "32-63", "64-127", "128-255"];

/// Number of epochs that a stamp can distinguish.
const EPOCHS: u64 = 0xffff - AWAY as u64 + 1;
/// Every block is refreshed once in this many epochs: half of what stamps can distinguish, so that blocks added during
/// the sweep do not matter.
const SWEEP_EPOCHS: usize = 1 << 15;

/// A stamp is `NOWHERE` (not counted), `RESIDENT` (counted as resident) or `AWAY + n` (evicted since epoch `n`, modulo
/// `EPOCHS`).
const NOWHERE: u16 = 0;
const RESIDENT: u16 = 1;
const AWAY: u16 = 2;

/// The record of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    temperature: u8,
    stamp: u16,
}

impl Reading {
    fn new(temperature: u8, stamp: u16) -> Self {
        Self { temperature, stamp }
    }

    fn stamp(self) -> u16 {
        self.stamp
    }

    /// Its temperature and its stamp, to be stored.
    pub(crate) fn parts(self) -> (u8, u16) {
        (self.temperature, self.stamp)
    }

    /// The reading with these parts.
    pub(crate) fn of_parts(temperature: u8, stamp: u16) -> Self {
        Self { temperature, stamp }
    }
}

/// Pages with contents, by class of temperature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// At the program's address.
    pub resident: [u64; CLASSES],
    /// On standby, in the tier, or in transit.
    pub away: [u64; CLASSES],
}

impl Histogram {
    fn count(&mut self, stamp: u16, temperature: u8) -> &mut u64 {
        let counts = if stamp == RESIDENT { &mut self.resident } else { &mut self.away };
        &mut counts[class_of(temperature)]
    }
}

/// The class that holds `temperature`.
pub fn class_of(temperature: Temperature) -> usize {
    (u8::BITS - temperature.leading_zeros()) as usize
}

/// The epoch, and the number of pages at each temperature.
#[derive(Clone, Debug, Default)]
pub struct Temperatures {
    epoch: u64,
    /// Pages evicted since the epoch began.
    evicted: u64,
    histogram: Histogram,
    /// The block to be refreshed next.
    cursor: usize,
}

impl Temperatures {
    /// Pages with contents, by temperature.
    pub fn histogram(&self) -> &Histogram {
        &self.histogram
    }

    /// The present temperature of a reading.
    pub(crate) fn of(&self, reading: Reading) -> Temperature {
        let Some(since) = reading.stamp().checked_sub(AWAY) else { return reading.temperature };
        let age = (self.epoch % EPOCHS + EPOCHS - u64::from(since)) % EPOCHS;
        u32::try_from(age).ok().and_then(|age| reading.temperature.checked_shr(age)).unwrap_or(0)
    }

    fn away_now(&self) -> u16 {
        AWAY + (self.epoch % EPOCHS) as u16
    }

    /// A block of `weight` pages became resident; `near` is the distance up to which a refault counts as soon.
    pub(crate) fn arrived(&mut self, reading: &mut Reading, weight: u32, arrival: Arrival, near: u64) {
        let was_resident = reading.stamp() == RESIDENT;
        let known = self.take_out(reading, weight);
        let temperature = match (arrival, known) {
            // A page of it was touched for the first time, or written for the first time since it was fetched.
            (_, Some(before)) if was_resident => before,
            (Arrival::Fresh, _) | (Arrival::Prefetched, None) => FRESH,
            (Arrival::Prefetched, Some(before)) => before.saturating_add(READ_AHEAD),
            (Arrival::Refault { distance }, before) => {
                let heat = if distance <= near { REFAULT_SOON } else { REFAULT_LATE };
                before.unwrap_or(0).saturating_add(heat)
            }
            (Arrival::Rescued, before) => before.unwrap_or(0).saturating_add(RESCUED),
        };
        *reading = self.count_resident(temperature, weight);
    }

    /// Counts a resident block of `weight` pages with this `temperature`, and returns its reading.
    pub(crate) fn count_resident(&mut self, temperature: Temperature, weight: u32) -> Reading {
        *self.histogram.count(RESIDENT, temperature) += u64::from(weight);
        Reading::new(temperature, RESIDENT)
    }

    /// A resident block of `weight` pages was evicted.
    pub(crate) fn left(&mut self, reading: &mut Reading, weight: u32) {
        let temperature = self.take_out(reading, weight).unwrap_or(0);
        *reading = self.count_evicted(temperature, weight);
    }

    /// Stops counting a block of `weight` pages. Returns its temperature, if it was counted.
    pub(crate) fn take_out(&mut self, reading: &mut Reading, weight: u32) -> Option<Temperature> {
        let (stamp, temperature) = (reading.stamp(), self.of(*reading));
        *reading = Reading::default();
        if stamp == NOWHERE {
            return None;
        }
        *self.histogram.count(stamp, temperature) -= u64::from(weight);
        Some(temperature)
    }

    /// Counts an evicted block of `weight` pages with this `temperature`, and returns its reading.
    pub(crate) fn count_evicted(&mut self, temperature: Temperature, weight: u32) -> Reading {
        let stamp = self.away_now();
        *self.histogram.count(stamp, temperature) += u64::from(weight);
        Reading::new(temperature, stamp)
    }

    /// Another `pages` pages were evicted. When that ends an epoch, returns which of `blocks` blocks must be brought
    /// [`up_to_date`](Self::up_to_date).
    pub(crate) fn evicted(&mut self, pages: u64, budget_pages: u64, blocks: usize) -> std::ops::Range<usize> {
        self.evicted += pages;
        if self.evicted < budget_pages {
            return 0..0;
        }
        self.evicted = 0;
        self.epoch += 1;
        let away = &mut self.histogram.away;
        away[0] += away[1];
        away.copy_within(2.., 1);
        away[CLASSES - 1] = 0;
        let start = if self.cursor < blocks { self.cursor } else { 0 };
        let end = (start + blocks / SWEEP_EPOCHS + 1).min(blocks);
        self.cursor = end;
        start..end
    }

    /// Counts a block of `weight` pages again, and checks that its state and its reading agree; for tests.
    pub(crate) fn recount(&self, reading: Reading, state: State, weight: u64, histogram: &mut Histogram) {
        match (state, reading.stamp()) {
            (State::Empty, stamp) => assert_eq!(stamp, NOWHERE, "no contents, and a temperature"),
            (State::Resident, stamp) => assert_eq!(stamp, RESIDENT, "resident, and not counted so"),
            (State::Standby | State::Stored, stamp) => assert_ne!(stamp, RESIDENT, "{state:?}, and counted resident"),
            _ => {}
        }
        if reading.stamp() != NOWHERE {
            *histogram.count(reading.stamp(), self.of(reading)) += weight;
        }
    }

    /// Rewrites a reading with the present epoch, if it depends on that. This changes no temperature. Returns whether
    /// it rewrote the reading.
    pub(crate) fn up_to_date(&self, reading: &mut Reading) -> bool {
        let is_away = reading.stamp() >= AWAY;
        if is_away {
            *reading = Reading::new(self.of(*reading), self.away_now());
        }
        is_away
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BUDGET: u64 = 100;

    fn end_epoch(temperatures: &mut Temperatures, readings: &mut [Reading]) {
        for index in temperatures.evicted(BUDGET, BUDGET, readings.len()) {
            temperatures.up_to_date(&mut readings[index]);
        }
    }

    fn after(arrivals: &[Arrival]) -> Temperature {
        let (mut temperatures, mut reading) = (Temperatures::default(), Reading::default());
        for arrival in arrivals {
            temperatures.arrived(&mut reading, 1, *arrival, BUDGET);
            temperatures.left(&mut reading, 1);
        }
        temperatures.of(reading)
    }

    #[test]
    fn blocks_that_come_back_sooner_are_hotter() {
        let (mut temperatures, mut reading) = (Temperatures::default(), Reading::default());
        temperatures.arrived(&mut reading, 1, Arrival::Fresh, BUDGET);
        temperatures.arrived(&mut reading, 1, Arrival::Rescued, BUDGET);
        assert_eq!(temperatures.of(reading), FRESH, "what is resident has not come back");
        let order = [
            after(&[]),
            after(&[Arrival::Prefetched]),
            after(&[Arrival::Fresh, Arrival::Prefetched]),
            after(&[Arrival::Fresh, Arrival::Refault { distance: 50 }]),
            after(&[Arrival::Fresh, Arrival::Rescued]),
            after(&[Arrival::Fresh, Arrival::Rescued, Arrival::Rescued]),
        ];
        assert!(order.windows(2).all(|pair| pair[0] < pair[1]) && order[0] == 0, "{order:?}");
        assert!(after(&[Arrival::Refault { distance: 1000 }]) < after(&[Arrival::Refault { distance: 50 }]));
    }

    #[test]
    fn evicted_blocks_cool_and_resident_blocks_do_not() {
        let mut temperatures = Temperatures::default();
        let mut readings = [Reading::default(); 2];
        readings.iter_mut().for_each(|reading| temperatures.arrived(reading, 1, Arrival::Rescued, BUDGET));
        temperatures.left(&mut readings[0], 1);
        let mut before = temperatures.of(readings[0]);
        // More epochs than a stamp can distinguish.
        for epoch in 0..3 * EPOCHS {
            end_epoch(&mut temperatures, &mut readings);
            let now = temperatures.of(readings[0]);
            assert!(now <= before, "epoch {epoch}: {now} after {before}");
            before = now;
        }
        assert_eq!((before, temperatures.of(readings[1])), (0, RESCUED));
    }

    #[test]
    fn classes_are_what_they_are_called() {
        for temperature in 0..=u8::MAX {
            let name = CLASS_NAMES[class_of(temperature)];
            let (low, high) = name.split_once('-').unwrap_or((name, name));
            let range = low.parse().expect("a number")..=high.parse().expect("a number");
            assert!(range.contains(&temperature), "{temperature} is in {name}");
        }
    }

    proptest! {
        /// Temperatures and histogram equal those of a table in which every absent block is halved at every epoch.
        #[test]
        fn cooling_on_demand_is_cooling(steps in proptest::collection::vec((0..6usize, 0..6u8), 0..800)) {
            let mut temperatures = Temperatures::default();
            let mut readings = [Reading::default(); 6];
            let mut model: [Option<(u8, bool)>; 6] = [None; 6];
            let weight = |block: usize| 1 << block;
            for (block, what) in steps {
                let reading = &mut readings[block];
                let known = model[block];
                match what {
                    0 => {
                        temperatures.arrived(reading, weight(block), Arrival::Rescued, BUDGET);
                        let heat = if known.is_some_and(|(_, resident)| resident) { 0 } else { RESCUED };
                        model[block] = Some((known.map_or(0, |(heat, _)| heat).saturating_add(heat), true));
                    }
                    1 if known.is_some() => {
                        temperatures.left(reading, weight(block));
                        model[block] = known.map(|(heat, _)| (heat, false));
                    }
                    2 => {
                        prop_assert_eq!(temperatures.take_out(reading, weight(block)), known.map(|(heat, _)| heat));
                        model[block] = None;
                    }
                    _ => {
                        end_epoch(&mut temperatures, &mut readings);
                        let away = model.iter_mut().flatten().filter(|(_, resident)| !resident);
                        away.for_each(|(heat, _)| *heat /= 2);
                    }
                }
                let mut expected = Histogram::default();
                for (index, entry) in model.iter().enumerate() {
                    let Some((heat, resident)) = *entry else { continue };
                    prop_assert_eq!(temperatures.of(readings[index]), heat);
                    let counts = if resident { &mut expected.resident } else { &mut expected.away };
                    counts[class_of(heat)] += u64::from(weight(index));
                }
                prop_assert_eq!(*temperatures.histogram(), expected);
            }
        }
    }
}
