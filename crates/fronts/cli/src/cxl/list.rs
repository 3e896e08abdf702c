// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer cxl list`: devices, windows, regions and memory devices, and sizes that do not match.

use aquifer_core::units::ByteSize;
use aquifer_cxl_host::{Finding, Listing, check};
use aquifer_nodes::Tree;
use aquifer_nodes::dax::Device;
use aquifer_terminal::{columns, width};
use serde::Serialize;

use crate::exit::Failure;
use crate::output;

/// List CXL devices, windows, regions and memory devices, and check that their sizes fit
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  aquifer cxl list
  aquifer cxl list --bound 0x1000=256GiB    compare with what the fabric manager has bound
  aquifer cxl list --json                   one object")]
pub struct ListArgs {
    /// A device that is bound to this host, by serial number, and its size: differences are reported
    #[arg(long, value_name = "SERIAL=SIZE", value_parser = bound)]
    bound: Vec<(u64, u64)>,

    /// One JSON object
    #[arg(long)]
    json: bool,
}

fn bound(text: &str) -> Result<(u64, u64), String> {
    let advice = || format!("'{text}' is not a serial number and a size; write for example 0x1000=256GiB");
    let (serial, size) = text.split_once('=').ok_or_else(advice)?;
    let serial = match serial.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => serial.parse(),
    };
    let size: ByteSize = size.parse()?;
    Ok((serial.map_err(|_| advice())?, size.0))
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    listing: &'a Listing,
    findings: &'a [Finding],
}

/// Reads, and prints.
pub fn list(args: &ListArgs, tree: &dyn Tree) -> Result<(), Failure> {
    let listing = Listing::read(tree).map_err(super::failure)?;
    let findings = check(&listing, &args.bound);
    let text = if args.json {
        let report = Report { listing: &listing, findings: &findings };
        serde_json::to_string(&report).expect("numbers and strings are always JSON") + "\n"
    } else {
        page(&listing, &findings, width())
    };
    output::print(&text).map(|_| ())
}

/// Returns a memory device on one line.
pub fn device_text(device: &Device) -> String {
    let node = device.node.map_or_else(String::new, |node| format!(", node {node}"));
    format!("{}: {}, {}{node}", device.name, ByteSize(device.bytes), device.mode.word())
}

fn page(listing: &Listing, findings: &[Finding], width: usize) -> String {
    if listing.memdevs.is_empty() && listing.windows.is_empty() && listing.devices.is_empty() {
        return "This machine has no CXL devices and no memory devices.\n".to_owned();
    }
    let mut text = String::new();
    let mut table = |head: &[&str], rows: Vec<Vec<String>>| {
        if rows.is_empty() {
            return;
        }
        let head: Vec<String> = head.iter().map(|word| (*word).to_owned()).collect();
        let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&columns(&rows, width));
    };
    let memdevs = listing.memdevs.iter().map(|memdev| {
        let serial = memdev.serial.map_or_else(|| "-".to_owned(), |serial| format!("{serial:#x}"));
        let free = ByteSize(memdev.ram_free_bytes()).to_string();
        let (ram, pmem) = (ByteSize(memdev.ram_bytes).to_string(), ByteSize(memdev.pmem_bytes).to_string());
        vec![memdev.name.clone(), serial, ram, free, pmem]
    });
    table(&["MEMDEV", "SERIAL", "VOLATILE", "FREE", "PERSISTENT"], memdevs.collect());
    let windows = listing.windows.iter().map(|window| {
        let takes = [("volatile", window.takes_ram), ("persistent", window.takes_pmem)];
        let takes: Vec<&str> = takes.iter().filter(|(_, takes)| *takes).map(|(word, _)| *word).collect();
        vec![
            window.name.clone(),
            format!("{:#x}", window.start),
            ByteSize(window.bytes).to_string(),
            takes.join(", "),
            window.regions.join(", "),
        ]
    });
    table(&["WINDOW", "ADDRESS", "SIZE", "TAKES", "REGIONS"], windows.collect());
    let regions = listing.regions.iter().map(|region| {
        let state = match (region.is_committed, region.is_enabled) {
            (true, true) => "enabled",
            (true, false) => "committed",
            _ => "unfinished",
        };
        vec![
            region.name.clone(),
            ByteSize(region.bytes).to_string(),
            region.mode.clone(),
            state.to_owned(),
            region.targets.join(", "),
        ]
    });
    table(&["REGION", "SIZE", "KIND", "STATE", "DECODERS"], regions.collect());
    let devices = listing.regions.iter().flat_map(|region| &region.devices).chain(&listing.devices).map(|device| {
        let node = device.node.map_or_else(|| "-".to_owned(), |node| node.to_string());
        vec![device.name.clone(), ByteSize(device.bytes).to_string(), device.mode.word().to_owned(), node]
    });
    table(&["DEVICE", "SIZE", "MODE", "NODE"], devices.collect());
    for finding in findings {
        text.push_str(&format!("\n{} {}\n", finding.object, finding.finding));
    }
    text
}

#[cfg(test)]
mod tests {
    use aquifer_nodes::Fixture;

    use super::*;

    #[test]
    fn a_page_lists_what_there_is() {
        let tree = Fixture::new()
            .with("/sys/bus/cxl/devices/mem0/serial", "0x1000")
            .with("/sys/bus/cxl/devices/mem0/ram/size", "0x10000000")
            .with("/sys/bus/cxl/devices/decoder0.0/cap_ram", "1")
            .with("/sys/bus/cxl/devices/decoder0.0/delete_region", "")
            .with("/sys/bus/cxl/devices/decoder0.0/start", "0x190000000")
            .with("/sys/bus/cxl/devices/decoder0.0/size", "0x100000000")
            .with("/sys/bus/dax/devices/dax1.0/size", "4194304");
        let listing = Listing::read(&tree).unwrap();
        let page = page(&listing, &check(&listing, &[]), 100);
        for line in [
            "mem0    0x1000  256MiB    256MiB  0B",
            "decoder0.0  0x190000000  4GiB  volatile",
            "dax1.0  4MiB  disabled  -",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
        assert!(page.contains("mem0 (serial 0x1000) has no endpoint"), "{page}");
        assert!(super::page(&Listing::default(), &[], 80).contains("no CXL devices"));
    }

    #[test]
    fn what_is_bound_is_a_serial_number_and_a_size() {
        assert_eq!(bound("0x1000=256MiB"), Ok((0x1000, 256 << 20)));
        assert_eq!(bound("12=1GiB"), Ok((12, 1 << 30)));
        for text in ["", "0x1000", "x=1GiB", "1=x", "0x=1GiB"] {
            assert!(bound(text).is_err(), "{text}");
        }
    }
}
