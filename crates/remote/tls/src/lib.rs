// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! TLS 1.3 between a donor and its borrowers, each of which presents a certificate.
//!
//! Three files ([`Files`]) hold this end's certificate, its key, and the authority to trust. A donor has a rustls
//! session for each connection ([`DonorSide`]), and identifies its borrowers by their certificates ([`tenant_name`]). A
//! borrower's faulting threads may not allocate, and a rustls session does: so rustls performs only the handshake
//! ([`Borrower`]), and the keys agreed on then protect the records without it ([`Sealing`], [`Opening`]). Reasons:
//! `docs/decisions/0015-a-donor-lends-slabs.md`.
//!
//! No sockets here: bytes go through the caller's [`Pipe`].

#![forbid(unsafe_code)]

mod borrower;
mod der;
mod distrust;
mod donor_side;
mod files;
mod identity;
mod records;
mod renewal;
mod revocations;

pub use borrower::{Borrower, Pipe, Protection, ShakeFailure};
pub use distrust::{Distrust, Words};
pub use donor_side::DonorSide;
pub use files::{BorrowerFiles, CredentialFailure, Credentials, File, Files, Purpose};
pub use identity::{address_name, tenant_name};
pub use records::{Broken, Opening, RECORD_BYTES_MAX, RECORD_EXTRA_BYTES, RECORD_HEAD_BYTES, Sealing, TEXT_BYTES_MAX};

/// The ALPN protocol name of both ends, so that neither is mistaken for another kind of server.
const PROTOCOL: &[u8] = b"aquifer/1";
/// The ALPN protocol name of a control channel, so that a borrower's certificate does not reach a manager by mistake.
const CONTROL_PROTOCOL: &[u8] = b"aquifer-control/1";
