// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The only type through which the bytes of a frame are accessed.
//!
//! A frame is local memory that is *not* visible at the program's address while a [`FrameBuffer`] of it exists. Only
//! the buffer's holder may read or write it: the buffer cannot be cloned, and it moves by value into an I/O queue and
//! back out with the completion.

use std::ptr::NonNull;

/// Exclusive access to the bytes of one frame, or of a run of adjacent frames.
#[derive(Debug)]
pub struct FrameBuffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the constructor's contract makes this value the only access to the bytes, so moving it to another thread
// moves the exclusive access with it.
unsafe impl Send for FrameBuffer {}

impl FrameBuffer {
    /// Takes exclusive access to `len` bytes at `start`.
    ///
    /// # Safety
    /// `start..start + len` must stay mapped readable and writable, and nothing else may touch these bytes, until this
    /// value has been dropped.
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len }
    }

    /// The first address, for system calls.
    pub fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `new` requires that the range is mapped and that only this value accesses it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` excludes other borrows.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Lends the `len` bytes at `start` as a buffer, for reading.
    pub fn with_part<R>(&self, start: usize, len: usize, look: impl FnOnce(&FrameBuffer) -> R) -> R {
        look(&self.part(start, len))
    }

    /// Lends the `len` bytes at `start` as a buffer, for writing.
    pub fn with_part_mut<R>(&mut self, start: usize, len: usize, fill: impl FnOnce(&mut FrameBuffer) -> R) -> R {
        let mut lent = Lent { part: self.part(start, len), address: self.address() + start, len };
        fill(&mut lent.part)
    }

    fn part(&self, start: usize, len: usize) -> FrameBuffer {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len), "a part lies within its buffer");
        // SAFETY: the start is within the range of `new`, or one past its end if `len` is 0.
        FrameBuffer { start: unsafe { self.start.add(start) }, len }
    }
}

/// A part of a buffer, lent as a buffer. A borrower that swaps it for another buffer could keep its bytes for ever.
/// Buffers of different frames have different addresses, so the swap is detected when the part is returned, and ends
/// the process.
struct Lent {
    part: FrameBuffer,
    address: usize,
    len: usize,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if (self.part.address(), self.part.len()) != (self.address, self.len) {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::direct_io::lasting_buffer;

    #[test]
    fn a_part_is_the_bytes_of_its_buffer() {
        let mut buffer = lasting_buffer(2);
        buffer.with_part_mut(4096, 4096, |part| part.bytes_mut().fill(7));
        assert_eq!((buffer.bytes()[4095], buffer.bytes()[4096], buffer.bytes()[8191]), (0, 7, 7));
        let (address, len) = buffer.with_part(4096, 100, |part| (part.address(), part.len()));
        assert_eq!((address, len), (buffer.address() + 4096, 100));
    }

    #[test]
    #[should_panic(expected = "lies within its buffer")]
    fn a_part_does_not_reach_beyond() {
        lasting_buffer(1).with_part(4000, 97, |_| ());
    }
}
