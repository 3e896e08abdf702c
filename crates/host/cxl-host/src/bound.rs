// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Turns what a fabric manager has bound to this host into memory that programs use, and takes it away before the
//! unbind.
//!
//! Both calls look at what there is and do the rest, so they can be repeated after any failure, and after the process
//! was killed between any two writes:
//!
//! | there is                              | [`attach`]                         | [`detach`]                        |
//! |---------------------------------------|------------------------------------|-----------------------------------|
//! | no device                             | waits: [`CxlFailure::Absent`]      | nothing is left                   |
//! | a device whose sizes differ           | refuses                            | as below                          |
//! | a half-made region, taken decoders    | takes them back, and begins        | takes them back                   |
//! | a region whose memory nobody has      | brings it online                   | destroys the region               |
//! | a region whose memory is in use       | nothing is to be done              | moves it, or names its holders    |
//!
//! A region has one device, because the devices of a host come and go one by one. Programs interleave over nodes.

use std::io;

use aquifer_nodes::Tree;
use aquifer_nodes::dax::{Device, Mode};

use crate::check::check;
use crate::create::{Request, create_recorded};
use crate::destroy::{destroy, take_back};
use crate::dvsec::{CONFIG_BYTES, declared_bytes};
use crate::failure::CxlFailure;
use crate::listing::{DEVICES, Decoder, Listing, Memdev, Region};
use crate::memory::{Progress, Zone, blocks, offline, online};

/// With one device, nothing is interleaved, and the smallest granularity is as good as any.
const GRANULARITY_BYTES: u64 = 256;

/// A device that was bound to this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Its serial number.
    pub serial: u64,
    /// Its size.
    pub bytes: u64,
    /// The region that was made, or begun, for it.
    pub region: Option<String>,
}

/// What its memory becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// A memory device for the program that opens it.
    Device,
    /// Memory of a NUMA node.
    #[default]
    Node,
}

/// Which node the memory of a device is on. The kernel gives each window of the host's addresses one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nodes {
    /// Each device in a window that no other region is in, as long as there are such windows.
    Each,
    /// All devices in the first window with room.
    #[default]
    One,
}

/// What has become of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Its region.
    pub region: String,
    /// The memory device.
    pub device: String,
    /// The node that its memory is or becomes.
    pub node: Option<u32>,
}

/// Makes memory of a device that was bound. `record` gets the name of the region before there is one.
pub fn attach(
    tree: &dyn Tree,
    bound: &Bound,
    (purpose, nodes): (Purpose, Nodes),
    record: &mut dyn FnMut(&str) -> io::Result<()>,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Attached, CxlFailure> {
    let listing = Listing::read(tree);
    let memdev = found(&listing, bound)?;
    fits_what_was_bound(tree, memdev, bound)?;
    let region = match region_of(&listing, memdev)?.filter(|region| region.is_enabled) {
        Some(region) => region.clone(),
        None => {
            clear(tree, Some(memdev), bound.region.as_deref())?;
            let window = match nodes {
                Nodes::Each => listing.windows.iter().find(|it| it.takes_ram && it.regions.is_empty()),
                Nodes::One => None,
            };
            let window = window.filter(|window| window.bytes >= bound.bytes).map(|window| window.name.clone());
            let (memdevs, bytes) = (vec![memdev.name.clone()], Some(bound.bytes));
            let request = Request { memdevs, bytes, granularity_bytes: GRANULARITY_BYTES, window };
            create_recorded(tree, &request, record)?
        }
    };
    fits_the_host(tree, memdev, &region.name)?;
    let device = only_device(tree, &region.name)?;
    hand_over(tree, &device, purpose, progress)?;
    let node = only_device(tree, &region.name)?.node;
    Ok(Attached { region: region.name, device: device.name, node })
}

/// Takes the memory of a device away, and its region. Memory in use is moved to other nodes with `migrate`; otherwise
/// its holders are named and nothing is changed.
pub fn detach(
    tree: &dyn Tree,
    bound: &Bound,
    migrate: bool,
    progress: &mut dyn FnMut(&Progress),
) -> Result<(), CxlFailure> {
    let listing = Listing::read(tree);
    let memdev = match found(&listing, bound) {
        Ok(memdev) => memdev,
        // It was pulled out: the kernel has its memory no more.
        Err(CxlFailure::Absent { .. }) => return clear(tree, None, bound.region.as_deref()),
        Err(failure) => return Err(failure),
    };
    // More than one if somebody else has made another one of what was left.
    let mut now = listing.clone();
    for _ in &memdev.decoders {
        let Some(memdev) = now.memdev(&memdev.name) else { break };
        let Some(region) = region_of(&now, memdev)? else { break };
        destroy(tree, &region.name, migrate, progress)?;
        now = Listing::read(tree);
    }
    clear(tree, now.memdev(&memdev.name), bound.region.as_deref())
}

/// The device that was bound. Logical devices of one device have its serial number in common, and differ by their sizes
/// alone.
fn found<'a>(listing: &'a Listing, bound: &Bound) -> Result<&'a Memdev, CxlFailure> {
    let here: Vec<&Memdev> = listing.memdevs.iter().filter(|memdev| memdev.serial == Some(bound.serial)).collect();
    let alike: Vec<&Memdev> = here.iter().copied().filter(|memdev| bytes_of(memdev) == bound.bytes).collect();
    match (alike.as_slice(), here.as_slice()) {
        ([memdev], _) | ([], [memdev]) => Ok(memdev),
        ([], []) => Err(CxlFailure::Absent { serial: bound.serial }),
        ([], several) => Err(CxlFailure::Alike { serial: bound.serial, count: several.len() }),
        (several, _) => Err(CxlFailure::Alike { serial: bound.serial, count: several.len() }),
    }
}

fn bytes_of(memdev: &Memdev) -> u64 {
    memdev.ram_bytes.saturating_add(memdev.pmem_bytes)
}

/// Compares the device's sizes, as the kernel has them and as it declares them, with what was bound.
fn fits_what_was_bound(tree: &dyn Tree, memdev: &Memdev, bound: &Bound) -> Result<(), CxlFailure> {
    let differs = |object: String, has| CxlFailure::SizeDiffers { object, has, bound: bound.bytes };
    if bytes_of(memdev) != bound.bytes {
        return Err(differs(memdev.text(), bytes_of(memdev)));
    }
    // Through the link of the memdev, `..` is the PCI device that it belongs to.
    let config = tree.bytes(&format!("{DEVICES}/{}/../config", memdev.name), CONFIG_BYTES).ok();
    match config.and_then(|config| declared_bytes(&config)) {
        Some(has) if has != bound.bytes => Err(differs(format!("the DVSEC of {}", memdev.text()), has)),
        _ => Ok(()),
    }
}

/// Checks the device's decoders and its region as `aquifer cxl list` does.
fn fits_the_host(tree: &dyn Tree, memdev: &Memdev, region: &str) -> Result<(), CxlFailure> {
    let listing = Listing::read(tree);
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

/// The region that a device is in, if it is in it alone.
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

/// Takes back what is half-made: regions that are not in use, and decoders of the device that have no region.
fn clear(tree: &dyn Tree, memdev: Option<&Memdev>, recorded: Option<&str>) -> Result<(), CxlFailure> {
    let listing = Listing::read(tree);
    let decoders: Vec<&Decoder> = memdev.iter().flat_map(|memdev| &memdev.decoders).collect();
    let taken: Vec<&str> = decoders.iter().filter(|it| it.dpa_bytes > 0).map(|it| it.name.as_str()).collect();
    let is_half_made = |region: &&Region| {
        let is_ours = recorded == Some(region.name.as_str())
            || decoders.iter().any(|decoder| decoder.region.as_ref() == Some(&region.name));
        is_ours && !region.is_enabled && is_of(region, memdev)
    };
    let half_made: Vec<&Region> = listing.regions.iter().filter(is_half_made).collect();
    let failed = |failure: Option<aquifer_nodes::WriteFailure>| failure.map_or(Ok(()), |it| Err(CxlFailure::write(it)));
    for region in half_made {
        let window = region.window.as_deref().unwrap_or("decoder0.0");
        take_back(tree, &region.name, window, &taken).or_else(failed)?;
    }
    crate::destroy::free(tree, &taken).map_err(CxlFailure::write)
}

/// The one memory device that the kernel makes of a region.
fn only_device(tree: &dyn Tree, region: &str) -> Result<Device, CxlFailure> {
    let listing = Listing::read(tree);
    let device = listing.region(region).and_then(|region| region.devices.first());
    device.cloned().ok_or_else(|| CxlFailure::NoBlocks {
        device: region.to_owned(),
        what: "the kernel has not made a memory device of it yet",
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
                && blocks(tree, device).is_ok_and(|it| it.offline.is_empty() && !it.online.is_empty());
            if is_whole { Ok(()) } else { online(tree, device, Zone::Movable, progress).map(drop) }
        }
    }
}
