// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why memory could not be borrowed from a donor, or from several: one line each that names the cause and the remedy.
//!
//! Shown to the person who typed `--tier`. May allocate its text, because tiers are opened before the first fault.

use std::error::Error;
use std::{fmt, io};

use aquifer_core::units::ByteSize;
use aquifer_sys::verbs::VerbsFailure;
use aquifer_tier::{MembershipFailure, OpenFailure};
use aquifer_tls::{CredentialFailure, Distrust};
use aquifer_wire::Refusal;

/// Memory that could not be borrowed.
#[derive(Debug)]
#[non_exhaustive]
pub enum BorrowFailure {
    /// The files that have to protect a connection are unusable.
    Credentials {
        /// Which files, and why.
        failure: CredentialFailure,
    },
    /// The donor and this process do not trust each other.
    Distrust {
        /// Where.
        address: String,
        /// Why not.
        distrust: Distrust,
    },
    /// The donor lends nothing to this borrower.
    LendsNothing {
        /// Where.
        address: String,
    },
    /// The donor lends less than was requested.
    LendsTooLittle {
        /// Where.
        address: String,
        /// What was requested.
        wanted_bytes: u64,
        /// What one borrower may have.
        lendable_bytes: u64,
    },
    /// What every tier needs is missing on this machine.
    Local {
        /// What, and why.
        failure: OpenFailure,
    },
    /// A member of a volume cannot be used.
    Member {
        /// Why.
        failure: MembershipFailure,
    },
    /// No donor lends there, or it does not lend to us.
    NoAnswer {
        /// Where.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// The donor does not lend over RDMA.
    NoRdma {
        /// Where.
        address: String,
    },
    /// The donor is on this machine, and belongs to another user.
    OtherUser {
        /// Where.
        address: String,
    },
    /// The donor lends in plain text, and was asked over TLS.
    PlainOnly {
        /// Where.
        address: String,
    },
    /// There is no usable RDMA on this machine.
    Rdma {
        /// The donor.
        address: String,
        /// Why.
        failure: VerbsFailure,
    },
    /// RDMA packets to the donor do not get through.
    RdmaPath {
        /// Where.
        address: String,
        /// The device.
        device: String,
    },
    /// Two of the addresses are those of one donor.
    SameDonor {
        /// The first address.
        address: String,
        /// The other one.
        other: String,
    },
    /// The donor lends over TLS, and was asked in plain text.
    TlsOnly {
        /// Where.
        address: String,
    },
    /// Fewer donors are reachable than are needed to read what is stored.
    TooFew {
        /// How many are needed.
        needed: usize,
        /// How many are reachable.
        there: usize,
        /// Why the first of the others is not reachable.
        first: Box<BorrowFailure>,
    },
    /// Fewer members of a volume are reachable than are needed to read what is stored.
    TooFewMembers {
        /// How many are needed.
        needed: usize,
        /// How many are reachable.
        there: usize,
    },
}

impl From<OpenFailure> for BorrowFailure {
    fn from(failure: OpenFailure) -> Self {
        BorrowFailure::Local { failure }
    }
}

impl From<BorrowFailure> for OpenFailure {
    fn from(failure: BorrowFailure) -> Self {
        match failure {
            BorrowFailure::Local { failure } => failure,
            failure => OpenFailure::Remote { failure: Box::new(failure) },
        }
    }
}

impl fmt::Display for BorrowFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BorrowFailure::NoAnswer { address, source } if has_refused(source) => {
                write!(f, "the donor at {address} refuses: {source}; see what it says on its machine")
            }
            BorrowFailure::NoAnswer { address, source } => write!(
                f,
                "no donor answers at {address}: {source}; start one there with 'aquifer donor', or check the address and \
                 the network"
            ),
            BorrowFailure::Credentials { failure } => write!(f, "{failure}"),
            BorrowFailure::Distrust { address, distrust } => {
                write!(f, "nothing is borrowed from {address}: {distrust}")
            }
            BorrowFailure::PlainOnly { address } => write!(
                f,
                "the donor at {address} lends in plain text, and was asked over TLS; give the donor certificates, or write \
                 security=plain where nobody else is on the network"
            ),
            BorrowFailure::NoRdma { address } => write!(
                f,
                "the donor at {address} does not lend over RDMA; start it with --rdma auto, or leave rdma: out"
            ),
            BorrowFailure::SameDonor { address, other } => write!(
                f,
                "{address} and {other} are one donor; give each donor once, with a weight if it is to get more"
            ),
            BorrowFailure::TlsOnly { address } => write!(
                f,
                "the donor at {address} lends over TLS, and was asked in plain text; leave security=plain out, and give \
                 cert=FILE, key=FILE and ca=FILE"
            ),
            BorrowFailure::TooFew { needed, there, first } => {
                write!(f, "{needed} of these donors are needed to start, and {there} can be reached; {first}")
            }
            BorrowFailure::TooFewMembers { needed, there } => write!(
                f,
                "{needed} donors of the volume are needed to start, and {there} can be reached; start the others, or \
                 check the network to them"
            ),
            BorrowFailure::Member { failure } => write!(f, "{failure}"),
            BorrowFailure::LendsNothing { address } => write!(
                f,
                "the donor at {address} lends this program nothing: its tenant has a quota of 0, or the donor takes its \
                 memory back; raise the quota (--quota, --tenants), or borrow from another donor"
            ),
            BorrowFailure::LendsTooLittle { address, wanted_bytes, lendable_bytes } => write!(
                f,
                "the donor tier should hold {}, but {address} lends {} at most to one borrower; give it less with size=",
                ByteSize(*wanted_bytes),
                ByteSize(*lendable_bytes)
            ),
            BorrowFailure::OtherUser { address } => write!(
                f,
                "the donor at {address} is another user's, and memory is shared with programs of the same user and of \
                 root alone; run both as the same user"
            ),
            BorrowFailure::Rdma { address, failure } => {
                write!(f, "no RDMA to {address}: {failure}; or leave rdma: out, which is TCP")
            }
            BorrowFailure::RdmaPath { address, device } => write!(
                f,
                "RDMA packets from {device} to the donor at {address} are not answered; let UDP port 4791 through (RoCE), \
                 name the device of the same network with device=, or leave rdma: out"
            ),
            BorrowFailure::Local { failure } => write!(f, "{failure}"),
        }
    }
}

impl Error for BorrowFailure {}

/// Whether a donor is reachable and has refused.
fn has_refused(source: &io::Error) -> bool {
    source.get_ref().is_some_and(|error| error.is::<Refusal>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_one_line_with_a_remedy() {
        let error = |errno| io::Error::from_raw_os_error(errno);
        for (failure, remedy) in [
            (
                BorrowFailure::NoAnswer { address: "host:7000".into(), source: error(libc::ECONNREFUSED) },
                "aquifer donor",
            ),
            (BorrowFailure::Distrust { address: "host:7000".into(), distrust: Distrust::DonorName }, "name=SERVERNAME"),
            (BorrowFailure::PlainOnly { address: "host:7000".into() }, "security=plain"),
            (BorrowFailure::NoRdma { address: "host:7000".into() }, "--rdma auto"),
            (BorrowFailure::Rdma { address: "host:7000".into(), failure: VerbsFailure::NoDevice }, "modprobe rdma_rxe"),
            (BorrowFailure::RdmaPath { address: "host:7000".into(), device: "rxe0".into() }, "4791"),
            (BorrowFailure::TlsOnly { address: "host:7000".into() }, "cert=FILE"),
            (BorrowFailure::SameDonor { address: "a:7000".into(), other: "b:7000".into() }, "give each donor once"),
            (
                BorrowFailure::TooFew {
                    needed: 4,
                    there: 3,
                    first: Box::new(BorrowFailure::NoAnswer {
                        address: "host:7000".into(),
                        source: error(libc::ECONNREFUSED),
                    }),
                },
                "start one there",
            ),
            (BorrowFailure::TooFewMembers { needed: 2, there: 1 }, "start the others"),
            (BorrowFailure::Member { failure: MembershipFailure::TooMany { max: 63 } }, "restart the program"),
            (
                BorrowFailure::NoAnswer { address: "host:7000".into(), source: io::Error::other(Refusal::Busy) },
                "see what it says",
            ),
            (BorrowFailure::LendsNothing { address: "host:7000".into() }, "raise the quota"),
            (
                BorrowFailure::LendsTooLittle { address: "host:7000".into(), wanted_bytes: 9, lendable_bytes: 8 },
                "less with size=",
            ),
            (BorrowFailure::OtherUser { address: "unix:/socket".into() }, "as the same user"),
        ] {
            let text = failure.to_string();
            assert!(text.contains(remedy), "{text}");
            assert!(!text.contains('\n'), "{text}");
            assert_eq!(OpenFailure::from(failure).to_string(), text);
        }
    }
}
