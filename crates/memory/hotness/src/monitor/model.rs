// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A hotness monitor in memory, for tests: counters, epochs, a hot list that overflows, and registers that can fail.
//!
//! It has fewer counters than granules, as devices have, and gives them to the granules that are accessed first. Counts
//! stop at the width of a counter. Time passes only by [`Model::pass`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use super::bits::{self, Entry, EpochLength};
use crate::registers::{RegisterFailure, Registers};

/// The hot list's offset: after a bitmap of 64 bits, for 16 GiB.
const LIST_AT: usize = bits::VARIABLE_AT + 8;

/// How large a monitor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Entries of the hot list.
    pub list_entries: u16,
    /// How many granules it can count at the same time.
    pub counters: usize,
    /// Bits of a counter.
    pub counter_bits: u32,
    /// Whether it has epochs; otherwise it reports a granule as soon as its count reaches the threshold.
    pub has_epochs: bool,
    /// How often the status says that an operation is in progress, after each.
    pub busy_looks: u32,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { list_entries: 64, counters: 1024, counter_bits: 16, has_epochs: true, busy_looks: 2 }
    }
}

/// The one monitor of a device.
#[derive(Debug)]
pub struct Model {
    shape: Shape,
    control: u64,
    settings: u64,
    notification: u64,
    bitmap: u64,
    is_enabled: bool,
    busy_looks_left: u32,
    has_overflowed: bool,
    head: u16,
    tail: u16,
    list: Vec<u64>,
    counters: BTreeMap<u64, u64>,
    /// Since the epoch began.
    passed: Duration,
    /// Entries that found the list full.
    lost: u64,
    /// Accesses to registers that still succeed; `None`: all.
    accesses_left: Option<u64>,
}

impl Model {
    /// A device that a test and a driver share.
    pub fn shared(shape: Shape) -> Rc<RefCell<Model>> {
        Rc::new(RefCell::new(Model {
            shape,
            control: 0,
            settings: 0,
            notification: 0,
            bitmap: 0,
            is_enabled: false,
            busy_looks_left: 0,
            has_overflowed: false,
            head: 0,
            tail: 0,
            list: vec![0; usize::from(shape.list_entries)],
            counters: BTreeMap::new(),
            passed: Duration::ZERO,
            lost: 0,
            accesses_left: None,
        }))
    }

    /// The host reads or writes 64 bytes of the device's memory.
    pub fn access(&mut self, address: u64, is_write: bool) {
        let is_tracked = address / bits::BITMAP_BYTES < 64 && self.bitmap >> (address / bits::BITMAP_BYTES) & 1 == 1;
        let counts = match self.control & 0xff {
            1 | 4 => !is_write,
            2 | 5 => is_write,
            3 | 6 => true,
            _ => false,
        };
        if !self.is_enabled || !is_tracked || !counts {
            return;
        }
        let granule = address >> (self.settings & 0xffff_ffff);
        if self.counters.len() >= self.shape.counters && !self.counters.contains_key(&granule) {
            return;
        }
        let max = bits::count_max(self.shape.counter_bits);
        let count = self.counters.entry(granule).or_default();
        *count = (*count + 1).min(max);
        let count = *count;
        if !self.shape.has_epochs && count >= self.threshold() {
            self.counters.remove(&granule);
            self.report(Entry { granule, count });
        }
    }

    /// Time passes; epochs that end are reported.
    pub fn pass(&mut self, time: Duration) {
        let Some(epoch) = EpochLength::of_bits(self.settings >> 48).filter(|_| self.is_enabled) else { return };
        self.passed += time;
        while self.shape.has_epochs && self.passed >= epoch.duration() {
            self.passed -= epoch.duration();
            for (granule, count) in std::mem::take(&mut self.counters) {
                if count >= self.threshold() {
                    self.report(Entry { granule, count });
                }
            }
        }
    }

    /// How many entries found the list full.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether it counts.
    pub fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Carries out so many more accesses to registers; every later one fails.
    pub fn fail_after(&mut self, accesses: Option<u64>) {
        self.accesses_left = accesses;
    }

    /// The device is reset, as by the kernel.
    pub fn reset_device(&mut self) {
        self.is_enabled = false;
        self.control = 0;
        self.forget();
    }

    fn threshold(&self) -> u64 {
        self.control >> 32
    }

    fn report(&mut self, entry: Entry) {
        let next = (self.tail + 1) % self.shape.list_entries;
        if next == self.head {
            self.lost += 1;
            self.has_overflowed = true;
            return;
        }
        self.list[usize::from(self.tail)] = entry.word(self.shape.counter_bits);
        self.tail = next;
    }

    fn forget(&mut self) {
        (self.head, self.tail, self.passed) = (0, 0, Duration::ZERO);
        self.counters.clear();
    }

    fn allowed(&mut self, offset: usize) -> Result<(), RegisterFailure> {
        match &mut self.accesses_left {
            Some(0) => Err(RegisterFailure { offset, why: "the device does not answer".into() }),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn capability(&self, index: usize) -> u64 {
        let lengths = EpochLength::of(Duration::from_millis(1)).bits() << 32
            | EpochLength::of(Duration::from_secs(100)).bits() << 16;
        let granules = 1 << (12 - bits::GRANULE_LOG2_MIN) | 1 << (21 - bits::GRANULE_LOG2_MIN);
        let mode = if self.shape.has_epochs { 1 << 48 } else { 1 << 49 };
        [
            // Requests 1 to 3: it does not tell those of trusted execution apart.
            0b111 << 8 | lengths | u64::from(self.shape.list_entries) << 48,
            granules | 1 << 32 | mode,
            bits::VARIABLE_AT as u64,
            LIST_AT as u64,
        ][index]
    }

    fn bytes(&self) -> usize {
        LIST_AT + 8 * self.list.len()
    }

    fn status(&mut self) -> u64 {
        let is_busy = self.busy_looks_left > 0;
        self.busy_looks_left = self.busy_looks_left.saturating_sub(1);
        u64::from(self.is_enabled && !is_busy)
            | u64::from(is_busy) << 16
            | u64::from(self.shape.counter_bits) << 32
            | if self.has_overflowed { bits::OVERFLOWED } else { 0 }
    }
}

impl Registers for Rc<RefCell<Model>> {
    fn read_u16(&mut self, offset: usize) -> Result<u16, RegisterFailure> {
        let mut model = self.borrow_mut();
        model.allowed(offset)?;
        Ok(match offset - bits::HEAD_BYTES {
            bits::HEAD => model.head,
            bits::TAIL => model.tail,
            _ => 0,
        })
    }

    fn write_u16(&mut self, offset: usize, value: u16) -> Result<(), RegisterFailure> {
        let mut model = self.borrow_mut();
        model.allowed(offset)?;
        if offset == bits::HEAD_BYTES + bits::HEAD {
            model.head = value;
        }
        Ok(())
    }

    fn read_u64(&mut self, offset: usize) -> Result<u64, RegisterFailure> {
        let mut model = self.borrow_mut();
        model.allowed(offset)?;
        if offset < bits::HEAD_BYTES {
            return Ok(if offset == bits::COUNT { bits::VERSION | 1 << 8 } else { model.bytes() as u64 });
        }
        Ok(match offset - bits::HEAD_BYTES {
            at @ 0..0x20 => model.capability(at / 8),
            bits::CONTROL => model.control,
            bits::SETTINGS => model.settings,
            bits::NOTIFICATION => model.notification,
            bits::STATUS => model.status(),
            bits::VARIABLE_AT => model.bitmap,
            at if at >= LIST_AT => model.list.get((at - LIST_AT) / 8).copied().unwrap_or(u64::MAX),
            _ => 0,
        })
    }

    fn write_u64(&mut self, offset: usize, value: u64) -> Result<(), RegisterFailure> {
        let mut model = self.borrow_mut();
        model.allowed(offset)?;
        match offset.wrapping_sub(bits::HEAD_BYTES) {
            bits::CONTROL => {
                if value & bits::RESET != 0 {
                    model.forget();
                }
                model.is_enabled = value & bits::ENABLE != 0;
                model.control = value & !bits::RESET;
                model.busy_looks_left = model.shape.busy_looks;
            }
            bits::SETTINGS => model.settings = value,
            bits::NOTIFICATION => model.notification = value,
            bits::STATUS => model.has_overflowed &= value & bits::OVERFLOWED == 0,
            bits::VARIABLE_AT => model.bitmap = value,
            _ => {}
        }
        Ok(())
    }
}
