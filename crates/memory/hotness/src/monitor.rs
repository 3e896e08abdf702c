// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Runs a hotness monitor of a CXL device: sets it up, empties its hot list, stops it.
//!
//! The monitor is polled: no interrupt is enabled, because the device's other interrupts belong to the kernel. So a hot
//! list that is not emptied for several epochs overflows, which `collect` reports. Registers and bits: `bits.rs`.
//!
//! Threads: one at a time. Waits for an operation of the device are bounded by [`OPERATION_MAX`].

use std::thread;
use std::time::Duration;

use crate::failure::HotnessFailure;
use crate::registers::Registers;
use crate::source::{Addresses, Hot, HotRange, HotnessSource};

pub mod bits;
pub mod model;

use bits::{Capabilities, EpochLength, Requests, Status};

/// How long the device may take for an operation. The specification has no limit; emulated ones take none.
const OPERATION_MAX: Duration = Duration::from_secs(1);
const LOOK_PAUSE: Duration = Duration::from_micros(100);
/// Registers read as all ones if the function does not decode its window.
const GONE: u64 = u64::MAX;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Memory that has one counter, in bytes.
    pub granule_bytes: u64,
    /// For how long accesses are counted, until the counters begin at zero again.
    pub epoch: Duration,
    /// From how many accesses on, within an epoch, a granule is hot.
    pub threshold: u32,
    /// Which requests are counted.
    pub requests: Requests,
}

impl Default for Settings {
    /// A page that is used every few milliseconds: so hot that promoting it pays.
    fn default() -> Settings {
        Settings { granule_bytes: 4096, epoch: Duration::from_millis(100), threshold: 32, requests: Requests::All }
    }
}

/// A hotness monitor of a device.
pub struct Monitor<R: Registers> {
    name: String,
    registers: R,
    /// Where its registers begin.
    at: usize,
    capabilities: Capabilities,
    settings: Settings,
    /// Known once the granule is set.
    counter_bits: u32,
    granule_log2: u32,
}

impl<R: Registers> Monitor<R> {
    /// The monitor with this index in a block of registers that begins at `block_at`. Changes nothing.
    pub fn open(
        name: String,
        mut registers: R,
        block_at: usize,
        index: u8,
        settings: Settings,
    ) -> Result<Monitor<R>, HotnessFailure> {
        let read = |registers: &mut R, offset: usize| {
            let value = registers.read_u64(offset);
            value.map_err(|source| HotnessFailure::Register { name: name.clone(), source })
        };
        let count = read(&mut registers, block_at + bits::COUNT)?;
        if count == GONE || count & 0xf != bits::VERSION {
            let what = if count == GONE { "they read as all ones".into() } else { format!("version {}", count & 0xf) };
            return Err(HotnessFailure::Wrong { name, what });
        }
        let monitors = (count >> 8 & 0xff) as u8;
        if index >= monitors {
            return Err(HotnessFailure::NoMonitor { name, monitors });
        }
        let bytes = (read(&mut registers, block_at + bits::LENGTH)? & 0xffff) as usize;
        let at = block_at + bits::HEAD_BYTES + bytes * usize::from(index);
        let mut capabilities = [0; 4];
        for (register, offset) in capabilities.iter_mut().zip(bits::CAPABILITIES) {
            *register = read(&mut registers, at + offset)?;
        }
        match Capabilities::read(capabilities, bytes) {
            Ok(capabilities) => {
                Ok(Monitor { name, registers, at, capabilities, settings, counter_bits: 0, granule_log2: 0 })
            }
            Err(what) => Err(HotnessFailure::Wrong { name, what }),
        }
    }

    /// What it can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn failed(&self, source: crate::RegisterFailure) -> HotnessFailure {
        HotnessFailure::Register { name: self.name.clone(), source }
    }

    fn read(&mut self, offset: usize) -> Result<u64, HotnessFailure> {
        self.registers.read_u64(self.at + offset).map_err(|source| self.failed(source))
    }

    fn write(&mut self, offset: usize, value: u64) -> Result<(), HotnessFailure> {
        self.registers.write_u64(self.at + offset, value).map_err(|source| self.failed(source))
    }

    fn status(&mut self) -> Result<Status, HotnessFailure> {
        match self.read(bits::STATUS)? {
            GONE => Err(HotnessFailure::Wrong { name: self.name.clone(), what: "they read as all ones".into() }),
            register => Ok(Status::read(register)),
        }
    }

    /// Waits for the end of an operation.
    fn settled(&mut self, operation: &'static str) -> Result<Status, HotnessFailure> {
        for _ in 0..OPERATION_MAX.as_micros() / LOOK_PAUSE.as_micros() {
            let status = self.status()?;
            if !status.is_busy {
                return Ok(status);
            }
            thread::sleep(LOOK_PAUSE);
        }
        Err(HotnessFailure::Stuck { name: self.name.clone(), operation })
    }

    fn unsupported(&self, why: String) -> HotnessFailure {
        HotnessFailure::Setting { name: self.name.clone(), why }
    }

    /// The settings register, and the requests for the control register.
    fn chosen(&self) -> Result<(u64, u64, u32), HotnessFailure> {
        let (can, wanted) = (&self.capabilities, &self.settings);
        let Some(granule_log2) = can.granule_log2(wanted.granule_bytes) else {
            let granules: Vec<String> = can.granules().map(|bytes| bytes.to_string()).collect();
            return Err(self.unsupported(format!("counts by {} bytes", granules.join(" or "))));
        };
        let Some(requests) = can.requests(wanted.requests) else {
            return Err(self.unsupported(format!("cannot count {:?}", wanted.requests)));
        };
        let mode = match can.epochs {
            Some([shortest, longest]) => {
                let epoch = EpochLength::of(wanted.epoch);
                if !(shortest.duration()..=longest.duration()).contains(&epoch.duration()) {
                    let why = format!("has epochs of {:?} to {:?}", shortest.duration(), longest.duration());
                    return Err(self.unsupported(why));
                }
                epoch.bits() << 48
            }
            None => 1 << 40,
        };
        Ok((mode | can.finest_rate() << 32 | u64::from(granule_log2), requests, granule_log2))
    }

    /// Tracks all memory of the device.
    fn track_everything(&mut self) -> Result<(), HotnessFailure> {
        for offset in (self.capabilities.bitmap_at..self.capabilities.list_at).step_by(8) {
            self.write(offset, u64::MAX)?;
        }
        Ok(())
    }

    /// Takes all entries from the list.
    fn entries(&mut self) -> Result<(Vec<u64>, bool), HotnessFailure> {
        let entries = self.capabilities.list_entries;
        let mut end = |offset| self.registers.read_u16(self.at + offset);
        let (head, tail) = (end(bits::HEAD), end(bits::TAIL));
        let (head, tail) = (head.map_err(|it| self.failed(it))?, tail.map_err(|it| self.failed(it))?);
        if head >= entries || tail >= entries {
            let what = format!("its hot list of {entries} entries has the head at {head} and the tail at {tail}");
            return Err(HotnessFailure::Wrong { name: self.name.clone(), what });
        }
        let (mut at, mut words) = (head, Vec::new());
        while at != tail {
            words.push(self.read(self.capabilities.list_at + 8 * usize::from(at))?);
            at = (at + 1) % entries;
        }
        // After the entries, so that the device cannot overwrite one that has not been read.
        self.registers.write_u16(self.at + bits::HEAD, tail).map_err(|source| self.failed(source))?;
        Ok((words, (tail + 1) % entries == head))
    }
}

impl<R: Registers> HotnessSource for Monitor<R> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn addresses(&self) -> Addresses {
        Addresses::Device
    }

    fn interval(&self) -> Option<Duration> {
        Some(self.settings.epoch)
    }

    fn start(&mut self) -> Result<(), HotnessFailure> {
        let (settings, requests, granule_log2) = self.chosen()?;
        if self.settled("last operation")?.is_enabled {
            return Err(HotnessFailure::InUse { name: self.name.clone() });
        }
        self.write(bits::CONTROL, bits::RESET)?;
        self.settled("reset")?;
        self.write(bits::SETTINGS, settings)?;
        self.track_everything()?;
        self.write(bits::NOTIFICATION, u64::from(self.capabilities.list_entries / 2))?;
        self.write(bits::STATUS, bits::OVERFLOWED | bits::NOTIFIED)?;
        // The width of counters follows from the granule, so it is known only now.
        let counter_bits = self.status()?.counter_bits;
        if !(1..=63).contains(&counter_bits) {
            let what = format!("counters of {counter_bits} bits");
            return Err(HotnessFailure::Wrong { name: self.name.clone(), what });
        }
        let (threshold, max) = (u64::from(self.settings.threshold), bits::count_max(counter_bits));
        if threshold == 0 || threshold > max {
            return Err(self.unsupported(format!("has thresholds of 1 to {max}")));
        }
        (self.counter_bits, self.granule_log2) = (counter_bits, granule_log2);
        self.write(bits::CONTROL, requests | bits::ENABLE | threshold << 32)?;
        if self.settled("start")?.is_enabled {
            return Ok(());
        }
        Err(HotnessFailure::Stopped { name: self.name.clone() })
    }

    fn collect(&mut self) -> Result<Hot, HotnessFailure> {
        if self.counter_bits == 0 || !self.status()?.is_enabled {
            return Err(HotnessFailure::Stopped { name: self.name.clone() });
        }
        let (words, was_full) = self.entries()?;
        // Read after the list was emptied: an overflow in between belongs to what follows, and is reported too early
        // rather than never.
        let has_overflowed = self.status()?.has_overflowed;
        if has_overflowed {
            self.write(bits::STATUS, bits::OVERFLOWED)?;
        }
        let granule_log2 = self.granule_log2;
        let max = bits::count_max(self.counter_bits);
        let ranges = words.into_iter().filter_map(|word| {
            let entry = bits::Entry::read(word, self.counter_bits);
            // A granule beyond all addresses is none.
            let start = entry.granule.checked_mul(1 << granule_log2)?;
            let is_saturated = entry.count == max;
            Some(HotRange { start, bytes: 1 << granule_log2, accesses: entry.count, is_saturated })
        });
        Ok(Hot::of(ranges, was_full || has_overflowed))
    }

    fn stop(&mut self) -> Result<(), HotnessFailure> {
        let control = self.read(bits::CONTROL)?;
        self.write(bits::CONTROL, control & !bits::ENABLE)?;
        self.counter_bits = 0;
        if self.settled("stop")?.is_enabled {
            return Err(HotnessFailure::Stuck { name: self.name.clone(), operation: "stop" });
        }
        Ok(())
    }
}
