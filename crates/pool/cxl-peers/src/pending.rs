// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What hosts were offered and have not answered: reads it, and takes it back.
//!
//! `unlisted.rs` keeps the offers of devices that do not list them.

use std::sync::Arc;

use aquifer_fabric::DeviceId;
use aquifer_fmapi::{Extent, InitiateDcRelease, ReturnCode};
use aquifer_fmapi_client::{Client, Failure, Hop};

use crate::capacity::{FORCED, HOSTS_MAX, LISTED, SANITIZED, can_release_by_tag};
use crate::discover;
use crate::inventory::{CapacityView, DeviceView};
use crate::one_switch::Peer;
use crate::step_failure::NotDone;
use crate::tag::{BEING_WIPED, Tag};

/// Commands that release what a host has not answered, whose length no list gives: the length is halved until it fits,
/// and what is left follows.
const RELEASES_MAX: usize = 128;

impl Peer {
    /// Reads what hosts have of a device, and what they were offered.
    pub(crate) fn read_offers(
        &mut self,
        client: &mut Client,
        device: &DeviceId,
        path: &[Hop],
        capacity: &mut CapacityView,
    ) -> Result<(), Failure> {
        discover::read_offers(client, path, capacity)?;
        self.unlisted.complete(device, capacity);
        Ok(())
    }

    /// Takes back what a host was offered with a tag: by the tag where the device can do that, otherwise the extents
    /// that were chosen for the host.
    pub(crate) fn take_back_offer(
        &mut self,
        client: &mut Client,
        path: &[Hop],
        capacity: &CapacityView,
        (device, host_id, tag): (&DeviceId, u16, Tag),
    ) -> Result<(), NotDone> {
        if can_release_by_tag(capacity) {
            return release_pending(client, path, capacity, host_id, tag);
        }
        match self.choices.extents(device, host_id, tag) {
            Some(extents) => release_listed(client, path, host_id, tag, extents.to_vec()),
            None => NotDone::refused(format!(
                "device {device} has offered capacity that its host has not answered, and cannot take it back: it does \
                 not release by tag, and does not list which blocks it has offered; let the host answer, or reset the \
                 device"
            )),
        }
    }

    /// Takes back what any host may have been offered with a tag before this manager was started. Nothing lists it, so
    /// it can only be taken back by its tag; a device that refuses has nothing with it.
    pub(crate) fn take_back_unknown(
        &mut self,
        client: &mut Client,
        path: &[Hop],
        capacity: &CapacityView,
        tag: Tag,
    ) -> Result<(), NotDone> {
        if capacity.lists_pending || !can_release_by_tag(capacity) {
            return Ok(());
        }
        for host_id in 0..capacity.hosts.min(HOSTS_MAX) {
            match release_pending(client, path, capacity, host_id, tag) {
                Ok(()) | Err(NotDone::Refused(_)) => {}
                Err(not_done) => return Err(not_done),
            }
        }
        Ok(())
    }

    /// Takes back blocks that an earlier start of the manager has offered in order to wipe them, where no list shows
    /// them. Once for each device, also if it does not answer, so that it does not hold up every round: what this start
    /// offers, it remembers.
    pub(crate) fn sweep_wiping(&mut self, client: &mut Client) -> Result<(), NotDone> {
        for (device, view) in &Arc::clone(&self.inventory).devices {
            let Some(capacity) = unlisting(view).filter(|_| !self.unlisted.is_swept(device)) else { continue };
            let done = self.take_back_unknown(client, &[Hop::Port(view.ports[0])], capacity, BEING_WIPED);
            if !matches!(done, Err(NotDone::Busy(_))) {
                self.unlisted.note_swept(device);
            }
            if let Err(NotDone::Lost(why)) = done {
                return Err(NotDone::Lost(why));
            }
        }
        Ok(())
    }

    /// Takes back offers that hosts have not answered in time, so that they are made again if they are still due. One
    /// that cannot be taken back counts as pending for as long again: if it were made again, its host might get the
    /// capacity twice.
    pub(crate) fn end_overdue_offers(&mut self, client: &mut Client) -> Result<(), NotDone> {
        let now = self.clock.now();
        for (device, host_id, tag) in self.unlisted.overdue(now) {
            let state = Arc::clone(&self.inventory);
            let Some(view) = state.devices.get(&device) else { continue };
            let Some(capacity) = unlisting(view) else { continue };
            let path = [Hop::Port(view.ports[0])];
            let is_chosen = self.choices.extents(&device, host_id, tag).is_some();
            self.unlisted.note(&device, host_id, tag, now);
            match self.take_back_offer(client, &path, capacity, (&device, host_id, tag)) {
                Ok(()) => self.unlisted.forget(&device, tag),
                Err(NotDone::Lost(why)) => return Err(NotDone::Lost(why)),
                // The same extents are offered again, which the device refuses as long as they are pending.
                Err(NotDone::Refused(_)) if is_chosen && !can_release_by_tag(capacity) => {
                    self.unlisted.forget(&device, tag)
                }
                Err(NotDone::Busy(_) | NotDone::Refused(_)) => {}
            }
        }
        Ok(())
    }
}

/// Returns the dynamic capacity of a device that can be reached and does not list what is pending.
fn unlisting(view: &DeviceView) -> Option<&CapacityView> {
    view.capacity.as_ref().filter(|capacity| view.is_present && view.is_reachable && !capacity.lists_pending)
}

/// Takes back all with a tag, including what its host has not answered.
pub(crate) fn release_pending(
    client: &mut Client,
    path: &[Hop],
    capacity: &CapacityView,
    host_id: u16,
    tag: Tag,
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

/// Takes back these extents, whether or not their host has accepted them.
pub(crate) fn release_listed(
    client: &mut Client,
    path: &[Hop],
    host_id: u16,
    tag: Tag,
    extents: Vec<Extent>,
) -> Result<(), NotDone> {
    let length = extents.iter().map(|extent| extent.length).sum();
    let release = InitiateDcRelease { host_id, flags: FORCED | SANITIZED | LISTED, length, tag, extents };
    Ok(client.initiate_dc_release(path, &release)?)
}
