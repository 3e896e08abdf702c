// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor's settings, and why it may be unable to start.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use aquifer_control::{ManagerAddress, NotARegistration, NotStarted};
use aquifer_fabric::DonorId;
use aquifer_sys::small_file;
use aquifer_sys::verbs::VerbsFailure;
use aquifer_tls::{CredentialFailure, DonorSide, Files};
use aquifer_wire::SLAB_BYTES;

use crate::body_budget::BODIES_BYTES_MAX;
use crate::fencing_file::RememberFailure;
use crate::leases::SLABS_MAX;
use crate::memory::Source;
use crate::tenants::{self, Limits, TenantLimits};
use crate::wiper::PARTS;

/// How long leases last after a borrower's last sign of life. A choice: long enough for an extremely busy machine, or a
/// process that is briefly stopped in a debugger; short enough that nobody waits for the memory.
pub const LEASE: Duration = Duration::from_secs(60);
/// Connections served at the same time, each by a thread with a buffer of at most 2 MiB while the connection is busy. A
/// borrower has one, and about ten while it is busy.
pub const CONNECTIONS_MAX: usize = 4096;

/// Where a donor listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A socket on this machine: programs of the same user and of root share its memory.
    Local(PathBuf),
    /// An address and port.
    Tcp(SocketAddr),
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Tcp(address)
    }
}

impl From<([u8; 4], u16)> for Address {
    fn from(address: ([u8; 4], u16)) -> Address {
        Address::Tcp(address.into())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Local(path) => write!(f, "{LOCAL}{}", path.display()),
            Address::Tcp(address) => write!(f, "{address}"),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        match text.strip_prefix(LOCAL) {
            Some("") => Err(format!("write {LOCAL} and a path for the socket, for example unix:/run/aquifer.sock")),
            Some(path) => Ok(Address::Local(path.into())),
            None => text.parse().map(Address::Tcp).map_err(|_| {
                "write an address on this machine and a port, for example 10.0.0.2:7411 or [::]:7411, or unix:PATH"
                    .into()
            }),
        }
    }
}

/// The prefix of a socket's path.
const LOCAL: &str = "unix:";

/// The RDMA device over which to lend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The device with the address at which the donor listens, or else the first usable one.
    Any,
    /// The device of this name.
    Named(String),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        match text {
            "auto" => Ok(DeviceChoice::Any),
            "" => Err("write auto, or the name of an RDMA device ('rdma link' shows them)".into()),
            name => Ok(DeviceChoice::Named(name.to_owned())),
        }
    }
}

/// How the connections are protected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Security {
    /// Not at all: anybody who can reach the donor can borrow, and anybody on the path can read and change what is
    /// lent.
    Plain,
    /// By TLS 1.3. A borrower must show a certificate that the authority has signed.
    Tls(Files),
}

/// The same, with the files' contents.
#[derive(Clone, Debug)]
pub(crate) enum Protection {
    Plain,
    Tls(Arc<DonorSide>),
}

impl Security {
    pub(crate) fn protection(&self, revocations: Option<&Path>) -> Result<Protection, StartFailure> {
        Ok(match self {
            Security::Plain => Protection::Plain,
            Security::Tls(files) => {
                let credentials = files.load().map_err(StartFailure::Credentials)?;
                Protection::Tls(Arc::new(credentials.for_donor(revocations).map_err(StartFailure::Credentials)?))
            }
        })
    }
}

/// How long a donor waits for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the first byte of a frame to its last, and for the whole greeting.
    pub frame: Duration,
    /// For a TLS handshake from its first byte to its last.
    pub handshake: Duration,
    /// From one frame to the next.
    pub idle: Duration,
    /// The idle time after which a connection is ended for a newcomer, when the number of connections is at its
    /// maximum.
    pub spare: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        // A frame of 2 MiB takes 5 s at 3.4 Mbit/s. A borrower reconnects when it needs a connection.
        let (frame, handshake) = (Duration::from_secs(5), Duration::from_secs(5));
        Timeouts { frame, handshake, idle: Duration::from_secs(600), spare: Duration::from_secs(1) }
    }
}

/// A donor's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it listens.
    pub listen: Address,
    /// How many bytes it lends; a remainder smaller than a slab is not used.
    pub capacity_bytes: u64,
    /// How much one tenant may have, unless a file says otherwise; `None`: all of it.
    pub quota_bytes: Option<u64>,
    /// A file with the limits of tenants (`tenants.rs`).
    pub tenants: Option<PathBuf>,
    /// The file for audit lines; `None`: none are written.
    pub audit: Option<PathBuf>,
    /// Certificate revocation lists, in PEM; under TLS.
    pub revocations: Option<PathBuf>,
    /// The memory for the buffers of all requests' bodies together. The buffers of one tenant may take half of it.
    pub body_bytes_max: u64,
    /// The source of the memory, unless the memory is shared: shared memory is always a memory file.
    pub source: Source,
    /// The NUMA node of the memory; `None`: any.
    pub node: Option<u32>,
    /// Whether borrowers may access their leases by RDMA, bypassing the donor; only if it listens at a port.
    pub rdma: Option<DeviceChoice>,
    /// How connections are protected, where they leave the machine.
    pub security: Security,
    /// How long leases last.
    pub lease: Duration,
    /// How long it waits for a peer.
    pub timeouts: Timeouts,
    /// The maximum number of connections at the same time.
    pub connections_max: usize,
    /// The wiping thread takes at most 1/`wipe_parts` of a CPU.
    pub wipe_parts: u32,
    /// The path of the control socket; `None`: there is none.
    pub control: Option<PathBuf>,
    /// The fabric managers that place reservations here; `None`: there are none.
    pub managed: Option<Managed>,
}

/// How fabric managers know this donor. It keeps a control channel to each of them.
#[derive(Clone, Debug)]
pub struct Managed {
    /// The managers.
    pub managers: Vec<ManagerAddress>,
    /// The donor's name in the pool.
    pub id: DonorId,
    /// Where borrowers reach it; empty: where it listens.
    pub addresses: Vec<String>,
    /// Where it is and what it is like (`aquifer_control::Registration`).
    pub labels: BTreeMap<String, String>,
    /// The certificate for the channels; `None`: the one that borrowers are shown.
    pub tls: Option<Files>,
    /// The file in which it remembers the newest term; `None`: it forgets when it ends.
    pub state: Option<PathBuf>,
}

impl Settings {
    /// The given settings, and defaults for the rest.
    pub fn new(listen: Address, capacity_bytes: u64, source: Source, security: Security) -> Settings {
        Settings {
            listen,
            capacity_bytes,
            quota_bytes: None,
            tenants: None,
            audit: None,
            revocations: None,
            body_bytes_max: BODIES_BYTES_MAX,
            source,
            node: None,
            rdma: None,
            security,
            lease: LEASE,
            timeouts: Timeouts::default(),
            connections_max: CONNECTIONS_MAX,
            wipe_parts: PARTS,
            control: None,
            managed: None,
        }
    }

    /// The number of slabs in the capacity.
    pub(crate) fn slabs(&self) -> Result<u32, StartFailure> {
        let slabs = self.capacity_bytes / SLAB_BYTES;
        match u32::try_from(slabs) {
            Ok(0) => Err(StartFailure::TooSmall),
            Ok(slabs) if slabs <= SLABS_MAX => Ok(slabs),
            _ => Err(StartFailure::TooLarge),
        }
    }

    /// The IP address at which it listens, if it listens at one.
    pub(crate) fn local_ip(&self) -> Option<IpAddr> {
        match self.listen {
            Address::Tcp(address) if !address.ip().is_unspecified() => Some(address.ip()),
            _ => None,
        }
    }

    /// The limits of all tenants, from the current contents of their file.
    pub(crate) fn limits(&self) -> Result<TenantLimits, StartFailure> {
        let others = Limits { quota_bytes: self.quota_bytes, ..Limits::default() };
        let Some(path) = &self.tenants else { return Ok(TenantLimits::same(others)) };
        let failure = |why| StartFailure::Tenants(path.clone(), why);
        let text = small_file::read_text(path, tenants::FILE_BYTES_MAX)
            .map_err(|error| failure(format!("{error}; check the path")))?;
        TenantLimits::parse(&text, others).map_err(failure)
    }
}

/// Why a donor could not start: one line that names the cause and the remedy.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartFailure {
    /// The control socket cannot be created.
    Control(PathBuf, io::Error),
    /// The TLS files are unusable.
    Credentials(CredentialFailure),
    /// The donor cannot listen at the address.
    Listen(Address, io::Error),
    /// What the fabric managers are to know of this donor is not possible.
    Registration(NotARegistration),
    /// The control channels cannot be kept.
    Managers(NotStarted),
    /// The file that remembers the newest term cannot be used.
    Remembered(RememberFailure),
    /// The memory is not available.
    Memory(Source, io::Error),
    /// The memory is not available from this node.
    Node(u32, io::Error),
    /// The donor cannot lend over RDMA.
    Rdma(VerbsFailure),
    /// The file of audit lines cannot be opened.
    Audit(PathBuf, io::Error),
    /// The file with tenants' limits cannot be read.
    Tenants(PathBuf, String),
    /// A thread or a descriptor is not available.
    System(io::Error),
    /// The capacity is more than a donor can manage.
    TooLarge,
    /// The capacity is less than a slab.
    TooSmall,
}

impl fmt::Display for StartFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartFailure::Control(path, error) if error.kind() == io::ErrorKind::AddrInUse => write!(
                f,
                "{} is there already, and is in use or no control socket; name another path with --control",
                path.display()
            ),
            StartFailure::Control(path, error) => write!(
                f,
                "the control socket {} cannot be made: {error}; name a path in a directory that this user may write to",
                path.display()
            ),
            StartFailure::Audit(path, error) => write!(
                f,
                "no audit lines can be written to {}: {error}; name a file that this user may write to",
                path.display()
            ),
            StartFailure::Tenants(path, why) => write!(f, "the tenants' file {} cannot be used: {why}", path.display()),
            StartFailure::Credentials(failure) => write!(f, "{failure}"),
            StartFailure::Registration(not) => write!(f, "{not}"),
            StartFailure::Managers(not) => write!(f, "{not}"),
            StartFailure::Remembered(failure) => write!(f, "{failure}"),
            StartFailure::Listen(Address::Local(path), error) if error.kind() == io::ErrorKind::AddrInUse => {
                write!(f, "another donor listens at {}; give another path, or end it", path.display())
            }
            StartFailure::Listen(Address::Local(path), error) => write!(
                f,
                "no socket can be made at {}: {error}; give a path of 107 bytes at most in a directory that may be \
                 written to",
                path.display()
            ),
            StartFailure::Listen(address, error) => {
                write!(f, "cannot listen at {address}: {error}; give an address on this machine and a free port")
            }
            StartFailure::Memory(Source::Dax(path), error) => {
                let path = path.display();
                match error.raw_os_error() {
                    Some(libc::EFBIG) => write!(f, "the device {path} is shorter than what is to be lent; lend less"),
                    Some(libc::ENODEV) => write!(
                        f,
                        "{path} is not a memory device; name one such as /dev/dax0.0 ('daxctl list' shows them)"
                    ),
                    Some(libc::EWOULDBLOCK) => {
                        write!(
                            f,
                            "{path} is held by another donor, or by a program as a tier; give each its own device"
                        )
                    }
                    _ => write!(
                        f,
                        "{path} cannot be used: {error}; name a device such as /dev/dax0.0 that this user may write to"
                    ),
                }
            }
            StartFailure::Memory(Source::Huge, error) => write!(
                f,
                "there are not enough huge pages ({error}); reserve them with 'sysctl vm.nr_hugepages=N' \
                 (one for each 2 MiB), or lend anonymous memory"
            ),
            StartFailure::Memory(Source::Memfd, error) => {
                write!(
                    f,
                    "no file in memory of this size ({error}); raise the limit on file size (ulimit -f), or lend less"
                )
            }
            StartFailure::Memory(Source::Anonymous, error) => {
                write!(
                    f,
                    "no memory of this size ({error}); raise the limit on address space (ulimit -v), or lend less"
                )
            }
            StartFailure::Node(node, error) => {
                write!(f, "no memory of NUMA node {node} ({error}); name a node of /sys/devices/system/node")
            }
            StartFailure::Rdma(failure) => write!(f, "nothing can be lent over RDMA: {failure}"),
            StartFailure::System(error) => {
                write!(f, "cannot start a thread or open a descriptor ({error}); raise the limits (ulimit -a)")
            }
            StartFailure::TooLarge => {
                write!(f, "a donor lends at most {} TiB; start a second one", (u64::from(SLABS_MAX) * SLAB_BYTES) >> 40)
            }
            StartFailure::TooSmall => write!(f, "a donor lends slabs of 2 MiB; lend at least one, for example 64GiB"),
        }
    }
}

impl std::error::Error for StartFailure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_cannot_be_lent_has_a_message_of_one_line_with_a_remedy() {
        for (errno, part) in [
            (libc::EFBIG, "lend less"),
            (libc::ENODEV, "daxctl list"),
            (libc::EWOULDBLOCK, "is held by another donor, or by a program as a tier; give each"),
            (libc::EACCES, "this user"),
        ] {
            let source = Source::Dax("/dev/dax0.0".into());
            let text = StartFailure::Memory(source, io::Error::from_raw_os_error(errno)).to_string();
            assert!(text.contains(part) && text.contains("; ") && text.contains("/dev/dax0.0"), "{text}");
            assert!(!text.contains('\n'), "{text}");
        }
    }
}
