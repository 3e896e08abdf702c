// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! DAMON's threads and their schemes: what is monitored, which pages are moved where, and what to write to have cold
//! pages of the near nodes moved to a far one, and hot memory of the far nodes counted.
//!
//! See the kernel's `Documentation/admin-guide/mm/damon/usage.rst`. The actions `migrate_hot` and `migrate_cold` exist
//! since Linux 6.11.

use std::error::Error;
use std::fmt;

use serde::Serialize;

use crate::node::Nodes;
use crate::tree::{Tree, Write};

/// Where DAMON's threads are.
pub const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds";
const BLOCKS: &str = "/sys/devices/system/memory";
/// The most threads and schemes that are shown. A choice, far more than anybody runs.
const SHOWN_MAX: u64 = 64;
/// How long a page is untouched before it is cold, in the aggregation intervals of DAMON, which are 100 ms by default.
/// A choice: 30 s, so that a program that pauses does not lose its memory.
const COLD_INTERVALS: u64 = 300;
/// How much is moved per second at most. A choice: far below the bandwidth of any far memory.
const QUOTA_BYTES: u64 = 256 << 20;

/// What DAMON does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Damon {
    /// Its threads.
    pub kdamonds: Vec<Kdamond>,
}

/// One thread of DAMON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kdamond {
    /// Its number.
    pub number: u64,
    /// Whether it runs.
    pub is_on: bool,
    /// Its schemes.
    pub schemes: Vec<Scheme>,
}

/// One scheme: what is done to which pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Scheme {
    /// The action, such as `migrate_cold`.
    pub action: String,
    /// The node to which pages are moved, for the actions that move pages.
    pub target_node: Option<u32>,
    /// The bytes that it has tried to act on.
    pub tried_bytes: Option<u64>,
    /// The bytes that it has acted on.
    pub applied_bytes: Option<u64>,
}

impl Damon {
    /// Reads its threads. `None` if its interface does not exist.
    pub fn read(tree: &dyn Tree) -> Option<Damon> {
        let count = tree.number(&format!("{KDAMONDS}/nr_kdamonds")).ok()?;
        Some(Damon { kdamonds: (0..count.min(SHOWN_MAX)).map(|number| kdamond(tree, number)).collect() })
    }
}

fn kdamond(tree: &dyn Tree, number: u64) -> Kdamond {
    let directory = format!("{KDAMONDS}/{number}");
    let is_on = tree.text(&format!("{directory}/state")).is_ok_and(|state| state == "on");
    let context = format!("{directory}/contexts/0");
    let count = tree.number(&format!("{context}/schemes/nr_schemes")).unwrap_or(0).min(SHOWN_MAX);
    let scheme = |scheme: u64| {
        let directory = format!("{context}/schemes/{scheme}");
        let action = tree.text(&format!("{directory}/action")).unwrap_or_default();
        let target = tree.number(&format!("{directory}/target_nid")).ok().and_then(|node| u32::try_from(node).ok());
        Scheme {
            target_node: target.filter(|_| action.starts_with("migrate_")),
            action,
            tried_bytes: tree.number(&format!("{directory}/stats/sz_tried")).ok(),
            applied_bytes: tree.number(&format!("{directory}/stats/sz_applied")).ok(),
        }
    };
    Kdamond { number, is_on, schemes: (0..count).map(scheme).collect() }
}

/// Why DAMON cannot be set up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DamonFailure {
    /// The kernel does not have it, or not its interface.
    Absent,
    /// Another program uses it.
    Busy {
        /// The number of its threads.
        kdamonds: usize,
    },
    /// No node to move to.
    NoFarNode,
    /// The physical addresses of the near nodes cannot be found out.
    NoRanges,
}

impl fmt::Display for DamonFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DamonFailure::Absent => write!(f, "{KDAMONDS} does not exist; it takes a kernel with CONFIG_DAMON_SYSFS"),
            DamonFailure::Busy { kdamonds } => write!(
                f,
                "DAMON is in use: another program has set {KDAMONDS}/nr_kdamonds to {kdamonds}; end that program, or write 0 there"
            ),
            DamonFailure::NoFarNode => {
                f.write_str("no node has memory and no CPUs, so there is nowhere to move cold pages; bring one online")
            }
            DamonFailure::NoRanges => {
                write!(f, "the memory of the near nodes is not listed in {BLOCKS}; it takes CONFIG_MEMORY_HOTPLUG")
            }
        }
    }
}

impl Error for DamonFailure {}

/// What sets up a thread that moves cold pages of the near nodes to the first far one, and one that counts what is
/// accessed on the far nodes, in order.
pub(super) fn start_writes(tree: &dyn Tree, damon: Option<&Damon>) -> Result<Vec<Write>, DamonFailure> {
    let damon = damon.ok_or(DamonFailure::Absent)?;
    if !damon.kdamonds.is_empty() {
        return Err(DamonFailure::Busy { kdamonds: damon.kdamonds.len() });
    }
    let nodes = Nodes::read(tree).map_err(|_| DamonFailure::NoFarNode)?;
    let far = nodes.far().next().ok_or(DamonFailure::NoFarNode)?.number;
    let ranges: Vec<(u64, u64)> = nodes.near().flat_map(|node| ranges(tree, node.number)).collect();
    if ranges.is_empty() {
        return Err(DamonFailure::NoRanges);
    }
    let far_ranges: Vec<(u64, u64)> = nodes.far().flat_map(|node| self::ranges(tree, node.number)).collect();
    let threads = if far_ranges.is_empty() { 1 } else { 2 };
    let mut writes = vec![Write::new(format!("{KDAMONDS}/nr_kdamonds"), threads.to_string())];
    writes.extend(thread_writes(0, &ranges, &cold_scheme(far)));
    if threads == 2 {
        writes.extend(thread_writes(1, &far_ranges, &counting_scheme()));
    }
    writes.extend((0..threads).map(|number| Write::new(format!("{KDAMONDS}/{number}/state"), "on")));
    Ok(writes)
}

/// The files of a scheme, below its directory, with their values.
type SchemeFiles = Vec<(&'static str, String)>;

/// Moves pages that are cold to a node.
fn cold_scheme(far: u32) -> SchemeFiles {
    let mut files = vec![("action", "migrate_cold".to_owned()), ("target_nid", far.to_string())];
    files.extend(pattern(0..=0, COLD_INTERVALS));
    files.push(("quotas/bytes", QUOTA_BYTES.to_string()));
    files.push(("quotas/reset_interval_ms", "1000".to_owned()));
    files
}

/// Counts what is accessed, and moves nothing: `aquifer tiering hot` reads what it has found.
fn counting_scheme() -> SchemeFiles {
    let mut files = vec![("action", "stat".to_owned())];
    files.extend(pattern(1..=u32::MAX, 0));
    files
}

/// Regions of any size with so many accesses in an interval, for at least so many intervals.
fn pattern(accesses: std::ops::RangeInclusive<u32>, age_min: u64) -> SchemeFiles {
    vec![
        ("access_pattern/sz/min", "4096".to_owned()),
        ("access_pattern/sz/max", u64::MAX.to_string()),
        ("access_pattern/nr_accesses/min", accesses.start().to_string()),
        ("access_pattern/nr_accesses/max", accesses.end().to_string()),
        ("access_pattern/age/min", age_min.to_string()),
        ("access_pattern/age/max", u32::MAX.to_string()),
    ]
}

/// What sets up one thread over these physical addresses.
fn thread_writes(number: u32, ranges: &[(u64, u64)], scheme: &SchemeFiles) -> Vec<Write> {
    let context = format!("{KDAMONDS}/{number}/contexts/0");
    let target = format!("{context}/targets/0");
    let mut writes = vec![
        Write::new(format!("{KDAMONDS}/{number}/contexts/nr_contexts"), "1"),
        Write::new(format!("{context}/operations"), "paddr"),
        Write::new(format!("{context}/targets/nr_targets"), "1"),
        Write::new(format!("{target}/regions/nr_regions"), ranges.len().to_string()),
    ];
    for (index, (start, end)) in ranges.iter().enumerate() {
        writes.push(Write::new(format!("{target}/regions/{index}/start"), start.to_string()));
        writes.push(Write::new(format!("{target}/regions/{index}/end"), end.to_string()));
    }
    writes.push(Write::new(format!("{context}/schemes/nr_schemes"), "1"));
    writes.extend(scheme.iter().map(|(file, value)| Write::new(format!("{context}/schemes/0/{file}"), value)));
    writes
}

/// What ends all threads of DAMON's interface.
pub fn stop_writes(damon: &Damon) -> Vec<Write> {
    let running = damon.kdamonds.iter().filter(|kdamond| kdamond.is_on);
    let mut writes: Vec<Write> =
        running.map(|kdamond| Write::new(format!("{KDAMONDS}/{}/state", kdamond.number), "off")).collect();
    if !damon.kdamonds.is_empty() {
        writes.push(Write::new(format!("{KDAMONDS}/nr_kdamonds"), "0"));
    }
    writes
}

/// The physical addresses of a node's memory, adjacent blocks together.
pub fn ranges(tree: &dyn Tree, node: u32) -> Vec<(u64, u64)> {
    // The kernel writes this one in hexadecimal without a prefix.
    let size = tree.text(&format!("{BLOCKS}/block_size_bytes")).ok();
    let Some(size) = size.and_then(|text| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()) else {
        return Vec::new();
    };
    let names = tree.names(&format!("/sys/devices/system/node/node{node}")).unwrap_or_default();
    let mut blocks: Vec<u64> = names.iter().filter_map(|name| name.strip_prefix("memory")?.parse().ok()).collect();
    blocks.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for block in blocks {
        let Some((start, end)) = block.checked_mul(size).and_then(|start| Some((start, start.checked_add(size)?)))
        else {
            continue;
        };
        match ranges.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => ranges.push((start, end)),
        }
    }
    ranges
}
