// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Samples touches, and returns the miss-ratio curve of a space.

#![allow(unsafe_code, reason = "exports symbols, and uses the program's pointers")]

use std::ffi::c_int;
use std::time::Duration;

use crate::arguments::{Place, array_mut};
use crate::code::Failure;
use crate::guard::done;
use crate::sized::{Growing, SizedPlace};
use crate::space::{self, Space};

/// The layout of `struct aquifer_curve_point`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "aquifer.h says what they mean")]
pub struct CurvePoint {
    pub dram_bytes: u64,
    pub bytes_per_s: f64,
    pub fetches_per_s: f64,
    pub miss_ratio: f64,
}

/// The layout of `struct aquifer_curve`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "aquifer.h says what they mean")]
pub struct Curve {
    pub size: usize,
    pub samples: u64,
    pub measured_ns: u64,
    pub content_bytes: u64,
    pub fetch_ns: u64,
    pub least_dram_bytes: u64,
}

// SAFETY: the first member is the size, of type `usize`; the others are numbers of eight bytes, without gaps.
unsafe impl Growing for Curve {
    const SIZE_MIN: usize = 48;
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_sample_touches(space: Space, limit_ms: u64) -> c_int {
    done(|| Ok(space::get(space)?.sample_touches(Duration::from_millis(limit_ms))?))
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_stop_sampling(space: Space) -> c_int {
    done(|| Ok(space::get(space)?.stop_sampling()?))
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_miss_ratio_curve(
    space: Space,
    loss: f64,
    fetch_ns: u64,
    curve: *mut Curve,
    points: *mut CurvePoint,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    done(|| {
        if !(loss > 0.0 && loss < 1.0) {
            return Err(Failure::argument(format!("`loss` is {loss}; give a part of the time, 0.05 for example")));
        }
        let space = space::get(space)?;
        // SAFETY: the caller's promise.
        let (place, points, count) = unsafe {
            (SizedPlace::new(curve, "curve")?, array_mut(points, capacity, "points")?, Place::new(count, "count")?)
        };
        let Some(found) = space.miss_ratio_curve()? else {
            place.put(Curve {
                size: 0,
                samples: 0,
                measured_ns: 0,
                content_bytes: 0,
                fetch_ns: 0,
                least_dram_bytes: 0,
            });
            count.put(0);
            return Ok(());
        };
        let measured = found.fetch_time().unwrap_or_default();
        let fetch = if fetch_ns == 0 { measured } else { Duration::from_nanos(fetch_ns) };
        place.put(Curve {
            size: 0,
            samples: found.samples(),
            measured_ns: u64::try_from(found.measured().as_nanos()).unwrap_or(u64::MAX),
            content_bytes: found.content_bytes(),
            fetch_ns: u64::try_from(measured.as_nanos()).unwrap_or(u64::MAX),
            least_dram_bytes: found.least_dram_bytes(loss, fetch),
        });
        let all = found.points();
        for (place, point) in points.iter_mut().zip(&all) {
            *place = CurvePoint {
                dram_bytes: point.dram_bytes,
                bytes_per_s: point.bytes_per_s,
                fetches_per_s: point.fetches_per_s,
                miss_ratio: point.miss_ratio,
            };
        }
        count.put(all.len());
        Ok(())
    })
}
