// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Dynamic-capacity devices (56h): regions, extents, and giving them to hosts. CXL 3.1, section 7.6.7.6.

use crate::codec::{Payload, Reader, Writer, payload};
use crate::failure::DecodeFailure;

/// Maximum number of regions of a device.
pub const REGIONS_MAX: usize = 8;
/// The unit of some of the reported sizes.
pub const CAPACITY_UNIT_BYTES: u64 = 256 << 20;

payload! {
    /// Get DCD Info (5600h), request.
    pub struct GetDcd {}
}
payload! {
    /// Get DCD Info (5600h), response.
    pub struct DcdCapabilities {
        /// The number of hosts.
        pub hosts: u8;
        /// Maximum number of regions for each host.
        pub regions: u8, reserved 2;
        /// A bit for each way of choosing extents to add.
        pub add_policies: u16, reserved 2;
        /// A bit for each way of choosing extents to release.
        pub release_policies: u16;
        /// A bit for each way of sanitising what is released.
        pub sanitize_on_release: u8, reserved 1;
        /// Capacity in units of [`CAPACITY_UNIT_BYTES`].
        pub total_capacity: u64;
        /// For each region, a bit for each block size that it can have.
        pub block_sizes: [u64; 8];
    }
}
payload! {
    /// Get Host DC Region Configuration (5601h), request.
    pub struct GetHostDcRegions {
        /// The number of the host.
        pub host_id: u16;
        /// The number of regions.
        pub count: u8;
        /// The first region to list.
        pub first_region: u8;
    }
}
payload! {
    /// One region of a device, 40 bytes.
    pub struct DcRegion {
        /// Its first address of the device.
        pub base: u64;
        /// The number of its addresses, in units of [`CAPACITY_UNIT_BYTES`].
        pub decode_length: u64;
        /// Its length in bytes.
        pub length: u64;
        /// The size of a block, in bytes.
        pub block_bytes: u64;
        /// Bits that say what it supports.
        pub flags: u8, reserved 3;
        /// Whether what is released is sanitised.
        pub sanitize_on_release: u8, reserved 3;
    }
}

/// Get Host DC Region Configuration (5601h), response: the regions that were asked for. One peer reads eight regions,
/// whatever their count says, 340 bytes in all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostDcRegions {
    /// The number of the host.
    pub host_id: u16,
    /// How many regions the device has in total.
    pub region_count: u8,
    /// Those that were asked for, at most [`REGIONS_MAX`].
    pub regions: Vec<DcRegion>,
    /// Extents that the device can track, how many of them are free, tags that it can track, how many of them are free.
    pub room: [u32; 4],
}

impl Payload for HostDcRegions {
    fn write(&self, out: &mut Writer<'_>) {
        assert!(self.regions.len() <= REGIONS_MAX, "a device has eight regions at most");
        out.put(&self.host_id);
        out.put(&self.region_count);
        out.count_u8(&self.regions);
        out.put_list(&self.regions);
        if out.dialect.host_regions_are_padded {
            out.reserved((REGIONS_MAX - self.regions.len()) * DcRegion::BYTES);
        }
        out.put(&self.room);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let (host_id, [region_count, listed]): (_, [u8; 2]) = (input.read()?, input.read()?);
        if usize::from(listed) > REGIONS_MAX {
            return input.refuse("the number of regions", listed.into());
        }
        let regions = input.list(listed.into())?;
        // The length of the rest shows whether the peer pads the list.
        let padding = (REGIONS_MAX - usize::from(listed)) * DcRegion::BYTES;
        if input.left() >= padding + ROOM_BYTES {
            input.take(padding)?;
        }
        Ok(Self { host_id, region_count, regions, room: input.read()? })
    }
}

impl DcRegion {
    /// The length of one region.
    const BYTES: usize = 40;
}

/// Bytes of [`HostDcRegions::room`].
const ROOM_BYTES: usize = 16;

payload! {
    /// Set DC Region Configuration (5602h), request.
    pub struct SetDcRegion {
        /// The number of the region.
        pub region_id: u8, reserved 3;
        /// The new size of a block, in bytes.
        pub block_bytes: u64;
        /// Whether what is released is sanitised.
        pub sanitize_on_release: u8, reserved 3;
    }
}
payload! {
    /// Get DC Region Extent Lists (5603h), request.
    pub struct GetDcExtentLists {
        /// The number of the host.
        pub host_id: u16, reserved 2;
        /// The number of extents.
        pub count: u32;
        /// The first extent to list.
        pub first_extent: u32;
    }
}
payload! {
    /// One extent of capacity, 40 bytes.
    pub struct Extent {
        /// Its first address of the device.
        pub start: u64;
        /// Its length in bytes.
        pub length: u64;
        /// Its tag; zeros if it has none.
        pub tag: [u8; 16];
        /// Its position among the extents of a shared tag, from 1 on; 0 if it is not shared.
        pub shared_sequence: u16, reserved 6;
    }
}

/// Get DC Region Extent Lists (5603h), response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DcExtentLists {
    /// The number of the host.
    pub host_id: u16,
    /// The first extent that is listed.
    pub first_extent: u32,
    /// How many extents there are in total.
    pub total: u32,
    /// Changes whenever the list does.
    pub generation: u32,
    /// The extents that are listed.
    pub extents: Vec<Extent>,
}

impl Payload for DcExtentLists {
    fn write(&self, out: &mut Writer<'_>) {
        out.put(&self.host_id);
        out.reserved(2);
        let listed = u32::try_from(self.extents.len()).expect("no more extents than 32 bits count");
        out.put_list(&[self.first_extent, listed, self.total, self.generation]);
        out.reserved(4);
        out.put_list(&self.extents);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let host_id = input.read()?;
        input.take(2)?;
        let [first_extent, listed, total, generation]: [u32; 4] = input.read()?;
        input.take(4)?;
        Ok(Self { host_id, first_extent, total, generation, extents: input.list(listed as usize)? })
    }
}

/// How a device chooses the extents that it adds.
pub mod add_policy {
    /// Any extents that are free.
    pub const FREE: u8 = 0;
    /// One extent that is contiguous.
    pub const CONTIGUOUS: u8 = 1;
    /// The extents that the request lists.
    pub const PRESCRIPTIVE: u8 = 2;
    /// The extents that have the tag already, for another host.
    pub const ENABLE_SHARED_ACCESS: u8 = 3;
}

/// Initiate Dynamic Capacity Add (5604h), request. The host answers it, later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitiateDcAdd {
    /// The number of the host.
    pub host_id: u16,
    /// One of [`add_policy`].
    pub policy: u8,
    /// The region to take it from.
    pub region: u8,
    /// How many bytes, unless the extents are listed.
    pub length: u64,
    /// The tag that the capacity gets.
    pub tag: [u8; 16],
    /// The extents, if they are listed.
    pub extents: Vec<Extent>,
}

/// Initiate Dynamic Capacity Release (5605h), request. The host answers it, later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitiateDcRelease {
    /// The number of the host.
    pub host_id: u16,
    /// Bits 3:0 policy (0 by tag, 1 those that are listed), bit 4 by force, bit 5 sanitise.
    pub flags: u8,
    /// How many bytes, unless the extents are listed.
    pub length: u64,
    /// The tag of the capacity.
    pub tag: [u8; 16],
    /// The extents, if they are listed.
    pub extents: Vec<Extent>,
}

impl Payload for InitiateDcAdd {
    fn write(&self, out: &mut Writer<'_>) {
        out.put(&self.host_id);
        out.put_list(&[self.policy, self.region]);
        write_extents(out, self.length, &self.tag, &self.extents);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let (host_id, [policy, region]) = (input.read()?, input.read()?);
        let (length, tag, extents) = read_extents(input)?;
        Ok(Self { host_id, policy, region, length, tag, extents })
    }
}

impl Payload for InitiateDcRelease {
    fn write(&self, out: &mut Writer<'_>) {
        out.put(&self.host_id);
        out.put(&self.flags);
        out.reserved(1);
        write_extents(out, self.length, &self.tag, &self.extents);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let (host_id, [flags, _]) = (input.read()?, input.read()?);
        let (length, tag, extents) = read_extents(input)?;
        Ok(Self { host_id, flags, length, tag, extents })
    }
}

fn write_extents(out: &mut Writer<'_>, length: u64, tag: &[u8; 16], extents: &[Extent]) {
    out.put(&length);
    out.put(tag);
    out.put(&u32::try_from(extents.len()).expect("no more extents than 32 bits count"));
    out.put_list(extents);
}

fn read_extents(input: &mut Reader<'_>) -> Result<(u64, [u8; 16], Vec<Extent>), DecodeFailure> {
    let (length, tag) = (input.read()?, input.read()?);
    // By the specification, the list and its count are present only with a prescriptive policy.
    let count: u32 = if input.left() > 0 { input.read()? } else { 0 };
    Ok((length, tag, input.list(count as usize)?))
}

payload! {
    /// Dynamic Capacity Add Reference (5606h), request: capacity with the tag is not sanitised while the manager refers
    /// to it.
    pub struct DcAddReference {
        /// The tag to which a reference is added.
        pub tag: [u8; 16];
    }
}
payload! {
    /// Dynamic Capacity Remove Reference (5607h), request.
    pub struct DcRemoveReference {
        /// The tag whose reference is removed.
        pub tag: [u8; 16];
    }
}
payload! {
    /// Dynamic Capacity List Tags (5608h), request.
    pub struct DcListTags {
        /// The first tag to list.
        pub first: u32;
        /// Maximum number of tags to list.
        pub count: u32;
    }
}
payload! {
    /// One tag and who has it, 84 bytes.
    pub struct DcTag {
        /// The bytes of the tag.
        pub tag: [u8; 16];
        /// Bit 0: the fabric manager refers to it.
        pub flags: u8, reserved 3;
        /// A bit for each host that has it.
        pub hosts: [u8; 32];
        /// A bit for each host that has not answered yet.
        pub hosts_pending: [u8; 32];
    }
}

/// Dynamic Capacity List Tags (5608h), response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DcTags {
    /// Changes whenever the list does.
    pub generation: u32,
    /// How many tags there are in total.
    pub total: u32,
    /// Which of the bit maps are valid; see [`DcTags::HOSTS_VALID`] and [`DcTags::HOSTS_PENDING_VALID`].
    pub validity: u8,
    /// The tags that are listed.
    pub tags: Vec<DcTag>,
}

impl DcTags {
    /// Set if [`DcTag::hosts`] is valid.
    pub const HOSTS_VALID: u8 = 1 << 0;
    /// Set if [`DcTag::hosts_pending`] is valid.
    pub const HOSTS_PENDING_VALID: u8 = 1 << 1;
}

impl Payload for DcTags {
    fn write(&self, out: &mut Writer<'_>) {
        let listed = u32::try_from(self.tags.len()).expect("no more tags than 32 bits count");
        out.put_list(&[self.generation, self.total, listed]);
        out.put(&self.validity);
        out.reserved(3);
        out.put_list(&self.tags);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let [generation, total, listed]: [u32; 3] = input.read()?;
        let validity = input.read()?;
        input.take(3)?;
        Ok(Self { generation, total, validity, tags: input.list(listed as usize)? })
    }
}
