// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a program says about memory: hints, and pins.

#![allow(unsafe_code, reason = "exports symbols, and uses the program's pointers")]

use std::ffi::c_int;

use aquifer::{Intent, Pattern, Priority};
use aquifer_config::ordinary_memory::hint;

use crate::arguments::{Place, range};
use crate::code::Failure;
use crate::guard::{call, done};
use crate::handles;
use crate::mapping::{self, Mapping};
use crate::ordinary::{self, OrdinaryPin};

/// The layout of `aquifer_pin_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Pin {
    /// See `handles.rs`.
    pub handle: u64,
}

/// What a handle of a pin stands for.
enum Pinned {
    Mapped { _pin: aquifer::Pin },
    Ordinary { _pin: OrdinaryPin },
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
        if let Some(memory) = ordinary::of(mapping)? {
            let is_read = intent == Intent::Read;
            return memory.advise(start, len, if is_read { hint::PREFETCH_READ } else { hint::PREFETCH_WRITE });
        }
        Ok(mapping::get(mapping)?.prefetch(range(start, len), intent)?)
    })
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_evict(mapping: Mapping, start: usize, len: usize) -> c_int {
    done(|| match ordinary::of(mapping)? {
        Some(memory) => memory.advise(start, len, hint::EVICT),
        None => Ok(mapping::get(mapping)?.evict(range(start, len))?),
    })
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_stream(mapping: Mapping, start: usize, len: usize) -> c_int {
    done(|| match ordinary::of(mapping)? {
        Some(memory) => memory.advise(start, len, hint::STREAM),
        None => Ok(mapping::get(mapping)?.stream(range(start, len))?),
    })
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_pattern(mapping: Mapping, start: usize, len: usize, pattern: c_int) -> c_int {
    done(|| {
        const PATTERNS: [Pattern; 3] = [Pattern::Normal, Pattern::Random, Pattern::Sequential];
        let number = usize::try_from(pattern).ok().filter(|number| *number < PATTERNS.len());
        let number = number
            .ok_or_else(|| Failure::argument(format!("`pattern` {pattern} has no meaning; AQUIFER_NORMAL is one")))?;
        if let Some(memory) = ordinary::of(mapping)? {
            return memory.advise(start, len, hint::PATTERNS[number]);
        }
        let pattern = PATTERNS[number];
        Ok(mapping::get(mapping)?.pattern(range(start, len), pattern)?)
    })
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_priority(mapping: Mapping, start: usize, len: usize, priority: c_int) -> c_int {
    done(|| {
        const PRIORITIES: [Priority; 3] = [Priority::Low, Priority::Normal, Priority::High];
        let number = usize::try_from(i64::from(priority) + 1).ok().filter(|number| *number < PRIORITIES.len());
        let number = number.ok_or_else(|| {
            Failure::argument(format!("`priority` {priority} has no meaning; AQUIFER_PRIORITY_NORMAL is one"))
        })?;
        if let Some(memory) = ordinary::of(mapping)? {
            return memory.advise(start, len, hint::PRIORITIES[number]);
        }
        let priority = PRIORITIES[number];
        Ok(mapping::get(mapping)?.priority(range(start, len), priority)?)
    })
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_block_size(mapping: Mapping, start: usize, len: usize, bytes: usize) -> c_int {
    done(|| {
        let Some(memory) = ordinary::of(mapping)? else {
            return Ok(mapping::get(mapping)?.block_size(range(start, len), (bytes > 0).then_some(bytes))?);
        };
        let pages = bytes / 4096;
        if bytes > 0 && (!bytes.is_power_of_two() || !(1..=512).contains(&pages)) {
            return Err(aquifer::Error::BlockSize { bytes }.into());
        }
        memory.advise(start, len, hint::BLOCK_SIZE + if bytes > 0 { pages.ilog2() + 1 } else { 0 })
    })
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_ready(mapping: Mapping, start: usize, len: usize) -> c_int {
    call(|| match ordinary::of(mapping)? {
        Some(memory) => Ok(memory.is_ready(start, len)?.into()),
        None => Ok(mapping::get(mapping)?.ready(range(start, len)).into()),
    })
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_pin(mapping: Mapping, start: usize, len: usize, pin: *mut Pin) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new(pin, "pin") }?;
        let pinned = match ordinary::of(mapping)? {
            Some(memory) => Pinned::Ordinary { _pin: memory.pin(start, len)? },
            None => Pinned::Mapped { _pin: mapping::get(mapping)?.pin(range(start, len))? },
        };
        place.put(Pin { handle: handles::insert(pinned)? });
        Ok(())
    })
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_unpin(pin: Pin) -> c_int {
    done(|| handles::remove::<Pinned>(pin.handle).map(|_| ()))
}
