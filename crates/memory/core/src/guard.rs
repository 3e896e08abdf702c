// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Guards: a CRC-64 of each page, kept in DRAM, which checks every tier end to end.
//!
//! Pure. A guard answers two questions. After a fetch: are these the bytes that were written back? Before a frame is
//! reused: does the tier already hold these bytes? The answer to the second question makes clean tracking exact to the
//! page without write-protecting anything, and so without a second fault and without a window in which a store could go
//! unnoticed.
//!
//! The polynomial is that of the NVMe 64-bit guard (NVM Command Set Specification 1.0, section 5.2.1.3): a change that
//! is confined to 64 consecutive bits always changes the CRC; any other change goes undetected once in 2^64 times.
//!
//! A page of zeros has the guard [`ZERO`], which no other page has, and needs no bytes in the tier.

use crc_fast::{CrcAlgorithm, checksum};

use crate::units::PAGE_BYTES;

/// The guard of a page of zeros, and of a page that was never written, which reads the same.
pub const ZERO: u64 = 0;

/// The guard of a slot with unknown contents, after a write-back that failed halfway. No page has it.
pub const UNKNOWN: u64 = u64::MAX;

/// The guard of one page.
pub fn of_page(page: &[u8]) -> u64 {
    if is_zero(page) {
        return ZERO;
    }
    let crc = checksum(CrcAlgorithm::Crc64Nvme, page);
    if crc == ZERO || crc == UNKNOWN { 1 } else { crc }
}

/// Stores the guards of a block's pages in `guards`.
pub fn of_block(bytes: &[u8], guards: &mut [u64]) {
    for (page, guard) in bytes.chunks_exact(PAGE_BYTES as usize).zip(guards) {
        *guard = of_page(page);
    }
}

/// Whether every byte is zero. Looks at the first cache line, which settles the answer for most pages that are not zero
/// and is read next anyway, then samples a few bytes, and then reads 256 bytes at a time, which the compiler turns into
/// wide instructions.
pub fn is_zero(page: &[u8]) -> bool {
    const LINE: usize = 64;
    const STEP: usize = 256;
    let (first, _) = page.split_at(LINE.min(page.len()));
    if first.iter().fold(0, |all, byte| all | byte) != 0 || page.iter().step_by(509).any(|byte| *byte != 0) {
        return false;
    }
    let (words, rest) = page.as_chunks::<STEP>();
    words.iter().all(|word| word.iter().fold(0, |all, byte| all | byte) == 0) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_have_the_zero_guard_and_nothing_else_has() {
        let mut page = vec![0u8; 4096];
        assert_eq!(of_page(&page), ZERO);
        for at in [0, 1, 63, 64, 2048, 4095] {
            page[at] = 1;
            assert_ne!(of_page(&page), ZERO, "{at}");
            page[at] = 0;
        }
    }

    #[test]
    fn the_polynomial_is_the_published_one() {
        assert_eq!(checksum(CrcAlgorithm::Crc64Nvme, b"123456789"), 0xae8b_1486_0a79_9888);
    }

    #[test]
    fn every_flipped_bit_shows() {
        let mut page: Vec<u8> = (0..4096u32).map(|at| (at * 7 + at / 256) as u8).collect();
        let guard = of_page(&page);
        for bit in (0..4096 * 8).step_by(13) {
            page[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(of_page(&page), guard, "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
