// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes sure that no block of dynamic capacity that is added to a host holds another one's bytes.
//!
//! Blocks are known to be wiped if this manager has wiped them all and has told the region to wipe whatever is released
//! since, for any reason. Nobody can change that setting while a host has a block of the region. So while an extent of
//! a member is there, its free blocks are wiped, whether or not this manager has been restarted since: the manager that
//! added the extent had made sure before. While no host has any, the device's log tells if the setting was changed.
//!
//! To wipe all blocks, they are offered to a host that is not connected, and taken back by force, to be sanitized. That
//! is refused if any of them is not free. Sanitize (4400h) is no way: it is a command to an LD or to the host's side of
//! a device, and devices differ in whether it reaches blocks that no host has. QEMU's does not.

use std::sync::Arc;

use aquifer_fabric::DeviceId;
use aquifer_fmapi::{Extent, InitiateDcAdd, ReturnCode, SetDcRegion, add_policy};
use aquifer_fmapi_client::{Client, Hop};

use crate::capacity::can_release_by_tag;
use crate::config::Wipe;
use crate::events::Said;
use crate::inventory::{CapacityView, DeviceView};
use crate::one_switch::Peer;
use crate::pending::{release_listed, release_pending};
use crate::step_failure::NotDone;
use crate::tag::{BEING_WIPED, is_of_a_member};

impl Peer {
    /// Takes back what was offered in order to wipe it, as far as the last round has seen it: the manager may have been
    /// restarted in between, and a host that is connected now would accept it.
    pub(crate) fn end_all_wiping(&mut self, client: &mut Client) -> Result<(), NotDone> {
        for (name, device) in &Arc::clone(&self.inventory).devices {
            let capacity = device.capacity.as_ref().filter(|_| device.is_reachable);
            let is_left = |capacity: &&CapacityView| capacity.offers.iter().any(|offer| offer.tag == BEING_WIPED);
            let Some(mut capacity) = capacity.filter(is_left).cloned() else { continue };
            let done = self.end_wiping(client, name, &[Hop::Port(device.ports[0])], &mut capacity);
            // If the device refuses, or is still wiping, the next round asks again.
            if let Err(NotDone::Lost(why)) = done {
                return Err(NotDone::Lost(why));
            }
        }
        Ok(())
    }

    /// Reads what hosts have, and takes back what was offered in order to wipe it.
    pub(crate) fn end_wiping(
        &mut self,
        client: &mut Client,
        device: &DeviceId,
        path: &[Hop],
        capacity: &mut CapacityView,
    ) -> Result<(), NotDone> {
        self.read_offers(client, device, path, capacity)?;
        let left: Vec<u16> =
            capacity.offers.iter().filter(|offer| offer.tag == BEING_WIPED).map(|offer| offer.host_id).collect();
        if left.is_empty() {
            return Ok(());
        }
        self.contents.forget_blocks(device);
        let mut refused = Ok(());
        for host_id in left {
            match take_back(client, path, capacity, host_id) {
                // Where the device does not say whose they are, others may have them.
                Err(NotDone::Refused(why)) => refused = NotDone::refused(why),
                done => done?,
            }
        }
        self.unlisted.forget(device, BEING_WIPED);
        self.read_offers(client, device, path, capacity)?;
        if capacity.offers.iter().any(|offer| offer.tag == BEING_WIPED) {
            refused?;
        }
        refuse_while_wiping(device, capacity.offers.iter().any(|offer| offer.tag == BEING_WIPED))
    }

    /// Makes sure that all free blocks of a device are wiped, and stay so. `capacity` is what hosts have now.
    pub(crate) fn wipe_blocks(
        &mut self,
        client: &mut Client,
        device: &DeviceId,
        view: &DeviceView,
        capacity: &CapacityView,
    ) -> Result<(), NotDone> {
        let path = [Hop::Port(view.ports[0])];
        if self.config.wipe == Wipe::OnUnbind {
            return self.prefer_sanitizing(client, &path, capacity);
        }
        // Older records must not raise doubt after they were wiped.
        self.read_events(client)?;
        let has_log = self.read_log_of(client, device, view)?;
        if !has_log {
            // The setting of the region may have been changed and changed back.
            self.contents.forget_blocks(device);
        }
        if self.are_blocks_wiped(client, device, &path, capacity)? {
            return Ok(());
        }
        if !capacity.offers.is_empty() {
            let what = "blocks that may hold another host's bytes, and they cannot be wiped while hosts have others";
            return NotDone::refused(format!("device {device} has {what}; release all its capacity"));
        }
        self.sanitize_what_is_released(client, device, &path, capacity)?;
        // Its record is not news.
        self.read_log_of(client, device, view)?;
        let host_id = self.free_host(client, device, view, capacity)?;
        self.offer_to_nobody(client, device, &path, capacity, host_id)?;
        self.contents.blocks_are_wiped(device);
        Ok(())
    }

    /// Checks once more right before blocks are added, since connecting the host took time.
    pub(crate) fn check_blocks(
        &mut self,
        client: &mut Client,
        device: &DeviceId,
        view: &DeviceView,
        capacity: &CapacityView,
    ) -> Result<(), NotDone> {
        if self.config.wipe == Wipe::OnUnbind {
            return Ok(());
        }
        self.read_log_of(client, device, view)?;
        match self.are_blocks_wiped(client, device, &[Hop::Port(view.ports[0])], capacity)? {
            true => Ok(()),
            false => NotDone::refused(format!(
                "another manager has changed the dynamic capacity of device {device}; it is wiped again first"
            )),
        }
    }

    /// Returns whether all free blocks are wiped, as far as is known right now.
    fn are_blocks_wiped(
        &mut self,
        client: &mut Client,
        device: &DeviceId,
        path: &[Hop],
        capacity: &CapacityView,
    ) -> Result<bool, NotDone> {
        let regions = client.dc_regions(path, 0)?.regions;
        let region = regions.get(usize::from(capacity.region_id));
        if region.is_none_or(|region| region.sanitize_on_release & 1 == 0) {
            self.contents.forget_blocks(device);
        } else if capacity.offers.iter().any(|offer| offer.bytes > 0 && is_of_a_member(offer.tag)) {
            self.contents.blocks_are_wiped(device);
        }
        Ok(self.contents.has_wiped_blocks(device))
    }

    /// Tells the region to wipe whatever is released.
    fn sanitize_what_is_released(
        &mut self,
        client: &mut Client,
        device: &DeviceId,
        path: &[Hop],
        capacity: &CapacityView,
    ) -> Result<(), NotDone> {
        self.is_doubtful = true;
        match client.set_dc_region(path, &sanitizing(capacity)) {
            Ok(()) => Ok(()),
            Err(failure) if is_not_possible(failure.return_code()) => NotDone::refused(format!(
                "device {device} cannot be told to wipe the capacity that is released: {failure}; set \
                 wipe = \"on-unbind\" if its vendor says that it does so by itself"
            )),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Tells the region of a device that wipes by itself to wipe whatever is released, if it can be told.
    fn prefer_sanitizing(&mut self, client: &mut Client, path: &[Hop], capacity: &CapacityView) -> Result<(), NotDone> {
        if capacity.is_sanitized || !capacity.offers.is_empty() {
            return Ok(());
        }
        match client.set_dc_region(path, &sanitizing(capacity)) {
            Ok(()) => self.is_doubtful = true,
            Err(failure) if is_not_possible(failure.return_code()) => {}
            Err(failure) => return Err(failure.into()),
        }
        Ok(())
    }

    /// Wipes all blocks of the region: offers them to a host that is not connected, and takes them back.
    fn offer_to_nobody(
        &mut self,
        client: &mut Client,
        device: &DeviceId,
        path: &[Hop],
        capacity: &CapacityView,
        host_id: u16,
    ) -> Result<(), NotDone> {
        let all = all_blocks(capacity);
        let (policy, extents) = match capacity.policies.0 & 1 << add_policy::FREE != 0 {
            true => (add_policy::FREE, Vec::new()),
            false => (add_policy::PRESCRIPTIVE, vec![all]),
        };
        let region = capacity.region_id;
        let add = InitiateDcAdd { host_id, policy, region, length: all.length, tag: BEING_WIPED, extents };
        if !capacity.lists_pending {
            // Whatever the outcome of the commands is, the blocks may stay offered.
            self.unlisted.note(device, host_id, BEING_WIPED, self.clock.now());
        }
        let added = client.initiate_dc_add(path, &add).map_err(NotDone::from);
        if let Err(NotDone::Busy(_) | NotDone::Refused(_)) = added {
            self.unlisted.forget(device, BEING_WIPED);
        }
        added?;
        take_back(client, path, capacity, host_id)?;
        self.unlisted.forget(device, BEING_WIPED);
        let mut capacity = capacity.clone();
        self.read_offers(client, device, path, &mut capacity)?;
        refuse_while_wiping(device, !capacity.offers.is_empty())
    }

    /// Reads the log of a device. Returns whether it has one.
    fn read_log_of(&mut self, client: &mut Client, device: &DeviceId, view: &DeviceView) -> Result<bool, NotDone> {
        let mut said = Said::default();
        let read = self.events.read_device(client, &*self.clock, &self.config.name, device, view, &mut said);
        self.take_in(said);
        Ok(read?)
    }
}

/// Takes back by force, and to be wiped, what a host was offered.
fn take_back(client: &mut Client, path: &[Hop], capacity: &CapacityView, host_id: u16) -> Result<(), NotDone> {
    match can_release_by_tag(capacity) {
        true => release_pending(client, path, capacity, host_id, BEING_WIPED),
        false => release_listed(client, path, host_id, BEING_WIPED, vec![all_blocks(capacity)]),
    }
}

fn refuse_while_wiping(device: &DeviceId, is_wiping: bool) -> Result<(), NotDone> {
    match is_wiping {
        true => NotDone::refused(format!("device {device} is still wiping blocks; capacity is added when it is done")),
        false => Ok(()),
    }
}

/// Returns the whole of the region.
fn all_blocks(capacity: &CapacityView) -> Extent {
    let block = capacity.block_bytes.max(1);
    Extent { start: capacity.start, length: capacity.bytes / block * block, tag: BEING_WIPED, shared_sequence: 0 }
}

fn sanitizing(capacity: &CapacityView) -> SetDcRegion {
    SetDcRegion { region_id: capacity.region_id, block_bytes: capacity.block_bytes, sanitize_on_release: 1 }
}

/// Returns whether a device refuses a region's setting for good.
fn is_not_possible(code: Option<ReturnCode>) -> bool {
    matches!(code, Some(ReturnCode::UNSUPPORTED | ReturnCode::INVALID_INPUT))
}
