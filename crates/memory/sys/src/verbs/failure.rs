// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why RDMA is not available: one line each, with the remedy.

use std::fmt;
use std::io;

/// The reason why RDMA is not available.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerbsFailure {
    /// A call of the library, or of the kernel beneath it, has failed.
    Call {
        /// The name of the call.
        what: &'static str,
        /// Its error number.
        errno: i32,
    },
    /// No RDMA device.
    NoDevice,
    /// The library is not installed.
    NoLibrary(String),
    /// There is a device, but none of its ports is up and has an address.
    NoPort(String),
    /// No device of this name.
    NoSuchDevice {
        /// The requested name.
        wanted: String,
        /// The available names.
        there: Vec<String>,
    },
    /// The library lacks this function.
    OldLibrary(String),
}

impl VerbsFailure {
    /// The kernel's error number, if there was one.
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
