// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Checks the arguments of a call as far as possible: NULL, alignment, lengths that overflow, text.
//!
//! What remains is each caller's promise, which `aquifer.h` states: a pointer that is not NULL points to as many bytes
//! as the call says, and nothing else uses them during the call.

#![allow(unsafe_code, reason = "turns a C program's pointers into references")]

use std::ffi::{CStr, c_char, c_void};
use std::ops::Range;

use crate::code::Failure;

fn check<T>(pointer: *const T, count: usize, name: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("`{name}` is NULL; give it a place")));
    }
    if !pointer.is_aligned() {
        return Err(Failure::argument(format!("`{name}` is not aligned to {} bytes", align_of::<T>())));
    }
    let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| *bytes <= isize::MAX as usize);
    match bytes.and_then(|bytes| pointer.addr().checked_add(bytes)) {
        Some(_) => Ok(()),
        None => Err(Failure::argument(format!("`{name}` has {count} elements, more than there is memory"))),
    }
}

/// Returns a struct of the program's.
///
/// # Safety
/// If it is not NULL, it points to a `T` that lives for `'a`, and that nobody changes.
pub unsafe fn required<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    check(pointer, 1, name)?;
    // SAFETY: it is aligned; the rest is the caller's promise.
    Ok(unsafe { &*pointer })
}

/// The place of a result: it is checked before the call does anything, and written to at its end.
#[derive(Clone, Copy, Debug)]
pub struct Place<T>(*mut T);

impl<T> Place<T> {
    /// # Safety
    /// If it is not NULL, a `T` can be written there for as long as the value lives.
    pub unsafe fn new(pointer: *mut T, name: &str) -> Result<Self, Failure> {
        check(pointer, 1, name).map(|()| Self(pointer))
    }

    /// Writes the result.
    pub fn put(self, value: T) {
        // SAFETY: it is aligned, and the rest is the promise that `new` asks for.
        unsafe { self.0.write(value) }
    }
}

/// Returns an array of the program's. It may be NULL if it has no elements.
///
/// # Safety
/// If it is not NULL, it points to `count` elements that live for `'a`, and that nobody changes.
pub unsafe fn array<'a, T>(pointer: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    check(pointer, count, name)?;
    // SAFETY: it is aligned and does not overflow; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Returns an array that is written to. It may be NULL if it has no elements.
///
/// # Safety
/// The same as for [`array`], and nobody else uses it.
pub unsafe fn array_mut<'a, T>(pointer: *mut T, count: usize, name: &str) -> Result<&'a mut [T], Failure> {
    if count == 0 {
        return Ok(&mut []);
    }
    check(pointer, count, name)?;
    // SAFETY: as in `array`.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count) })
}

/// Returns the bytes that are written to.
///
/// # Safety
/// The same as for [`array_mut`].
pub unsafe fn bytes_mut<'a>(pointer: *mut c_void, len: usize, name: &str) -> Result<&'a mut [u8], Failure> {
    // SAFETY: the caller's promise.
    unsafe { array_mut(pointer.cast::<u8>(), len, name) }
}

/// Returns the text of the program's.
///
/// # Safety
/// If it is not NULL, it points to a string that ends with a zero and lives for `'a`.
pub unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Failure> {
    check(pointer, 1, name)?;
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::argument(format!("`{name}` is not UTF-8; write it in UTF-8")))
}

/// Returns a range of a mapping, as the crate `aquifer` takes it. One that overflows is outside every mapping.
pub fn range(start: usize, len: usize) -> Range<usize> {
    start..start.saturating_add(len)
}

/// Refuses a buffer that has bytes of `memory`: a copy could not say which bytes it has read.
pub fn check_apart(buffer: Range<usize>, memory: Range<usize>, name: &str) -> Result<(), Failure> {
    if !buffer.is_empty() && buffer.start < memory.end && memory.start < buffer.end {
        return Err(Failure::argument(format!("`{name}` overlaps the bytes that are copied; copy to other memory")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_that_cannot_be_are_refused() {
        let numbers = [1_u64, 2];
        let odd = (&raw const numbers).cast::<u8>().wrapping_add(1).cast::<u64>();
        // SAFETY: what is refused is not read; the last one is as promised.
        unsafe {
            assert!(required(std::ptr::null::<u64>(), "x").is_err());
            assert!(required(odd, "x").unwrap_err().message.contains("aligned to 8 bytes"));
            assert!(array(std::ptr::null::<u64>(), 1, "x").is_err());
            assert!(array((&raw const numbers).cast::<u64>(), usize::MAX / 4, "x").is_err());
            assert!(array((&raw const numbers).cast::<u64>(), isize::MAX as usize / 8 + 1, "x").is_err());
            assert!(array(usize::MAX as *const u8, 2, "x").is_err());
            assert_eq!(array(std::ptr::null::<u64>(), 0, "x").unwrap(), &[] as &[u64]);
            assert_eq!(array((&raw const numbers).cast::<u64>(), 2, "x").unwrap(), [1, 2]);
            assert!(text(c"\xff".as_ptr(), "x").unwrap_err().message.contains("UTF-8"));
        }
    }

    #[test]
    fn a_buffer_beside_the_memory_is_allowed() {
        for (buffer, is_apart) in [(0..10, true), (0..11, false), (19..20, false), (20..30, true), (12..12, true)] {
            assert_eq!(check_apart(buffer.clone(), 10..20, "x").is_ok(), is_apart, "{buffer:?}");
        }
    }
}
