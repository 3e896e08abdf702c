// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads a switch: its ports, its virtual CXL switches, and the devices behind the ports, each through a tunnel.
//!
//! Ports, vPPBs and extents are read in every round. What does not change by itself, such as the size of a device, is
//! read when the device appears, and again when an event record or an order says that it may have changed. A device
//! that cannot be read does not keep the others from being read.

use std::collections::BTreeMap;

use aquifer_fabric::{DeviceId, SwitchId};
use aquifer_fmapi::{
    BindingStatus, DcRegion, DcTags, GetLdCapabilities, Granularity, IdentifyMemory, PortState, PortStatus,
    SwitchIdentity, VcsState, VirtualSwitch, Vppb,
};
use aquifer_fmapi_client::{Client, Clock, Failure, Hop};

use crate::inventory::{CapacityView, DeviceView, Inventory, Memory, Offer, has_memory, is_up};
use crate::step_failure::{is_busy, is_unsupported};

/// How often a command is sent again while the peer is busy. The pauses in between double, from 10 ms: 0.6 s in all,
/// after which a round goes on without it.
pub(crate) const BUSY_ATTEMPTS_MAX: u32 = 6;
/// The flag of a region that several hosts can have at once.
const SHARABLE: u8 = 1 << 3;

/// Asks until the peer is not busy, a bounded number of times. `ask` rereads what its decision depends on.
pub(crate) fn patiently<T, E>(
    client: &mut Client,
    clock: &dyn Clock,
    is_busy: impl Fn(&E) -> bool,
    mut ask: impl FnMut(&mut Client) -> Result<T, E>,
) -> Result<T, E> {
    let mut attempt = 0;
    loop {
        match ask(client) {
            Err(failure) if is_busy(&failure) && attempt < BUSY_ATTEMPTS_MAX => {
                clock.sleep(client.limits().busy_pause(attempt));
                attempt += 1;
            }
            ended => return ended,
        }
    }
}

/// Reads the ports and the vPPBs of a switch.
pub(crate) fn read_bindings(client: &mut Client, clock: &dyn Clock, into: &mut Inventory) -> Result<(), Failure> {
    let identity = patiently(client, clock, is_busy, Client::identify_switch)?;
    let port_ids: Vec<u8> = (0..identity.physical_ports).collect();
    let ports = patiently(client, clock, is_busy, |client| client.port_states(&port_ids))?;
    let mut vcss = BTreeMap::new();
    for vcs_id in 0..identity.virtual_switches {
        match patiently(client, clock, is_busy, |client| client.virtual_switch(vcs_id)) {
            Ok(vcs) => drop(vcss.insert(vcs_id, vcs)),
            Err(failure) if is_unsupported(&failure) => {
                vcss.extend(fixed_bindings(&identity, &ports).map(|vcs| (vcs.vcs_id, vcs)));
                break;
            }
            Err(failure) => return Err(failure),
        }
    }
    into.ports = ports.into_iter().map(|port| (port.port_id, port)).collect();
    into.vcss = vcss;
    Ok(())
}

/// Returns the virtual switch of a peer that does not describe it, such as QEMU's: all vPPBs of the only one are bound,
/// so each downstream port is bound to it for good.
fn fixed_bindings(identity: &SwitchIdentity, ports: &[PortStatus]) -> Option<VirtualSwitch> {
    let is_fixed = identity.virtual_switches == 1 && identity.vppbs_active == identity.vppbs_total;
    let in_state = |state| ports.iter().filter(move |port| port.state == state);
    let (upstream, more) = (in_state(PortState::Upstream).next()?, in_state(PortState::Upstream).count() > 1);
    if !is_fixed || more {
        return None;
    }
    let bound = |port: &PortStatus| Vppb { status: BindingStatus::Port, port_id: port.port_id, ld_id: Vppb::NO_LD };
    let vppbs: Vec<Vppb> = in_state(PortState::Downstream).map(bound).collect();
    let vppbs_total = u8::try_from(vppbs.len()).ok()?;
    Some(VirtualSwitch { vcs_id: 0, state: VcsState::Enabled, usp_id: upstream.port_id, vppbs_total, vppbs })
}

/// Reads everything. `last` is the earlier inventory; with `is_fresh`, nothing is reused from it.
pub(crate) fn read(
    client: &mut Client,
    clock: &dyn Clock,
    switch: &SwitchId,
    last: &Inventory,
    is_fresh: bool,
) -> Result<Inventory, Failure> {
    let mut now = Inventory::default();
    read_bindings(client, clock, &mut now)?;
    let mut found = BTreeMap::new();
    for port in now.ports.values().filter(|port| has_memory(port)) {
        let known = last.device_at(port.port_id).filter(|(_, device)| device.is_present && !is_fresh);
        match (known, is_up(port)) {
            (Some((_, device)), is_reachable) => {
                let device = DeviceView { ports: vec![port.port_id], is_reachable, ..device.clone() };
                drop(found.insert(port.port_id, device));
            }
            (None, is_up) => {
                let device = if is_up { read_device(client, port)? } else { None };
                // A device that cannot be read now is assumed to be unchanged.
                let before = || {
                    let (_, device) = last.device_at(port.port_id)?;
                    Some(DeviceView { ports: vec![port.port_id], is_reachable: false, ..device.clone() })
                };
                found.extend(device.or_else(before).map(|device| (port.port_id, device)));
            }
        }
    }
    now.devices = named(switch, found);
    for device in now.devices.values_mut().filter(|device| device.is_reachable) {
        let path = [Hop::Port(device.ports[0])];
        if let Some(capacity) = &mut device.capacity {
            match read_offers(client, &path, capacity) {
                Ok(()) => {}
                Err(failure) if failure.is_fatal() => return Err(failure),
                Err(_) => device.is_reachable = false,
            }
        }
    }
    for (name, device) in &last.devices {
        let gone = DeviceView { is_present: false, is_reachable: false, ..device.clone() };
        now.devices.entry(name.clone()).or_insert(gone);
    }
    Ok(now)
}

/// Names devices by their serial numbers, and those that have none, or share one, by their ports. One with several
/// heads is one device.
fn named(switch: &SwitchId, found: BTreeMap<u8, DeviceView>) -> BTreeMap<DeviceId, DeviceView> {
    let mut devices: BTreeMap<DeviceId, DeviceView> = BTreeMap::new();
    for (port_id, device) in &found {
        let same = |other: &&DeviceView| other.serial.is_some() && other.serial == device.serial;
        let is_shared = found.values().filter(same).count() > 1;
        // Two heads lead to the same memory only if it is handed out by LDs or blocks.
        let has_heads = device.is_mld() || device.capacity.is_some();
        let name = match device.serial {
            Some(serial) if !is_shared || has_heads => format!("{switch}.{serial:x}"),
            _ => format!("{switch}.p{port_id}"),
        };
        // A name of a switch may be as long as a name can be.
        let Ok(name) = name.parse::<DeviceId>() else { continue };
        match devices.get_mut(&name) {
            Some(heads) => {
                heads.ports.push(*port_id);
                heads.is_reachable |= device.is_reachable;
            }
            None => drop(devices.insert(name, device.clone())),
        }
    }
    devices
}

/// Reads a device; None if it does not answer yet.
fn read_device(client: &mut Client, port: &PortStatus) -> Result<Option<DeviceView>, Failure> {
    let path = [Hop::Port(port.port_id)];
    // Whatever fails in the tunnel is about this device, as long as the switch answers.
    let own = |result: Result<DeviceView, Failure>| match result {
        Ok(device) => Ok(Some(device)),
        Err(failure) if failure.is_fatal() => Err(failure),
        Err(_) => Ok(None),
    };
    own(describe(client, &path, port.port_id))
}

fn describe(client: &mut Client, path: &[Hop], port_id: u8) -> Result<DeviceView, Failure> {
    let identity = client.identify(path)?;
    let mld = supported(client.call(path, &GetLdCapabilities {}))?;
    let (memory, qos, qos_fractions) = match mld {
        Some(_) => {
            let lds = client.ld_allocations(path)?;
            let unit = lds.granularity.bytes().or(Granularity::Mib256.bytes()).unwrap_or_default();
            let sum = |one: &aquifer_fmapi::LdAllocation| one.range_1.saturating_add(one.range_2).saturating_mul(unit);
            let sizes: Vec<u64> = lds.allocations.iter().map(sum).collect();
            let count = u8::try_from(sizes.len()).unwrap_or(u8::MAX);
            let fractions = (
                supported(client.qos_allocated(path, 0, count))?.map(|it| it.fractions).unwrap_or_default(),
                supported(client.qos_limits(path, 0, count))?.map(|it| it.fractions).unwrap_or_default(),
            );
            (Memory::Lds(sizes), supported(client.qos_control(path))?, fractions)
        }
        None => {
            let identity = supported(client.call(path, &IdentifyMemory {}))?;
            (Memory::Whole(identity.and_then(|identity| identity.total_bytes())), None, Default::default())
        }
    };
    Ok(DeviceView {
        ports: vec![port_id],
        serial: Some(identity.serial_number).filter(|serial| *serial != 0),
        memory,
        capacity: read_capacity(client, path)?,
        qos_fractions,
        qos,
        is_present: true,
        is_reachable: true,
    })
}

/// Returns what a device answers, or None if it does not know the command.
fn supported<T>(result: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match result {
        Ok(answer) => Ok(Some(answer)),
        Err(failure) if is_unsupported(&failure) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Reads the dynamic capacity of a device, without what hosts have of it.
fn read_capacity(client: &mut Client, path: &[Hop]) -> Result<Option<CapacityView>, Failure> {
    let Some(dcd) = supported(client.dcd(path))? else { return Ok(None) };
    let regions = client.dc_regions(path, 0)?.regions;
    let own = (0..=u8::MAX).zip(&regions).filter(|(_, region)| region.flags & SHARABLE == 0);
    let is_usable = |region: &DcRegion| region.block_bytes > 0 && region.length >= region.block_bytes;
    let Some((region_id, region)) = own.filter(|(_, region)| is_usable(region)).max_by_key(|(_, region)| region.length)
    else {
        return Ok(None);
    };
    Ok(Some(CapacityView {
        hosts: dcd.hosts.into(),
        region_id,
        start: region.base,
        bytes: region.length,
        block_bytes: region.block_bytes,
        is_sanitized: region.sanitize_on_release & 1 == 1,
        policies: (dcd.add_policies, dcd.release_policies),
        lists_pending: false,
        offers: Vec::new(),
    }))
}

/// Reads what hosts have of a device's dynamic capacity: the extents that they have accepted, and the tags of those
/// that they have not answered, as far as the device lists them. Where it does not say which hosts have not answered,
/// a tag that no host has capacity with may be pending at any of them.
pub(crate) fn read_offers(client: &mut Client, path: &[Hop], capacity: &mut CapacityView) -> Result<(), Failure> {
    let mut offers: BTreeMap<(u16, [u8; 16]), Offer> = BTreeMap::new();
    let none = |host_id, tag| Offer { host_id, tag, bytes: 0, is_pending: false };
    for host_id in 0..capacity.hosts {
        for extent in client.dc_extents(path, host_id)?.extents {
            let offer = offers.entry((host_id, extent.tag)).or_insert(none(host_id, extent.tag));
            offer.bytes = offer.bytes.saturating_add(extent.length);
        }
    }
    // QEMU has no list of tags; what was offered there is kept in `unlisted.rs`.
    let tags = supported(client.dc_tags(path))?.unwrap_or_default();
    let lists_pending = tags.validity & DcTags::HOSTS_PENDING_VALID != 0;
    for listed in tags.tags {
        let is_accepted = offers.values().any(|offer| offer.tag == listed.tag && offer.bytes > 0);
        let is_pending = |host_id: &u16| match lists_pending {
            true => listed.hosts_pending[usize::from(host_id / 8)] >> (host_id % 8) & 1 == 1,
            false => !is_accepted,
        };
        for host_id in (0..capacity.hosts.min(256)).filter(is_pending) {
            offers.entry((host_id, listed.tag)).or_insert(none(host_id, listed.tag)).is_pending = true;
        }
    }
    (capacity.lists_pending, capacity.offers) = (lists_pending, offers.into_values().collect());
    Ok(())
}
