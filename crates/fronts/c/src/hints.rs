// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a program says about memory: hints, and pins.

#![allow(unsafe_code, reason = "exports symbols, and uses the program's pointers")]

use std::ffi::c_int;

use aquifer::{Intent, Pattern};

use crate::arguments::{Place, range};
use crate::code::Failure;
use crate::guard::{call, done};
use crate::handles;
use crate::mapping::{self, Mapping};

/// `aquifer_pin_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Pin {
    /// See `handles.rs`.
    pub handle: u64,
}

/// What a handle of a pin stands for.
struct Pinned {
    _pin: aquifer::Pin,
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_prefetch(mapping: Mapping, start: usize, len: usize, intent: c_int) -> c_int {
    done(|| {
        let intent = match intent {
            0 => Intent::Read,
            1 => Intent::Write,
            other => return Err(Failure::argument(format!("`intent` {other} has no meaning; AQUIFER_READ is one"))),
        };
        Ok(mapping::get(mapping)?.prefetch(range(start, len), intent)?)
    })
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_evict(mapping: Mapping, start: usize, len: usize) -> c_int {
    done(|| Ok(mapping::get(mapping)?.evict(range(start, len))?))
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_stream(mapping: Mapping, start: usize, len: usize) -> c_int {
    done(|| Ok(mapping::get(mapping)?.stream(range(start, len))?))
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_pattern(mapping: Mapping, start: usize, len: usize, pattern: c_int) -> c_int {
    done(|| {
        let pattern = match pattern {
            0 => Pattern::Normal,
            1 => Pattern::Random,
            2 => Pattern::Sequential,
            other => return Err(Failure::argument(format!("`pattern` {other} has no meaning; AQUIFER_NORMAL is one"))),
        };
        Ok(mapping::get(mapping)?.pattern(range(start, len), pattern)?)
    })
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_ready(mapping: Mapping, start: usize, len: usize) -> c_int {
    call(|| Ok(mapping::get(mapping)?.ready(range(start, len)).into()))
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_pin(mapping: Mapping, start: usize, len: usize, pin: *mut Pin) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let (mapping, place) = (mapping::get(mapping)?, unsafe { Place::new(pin, "pin") }?);
        let pinned = Pinned { _pin: mapping.pin(range(start, len))? };
        place.put(Pin { handle: handles::insert(pinned)? });
        Ok(())
    })
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_unpin(pin: Pin) -> c_int {
    done(|| handles::remove::<Pinned>(pin.handle).map(|_| ()))
}
