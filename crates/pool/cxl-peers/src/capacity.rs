// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Carries out the steps for dynamic capacity: adds it to a host, tagged with volume and member, and releases it by its
//! tag, to be sanitized.
//!
//! Next on the path: `wiped_blocks.rs` makes sure that no block that is added holds another host's bytes,
//! `capacity_hosts.rs` that the host reaches the device, and `pending.rs` that what it does not answer is taken back.

use std::sync::Arc;

use aquifer_fabric::{Bytes, DeviceId, HostId, MemberId, VolumeId};
use aquifer_fmapi::{InitiateDcAdd, InitiateDcRelease, ReturnCode, add_policy};
use aquifer_fmapi_client::{Client, Hop};

use crate::choice::Choice;
use crate::inventory::{CapacityView, DeviceView};
use crate::one_switch::Peer;
use crate::report::{host_of, vppb_of_host};
use crate::step_failure::NotDone;
use crate::tag::tag_of;

/// Flags of a release: the extents that are listed, by force, and sanitized. The policy by tag is zero.
pub(crate) const LISTED: u8 = 1;
pub(crate) const FORCED: u8 = 1 << 4;
pub(crate) const SANITIZED: u8 = 1 << 5;
/// The policies of a release, as bits of the device's capabilities.
const CAN_RELEASE_BY_TAG: u16 = 1;
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
            self.take_back_unknown(client, &path, &capacity, tag)?;
            self.wipe_blocks(client, device, &view, &capacity)?;
        }
        let host_id = self.connect_host(client, device, &view, &capacity, host)?;
        self.read_offers(client, device, &path, &mut capacity)?;
        if is_added(&capacity) {
            return Ok(());
        }
        self.check_blocks(client, device, &view, &capacity)?;
        let (policy, extents) = if prefers_free(&capacity) {
            (add_policy::FREE, Vec::new())
        } else {
            let mut taken = Vec::new();
            for host_id in 0..capacity.hosts.min(HOSTS_MAX) {
                taken.extend(client.dc_extents(&path, host_id)?.extents);
            }
            for offer in capacity.offers.iter().filter(|offer| offer.is_pending) {
                taken.extend(self.choices.extents(device, offer.host_id, offer.tag).into_iter().flatten());
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
        if !capacity.lists_pending {
            if self.unlisted.is_full() {
                let what = "too many hosts have not answered what devices of its kind have offered";
                return NotDone::refused(format!("device {device} offers no more: {what}; wait until they have"));
            }
            // Whatever the outcome of the command is, the host may be offered it.
            self.unlisted.note(device, host_id, tag, self.clock.now());
        }
        let add = InitiateDcAdd { host_id, policy, region: capacity.region_id, length: bytes.0, tag, extents };
        let Err(failure) = client.initiate_dc_add(&path, &add) else { return Ok(()) };
        let code = failure.return_code();
        let refused = match NotDone::from(failure) {
            NotDone::Refused(_) if code == Some(ReturnCode::RESOURCES_EXHAUSTED) => {
                NotDone::Refused(format!("device {device} does not have {bytes} free; release some of its capacity"))
            }
            not_done => not_done,
        };
        if !matches!(refused, NotDone::Lost(_)) {
            self.unlisted.forget(device, tag);
        }
        Err(refused)
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
        self.read_offers(client, device, &path, &mut capacity)?;
        let state = Arc::clone(&self.inventory);
        let of_host = |host_id: u16| {
            vppb_of_host(&state, &view, host_id).and_then(|(vcs_id, _)| host_of(&self.config, &state, vcs_id))
                == Some(host)
        };
        let ours: Vec<_> =
            capacity.offers.iter().filter(|offer| offer.tag == tag && of_host(offer.host_id)).copied().collect();
        for offer in ours {
            if offer.is_pending {
                self.take_back_offer(client, &path, &capacity, (device, offer.host_id, tag))?;
                self.unlisted.forget(device, tag);
                continue;
            }
            if self.asked.is_recent(device, offer.host_id, tag, self.clock.now()) {
                continue;
            }
            let by_tag = can_release_by_tag(&capacity);
            let extents = match by_tag {
                true => Vec::new(),
                false => client.dc_extents(&path, offer.host_id)?.extents,
            };
            let extents = extents.into_iter().filter(|extent| extent.tag == tag).collect();
            let flags = SANITIZED | if by_tag { 0 } else { LISTED };
            let release = InitiateDcRelease { host_id: offer.host_id, flags, length: offer.bytes, tag, extents };
            client.initiate_dc_release(&path, &release)?;
            self.asked.note(device, offer.host_id, tag, self.clock.now());
        }
        self.choices.forget(device, tag);
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

/// Returns whether a device can release capacity by its tag alone.
pub(crate) fn can_release_by_tag(capacity: &CapacityView) -> bool {
    capacity.policies.1 & CAN_RELEASE_BY_TAG != 0
}

/// Returns whether a device is to choose the blocks that are added. Where an offer is neither listed nor taken back by
/// its tag, the blocks are prescribed: the device refuses to offer them twice, and they can be taken back.
fn prefers_free(capacity: &CapacityView) -> bool {
    let can = |policy: u8| capacity.policies.0 & 1 << policy != 0;
    can(add_policy::FREE) && (capacity.lists_pending || can_release_by_tag(capacity) || !can(add_policy::PRESCRIPTIVE))
}
