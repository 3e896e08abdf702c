// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! From the addresses of a device to the host's, and back: what an HDM decoder of an endpoint does. Pure.
//!
//! A region of the host's addresses consists of chunks of `granularity` bytes, which its targets have in turn, whatever
//! their number: 3, 6 and 12 targets, which the specification decodes by a division and not by bits alone (CXL 3.2
//! section 8.2.4.20.13), come to the same.
//!
//! ```text
//! host    region + (chunk * ways + position) * granularity + rest
//! device  start  +  chunk                    * granularity + rest
//! ```
//!
//! In windows with XOR arithmetic, the host's address has other bits in place of `position`'s (`xor_maps.rs`). They
//! differ within a block of as many chunks as the power of two in `ways`, so a region begins with a whole block.
//! `decoders.rs` reads decoders from sysfs.

use crate::source::HotRange;
use crate::xor_maps::XorMaps;

/// What the kernel moves. The smallest page: of a smaller chunk, the whole page is hot.
const PAGE_BYTES: u64 = 4096;
/// The numbers of targets that a region can have.
pub const WAYS: [u64; 8] = [1, 2, 3, 4, 6, 8, 12, 16];
/// The bytes of a chunk: powers of two between these.
pub const GRANULARITIES: std::ops::RangeInclusive<u64> = 256..=16 << 10;

/// A range of the device with more chunks than this is shown as one range of the host, which has chunks of other
/// devices, too: one of 256 GiB would be millions of ranges.
const RANGES_MAX: u64 = 1024;

/// A committed decoder of an endpoint: a range of the device's addresses, and its chunks of the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoder {
    device_start: u64,
    host_start: u64,
    /// Of the host's addresses; a multiple of ways and granularity.
    host_bytes: u64,
    ways: u64,
    granularity_bytes: u64,
    position: u64,
    maps: XorMaps,
}

impl Decoder {
    /// The decoder of the device at `position` of a region of `host_bytes`. `None` if there can be no such region.
    pub fn new(
        device_start: u64,
        host: (u64, u64),
        ways: u64,
        granularity_bytes: u64,
        position: u64,
    ) -> Option<Decoder> {
        let (host_start, host_bytes) = host;
        let is_known = WAYS.contains(&ways)
            && GRANULARITIES.contains(&granularity_bytes)
            && granularity_bytes.is_power_of_two()
            && position < ways;
        if !is_known || host_bytes == 0 || !host_bytes.is_multiple_of(ways * granularity_bytes) {
            return None;
        }
        host_start.checked_add(host_bytes)?.checked_next_multiple_of(PAGE_BYTES)?;
        device_start.checked_add(host_bytes / ways)?;
        Some(Decoder { device_start, host_start, host_bytes, ways, granularity_bytes, position, maps: XorMaps::NONE })
    }

    /// The same decoder in a window with these maps. `None` if the region's targets cannot be those of the maps.
    pub fn with_xor(self, maps: XorMaps) -> Option<Decoder> {
        let block_bytes = self.granularity_bytes << self.ways.trailing_zeros();
        let position_bits = block_bytes - self.granularity_bytes;
        let fits = maps.changed_bits() & !position_bits == 0 && self.host_start.is_multiple_of(block_bytes);
        (maps == XorMaps::NONE || fits).then_some(Decoder { maps, ..self })
    }

    /// Whether the arithmetic of the window matters: whether it could have maps.
    pub(crate) fn depends_on_arithmetic(&self) -> bool {
        self.ways.trailing_zeros() > 0
    }

    /// The host's addresses: the first, and how many bytes.
    pub(crate) fn host_range(&self) -> (u64, u64) {
        (self.host_start, self.host_bytes)
    }

    /// The device's addresses: the first, and the first after them.
    pub fn device_range(&self) -> (u64, u64) {
        (self.device_start, self.device_start + self.host_bytes / self.ways)
    }

    /// The host's address of one of the device. `None` outside of the decoder.
    pub fn to_host(&self, device: u64) -> Option<u64> {
        let (start, end) = self.device_range();
        if !(start..end).contains(&device) {
            return None;
        }
        let (chunk, rest) = ((device - start) / self.granularity_bytes, (device - start) % self.granularity_bytes);
        let address = self.host_start + (chunk * self.ways + self.position) * self.granularity_bytes + rest;
        Some(self.maps.without_position(address))
    }

    /// The device's address of one of the host. `None` outside of the region, and where another target has it.
    pub fn to_device(&self, host: u64) -> Option<u64> {
        host.checked_sub(self.host_start).filter(|offset| *offset < self.host_bytes)?;
        let offset = self.maps.with_position(host) - self.host_start;
        let (chunk, rest) = (offset / self.granularity_bytes, offset % self.granularity_bytes);
        (chunk % self.ways == self.position)
            .then(|| self.device_start + chunk / self.ways * self.granularity_bytes + rest)
    }

    /// The host's ranges of a range of the device, which lies in the decoder: whole pages that have some of it. They
    /// make one range where every page has a chunk, and where there would be more than `RANGES_MAX`.
    fn host_ranges(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let is_long = (end - start) / self.granularity_bytes > RANGES_MAX;
        let is_dense = is_long || self.ways == 1 || self.ways * self.granularity_bytes <= PAGE_BYTES;
        let (mut at, mut ranges) = (start, Vec::new());
        while at < end {
            let chunk = (at - self.device_start) / self.granularity_bytes;
            let chunk_end = self.device_start + (chunk + 1) * self.granularity_bytes;
            let next = if is_dense { end } else { end.min(chunk_end) };
            let (Some(first), Some(last)) = (self.to_host(at), self.to_host(next - 1)) else { break };
            ranges.push((first / PAGE_BYTES * PAGE_BYTES, (last / PAGE_BYTES + 1) * PAGE_BYTES));
            at = next;
        }
        ranges
    }
}

/// The host's pages of a range of a device's addresses, by the device's decoders, and how many bytes of it no decoder
/// has. The accesses, of which the device does not say where in the range they were, are divided evenly.
pub fn host_ranges(decoders: &[Decoder], range: &HotRange) -> (Vec<HotRange>, u64) {
    let (start, end) = (range.start, range.start.saturating_add(range.bytes));
    let (mut found, mut decoded_bytes) = (Vec::new(), 0);
    for decoder in decoders {
        let (first, last) = decoder.device_range();
        let (from, to) = (start.max(first), end.min(last));
        if from < to {
            decoded_bytes += to - from;
            found.extend(decoder.host_ranges(from, to));
        }
    }
    let share = range.accesses.div_ceil(found.len().max(1) as u64);
    let ranges = found.iter().map(|(start, end)| HotRange {
        start: *start,
        bytes: end - start,
        accesses: share,
        is_saturated: range.is_saturated,
    });
    (ranges.collect(), range.bytes.saturating_sub(decoded_bytes))
}
