// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Spare frames for temporary use, by code that needs a second copy of a block and may not allocate.
//!
//! Threads: any, including signal handlers. If all are in use, the caller decides how long it waits. A forked child has
//! its own frames, none of them in use, whatever the parent's threads were doing: the word of usage bits is zero in the
//! child. So no thread may fork while it holds a frame.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::memory::{OwnWord, advise, map_anonymous, unmap};
use crate::raw::{Errno, now_ns};
use crate::{FrameBuffer, signals};

/// Maximum number of spare frames: one for each bit of a word.
pub const SPARE_FRAMES_MAX: u32 = 32;

/// The pause between two checks for a free frame.
const PAUSE: Duration = Duration::from_micros(200);

/// Spare frames, for code that needs a second copy of a block and may not allocate.
#[derive(Debug)]
pub struct SpareFrames {
    start: NonNull<u8>,
    frame_bytes: usize,
    count: u32,
    /// One bit for each frame: 1 if it is in use.
    used: OwnWord,
}

// SAFETY: the value is only a range of addresses; its bytes are accessed through `FrameBuffer`s, one per frame at a
// time.
unsafe impl Send for SpareFrames {}
// SAFETY: as above; the bits that ensure it are atomic.
unsafe impl Sync for SpareFrames {}

impl Drop for SpareFrames {
    fn drop(&mut self) {
        if self.used.word().load(Ordering::Acquire) != 0 {
            // Somebody still has a frame: it stays mapped.
            return;
        }
        let len = self.count as usize * self.frame_bytes;
        // SAFETY: the mapping is this value's own, and every frame has been given back: no buffer of it exists.
        let _ = unsafe { unmap(self.start.as_ptr() as usize, len) };
    }
}

impl SpareFrames {
    /// Maps `count` frames, at most [`SPARE_FRAMES_MAX`], of `frame_bytes` each, which are whole pages. Pages are
    /// allocated on touch.
    pub fn new(count: u32, frame_bytes: usize) -> Result<SpareFrames, Errno> {
        const PAGE: usize = 4096;
        assert!((1..=SPARE_FRAMES_MAX).contains(&count) && frame_bytes > 0 && frame_bytes.is_multiple_of(PAGE));
        let len = count as usize * frame_bytes;
        let start = map_anonymous(len)?;
        // A frame with one used page must not become a huge page. An error means that the kernel has no huge pages.
        let _ = advise(start, len, libc::MADV_NOHUGEPAGE);
        let start = NonNull::new(start as *mut u8).expect("mmap does not return null");
        Ok(SpareFrames { start, frame_bytes, count, used: OwnWord::new()? })
    }

    /// Number of bytes of each frame.
    pub fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// The first `len` bytes of one of the frames with these numbers, until it is given back. `None` if all of them are
    /// in use.
    pub fn claim(&self, among: Range<u32>, len: usize) -> Option<FrameBuffer> {
        assert!(among.end <= self.count && len <= self.frame_bytes, "the frames exist, and are long enough");
        let used = self.used.word();
        for index in among {
            // Acquire: the previous user's accesses happen before this one's. Pairs with the Release below.
            if used.fetch_or(1 << index, Ordering::Acquire) & 1 << index == 0 {
                let offset = index as usize * self.frame_bytes;
                // SAFETY: the frame lies within the mapping of `new`.
                let start = unsafe { self.start.add(offset) };
                // SAFETY: the mapping lives until every frame is given back, and the thread that sets a frame's bit,
                // which was clear, has the frame exclusively until it is given back by value. A forked child has its
                // own pages and no buffer of them.
                return Some(unsafe { FrameBuffer::new(start, len) });
            }
        }
        None
    }

    /// As [`claim`](Self::claim), but waits up to `timeout` for a free frame.
    pub fn wait(&self, among: Range<u32>, len: usize, timeout: Duration) -> Option<FrameBuffer> {
        let begun = now_ns();
        loop {
            let frame = self.claim(among.clone(), len);
            if frame.is_some() || now_ns().saturating_sub(begun) > timeout.as_nanos() as u64 {
                return frame;
            }
            signals::sleep(PAUSE);
        }
    }

    /// The number of one of these frames.
    pub fn index(&self, frame: &FrameBuffer) -> u32 {
        let offset = frame.address().wrapping_sub(self.start.as_ptr() as usize);
        let index = offset / self.frame_bytes;
        assert!(index < self.count as usize && offset.is_multiple_of(self.frame_bytes), "the frame is one of these");
        index as u32
    }

    /// Gives a frame back for reuse.
    pub fn give_back(&self, frame: FrameBuffer) {
        // Taken by value: from here on, no buffer of the frame exists.
        let index = self.index(&frame);
        let before = self.used.word().fetch_and(!(1 << index), Ordering::Release);
        debug_assert!(before & 1 << index != 0, "a frame is claimed before it is given back");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direct_io::lasting_buffer;

    #[test]
    fn a_frame_is_one_holders_at_a_time() {
        let frames = SpareFrames::new(3, 8192).unwrap();
        let mut first = frames.claim(0..3, 8192).unwrap();
        let second = frames.claim(0..2, 4096).unwrap();
        assert_eq!((frames.index(&first), frames.index(&second), second.len()), (0, 1, 4096));
        assert!(frames.claim(0..2, 4096).is_none(), "the third is not among those");
        assert!(frames.wait(0..2, 4096, Duration::from_millis(1)).is_none());
        first.bytes_mut().fill(7);
        assert!(second.bytes().iter().all(|byte| *byte == 0));
        frames.give_back(first);
        assert_eq!(frames.claim(0..2, 4096).unwrap().bytes()[4095], 7, "nobody wipes it");
    }

    #[test]
    #[should_panic(expected = "one of these")]
    fn a_frame_of_somebody_else_is_not_taken() {
        SpareFrames::new(1, 4096).unwrap().give_back(lasting_buffer(1));
    }
}
