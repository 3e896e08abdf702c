// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor's status: its figures, and the number of refusals of each kind. The body of the answer to `Status`.
//!
//! Each is a number of 8 bytes, little-endian: first the figures in the order of [`Figure::ALL`], then one count for
//! each [`Refusal`] in the order of its code. An additional figure or refusal makes the body longer, which is another
//! version.

use crate::refusal::Refusal;

macro_rules! figures {
    ($($name:ident $word:literal $meaning:literal,)+) => {
        /// One number that a donor reports about itself.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Figure {
            $(#[doc = $meaning] $name,)+
        }

        impl Figure {
            /// Every figure, in its order on the wire.
            pub const ALL: &[Figure] = &[$(Figure::$name),+];

            /// The word for metrics and JSON.
            pub const fn word(self) -> &'static str {
                match self { $(Figure::$name => $word,)+ }
            }

            /// The meaning, in half a sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Figure::$name => $meaning,)+ }
            }
        }
    };
}

figures! {
    CapacityBytes "capacity_bytes" "Memory that the donor can lend, and memory that it has reclaimed",
    LentBytes "lent_bytes" "Memory that is lent now",
    WipingBytes "wiping_bytes" "Returned memory that is not wiped yet",
    DrainingBytes "draining_bytes" "Memory that the donor reclaims and that borrowers still have",
    ReclaimedBytes "reclaimed_bytes" "Memory that the donor has reclaimed and does not lend any more",
    LockedBytes "locked_bytes" "Lendable memory that is locked, so that it is never swapped out",
    Reservations "reservations" "Reservations that are not released",
    ReservedBytes "reserved_bytes" "Memory that is set aside for reservations, lent or not",
    Borrowers "borrowers" "Borrowers that have a lease",
    Connections "connections" "Connections that are open",
    UptimeMs "uptime_ms" "How long the donor has been running",
    ConnectionsTotal "connections_total" "Connections that were accepted",
    GrantsTotal "grants_total" "Leases and new tokens that were granted",
    ReleasesTotal "releases_total" "Leases that were given back",
    ExpiriesTotal "expiries_total" "Leases that expired",
    RevocationsTotal "revocations_total" "Leases that were revoked",
    WipesTotal "wipes_total" "Slabs that were wiped",
    ReadsTotal "reads_total" "Reads that were answered",
    WritesTotal "writes_total" "Writes that were carried out",
    DiscardsTotal "discards_total" "Discards that were carried out",
    ReadBytesTotal "read_bytes_total" "Bytes that were read",
    WrittenBytesTotal "written_bytes_total" "Bytes that were written",
}

/// Number of figures.
pub const FIGURES: usize = Figure::ALL.len();
/// Bytes of an encoded [`DonorStatus`].
pub const STATUS_BYTES: usize = (FIGURES + Refusal::ALL.len()) * 8;

/// The status of a donor: its figures, and the number of refusals of each kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DonorStatus {
    /// In the order of [`Figure::ALL`].
    pub figures: [u64; FIGURES],
    /// In the order of [`Refusal::ALL`].
    pub refusals: [u64; Refusal::ALL.len()],
}

impl DonorStatus {
    /// One figure.
    pub fn figure(&self, figure: Figure) -> u64 {
        self.figures[figure as usize]
    }

    /// Number of refusals of this kind.
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.refusals[refusal.index()]
    }

    /// The encoded bytes.
    pub fn encode(&self) -> [u8; STATUS_BYTES] {
        let mut bytes = [0; STATUS_BYTES];
        for (place, number) in bytes.chunks_exact_mut(8).zip(self.figures.iter().chain(&self.refusals)) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Decodes the bytes; every input is valid.
    pub fn decode(bytes: &[u8; STATUS_BYTES]) -> DonorStatus {
        let (words, _) = bytes.as_chunks::<8>();
        DonorStatus {
            figures: std::array::from_fn(|index| u64::from_le_bytes(words[index])),
            refusals: std::array::from_fn(|index| u64::from_le_bytes(words[FIGURES + index])),
        }
    }
}
