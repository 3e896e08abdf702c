// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The checked description of a tier of one donor (`donor.rs`) or of several (`array.rs`).
//!
//! Pure. `tiers/src/spec/donors.rs` parses it from what follows `donor:`.

use aquifer_core::units::ByteSize;
use aquifer_tier::Newcomer;
use aquifer_tls::BorrowerFiles;

use crate::array::Shape;

/// The description of a donor's tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DonorSpec {
    /// `HOST:PORT`, where the host is a name, an IPv4 address, or an IPv6 address in brackets. Or `unix:PATH`, a socket
    /// on this machine.
    pub address: String,
    /// Capacity; by default what the donor lends to one borrower.
    pub size: Option<ByteSize>,
    /// How connections are protected.
    pub security: DonorSecurity,
    /// Whether bytes go by RDMA, bypassing the donor, and over which device.
    pub rdma: Option<RdmaSpec>,
    /// The tree of processes that borrows, if the tree's memory is given back when all of them have ended. Never typed
    /// by a user.
    pub tree: Option<u64>,
    /// The token of the reservation from which it borrows; 0 for none. Never typed by a user.
    pub reservation: u64,
}

impl DonorSpec {
    /// The prefix of a donor's socket path.
    pub const LOCAL: &str = "unix:";
    /// The prefix of the address of a donor that is reached by RDMA.
    pub const RDMA: &str = "rdma:";

    /// The prefix of its address, which names the transport for bytes if that differs from the one for requests.
    pub fn way(&self) -> &'static str {
        if self.rdma.is_some() { Self::RDMA } else { "" }
    }

    /// The path of its socket, if the donor is on this machine and shares its memory.
    pub fn socket_path(&self) -> Option<&str> {
        self.address.strip_prefix(Self::LOCAL)
    }
}

/// The description of RDMA to a donor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RdmaSpec {
    /// The device on this machine; by default the one with the address from which the donor is reached.
    pub device: Option<String>,
}

/// How connections to a donor are protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DonorSecurity {
    /// By the kernel: connections do not leave the machine.
    Local,
    /// Not at all.
    Plain,
    /// By TLS 1.3, with certificates on both sides.
    Tls {
        /// Our identity, and whom we trust.
        files: BorrowerFiles,
        /// The name that the donor's certificate must be for; by default the address's host.
        name: String,
    },
}

/// The description of a tier of several donors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArraySpec {
    /// The donors. None is given twice.
    pub members: Vec<MemberSpec>,
    /// How the array survives the loss of a donor.
    pub redundancy: Redundancy,
    /// Capacity; by default what the donors lend to one borrower, less the redundancy.
    pub size: Option<ByteSize>,
}

/// The description of a tier in a volume of the pool, whose members change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeTierSpec {
    /// The members at first.
    pub members: Vec<Newcomer>,
    /// How the volume survives the loss of a donor.
    pub redundancy: Redundancy,
    /// The certificate and key of the volume's tenant, and whom it trusts. `None`: connections are not protected.
    pub files: Option<BorrowerFiles>,
    /// Capacity; by default what the members lend, less the redundancy. More than that can be used once the volume has
    /// grown.
    pub size: Option<ByteSize>,
    /// The tree of processes that borrows.
    pub tree: u64,
}

/// One donor of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberSpec {
    /// The donor. Its size is not used.
    pub donor: DonorSpec,
    /// Its share, relative to the others.
    pub weight: u32,
}

/// How an array survives the loss of a donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redundancy {
    /// Each slab lies on this many donors.
    Mirror {
        /// At least two.
        copies: usize,
    },
    /// Each page is cut into shards, with parity, and each shard lies on a different donor.
    Parity {
        /// The number of shards that a page is cut into: a power of two, at least two.
        data: usize,
        /// The number of donors that can be lost: at least one.
        parity: usize,
    },
    /// No redundancy: each slab lies on one donor.
    Striped,
}

impl Redundancy {
    /// How many donors have each slab, and how many of them are needed to read it.
    pub(crate) fn shape(&self) -> Shape {
        match *self {
            Redundancy::Mirror { copies } => Shape { needed: 1, total: copies },
            Redundancy::Parity { data, parity } => Shape { needed: data, total: data + parity },
            Redundancy::Striped => Shape { needed: 1, total: 1 },
        }
    }
}
