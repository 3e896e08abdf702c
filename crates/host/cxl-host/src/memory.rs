// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Brings a memory device's memory online as a NUMA node, and takes it offline.
//!
//! The kernel adds and removes memory in blocks (128 MiB, or 2 GiB on large machines). A block goes offline when all of
//! its pages have moved elsewhere: the kernel moves them, if it may and there is room. It tries again without an end
//! where pages do not move, so each block has a limit ([`BLOCK_TIME_MAX`]). See the kernel's
//! `Documentation/admin-guide/mm/memory-hotplug.rst`.
//!
//! | before      | [`online`]                                    | [`offline`]                                        |
//! |-------------|-----------------------------------------------|----------------------------------------------------|
//! | disabled    | the driver `kmem` takes it, blocks go online  | the driver `device_dax` takes it                   |
//! | devdax      | the same, if no program has it                | nothing                                            |
//! | system-ram  | blocks go online                              | blocks go offline, then `device_dax` takes it      |
//!
//! The kernel takes a device from `device_dax` although programs have it mapped: their next access is SIGBUS. So
//! its users are looked for first.

use std::fs::File;
use std::io;
use std::time::Duration;

use aquifer_nodes::dax::{self, Device, Mode, set_mode};
use aquifer_nodes::{Tree, Write, WriteFailure};

use crate::failure::CxlFailure;
use crate::holders::{holders, users};
use crate::listing::is_not_there;

const BLOCKS: &str = "/sys/devices/system/memory";
/// More blocks than a device has: 128 TiB of the smallest ones.
const BLOCKS_MAX: u64 = 1 << 20;

/// How long the kernel may take to bring a block online or offline. To move 2 GiB, the largest block, takes a second
/// within DRAM and some ten seconds to a disk (swap); an agent serves its other devices only afterwards.
pub const BLOCK_TIME_MAX: Duration = Duration::from_secs(30);

/// Which memory may come from a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zone {
    /// Only what the kernel can move, so that the device can go again.
    Movable,
    /// Everything, the kernel's own memory included.
    Normal,
}

impl Zone {
    /// The kernel's word for it.
    const fn word(self) -> &'static str {
        match self {
            Zone::Movable => "online_movable",
            Zone::Normal => "online_kernel",
        }
    }
}

/// The memory blocks of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// The length of a block.
    pub block_bytes: u64,
    /// Their numbers that are online.
    pub online: Vec<u64>,
    /// Their numbers that are offline.
    pub offline: Vec<u64>,
}

/// How far a device has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The blocks that are done.
    pub done: usize,
    /// All of its blocks.
    pub all: usize,
    /// The length of a block.
    pub block_bytes: u64,
}

/// The blocks that the kernel has made of a device. None before the kernel has its memory.
pub fn blocks(tree: &dyn Tree, device: &Device) -> Result<Blocks, CxlFailure> {
    let failure = |what| CxlFailure::NoBlocks { device: device.name.clone(), what };
    let start = device.resource.ok_or_else(|| failure("its address is not shown (that needs root)"))?;
    // The kernel writes this one in hexadecimal without a prefix.
    let size = tree.text(&format!("{BLOCKS}/block_size_bytes")).ok();
    let block_bytes = size.and_then(|text| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok());
    let block_bytes = block_bytes.filter(|bytes| *bytes > 0);
    let block_bytes = block_bytes.ok_or_else(|| failure("this kernel cannot add memory (CONFIG_MEMORY_HOTPLUG)"))?;
    // Only whole blocks are added.
    let (first, end) = (start.div_ceil(block_bytes), start.saturating_add(device.bytes) / block_bytes);
    if end.saturating_sub(first) > BLOCKS_MAX {
        return Err(failure("the kernel shows more of them than there can be"));
    }
    let mut blocks = Blocks { block_bytes, ..Blocks::default() };
    for block in first..end {
        let path = format!("{BLOCKS}/memory{block}/state");
        match tree.text(&path) {
            Ok(state) if state == "online" => blocks.online.push(block),
            Ok(_) => blocks.offline.push(block),
            Err(error) if is_not_there(&error) => {}
            // It may be online.
            Err(source) => return Err(CxlFailure::Unreadable { path, source }),
        }
    }
    Ok(blocks)
}

/// Checks that no program has a device that is for programs, and keeps those of Aquifer out of it as long as the result
/// exists.
pub(crate) fn claim(tree: &dyn Tree, device: &Device) -> Result<Option<File>, CxlFailure> {
    if device.mode != Mode::Devdax {
        return Ok(None);
    }
    let opened = |holders| CxlFailure::Opened { device: device.name.clone(), holders };
    let holders = users(tree, &device.name)?;
    if !holders.is_empty() {
        return Err(opened(holders));
    }
    let path = format!("/dev/{}", device.name);
    match tree.lock(&path) {
        Ok(lock) => Ok(lock),
        // By a program that has just started, or whose descriptors are not shown.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(opened(users(tree, &device.name)?)),
        // The packaged agent has a /dev without devices.
        Err(error) if is_not_there(&error) => Ok(None),
        Err(source) => Err(CxlFailure::Unreadable { path, source }),
    }
}

/// Gives a device's memory to the kernel, unless a program has the device. Blocks that are online already stay as they
/// are, except that with [`Zone::Movable`] each becomes movable: the kernel may have brought them online by itself
/// (`auto_online_blocks`), and its own memory in them would keep the device for ever.
pub fn online(
    tree: &dyn Tree,
    device: &Device,
    zone: Zone,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Blocks, CxlFailure> {
    let claimed = claim(tree, device)?;
    set_mode(tree, device, Mode::SystemRam).map_err(CxlFailure::write)?;
    drop(claimed);
    let found = blocks(tree, device)?;
    if found.online.is_empty() && found.offline.is_empty() {
        let what = "the kernel has made none; the device may be smaller than one block";
        return Err(CxlFailure::NoBlocks { device: device.name.clone(), what });
    }
    for block in unmovable(tree, &found.online).into_iter().filter(|_| zone == Zone::Movable) {
        let kept = |write| CxlFailure::Kept { device: device.name.clone(), block, write: Box::new(write) };
        set_state(tree, block, "offline").map_err(kept)?;
        set_state(tree, block, zone.word()).map_err(CxlFailure::write)?;
    }
    let all = found.online.len() + found.offline.len();
    for (done, block) in found.offline.iter().enumerate() {
        set_state(tree, *block, zone.word()).map_err(CxlFailure::write)?;
        progress(&Progress { done: found.online.len() + done + 1, all, block_bytes: found.block_bytes });
    }
    blocks(tree, device)
}

/// Takes a device's memory from the kernel, for programs that open the device. If it is in use, it is moved to other
/// nodes with `migrate`, and otherwise nothing is changed. When a block cannot be emptied, or not within
/// [`BLOCK_TIME_MAX`], the others come back.
pub fn offline(
    tree: &dyn Tree,
    device: &Device,
    migrate: bool,
    progress: &mut dyn FnMut(&Progress),
) -> Result<(), CxlFailure> {
    if device.mode == Mode::SystemRam {
        empty(tree, device, migrate, progress)?;
    }
    let now = dax::device(tree, &device.name).unwrap_or_else(|| device.clone());
    set_mode(tree, &now, Mode::Devdax).map_err(CxlFailure::write)
}

fn empty(
    tree: &dyn Tree,
    device: &Device,
    migrate: bool,
    progress: &mut dyn FnMut(&Progress),
) -> Result<(), CxlFailure> {
    let found = blocks(tree, device)?;
    if let Some(node) = device.node.filter(|_| !migrate && !found.online.is_empty()) {
        let holders = holders(tree, node)?;
        if !holders.is_empty() {
            return Err(CxlFailure::Held { device: device.name.clone(), node, holders });
        }
    }
    let zones: Vec<&str> = found.online.iter().map(|block| zone_of(tree, *block)).collect();
    // From the end, where memory is allocated last.
    for (done, block) in found.online.iter().rev().enumerate() {
        if let Err(write) = set_state(tree, *block, "offline") {
            let holders = device.node.and_then(|node| holders(tree, node).ok()).unwrap_or_default();
            let emptied = found.online.iter().zip(&zones).rev().take(done);
            let left_offline = emptied.filter(|(block, zone)| set_state(tree, **block, zone).is_err()).count();
            let (device, block, write) = (device.name.clone(), *block, Box::new(write));
            return Err(CxlFailure::BlockHeld { device, block, write, holders, left_offline });
        }
        progress(&Progress { done: done + 1, all: found.online.len(), block_bytes: found.block_bytes });
    }
    Ok(())
}

/// The online blocks of these in which the kernel may put memory of its own.
pub(crate) fn unmovable(tree: &dyn Tree, online: &[u64]) -> Vec<u64> {
    online.iter().copied().filter(|block| zone_of(tree, *block) != Zone::Movable.word()).collect()
}

/// How a block was brought online, to bring it back in the same way. As movable if that cannot be read: then it can go
/// offline again.
fn zone_of(tree: &dyn Tree, block: u64) -> &'static str {
    let zones = tree.text(&format!("{BLOCKS}/memory{block}/valid_zones"));
    if zones.is_ok_and(|zones| zones != "Movable") { Zone::Normal.word() } else { Zone::Movable.word() }
}

/// Both ways have the limit: a block comes online only when the kernel has ended with the others.
fn set_state(tree: &dyn Tree, block: u64, state: &str) -> Result<(), WriteFailure> {
    let write = Write::new(format!("{BLOCKS}/memory{block}/state"), state);
    let written = tree.write_within(&write.path, &write.value, BLOCK_TIME_MAX);
    written.map_err(|source| WriteFailure { write, done: 0, source })
}
