// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Gives each quantity its own type, so that a block cannot be passed as a frame, or bytes as pages.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

/// Bytes in one page.
pub const PAGE_BYTES: u64 = 4096;
/// Pages in one region, the unit in which slots are reserved, and the largest block: 2 MiB.
pub const REGION_PAGES: u32 = 512;
/// Bytes in one region.
pub const REGION_BYTES: u64 = PAGE_BYTES * REGION_PAGES as u64;

/// One page of the program's address space: its address divided by [`PAGE_BYTES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageIndex(pub u64);

impl PageIndex {
    /// The page that has the byte at `address`.
    pub const fn at(address: usize) -> PageIndex {
        PageIndex(address as u64 / PAGE_BYTES)
    }

    /// One past the last page of a range that ends at `address`: the first page that begins at that address or after
    /// it.
    pub const fn end_at(address: usize) -> PageIndex {
        PageIndex((address as u64).div_ceil(PAGE_BYTES))
    }

    /// The address of its first byte.
    pub const fn address(self) -> usize {
        (self.0 * PAGE_BYTES) as usize
    }

    /// The page before it, if there is one.
    pub fn previous(self) -> Option<PageIndex> {
        self.0.checked_sub(1).map(PageIndex)
    }

    /// The pages from this one up to `end`, in order.
    pub fn up_to(self, end: PageIndex) -> impl DoubleEndedIterator<Item = PageIndex> + Clone {
        (self.0..end.0).map(PageIndex)
    }

    /// How many pages there are from this one up to `end`.
    pub const fn count_to(self, end: PageIndex) -> u64 {
        end.0.saturating_sub(self.0)
    }
}

impl Add<u64> for PageIndex {
    type Output = PageIndex;

    fn add(self, pages: u64) -> PageIndex {
        PageIndex(self.0 + pages)
    }
}

impl AddAssign<u64> for PageIndex {
    fn add_assign(&mut self, pages: u64) {
        self.0 += pages;
    }
}

impl Sub<u64> for PageIndex {
    type Output = PageIndex;

    fn sub(self, pages: u64) -> PageIndex {
        PageIndex(self.0 - pages)
    }
}

impl Sub for PageIndex {
    type Output = u64;

    fn sub(self, other: PageIndex) -> u64 {
        self.0 - other.0
    }
}

impl fmt::Display for PageIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One region of the block map: 2 MiB of a mapping. Dense, so it can index arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionIndex(pub u32);

impl RegionIndex {
    /// The number, to index arrays.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One block of the block map: a run of pages that moves as one. Dense, so it can index arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockIndex(pub u32);

/// One frame: local memory that can hold one block while it is not at the program's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameIndex(pub u32);

/// One slab of a tier: room for one region. Dense, so it can index arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlabIndex(pub u32);

impl SlabIndex {
    /// The first slab that is not a tier's: from here on they are in files of named mappings. A tier's slabs are in the
    /// first 4 PiB.
    pub const FILES: SlabIndex = SlabIndex(1 << 31);

    /// Whether the slab is in a file of a named mapping: it is read, and never written to.
    pub const fn is_of_file(self) -> bool {
        self.0 >= Self::FILES.0
    }

    /// The slab that has the byte at `offset` of its tier.
    pub const fn at(offset: u64) -> SlabIndex {
        debug_assert!(offset / REGION_BYTES <= u32::MAX as u64);
        SlabIndex((offset / REGION_BYTES) as u32)
    }

    /// All slabs of a tier that has `count`, in order.
    pub fn all(count: u32) -> impl Iterator<Item = SlabIndex> + Clone {
        (0..count).map(SlabIndex)
    }

    /// The offset of its first byte in its tier.
    pub const fn offset(self) -> u64 {
        self.0 as u64 * REGION_BYTES
    }

    /// The slot of the block that begins at page `page` of the slab's region.
    pub const fn slot_of_page(self, page: u32) -> Slot {
        Slot(self.offset() + page as u64 * PAGE_BYTES)
    }

    /// The number, to index arrays.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where the copy of a block is in a tier: the offset of its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u64);

impl Slot {
    /// The slab that it is in.
    pub const fn slab(self) -> SlabIndex {
        SlabIndex::at(self.0)
    }

    /// The offset in the tier of the block's byte `start`.
    pub const fn offset_of(self, start: usize) -> u64 {
        self.0 + start as u64
    }
}

/// A thread of the program, as numbered on the fault path. Small, so it can index arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadIndex(pub u16);

/// Block size as a power of two of pages: 0 is 4 KiB, 9 is 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order(u8);

impl Order {
    /// 4 KiB.
    pub const MIN: Order = Order(0);
    /// 2 MiB.
    pub const MAX: Order = Order(9);
    /// 128 KiB, the size that EMP chose as its default.
    pub const DEFAULT: Order = Order(5);
    /// 16 KiB: the unit of regions whose blocks have this size or more, except in the first 2 GiB if block sizes may
    /// change (`map/ranges.rs`). Smaller units would cost more memory to describe than they save.
    pub const UNIT: Order = Order(2);

    /// The order with `1 << exponent` pages; `None` above 2 MiB.
    pub const fn new(exponent: u8) -> Option<Order> {
        if exponent <= Self::MAX.0 { Some(Order(exponent)) } else { None }
    }

    /// The order whose blocks have exactly `bytes` bytes.
    pub fn of_bytes(bytes: u64) -> Option<Order> {
        let order = (bytes / PAGE_BYTES).checked_ilog2()?;
        let order = Order::new(u8::try_from(order).ok()?)?;
        (order.bytes() == bytes).then_some(order)
    }

    /// The exponent, to index arrays.
    pub const fn exponent(self) -> usize {
        self.0 as usize
    }

    /// Pages in a block.
    pub const fn pages(self) -> u32 {
        1 << self.0
    }

    /// Bytes in a block.
    pub const fn bytes(self) -> u64 {
        PAGE_BYTES << self.0
    }
}

/// A number of bytes that users type and read with a unit: `4GiB`, `4G`, `307MiB`, `512KiB`, `4096`.
///
/// Units with `iB`, `i` or a single letter are powers of two; those with `B` alone (`GB`) are powers of ten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 33] = [
    ("EiB", 1 << 60),
    ("PiB", 1 << 50),
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("Ei", 1 << 60),
    ("E", 1 << 60),
    ("e", 1 << 60),
    ("Pi", 1 << 50),
    ("P", 1 << 50),
    ("p", 1 << 50),
    ("Ti", 1 << 40),
    ("T", 1 << 40),
    ("t", 1 << 40),
    ("Gi", 1 << 30),
    ("G", 1 << 30),
    ("g", 1 << 30),
    ("Mi", 1 << 20),
    ("M", 1 << 20),
    ("m", 1 << 20),
    ("Ki", 1 << 10),
    ("K", 1 << 10),
    ("k", 1 << 10),
    ("EB", 1_000_000_000_000_000_000),
    ("PB", 1_000_000_000_000_000),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("KB", 1_000),
    ("B", 1),
    ("", 1),
];
/// How many of the units are used for printing: the powers of two, except bytes.
const UNITS_PRINTED: usize = 6;

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let advice = || format!("'{text}' is not a size; write a number and a unit, for example 4GiB or 307MiB");
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim();
        let too_large = || format!("'{text}' is more than 64 bits can count; give less than 16EiB");
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(advice)?;
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(*factor).map(ByteSize).ok_or_else(too_large);
        }
        let fraction: f64 = number.parse().map_err(|_| advice())?;
        // Digits and a point, so it is not negative; it may be infinite.
        let bytes = fraction * *factor as f64;
        if bytes < u64::MAX as f64 { Ok(ByteSize(bytes as u64)) } else { Err(too_large()) }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, factor) in &UNITS[..UNITS_PRINTED] {
            if self.0 >= *factor {
                return if self.0.is_multiple_of(*factor) {
                    write!(f, "{}{name}", self.0 / factor)
                } else {
                    write!(f, "{:.1}{name}", self.0 as f64 / *factor as f64)
                };
            }
        }
        write!(f, "{}B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_units_are_read() {
        for (text, bytes) in [
            ("4GiB", 4 << 30),
            ("307MiB", 307 << 20),
            ("1.5KiB", 1536),
            ("4096", 4096),
            ("2 MiB", 2 << 20),
            ("1GB", 1_000_000_000),
            ("15EiB", 15 << 60),
            ("0.5PiB", 1 << 49),
            ("4G", 4 << 30),
            ("4Gi", 4 << 30),
            ("4g", 4 << 30),
            ("300M", 300 << 20),
            ("300m", 300 << 20),
            ("512k", 512 << 10),
            ("1.5T", 3 << 39),
            ("4GB", 4_000_000_000),
            ("1kB", 1000),
        ] {
            assert_eq!(text.parse::<ByteSize>(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn bad_sizes_say_what_to_write() {
        for text in ["", "x", "4GI", "4gib", "4gb", "4G4", "-1MiB", "1e3", "1.2.3MiB", "."] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_that_cannot_be_counted_say_so() {
        for text in ["16EiB", "20EiB", "99999999999TiB", "16.5EiB", "99999999999999999999"] {
            let reason = text.parse::<ByteSize>().unwrap_err();
            assert_eq!(reason, format!("'{text}' is more than 64 bits can count; give less than 16EiB"));
        }
    }

    #[test]
    fn sizes_print_in_the_largest_fitting_unit() {
        assert_eq!(ByteSize(300 << 20).to_string(), "300MiB");
        assert_eq!(ByteSize(1 << 30).to_string(), "1GiB");
        assert_eq!(ByteSize(10).to_string(), "10B");
        assert_eq!(ByteSize(3 << 50).to_string(), "3PiB");
        assert_eq!(ByteSize(u64::MAX).to_string(), "16.0EiB");
    }

    #[test]
    fn orders_are_exact_powers_of_two() {
        assert_eq!(Order::of_bytes(4096), Some(Order::MIN));
        assert_eq!(Order::of_bytes(131_072), Some(Order::DEFAULT));
        assert_eq!(Order::of_bytes(2 << 20), Some(Order::MAX));
        assert_eq!(Order::of_bytes(4 << 20), None);
        assert_eq!(Order::of_bytes(5000), None);
        assert_eq!(Order::of_bytes(0), None);
    }
}
