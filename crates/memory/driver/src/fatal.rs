// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Errors that a space cannot recover from.

use std::fmt;

/// Why a space cannot go on. Some of its memory may be unreachable; none of it reads as wrong bytes.
///
/// The caller that created the space decides what happens next. An unchanged program ends with this message, because a
/// load or store cannot return an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fatal {
    /// An operation waited longer than the tier and its medium should take.
    NoAnswer,
    /// The kernel refused to install a block, with this errno.
    Install(i32),
    /// The kernel refused to lift a write-protection, with this errno.
    Protection(i32),
    /// The kernel refused to install a page of zeros, with this errno.
    ZeroPage(i32),
    /// The kernel refused to take back the pages of a frame, with this errno.
    FramePages(i32),
    /// Only a part of a block's pages could be evicted.
    Divided,
    /// The kernel no longer reports faults, with this errno.
    UnreadFaults(i32),
    /// The tier's queue starts no transfers.
    QueueStarts,
    /// The tier's queue accepts no more transfers and completes none.
    QueueFull,
    /// There is no room for a block that the program partly gives back.
    PartlyDiscarded,
    /// Pages of a block are where they must not be; the text says where.
    Misplaced(&'static str),
}

impl Fatal {
    /// The cause and the remedy. Allocates nothing.
    pub fn text(self) -> &'static str {
        match self {
            Fatal::NoAnswer => {
                "a fault could not be resolved within 120 s: the tier does not answer; check the medium and the kernel \
                 log (dmesg)"
            }
            Fatal::Install(_) => "the kernel refused to install a block; please report this line, with uname -r",
            Fatal::Protection(_) => {
                "the kernel refused to lift a write-protection; please report this line, with uname -r"
            }
            Fatal::ZeroPage(_) => "the kernel refused to install a zero page; please report this line, with uname -r",
            Fatal::FramePages(_) => "the kernel refused to take pages back; please report this line, with uname -r",
            Fatal::Divided => "the kernel moved only a part of a block; please report this line, with uname -r",
            Fatal::UnreadFaults(_) => "the userfaultfd cannot be read; please report this line, with uname -r",
            Fatal::QueueStarts => "the tier's queue does not start transfers; check the kernel log (dmesg)",
            Fatal::QueueFull => "the tier's queue is full and completes nothing; check the kernel log (dmesg)",
            Fatal::PartlyDiscarded => {
                "the program gives back a part of a block, and there is no room in which to keep the rest; check the tier, \
                 or add DRAM (--dram)"
            }
            Fatal::Misplaced(text) => text,
        }
    }

    /// The kernel's error, if there was one.
    pub fn errno(self) -> Option<i32> {
        match self {
            Fatal::Install(errno)
            | Fatal::Protection(errno)
            | Fatal::ZeroPage(errno)
            | Fatal::FramePages(errno)
            | Fatal::UnreadFaults(errno) => Some(errno),
            _ => None,
        }
    }
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errno() {
            Some(errno) => write!(f, "{} (errno {errno})", self.text()),
            None => f.write_str(self.text()),
        }
    }
}

impl std::error::Error for Fatal {}
