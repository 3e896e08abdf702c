// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Carries out the steps for dynamic capacity: adds it to a host, tagged with volume and member, and releases it by its
//! tag, to be sanitized.
//!
//! Next on the path: `wiped_blocks.rs` makes sure that no block that is added holds another host's bytes, and
//! `capacity_hosts.rs` that the host reaches the device.

use std::sync::Arc;

use aquifer_fabric::{Bytes, DeviceId, HostId, MemberId, VolumeId};
use aquifer_fmapi::{InitiateDcAdd, InitiateDcRelease, ReturnCode, add_policy};
use aquifer_fmapi_client::{Client, Hop};

use crate::choice::Choice;
use crate::discover::read_offers;
use crate::inventory::{CapacityView, DeviceView};
use crate::one_switch::Peer;
use crate::report::{host_of, vppb_of_host};
use crate::step_failure::NotDone;
use crate::tag::tag_of;

/// Flags of a release: by force, and sanitized. The policy by tag is zero.
pub(crate) const FORCED: u8 = 1 << 4;
pub(crate) const SANITIZED: u8 = 1 << 5;
/// The policies of a release, as bits of the device's capabilities.
pub(crate) const CAN_RELEASE_BY_TAG: u16 = 1;
/// Commands that release what a host has not answered, whose length no list gives: the length is halved until it fits,
/// and what is left follows.
const RELEASES_MAX: usize = 128;
/// Maximum number of hosts of one device.
pub(crate) const HOSTS_MAX: u16 = 256;

impl Peer {
    pub(crate) fn add_capacity(
        &mut self,
        client: &mut Client,
        device: &DeviceId,
        host: &HostId,
        (volume, member): (VolumeId, MemberId),
        bytes: Bytes,
    ) -> Result<(), NotDone> {
        let (view, mut capacity) = self.dcd(client, device)?;
        let tag = tag_of(volume, member);
        let path = [Hop::Port(view.ports[0])];
        // Carried out before, and not answered or reported yet.
        let is_added = |capacity: &CapacityView| capacity.offers.iter().any(|offer| offer.tag == tag);
        self.end_wiping(client, device, &path, &mut capacity)?;
        if !is_added(&capacity) {
            self.wipe_blocks(client, device, &view, &capacity)?;
        }
        let host_id = self.connect_host(client, device, &view, &capacity, host)?;
        capacity.offers = read_offers(client, &path, &capacity)?;
        if is_added(&capacity) {
            return Ok(());
        }
        self.check_blocks(client, device, &view, &capacity)?;
        let (policy, extents) = if capacity.policies.0 & 1 << add_policy::FREE != 0 {
            (add_policy::FREE, Vec::new())
        } else {
            let mut taken = Vec::new();
            for host_id in 0..capacity.hosts.min(HOSTS_MAX) {
                taken.extend(client.dc_extents(&path, host_id)?.extents);
            }
            let region = (capacity.start, capacity.start.saturating_add(capacity.bytes));
            match self.choices.choose((device, host_id, tag), bytes.0, region, &mut taken) {
                // Since the offers were read.
                Choice::Added => return Ok(()),
                Choice::Offer(extents) => (add_policy::PRESCRIPTIVE, extents),
                Choice::Missing(missing) => {
                    return NotDone::refused(format!("{} of capacity are not free; release some", Bytes(missing)));
                }
            }
        };
        let add = InitiateDcAdd { host_id, policy, region: capacity.region_id, length: bytes.0, tag, extents };
        match client.initiate_dc_add(&path, &add) {
            Ok(()) => Ok(()),
            Err(failure) if failure.return_code() == Some(ReturnCode::RESOURCES_EXHAUSTED) => {
                NotDone::refused(format!("device {device} does not have {bytes} free; release some of its capacity"))
            }
            Err(failure) => Err(failure.into()),
        }
    }

    pub(crate) fn release_capacity(
        &mut self,
        client: &mut Client,
        device: &DeviceId,
        host: &HostId,
        (volume, member): (VolumeId, MemberId),
    ) -> Result<(), NotDone> {
        let (view, mut capacity) = self.dcd(client, device)?;
        let (tag, path) = (tag_of(volume, member), [Hop::Port(view.ports[0])]);
        self.choices.forget(device, tag);
        capacity.offers = read_offers(client, &path, &capacity)?;
        let state = Arc::clone(&self.inventory);
        let of_host = |host_id: u16| {
            vppb_of_host(&state, &view, host_id).and_then(|(vcs_id, _)| host_of(&self.config, &state, vcs_id))
                == Some(host)
        };
        let ours: Vec<_> =
            capacity.offers.iter().filter(|offer| offer.tag == tag && of_host(offer.host_id)).copied().collect();
        for offer in ours {
            if offer.is_pending {
                release_pending(client, &path, &capacity, offer.host_id, tag)?;
                continue;
            }
            if self.asked.is_recent(device, offer.host_id, tag, self.clock.now()) {
                continue;
            }
            let by_tag = capacity.policies.1 & CAN_RELEASE_BY_TAG != 0;
            let extents = match by_tag {
                true => Vec::new(),
                false => client.dc_extents(&path, offer.host_id)?.extents,
            };
            let extents = extents.into_iter().filter(|extent| extent.tag == tag).collect();
            let flags = SANITIZED | u8::from(!by_tag);
            let release = InitiateDcRelease { host_id: offer.host_id, flags, length: offer.bytes, tag, extents };
            client.initiate_dc_release(&path, &release)?;
            self.asked.note(device, offer.host_id, tag, self.clock.now());
        }
        Ok(())
    }

    /// Returns a device with dynamic capacity that can be reached, with its state right now.
    fn dcd(&mut self, client: &mut Client, device: &DeviceId) -> Result<(DeviceView, CapacityView), NotDone> {
        self.read_state(client)?;
        let view = self.present(device)?;
        match view.capacity.clone() {
            Some(capacity) => Ok((view, capacity)),
            None => NotDone::refused(format!("device {device} has no dynamic capacity; use its LDs")),
        }
    }
}

/// Takes back all with a tag, including what its host has not answered.
pub(crate) fn release_pending(
    client: &mut Client,
    path: &[Hop],
    capacity: &CapacityView,
    host_id: u16,
    tag: [u8; 16],
) -> Result<(), NotDone> {
    let block = capacity.block_bytes.max(1);
    let mut blocks = capacity.bytes / block;
    for _ in 0..RELEASES_MAX {
        let release =
            InitiateDcRelease { host_id, flags: FORCED | SANITIZED, length: blocks * block, tag, extents: Vec::new() };
        match client.initiate_dc_release(path, &release) {
            Ok(()) => {}
            Err(failure) => match failure.return_code() {
                Some(ReturnCode::RESOURCES_EXHAUSTED) if blocks > 1 => blocks /= 2,
                // Nothing with this tag is left.
                Some(ReturnCode::INVALID_INPUT) => return Ok(()),
                _ => return Err(failure.into()),
            },
        }
    }
    Err(NotDone::Lost("the capacity of a tag is released in too many pieces; the next round continues".into()))
}
