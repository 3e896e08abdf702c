// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Zeroed words in their own mapping, which forked children share or get a copy of.
//!
//! The mapping lives as long as any handle to a part of it, in this process. Pages are allocated on touch.

use std::fmt;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::memory::{map_anonymous, unmap};
use crate::raw::{Errno, syscall};

/// The type of a word: an atomic.
pub trait Word: Sync + private::Sealed {}

mod private {
    /// Only atomics that are valid where all bytes are zero.
    pub trait Sealed {}
    impl Sealed for super::AtomicU32 {}
    impl Sealed for super::AtomicU64 {}
}

impl Word for AtomicU32 {}
impl Word for AtomicU64 {}

/// The mapping itself.
#[derive(Debug)]
struct Mapping {
    start: usize,
    bytes: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and every handle to it keeps this value alive.
        let _ = unsafe { unmap(self.start, self.bytes) };
    }
}

/// Zeroed words, or a part of them, in a mapping that forked children share or copy. A clone is another handle to the
/// same words.
pub struct Words<T = AtomicU64> {
    start: NonNull<T>,
    len: usize,
    mapping: Arc<Mapping>,
}

// SAFETY: the value gives access only to atomics, which stay mapped for as long as it lives.
unsafe impl<T: Word> Send for Words<T> {}
// SAFETY: as above.
unsafe impl<T: Word> Sync for Words<T> {}

impl Words {
    /// Words that a forked child shares with its parent.
    pub fn shared(len: usize) -> Result<Words, Errno> {
        let bytes = bytes_of(len)?;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let args = [0, bytes, protection as usize, flags as usize, usize::MAX, 0];
        // SAFETY: the kernel chooses a free range for the new mapping; no existing mapping is touched.
        let start = unsafe { syscall(libc::SYS_mmap, args) }?;
        Ok(Words::over(Mapping { start, bytes }, len))
    }

    /// Words of which a forked child gets a copy: neither process sees the other's later writes.
    pub fn copied(len: usize) -> Result<Words, Errno> {
        let bytes = bytes_of(len)?;
        Ok(Words::over(Mapping { start: map_anonymous(bytes)?, bytes }, len))
    }

    /// The first `len` words of a mapping, which has room for them and is all zeros.
    fn over(mapping: Mapping, len: usize) -> Words {
        let start = NonNull::new(mapping.start as *mut AtomicU64).expect("mmap does not return null");
        Words { start, len, mapping: Arc::new(mapping) }
    }

    /// The same memory as half words. Each word is used as one whole or as two halves, never both.
    pub fn halves(&self) -> Words<AtomicU32> {
        Words { start: self.start.cast(), len: self.len * 2, mapping: Arc::clone(&self.mapping) }
    }
}

fn bytes_of(len: usize) -> Result<usize, Errno> {
    let bytes = len.max(1).checked_mul(size_of::<u64>()).ok_or(Errno(libc::ENOMEM))?;
    bytes.checked_next_multiple_of(4096).ok_or(Errno(libc::ENOMEM))
}

impl<T: Word> Words<T> {
    /// A handle to some of the words.
    pub fn part(&self, range: Range<usize>) -> Words<T> {
        let part = NonNull::from(&self[range.clone()]);
        Words { start: part.cast(), len: range.len(), mapping: Arc::clone(&self.mapping) }
    }

    /// The first `mid` words, and the others.
    pub fn split_at(&self, mid: usize) -> (Words<T>, Words<T>) {
        (self.part(0..mid), self.part(mid..self.len))
    }
}

impl<T> Clone for Words<T> {
    fn clone(&self) -> Self {
        Words { start: self.start, len: self.len, mapping: Arc::clone(&self.mapping) }
    }
}

impl<T: Word> Deref for Words<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the words lie in the mapping, which `self` keeps; the mapping is aligned to a page, and each part
        // begins at a word. Zeros are a value of every `Word`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> fmt::Debug for Words<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} words", self.len)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    /// Whether the page at this address is mapped: msync(2) returns ENOMEM for one that is not.
    fn is_mapped(address: usize) -> bool {
        // SAFETY: msync(2) of an anonymous page does nothing.
        unsafe { syscall(libc::SYS_msync, [address, 4096, libc::MS_ASYNC as usize, 0, 0, 0]) }.is_ok()
    }

    #[test]
    fn parts_are_the_same_words_and_keep_them() {
        let words = Words::shared(1000).unwrap();
        let (head, tail) = words.split_at(3);
        assert_eq!((head.len(), tail.len()), (3, 997));
        words[3].store(7, Ordering::Relaxed);
        assert_eq!(tail[0].load(Ordering::Relaxed), 7);
        assert_eq!(words.halves().len(), 2000);
        assert_eq!(words.part(3..4).halves()[0].load(Ordering::Relaxed), 7);
        let address = words.as_ptr() as usize;
        drop((words, head));
        assert!(is_mapped(address) && tail[0].load(Ordering::Relaxed) == 7);
        drop(tail);
        assert!(!is_mapped(address));
    }

    #[test]
    fn no_words_and_too_many() {
        assert!(Words::copied(0).unwrap().is_empty());
        assert_eq!(Words::copied(usize::MAX / 8 + 1).unwrap_err(), Errno(libc::ENOMEM));
        assert_eq!(Words::shared(usize::MAX / 16).unwrap_err(), Errno(libc::ENOMEM));
    }
}
