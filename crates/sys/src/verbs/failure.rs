// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why there is no RDMA: one line each, with the remedy.

use std::fmt;
use std::io;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerbsFailure {
    /// A call of the library's, or of the kernel's behind it, has failed.
    Call {
        /// Which.
        what: &'static str,
        /// With which error number.
        errno: i32,
    },
    /// No RDMA device.
    NoDevice,
    /// The library is not there.
    NoLibrary(String),
    /// A device, but no port of it that is up and has an address to be reached by.
    NoPort(String),
    /// No device of this name.
    NoSuchDevice {
        /// What was asked for.
        wanted: String,
        /// What there is.
        there: Vec<String>,
    },
    /// A library without this function.
    OldLibrary(String),
}

impl VerbsFailure {
    /// The kernel's error number, where there was one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            VerbsFailure::Call { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

impl fmt::Display for VerbsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VerbsFailure::Call { what, errno } => {
                let error = io::Error::from_raw_os_error(*errno);
                let remedy = match *errno {
                    libc::ENOMEM | libc::EAGAIN => {
                        "raise the limit on locked memory (ulimit -l; LimitMEMLOCK=infinity in a unit)"
                    }
                    libc::EACCES | libc::EPERM => "let this user read and write /dev/infiniband/uverbs*",
                    libc::ENOSYS | libc::ENOENT | libc::ENODEV => "load the module ib_uverbs ('modprobe ib_uverbs')",
                    _ => "look into the kernel log (dmesg)",
                };
                write!(f, "{what}: {error}; {remedy}")
            }
            VerbsFailure::NoDevice => f.write_str(
                "there is no RDMA device; load its driver, or try without one: \
                 'modprobe rdma_rxe' and 'rdma link add rxe0 type rxe netdev eth0' make one of a network interface",
            ),
            VerbsFailure::NoLibrary(reason) => write!(
                f,
                "libibverbs cannot be loaded ({reason}); install rdma-core (Debian: libibverbs1 and ibverbs-providers)"
            ),
            VerbsFailure::NoPort(device) => write!(
                f,
                "no port of the RDMA device {device} is up and has an address; set its interface up and give it an \
                 address ('rdma link' shows it)"
            ),
            VerbsFailure::NoSuchDevice { wanted, there } if there.is_empty() => {
                write!(
                    f,
                    "there is no RDMA device {wanted}, and no other one; load its driver ('rdma link' shows them)"
                )
            }
            VerbsFailure::NoSuchDevice { wanted, there } => {
                write!(f, "there is no RDMA device {wanted}; name one of {}", there.join(", "))
            }
            VerbsFailure::OldLibrary(name) => {
                write!(f, "libibverbs has no {name}; install rdma-core 26 or later")
            }
        }
    }
}

impl std::error::Error for VerbsFailure {}
