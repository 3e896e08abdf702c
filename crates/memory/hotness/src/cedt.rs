// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The arithmetic by which the firmware interleaves host bridges, from its table CEDT (CXL 3.1 section 9.18.1). Pure,
//! but for `Cedt::read`.
//!
//! Linux shows windows in sysfs, but not their arithmetic. It shows the whole table to root. A header of 36 bytes (the
//! signature `CEDT`, the table's length in bytes 4 to 7) precedes structures of several kinds, one after the other.
//! Little-endian; offsets within a structure:
//!
//! | kind      | offset | bytes  | field                                                                          |
//! |-----------|--------|--------|--------------------------------------------------------------------------------|
//! | all       | 0      | 1      | its kind                                                                       |
//! |           | 2      | 2      | its length                                                                     |
//! | 1 (CFMWS) | 8      | 8      | a window: its first address                                                    |
//! |           | 16     | 8      | its bytes                                                                      |
//! |           | 24     | 1      | number of targets: 0 to 4 are powers of two, 8 to 10 three times 1, 2, 4       |
//! |           | 25     | 1      | arithmetic: 0 modulo, 1 XOR                                                    |
//! |           | 28     | 4      | granularity: 256 bytes times two to the power of it                            |
//! | 2 (CXIMS) | 6      | 1      | XOR maps: for windows of this granularity                                      |
//! |           | 7      | 1      | how many                                                                       |
//! |           | 8      | 8 each | the maps                                                                       |
//!
//! The checksum is not compared: Linux uses a table in spite of a wrong one.

use std::{error, fmt, io};

use aquifer_nodes::Tree;

use crate::xor_maps::XorMaps;

/// Where the kernel shows the table, to root.
pub const CEDT: &str = "/sys/firmware/acpi/tables/CEDT";
/// More than a table with a window for each of 1024 bridges has.
pub const CEDT_BYTES_MAX: usize = 1 << 18;
const HEADER_BYTES: usize = 36;
const STRUCTURE_HEADER_BYTES: usize = 4;
const WINDOW: u8 = 1;
const WINDOW_BYTES: usize = 36;
const MAPS: u8 = 2;
const MAPS_AT: usize = 8;
const MODULO: u8 = 0;
const XOR: u8 = 1;
/// Granularities are 256 bytes to 16 KiB.
const GRANULARITY_CODE_MAX: u32 = 6;

/// The windows of a table, and its maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cedt {
    windows: Vec<Window>,
    /// With the code of the granularity for which they are.
    maps: Vec<(u32, Vec<u64>)>,
}

/// A window as the table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    start: u64,
    bytes: u64,
    ways_code: u8,
    arithmetic: u8,
    granularity_code: u32,
}

/// Why the host's addresses of an interleaved region are not known.
#[derive(Debug)]
#[non_exhaustive]
pub enum CedtFailure {
    /// The kernel does not show the table.
    Unreadable(io::Error),
    /// The table contradicts itself.
    Damaged(String),
    /// The XOR maps of the window do not fit the region.
    Misfit {
        /// The region's first address.
        start: u64,
    },
    /// No window of the table has the region.
    NoWindow {
        /// The region's first address.
        start: u64,
    },
    /// The window's targets are chosen in a way that is not known.
    Window {
        /// The window's first address.
        start: u64,
        /// What is unknown.
        what: String,
    },
}

impl fmt::Display for CedtFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CedtFailure::Unreadable(source) => {
                write!(f, "{CEDT}, which says how windows are interleaved, cannot be read: {source}; ")?;
                f.write_str("run it as root, and not in a container that hides /sys/firmware")
            }
            CedtFailure::Damaged(what) => {
                write!(f, "the firmware's table {CEDT} is damaged: {what}; update the firmware")
            }
            CedtFailure::Misfit { start } => write!(
                f,
                "the region at {start:#x} does not fit the XOR maps of its window in {CEDT}; compare its ways and \
                 granularity with those of its root decoder"
            ),
            CedtFailure::NoWindow { start } => {
                write!(f, "no window of {CEDT} has the region at {start:#x}; compare it with 'aquifer cxl list'")
            }
            CedtFailure::Window { start, what } => {
                write!(f, "the window at {start:#x} in {CEDT} {what}; update the firmware, or report this table")
            }
        }
    }
}

impl error::Error for CedtFailure {}

impl Cedt {
    /// That of this machine.
    pub fn read(tree: &dyn Tree) -> Result<Cedt, CedtFailure> {
        Cedt::parse(&tree.bytes(CEDT, CEDT_BYTES_MAX).map_err(CedtFailure::Unreadable)?)
    }

    /// The windows and maps of a table. What follows its end is ignored, as are structures of other kinds.
    pub fn parse(table: &[u8]) -> Result<Cedt, CedtFailure> {
        let damaged = |what: String| Err(CedtFailure::Damaged(what));
        if !table.starts_with(b"CEDT") {
            return damaged("it does not begin with CEDT".to_owned());
        }
        let length = number(table, 4, 4).unwrap_or_default() as usize;
        let Some(structures) = table.get(HEADER_BYTES..length) else {
            return damaged(format!("its length is {length}, and it has {} bytes", table.len()));
        };
        let (mut cedt, mut rest) = (Cedt::default(), structures);
        while !rest.is_empty() {
            let at = length - rest.len();
            let bytes = number(rest, 2, 2).unwrap_or_default() as usize;
            let Some((structure, tail)) = rest.split_at_checked(bytes).filter(|_| bytes >= STRUCTURE_HEADER_BYTES)
            else {
                return damaged(format!("the structure at {at} has {} bytes, and its length is {bytes}", rest.len()));
            };
            if cedt.add(structure).is_none() {
                return damaged(format!("the structure at {at} of kind {} is too short: {bytes} bytes", structure[0]));
            }
            rest = tail;
        }
        Ok(cedt)
    }

    /// Adds a structure. `None` if it ends before its fields do.
    fn add(&mut self, structure: &[u8]) -> Option<()> {
        match *structure.first()? {
            WINDOW if structure.len() < WINDOW_BYTES => return None,
            WINDOW => self.windows.push(Window {
                start: number(structure, 8, 8)?,
                bytes: number(structure, 16, 8)?,
                ways_code: *structure.get(24)?,
                arithmetic: *structure.get(25)?,
                granularity_code: number(structure, 28, 4)? as u32,
            }),
            MAPS => {
                let maps = (0..usize::from(*structure.get(7)?)).map(|index| number(structure, MAPS_AT + 8 * index, 8));
                self.maps.push((u32::from(*structure.get(6)?), maps.collect::<Option<Vec<u64>>>()?));
            }
            _ => {}
        }
        Some(())
    }

    /// The maps by which the window of these addresses of the host chooses targets; none with modulo arithmetic.
    pub fn xor_maps(&self, start: u64, bytes: u64) -> Result<XorMaps, CedtFailure> {
        let end = start.checked_add(bytes);
        let has = |window: &&Window| {
            window.start <= start && end.is_some_and(|end| end <= window.start.saturating_add(window.bytes))
        };
        let window = self.windows.iter().find(has).ok_or(CedtFailure::NoWindow { start })?;
        let wrong = |what: String| CedtFailure::Window { start: window.start, what };
        if window.arithmetic == MODULO {
            return Ok(XorMaps::NONE);
        }
        if window.arithmetic != XOR {
            return Err(wrong(format!("has the unknown arithmetic {}", window.arithmetic)));
        }
        let maps_len = match window.ways_code {
            code @ 0..=4 => usize::from(code),
            code @ 8..=10 => usize::from(code - 8),
            code => return Err(wrong(format!("has an unknown number of targets, {code}"))),
        };
        if maps_len == 0 {
            return Ok(XorMaps::NONE);
        }
        if window.granularity_code > GRANULARITY_CODE_MAX {
            return Err(wrong(format!("has the unknown granularity {}", window.granularity_code)));
        }
        let granularity_bytes = 256 << window.granularity_code;
        // The last ones, as in Linux, if there are several.
        let of_granularity = self.maps.iter().rev().find(|(code, _)| *code == window.granularity_code);
        let maps = of_granularity.map_or(&[][..], |(_, maps)| maps.as_slice());
        let Some(maps) = maps.get(..maps_len) else {
            let found = maps.len();
            return Err(wrong(format!("needs {maps_len} XOR maps for {granularity_bytes} bytes, and has {found}")));
        };
        XorMaps::new(maps, granularity_bytes).ok_or_else(|| wrong(format!("has XOR maps for other bits: {maps:x?}")))
    }
}

/// The number in these bytes; `None` beyond the end.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let field = bytes.get(at..at + len)?;
    Some(field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
