// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The memory of one NUMA node as a tier: memory behind CXL that the kernel shows as a node, or another socket's DRAM.
//!
//! It is the tier in local memory (`dram.rs`) whose file takes its pages from that node alone, by a policy of the file
//! (mbind(2)), so that they come from there whichever process writes them. They are installed from where they lie. A
//! node that fills up has nothing to fall back to: the kernel then kills a process, as it does when a machine runs out
//! of memory. So a tier is never larger than what the node has available when the tier is opened.

use aquifer_core::units::ByteSize;
use aquifer_nodes::{Machine, Nodes, Tree};
use aquifer_sys::lent_memory::bind_file;
use aquifer_tier::OpenFailure;
use aquifer_tier::memory_file::file_bytes_max;

use crate::dram::{CAPACITY_BYTES_MIN, DEFAULT_BYTES_MIN, Dram};

pub(crate) const NAME: &str = "node";

/// What a default leaves of a node to others: a tenth. A choice; a node of far memory usually has no other users.
const RESERVE_DIVISOR: u64 = 10;

/// A tier of `size` on node `number`, by default nine tenths of what the node has available.
pub(crate) fn open(number: u32, size: Option<ByteSize>) -> Result<Dram, OpenFailure> {
    let capacity_bytes = capacity_bytes(&Machine::running(), number, size)?;
    Dram::on_file(NAME, capacity_bytes, |file| {
        let bytes = usize::try_from(capacity_bytes).unwrap_or(usize::MAX);
        let what = "taking its memory from the node";
        bind_file(file, bytes, number).map_err(|source| OpenFailure::System { tier: NAME, what, source })
    })
}

/// Refuses a node that does not exist, or has too little memory.
pub(crate) fn check(number: u32, size: Option<ByteSize>) -> Result<(), OpenFailure> {
    capacity_bytes(&Machine::running(), number, size).map(|_| ())
}

/// The bytes that node `number` has available.
fn find(tree: &dyn Tree, number: u32) -> Result<u64, OpenFailure> {
    let local = |failure| OpenFailure::Local { failure: Box::new(failure) };
    let nodes = Nodes::read(tree).map_err(local)?;
    Ok(nodes.with_memory(number).map_err(local)?.available_bytes)
}

fn capacity_bytes(tree: &dyn Tree, number: u32, size: Option<ByteSize>) -> Result<u64, OpenFailure> {
    let (available_bytes, limit_bytes) = (find(tree, number)?, file_bytes_max());
    let default_bytes = (available_bytes - available_bytes / RESERVE_DIVISOR).min(limit_bytes);
    let wanted_bytes = size.map_or(default_bytes, |size| size.0);
    let minimum_bytes = if size.is_some() { CAPACITY_BYTES_MIN } else { DEFAULT_BYTES_MIN };
    if wanted_bytes > limit_bytes || (size.is_none() && limit_bytes < minimum_bytes) {
        let wanted_bytes = size.map(|size| size.0);
        return Err(OpenFailure::FileLimit { tier: NAME, wanted_bytes, limit_bytes });
    }
    if wanted_bytes < minimum_bytes && size.is_some() {
        return Err(OpenFailure::TooSmall { tier: NAME, wanted_bytes, minimum_bytes });
    }
    if wanted_bytes > available_bytes || wanted_bytes < minimum_bytes {
        let wanted_bytes = wanted_bytes.max(minimum_bytes);
        return Err(OpenFailure::NoMemory { tier: NAME, wanted_bytes, available_bytes });
    }
    Ok(wanted_bytes - wanted_bytes % aquifer_tier::PAGE as u64)
}

#[cfg(test)]
mod tests {
    use aquifer_nodes::Fixture;

    use super::*;

    fn tree(free_kib: u64) -> Fixture {
        Fixture::new()
            .with("/sys/devices/system/node/online", "0-1")
            .with("/sys/devices/system/node/possible", "0-2")
            .with("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1048576 kB")
            .with(
                "/sys/devices/system/node/node1/meminfo",
                &format!("Node 1 MemTotal: 1048576 kB\nNode 1 MemFree: {free_kib} kB"),
            )
    }

    #[test]
    fn a_default_takes_nine_tenths_of_what_the_node_has() {
        assert_eq!(capacity_bytes(&tree(1 << 20), 1, None).unwrap(), ((1 << 30) - (1 << 30) / 10) / 4096 * 4096);
        assert_eq!(capacity_bytes(&tree(1 << 20), 1, Some(ByteSize(64 << 20))).unwrap(), 64 << 20);
    }

    #[test]
    fn a_node_that_cannot_hold_the_tier_is_refused_with_a_remedy() {
        for (number, size, free_kib, part) in [
            (1, Some(2 << 30), 1 << 20, "size="),
            (1, Some(4), 1 << 20, "size=4GiB"),
            (1, None, 1024, "only 1MiB of memory are available"),
            (0, None, 1 << 20, "only 0B"),
            (2, None, 1 << 20, "is offline"),
            (3, None, 1 << 20, "there is no NUMA node 3"),
        ] {
            let failure = capacity_bytes(&tree(free_kib), number, size.map(ByteSize)).unwrap_err();
            let text = failure.to_string();
            assert!(text.contains(part) && text.contains(';') && !text.contains('\n'), "{text}");
        }
    }
}
