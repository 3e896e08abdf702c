// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Complete transfers at an offset of a file: no short, interrupted or unaligned ones.
//!
//! Threads: any, also inside a signal handler on the faulting thread. Allocates nothing, takes no lock and leaves
//! `errno` alone: the system calls are made directly (rustix) and not through libc, whose `pread` and `pwrite` we wrap
//! ourselves in a preloaded program.

use std::fs::File;

use aquifer_sys::FrameBuffer;
use rustix::io::Errno;

use crate::failure::{Activity, Cause, TierFailure};
use crate::tier::PAGE;

/// The longest request that is worth making where a request is a copy in memory: it fits the second-level cache of
/// current processors several times over.
pub const COPY_BYTES_MAX: usize = 256 << 10;

/// How many times a transfer may stop short, or be interrupted or refused temporarily, before it fails.
const ATTEMPTS_MAX: u32 = 32;

/// Refuses a range that is not whole pages inside `capacity_bytes`.
pub fn check_range(
    tier: &'static str,
    activity: Activity,
    offset: u64,
    len: u64,
    capacity_bytes: u64,
) -> Result<(), TierFailure> {
    check_units(PAGE as u64, tier, activity, offset, len, capacity_bytes)
}

/// Refuses a range that is not whole units inside `capacity_bytes`.
pub fn check_units(
    unit: u64,
    tier: &'static str,
    activity: Activity,
    offset: u64,
    len: u64,
    capacity_bytes: u64,
) -> Result<(), TierFailure> {
    let failure = |cause| TierFailure { tier, activity, offset, cause };
    if len == 0 || !len.is_multiple_of(unit) || !offset.is_multiple_of(unit) {
        return Err(failure(Cause::Unaligned));
    }
    match offset.checked_add(len) {
        Some(end) if end <= capacity_bytes => Ok(()),
        _ => Err(failure(Cause::OutOfRange { capacity_bytes })),
    }
}

/// As [`check_range`], for the bytes of a frame; its address must be aligned too.
pub fn check_buffer(
    tier: &'static str,
    activity: Activity,
    offset: u64,
    buffer: &FrameBuffer,
    capacity_bytes: u64,
) -> Result<(), TierFailure> {
    if !buffer.address().is_multiple_of(PAGE) {
        return Err(TierFailure { tier, activity, offset, cause: Cause::Unaligned });
    }
    check_range(tier, activity, offset, buffer.len() as u64, capacity_bytes)
}

/// Fills `bytes` from `offset`.
pub fn read_fully(file: &File, offset: u64, bytes: &mut [u8]) -> Result<(), Cause> {
    fully(bytes.len(), |done| rustix::io::pread(file, &mut bytes[done..], offset + done as u64))
}

/// Stores `bytes` at `offset`.
pub fn write_fully(file: &File, offset: u64, bytes: &[u8]) -> Result<(), Cause> {
    fully(bytes.len(), |done| rustix::io::pwrite(file, &bytes[done..], offset + done as u64))
}

fn fully(len: usize, mut transfer: impl FnMut(usize) -> Result<usize, Errno>) -> Result<(), Cause> {
    let mut done = 0;
    let mut attempts = 0;
    while done < len {
        match transfer(done) {
            Ok(0) => return Err(Cause::Short { transferred: done as u64 }),
            Ok(bytes) => done += bytes,
            Err(Errno::INTR | Errno::AGAIN) if attempts < ATTEMPTS_MAX => {}
            Err(errno) => return Err(Cause::Errno(errno.raw_os_error())),
        }
        attempts += 1;
        if done < len && attempts > ATTEMPTS_MAX {
            return Err(Cause::Short { transferred: done as u64 });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_interrupted_transfers_are_continued() {
        let mut answers = [Ok(4096), Err(Errno::INTR), Ok(100), Ok(3996)].into_iter();
        let mut starts = Vec::new();
        let outcome = fully(8192, |done| {
            starts.push(done);
            answers.next().unwrap()
        });
        assert_eq!(outcome, Ok(()));
        assert_eq!(starts, [0, 4096, 4096, 4196]);
    }

    #[test]
    fn a_transfer_that_never_ends_is_given_up() {
        assert_eq!(fully(8192, |_| Err(Errno::AGAIN)), Err(Cause::Errno(libc::EAGAIN)));
        assert_eq!(fully(8192, |_| Ok(1)), Err(Cause::Short { transferred: u64::from(ATTEMPTS_MAX) + 1 }));
        assert_eq!(fully(8192, |_| Ok(0)), Err(Cause::Short { transferred: 0 }));
        assert_eq!(fully(8192, |_| Err(Errno::IO)), Err(Cause::Errno(libc::EIO)));
    }

    #[test]
    fn ranges_are_whole_pages_inside_the_tier() {
        let check = |offset, len| check_range("dram", Activity::Read, offset, len, 1 << 20).map_err(|f| f.cause);
        assert_eq!(check(0, 1 << 20), Ok(()));
        for (offset, len) in [(1, 4096), (0, 100), (0, 0), (4095, 1)] {
            assert_eq!(check(offset, len), Err(Cause::Unaligned), "{offset} {len}");
        }
        for (offset, len) in [(1 << 20, 4096), (0, (1 << 20) + 4096), (u64::MAX - 4095, 4096)] {
            assert_eq!(check(offset, len), Err(Cause::OutOfRange { capacity_bytes: 1 << 20 }), "{offset} {len}");
        }
    }
}
