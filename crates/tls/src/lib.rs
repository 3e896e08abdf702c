// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! TLS 1.3 between a donor and its borrowers, each of which shows a certificate.
//!
//! What is a certificate, and who is to be trusted, is read from three files ([`Files`]). A donor has a session of
//! rustls for each connection ([`DonorSide`]), and knows its borrowers by their certificates ([`tenant_name`]). A
//! borrower's faulting threads may not allocate, and a session of rustls does: so rustls shakes hands ([`Borrower`]),
//! and what it agreed on protects the records from then on without it ([`Sealing`], [`Opening`]). Why so:
//! `docs/decisions/0015-a-donor-lends-slabs.md`.
//!
//! No sockets here: bytes go through what the caller gives ([`Pipe`]).

#![forbid(unsafe_code)]

mod borrower;
mod distrust;
mod donor_side;
mod files;
mod identity;
mod records;

pub use borrower::{Borrower, Pipe, Protection, ShakeFailure};
pub use distrust::{Distrust, Words};
pub use donor_side::DonorSide;
pub use files::{CredentialFailure, Credentials, File, Files, Purpose};
pub use identity::tenant_name;
pub use records::{
    Broken, Opening, RECORD_BYTES_MOST, RECORD_EXTRA_BYTES, RECORD_HEAD_BYTES, Sealing, TEXT_BYTES_MOST,
};

/// What both ends say that they are about to speak, so that neither is taken for another kind of server.
const PROTOCOL: &[u8] = b"aquifer/1";
