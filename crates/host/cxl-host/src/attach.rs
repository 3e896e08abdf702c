// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Brings devices that a fabric manager has bound to this host online as memory, and takes them offline before the
//! unbind.
//!
//! Both calls look at the kernel's state and carry out the missing steps, so they can be repeated after any failure,
//! and after the process was killed between any two writes:
//!
//! | there is                              | [`attach`]                         | [`detach`]                        |
//! |---------------------------------------|------------------------------------|-----------------------------------|
//! | no device                             | waits: [`CxlFailure::Absent`]      | is done                           |
//! | several that could be the bound one   | refuses                            | refuses, or is done: none has its |
//! |                                       |                                    | region                            |
//! | several, all others of them known     | goes on: it is the remaining one   | goes on                           |
//! | a device of another size              | refuses                            | is done: it is not the bound one  |
//! | a half-made region, taken decoders    | frees them, and starts over        | frees them                        |
//! | a region whose memory is not in use   | brings it online                   | destroys the region               |
//! | a region whose memory is in use       | is done                            | migrates it, or names its holders |
//!
//! Each region has one device, because devices are bound and unbound one by one. Programs interleave over nodes
//! instead.

use std::io;

use aquifer_nodes::Tree;
use aquifer_nodes::dax::{Device, Mode};
use aquifer_nodes::dvsec::CONFIG_BYTES;

use crate::check::check;
use crate::create::{Request, create_recorded};
use crate::destroy::{destroy, take_back};
use crate::dvsec::declared_bytes;
use crate::failure::CxlFailure;
use crate::listing::{DEVICES, Decoder, Listing, Memdev, Region, Window};
use crate::memory::{Progress, Zone, blocks, offline, online, unmovable};

/// With one device, nothing is interleaved, so the granularity does not matter; this is the smallest.
const GRANULARITY_BYTES: u64 = 256;

/// What tells a bound device from others with its serial number and size, as far as that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The region that was created for it, or whose creation was started.
    pub region: Option<String>,
    /// The place where it was found: [`Memdev::pci_path`](crate::Memdev).
    pub pci_path: Option<String>,
}

/// A device that was bound to this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Its serial number.
    pub serial: u64,
    /// Its size.
    pub bytes: u64,
    /// Whether it is a logical device of an MLD: others may have its serial number, so that its place counts.
    pub is_ld: bool,
    /// What is known of it.
    pub identity: Identity,
    /// What is known of the other devices with the same serial number and size that are bound to this host, or that
    /// the manager has not unbound yet.
    pub twins: Vec<Identity>,
}

/// The form in which a device's memory is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// A memory device for the program that opens it.
    Device,
    /// Memory of a NUMA node.
    #[default]
    Node,
}

/// The choice of the node for a device's memory. The kernel has one node for each window of the host's addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nodes {
    /// Each device in a window without other regions, as long as there are such windows.
    Each,
    /// All devices in the first window with room.
    #[default]
    One,
}

/// The result of an attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Its region.
    pub region: String,
    /// The memory device.
    pub device: String,
    /// The node that its memory is or becomes.
    pub node: Option<u32>,
}

/// Brings a bound device online as memory. `record` gets what the device is known by from now on: the region's name,
/// before the region is created or before one that it has already is used, and its place.
pub fn attach(
    tree: &dyn Tree,
    bound: &Bound,
    (purpose, nodes): (Purpose, Nodes),
    record: &mut dyn FnMut(&Identity) -> io::Result<()>,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Attached, CxlFailure> {
    let listing = Listing::read(tree)?;
    let memdev = found_or_similar(&listing, bound)?;
    fits_what_was_bound(tree, memdev, bound)?;
    let place = memdev.pci_path.as_ref().filter(|_| bound.is_ld).or(bound.identity.pci_path.as_ref());
    let known_by = |region: &str| Identity { region: Some(region.to_owned()), pci_path: place.cloned() };
    let region = match region_of(&listing, memdev)?.filter(|region| region.is_enabled) {
        Some(region) => {
            let seen = known_by(&region.name);
            if bound.identity != seen {
                record(&seen).map_err(|source| CxlFailure::NotRecorded { region: region.name.clone(), source })?;
            }
            region.clone()
        }
        None => {
            clear(tree, Some(memdev), bound.identity.region.as_deref())?;
            let window = match nodes {
                Nodes::Each => {
                    let is_free =
                        |it: &&Window| it.takes_ram && it.ways == 1 && it.regions.is_empty() && it.bytes >= bound.bytes;
                    listing.windows.iter().find(is_free).map(|window| window.name.clone())
                }
                Nodes::One => None,
            };
            let (memdevs, bytes) = (vec![memdev.name.clone()], Some(bound.bytes));
            let request = Request { memdevs, bytes, granularity_bytes: GRANULARITY_BYTES, window };
            create_recorded(tree, &request, &mut |region: &str| record(&known_by(region)))?
        }
    };
    fits_the_host(tree, memdev, &region.name)?;
    let device = only_device(tree, &region.name)?;
    hand_over(tree, &device, purpose, progress)?;
    let node = only_device(tree, &region.name)?.node;
    Ok(Attached { region: region.name, device: device.name, node })
}

/// Takes the memory of a device offline, and destroys its region. If memory is in use, `migrate` moves it to other
/// nodes; without `migrate`, the call names the holders and changes nothing.
pub fn detach(
    tree: &dyn Tree,
    bound: &Bound,
    migrate: bool,
    progress: &mut dyn FnMut(&Progress),
) -> Result<(), CxlFailure> {
    let listing = Listing::read(tree)?;
    let memdev = match found(&listing, bound) {
        Ok(memdev) => memdev,
        // The device was pulled out, or has not come yet: the kernel does not have its memory. A device of another size
        // is another logical device of the same one, and may be in use.
        Err(CxlFailure::Absent { .. }) => return clear(tree, None, bound.identity.region.as_deref()),
        Err(CxlFailure::Alike { .. }) if !bound.twins.is_empty() && has_nothing_here(&listing, bound) => {
            return clear(tree, None, bound.identity.region.as_deref());
        }
        Err(failure) => return Err(failure),
    };
    // More than one if somebody else has created another region from the device's remaining capacity.
    let mut now = listing.clone();
    for _ in &memdev.decoders {
        let Some(memdev) = now.memdev(&memdev.name) else { break };
        let Some(region) = region_of(&now, memdev)? else { break };
        destroy(tree, &region.name, migrate, progress)?;
        now = Listing::read(tree)?;
    }
    clear(tree, now.memdev(&memdev.name), bound.identity.region.as_deref())
}

/// Finds the bound device. The logical devices of one device share its serial number, and differ only in their sizes,
/// if at all. One whose place is known is there or nowhere; another one is known once all that look like it are.
fn found<'a>(listing: &'a Listing, bound: &Bound) -> Result<&'a Memdev, CxlFailure> {
    let alike: Vec<&Memdev> = alike(listing, bound).collect();
    if let Some(own) = alike.iter().find(|memdev| is_it(memdev, &bound.identity)) {
        return Ok(own);
    }
    let is_elsewhere = bound.identity.pci_path.is_some() && alike.iter().all(|memdev| memdev.pci_path.is_some());
    if alike.is_empty() || is_elsewhere {
        return Err(CxlFailure::Absent { serial: bound.serial });
    }
    let is_known = |twin: &Identity| twin.pci_path.is_some() || alike.iter().any(|memdev| is_it(memdev, twin));
    let are_known = bound.twins.iter().all(is_known);
    let is_left = |memdev: &&&Memdev| !bound.twins.iter().any(|twin| is_it(memdev, twin));
    let left: Vec<&Memdev> = alike.iter().filter(is_left).copied().collect();
    match (are_known, left.as_slice()) {
        (true, []) => Err(CxlFailure::Absent { serial: bound.serial }),
        (true, [memdev]) => Ok(memdev),
        _ => {
            let count = alike.len().max(bound.twins.len() + 1);
            Err(CxlFailure::Alike { serial: bound.serial, count })
        }
    }
}

/// The devices that could be the bound one, by serial number and size.
fn alike<'a>(listing: &'a Listing, bound: &Bound) -> impl Iterator<Item = &'a Memdev> {
    let bytes = bound.bytes;
    with_serial(listing, bound).filter(move |memdev| bytes_of(memdev) == bytes)
}

/// Whether a device is the one that is known by a place, or else by a region. A region's name is given again once the
/// region is gone, a place is not while its device is bound.
fn is_it(memdev: &Memdev, known: &Identity) -> bool {
    match (&known.pci_path, &memdev.pci_path) {
        (Some(known), Some(place)) => known == place,
        _ => known.region.as_deref().is_some_and(|region| has_region(memdev, region)),
    }
}

/// Whether each region on devices that could be the bound one belongs to another bound device.
fn has_nothing_here(listing: &Listing, bound: &Bound) -> bool {
    let mut in_regions = alike(listing, bound).filter(|memdev| memdev.decoders.iter().any(|it| it.region.is_some()));
    in_regions.all(|memdev| bound.twins.iter().any(|twin| is_it(memdev, twin)))
}

fn has_region(memdev: &Memdev, region: &str) -> bool {
    memdev.decoders.iter().any(|decoder| decoder.region.as_deref() == Some(region))
}

/// As [`found`]; but if no device has that serial number and size, the only one with the serial number is returned, so
/// that the caller can say what differs.
fn found_or_similar<'a>(listing: &'a Listing, bound: &Bound) -> Result<&'a Memdev, CxlFailure> {
    let here: Vec<&Memdev> = with_serial(listing, bound).collect();
    let are_others = alike(listing, bound).next().is_none();
    match (found(listing, bound), here.as_slice()) {
        (Err(CxlFailure::Absent { .. }), [memdev]) if are_others => Ok(memdev),
        (Err(CxlFailure::Absent { serial }), [_, _, ..]) if are_others => {
            Err(CxlFailure::Alike { serial, count: here.len() })
        }
        (outcome, _) => outcome,
    }
}

fn with_serial<'a>(listing: &'a Listing, bound: &Bound) -> impl Iterator<Item = &'a Memdev> {
    let serial = bound.serial;
    listing.memdevs.iter().filter(move |memdev| memdev.serial == Some(serial))
}

fn bytes_of(memdev: &Memdev) -> u64 {
    memdev.ram_bytes.saturating_add(memdev.pmem_bytes)
}

/// Compares the size that was bound with the size in sysfs and the size that the device declares.
fn fits_what_was_bound(tree: &dyn Tree, memdev: &Memdev, bound: &Bound) -> Result<(), CxlFailure> {
    let differs = |object: String, has| CxlFailure::SizeDiffers { object, has, bound: bound.bytes };
    if bytes_of(memdev) != bound.bytes {
        return Err(differs(memdev.text(), bytes_of(memdev)));
    }
    // Through the memdev's link, `..` is the PCI device of the memdev.
    let config = tree.bytes(&format!("{DEVICES}/{}/../config", memdev.name), CONFIG_BYTES).ok();
    match config.and_then(|config| declared_bytes(&config)) {
        Some(has) if has != bound.bytes => Err(differs(format!("the DVSEC of {}", memdev.text()), has)),
        _ => Ok(()),
    }
}

/// Checks the device's decoders and its region as `aquifer cxl list` does.
fn fits_the_host(tree: &dyn Tree, memdev: &Memdev, region: &str) -> Result<(), CxlFailure> {
    let listing = Listing::read(tree)?;
    let memdev = listing.memdevs.iter().find(|now| now.name == memdev.name);
    let is_of_it = |object: &str| {
        let mut decoders = memdev.iter().flat_map(|memdev| &memdev.decoders);
        object == region || decoders.any(|decoder| decoder.name == object)
    };
    match check(&listing, &[]).into_iter().find(|finding| is_of_it(&finding.object)) {
        Some(finding) => Err(CxlFailure::Unfit { finding }),
        None => Ok(()),
    }
}

/// The region of a device, if that region has no other device.
fn region_of<'a>(listing: &'a Listing, memdev: &Memdev) -> Result<Option<&'a Region>, CxlFailure> {
    let mut named = memdev.decoders.iter().filter_map(|decoder| decoder.region.as_deref());
    let Some(region) = named.find_map(|name| listing.region(name)) else { return Ok(None) };
    match is_of(region, Some(memdev)) {
        true => Ok(Some(region)),
        false => Err(CxlFailure::Interleaved { region: region.name.clone(), memdev: memdev.text() }),
    }
}

/// Whether a region has no decoder of another device.
fn is_of(region: &Region, memdev: Option<&Memdev>) -> bool {
    let of_memdev =
        |target: &String| memdev.is_some_and(|memdev| memdev.decoders.iter().any(|decoder| decoder.name == *target));
    region.targets.iter().all(of_memdev)
}

/// Frees half-made state: regions that are not in use, and decoders of the device that have no region.
fn clear(tree: &dyn Tree, memdev: Option<&Memdev>, recorded: Option<&str>) -> Result<(), CxlFailure> {
    let listing = Listing::read(tree)?;
    let decoders: Vec<&Decoder> = memdev.iter().flat_map(|memdev| &memdev.decoders).collect();
    let taken: Vec<&str> = decoders.iter().filter(|it| it.dpa_bytes > 0).map(|it| it.name.as_str()).collect();
    let is_half_made = |region: &&Region| {
        let is_ours = recorded == Some(region.name.as_str())
            || decoders.iter().any(|decoder| decoder.region.as_ref() == Some(&region.name));
        is_ours && !region.is_enabled && is_of(region, memdev)
    };
    let half_made: Vec<&Region> = listing.regions.iter().filter(is_half_made).collect();
    for region in half_made {
        let window = region.window.as_deref().unwrap_or("decoder0.0");
        take_back(tree, &region.name, window, &taken)?;
    }
    crate::destroy::free(tree, &taken)
}

/// The memory device that the kernel creates for a region.
fn only_device(tree: &dyn Tree, region: &str) -> Result<Device, CxlFailure> {
    let listing = Listing::read(tree)?;
    let device = listing.region(region).and_then(|region| region.devices.first());
    device.cloned().ok_or_else(|| CxlFailure::NoBlocks {
        device: region.to_owned(),
        what: "the kernel has not created its memory device yet",
    })
}

fn hand_over(
    tree: &dyn Tree,
    device: &Device,
    purpose: Purpose,
    progress: &mut dyn FnMut(&Progress),
) -> Result<(), CxlFailure> {
    match purpose {
        Purpose::Device if device.mode == Mode::Devdax => Ok(()),
        Purpose::Device => offline(tree, device, false, progress),
        Purpose::Node => {
            let is_whole = device.mode == Mode::SystemRam
                && blocks(tree, device).is_ok_and(|it| {
                    it.offline.is_empty() && !it.online.is_empty() && unmovable(tree, &it.online).is_empty()
                });
            if is_whole { Ok(()) } else { online(tree, device, Zone::Movable, progress).map(drop) }
        }
    }
}
