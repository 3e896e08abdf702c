// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How the members of a tier that is made of several change while programs use it.
//!
//! Only the tier of a volume of the pool has this interface. Its caller follows what the host's agent orders, and calls
//! it on the thread that also runs [`Upkeep::turn`](crate::Upkeep::turn). `turn` moves the slabs.
//!
//! Threads: the pager's upkeep thread. May allocate, and may wait for donors.

use std::error::Error;
use std::fmt;

/// The caller's number of a member. It is not given to two members of one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberKey(pub u64);

/// A member that joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newcomer {
    /// Its key.
    pub key: MemberKey,
    /// Where its donor is, as `HOST:PORT`.
    pub address: String,
    /// The name that the donor's certificate must be for. Not used without TLS.
    pub server_name: String,
    /// Its share, relative to the others.
    pub weight: u32,
    /// The number of slabs that it lends.
    pub slabs: u64,
    /// The token of the reservation that its donor has made for it; 0 if there is none.
    pub reservation: u64,
}

/// What a member is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberStatus {
    /// It is reachable, and gets slabs.
    Present,
    /// It does not answer.
    Lost,
    /// Its slabs are being moved to others.
    Draining {
        /// The slabs that it still has.
        slabs: u64,
        /// `true` if the slabs have no place elsewhere: the member stays until others have room.
        is_stalled: bool,
    },
    /// It has no slab of this tier, and gets none.
    Left,
}

/// Why members were not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MembershipFailure {
    /// The newcomer's description is not valid.
    BadDescription {
        /// Where it is.
        address: String,
    },
    /// Without the members that drain, the others have less room than is in use.
    DoesNotFit {
        /// The slabs in use.
        used: u64,
        /// The slabs that the others have room for.
        room: u64,
    },
    /// Fewer members would remain than have a part of each slab.
    TooFew {
        /// How many have a part of each slab.
        needed: usize,
        /// How many would remain.
        left: usize,
    },
    /// The tier has had as many different donors as it can distinguish.
    TooMany {
        /// That number.
        max: usize,
    },
    /// The donor cannot be asked.
    Unreachable {
        /// Why, and what to do.
        why: String,
    },
}

impl fmt::Display for MembershipFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadDescription { address } => write!(
                f,
                "the address '{}' of a member cannot be used; register its donor with a shorter HOST:PORT",
                address.escape_debug()
            ),
            Self::DoesNotFit { used, room } => write!(
                f,
                "{used} slabs are in use, and the members that remain have room for {room}; add a donor first, or free \
                 memory in the program"
            ),
            Self::TooFew { needed, left } => {
                write!(f, "each slab is with {needed} donors, and {left} would remain; add a donor first")
            }
            Self::TooMany { max } => write!(
                f,
                "this program has had {max} different donors, the most that its tier can distinguish; restart the program \
                 to use more"
            ),
            Self::Unreachable { why } => f.write_str(why),
        }
    }
}

impl Error for MembershipFailure {}

/// A tier whose members change.
pub trait Membership: Sync {
    /// Adds a member, or cancels the drain of one. Nothing happens if it is a member already.
    fn join(&self, newcomer: &Newcomer) -> Result<(), MembershipFailure>;

    /// Begins to move a member's slabs to others. It leaves when it has none. Refused if the others cannot have them;
    /// if that turns out later, the member stays, and its [`MemberStatus`] says so.
    fn drain(&self, key: MemberKey) -> Result<(), MembershipFailure>;

    /// Gives a member up with all of its slabs: its memory is lost or no longer needed. A slab that no other member has
    /// is lost.
    fn leave(&self, key: MemberKey);

    /// Every member that this tier has had, with what it is doing.
    fn statuses(&self) -> Vec<(MemberKey, MemberStatus)>;
}
