// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why a memory device cannot be a tier: one line each that names the cause and the remedy.

use std::error::Error;
use std::path::PathBuf;
use std::{fmt, io};

use aquifer_core::units::ByteSize;

/// A memory device, or a file on one, that cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum DaxFailure {
    /// No driver has the device, so it has no `/dev` entry.
    Disabled {
        /// The given path.
        path: PathBuf,
        /// The device.
        name: String,
    },
    /// Another instance, or a donor, has locked it.
    Held {
        /// Which.
        path: PathBuf,
    },
    /// The kernel has the device's memory, as a node.
    KernelHasIt {
        /// The given path.
        path: PathBuf,
        /// The device.
        name: String,
        /// The node.
        node: Option<u32>,
    },
    /// The kernel refused the mapping.
    Mapping {
        /// The device or file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// There is nothing of that name.
    Missing {
        /// The given path.
        path: PathBuf,
    },
    /// The process has too few addresses (`ulimit -v`).
    NoAddresses {
        /// The device or file to map.
        path: PathBuf,
        /// How many it takes.
        bytes: u64,
    },
    /// The file system does not map the file directly.
    NotDirect {
        /// The file.
        path: PathBuf,
    },
    /// Neither a memory device nor a file.
    NotMemory {
        /// What.
        path: PathBuf,
    },
    /// The device, or the file system, has less than was requested.
    TooShort {
        /// Which.
        path: PathBuf,
        /// What was requested.
        wanted: u64,
        /// What it has.
        room: u64,
    },
}

impl fmt::Display for DaxFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DaxFailure::Disabled { path, name } => write!(
                f,
                "no driver has the memory device {name}, so {} cannot be opened; run 'aquifer cxl offline {name}', which gives \
                 it to programs",
                path.display()
            ),
            DaxFailure::Held { path } => {
                write!(f, "{} is held by another instance or a donor; give each its own device", path.display())
            }
            DaxFailure::KernelHasIt { path, name, node: Some(node) } => write!(
                f,
                "the kernel has the memory of {name} as NUMA node {node}, so {} cannot be opened; use --tier node:{node}, or \
                 run 'aquifer cxl offline {name}'",
                path.display()
            ),
            DaxFailure::KernelHasIt { path, name, node: None } => write!(
                f,
                "the kernel has the memory of {name}, so {} cannot be opened; run 'aquifer cxl offline {name}', which gives it \
                 to programs",
                path.display()
            ),
            DaxFailure::Mapping { path, source } => {
                write!(f, "{} cannot be mapped: {source}; see the kernel log (dmesg)", path.display())
            }
            DaxFailure::Missing { path } => write!(
                f,
                "there is no {}; 'aquifer cxl list' shows the memory devices, and a file on a file system with -o dax \
                 must exist",
                path.display()
            ),
            DaxFailure::NoAddresses { path, bytes } => write!(
                f,
                "{} needs {} of addresses, more than this process may have; raise the limit (ulimit -v), or give the \
                 tier less with size=",
                path.display(),
                ByteSize(*bytes)
            ),
            DaxFailure::NotDirect { path } => write!(
                f,
                "{} is not mapped directly to memory: its file system is not one with -o dax; use flash:{0}",
                path.display()
            ),
            DaxFailure::NotMemory { path } => write!(
                f,
                "{} is neither a memory device nor a file on one; give one like /dev/dax0.0 ('aquifer cxl list')",
                path.display()
            ),
            DaxFailure::TooShort { path, wanted, room } => write!(
                f,
                "the dax tier should hold {}, but {} has {}; give it less with size=",
                ByteSize(*wanted),
                path.display(),
                ByteSize(*room)
            ),
        }
    }
}

impl Error for DaxFailure {}
