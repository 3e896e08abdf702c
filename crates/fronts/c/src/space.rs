// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Opens spaces, closes them, and returns their counters.

#![allow(unsafe_code, reason = "exports symbols, and uses the program's pointers")]

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use crate::arguments::{Place, array, array_mut, text};
use crate::code::Failure;
use crate::guard::done;
use crate::handles;
use crate::queries::Histogram;
use crate::sized::{self, Growing, SizedPlace};

/// The layout of `aquifer_space_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Space {
    /// See `handles.rs`.
    pub handle: u64,
}

/// The layout of `struct aquifer_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "aquifer.h says what they mean")]
pub struct Options {
    pub size: usize,
    pub dram: *const c_char,
    pub tiers: *const *const c_char,
    pub tiers_count: usize,
    pub policy: *const c_char,
    pub block_size: *const c_char,
    pub named_in: *const c_char,
    pub without_system_calls: u32,
    pub reserved: u32,
}

// SAFETY: the first member is the size, of type `usize`; the others are pointers and numbers, without gaps.
unsafe impl Growing for Options {
    const SIZE_MIN: usize = 48;
}

/// The layout of `struct aquifer_limits`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "aquifer.h says what they mean")]
pub struct Limits {
    pub size: usize,
    pub prefetch_bytes_max: usize,
    pub pin_bytes_max: usize,
    pub serves_system_calls: u32,
    pub reserved: u32,
}

// SAFETY: the first member is the size, of type `usize`; the others are numbers, without gaps.
unsafe impl Growing for Limits {
    const SIZE_MIN: usize = 32;
}

/// The layout of `struct aquifer_statistics`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "aquifer.h says what they mean")]
pub struct Statistics {
    pub size: usize,
    pub faults: u64,
    pub fetched_bytes: u64,
    pub written_back_bytes: u64,
    pub evicted_blocks: u64,
    pub resident_bytes: u64,
    pub resident_bytes_peak: u64,
    pub stored_bytes: u64,
    pub errors: u64,
}

// SAFETY: the first member is the size, of type `usize`; the others are numbers of eight bytes, without gaps.
unsafe impl Growing for Statistics {
    const SIZE_MIN: usize = 72;
}

/// Maximum number of tiers that are read: one more than a chain can have, so that a longer list is refused as such.
const TIERS_MAX: usize = 5;

/// Returns the space that a handle stands for.
pub(crate) fn get(space: Space) -> Result<Arc<aquifer::Space>, Failure> {
    handles::get(space.handle)
}

/// Returns the settings as the crate `aquifer` takes them.
///
/// # Safety
/// The pointers are as `aquifer.h` says.
unsafe fn builder(options: &Options) -> Result<aquifer::Builder, Failure> {
    let mut builder = aquifer::Space::builder();
    // SAFETY: the caller's promise, here and below.
    let optional = |pointer: *const c_char, name| unsafe {
        if pointer.is_null() { Ok(None) } else { text(pointer, name).map(Some) }
    };
    if let Some(dram) = optional(options.dram, "dram")? {
        builder = builder.dram(dram);
    }
    // SAFETY: as above.
    for tier in unsafe { array(options.tiers, options.tiers_count.min(TIERS_MAX), "tiers") }? {
        // SAFETY: as above.
        builder = builder.tier(unsafe { text(*tier, "tiers") }?);
    }
    if let Some(policy) = optional(options.policy, "policy")? {
        builder = builder.policy(policy);
    }
    if let Some(size) = optional(options.block_size, "block_size")? {
        builder = builder.block_size(size);
    }
    if let Some(directory) = optional(options.named_in, "named_in")? {
        builder = builder.named_in(directory);
    }
    match (options.without_system_calls, options.reserved) {
        (0, 0) => Ok(builder),
        (1, 0) => Ok(builder.without_system_calls()),
        (other, 0) => {
            let why = format!("`options->without_system_calls` is {other}; set it to 0 or 1");
            Err(Failure::argument(why))
        }
        _ => Err(Failure::argument("`options->reserved` is not zero; begin with AQUIFER_OPTIONS_INIT".to_owned())),
    }
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_open(options: *const Options, space: *mut Space) -> c_int {
    done(|| {
        let initial = Options {
            size: size_of::<Options>(),
            dram: std::ptr::null(),
            tiers: std::ptr::null(),
            tiers_count: 0,
            policy: std::ptr::null(),
            block_size: std::ptr::null(),
            named_in: std::ptr::null(),
            without_system_calls: 0,
            reserved: 0,
        };
        // SAFETY: the caller's promise.
        let (space, builder) =
            unsafe { (Place::new(space, "space")?, builder(&sized::read(options, initial, "options")?)?) };
        let opened = builder.open()?;
        space.put(Space { handle: handles::insert(opened)? });
        Ok(())
    })
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_close(space: Space) -> c_int {
    done(|| {
        let space = handles::remove::<aquifer::Space>(space.handle)?;
        let in_use = || Failure::from(aquifer::CloseError::InUse);
        Ok(Arc::into_inner(space).ok_or_else(in_use)?.close()?)
    })
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_space_limits(space: Space, limits: *mut Limits) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let (space, place) = (get(space)?, unsafe { SizedPlace::new(limits, "limits") }?);
        place.put(Limits {
            size: 0,
            prefetch_bytes_max: space.prefetch_bytes_max(),
            pin_bytes_max: space.pin_bytes_max(),
            serves_system_calls: space.serves_system_calls().into(),
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
pub unsafe extern "C" fn aquifer_space_statistics(space: Space, statistics: *mut Statistics) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let (space, place) = (get(space)?, unsafe { SizedPlace::new(statistics, "statistics") }?);
        let counted = space.statistics();
        place.put(Statistics {
            size: 0,
            faults: counted.faults,
            fetched_bytes: counted.fetched_bytes,
            written_back_bytes: counted.written_back_bytes,
            evicted_blocks: counted.evicted_blocks,
            resident_bytes: counted.resident_bytes,
            resident_bytes_peak: counted.resident_bytes_peak,
            stored_bytes: counted.stored_bytes,
            errors: counted.errors,
        });
        Ok(())
    })
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_space_statistics_json(
    space: Space,
    into: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> c_int {
    done(|| {
        let space = get(space)?;
        // SAFETY: the caller's promise.
        let into = unsafe { array_mut(into.cast::<u8>(), capacity, "into") }?;
        // SAFETY: as above.
        let needed = if needed.is_null() { None } else { Some(unsafe { Place::new(needed, "needed") }?) };
        let json = space.statistics().to_json();
        if let Some((last, rest)) = into.split_last_mut() {
            let len = json.len().min(rest.len());
            rest[..len].copy_from_slice(&json.as_bytes()[..len]);
            *rest.get_mut(len).unwrap_or(last) = 0;
        }
        if let Some(needed) = needed {
            needed.put(json.len() + 1);
        }
        Ok(())
    })
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_space_histogram(space: Space, histogram: *mut Histogram) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let (space, place) = (get(space)?, unsafe { Place::new(histogram, "histogram") }?);
        place.put(Histogram::of(space.histogram()?));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Code;

    #[test]
    fn structs_have_the_sizes_of_the_first_version() {
        // `named_in` came later, and after it `without_system_calls`: aquifer.h names both sizes.
        assert_eq!(std::mem::offset_of!(Options, named_in), Options::SIZE_MIN);
        assert_eq!((std::mem::offset_of!(Options, without_system_calls), size_of::<Options>()), (56, 64));
        assert_eq!(size_of::<Limits>(), Limits::SIZE_MIN);
        assert_eq!(size_of::<Statistics>(), Statistics::SIZE_MIN);
    }

    #[test]
    fn a_space_that_was_never_open_is_refused() {
        assert_eq!(aquifer_close(Space::default()), Code::Handle as c_int);
    }
}
