// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why CXL memory could not be brought up or taken away: one line each that names the cause and the remedy.

use std::error::Error;
use std::fmt;

use aquifer_nodes::WriteFailure;

use crate::check::Finding;
use crate::holders::Holder;
use crate::memory::BLOCK_TIME_MAX;

/// The holders that a message names; the rest is counted.
const NAMED_MAX: usize = 3;

/// A command that was not carried out.
#[derive(Debug)]
#[non_exhaustive]
pub enum CxlFailure {
    /// A device that was bound to this host is not present.
    Absent {
        /// Its serial number.
        serial: u64,
    },
    /// Several devices have the serial number and the size that were bound, and it is not known which is which.
    Alike {
        /// The serial number.
        serial: u64,
        /// How many.
        count: usize,
    },
    /// A memory block that the kernel could not empty. The blocks that went offline before are online again, unless
    /// `left_offline` says otherwise.
    BlockHeld {
        /// The memory device.
        device: String,
        /// The block's number.
        block: u64,
        /// The kernel's answer.
        write: Box<WriteFailure>,
        /// Who has memory of the node.
        holders: Vec<Holder>,
        /// Blocks that could not be brought back.
        left_offline: usize,
    },
    /// The devices have too little for the size.
    Capacity {
        /// The memdev with the least.
        memdev: String,
        /// What it would have to give.
        wanted: u64,
        /// What it has free.
        free: u64,
    },
    /// The memory has users, and was not to be moved.
    Held {
        /// The memory device.
        device: String,
        /// The node.
        node: u32,
        /// Its users.
        holders: Vec<Holder>,
    },
    /// The region also has other devices.
    Interleaved {
        /// The region.
        region: String,
        /// The device to detach.
        memdev: String,
    },
    /// The kernel has brought a block online by itself, not as movable, and does not empty it.
    Kept {
        /// The memory device.
        device: String,
        /// The block's number.
        block: u64,
        /// The kernel's answer.
        write: Box<WriteFailure>,
    },
    /// The name of a region could not be recorded before its creation.
    NotRecorded {
        /// The region.
        region: String,
        /// Why.
        source: std::io::Error,
    },
    /// The kernel accepted every write, but the result is not what was requested.
    NotCommitted {
        /// The region.
        region: String,
    },
    /// Interleaving over a number of devices, or with a granularity, that the specification or the window does not
    /// have.
    Interleave {
        /// What is wrong with it.
        why: String,
    },
    /// Nothing of that name.
    NoSuch {
        /// `memdev`, `region` or `memory device`.
        kind: &'static str,
        /// The name.
        name: String,
        /// Those that exist.
        found: Vec<String>,
    },
    /// The memory device has no address or no node, so its memory cannot be found.
    NoBlocks {
        /// The memory device.
        device: String,
        /// Which fact is missing.
        what: &'static str,
    },
    /// The memdev has no endpoint, or no free decoder.
    NoDecoder {
        /// The memdev.
        memdev: String,
        /// What is missing.
        what: &'static str,
    },
    /// No window takes volatile memory of that size.
    NoWindow {
        /// The size.
        bytes: u64,
    },
    /// A size differs from the size that was bound.
    SizeDiffers {
        /// The object with that size.
        object: String,
        /// Its size.
        has: u64,
        /// The size that was bound.
        bound: u64,
    },
    /// Programs have the memory device open, or mapped. Such memory cannot be moved.
    Opened {
        /// The memory device.
        device: String,
        /// The programs; none where one has locked the device that cannot be seen from here.
        holders: Vec<Holder>,
    },
    /// The path from the device to the host's addresses is inconsistent.
    Unfit {
        /// The cause, and the remedy.
        finding: Finding,
    },
    /// A file of the kernel that is there cannot be read, so the state of the devices is not known.
    Unreadable {
        /// Its path.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A size that is not whole units.
    Unit {
        /// The size.
        bytes: u64,
        /// The unit.
        unit: u64,
    },
    /// A write that the kernel refused.
    Write {
        /// Which, and why.
        failure: WriteFailure,
        /// What could not be undone after it; `None` if everything is as before.
        left: Option<String>,
    },
}

impl CxlFailure {
    pub(crate) fn write(failure: WriteFailure) -> CxlFailure {
        CxlFailure::Write { failure, left: None }
    }
}

impl fmt::Display for CxlFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CxlFailure::BlockHeld { device, block, write, holders, left_offline } => {
                let why = match write.source.raw_os_error() {
                    Some(libc::EINTR | libc::ETIMEDOUT) => {
                        format!("its pages did not move within {} s", BLOCK_TIME_MAX.as_secs())
                    }
                    _ => write.source.to_string(),
                };
                let used = if holders.is_empty() { "" } else { ", used" };
                write!(f, "memory block {block} of {device} cannot be emptied: {why}{used}{}", named(holders))?;
                match left_offline {
                    0 => f.write_str("; all of it is online as before: end its users, or bring it online as movable"),
                    count => write!(f, "; {count} blocks are still offline: run 'aquifer cxl online {device}'"),
                }
            }
            CxlFailure::Capacity { memdev, wanted, free } => write!(
                f,
                "{memdev} has {} MiB free, and would have to give {} MiB; give a smaller size, or fewer devices",
                free >> 20,
                wanted >> 20
            ),
            CxlFailure::Held { device, node, holders } => write!(
                f,
                "the memory of {device} (node {node}) is in use{}; end them, or add --migrate to move their memory",
                named(holders)
            ),
            CxlFailure::Opened { device, holders } => write!(
                f,
                "/dev/{device} is in use{}; end the programs that have it, because its memory cannot be moved",
                named(holders)
            ),
            CxlFailure::Absent { serial } => {
                write!(f, "device {serial:#x} was bound and is not here; see the kernel log (dmesg) on PCIe hotplug")
            }
            CxlFailure::Alike { serial, count } => write!(
                f,
                "{count} devices here have serial number {serial:#x} and the size that was bound, and nothing tells \
                 them apart; unbind the volume of one of them, and bind it again when the other is online"
            ),
            CxlFailure::Interleaved { region, memdev } => write!(
                f,
                "{region} interleaves {memdev} with other devices; destroy it with 'aquifer cxl destroy {region}'"
            ),
            CxlFailure::Kept { device, block, write } => write!(
                f,
                "the kernel has brought memory block {block} of {device} online by itself, where its own memory could \
                 keep the device for ever, and does not empty it: {write}; write online_movable to \
                 /sys/devices/system/memory/auto_online_blocks, and bind the device again or restart the machine"
            ),
            CxlFailure::NotRecorded { region, source } => write!(
                f,
                "{region} is not made or used, because that could not be recorded: {source}; free space in the state \
                 directory"
            ),
            CxlFailure::SizeDiffers { object, has, bound } => {
                write!(f, "{object} has {has} bytes and {bound} were bound; unbind it and bind it again")
            }
            CxlFailure::Unfit { finding } => write!(f, "{} {}", finding.object, finding.finding),
            CxlFailure::NotCommitted { region } => write!(
                f,
                "the kernel did not commit {region}, which is removed again; see the kernel log (dmesg) on its decoders"
            ),
            CxlFailure::Interleave { why } => {
                let devices = "1, 2, 4, 8 or 16 devices, or 3, 6 or 12 where a window has 3, 6 or 12 ways";
                write!(f, "{why}; give {devices}, and 256 to 16384 bytes, a power of two")
            }
            CxlFailure::NoSuch { kind, name, found } if found.is_empty() => write!(
                f,
                "there is no {kind} {}, and no other {kind} either; see 'aquifer cxl list'",
                name.escape_debug()
            ),
            CxlFailure::NoSuch { kind, name, found } => {
                write!(f, "there is no {kind} {}; name one of: {}", name.escape_debug(), found.join(", "))
            }
            CxlFailure::NoBlocks { device, what } => {
                write!(f, "the memory blocks of {device} cannot be found: {what}; see 'aquifer cxl list'")
            }
            CxlFailure::NoDecoder { memdev, what } => {
                write!(f, "{memdev} has {what}; see the kernel log (dmesg), or destroy a region that it is in")
            }
            CxlFailure::NoWindow { bytes } => write!(
                f,
                "no window of the host's addresses takes {} MiB of volatile memory; give a smaller size, or see the \
                 windows in 'aquifer cxl list'",
                bytes >> 20
            ),
            CxlFailure::Unreadable { path, source } => write!(
                f,
                "{path} cannot be read: {source}; raise the limit of open files or free memory, and try again"
            ),
            CxlFailure::Unit { bytes, unit } => write!(
                f,
                "{bytes} bytes are not a multiple of {} MiB; give one, for example {}MiB",
                unit >> 20,
                (bytes / unit + 1) * (unit >> 20)
            ),
            CxlFailure::Write { failure, left: None } => write!(f, "{failure}"),
            CxlFailure::Write { failure, left: Some(left) } => {
                write!(f, "{failure}; {left} could not be undone: run 'aquifer cxl list'")
            }
        }
    }
}

/// ` by redis-server (4711, 120 MiB) and 2 others`, or nothing.
fn named(holders: &[Holder]) -> String {
    if holders.is_empty() {
        return String::new();
    }
    let named: Vec<String> = holders.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let rest = holders.len().saturating_sub(NAMED_MAX);
    let rest = if rest > 0 { format!(" and {rest} others") } else { String::new() };
    format!(" by {}{rest}", named.join(", "))
}

impl Error for CxlFailure {}

#[cfg(test)]
mod tests {
    use std::io;

    use aquifer_nodes::Write;

    use super::*;

    #[test]
    fn every_message_is_one_line_with_a_remedy() {
        let write = || WriteFailure {
            write: Write::new("/sys/x", "1"),
            done: 0,
            source: io::Error::from_raw_os_error(libc::EBUSY),
        };
        let holders = || (1..6).map(|pid| Holder { pid, name: "redis".into(), bytes: 5 << 20 }).collect::<Vec<_>>();
        let text = |text: &str| text.to_owned();
        let failures = [
            CxlFailure::BlockHeld {
                device: text("dax0.0"),
                block: 3,
                write: Box::new(write()),
                holders: holders(),
                left_offline: 0,
            },
            CxlFailure::BlockHeld {
                device: text("dax0.0"),
                block: 3,
                write: Box::new(write()),
                holders: vec![],
                left_offline: 2,
            },
            CxlFailure::Capacity { memdev: text("mem0"), wanted: 2 << 30, free: 1 << 30 },
            CxlFailure::Held { device: text("dax0.0"), node: 1, holders: holders() },
            CxlFailure::Opened { device: text("dax0.0"), holders: holders() },
            CxlFailure::Opened { device: text("dax0.0"), holders: vec![] },
            CxlFailure::Absent { serial: 0x1000 },
            CxlFailure::Alike { serial: 0x1000, count: 2 },
            CxlFailure::Interleaved { region: text("region0"), memdev: text("mem0") },
            CxlFailure::Kept { device: text("dax0.0"), block: 3, write: Box::new(write()) },
            CxlFailure::NotRecorded { region: text("region0"), source: io::Error::from_raw_os_error(libc::ENOSPC) },
            CxlFailure::SizeDiffers { object: text("mem0"), has: 1, bound: 2 },
            CxlFailure::NotCommitted { region: text("region0") },
            CxlFailure::Interleave { why: text("5 devices") },
            CxlFailure::NoSuch { kind: "memdev", name: text("mem\n9"), found: vec![] },
            CxlFailure::NoSuch { kind: "region", name: text("region9"), found: vec![text("region0")] },
            CxlFailure::NoBlocks { device: text("dax0.0"), what: "it has no address" },
            CxlFailure::NoDecoder { memdev: text("mem0"), what: "no free decoder" },
            CxlFailure::NoWindow { bytes: 1 << 30 },
            CxlFailure::Unreadable { path: text("/sys/x"), source: io::Error::from_raw_os_error(libc::EMFILE) },
            CxlFailure::Unit { bytes: 5, unit: 256 << 20 },
            CxlFailure::write(write()),
            CxlFailure::Write { failure: write(), left: Some(text("region0")) },
        ];
        for failure in failures {
            let text = failure.to_string();
            assert!(text.contains("; ") && !text.contains('\n'), "{text}");
        }
        assert_eq!(named(&holders()[..1]), " by redis (1, 5 MiB)");
        assert!(named(&holders()).ends_with(" and 2 others"));
        assert_eq!(named(&[Holder { pid: 1, name: "redis".into(), bytes: 0 }]), " by redis (1)");
    }
}
