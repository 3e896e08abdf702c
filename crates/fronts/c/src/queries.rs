// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a program asks about memory: where it is, and how hot.

#![allow(unsafe_code, reason = "exports symbols, and uses the program's pointers")]

use std::ffi::{CStr, c_char, c_int};

use aquifer::{CLASSES, Status};

use crate::arguments::{Place, array_mut, range};
use crate::guard::done;
use crate::mapping::{self, Mapping};
use crate::ordinary;

/// The layout of `struct aquifer_status_run`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs, reason = "aquifer.h says what they mean")]
pub struct StatusRun {
    pub start: usize,
    pub len: usize,
    pub status: u32,
    pub level: u32,
    pub is_clean: u32,
    pub reserved: u32,
}

/// The layout of `struct aquifer_temperature_run`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs, reason = "aquifer.h says what they mean")]
pub struct TemperatureRun {
    pub start: usize,
    pub len: usize,
    pub temperature: u32,
    pub reserved: u32,
}

/// The layout of `struct aquifer_histogram`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs, reason = "aquifer.h says what they mean")]
pub struct Histogram {
    pub resident_bytes: [u64; CLASSES],
    pub away_bytes: [u64; CLASSES],
}

impl Histogram {
    pub(crate) fn of(histogram: aquifer::Histogram) -> Self {
        Self { resident_bytes: histogram.resident_bytes, away_bytes: histogram.away_bytes }
    }
}

impl StatusRun {
    fn of(run: &aquifer::StatusRun) -> Self {
        let (status, level, is_clean) = match run.status {
            Status::Empty => (0, 0, false),
            Status::Fetching => (1, 0, false),
            Status::Lost => (2, 0, false),
            Status::Resident { is_clean } => (4, 0, is_clean),
            Status::Standby { is_clean } => (5, 0, is_clean),
            Status::Stored { level } => (6, level as u32, false),
            // A status that is newer than the header is reported as moving.
            _ => (3, 0, false),
        };
        Self { start: run.range.start, len: run.range.len(), status, level, is_clean: is_clean.into(), reserved: 0 }
    }
}

/// Writes as many runs as there is room for, and how many there are.
fn put_runs<T, R>(found: &[R], into: &mut [T], count: Place<usize>, of: impl Fn(&R) -> T) {
    for (place, run) in into.iter_mut().zip(found) {
        *place = of(run);
    }
    count.put(found.len());
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_status(
    mapping: Mapping,
    start: usize,
    len: usize,
    runs: *mut StatusRun,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let (into, count) = unsafe { (array_mut(runs, capacity, "runs")?, Place::new(count, "count")?) };
        match ordinary::of(mapping)? {
            Some(memory) => put_runs(&memory.status(start, len)?, into, count, |run| *run),
            None => put_runs(&mapping::get(mapping)?.status(range(start, len))?, into, count, StatusRun::of),
        }
        Ok(())
    })
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_temperature(
    mapping: Mapping,
    start: usize,
    len: usize,
    runs: *mut TemperatureRun,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    done(|| {
        let mapping = mapping::get(mapping)?;
        // SAFETY: the caller's promise.
        let (into, count) = unsafe { (array_mut(runs, capacity, "runs")?, Place::new(count, "count")?) };
        put_runs(&mapping.temperature(range(start, len))?, into, count, |run| TemperatureRun {
            start: run.range.start,
            len: run.range.len(),
            temperature: run.temperature.into(),
            reserved: 0,
        });
        Ok(())
    })
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_histogram(
    mapping: Mapping,
    start: usize,
    len: usize,
    histogram: *mut Histogram,
) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let (mapping, place) = (mapping::get(mapping)?, unsafe { Place::new(histogram, "histogram") }?);
        place.put(Histogram::of(mapping.histogram(range(start, len))?));
        Ok(())
    })
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_class_name(class_index: usize) -> *const c_char {
    const NAMES: [&CStr; CLASSES] = [c"0", c"1", c"2-3", c"4-7", c"8-15", c"16-31", c"32-63", c"64-127", c"128-255"];
    NAMES.get(class_index).map_or(std::ptr::null(), |name| name.as_ptr())
}

#[cfg(test)]
mod tests {
    use aquifer::CLASS_NAMES;

    use super::*;

    #[test]
    fn classes_have_the_names_of_the_crate() {
        for (class, name) in CLASS_NAMES.iter().enumerate() {
            // SAFETY: a name that lasts.
            let here = unsafe { CStr::from_ptr(aquifer_class_name(class)) };
            assert_eq!(here.to_str(), Ok(*name));
        }
        assert!(aquifer_class_name(CLASSES).is_null() && aquifer_class_name(usize::MAX).is_null());
    }
}
