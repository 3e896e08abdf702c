// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which host has which blocks of dynamic capacity: disjoint extents in address order.

use std::ops::Range;

use aquifer_fmapi::Extent;

/// The tag of some capacity; all zeros: none.
pub(crate) type Tag = [u8; 16];
/// Capacity without a tag.
pub(crate) const NO_TAG: Tag = [0; 16];

/// A set of hosts, as bits; there are at most 32 ports, and 16 logical devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hosts(pub u32);

impl Hosts {
    /// Returns the set of one host.
    pub fn one(host_id: u16) -> Self {
        Self(1 << host_id)
    }

    /// Returns whether a host is in the set.
    pub fn has(self, host_id: u16) -> bool {
        self.0 >> host_id & 1 == 1
    }

    /// Adds a host.
    pub fn add(&mut self, host_id: u16) {
        self.0 |= 1 << host_id;
    }

    /// Removes a host.
    pub fn remove(&mut self, host_id: u16) {
        self.0 &= !(1 << host_id);
    }

    /// Returns whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the set as the FM API encodes it.
    pub fn bitmap(self) -> [u8; 32] {
        let mut bitmap = [0; 32];
        bitmap[..4].copy_from_slice(&self.0.to_le_bytes());
        bitmap
    }
}

/// An extent that is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// The extent's first address.
    pub start: u64,
    /// The extent's length in bytes.
    pub length: u64,
    /// The tag that it belongs to.
    pub tag: Tag,
    /// Its position among the extents of a shared tag, from 1 on; else 0.
    pub sequence: u16,
    /// Hosts that have it.
    pub accepted: Hosts,
    /// Hosts to which it is offered.
    pub pending: Hosts,
    /// Hosts that have it and are asked to release it.
    pub releasing: Hosts,
    /// True if it is wiped when no host has it any more.
    pub is_sanitized: bool,
}

impl Held {
    /// Returns the addresses of the extent.
    pub fn range(&self) -> Range<u64> {
        self.start..self.start + self.length
    }

    /// Returns the extent as the FM API encodes it.
    pub fn reported(&self) -> Extent {
        Extent { start: self.start, length: self.length, tag: self.tag, shared_sequence: self.sequence }
    }

    /// Returns whether nobody has it, and nobody is offered it.
    pub fn is_nobodys(&self) -> bool {
        self.accepted.is_empty() && self.pending.is_empty()
    }
}

/// The extents that are not free, in address order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents {
    held: Vec<Held>,
}

impl Extents {
    /// Returns all extents, in address order.
    pub fn iter(&self) -> impl Iterator<Item = &Held> + Clone {
        self.held.iter()
    }

    /// Returns all extents, in address order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Held> {
        self.held.iter_mut()
    }

    /// Returns the number of extents.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Adds an extent, of which no block may be held.
    pub fn insert(&mut self, new: Held) {
        assert!(self.touching(&new.range()).next().is_none(), "a block is held once");
        let at = self.held.partition_point(|held| held.start < new.start);
        self.held.insert(at, new);
    }

    /// Removes the matching extents, and returns them.
    pub fn take(&mut self, is_taken: impl Fn(&Held) -> bool) -> Vec<Held> {
        let (taken, kept) = self.held.iter().partition(|held| is_taken(held));
        self.held = kept;
        taken
    }

    /// Returns the extents with a block in the range.
    pub fn touching<'a>(&'a self, range: &'a Range<u64>) -> impl Iterator<Item = &'a Held> {
        self.held.iter().filter(|held| held.start < range.end && range.start < held.range().end)
    }

    /// Returns the extents that lie completely in the range. Extents that reach out of it are left out, unless
    /// [`Extents::split`] cut them before.
    pub fn inside(&mut self, range: &Range<u64>) -> impl Iterator<Item = &mut Held> {
        self.held.iter_mut().filter(move |held| range.start <= held.start && held.range().end <= range.end)
    }

    /// Returns the free ranges of a region, in address order.
    pub fn free(&self, region: &Range<u64>) -> Vec<Range<u64>> {
        let mut free = Vec::new();
        let mut at = region.start;
        for held in self.touching(region) {
            if at < held.start {
                free.push(at..held.start);
            }
            at = held.range().end;
        }
        if at < region.end {
            free.push(at..region.end);
        }
        free
    }

    /// Returns whether every block of the range is in an extent for which `holds` is true.
    pub fn covers(&self, range: &Range<u64>, holds: impl Fn(&Held) -> bool) -> bool {
        let mut at = range.start;
        for held in self.touching(range).filter(|held| holds(held)) {
            if held.start > at {
                return false;
            }
            at = held.range().end;
        }
        at >= range.end
    }

    /// Returns how many more extents [`Extents::split`] would make.
    pub fn splits(&self, ranges: &[Range<u64>]) -> usize {
        let is_inside =
            |address: &u64| self.held.iter().any(|held| held.start < *address && *address < held.range().end);
        let mut ends: Vec<u64> = ranges.iter().flat_map(|range| [range.start, range.end]).filter(is_inside).collect();
        ends.sort_unstable();
        ends.dedup();
        ends.len()
    }

    /// Cuts extents in two where a range begins or ends within them.
    pub fn split(&mut self, ranges: &[Range<u64>]) {
        for address in ranges.iter().flat_map(|range| [range.start, range.end]) {
            let is_cut = |held: &Held| held.start < address && address < held.range().end;
            if let Some(at) = self.held.iter().position(is_cut) {
                let whole = self.held[at];
                self.held[at].length = address - whole.start;
                let rest = Held { start: address, length: whole.range().end - address, ..whole };
                self.held.insert(at + 1, rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(start: u64, length: u64) -> Held {
        Held {
            start,
            length,
            tag: NO_TAG,
            sequence: 0,
            accepted: Hosts::one(0),
            pending: Hosts::default(),
            releasing: Hosts::default(),
            is_sanitized: false,
        }
    }

    #[test]
    fn free_ranges_are_what_is_between() {
        let mut extents = Extents::default();
        extents.insert(held(30, 10));
        extents.insert(held(10, 10));
        assert_eq!(extents.free(&(0..50)), [0..10, 20..30, 40..50]);
        assert_eq!(extents.free(&(10..20)), []);
        assert_eq!(extents.free(&(15..35)), std::slice::from_ref(&(20..30)));
    }

    #[test]
    fn an_extent_is_cut_where_a_range_ends() {
        let mut extents = Extents::default();
        extents.insert(held(0, 10));
        extents.insert(held(10, 10));
        let ranges = [5..15, 15..20];
        assert_eq!(extents.splits(&ranges), 2);
        extents.split(&ranges);
        let starts: Vec<(u64, u64)> = extents.iter().map(|held| (held.start, held.length)).collect();
        assert_eq!(starts, [(0, 5), (5, 5), (10, 5), (15, 5)]);
        assert_eq!(extents.splits(&ranges), 0);
        assert_eq!(extents.inside(&(5..15)).count(), 2);
        assert!(extents.covers(&(3..18), |_| true) && !extents.covers(&(3..21), |_| true));
        assert!(!extents.covers(&(3..18), |held| held.start != 10));
        assert_eq!(extents.take(|held| held.start < 10).len(), 2);
        assert_eq!(extents.len(), 2);
    }
}
