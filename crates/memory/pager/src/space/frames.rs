// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Gives frames their pages, takes these back, and accesses their bytes.
//!
//! May run in a signal handler: does not allocate. Next on the path: `driver/src/inspect.rs`, which checks fetched
//! bytes; then `exchanger.rs`, which installs them.

#![allow(unsafe_code, reason = "pages of frames are dropped; the site says why nobody misses them")]

use aquifer_core::units::FrameIndex;
use aquifer_core::units::PAGE_BYTES;
use aquifer_driver::inspect::{self, Finding, Mismatch};
use aquifer_driver::{Fatal, Frames};
use aquifer_sys::FrameBuffer;
use aquifer_sys::memory::{Span, drop_spans};

use super::exchanger::whole;
use crate::shard::ShardView;

/// Frames that one kernel call gives back: enough that the interrupts of the other CPUs, one round for each call, cost
/// little for each frame.
const SPANS_AT_ONCE: usize = 64;

/// Checks what was read, and fills its zero pages. `expected` are the guards of the pages.
pub(super) fn check_arrival(buffer: &mut FrameBuffer, expected: &[u64]) -> Result<(), Mismatch> {
    inspect::arrive(buffer.bytes_mut(), expected)?;
    #[cfg(debug_assertions)]
    crate::planted::leave_out(buffer);
    Ok(())
}

impl ShardView<'_> {
    /// Populates the first `len` bytes of a frame, from huge pages if possible. Returns whether the bytes are zeros:
    /// not if the frame keeps its old pages.
    fn give_pages(&self, frame: FrameIndex, len: usize, fresh: bool) -> Result<bool, Fatal> {
        if !fresh {
            if !self.huge_frames.as_ref().is_some_and(|huge_frames| huge_frames.shall_replace(len)) {
                return Ok(false);
            }
            self.shard.area.try_drop_pages(frame)?;
        }
        let is_served = match &self.huge_frames {
            Some(huge_frames) => huge_frames.serve(&self.signal, self.shard.area.address(frame), len)?,
            None => false,
        };
        if !is_served {
            self.shard.area.populate(frame, len);
        }
        Ok(true)
    }
}

impl Frames for ShardView<'_> {
    fn prepare(&self, frame: FrameIndex, len: usize, fresh: bool) -> Result<(), Fatal> {
        self.give_pages(frame, len, fresh).map(|_| ())
    }

    fn zero(&self, frame: FrameIndex, len: usize, fresh: bool) -> Result<(), Fatal> {
        if !self.give_pages(frame, len, fresh)? {
            self.shard.area.buffer(frame, 0, len).bytes_mut().fill(0);
        }
        Ok(())
    }

    fn give_back(&self, frames: &[FrameIndex]) -> Result<(), Fatal> {
        if let [frame] = frames {
            return self.shard.area.try_drop_pages(*frame);
        }
        for frames in frames.chunks(SPANS_AT_ONCE) {
            // On the stack, since faults come here too, and they do not allocate.
            let mut spans = [Span::default(); SPANS_AT_ONCE];
            let spans = &mut spans[..frames.len()];
            for (span, frame) in spans.iter_mut().zip(frames) {
                *span = Span { start: self.shard.area.address(*frame), len: frame.order().bytes() as usize };
            }
            // SAFETY: the frames are this thread's, and their bytes are not needed.
            let dropped = whole(spans, unsafe { drop_spans(spans) }.unwrap_or(0));
            frames[dropped..].iter().try_for_each(|frame| self.shard.area.try_drop_pages(*frame))?;
        }
        Ok(())
    }

    fn arrive(&self, frame: FrameIndex, start: usize, expected: &[u64]) -> Result<(), Mismatch> {
        let mut buffer = self.shard.area.buffer(frame, start, expected.len() * PAGE_BYTES as usize);
        check_arrival(&mut buffer, expected)
    }

    fn compare(&self, frame: FrameIndex, start: usize, stored: &[u64], found: &mut [u64]) -> Finding {
        let buffer = self.shard.area.buffer(frame, start, stored.len() * PAGE_BYTES as usize);
        inspect::compare(buffer.bytes(), stored, found)
    }
}
