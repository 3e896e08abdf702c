// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Chooses blocks and offers them to a host: Initiate Dynamic Capacity Add (5604h).

use std::ops::Range;

use aquifer_fmapi::{Empty, Extent, InitiateDcAdd, Response, ReturnCode, add_policy};

use super::{Capacity, OFFERS_MAX, Offer, POLICY};
use crate::context::{Answer, Context};
use crate::extents::{Held, Hosts, NO_TAG, Tag};
use crate::outcome::Effect;

impl Capacity {
    pub(super) fn add(&mut self, context: &mut Context, add: &InitiateDcAdd) -> Answer {
        let host_id = self.host(add.host_id)?;
        if self.offers.iter().filter(|offer| offer.host_id == host_id).count() >= OFFERS_MAX {
            return Err(ReturnCode::RETRY_REQUIRED);
        }
        let policy = add.policy & POLICY;
        let new = match policy {
            add_policy::FREE | add_policy::CONTIGUOUS => {
                let is_contiguous = policy == add_policy::CONTIGUOUS;
                self.choose(add.region, add.length, add.tag, is_contiguous)?
            }
            add_policy::PRESCRIPTIVE => self.prescribed(&add.extents)?,
            add_policy::ENABLE_SHARED_ACCESS => {
                let extents = self.share(host_id, add)?;
                self.offer(context, host_id, extents);
                return Ok(Response::InitiateDcAdd(Empty {}));
            }
            _ => return Err(ReturnCode::INVALID_INPUT),
        };
        self.check_tags(host_id, &new)?;
        let extents = new.iter().map(|(range, tag)| self.hold(host_id, range, *tag)).collect();
        self.offer(context, host_id, extents);
        Ok(Response::InitiateDcAdd(Empty {}))
    }

    /// Chooses free blocks of a region: in one piece if possible; otherwise, unless they must be contiguous, in several
    /// pieces from the lowest address on.
    fn choose(
        &self,
        region: u8,
        length: u64,
        tag: Tag,
        is_contiguous: bool,
    ) -> Result<Vec<(Range<u64>, Tag)>, ReturnCode> {
        let region = self.region(region)?;
        if !region.is_aligned(length) {
            return Err(ReturnCode::INVALID_INPUT);
        }
        let free = self.extents.free(&region.range);
        let is_enough = |range: &&Range<u64>| range.end - range.start >= length;
        let one = free.iter().find(is_enough).map(|range| range.start..range.start + length);
        let mut wanted = length;
        let several = free.iter().map_while(|range| {
            let part = wanted.min(range.end - range.start);
            wanted -= part;
            (part > 0).then_some(range.start..range.start + part)
        });
        let chosen: Vec<Range<u64>> =
            if one.is_some() || is_contiguous { one.into_iter().collect() } else { several.collect() };
        let sum: u64 = chosen.iter().map(|range| range.end - range.start).sum();
        if sum < length {
            return Err(ReturnCode::RESOURCES_EXHAUSTED);
        }
        Ok(chosen.into_iter().map(|range| (range, tag)).collect())
    }

    /// Returns the ranges of a list, which must be whole free blocks, each listed once.
    fn prescribed(&self, list: &[Extent]) -> Result<Vec<(Range<u64>, Tag)>, ReturnCode> {
        let ranges = self.blocks(list)?;
        if ranges.iter().any(|range| self.extents.touching(range).next().is_some()) {
            return Err(ReturnCode::INVALID_EXTENT_LIST);
        }
        Ok(ranges.into_iter().zip(list.iter().map(|extent| extent.tag)).collect())
    }

    /// Returns the ranges of a list, each of whole blocks in one region, and disjoint.
    pub(super) fn blocks(&self, list: &[Extent]) -> Result<Vec<Range<u64>>, ReturnCode> {
        let invalid = Err(ReturnCode::INVALID_EXTENT_LIST);
        if list.is_empty() || list.len() > self.extents_max as usize {
            return invalid;
        }
        let mut ranges: Vec<Range<u64>> = Vec::with_capacity(list.len());
        for extent in list {
            let Some(end) = extent.start.checked_add(extent.length) else { return invalid };
            let range = extent.start..end;
            let Some(region) = self.region_of(&range) else { return Err(ReturnCode::INVALID_PHYSICAL_ADDRESS) };
            if !region.is_blocks(&range) {
                return invalid;
            }
            if ranges.iter().any(|other| other.start < range.end && range.start < other.end) {
                return invalid;
            }
            ranges.push(range);
        }
        Ok(ranges)
    }

    /// Checks that the new capacity may have its tags: capacity can be added to the tag of one host, but only for that
    /// host, and never to the tag of shared capacity. Also checks that the device can track the new extents and tags.
    fn check_tags(&self, host_id: u16, new: &[(Range<u64>, Tag)]) -> Result<(), ReturnCode> {
        let mut tags = self.tags();
        for tag in new.iter().map(|(_, tag)| tag).filter(|tag| **tag != NO_TAG) {
            let mut held = self.extents.iter().filter(|held| held.tag == *tag);
            let is_others =
                |held: &Held| (held.accepted.0 | held.pending.0) != Hosts::one(host_id).0 || held.sequence > 0;
            if held.any(is_others) {
                return Err(ReturnCode::INVALID_INPUT);
            }
            tags.insert(*tag);
        }
        let is_much = self.extents.len() + new.len() > self.extents_max as usize || tags.len() > self.tags_max as usize;
        if is_much { Err(ReturnCode::RESOURCES_EXHAUSTED) } else { Ok(()) }
    }

    fn hold(&mut self, host_id: u16, range: &Range<u64>, tag: Tag) -> Extent {
        let is_shared = tag != NO_TAG && self.region_of(range).is_some_and(|region| region.is_sharable);
        let before = self.extents.iter().filter(|held| held.tag == tag).count();
        let held = Held {
            start: range.start,
            length: range.end - range.start,
            tag,
            sequence: if is_shared { before as u16 + 1 } else { 0 },
            accepted: Hosts::default(),
            pending: Hosts::one(host_id),
            releasing: Hosts::default(),
            is_sanitized: false,
        };
        self.extents.insert(held);
        held.reported()
    }

    /// Offers the shared capacity with a tag to a further host.
    fn share(&mut self, host_id: u16, add: &InitiateDcAdd) -> Result<Vec<Extent>, ReturnCode> {
        let region = self.region(add.region)?.clone();
        let of_tag: Vec<Held> = self.extents.iter().filter(|held| held.tag == add.tag).copied().collect();
        let is_good =
            |held: &Held| region.has(&held.range()) && !held.accepted.has(host_id) && !held.pending.has(host_id);
        if !region.is_sharable || add.tag == NO_TAG || of_tag.is_empty() || !of_tag.iter().all(is_good) {
            return Err(ReturnCode::INVALID_INPUT);
        }
        self.extents.iter_mut().filter(|held| held.tag == add.tag).for_each(|held| held.pending.add(host_id));
        Ok(of_tag.iter().map(Held::reported).collect())
    }

    fn offer(&mut self, context: &mut Context, host_id: u16, extents: Vec<Extent>) {
        let ranges = extents.iter().map(|extent| extent.start..extent.start + extent.length).collect();
        self.offers.push_back(Offer { host_id, ranges });
        self.tags_generation = self.tags_generation.wrapping_add(1);
        context.effect(Effect::CapacityOffered { device: self.device, host_id, extents });
    }
}
