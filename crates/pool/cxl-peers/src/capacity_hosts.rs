// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Connects hosts to a device with dynamic capacity.
//!
//! A host reaches dynamic capacity through a vPPB that is bound to the device: to an LD of an MLD, or to a head. It is
//! bound here when the first capacity is added, and unbound when another host needs it and it has none left.
//!
//! Such a device may have memory besides, which a host reaches as soon as it is connected. The pool does not hand it
//! out, but no host may find another one's bytes there: like any LD, it is wiped before a host is connected. Sanitize
//! (4400h) may end dynamic capacity, too, so it is sent only while nobody has any, and nobody is connected.

use aquifer_fabric::{Content, DeviceId, HostId, LdId, NO_LD};
use aquifer_fmapi::BindingStatus;
use aquifer_fmapi_client::{Client, Hop};

use crate::capacity::HOSTS_MAX;
use crate::inventory::{CapacityView, DeviceView, Holder};
use crate::one_switch::Peer;
use crate::parts::kept_for_capacity;
use crate::report::{address, holder_of_host, host_of, vppb_of_host};
use crate::step_failure::NotDone;

impl Peer {
    /// Returns the device's number for a host. Binds the host to the device if it is not bound.
    pub(crate) fn connect_host(
        &mut self,
        client: &mut Client,
        device: &DeviceId,
        view: &DeviceView,
        capacity: &CapacityView,
        host: &HostId,
    ) -> Result<u16, NotDone> {
        let state = self.read_state(client)?;
        let is_of_host = |host_id: &u16| {
            let vppb = vppb_of_host(&state, view, *host_id);
            vppb.is_some_and(|(vcs_id, _)| host_of(&self.config, &state, vcs_id) == Some(host))
        };
        if let Some(host_id) = (0..capacity.hosts.min(HOSTS_MAX)).find(is_of_host) {
            return Ok(host_id);
        }
        let host_id = self.free_host(client, device, view, capacity)?;
        self.bind_host(client, device, view, capacity, host_id, host)?;
        Ok(host_id)
    }

    /// Returns a number of the device's through which no host reaches it. If all are in use, unbinds a host of this
    /// manager that has no capacity.
    pub(crate) fn free_host(
        &mut self,
        client: &mut Client,
        device: &DeviceId,
        view: &DeviceView,
        capacity: &CapacityView,
    ) -> Result<u16, NotDone> {
        let state = self.read_state(client)?;
        let held = (0..capacity.hosts.min(HOSTS_MAX))
            .filter_map(|host_id| holder_of_host(&state, view, host_id).map(|holder| (host_id, holder)));
        let held: Vec<(u16, Holder)> = held.collect();
        if let Some((host_id, _)) = held.iter().find(|(_, holder)| *holder == Holder::Nobody) {
            return Ok(*host_id);
        }
        let mut capacity = capacity.clone();
        self.read_offers(client, device, &[Hop::Port(view.ports[0])], &mut capacity)?;
        let idle = held.iter().find_map(|(host_id, holder)| {
            let Holder::Vppb { vcs_id, vppb_id } = holder else { return None };
            let is_idle = capacity.offers.iter().all(|offer| offer.host_id != *host_id);
            let is_ours = host_of(&self.config, &state, *vcs_id).is_some();
            (is_idle && is_ours).then_some((*host_id, address(&self.config.name, *vcs_id, *vppb_id)))
        });
        let Some((host_id, vppb)) = idle else {
            let what = "all its hosts have capacity, or are those of other managers";
            return NotDone::refused(format!(
                "device {device} cannot have one more host: {what}; release their capacity, or use another device"
            ));
        };
        self.unbind(client, &vppb, Some((device, ld_of(view, host_id))))?;
        Ok(host_id)
    }

    /// Binds a free vPPB of a host to an LD or a head of a device, from the last vPPB down.
    fn bind_host(
        &mut self,
        client: &mut Client,
        device: &DeviceId,
        view: &DeviceView,
        capacity: &CapacityView,
        host_id: u16,
        host: &HostId,
    ) -> Result<(), NotDone> {
        let state = self.read_state(client)?;
        let is_free = |vcs_id: u8, vppb_id: &u8| {
            state.vppb(vcs_id, *vppb_id).is_some_and(|vppb| vppb.status == BindingStatus::Unbound)
        };
        let vcss = state.vcss.keys().filter(|vcs_id| host_of(&self.config, &state, **vcs_id) == Some(host));
        let mut free = vcss.filter_map(|vcs_id| {
            let kept = kept_for_capacity(&state, *vcs_id).rev();
            kept.into_iter().find(|vppb_id| is_free(*vcs_id, vppb_id)).map(|vppb_id| (*vcs_id, vppb_id))
        });
        let Some((vcs_id, vppb_id)) = free.next() else {
            return NotDone::refused(format!("host {host} has no vPPB left for device {device}; unbind one there"));
        };
        let vppb = address(&self.config.name, vcs_id, vppb_id);
        let ld_id = ld_of(view, host_id);
        // Older records must not raise doubt after it was wiped.
        self.read_events(client)?;
        if view.has_static_memory(ld_id) {
            self.wipe_static_memory(client, device, view, capacity, ld_id)?;
        }
        let at_head = view.ports.get(usize::from(host_id)).copied();
        let ports = if view.is_mld() { view.ports.clone() } else { at_head.into_iter().collect() };
        let head = DeviceView { ports, ..view.clone() };
        self.bind_used(client, &vppb, device, &head, ld_id)
    }

    /// Makes sure that the memory of an LD, or of the whole of an SLD, is wiped. A large device wipes for minutes, so
    /// the step is refused until it is done.
    fn wipe_static_memory(
        &mut self,
        client: &mut Client,
        device: &DeviceId,
        view: &DeviceView,
        capacity: &CapacityView,
        ld_id: LdId,
    ) -> Result<(), NotDone> {
        if self.contents.of(device, ld_id) == Content::Wiped {
            return Ok(());
        }
        let mut capacity = capacity.clone();
        self.read_offers(client, device, &[Hop::Port(view.ports[0])], &mut capacity)?;
        let is_free = self.read_state(client)?.holder(view, ld_id) == Holder::Nobody;
        let is_its = |host_id: u16| !view.is_mld() || host_id == ld_id.0;
        if !is_free || capacity.offers.iter().any(|offer| is_its(offer.host_id)) {
            let what = "has memory besides its dynamic capacity, which may hold another host's bytes and cannot be wiped \
                        while hosts use the device";
            return NotDone::refused(format!("device {device} {what}; release its capacity, and unbind its hosts"));
        }
        self.sanitize(client, device, view, ld_id)?;
        match self.contents.of(device, ld_id) {
            Content::Wiped => Ok(()),
            _ => NotDone::refused(format!("device {device} is being wiped; capacity is added when it is done")),
        }
    }
}

/// Returns the LD by which a host of dynamic capacity reaches a device; [`NO_LD`] for a head.
fn ld_of(view: &DeviceView, host_id: u16) -> LdId {
    if view.is_mld() { LdId(host_id) } else { NO_LD }
}
