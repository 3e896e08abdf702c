// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Structs that begin with their size, so that a later version can add members.
//!
//! A program that was built with an older header gives a smaller size: it gets the members that it knows. One that was
//! built with a newer header gives a larger size: what this library does not know must be zero, as in openat2(2).

#![allow(unsafe_code, reason = "copies as much of a struct as the program has")]

use crate::code::Failure;

/// The largest size that is accepted: a larger one is mistaken for a member that was not initialised.
const SIZE_MAX: usize = 4096;

/// A struct whose first member is its size, of type `usize`, and whose members are numbers or pointers without gaps.
///
/// # Safety
/// The struct has this layout, and any bytes are valid for it.
pub unsafe trait Growing: Copy {
    /// Its size in the first version of the library.
    const SIZE_MIN: usize;
}

/// Returns the size that the program has set.
///
/// # Safety
/// If `pointer` is not NULL, it points to a readable number.
unsafe fn size_of_theirs<T: Growing>(pointer: *const T, name: &str) -> Result<usize, Failure> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Failure::argument(format!("`{name}` is NULL or not aligned; give it a place")));
    }
    // SAFETY: the first member of the struct is the size, and the caller promises that it is readable.
    let size = unsafe { pointer.cast::<usize>().read() };
    if !(T::SIZE_MIN..=SIZE_MAX).contains(&size) {
        return Err(Failure::argument(format!("`{name}->size` is {size}; begin with the struct's _INIT")));
    }
    Ok(size)
}

/// Reads the members that the program's version of a struct has, and takes the others from `initial`.
///
/// # Safety
/// If the pointer is not NULL, it points to a number, which is the number of readable bytes there.
pub unsafe fn read<T: Growing>(pointer: *const T, initial: T, name: &str) -> Result<T, Failure> {
    // SAFETY: the caller's promise.
    let size = unsafe { size_of_theirs(pointer, name) }?;
    let (mut value, ours) = (initial, size_of::<T>());
    // SAFETY: both have at least this many bytes, and any bytes are valid for `T`.
    unsafe {
        pointer.cast::<u8>().copy_to_nonoverlapping((&raw mut value).cast::<u8>(), size.min(ours));
    }
    // SAFETY: the caller's promise.
    let further =
        unsafe { std::slice::from_raw_parts(pointer.cast::<u8>().add(size.min(ours)), size - size.min(ours)) };
    if further.iter().any(|byte| *byte != 0) {
        let why =
            format!("`{name}` has members that this library does not know; leave them zero, or use a newer library");
        return Err(Failure::argument(why));
    }
    Ok(value)
}

/// The place of a struct that the program wants.
#[derive(Clone, Copy, Debug)]
pub struct SizedPlace<T> {
    pointer: *mut T,
    size: usize,
}

impl<T: Growing> SizedPlace<T> {
    /// # Safety
    /// If it is not NULL, it points to a number, and as many bytes as that says can be written there for as long as the
    /// value lives.
    pub unsafe fn new(pointer: *mut T, name: &str) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        unsafe { size_of_theirs(pointer, name) }.map(|size| Self { pointer, size })
    }

    /// Writes the members that the program knows, and zeros over those that this library does not know. The size stays.
    pub fn put(self, value: T) {
        let (known, from) = (self.size.min(size_of::<T>()), size_of::<usize>());
        // SAFETY: the program has `size` bytes, as `new` asks for; `value` has at least `known`.
        unsafe {
            let into = self.pointer.cast::<u8>();
            (&raw const value).cast::<u8>().add(from).copy_to_nonoverlapping(into.add(from), known - from);
            into.add(known).write_bytes(0, self.size - known);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(C)]
    struct Now {
        size: usize,
        first: u64,
        second: u64,
    }

    // SAFETY: numbers without gaps, the first of which is the size.
    unsafe impl Growing for Now {
        const SIZE_MIN: usize = 16;
    }

    const INITIAL: Now = Now { size: 24, first: 1, second: 2 };

    fn read_words(words: &[u64]) -> Result<Now, Failure> {
        // SAFETY: the first word says how many bytes there are, or too many, which is refused.
        unsafe { read(words.as_ptr().cast(), INITIAL, "now") }
    }

    #[test]
    fn older_and_newer_programs_are_understood() {
        assert_eq!(read_words(&[16, 7]).unwrap(), Now { size: 16, first: 7, second: 2 });
        assert_eq!(read_words(&[24, 7, 8]).unwrap(), Now { size: 24, first: 7, second: 8 });
        assert_eq!(read_words(&[32, 7, 8, 0]).unwrap(), Now { size: 32, first: 7, second: 8 });
        assert!(read_words(&[32, 7, 8, 1]).unwrap_err().message.contains("does not know"));
        for size in [0, 8, 15, 4097, u64::MAX] {
            assert!(read_words(&[size, 7, 8]).unwrap_err().message.contains("->size"), "{size}");
        }
    }

    #[test]
    fn a_program_gets_the_members_that_it_knows() {
        for (size, expected) in [(16, [16, 3, 9, 9]), (24, [24, 3, 4, 9]), (32, [32, 3, 4, 0])] {
            let mut words = [size, 9, 9, 9_u64];
            // SAFETY: there are as many bytes as the first word says.
            let place = unsafe { SizedPlace::<Now>::new(words.as_mut_ptr().cast(), "now") }.unwrap();
            place.put(Now { size: 0, first: 3, second: 4 });
            assert_eq!(words, expected);
        }
    }
}
