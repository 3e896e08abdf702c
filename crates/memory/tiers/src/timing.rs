// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Computes when a device of a given profile would have completed a request.
//!
//! Pure: time is an argument, and randomness is a fixed sequence, so that the same requests at the same times always
//! get the same answers. The state is atomic because threads call this while they resolve faults, when they may not
//! lock.
//!
//! A device is a set of *servers*, each of which does one thing at a time: every plane of the media, the media's
//! channel, the link in either direction, and the link's total. A request occupies all the servers that it needs from
//! now on, each for as long as its bytes take there; it is complete when the slowest is, plus the fixed latency. Reads
//! wait for the media unless a cache holds the line; writes end in the device's buffer.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aquifer_tier::Operation;

use crate::profile::{Direction, Profile};

/// No answer is further in the future than this: a queue of bulk transfers must not stop a program for good.
pub const WAIT_NS_MAX: u64 = 1_000_000_000;

/// The tag of a cache line that holds nothing.
const EMPTY: u32 = u32::MAX;

/// The state of a device at one moment.
pub struct Device {
    profile: Profile,
    /// For each server, the time until which it is occupied.
    planes: Box<[AtomicU64]>,
    channel: AtomicU64,
    read_link: AtomicU64,
    write_link: AtomicU64,
    total_link: AtomicU64,
    /// For each line of a direct-mapped cache, the line of the device that it holds. Empty if everything fits.
    lines: Box<[AtomicU32]>,
    /// Requests so far; chooses the latency of the next one.
    sequence: AtomicU64,
}

impl Device {
    /// An idle device of `capacity_bytes`.
    pub fn new(profile: Profile, capacity_bytes: u64) -> Device {
        let server = || AtomicU64::new(0);
        let planes = profile.media.as_ref().map_or(0, |media| media.planes);
        let lines = profile.cache.as_ref().filter(|cache| cache.bytes < capacity_bytes);
        let lines = lines.map_or(0, |cache| cache.bytes / cache.line_bytes);
        Device {
            planes: (0..planes).map(|_| server()).collect(),
            channel: server(),
            read_link: server(),
            write_link: server(),
            total_link: server(),
            lines: (0..lines).map(|_| AtomicU32::new(EMPTY)).collect(),
            sequence: server(),
            profile,
        }
    }

    /// The profile it was made from.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// When a request that arrives at `now_ns` is complete. At least `now_ns`, at most [`WAIT_NS_MAX`] later.
    pub fn completes_at_ns(&self, now_ns: u64, operation: Operation, offset: u64, len: u64) -> u64 {
        let (direction, link) = match operation {
            Operation::Read => (&self.profile.read, &self.read_link),
            Operation::Write => (&self.profile.write, &self.write_link),
        };
        let media_ns = self.media_done_ns(now_ns, operation, offset, len);
        let transfer_ns = direction.request_ns + bytes_ns(len, direction.bytes_per_second);
        let mut link_ns = occupy(link, now_ns, transfer_ns);
        if let Some(total) = self.profile.total_bytes_per_second {
            link_ns = link_ns.max(occupy(&self.total_link, now_ns, bytes_ns(len, total)));
        }
        // Bytes that left the media still have to cross the link, even if the link was otherwise idle.
        let done_ns = link_ns.max(media_ns + transfer_ns) + self.latency_ns(direction);
        done_ns.clamp(now_ns, now_ns + WAIT_NS_MAX)
    }

    /// When the media has delivered everything that a read needs from it.
    fn media_done_ns(&self, now_ns: u64, operation: Operation, offset: u64, len: u64) -> u64 {
        let mut done_ns = now_ns;
        let Some(media) = &self.profile.media else { return done_ns };
        let first = offset / media.page_bytes;
        let last = (offset + len - 1) / media.page_bytes;
        for page in first..=last {
            let cached = self.touch_cache(page * media.page_bytes);
            if cached || operation == Operation::Write {
                continue;
            }
            let plane = usize::try_from(page % media.planes).expect("planes are few");
            done_ns = done_ns.max(occupy(&self.planes[plane], now_ns, media.read_ns));
            if let Some(rate) = media.bytes_per_second {
                done_ns = done_ns.max(occupy(&self.channel, now_ns, bytes_ns(media.page_bytes, rate)));
            }
        }
        done_ns
    }

    /// Whether the cache holds the line at `offset`; afterwards it does.
    fn touch_cache(&self, offset: u64) -> bool {
        let Some(cache) = &self.profile.cache else { return false };
        if self.lines.is_empty() {
            return true;
        }
        let line = offset / cache.line_bytes;
        let place = usize::try_from(line % self.lines.len() as u64).expect("an index of a slice");
        let tag = u32::try_from(line / self.lines.len() as u64).unwrap_or(EMPTY - 1);
        self.lines[place].swap(tag, Ordering::Relaxed) == tag
    }

    fn latency_ns(&self, direction: &Direction) -> u64 {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        direction.latency_ns_at(unit_fraction(sequence))
    }
}

/// Occupies a server for `cost_ns`, from now or from when it is free; returns when it is done.
fn occupy(server: &AtomicU64, now_ns: u64, cost_ns: u64) -> u64 {
    // Relaxed: the server's time is all that threads share here.
    let before = server
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |busy_ns| Some(busy_ns.max(now_ns) + cost_ns))
        .expect("the update always yields a value");
    before.max(now_ns) + cost_ns
}

/// How long `bytes` bytes take at this rate, rounded up.
fn bytes_ns(bytes: u64, bytes_per_second: u64) -> u64 {
    let ns = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_per_second));
    u64::try_from(ns).unwrap_or(WAIT_NS_MAX)
}

/// A pseudorandom number in 0..1 (splitmix64), the same for the same position in the sequence.
fn unit_fraction(sequence: u64) -> f64 {
    let mut z = sequence.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests;
