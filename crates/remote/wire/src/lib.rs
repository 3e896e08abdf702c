// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The protocol between a donor, which lends memory, and its borrowers: messages and their bytes.
//!
//! Pure: no sockets, no clock, no connection state. A frame is a [`Header`] of [`HEADER_BYTES`] and a body that only a
//! few messages have. The two are separate, so that a payload moves between a socket and its destination without a
//! copy. Every byte is described in `docs/formats.md`.
//!
//! ```
//! use aquifer_wire::{Header, Message};
//!
//! let message = Message::Read { lease: 7, token: 3, offset: 0, bytes: 4096 };
//! let bytes = Header::new(41, message, &[]).encode();
//! let header = Header::decode(&bytes)?;
//! assert_eq!((header.request, header.message, header.body_bytes), (41, message, 0));
//! # Ok::<(), aquifer_wire::Refusal>(())
//! ```

#![forbid(unsafe_code)]

mod header;
mod message;
mod pair_end;
mod refusal;
mod status;
mod units;

pub use header::{HEADER_BYTES, Header, VERSION_NEWEST, VERSION_OLDEST, body_crc, choose_version, is_frame, is_tls};
pub use message::{
    BODY_BYTES_MAX, BorrowerId, EVERY_BYTE, EVERY_LEASE, Message, PAGE_BYTES, RESERVATION_TOKENS, SLAB_BYTES,
    UNIT_BYTES,
};
pub use pair_end::PairEnd;
pub use refusal::{Refusal, RefusalKind};
pub use status::{DonorStatus, FIGURES, Figure, STATUS_BYTES};
pub use units::{LentSlab, RangeIndex};
