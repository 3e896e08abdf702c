// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The registers of hotness monitors and the entries of their hot lists, as bits. CXL 3.2, the CHMU registers. Pure.
//!
//! A block begins with 16 bytes about all of its monitors, which follow it at equal distances:
//!
//! | offset | bits  | field                                       |
//! |--------|-------|---------------------------------------------|
//! | 0x00   | 3:0   | version, 1                                  |
//! |        | 15:8  | number of monitors                          |
//! | 0x08   | 15:0  | bytes of each monitor                       |
//!
//! Offsets within a monitor. All of them are 64 bits wide except head and tail, which are 16 bits wide:
//!
//! | offset | bits  | field                                                                                  |
//! |--------|-------|----------------------------------------------------------------------------------------|
//! | 0x00   | 13:8  | which requests it can count, a bit each, in the order of `Requests`                    |
//! |        | 31:16 | longest epoch: scale in 19:16, multiplier above                                        |
//! |        | 47:32 | shortest epoch, likewise                                                               |
//! |        | 63:48 | entries of the hot list                                                                |
//! | 0x08   | 31:0  | which granules it can count, bit n: 256 bytes shifted left by n                        |
//! |        | 47:32 | which rates of sampling it has, bit n: one access in 2 to the power of n is counted    |
//! |        | 48    | it has epochs                                                                          |
//! |        | 49    | it can count without epochs                                                            |
//! | 0x10   |       | offset of the bitmap of tracked memory, a bit for each 256 MiB                         |
//! | 0x18   |       | offset of the hot list                                                                 |
//! | 0x40   | 7:0   | which requests are counted                                                             |
//! |        | 16    | enable                                                                                 |
//! |        | 17    | reset the counters and the hot list                                                    |
//! |        | 63:32 | threshold: number of accesses that makes a granule hot                                 |
//! | 0x48   | 31:0  | granule, as a power of two                                                             |
//! |        | 39:32 | rate of sampling, as a power of two                                                    |
//! |        | 47:40 | mode: 0 epochs, 1 without                                                              |
//! |        | 63:48 | epoch: scale in 51:48, multiplier above                                                |
//! | 0x50   | 15:0  | number of entries at which the device interrupts                                       |
//! | 0x60   | 0     | enabled                                                                                |
//! |        | 31:16 | operation in progress, 0: none                                                         |
//! |        | 39:32 | width of the counter in an entry                                                       |
//! |        | 40    | the hot list overflowed; writing 1 clears it                                           |
//! |        | 41    | the hot list reached its threshold; writing 1 clears it                                |
//! | 0x68   | 15:0  | head: the index of the oldest entry, written by the host                               |
//! | 0x6a   | 15:0  | tail: the index of the next entry to be written by the device                          |
//!
//! The list is empty if head and tail are equal, and full if the tail is one before the head. An entry has the count in
//! its lower bits and the number of the granule above them. What the specification calls a unit is a granule here.

use std::time::Duration;

/// Bytes before the first monitor.
pub const HEAD_BYTES: usize = 0x10;
/// The version of the registers.
pub const VERSION: u64 = 1;
/// Offset of the version and the number of monitors.
pub const COUNT: usize = 0x00;
/// Offset of their length.
pub const LENGTH: usize = 0x08;
/// Offsets within a monitor: what it can do, in four registers.
pub const CAPABILITIES: [usize; 4] = [0x00, 0x08, 0x10, 0x18];
/// What is counted, the threshold, and commands.
pub const CONTROL: usize = 0x40;
/// What is counted how.
pub const SETTINGS: usize = 0x48;
/// When the device interrupts.
pub const NOTIFICATION: usize = 0x50;
/// Status bits.
pub const STATUS: usize = 0x60;
/// The end of the hot list from which entries are taken.
pub const HEAD: usize = 0x68;
/// The end of the hot list to which the device adds.
pub const TAIL: usize = 0x6a;
/// Where the bitmap and the list may begin.
pub const VARIABLE_AT: usize = 0x70;

/// Control: count.
pub const ENABLE: u64 = 1 << 16;
/// Control: forget all counts and empty the list.
pub const RESET: u64 = 1 << 17;
/// Status: entries were lost.
pub const OVERFLOWED: u64 = 1 << 40;
/// Status: the list was as full as requested for an interrupt.
pub const NOTIFIED: u64 = 1 << 41;
/// The smallest granule, as a power of two.
pub const GRANULE_LOG2_MIN: u32 = 8;
/// Memory of one bit of the bitmap.
pub const BITMAP_BYTES: u64 = 256 << 20;
/// The scales of an epoch: 1 to 5, from 100 us by factors of ten.
const SCALES: std::ops::RangeInclusive<u64> = 1..=5;
const MULTIPLIER_MAX: u64 = 0xfff;

/// The bits of a register from `low` on.
fn field(register: u64, low: u32, bits: u32) -> u64 {
    register >> low & ((1 << bits) - 1)
}

/// Which requests of the host are counted, those of trusted execution included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requests {
    /// Reads.
    Reads,
    /// Writes.
    Writes,
    /// Both.
    All,
}

impl Requests {
    /// Their number where a monitor counts them also from trusted execution, and where it does not.
    const fn numbers(self) -> [u64; 2] {
        match self {
            Requests::Reads => [4, 1],
            Requests::Writes => [5, 2],
            Requests::All => [6, 3],
        }
    }
}

/// The length of an epoch, as registers have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochLength {
    scale: u64,
    multiplier: u64,
}

impl EpochLength {
    /// The length in 16 bits of a register. `None` if no length is written so.
    pub fn of_bits(bits: u64) -> Option<EpochLength> {
        let length = EpochLength { scale: bits & 0xf, multiplier: bits >> 4 & MULTIPLIER_MAX };
        (SCALES.contains(&length.scale) && length.multiplier > 0).then_some(length)
    }

    /// The length that comes closest to `wanted` from below, with the finest scale.
    pub fn of(wanted: Duration) -> EpochLength {
        let micros = u64::try_from(wanted.as_micros()).unwrap_or(u64::MAX);
        let fits = |scale: &u64| micros / step_us(*scale) <= MULTIPLIER_MAX;
        let scale = SCALES.clone().find(fits).unwrap_or(*SCALES.end());
        EpochLength { scale, multiplier: (micros / step_us(scale)).clamp(1, MULTIPLIER_MAX) }
    }

    /// Its bits.
    pub fn bits(self) -> u64 {
        self.scale | self.multiplier << 4
    }

    /// How long it is.
    pub fn duration(self) -> Duration {
        Duration::from_micros(self.multiplier * step_us(self.scale))
    }
}

fn step_us(scale: u64) -> u64 {
    let mut step = 100;
    for _ in 1..scale {
        step *= 10;
    }
    step
}

/// What a monitor can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The requests that it can count, a bit for each number.
    requests: u64,
    /// The shortest and the longest epoch; `None` without epochs.
    pub epochs: Option<[EpochLength; 2]>,
    /// Whether it can count without epochs: a granule is reported when it reaches the threshold.
    pub has_no_epochs_mode: bool,
    /// Entries of the hot list, one of which is never used.
    pub list_entries: u16,
    /// The granules, a bit for each.
    granules: u64,
    /// The rates of sampling, a bit for each.
    rates: u64,
    /// Offset of the bitmap of tracked memory.
    pub bitmap_at: usize,
    /// Offset of the hot list.
    pub list_at: usize,
}

impl Capabilities {
    /// Reads the four registers of a monitor of `bytes`. An error says what no monitor has.
    pub fn read(registers: [u64; 4], bytes: usize) -> Result<Capabilities, String> {
        let [first, second, bitmap, list] = registers;
        let list_entries = field(first, 48, 16) as u16;
        let at = |offset: u64| usize::try_from(offset).ok().filter(|at| *at >= VARIABLE_AT && at.is_multiple_of(8));
        let (Some(bitmap_at), Some(list_at)) = (at(bitmap), at(list)) else {
            return Err(format!("its bitmap is at {bitmap:#x} and its hot list at {list:#x}"));
        };
        let list_end = list_at.checked_add(8 * usize::from(list_entries)).filter(|end| *end <= bytes);
        if list_entries < 2 || bitmap_at >= list_at || list_end.is_none() {
            return Err(format!("a hot list of {list_entries} entries at {list_at:#x} in {bytes} bytes"));
        }
        let lengths = [field(first, 32, 16), field(first, 16, 16)].map(EpochLength::of_bits);
        let epochs = match lengths {
            [Some(shortest), Some(longest)] if field(second, 48, 1) == 1 => Some([shortest, longest]),
            _ => None,
        };
        let has_no_epochs_mode = field(second, 49, 1) == 1;
        if epochs.is_none() && !has_no_epochs_mode || field(second, 0, 32) == 0 {
            return Err("it has no mode and no granule".into());
        }
        Ok(Capabilities {
            // Bit 8 is the request with number 1.
            requests: field(first, 8, 6) << 1,
            epochs,
            has_no_epochs_mode,
            list_entries,
            granules: field(second, 0, 32),
            rates: field(second, 32, 16),
            bitmap_at,
            list_at,
        })
    }

    /// The number of these requests for the control register. `None` if the monitor cannot count them.
    pub fn requests(&self, requests: Requests) -> Option<u64> {
        requests.numbers().into_iter().find(|number| self.requests >> number & 1 == 1)
    }

    /// Granules that it can count, in bytes.
    pub fn granules(&self) -> impl Iterator<Item = u64> + '_ {
        (0..u32::BITS).filter(|bit| self.granules >> bit & 1 == 1).map(|bit| 1 << (bit + GRANULE_LOG2_MIN))
    }

    /// The power of two of a granule. `None` if the monitor cannot count by it.
    pub fn granule_log2(&self, bytes: u64) -> Option<u32> {
        self.granules().any(|granule| granule == bytes).then(|| bytes.trailing_zeros())
    }

    /// The power of two of the finest rate of sampling.
    pub fn finest_rate(&self) -> u64 {
        if self.rates == 0 { 0 } else { u64::from(self.rates.trailing_zeros()) }
    }
}

/// What the status register says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether it counts.
    pub is_enabled: bool,
    /// Whether an operation is in progress.
    pub is_busy: bool,
    /// Bits of the count in an entry, once the granule is set.
    pub counter_bits: u32,
    /// Whether entries were lost.
    pub has_overflowed: bool,
}

impl Status {
    /// Reads it.
    pub fn read(register: u64) -> Status {
        Status {
            is_enabled: register & 1 == 1,
            is_busy: field(register, 16, 16) != 0,
            counter_bits: field(register, 32, 8) as u32,
            has_overflowed: register & OVERFLOWED != 0,
        }
    }
}

/// One entry of the hot list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The number of the granule.
    pub granule: u64,
    /// How often it was accessed.
    pub count: u64,
}

impl Entry {
    /// Reads an entry whose count has `counter_bits`, 1 to 63.
    pub fn read(word: u64, counter_bits: u32) -> Entry {
        Entry { granule: word >> counter_bits, count: word & count_max(counter_bits) }
    }

    /// The word of it.
    pub fn word(self, counter_bits: u32) -> u64 {
        self.granule << counter_bits | self.count.min(count_max(counter_bits))
    }
}

/// The greatest count in so many bits, 1 to 63.
pub fn count_max(counter_bits: u32) -> u64 {
    (1 << counter_bits) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_rounded_down_to_what_a_register_can_say() {
        for (wanted_us, got_us) in [
            (100, 100),
            (0, 100),
            (409_500, 409_500),
            (409_601, 409_000),
            (1_000_000, 1_000_000),
            (4_095_000_000, 4_095_000_000),
            (u64::MAX, 4_095_000_000),
        ] {
            let length = EpochLength::of(Duration::from_micros(wanted_us));
            assert_eq!(length.duration(), Duration::from_micros(got_us));
            assert_eq!(EpochLength::of_bits(length.bits()), Some(length));
        }
        for bits in [0, 0x10, 0x16, 0x1f, 0x01] {
            assert_eq!(EpochLength::of_bits(bits), None, "{bits:#x}");
        }
    }

    #[test]
    fn entries_are_read_as_they_were_written_whatever_the_width() {
        for bits in 1..=63 {
            for entry in
                [Entry { granule: 0, count: 1 }, Entry { granule: (1 << (64 - bits)) - 1, count: count_max(bits) }]
            {
                assert_eq!(Entry::read(entry.word(bits), bits), entry);
            }
        }
        // From the documentation of a driver for Linux: 16 bits of count, the second granule.
        assert_eq!(Entry::read(0x1_0364, 16), Entry { granule: 1, count: 0x364 });
        assert_eq!(Entry { granule: 3, count: 1 << 20 }.word(16), 3 << 16 | 0xffff, "a count saturates");
    }

    #[test]
    fn registers_that_no_monitor_has_are_refused() {
        let right = [0x0400_0645_0014_3f00_u64 & !(0xffff << 48) | 8 << 48, 1 << 48 | 0x10, 0x70, 0x80];
        let read = |change: (usize, u64), bytes| {
            let mut registers = right;
            registers[change.0] = change.1;
            Capabilities::read(registers, bytes)
        };
        assert!(read((0, right[0]), 0x80 + 64).is_ok());
        for (change, bytes) in [
            ((0, right[0]), 0x80 + 63),
            ((0, right[0] & !(0xffff << 48)), 4096),
            ((1, 0x10), 4096),
            ((1, 1 << 48), 4096),
            ((2, 0x74), 4096),
            ((2, 0x80), 4096),
            ((3, u64::MAX), 4096),
            ((3, u64::MAX - 7), 4096),
            ((2, 0x68), 4096),
        ] {
            assert!(read(change, bytes).is_err(), "{change:x?}");
        }
    }
}
