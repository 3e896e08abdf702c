// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The messages between donor and borrower, and their encoding in the header's four numbers.
//!
//! Every message has its numbers at fixed places, and zeros in the places that it does not use, so that each message
//! has exactly one encoding. The table is in `docs/formats.md`. Next: `header.rs`, which encodes it in bytes.

use crate::header::{VERSION_NEWEST, VERSION_OLDEST};
use crate::pair_end::PairEnd;
use crate::refusal::Refusal;
use crate::status::STATUS_BYTES;
use crate::units::RangeIndex;

/// The unit of discards.
pub const PAGE_BYTES: u64 = 4096;
/// The unit of reads and writes: the smallest shard of a page that one of several donors stores, with parity.
pub const UNIT_BYTES: u64 = 512;
/// The unit of lending: the room of one region, see the glossary.
pub const SLAB_BYTES: u64 = 2 << 20;
/// Longest body: a block of the largest size.
pub const BODY_BYTES_MAX: u32 = SLAB_BYTES as u32;
/// Means all leases of a borrower.
pub const EVERY_LEASE: u64 = u64::MAX;
/// Means all bytes that a donor lends.
pub const EVERY_BYTE: u64 = u64::MAX;

/// Identifies a borrower: an unguessable number, generated for each tier that is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BorrowerId(pub u128);

impl BorrowerId {
    /// The tree of processes that it belongs to: the upper half of the number, which all borrowers of the tree share.
    pub const fn tree(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// The token of the reservation from which it borrows, at a donor that has reservations: its tree, if that is less
    /// than [`RESERVATION_TOKENS`]. Trees that borrowers draw are greater.
    pub const fn reservation(self) -> Option<u64> {
        let tree = self.tree();
        if tree > 0 && tree < RESERVATION_TOKENS { Some(tree) } else { None }
    }

    /// This borrower's number for the reservation with this token; 0 for none. The lower half then has 32 bits of its
    /// tree and 32 of its own, because the trees of all programs of a volume borrow from one reservation.
    pub const fn in_reservation(self, token: u64) -> BorrowerId {
        match token {
            0 => self,
            token => BorrowerId((token as u128) << 64 | ((self.tree() as u32) as u128) << 32 | (self.0 as u32) as u128),
        }
    }

    /// The part of the number that only the borrowers of one tree share.
    pub const fn family(self) -> (u64, u32) {
        match self.reservation() {
            Some(token) => (token, (self.0 >> 32) as u32),
            None => (self.tree(), 0),
        }
    }
}

/// Tokens of reservations are less than this. Numbers below it are exact in every JSON reader, and there are enough
/// that a donor can begin with the time in milliseconds.
pub const RESERVATION_TOKENS: u64 = 1 << 52;

/// One message, without its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message {
    /// The first message of a connection. Its own encoding is the same in all versions.
    Hello {
        /// The oldest version that the borrower speaks.
        oldest: u16,
        /// The newest version that the borrower speaks.
        newest: u16,
        /// The borrower.
        borrower: BorrowerId,
    },
    /// Asks for a slab for the borrower's range `range`, or for a new token of the slab that the range already has.
    Grant {
        /// The range of the borrower's tier that the slab is for.
        range: RangeIndex,
    },
    /// Extends all leases of the borrower by their full duration, from now on.
    Renew,
    /// Returns a slab, or all of them.
    Release {
        /// The lease, or [`EVERY_LEASE`].
        lease: u64,
        /// Its fencing token. With [`EVERY_LEASE`]: 0; or the borrower's tree, and then the message covers all leases
        /// of all borrowers of that tree.
        token: u64,
    },
    /// Asks for bytes.
    Read {
        /// The lease.
        lease: u64,
        /// Its fencing token.
        token: u64,
        /// Start of the bytes in the borrower's tier.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// Stores the body.
    Write {
        /// The lease.
        lease: u64,
        /// Its fencing token.
        token: u64,
        /// Start of the bytes in the borrower's tier.
        offset: u64,
    },
    /// Discards bytes that are no longer needed; they read as zeros afterwards.
    Discard {
        /// The lease.
        lease: u64,
        /// Its fencing token.
        token: u64,
        /// Start of the bytes in the borrower's tier.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// Asks for the donor's state.
    Status,
    /// Asks for the other end of an RDMA connection, through which the borrower accesses its leases without the donor.
    /// A connection with the number of an older one replaces it.
    Pair {
        /// The number of the borrower's connection, which its processes do not share.
        number: u32,
        /// The borrower's end.
        end: PairEnd,
    },
    /// Asks for the key with which the borrower's RDMA connections access a slab. It is valid until the lease ends or
    /// gets another token.
    Key {
        /// The lease.
        lease: u64,
        /// Its fencing token.
        token: u64,
    },
    /// An administrator's order, accepted only on the donor's control socket: take memory back and do not lend it
    /// again.
    Reclaim {
        /// Number of bytes, in whole slabs, or [`EVERY_BYTE`].
        bytes: u64,
        /// The time that borrowers get for returning it.
        within_ms: u64,
    },
    /// Answers `Hello`.
    Welcome {
        /// The version that both sides will speak.
        version: u16,
        /// How long leases last after each message from the borrower.
        lease_ms: u32,
        /// Identifies this run of the donor. Another run knows nothing of this run's leases.
        instance: u64,
        /// The number of the first request; each following request has the next number.
        first_request: u64,
        /// Maximum number of bytes that this borrower may have.
        lendable_bytes: u64,
    },
    /// Answers `Grant`.
    Granted {
        /// The lease.
        lease: u64,
        /// Its fencing token: greater than every earlier one.
        token: u64,
        /// Size of the memory.
        bytes: u64,
        /// The lease ends after this time, unless the borrower sends a message before then.
        expires_in_ms: u64,
    },
    /// Answers `Renew`.
    Renewed {
        /// Number of the borrower's leases.
        leases: u64,
        /// The leases end after this time, unless the borrower sends a message before then.
        expires_in_ms: u64,
    },
    /// Answers `Release`.
    Released {
        /// Number of slabs returned.
        slabs: u64,
    },
    /// Answers `Read`; the bytes are the body.
    Found,
    /// Answers `Write`: from now on, a read returns the bytes that were sent.
    Written,
    /// Answers `Discard`.
    Discarded,
    /// Answers `Status`; a [`DonorStatus`](crate::DonorStatus) is the body.
    StatusReport,
    /// Answers `Pair`.
    Paired {
        /// The donor's end, which is ready.
        end: PairEnd,
    },
    /// Answers `Key`.
    Keyed {
        /// The key that an RDMA work request must present. The slab's first byte is at address 0.
        key: u32,
    },
    /// Answers `Reclaim`.
    Reclaiming {
        /// Number of bytes that borrowers have still to return, for this order and earlier ones.
        bytes: u64,
    },
    /// Sent without a request, before an answer: the donor wants its memory back.
    Revoke {
        /// The lease, or [`EVERY_LEASE`].
        lease: u64,
        /// The range of the borrower's tier that the lease is for; 0 for all leases.
        range: RangeIndex,
        /// The lease ends after this time, whatever the borrower does.
        within_ms: u64,
    },
    /// Answers any request: it was not carried out.
    Error {
        /// The reason.
        refusal: Refusal,
    },
}

const HELLO: u16 = 1;
const GRANT: u16 = 2;
const RENEW: u16 = 3;
const RELEASE: u16 = 4;
const READ: u16 = 5;
const WRITE: u16 = 6;
const DISCARD: u16 = 7;
const STATUS: u16 = 8;
const PAIR: u16 = 9;
const KEY: u16 = 10;
const RECLAIM: u16 = 0x10;
/// The kind of an answer is its request's kind plus this.
const ANSWER: u16 = 0x8000;
const REVOKE: u16 = 0x8100;
const ERROR: u16 = 0x81ff;

impl Message {
    /// The number of its kind.
    pub(crate) fn kind(&self) -> u16 {
        match self {
            Message::Hello { .. } => HELLO,
            Message::Grant { .. } => GRANT,
            Message::Renew => RENEW,
            Message::Release { .. } => RELEASE,
            Message::Read { .. } => READ,
            Message::Write { .. } => WRITE,
            Message::Discard { .. } => DISCARD,
            Message::Status => STATUS,
            Message::Pair { .. } => PAIR,
            Message::Key { .. } => KEY,
            Message::Reclaim { .. } => RECLAIM,
            Message::Welcome { .. } => ANSWER | HELLO,
            Message::Granted { .. } => ANSWER | GRANT,
            Message::Renewed { .. } => ANSWER | RENEW,
            Message::Released { .. } => ANSWER | RELEASE,
            Message::Found => ANSWER | READ,
            Message::Written => ANSWER | WRITE,
            Message::Discarded => ANSWER | DISCARD,
            Message::StatusReport => ANSWER | STATUS,
            Message::Paired { .. } => ANSWER | PAIR,
            Message::Keyed { .. } => ANSWER | KEY,
            Message::Reclaiming { .. } => ANSWER | RECLAIM,
            Message::Revoke { .. } => REVOKE,
            Message::Error { .. } => ERROR,
        }
    }

    /// The four numbers of the message.
    pub(crate) fn numbers(&self) -> [u64; 4] {
        match *self {
            Message::Hello { oldest, newest, borrower } => {
                [u64::from(oldest) | u64::from(newest) << 16, borrower.0 as u64, (borrower.0 >> 64) as u64, 0]
            }
            Message::Grant { range } => [range.0, 0, 0, 0],
            Message::Release { lease, token } | Message::Key { lease, token } => [lease, token, 0, 0],
            Message::Pair { number, end } => end.numbers(number),
            Message::Paired { end } => end.numbers(0),
            Message::Keyed { key } => [u64::from(key), 0, 0, 0],
            Message::Read { lease, token, offset, bytes } | Message::Discard { lease, token, offset, bytes } => {
                [lease, token, offset, bytes]
            }
            Message::Write { lease, token, offset } => [lease, token, offset, 0],
            Message::Welcome { version, lease_ms, instance, first_request, lendable_bytes } => {
                [u64::from(version) | u64::from(lease_ms) << 32, instance, first_request, lendable_bytes]
            }
            Message::Granted { lease, token, bytes, expires_in_ms } => [lease, token, bytes, expires_in_ms],
            Message::Renewed { leases, expires_in_ms } => [leases, expires_in_ms, 0, 0],
            Message::Released { slabs } => [slabs, 0, 0, 0],
            Message::Reclaim { bytes, within_ms } => [bytes, within_ms, 0, 0],
            Message::Reclaiming { bytes } => [bytes, 0, 0, 0],
            Message::Revoke { lease, range, within_ms } => [lease, range.0, within_ms, 0],
            Message::Error { refusal } => [u64::from(refusal.code()), 0, 0, 0],
            Message::Renew
            | Message::Status
            | Message::Found
            | Message::Written
            | Message::Discarded
            | Message::StatusReport => [0; 4],
        }
    }

    /// The message of a kind with these numbers.
    pub(crate) fn read(kind: u16, numbers: [u64; 4]) -> Result<Message, Refusal> {
        let [a, b, c, d] = numbers;
        let message = match kind {
            HELLO => Message::Hello {
                oldest: a as u16,
                newest: (a >> 16) as u16,
                borrower: BorrowerId(u128::from(b) | u128::from(c) << 64),
            },
            GRANT => Message::Grant { range: RangeIndex(a) },
            RENEW => Message::Renew,
            RELEASE => Message::Release { lease: a, token: b },
            READ => Message::Read { lease: a, token: b, offset: c, bytes: d },
            WRITE => Message::Write { lease: a, token: b, offset: c },
            DISCARD => Message::Discard { lease: a, token: b, offset: c, bytes: d },
            STATUS => Message::Status,
            PAIR => {
                let (end, number) = PairEnd::read(numbers);
                Message::Pair { number, end }
            }
            KEY => Message::Key { lease: a, token: b },
            RECLAIM => Message::Reclaim { bytes: a, within_ms: b },
            0x8001 => Message::Welcome {
                version: a as u16,
                lease_ms: (a >> 32) as u32,
                instance: b,
                first_request: c,
                lendable_bytes: d,
            },
            0x8002 => Message::Granted { lease: a, token: b, bytes: c, expires_in_ms: d },
            0x8003 => Message::Renewed { leases: a, expires_in_ms: b },
            0x8004 => Message::Released { slabs: a },
            0x8005 => Message::Found,
            0x8006 => Message::Written,
            0x8007 => Message::Discarded,
            0x8008 => Message::StatusReport,
            0x8009 => Message::Paired { end: PairEnd::read(numbers).0 },
            0x800a => Message::Keyed { key: a as u32 },
            0x8010 => Message::Reclaiming { bytes: a },
            REVOKE => Message::Revoke { lease: a, range: RangeIndex(b), within_ms: c },
            ERROR => Message::Error { refusal: Refusal::from_code(a).ok_or(Refusal::BadField)? },
            _ => return Err(Refusal::UnknownKind),
        };
        // Also rejects bits that the casts above cut off, and nonzero places that this message does not use.
        if message.numbers() != numbers || !message.is_sound() {
            return Err(Refusal::BadField);
        }
        Ok(message)
    }

    fn is_sound(&self) -> bool {
        let whole = |unit: u64, offset: u64, bytes: u64| {
            offset.is_multiple_of(unit)
                && bytes.is_multiple_of(unit)
                && (1..=u64::from(BODY_BYTES_MAX)).contains(&bytes)
                && offset.checked_add(bytes).is_some()
        };
        match *self {
            Message::Hello { oldest, newest, .. } => oldest <= newest,
            Message::Read { offset, bytes, .. } => whole(UNIT_BYTES, offset, bytes),
            Message::Discard { offset, bytes, .. } => whole(PAGE_BYTES, offset, bytes),
            Message::Write { offset, .. } => whole(UNIT_BYTES, offset, UNIT_BYTES),
            Message::Pair { end, .. } | Message::Paired { end } => end.is_sound(),
            Message::Welcome { version, .. } => (VERSION_OLDEST..=VERSION_NEWEST).contains(&version),
            _ => true,
        }
    }

    /// Whether the message may have a body of this many bytes.
    pub(crate) fn takes_body(&self, bytes: u32) -> bool {
        match self {
            Message::Write { .. } | Message::Found => {
                (1..=BODY_BYTES_MAX).contains(&bytes) && u64::from(bytes).is_multiple_of(UNIT_BYTES)
            }
            Message::StatusReport => bytes as usize == STATUS_BYTES,
            _ => bytes == 0,
        }
    }
}
