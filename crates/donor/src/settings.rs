// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a donor is to lend and how, and why it may be unable to.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use aquifer_sys::verbs::VerbsFailure;
use aquifer_tls::{CredentialFailure, DonorSide, Files};
use aquifer_wire::SLAB_BYTES;

use crate::bodies::BODIES_BYTES_MAX;
use crate::leases::SLABS_MOST;
use crate::memory::Source;
use crate::tenants::{Limits, TenantLimits};
use crate::wiper::PARTS;

/// How long leases last after a borrower's last sign of life. A choice: long enough for a machine that is busy beyond
/// reason or a process that is looked at by a debugger for a moment, short enough that nobody waits for the memory.
pub const LEASE: Duration = Duration::from_secs(60);
/// Connections that are served at the same time, each by a thread with a buffer of 2 MiB at most while something goes
/// over it. A borrower has one, and about ten while it is busy.
pub const CONNECTIONS_MOST: usize = 4096;

/// Where a donor listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// At a socket of this machine: programs of the same user and of root share its memory.
    Local(PathBuf),
    /// At a port.
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
                "write an address of this machine and a port, for example 10.0.0.2:7411 or [::]:7411, or unix:PATH"
                    .into()
            }),
        }
    }
}

/// What stands before the path of a socket.
const LOCAL: &str = "unix:";

/// Over which RDMA device to lend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The one with the address at which the donor listens, or else the first one that is good for it.
    Any,
    /// The one of this name.
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
    /// Not at all: whoever can reach the donor can borrow, and whoever is in between can read and change what is lent.
    Plain,
    /// By TLS 1.3. A borrower must show a certificate that the authority has signed.
    Tls(Files),
}

/// The same, with what the files hold.
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
pub struct Patience {
    /// From the first byte of a frame to its last, and for a greeting at all.
    pub frame: Duration,
    /// For a TLS handshake from its first byte to its last.
    pub handshake: Duration,
    /// From one frame to the next.
    pub idle: Duration,
    /// From when on a connection over which nothing goes is ended for a newcomer, when there are as many as there may
    /// be.
    pub spare: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        // A frame of 2 MiB takes 5 s at 3.4 Mbit/s. A borrower opens a connection anew when it needs one.
        let (frame, handshake) = (Duration::from_secs(5), Duration::from_secs(5));
        Patience { frame, handshake, idle: Duration::from_secs(600), spare: Duration::from_secs(1) }
    }
}

/// What a donor is to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it listens.
    pub listen: Address,
    /// How much it lends; what is beyond whole slabs is left.
    pub capacity_bytes: u64,
    /// How much one tenant may have, unless a file says otherwise; `None`: all of it.
    pub quota_bytes: Option<u64>,
    /// A file with the limits of tenants (`tenants.rs`).
    pub tenants: Option<PathBuf>,
    /// Where audit lines go; `None`: nowhere.
    pub audit: Option<PathBuf>,
    /// Lists of certificates that were revoked, in PEM; under TLS.
    pub revocations: Option<PathBuf>,
    /// Memory of the buffers of requests' bodies: all together, and twice what one tenant's may take.
    pub body_bytes_most: u64,
    /// What the memory is taken from, unless it is shared: that is always a file in memory.
    pub source: Source,
    /// From which NUMA node; `None`: from any.
    pub node: Option<u32>,
    /// Whether borrowers may reach into their leases by RDMA, past the donor; where it listens at a port.
    pub rdma: Option<DeviceChoice>,
    /// How connections are protected, where they leave the machine.
    pub security: Security,
    /// How long leases last.
    pub lease: Duration,
    /// How long it waits for a peer.
    pub patience: Patience,
    /// Connections at the same time.
    pub connections_most: usize,
    /// The thread that wipes takes one part in so many of a CPU, at most.
    pub wipe_parts: u32,
    /// Where the control socket is made; `None`: there is none.
    pub control: Option<PathBuf>,
}

impl Settings {
    /// What is given, and defaults for the rest.
    pub fn new(listen: Address, capacity_bytes: u64, source: Source, security: Security) -> Settings {
        Settings {
            listen,
            capacity_bytes,
            quota_bytes: None,
            tenants: None,
            audit: None,
            revocations: None,
            body_bytes_most: BODIES_BYTES_MAX,
            source,
            node: None,
            rdma: None,
            security,
            lease: LEASE,
            patience: Patience::default(),
            connections_most: CONNECTIONS_MOST,
            wipe_parts: PARTS,
            control: None,
        }
    }

    /// How many slabs that is.
    pub(crate) fn slabs(&self) -> Result<u32, StartFailure> {
        let slabs = self.capacity_bytes / SLAB_BYTES;
        match u32::try_from(slabs) {
            Ok(0) => Err(StartFailure::TooSmall),
            Ok(slabs) if slabs <= SLABS_MOST => Ok(slabs),
            _ => Err(StartFailure::TooLarge),
        }
    }

    /// The address at which it listens, where that is one.
    pub(crate) fn local_ip(&self) -> Option<IpAddr> {
        match self.listen {
            Address::Tcp(address) if !address.ip().is_unspecified() => Some(address.ip()),
            _ => None,
        }
    }

    /// The limits of all tenants, as their file has them now.
    pub(crate) fn limits(&self) -> Result<TenantLimits, StartFailure> {
        let others = Limits { quota_bytes: self.quota_bytes, ..Limits::default() };
        let Some(path) = &self.tenants else { return Ok(TenantLimits::same(others)) };
        let failure = |why| StartFailure::Tenants(path.clone(), why);
        let text = std::fs::read_to_string(path).map_err(|error| failure(format!("{error}; check the path")))?;
        TenantLimits::parse(&text, others).map_err(failure)
    }
}

/// Why there is no donor: one line that names the cause and the remedy.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartFailure {
    /// The control socket cannot be made.
    Control(PathBuf, io::Error),
    /// The files of TLS are no good.
    Credentials(CredentialFailure),
    /// The address cannot be listened at.
    Listen(Address, io::Error),
    /// The memory cannot be had.
    Memory(Source, io::Error),
    /// The memory cannot be had from this node.
    Node(u32, io::Error),
    /// Nothing can be lent over RDMA.
    Rdma(VerbsFailure),
    /// The file of audit lines cannot be opened.
    Audit(PathBuf, io::Error),
    /// The file with tenants' limits cannot be read.
    Tenants(PathBuf, String),
    /// A thread or a descriptor cannot be had.
    System(io::Error),
    /// More than a donor can keep account of.
    TooLarge,
    /// Less than a slab.
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
                write!(f, "cannot listen at {address}: {error}; give an address of this machine and a free port")
            }
            StartFailure::Memory(Source::Dax(path), error) => {
                let path = path.display();
                match error.raw_os_error() {
                    Some(libc::EFBIG) => write!(f, "the device {path} is shorter than what is to be lent; lend less"),
                    Some(libc::ENODEV) => write!(
                        f,
                        "{path} is no device that is memory; name one such as /dev/dax0.0 ('daxctl list' shows them)"
                    ),
                    _ => write!(
                        f,
                        "{path} cannot be used: {error}; name a device such as /dev/dax0.0 that this user may write to"
                    ),
                }
            }
            StartFailure::Memory(Source::Huge, error) => write!(
                f,
                "there are not so many huge pages ({error}); reserve them with 'sysctl vm.nr_hugepages=N' \
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
                write!(
                    f,
                    "a donor lends at most {} TiB; start a second one",
                    (u64::from(SLABS_MOST) * SLAB_BYTES) >> 40
                )
            }
            StartFailure::TooSmall => write!(f, "a donor lends slabs of 2 MiB; lend at least one, for example 64GiB"),
        }
    }
}

impl std::error::Error for StartFailure {}
