// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Dynamic capacity (56h): regions, and how their blocks are given to hosts and taken back. CXL 3.1, section 7.6.7.6.
//!
//! ```text
//! free -> pending       Initiate Dynamic Capacity Add offers it to a host
//!         pending  -> accepted    the host takes it, all or a part; it refuses the rest, which is free
//! accepted -> releasing   Initiate Dynamic Capacity Release asks for it; the host has it until it gives it back
//!         any of them -> free     the host gives it back, or the release is forced
//! ```
//!
//! An address means the same memory to every host, so a block has one host, or several hosts if it has a tag and its
//! region is sharable. Blocks of a tag that the manager refers to are not freed when their last host is gone.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use aquifer_fmapi::{
    CAPACITY_UNIT_BYTES, CapacityEvent, CapacityEventKind, DcExtentLists, DcListTags, DcRegion, DcTag, DcTags,
    DcdCapabilities, Empty, EventData, EventLog, Extent, GetDcExtentLists, GetHostDcRegions, HostDcRegions,
    REGIONS_MAX, Request, Response, ReturnCode, SetDcRegion,
};

use crate::component::Component;
use crate::config::CapacityConfig;
use crate::config_check::BLOCK_LOG2;
use crate::context::{Answer, Context};
use crate::extents::{Extents, Held, Hosts, NO_TAG, Tag};
use crate::host::HostFailure;
use crate::memory::Memory;

/// Maximum number of offers that a host may leave unanswered. The size of QEMU's event log would be too low a limit, so
/// this is the default size of an event log.
const OFFERS_MAX: usize = 64;
/// Bytes in an answer: before its extents, of one extent; before its tags, of one tag; around its regions, of one
/// region.
const LIST_BYTES: usize = 24;
const EXTENT_BYTES: usize = 40;
const TAGS_BYTES: usize = 16;
const TAG_BYTES: usize = 84;
const REGIONS_BYTES: usize = 20;
const REGION_BYTES: usize = 40;
/// The supported ways of choosing capacity, as bits. To add: free, contiguous, prescriptive; to release: by tag,
/// prescriptive.
const ADD_POLICIES: u16 = 0b111;
const RELEASE_POLICIES: u16 = 0b11;
/// Flags of a release.
const BY_TAG: u8 = 0;
const PRESCRIPTIVE: u8 = 1;
const FORCED: u8 = 1 << 4;
const SANITIZED: u8 = 1 << 5;
/// The four low bits of a byte are the policy.
const POLICY: u8 = 0xf;
/// Flags of a region and of a tag.
const SHARABLE: u8 = 1 << 3;
const MANAGER_REFERS: u8 = 1;
/// Both bit maps of a tag are valid.
const BITMAPS_VALID: u8 = DcTags::HOSTS_VALID | DcTags::HOSTS_PENDING_VALID;

mod add;
mod answers;
mod release;

#[derive(Clone, Debug)]
struct Region {
    range: Range<u64>,
    block_bytes: u64,
    is_sharable: bool,
    is_sanitized: bool,
}

impl Region {
    fn length(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn has(&self, range: &Range<u64>) -> bool {
        self.range.start <= range.start && range.end <= self.range.end
    }

    /// Returns whether a length is one or more whole blocks.
    fn is_aligned(&self, length: u64) -> bool {
        length > 0 && length.is_multiple_of(self.block_bytes)
    }

    /// Returns whether a range is one or more whole blocks of this region.
    fn is_blocks(&self, range: &Range<u64>) -> bool {
        let is_in_order = self.has(range) && range.start < range.end;
        is_in_order
            && self.is_aligned(range.end - range.start)
            && (range.start - self.range.start).is_multiple_of(self.block_bytes)
    }
}

#[derive(Clone, Debug)]
struct Offer {
    host_id: u16,
    ranges: Vec<Range<u64>>,
}

/// The dynamic capacity of a device: its regions, and which host has which blocks.
#[derive(Clone, Debug)]
pub(crate) struct Capacity {
    device: usize,
    hosts: u16,
    regions: Vec<Region>,
    extents: Extents,
    extents_max: u32,
    tags_max: u32,
    /// Tags that the manager refers to.
    references: BTreeSet<Tag>,
    /// The generation of each host's list, and that of the list of tags.
    generations: Vec<u32>,
    tags_generation: u32,
    offers: VecDeque<Offer>,
    /// Its bytes, from the first region on.
    memory: Memory,
}

impl Capacity {
    /// Creates the capacity of a device with this many hosts. Its addresses begin after the static memory.
    pub fn new(config: &CapacityConfig, device: usize, hosts: u16, static_bytes: u64) -> Self {
        let mut start = static_bytes.next_multiple_of(CAPACITY_UNIT_BYTES);
        let base = start;
        let mut regions = Vec::new();
        for region in &config.regions {
            let end = start + (region.length_mib << 20);
            regions.push(Region {
                range: start..end,
                block_bytes: region.block_bytes,
                is_sharable: region.sharable,
                is_sanitized: region.sanitize_on_release,
            });
            start = end;
        }
        Self {
            device,
            hosts,
            regions,
            extents: Extents::default(),
            extents_max: config.extents,
            tags_max: config.tags,
            references: BTreeSet::new(),
            generations: vec![0; hosts.into()],
            tags_generation: 0,
            offers: VecDeque::new(),
            memory: Memory::new(start - base),
        }
    }

    /// Returns how many hosts there can be.
    pub fn hosts(&self) -> u16 {
        self.hosts
    }

    /// Returns the answer; None for a command of another set.
    pub fn answer(&mut self, context: &mut Context, component: &mut Component, request: &Request) -> Option<Answer> {
        Some(match request {
            Request::GetDcd(_) => Ok(Response::GetDcd(self.capabilities())),
            Request::GetHostDcRegions(get) => self.host_regions(context, get).map(Response::GetHostDcRegions),
            Request::SetDcRegion(set) => self.set_region(context, component, set),
            Request::GetDcExtentLists(get) => self.extent_lists(context, get).map(Response::GetDcExtentLists),
            Request::InitiateDcAdd(add) => self.add(context, add),
            Request::InitiateDcRelease(release) => self.release(context, release),
            Request::DcAddReference(add) => self.add_reference(add.tag),
            Request::DcRemoveReference(remove) => self.remove_reference(context, remove.tag),
            Request::DcListTags(list) => Ok(Response::DcListTags(self.list_tags(context, list))),
            _ => return None,
        })
    }

    fn capabilities(&self) -> DcdCapabilities {
        let mut block_sizes = [0; REGIONS_MAX];
        for (sizes, region) in block_sizes.iter_mut().zip(&self.regions) {
            *sizes = BLOCK_LOG2
                .filter(|log2| region.length().is_multiple_of(1 << log2))
                .fold(0, |sizes, log2| sizes | 1 << log2);
        }
        let total: u64 = self.regions.iter().map(Region::length).sum();
        DcdCapabilities {
            hosts: self.hosts as u8,
            regions: self.regions.len() as u8,
            add_policies: ADD_POLICIES,
            release_policies: RELEASE_POLICIES,
            sanitize_on_release: ((1u16 << self.regions.len()) - 1) as u8,
            total_capacity: total / CAPACITY_UNIT_BYTES,
            block_sizes,
        }
    }

    fn host(&self, host_id: u16) -> Result<u16, ReturnCode> {
        if host_id < self.hosts { Ok(host_id) } else { Err(ReturnCode::INVALID_INPUT) }
    }

    fn region(&self, region_id: u8) -> Result<&Region, ReturnCode> {
        self.regions.get(usize::from(region_id)).ok_or(ReturnCode::INVALID_INPUT)
    }

    fn region_of(&self, range: &Range<u64>) -> Option<&Region> {
        self.regions.iter().find(|region| region.has(range))
    }

    /// Returns whether a range is whole blocks of one region.
    fn is_blocks(&self, range: &Range<u64>) -> bool {
        self.region_of(range).is_some_and(|region| region.is_blocks(range))
    }

    fn host_regions(&self, context: &Context, get: &GetHostDcRegions) -> Result<HostDcRegions, ReturnCode> {
        let host_id = self.host(get.host_id)?;
        self.region(get.first_region)?;
        let is_padded = context.connection.dialect.host_regions_are_padded;
        let fit = if is_padded { REGIONS_MAX } else { context.entries(REGIONS_BYTES, REGION_BYTES) };
        let reported = |region: &Region| DcRegion {
            base: region.range.start,
            decode_length: region.length() / CAPACITY_UNIT_BYTES,
            length: region.length(),
            block_bytes: region.block_bytes,
            flags: if region.is_sharable { SHARABLE } else { 0 },
            sanitize_on_release: region.is_sanitized.into(),
        };
        let listed = self.regions.iter().skip(get.first_region.into()).take(get.count.into()).take(fit);
        Ok(HostDcRegions {
            host_id,
            region_count: self.regions.len() as u8,
            regions: listed.map(reported).collect(),
            room: [self.extents_max, self.extents_free(), self.tags_max, self.tags_free()],
        })
    }

    fn extents_free(&self) -> u32 {
        self.extents_max.saturating_sub(self.extents.len() as u32)
    }

    fn tags(&self) -> BTreeSet<Tag> {
        self.extents.iter().map(|held| held.tag).filter(|tag| *tag != NO_TAG).collect()
    }

    fn tags_free(&self) -> u32 {
        self.tags_max.saturating_sub(self.tags().len() as u32)
    }

    fn set_region(&mut self, context: &mut Context, component: &mut Component, set: &SetDcRegion) -> Answer {
        let region = self.region(set.region_id)?;
        let (block, length) = (set.block_bytes, region.length());
        let is_block =
            block.is_power_of_two() && BLOCK_LOG2.contains(&block.trailing_zeros()) && length.is_multiple_of(block);
        if !is_block || set.sanitize_on_release > 1 {
            return Err(ReturnCode::INVALID_INPUT);
        }
        if self.extents.touching(&region.range).next().is_some() {
            return Err(ReturnCode::UNSUPPORTED);
        }
        let region = &mut self.regions[usize::from(set.region_id)];
        region.block_bytes = block;
        region.is_sanitized = set.sanitize_on_release == 1;
        let kind = CapacityEventKind::RegionConfigurationUpdated;
        self.record(context, component, CapacityEvent { kind, region_id: set.region_id, ..CapacityEvent::default() });
        Ok(Response::SetDcRegion(Empty {}))
    }

    fn record(&self, context: &mut Context, component: &mut Component, event: CapacityEvent) {
        let (extents_free, tags_free) = (self.extents_free(), self.tags_free());
        let event = CapacityEvent { validity: 1, extents_free, tags_free, ..event };
        component.record(context, EventLog::DynamicCapacity, &EventData::Capacity(event), event.host_id);
    }

    fn extent_lists(&self, context: &Context, get: &GetDcExtentLists) -> Result<DcExtentLists, ReturnCode> {
        let host_id = self.host(get.host_id)?;
        let list: Vec<Extent> =
            self.extents.iter().filter(|held| held.accepted.has(host_id)).map(Held::reported).collect();
        let first = get.first_extent as usize;
        if first > list.len() {
            return Err(ReturnCode::INVALID_INPUT);
        }
        let count = (get.count as usize).min(context.entries(LIST_BYTES, EXTENT_BYTES));
        Ok(DcExtentLists {
            host_id,
            first_extent: get.first_extent,
            total: list.len() as u32,
            generation: self.generations[usize::from(host_id)],
            extents: list.into_iter().skip(first).take(count).collect(),
        })
    }

    /// Returns the tag, if hosts share its extents or can share them.
    fn sharable(&self, tag: Tag) -> Result<Tag, ReturnCode> {
        let is_shared = self.extents.iter().any(|held| held.tag == tag && held.sequence > 0);
        if is_shared { Ok(tag) } else { Err(ReturnCode::INVALID_INPUT) }
    }

    fn add_reference(&mut self, tag: Tag) -> Answer {
        if self.references.insert(self.sharable(tag)?) {
            self.tags_generation = self.tags_generation.wrapping_add(1);
        }
        Ok(Response::DcAddReference(Empty {}))
    }

    fn remove_reference(&mut self, context: &mut Context, tag: Tag) -> Answer {
        let tag = self.sharable(tag)?;
        if self.references.remove(&tag) {
            // No host's list changes, but capacity that no host has is freed. The first host's generation is
            // incremented needlessly.
            self.settle(context, 0);
        }
        Ok(Response::DcRemoveReference(Empty {}))
    }

    fn list_tags(&self, context: &Context, list: &DcListTags) -> DcTags {
        let tags = self.tags();
        let reported = |tag: &Tag| {
            let of_tag = self.extents.iter().filter(|held| held.tag == *tag);
            let bits =
                |hosts: fn(&Held) -> Hosts| Hosts(of_tag.clone().fold(0, |bits, held| bits | hosts(held).0)).bitmap();
            let flags = if self.references.contains(tag) { MANAGER_REFERS } else { 0 };
            DcTag { tag: *tag, flags, hosts: bits(|held| held.accepted), hosts_pending: bits(|held| held.pending) }
        };
        let count = (list.count as usize).min(context.entries(TAGS_BYTES, TAG_BYTES));
        DcTags {
            generation: self.tags_generation,
            total: tags.len() as u32,
            validity: BITMAPS_VALID,
            tags: tags.iter().skip(list.first as usize).take(count).map(reported).collect(),
        }
    }

    /// Returns the memory at these addresses of the device, and the offset in it. The host must have all of them.
    pub fn memory_of(&mut self, host_id: u16, range: &Range<u64>) -> Result<(&mut Memory, u64), HostFailure> {
        let has = !range.is_empty() && self.extents.covers(range, |held| held.accepted.has(host_id));
        let base = self.regions[0].range.start;
        if has { Ok((&mut self.memory, range.start - base)) } else { Err(HostFailure::NotHeld) }
    }

    /// Returns the first of the device's addresses that are dynamic capacity.
    pub fn first_address(&self) -> u64 {
        self.regions[0].range.start
    }
}
