// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Typed calls to the devices behind a switch: logical devices and their quality of service (54h), dynamic capacity
//! (56h). Some peers answer 54h themselves, without a tunnel: then the path is empty.

use std::collections::BTreeSet;

use aquifer_fmapi::*;

use crate::client::Client;
use crate::extents;
use crate::failure::Failure;
use crate::tunnel::Hop;

/// Bytes of an allocation, of an extent and of a tag.
const ALLOCATION_BYTES: usize = 16;
const EXTENT_BYTES: usize = 40;
const TAG_BYTES: usize = 84;
/// Bytes of a list's own fields.
const LIST_BYTES: usize = 24;
/// How often a list is read again because it has changed meanwhile.
const READS_MAX: u32 = 8;

impl Client {
    /// Sends Get LD Info (5400h).
    pub fn ld_capabilities(&mut self, path: &[Hop]) -> Result<LdCapabilities, Failure> {
        self.call(path, &GetLdCapabilities {})
    }

    /// Sends Get LD Allocations (5401h) of all logical devices.
    pub fn ld_allocations(&mut self, path: &[Hop]) -> Result<LdAllocations, Failure> {
        let count_max = self.entries(ALLOCATION_BYTES).min(u8::MAX.into()) as u8;
        let mut whole = self.call(path, &GetLdAllocations { first_ld_id: 0, count_max })?;
        if whole.first_ld_id != 0 {
            let what = format!("logical devices from {}, not from 0", whole.first_ld_id);
            return Err(self.inconsistent(GetLdAllocations::OPCODE, what));
        }
        for _ in 0..self.limits.pieces {
            let first_ld_id = whole.allocations.len() as u8;
            if usize::from(whole.ld_count) <= whole.allocations.len() {
                return Ok(whole);
            }
            let piece = self.call(path, &GetLdAllocations { first_ld_id, count_max })?;
            let is_next = (piece.first_ld_id, piece.granularity) == (first_ld_id, whole.granularity);
            if !is_next || piece.allocations.is_empty() {
                break;
            }
            whole.allocations.extend(piece.allocations);
        }
        Err(self.inconsistent(GetLdAllocations::OPCODE, "the list of logical devices does not end".into()))
    }

    /// Sends Set LD Allocations (5402h).
    pub fn set_ld_allocations(&mut self, path: &[Hop], set: &SetLdAllocations) -> Result<(), Failure> {
        self.run(path, set)
    }

    /// Sends Get QoS Control (5403h).
    pub fn qos_control(&mut self, path: &[Hop]) -> Result<QosControl, Failure> {
        self.call(path, &GetQosControl {})
    }

    /// Sends Set QoS Control (5404h).
    pub fn set_qos_control(&mut self, path: &[Hop], set: &SetQosControl) -> Result<QosControl, Failure> {
        self.call(path, set)
    }

    /// Sends Get QoS Status (5405h).
    pub fn qos_status(&mut self, path: &[Hop]) -> Result<QosStatus, Failure> {
        self.call(path, &GetQosStatus {})
    }

    /// Sends Get QoS Allocated BW (5406h) of these logical devices.
    pub fn qos_allocated(&mut self, path: &[Hop], first_ld_id: u8, count: u8) -> Result<QosFractions, Failure> {
        self.call(path, &GetQosAllocatedBw { count, first_ld_id })
    }

    /// Sends Get QoS BW Limit (5408h) of these logical devices.
    pub fn qos_limits(&mut self, path: &[Hop], first_ld_id: u8, count: u8) -> Result<QosFractions, Failure> {
        self.call(path, &GetQosBwLimit { count, first_ld_id })
    }

    /// Sends Get DCD Info (5600h).
    pub fn dcd(&mut self, path: &[Hop]) -> Result<DcdCapabilities, Failure> {
        self.call(path, &GetDcd {})
    }

    /// Sends Get Host DC Region Configuration (5601h): all regions.
    pub fn dc_regions(&mut self, path: &[Hop], host_id: u16) -> Result<HostDcRegions, Failure> {
        self.call(path, &GetHostDcRegions { host_id, count: REGIONS_MAX as u8, first_region: 0 })
    }

    /// Sends Set DC Region Configuration (5602h).
    pub fn set_dc_region(&mut self, path: &[Hop], set: &SetDcRegion) -> Result<(), Failure> {
        self.run(path, set)
    }

    /// Sends Get DC Region Extent Lists (5603h): all extents of one generation. They share no byte.
    pub fn dc_extents(&mut self, path: &[Hop], host_id: u16) -> Result<DcExtentLists, Failure> {
        let count = (self.entries(EXTENT_BYTES).saturating_sub(LIST_BYTES / EXTENT_BYTES + 1)).max(1) as u32;
        'list: for _ in 0..READS_MAX {
            let mut whole: Option<DcExtentLists> = None;
            for _ in 0..self.limits.pieces {
                let first_extent = whole.as_ref().map_or(0, |whole| whole.extents.len() as u32);
                let piece = self.call(path, &GetDcExtentLists { host_id, count, first_extent })?;
                if (piece.host_id, piece.first_extent) != (host_id, first_extent) {
                    let (host, first) = (piece.host_id, piece.first_extent);
                    let what = format!("extents of host {host} from {first}, not of {host_id} from {first_extent}");
                    return Err(self.inconsistent(GetDcExtentLists::OPCODE, what));
                }
                let (listed, generation) = (piece.extents.len(), piece.generation);
                let whole = match &mut whole {
                    None => whole.insert(piece),
                    Some(whole) if whole.generation != generation => continue 'list,
                    Some(whole) => {
                        whole.extents.extend(piece.extents);
                        whole
                    }
                };
                let (read, total) = (whole.extents.len(), whole.total as usize);
                if read >= total {
                    let too_many = (read > total).then(|| format!("{read} extents of {total}"));
                    let wrong = too_many.or_else(|| extents::wrong(&whole.extents));
                    return match wrong {
                        Some(what) => Err(self.inconsistent(GetDcExtentLists::OPCODE, what)),
                        None => Ok(whole.clone()),
                    };
                }
                if listed == 0 {
                    continue 'list;
                }
            }
        }
        Err(self.inconsistent(GetDcExtentLists::OPCODE, "the list of extents changes, or does not end".into()))
    }

    /// Sends Initiate Dynamic Capacity Add (5604h): offers capacity to a host, which answers later.
    pub fn initiate_dc_add(&mut self, path: &[Hop], add: &InitiateDcAdd) -> Result<(), Failure> {
        self.run(path, add)
    }

    /// Sends Initiate Dynamic Capacity Release (5605h): asks a host for capacity, or takes it.
    pub fn initiate_dc_release(&mut self, path: &[Hop], release: &InitiateDcRelease) -> Result<(), Failure> {
        self.run(path, release)
    }

    /// Sends Dynamic Capacity List Tags (5608h): all tags of one generation, each listed once. A bit map is valid if it
    /// is valid in every piece of the list.
    pub fn dc_tags(&mut self, path: &[Hop]) -> Result<DcTags, Failure> {
        let count = self.entries(TAG_BYTES) as u32;
        'list: for _ in 0..READS_MAX {
            let mut whole: Option<DcTags> = None;
            for _ in 0..self.limits.pieces {
                let first = whole.as_ref().map_or(0, |whole| whole.tags.len() as u32);
                let piece = self.call(path, &DcListTags { first, count })?;
                let (listed, generation) = (piece.tags.len(), piece.generation);
                let whole = match &mut whole {
                    None => whole.insert(piece),
                    Some(whole) if whole.generation != generation => continue 'list,
                    Some(whole) => {
                        whole.validity &= piece.validity;
                        whole.tags.extend(piece.tags);
                        whole
                    }
                };
                let (read, total) = (whole.tags.len(), whole.total as usize);
                if read >= total {
                    // A peer that repeats a piece would hide the tags of another one.
                    let distinct = whole.tags.iter().map(|tag| tag.tag).collect::<BTreeSet<_>>().len();
                    if read > total || distinct < read {
                        let what = format!("{read} tags of {total}, {distinct} of them distinct");
                        return Err(self.inconsistent(DcListTags::OPCODE, what));
                    }
                    return Ok(whole.clone());
                }
                if listed == 0 {
                    continue 'list;
                }
            }
        }
        Err(self.inconsistent(DcListTags::OPCODE, "the list of tags changes, or does not end".into()))
    }
}
