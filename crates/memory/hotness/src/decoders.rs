// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The committed decoders of a CXL device, from sysfs (the kernel's `Documentation/ABI/testing/sysfs-bus-cxl`).
//!
//! | file                                              | meaning                                                  |
//! |---------------------------------------------------|----------------------------------------------------------|
//! | `/sys/bus/pci/devices/FUNCTION/memN`              | the memdev of a PCI function                             |
//! | `endpointE/uport`                                 | a link to the memdev of an endpoint                      |
//! | `endpointE/decoderE.D`                            | the endpoint's decoders                                  |
//! | `decoderE.D/dpa_resource`                         | the first of the device's addresses                      |
//! | `decoderE.D/start`, `size`                        | the host's addresses, of all targets together            |
//! | `decoderE.D/interleave_ways`, `_granularity`      | the targets, and the bytes of a chunk                    |
//! | `decoderE.D/region`                               | the region that has the decoder; empty without           |
//! | `regionR/commit`, `regionR/targetT`               | 1 once it decodes; the decoder at position T             |
//!
//! It shows no arithmetic; `cedt.rs` has it from the firmware's table.

use aquifer_nodes::Tree;

use crate::cedt::{Cedt, CedtFailure};
use crate::interleave::Decoder;
use crate::locate::DEVICES as FUNCTIONS;

const DEVICES: &str = "/sys/bus/cxl/devices";

/// The decoders by which this PCI function's memory is part of the host's. Empty without a region, and for all users
/// but root, since the kernel shows addresses to no other. A decoder that cannot be understood is left out. A failure
/// where it is not known how the window of an interleaved region orders its targets: then every address could be wrong.
pub fn decoders_of(tree: &dyn Tree, function: &str) -> Result<Vec<Decoder>, CedtFailure> {
    let names = |path: String| tree.names(&path).unwrap_or_default().into_iter();
    let Some(memdev) = names(format!("{FUNCTIONS}/{function}")).find(|name| is_numbered(name, "mem")) else {
        return Ok(Vec::new());
    };
    let is_of_memdev = |name: &String| {
        is_numbered(name, "endpoint")
            && tree.link(&format!("{DEVICES}/{name}/uport")).is_ok_and(|uport| uport == memdev)
    };
    let endpoints = names(DEVICES.to_owned()).filter(is_of_memdev);
    let decoders = endpoints
        .flat_map(|endpoint| names(format!("{DEVICES}/{endpoint}")).filter(|name| name.starts_with("decoder")));
    let decoders: Vec<Decoder> = decoders.filter_map(|name| decoder(tree, &name)).collect();
    if !decoders.iter().any(Decoder::depends_on_arithmetic) {
        return Ok(decoders);
    }
    let cedt = Cedt::read(tree)?;
    decoders.into_iter().map(|decoder| in_window(decoder, &cedt)).collect()
}

/// The decoder with the arithmetic of its window.
fn in_window(decoder: Decoder, cedt: &Cedt) -> Result<Decoder, CedtFailure> {
    if !decoder.depends_on_arithmetic() {
        return Ok(decoder);
    }
    let (start, bytes) = decoder.host_range();
    decoder.with_xor(cedt.xor_maps(start, bytes)?).ok_or(CedtFailure::Misfit { start })
}

/// Whether a name is the prefix and a number.
fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

fn decoder(tree: &dyn Tree, name: &str) -> Option<Decoder> {
    let text = |file: &str| tree.text(&format!("{DEVICES}/{name}/{file}")).ok();
    let number = |file: &str| tree.number(&format!("{DEVICES}/{name}/{file}")).ok();
    let region = text("region").filter(|region| is_numbered(region, "region"))?;
    let of_region = |file: String| tree.text(&format!("{DEVICES}/{region}/{file}")).ok();
    if of_region("commit".into())? != "1" {
        return None;
    }
    let ways = number("interleave_ways")?;
    let largest = crate::interleave::WAYS.into_iter().max()?;
    let position =
        (0..ways.min(largest)).find(|position| of_region(format!("target{position}")).as_deref() == Some(name))?;
    let host = (number("start")?, number("size")?);
    Decoder::new(number("dpa_resource")?, host, ways, number("interleave_granularity")?, position)
}
