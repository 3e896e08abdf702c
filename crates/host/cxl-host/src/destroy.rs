// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Takes a region back: its memory offline, its devices disabled, its decoders free, the region gone.
//!
//! The memory goes first, because it alone can be in use: by programs that have memory of its node, or that have the
//! memory device open. Once it is offline, no later step can fail for a reason that an operator could remove.

use aquifer_nodes::dax::{Mode, set_mode};
use aquifer_nodes::{Tree, Write, write_all};

use crate::failure::CxlFailure;
use crate::listing::{DEVICES, Listing, Region};
use crate::memory::{Progress, claim, offline};

/// Takes a region back. With `migrate`, memory in use is moved to other nodes; otherwise its holders are named and
/// nothing is changed. The memory of a device that a program has open or mapped cannot be moved: then nothing is
/// changed in either case.
pub fn destroy(
    tree: &dyn Tree,
    name: &str,
    migrate: bool,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Region, CxlFailure> {
    let listing = Listing::read(tree)?;
    let Some(region) = listing.region(name) else {
        let found = listing.regions.iter().map(|region| region.name.clone()).collect();
        return Err(CxlFailure::NoSuch { kind: "region", name: name.to_owned(), found });
    };
    // All of them, before anything is changed, and until all are disabled.
    let claimed = region.devices.iter().map(|device| claim(tree, device)).collect::<Result<Vec<_>, _>>()?;
    for device in &region.devices {
        if device.mode != Mode::SystemRam {
            set_mode(tree, device, Mode::Disabled).map_err(CxlFailure::write)?;
            continue;
        }
        offline(tree, device, migrate, progress)?;
        let now = aquifer_nodes::dax::device(tree, &device.name).unwrap_or_else(|| device.clone());
        // A program may have opened it just now.
        let _claimed = claim(tree, &now)?;
        set_mode(tree, &now, Mode::Disabled).map_err(CxlFailure::write)?;
    }
    drop(claimed);
    let targets: Vec<&str> = region.targets.iter().map(String::as_str).collect();
    let window = region.window.as_deref().unwrap_or("decoder0.0");
    let left = || CxlFailure::NoSuch { kind: "region", name: name.to_owned(), found: Vec::new() };
    match take_back(tree, name, window, &targets) {
        Ok(true) => Ok(region.clone()),
        Ok(false) => Err(left()),
        Err(CxlFailure::Write { failure, .. }) => Err(CxlFailure::Write { failure, left: Some(name.to_owned()) }),
        Err(failure) => Err(failure),
    }
}

/// Unbinds, resets, detaches and deletes a region, as far as each applies, and frees its decoders. Goes on after a
/// failure, because each step that succeeds leaves less; returns the first failure. False if the region is not there.
pub(crate) fn take_back(tree: &dyn Tree, name: &str, window: &str, decoders: &[&str]) -> Result<bool, CxlFailure> {
    let listing = Listing::read(tree)?;
    let Some(region) = listing.region(name) else { return Ok(false) };
    let mut writes = Vec::new();
    if region.is_enabled {
        writes.push(Write::new(driver_file("unbind"), name));
    }
    if region.is_committed {
        writes.push(Write::new(region_file(name, "commit"), "0"));
    }
    for way in 0..region.targets.len() {
        // One line feed: an empty write(2) would not reach the kernel.
        writes.push(Write::new(region_file(name, &format!("target{way}")), "\n"));
    }
    let taken = |decoder: &&&str| {
        let all = listing.memdevs.iter().flat_map(|memdev| &memdev.decoders);
        all.into_iter().any(|found| found.name == ***decoder && found.dpa_bytes > 0)
    };
    for decoder in decoders.iter().filter(taken) {
        writes.push(Write::new(decoder_file(decoder, "dpa_size"), "0"));
    }
    writes.push(Write::new(format!("{DEVICES}/{window}/delete_region"), name));
    let mut first = None;
    for write in writes {
        if let Err(failure) = write_all(tree, &[write]) {
            first.get_or_insert(failure);
        }
    }
    first.map_or(Ok(true), |failure| Err(CxlFailure::write(failure)))
}

/// Frees those decoders of the list that have memory of their device and no region.
pub(crate) fn free(tree: &dyn Tree, decoders: &[&str]) -> Result<(), CxlFailure> {
    let listing = Listing::read(tree)?;
    let all = listing.memdevs.iter().flat_map(|memdev| &memdev.decoders);
    let left = all.filter(|it| decoders.contains(&it.name.as_str()) && it.dpa_bytes > 0 && it.region.is_none());
    let writes: Vec<Write> = left.map(|it| Write::new(decoder_file(&it.name, "dpa_size"), "0")).collect();
    write_all(tree, &writes).map_err(CxlFailure::write)
}

pub(crate) fn region_file(region: &str, file: &str) -> String {
    format!("{DEVICES}/{region}/{file}")
}

pub(crate) fn decoder_file(decoder: &str, file: &str) -> String {
    format!("{DEVICES}/{decoder}/{file}")
}

pub(crate) fn driver_file(file: &str) -> String {
    format!("/sys/bus/cxl/drivers/cxl_region/{file}")
}
