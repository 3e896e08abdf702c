// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes a region of volatile memory: all of it, or nothing.
//!
//! | step | file                                        | undone by                     |
//! |------|---------------------------------------------|-------------------------------|
//! | 1    | the window's `create_ram_region`            | `delete_region`               |
//! | 2    | the region's granularity and ways           | with the region               |
//! | 3    | each endpoint decoder's `mode`, `dpa_size`  | `dpa_size` 0                  |
//! | 4    | the region's `size`                         | with the region               |
//! | 5    | the region's `target0`, `target1` and so on | an empty target               |
//! | 6    | `commit`                                    | `commit` 0                    |
//! | 7    | the driver's `bind`                         | `unbind`                      |
//!
//! After step 7 the kernel makes a memory device of the region and, by default or through the device's driver, a node
//! (`memory.rs`).

use std::io;

use aquifer_nodes::{Tree, Write, WriteFailure, write_all};

use crate::destroy::{decoder_file, driver_file, region_file};
use crate::failure::CxlFailure;
use crate::listing::{DEVICES, Decoder, Listing, Memdev, Region, Window};

/// The unit of a device's capacity, as the specification has it.
const UNIT_BYTES: u64 = 256 << 20;
/// The granularities of the specification.
const GRANULARITY_BYTES_MIN: u64 = 256;
const GRANULARITY_BYTES_MAX: u64 = 16 << 10;
/// The numbers of devices that can take turns, as the specification has them.
const WAYS: [u64; 8] = [1, 2, 3, 4, 6, 8, 12, 16];
/// How often a name of a region is tried: another program may take it first.
const NAME_ATTEMPTS_MAX: u32 = 8;

/// What region is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The devices, by name or serial number, in the order in which they take turns.
    pub memdevs: Vec<String>,
    /// The length of the region; `None`: all that the devices have free, the same from each.
    pub bytes: Option<u64>,
    /// How many bytes in a row are on one device.
    pub granularity_bytes: u64,
    /// The window; `None`: the first that takes volatile memory of that size.
    pub window: Option<String>,
}

/// Everything that is decided before the first write.
struct Plan<'a> {
    window: &'a Window,
    decoders: Vec<&'a Decoder>,
    bytes_each: u64,
    granularity_bytes: u64,
}

/// Makes a region and enables it. On failure everything is as before, unless the failure names the parts that are left.
pub fn create(tree: &dyn Tree, request: &Request) -> Result<Region, CxlFailure> {
    create_recorded(tree, request, &mut |_| Ok(()))
}

/// Like the function above; `record` gets the region's name before the region is created, so that the next process can
/// destroy the region if this one is killed meanwhile.
pub(crate) fn create_recorded(
    tree: &dyn Tree,
    request: &Request,
    record: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Result<Region, CxlFailure> {
    let listing = Listing::read(tree)?;
    let plan = plan(&listing, request)?;
    let name = new_region(tree, plan.window, record)?;
    make(tree, &name, &plan).map_err(|failure| undo(tree, &name, &plan, failure))?;
    // If that cannot be read, the region stays: its memory may be in use by now.
    let made = Listing::read(tree)?.region(&name).cloned();
    let made = made.filter(|region| region.is_committed && region.targets.len() == plan.decoders.len());
    made.ok_or_else(|| undo(tree, &name, &plan, CxlFailure::NotCommitted { region: name.clone() }))
}

fn plan<'a>(listing: &'a Listing, request: &Request) -> Result<Plan<'a>, CxlFailure> {
    let (ways, granularity_bytes) = (request.memdevs.len() as u64, request.granularity_bytes);
    if !WAYS.contains(&ways) {
        return Err(CxlFailure::Interleave { why: format!("{ways} devices cannot be interleaved") });
    }
    let granularities = GRANULARITY_BYTES_MIN..=GRANULARITY_BYTES_MAX;
    if !granularity_bytes.is_power_of_two() || !granularities.contains(&granularity_bytes) {
        return Err(CxlFailure::Interleave { why: format!("{granularity_bytes} bytes are no granularity") });
    }
    let mut memdevs: Vec<&Memdev> = Vec::new();
    for named in &request.memdevs {
        let found = || listing.memdevs.iter().map(Memdev::text).collect();
        let memdev = listing.memdev(named);
        let memdev =
            memdev.ok_or_else(|| CxlFailure::NoSuch { kind: "memdev", name: named.clone(), found: found() })?;
        if memdevs.iter().any(|other| other.name == memdev.name) {
            return Err(CxlFailure::Interleave { why: format!("{} is named twice", memdev.text()) });
        }
        memdevs.push(memdev);
    }
    let bytes_each = bytes_each(&memdevs, request.bytes)?;
    let decoders = memdevs.iter().map(|memdev| free_decoder(memdev)).collect::<Result<_, _>>()?;
    let window = window(listing, request.window.as_deref(), bytes_each * ways, &Turns { ways, granularity_bytes })?;
    Ok(Plan { window, decoders, bytes_each, granularity_bytes })
}

/// What each device gives.
fn bytes_each(memdevs: &[&Memdev], total: Option<u64>) -> Result<u64, CxlFailure> {
    let ways = memdevs.len() as u64;
    let least = memdevs.iter().min_by_key(|memdev| memdev.ram_free_bytes()).expect("there is at least one");
    let free = least.ram_free_bytes();
    let each = match total {
        None => (free / UNIT_BYTES * UNIT_BYTES).max(UNIT_BYTES),
        Some(total) if total == 0 || !total.is_multiple_of(UNIT_BYTES * ways) => {
            return Err(CxlFailure::Unit { bytes: total, unit: UNIT_BYTES * ways });
        }
        Some(total) => total / ways,
    };
    if each > free {
        return Err(CxlFailure::Capacity { memdev: least.text(), wanted: each, free });
    }
    Ok(each)
}

/// Decoders of a device are used in their order, so the first free one follows those in use.
fn free_decoder(memdev: &Memdev) -> Result<&Decoder, CxlFailure> {
    let failure = |what| CxlFailure::NoDecoder { memdev: memdev.text(), what };
    if memdev.endpoint.is_none() {
        return Err(failure("no endpoint, so the host does not reach it"));
    }
    let free = memdev.decoders.iter().find(|decoder| decoder.dpa_bytes == 0 && decoder.region.is_none());
    free.ok_or_else(|| failure("no free decoder"))
}

/// How the devices of a region take turns.
struct Turns {
    ways: u64,
    granularity_bytes: u64,
}

impl Turns {
    /// Returns why they cannot take turns in a window; None if they can. A window's host bridges take turns first, and
    /// then the devices below each of them, of which the kernel takes a power of two, at the window's granularity.
    fn are_unfit_for(&self, window: &Window) -> Option<String> {
        let Turns { ways, granularity_bytes } = *self;
        if !ways.is_multiple_of(window.ways) || !(ways / window.ways).is_power_of_two() {
            let of_window = if window.ways == 1 { "1 way".into() } else { format!("{} ways", window.ways) };
            return Some(format!("{ways} devices cannot be interleaved in {}, which has {of_window}", window.name));
        }
        let is_other = window.ways > 1 && granularity_bytes != window.granularity_bytes;
        let (name, own) = (&window.name, window.granularity_bytes);
        is_other.then(|| format!("{granularity_bytes} bytes are not the granularity of {name}, which is {own} bytes"))
    }
}

/// Returns the window that is named, or the first that fits and has room.
fn window<'a>(listing: &'a Listing, named: Option<&str>, bytes: u64, turns: &Turns) -> Result<&'a Window, CxlFailure> {
    let room = |window: &Window| {
        let of_window = |region: &&Region| region.window.as_ref() == Some(&window.name);
        window.bytes.saturating_sub(listing.regions.iter().filter(of_window).map(|region| region.bytes).sum())
    };
    if let Some(named) = named {
        let found = || listing.windows.iter().map(|window| window.name.clone()).collect();
        let window = listing.windows.iter().find(|window| window.name == named);
        let window = window.ok_or_else(|| CxlFailure::NoSuch { kind: "window", name: named.into(), found: found() })?;
        return match turns.are_unfit_for(window) {
            Some(why) => Err(CxlFailure::Interleave { why }),
            None if window.takes_ram && room(window) >= bytes => Ok(window),
            None => Err(CxlFailure::NoWindow { bytes }),
        };
    }
    let of_ram = || listing.windows.iter().filter(|window| window.takes_ram);
    let mut fitting = of_ram().filter(|window| turns.are_unfit_for(window).is_none()).peekable();
    match (fitting.peek(), of_ram().find_map(|window| turns.are_unfit_for(window))) {
        (None, Some(why)) => Err(CxlFailure::Interleave { why }),
        _ => fitting.find(|window| room(window) >= bytes).ok_or(CxlFailure::NoWindow { bytes }),
    }
}

/// Takes the next name of a region, and makes an empty one of it.
fn new_region(
    tree: &dyn Tree,
    window: &Window,
    record: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Result<String, CxlFailure> {
    let file = format!("{DEVICES}/{}/create_ram_region", window.name);
    let mut attempt = 1;
    loop {
        let unreadable = |source| WriteFailure { write: Write::new(&file, ""), done: 0, source };
        let name = tree.text(&file).map_err(|source| CxlFailure::write(unreadable(source)))?;
        record(&name).map_err(|source| CxlFailure::NotRecorded { region: name.clone(), source })?;
        match write_all(tree, &[Write::new(&file, &name)]) {
            Ok(()) => return Ok(name),
            // Somebody else has taken the name since it was read.
            Err(failure) if failure.source.raw_os_error() == Some(libc::EBUSY) && attempt < NAME_ATTEMPTS_MAX => {
                attempt += 1;
            }
            Err(failure) => return Err(CxlFailure::write(failure)),
        }
    }
}

fn make(tree: &dyn Tree, name: &str, plan: &Plan<'_>) -> Result<(), CxlFailure> {
    let ways = plan.decoders.len() as u64;
    let mut writes = vec![
        Write::new(region_file(name, "interleave_granularity"), plan.granularity_bytes.to_string()),
        Write::new(region_file(name, "interleave_ways"), ways.to_string()),
    ];
    for decoder in &plan.decoders {
        writes.push(Write::new(decoder_file(&decoder.name, "mode"), "ram"));
        writes.push(Write::new(decoder_file(&decoder.name, "dpa_size"), format!("{:#x}", plan.bytes_each)));
    }
    writes.push(Write::new(region_file(name, "size"), format!("{:#x}", plan.bytes_each * ways)));
    for (way, decoder) in plan.decoders.iter().enumerate() {
        writes.push(Write::new(region_file(name, &format!("target{way}")), &decoder.name));
    }
    writes.push(Write::new(region_file(name, "commit"), "1"));
    writes.push(Write::new(driver_file("bind"), name));
    write_all(tree, &writes).map_err(CxlFailure::write)
}

/// Removes the parts of a region that were made.
fn undo(tree: &dyn Tree, name: &str, plan: &Plan<'_>, failure: CxlFailure) -> CxlFailure {
    let decoders: Vec<&str> = plan.decoders.iter().map(|decoder| decoder.name.as_str()).collect();
    let taken_back = crate::destroy::take_back(tree, name, &plan.window.name, &decoders);
    let left = (!matches!(taken_back, Ok(true))).then(|| name.to_owned());
    match failure {
        CxlFailure::Write { failure, .. } => CxlFailure::Write { failure, left },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with 12 devices and windows of these ways.
    fn machine(windows: &[(u64, u64)]) -> Listing {
        let decoder = |number: u64| Decoder {
            name: format!("decoder{number}.0"),
            mode: "none".into(),
            dpa_bytes: 0,
            hpa_bytes: 0,
            region: None,
        };
        let memdev = |number: u64| Memdev {
            name: format!("mem{number}"),
            serial: Some(number),
            ram_bytes: 1 << 30,
            pmem_bytes: 0,
            pci_path: None,
            endpoint: Some(format!("endpoint{number}")),
            decoders: vec![decoder(number)],
        };
        let window = |(number, (ways, granularity_bytes)): (usize, &(u64, u64))| Window {
            name: format!("decoder0.{number}"),
            start: 0,
            bytes: 16 << 30,
            ways: *ways,
            granularity_bytes: *granularity_bytes,
            takes_ram: true,
            takes_pmem: false,
            regions: Vec::new(),
        };
        Listing {
            memdevs: (0..12).map(memdev).collect(),
            windows: windows.iter().enumerate().map(window).collect(),
            ..Listing::default()
        }
    }

    fn request(devices: usize) -> Request {
        let memdevs = (0..devices).map(|number| format!("mem{number}")).collect();
        Request { memdevs, bytes: None, granularity_bytes: 256, window: None }
    }

    /// Returns the window of a region of so many devices, and its size in GiB.
    fn planned(listing: &Listing, request: &Request) -> Result<(String, u64), String> {
        let plan = plan(listing, request).map_err(|failure| failure.to_string())?;
        Ok((plan.window.name.clone(), (plan.bytes_each * plan.decoders.len() as u64) >> 30))
    }

    /// The kernel takes three ways only of a window with three, and at its granularity; below each host bridge it takes
    /// a power of two.
    #[test]
    fn three_six_and_twelve_devices_are_interleaved_where_a_window_has_such_ways() {
        let listing = machine(&[(1, 256), (3, 256), (6, 512)]);
        for (devices, window) in [(1, 0), (2, 0), (4, 0), (8, 0), (3, 1), (6, 1), (12, 1)] {
            let planned = planned(&listing, &request(devices));
            assert_eq!(planned, Ok((format!("decoder0.{window}"), devices as u64)), "{devices}");
        }
        let coarse = Request { granularity_bytes: 512, ..request(6) };
        assert_eq!(planned(&listing, &coarse), Ok(("decoder0.2".into(), 6)));
        let thirds = Request { bytes: Some(768 << 20), ..request(3) };
        assert!(planned(&listing, &thirds).is_ok());
        assert!(planned(&listing, &Request { bytes: Some(512 << 20), ..request(3) }).unwrap_err().contains("768"));
    }

    #[test]
    fn ways_that_no_window_has_are_refused_before_anything_is_written() {
        let named = |devices, window: &str| Request { window: Some(window.into()), ..request(devices) };
        for (windows, request, part) in [
            (&[(1, 256)][..], request(3), "3 devices cannot be interleaved in decoder0.0, which has 1 way; give"),
            (&[(1, 256), (2, 256)], request(6), "6 devices cannot be interleaved in decoder0.0, which has 1 way;"),
            (&[(3, 256)], request(2), "2 devices cannot be interleaved in decoder0.0, which has 3 ways;"),
            (&[(3, 512)], request(3), "256 bytes are not the granularity of decoder0.0, which is 512 bytes;"),
            (&[(3, 256), (1, 256)], named(3, "decoder0.1"), "3 devices cannot be interleaved in decoder0.1,"),
            (&[(1, 256)], request(5), "5 devices cannot be interleaved;"),
            (&[], request(3), "no window"),
        ] {
            let failure = planned(&machine(windows), &request).unwrap_err();
            assert!(failure.contains(part), "{failure}");
        }
    }
}
