// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Frames for tests, which are reused, because the memory of a `FrameBuffer` is never freed.

use std::sync::Mutex;

use aquifer_sys::{FrameBuffer, direct_io};

use crate::tier::PAGE;

/// Frames that no test uses now.
static FREE: Mutex<Vec<FrameBuffer>> = Mutex::new(Vec::new());

/// A frame of `pages` pages, each of whose bytes is `fill`.
pub fn frame(pages: usize, fill: u8) -> FrameBuffer {
    let mut free = FREE.lock().expect("nobody panics while it is locked");
    let found = free.iter().position(|frame| frame.len() == pages * PAGE);
    let mut frame = found.map_or_else(|| direct_io::lasting_buffer(pages), |index| free.swap_remove(index));
    frame.bytes_mut().fill(fill);
    frame
}

/// Gives a frame back for the next test.
pub fn give_back(frame: FrameBuffer) {
    FREE.lock().expect("nobody panics while it is locked").push(frame);
}

/// Bytes that differ from page to page and from version to version.
pub fn stamp(bytes: &mut [u8], offset: u64, version: u64) {
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        let value = (offset + index as u64 * 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version;
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// Checks that these bytes have this stamp. Panics with the offset of the first difference.
pub fn check_stamp(bytes: &[u8], offset: u64, version: u64) {
    let mut wanted = vec![0; bytes.len()];
    stamp(&mut wanted, offset, version);
    if let Some(index) = bytes.iter().zip(&wanted).position(|(is, want)| is != want) {
        panic!("wrong byte at {:#x}, in the block at {offset:#x} with version {version}", offset + index as u64);
    }
}
