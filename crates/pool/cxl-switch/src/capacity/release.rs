// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Takes blocks back from a host: by Initiate Dynamic Capacity Release (5605h), or because the host is gone. Blocks
//! without a host are freed, and wiped if that was requested.

use std::collections::BTreeSet;
use std::ops::Range;

use aquifer_fmapi::{Empty, Extent, InitiateDcRelease, Response, ReturnCode};

use super::{BY_TAG, Capacity, FORCED, POLICY, PRESCRIPTIVE, SANITIZED};
use crate::context::{Answer, Context};
use crate::extents::{Held, Tag};
use crate::outcome::Effect;

impl Capacity {
    pub(super) fn release(&mut self, context: &mut Context, release: &InitiateDcRelease) -> Answer {
        let host_id = self.host(release.host_id)?;
        let is_forced = release.flags & FORCED != 0;
        let ranges = match release.flags & POLICY {
            BY_TAG => self.tagged(host_id, release, is_forced)?,
            PRESCRIPTIVE => self.listed(host_id, &release.extents, is_forced)?,
            _ => return Err(ReturnCode::INVALID_INPUT),
        };
        if self.extents.len() + self.extents.splits(&ranges) > self.extents_max as usize {
            return Err(ReturnCode::RESOURCES_EXHAUSTED);
        }
        self.extents.split(&ranges);
        let is_sanitized = release.flags & SANITIZED != 0;
        let mut extents = Vec::new();
        for range in &ranges {
            for held in self.extents.inside(range) {
                held.is_sanitized |= is_sanitized;
                if !is_forced {
                    held.releasing.add(host_id);
                }
                extents.push(held.reported());
            }
        }
        if is_forced {
            self.revoke(context, host_id, &ranges);
        } else {
            context.effect(Effect::CapacityReleaseRequested { device: self.device, host_id, extents });
        }
        Ok(Response::InitiateDcRelease(Empty {}))
    }

    /// Chooses this many bytes of a tag, from the lowest address up.
    fn tagged(
        &self,
        host_id: u16,
        release: &InitiateDcRelease,
        is_forced: bool,
    ) -> Result<Vec<Range<u64>>, ReturnCode> {
        let has = |held: &&Held| held.accepted.has(host_id) || is_forced && held.pending.has(host_id);
        let of_tag: Vec<&Held> = self.extents.iter().filter(|held| held.tag == release.tag).filter(has).collect();
        let total: u64 = of_tag.iter().map(|held| held.length).sum();
        let is_shared = of_tag.iter().any(|held| held.sequence > 0);
        if of_tag.is_empty() || release.length == 0 || is_shared && release.length < total {
            return Err(ReturnCode::INVALID_INPUT);
        }
        if release.length > total {
            return Err(ReturnCode::RESOURCES_EXHAUSTED);
        }
        let mut wanted = release.length;
        let mut ranges = Vec::new();
        for held in of_tag {
            let part = wanted.min(held.length);
            let region = self.region_of(&held.range()).expect("what is held is in a region");
            if part > 0 && !region.is_aligned(part) {
                return Err(ReturnCode::INVALID_INPUT);
            }
            if part > 0 {
                ranges.push(held.start..held.start + part);
            }
            wanted -= part;
        }
        Ok(ranges)
    }

    /// Returns the ranges of a list, which the host must have; in a forced release, it may also have only been offered
    /// them.
    fn listed(&self, host_id: u16, list: &[Extent], is_forced: bool) -> Result<Vec<Range<u64>>, ReturnCode> {
        let ranges = self.blocks(list)?;
        for range in &ranges {
            if !is_forced && self.extents.touching(range).any(|held| held.pending.has(host_id)) {
                return Err(ReturnCode::INVALID_PHYSICAL_ADDRESS);
            }
            if !self.extents.covers(range, |held| held.accepted.has(host_id) || held.pending.has(host_id)) {
                return Err(ReturnCode::INVALID_EXTENT_LIST);
            }
        }
        // Shared capacity is released as a whole.
        let touched = ranges.iter().flat_map(|range| self.extents.touching(range)).filter(|held| held.sequence > 0);
        let shared: BTreeSet<Tag> = touched.map(|held| held.tag).collect();
        let is_whole =
            |held: &Held| ranges.iter().any(|range| range.start <= held.start && held.range().end <= range.end);
        if self.extents.iter().any(|held| shared.contains(&held.tag) && !is_whole(held)) {
            return Err(ReturnCode::INVALID_INPUT);
        }
        Ok(ranges)
    }

    /// Revokes capacity from the host, without its consent.
    fn revoke(&mut self, context: &mut Context, host_id: u16, ranges: &[Range<u64>]) {
        let mut extents = Vec::new();
        for range in ranges {
            for held in self.extents.inside(range) {
                held.accepted.remove(host_id);
                held.pending.remove(host_id);
                held.releasing.remove(host_id);
                extents.push(held.reported());
            }
        }
        // An offer keeps what is still pending of it: the same blocks may be offered again before it is answered.
        let pending: Vec<Range<u64>> =
            self.extents.iter().filter(|held| held.pending.has(host_id)).map(Held::range).collect();
        for offer in self.offers.iter_mut().filter(|offer| offer.host_id == host_id) {
            let common = |part: &Range<u64>| {
                let parts = pending.iter().map(|held| held.start.max(part.start)..held.end.min(part.end));
                parts.filter(|part| !part.is_empty()).collect::<Vec<_>>()
            };
            offer.ranges = offer.ranges.iter().flat_map(common).collect();
        }
        if !extents.is_empty() {
            context.effect(Effect::CapacityRevoked { device: self.device, host_id, extents });
        }
        self.settle(context, host_id);
    }

    /// Handles a change of a host's list. Frees capacity that no host has or is offered any more, and wipes it if that
    /// was requested.
    pub(super) fn settle(&mut self, context: &mut Context, host_id: u16) {
        let generation = &mut self.generations[usize::from(host_id)];
        *generation = generation.wrapping_add(1);
        self.tags_generation = self.tags_generation.wrapping_add(1);
        let references = &self.references;
        let freed = self.extents.take(|held| held.is_nobodys() && !references.contains(&held.tag));
        let base = self.regions[0].range.start;
        for held in freed {
            let is_always = self.region_of(&held.range()).is_some_and(|region| region.is_sanitized);
            let is_wiped = held.is_sanitized || is_always;
            if is_wiped {
                self.memory.wipe(held.start - base..held.range().end - base);
            }
            context.effect(Effect::CapacityFreed { device: self.device, extent: held.reported(), is_wiped });
        }
    }

    /// Handles the loss of a host: revokes all that it has and all that it was offered.
    pub fn revoke_all(&mut self, context: &mut Context, host_id: u16, is_sanitized: bool) {
        self.offers.retain(|offer| offer.host_id != host_id);
        let is_its = |held: &Held| held.accepted.has(host_id) || held.pending.has(host_id);
        let mut ranges = Vec::new();
        for held in self.extents.iter_mut().filter(|held| is_its(held)) {
            held.is_sanitized |= is_sanitized;
            ranges.push(held.range());
        }
        if !ranges.is_empty() {
            self.revoke(context, host_id, &ranges);
        }
    }

    /// Forgets everything, because the device lost its power: tags that the manager refers to are gone, too.
    pub fn forget(&mut self, context: &mut Context) {
        self.references.clear();
        self.settle(context, 0);
        self.memory.wipe_all();
    }
}
