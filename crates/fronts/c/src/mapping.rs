// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Maps memory, copies it, discards it, unmaps it.
//!
//! A mapping is in an `Arc`: each call on it holds a reference, and so does each gather in progress. Its bytes are
//! shared by the rules of C: `aquifer.h` says which calls may not run at the same time on the same bytes.

#![allow(unsafe_code, reason = "exports symbols, and uses the program's pointers")]

use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use std::sync::Arc;

use aquifer::Error;

use crate::arguments::{Place, array, bytes_mut, check_apart, range, text};
use crate::code::Failure;
use crate::guard::done;
use crate::handles;
use crate::space::{self, Space};

/// The layout of `aquifer_mapping_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Mapping {
    /// See `handles.rs`.
    pub handle: u64,
}

/// Returns the mapping that a handle stands for.
pub(crate) fn get(mapping: Mapping) -> Result<Arc<aquifer::Mapping>, Failure> {
    handles::get(mapping.handle)
}

/// Returns the addresses of a range of a mapping. A range outside of it is refused by the call that uses it.
pub(crate) fn addresses(mapping: &aquifer::Mapping, at: usize, len: usize) -> Range<usize> {
    let start = mapping.as_ptr().addr().saturating_add(at);
    start..start.saturating_add(len)
}

/// Returns the addresses of a buffer.
pub(crate) fn of_buffer(buffer: &[u8]) -> Range<usize> {
    let start = buffer.as_ptr().addr();
    start..start + buffer.len()
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_map(space: Space, bytes: usize, mapping: *mut Mapping) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let (space, place) = (space::get(space)?, unsafe { Place::new(mapping, "mapping") }?);
        let mapped = space.map(bytes)?;
        place.put(Mapping { handle: handles::insert(mapped)? });
        Ok(())
    })
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_map_named(
    space: Space,
    name: *const c_char,
    bytes: usize,
    mapping: *mut Mapping,
) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let (space, name, place) =
            unsafe { (space::get(space)?, text(name, "name")?, Place::new(mapping, "mapping")?) };
        let mapped = if bytes == 0 { space.open_named(name)? } else { space.map_named(name, bytes)? };
        place.put(Mapping { handle: handles::insert(mapped)? });
        Ok(())
    })
}

/// See `aquifer.h`.
///
/// # Safety
/// No other thread writes to the range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_sync(mapping: Mapping, start: usize, len: usize) -> c_int {
    done(|| {
        let mapping = get(mapping)?;
        // SAFETY: the caller promises that nobody writes to the range meanwhile; C has no views.
        Ok(unsafe { mapping.sync_shared(range(start, len)) }?)
    })
}

/// See `aquifer.h`.
///
/// # Safety
/// No other thread writes to the mapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_snapshot(mapping: Mapping) -> c_int {
    done(|| {
        let mapping = get(mapping)?;
        // SAFETY: the caller promises that nobody writes to the mapping meanwhile; C has no views.
        Ok(unsafe { mapping.sync_shared(..) }?)
    })
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_unmap(mapping: Mapping) -> c_int {
    done(|| {
        let mapping = handles::remove::<aquifer::Mapping>(mapping.handle)?;
        Ok(Arc::into_inner(mapping).ok_or(Error::Pinned)?.unmap()?)
    })
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_address(mapping: Mapping, address: *mut *mut c_void) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let (mapping, place) = (get(mapping)?, unsafe { Place::new(address, "address") }?);
        place.put(mapping.as_ptr().cast());
        Ok(())
    })
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_length(mapping: Mapping, bytes: *mut usize) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let (mapping, place) = (get(mapping)?, unsafe { Place::new(bytes, "bytes") }?);
        place.put(mapping.len());
        Ok(())
    })
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_read(mapping: Mapping, at: usize, into: *mut c_void, len: usize) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let (mapping, into) = (get(mapping)?, unsafe { bytes_mut(into, len, "into") }?);
        check_apart(of_buffer(into), addresses(&mapping, at, len), "into")?;
        Ok(mapping.read(at, into)?)
    })
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_read_in_place(mapping: Mapping, at: usize, into: *mut c_void, len: usize) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let (mapping, into) = (get(mapping)?, unsafe { bytes_mut(into, len, "into") }?);
        check_apart(of_buffer(into), addresses(&mapping, at, len), "into")?;
        Ok(mapping.read_in_place(at, into).map(|_| ())?)
    })
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says, and no other thread uses these bytes of the mapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_write(mapping: Mapping, at: usize, bytes: *const c_void, len: usize) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let (mapping, bytes) = (get(mapping)?, unsafe { array(bytes.cast::<u8>(), len, "bytes") }?);
        check_apart(of_buffer(bytes), addresses(&mapping, at, len), "bytes")?;
        // SAFETY: the caller promises that nobody else uses the bytes; C has no views.
        Ok(unsafe { mapping.write_shared(at, bytes) }?)
    })
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says, and no other thread uses the bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_write_in_place(
    mapping: Mapping,
    at: usize,
    bytes: *const c_void,
    len: usize,
) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let (mapping, bytes) = (get(mapping)?, unsafe { array(bytes.cast::<u8>(), len, "bytes") }?);
        check_apart(of_buffer(bytes), addresses(&mapping, at, len), "bytes")?;
        // SAFETY: the caller promises that nobody else uses the bytes; C has no views.
        Ok(unsafe { mapping.write_in_place_shared(at, bytes) }.map(|_| ())?)
    })
}

/// See `aquifer.h`.
///
/// # Safety
/// No other thread uses the range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_discard(mapping: Mapping, start: usize, len: usize) -> c_int {
    done(|| {
        let mapping = get(mapping)?;
        // SAFETY: the caller promises that nobody else uses the range; C has no views.
        Ok(unsafe { mapping.discard_shared(range(start, len)) }?)
    })
}
