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

/// Returns how many bytes the elements are.
fn check<T>(pointer: *const T, count: usize, name: &str) -> Result<usize, Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("`{name}` is NULL; give it a place")));
    }
    if !pointer.is_aligned() {
        return Err(Failure::argument(format!("`{name}` is not aligned to {} bytes", align_of::<T>())));
    }
    let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| *bytes <= isize::MAX as usize);
    match bytes.filter(|bytes| pointer.addr().checked_add(*bytes).is_some()) {
        Some(bytes) => Ok(bytes),
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
        check(pointer, 1, name).map(|_| Self(pointer))
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

/// Returns the addresses of a buffer, without a reference to it.
pub fn addresses_of<T>(pointer: *const T, count: usize, name: &str) -> Result<Range<usize>, Failure> {
    let bytes = if count == 0 { 0 } else { check(pointer, count, name)? };
    Ok(pointer.addr()..pointer.addr() + bytes)
}

/// Refuses buffers of which two have a byte in common: references to both must not exist. In ascending order, as most
/// programs have them, they are compared one by one; otherwise their addresses are sorted.
pub fn check_disjoint(buffers: impl Iterator<Item = Range<usize>> + Clone, name: &str) -> Result<(), Failure> {
    let buffers = buffers.filter(|buffer| !buffer.is_empty());
    if are_ascending(buffers.clone()) {
        return Ok(());
    }
    let mut sorted: Vec<Range<usize>> = buffers.collect();
    sorted.sort_unstable_by_key(|buffer| buffer.start);
    if are_ascending(sorted.into_iter()) {
        return Ok(());
    }
    Err(Failure::argument(format!("`{name}` of two pieces overlap; copy each piece to other memory")))
}

/// Whether each buffer begins at or after the end of the one before it.
fn are_ascending(mut buffers: impl Iterator<Item = Range<usize>>) -> bool {
    let mut end = 0;
    buffers.all(|buffer| buffer.start >= std::mem::replace(&mut end, buffer.end))
}

/// Refuses a buffer that has bytes of `memory`, which the call reads: a copy could not say which bytes it has read.
pub fn check_apart(buffer: Range<usize>, memory: Range<usize>, name: &str) -> Result<(), Failure> {
    if !buffer.is_empty() && buffer.start < memory.end && memory.start < buffer.end {
        return Err(Failure::argument(format!("`{name}` overlaps memory that the call reads; use other memory")));
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

    #[test]
    fn buffers_with_common_bytes_are_refused_in_any_order() {
        let is_disjoint =
            |buffers: &[(usize, usize)]| check_disjoint(buffers.iter().map(|(start, end)| *start..*end), "x").is_ok();
        assert!(is_disjoint(&[]) && is_disjoint(&[(5, 5)]) && is_disjoint(&[(0, usize::MAX)]));
        // Neighbours, in both orders; buffers of no bytes within others.
        assert!(is_disjoint(&[(0, 8), (8, 16), (20, 24)]) && is_disjoint(&[(20, 24), (8, 16), (0, 8)]));
        assert!(is_disjoint(&[(0, 8), (4, 4), (8, 9)]) && is_disjoint(&[(8, 9), (4, 4), (0, 8), (4, 4)]));
        for buffers in [[(0, 8), (7, 9), (20, 21)], [(20, 30), (0, 8), (7, 9)], [(9, 10), (0, 20), (30, 31)]] {
            assert!(!is_disjoint(&buffers), "{buffers:?}");
        }
        assert!(!is_disjoint(&[(0, 8), (0, 8)]) && !is_disjoint(&[(4, 5), (9, 10), (0, 8)]));
    }

    #[test]
    fn addresses_are_those_of_the_buffer() {
        let bytes = [0_u16; 3];
        let start = bytes.as_ptr().addr();
        assert_eq!(addresses_of(bytes.as_ptr(), 3, "x"), Ok(start..start + 6));
        assert_eq!(addresses_of(std::ptr::null::<u8>(), 0, "x"), Ok(0..0));
        assert!(addresses_of(std::ptr::null::<u8>(), 1, "x").is_err());
        assert!(addresses_of(bytes.as_ptr(), usize::MAX, "x").is_err());
    }
}
