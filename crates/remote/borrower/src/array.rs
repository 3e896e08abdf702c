// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Several donors as one tier. Slabs are striped over the donors, or several donors keep each slab, either whole or in
//! shards.
//!
//! The unit is the slab. Slab `s` of the array is range `s` of each member that has it: donors lend for any range, so
//! the array has no ranges to allocate. One word for each slab says which members these are (`array/place.rs`); the
//! words lie in the table of `places.rs`, which related processes share. From the outside in: `layout.rs` decides which
//! members get a slab, `copies.rs` reads and writes all copies of a slab, `repair.rs` looks for lost members and makes
//! new copies in parallel with the program, and `member.rs` is one member. With parity, members have shards
//! (`shape.rs`, `code.rs`, `shards.rs`), and a slab that a member lends holds shards of several slabs of the array. The
//! reasons: `docs/decisions/0017-an-array-keeps-copies-of-slabs.md`, `0020-parity-is-within-a-page.md`.
//!
//! What must hold: a write that has succeeded has reached every member of its slab's place. So a member that misses a
//! write is removed from the place before the write succeeds, and a read from any member of the place returns what was
//! written last.

mod code;
mod connection;
mod copies;
mod hedge;
mod layout;
mod member;
mod member_queues;
mod member_table;
mod membership;
pub mod memory_members;
mod notices;
mod opening;
mod piece;
mod place;
mod quarantine;
mod queue;
mod rebuild;
mod reclaim;
mod repair;
mod shape;
mod shards;
#[cfg(test)]
mod tests;
mod volume;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aquifer_core::units::SlabIndex;
use aquifer_sys::FrameBuffer;
use aquifer_sys::raw::Errno;
use aquifer_sys::words::Words;
use aquifer_tier::figures::{TierCounters, count};
use aquifer_tier::places::{PLACE_WORDS, Places, Seen};
use aquifer_tier::plain_queue::Blocking;
use aquifer_tier::transfer::{check_buffer, check_range};
use aquifer_tier::{
    Activity, BUSY_BYTES, Cause, Forks, KeepAlive, Tier, TierFailure, TierFigures, TierQueue, Upkeep, Verify,
};
use aquifer_wire::SLAB_BYTES;

use self::connection::Connection;
use self::layout::Rotation;
pub use self::layout::WEIGHT_MAX;
use self::member::Member;
pub(crate) use self::member::{Room, Store};
use self::member_table::MemberTable;
use self::membership::Admission;
pub(crate) use self::membership::SeatWords;
use self::place::Place;
pub use self::place::{MEMBERS_MAX, POSITIONS};
use self::queue::ArrayQueue;
use self::repair::Repair;
pub use self::shape::DATA_SHARDS;
pub(crate) use self::shape::Shape;
use self::shards::{Cutter, ShardQueue};
use crate::access_failure::AccessFailure;
use crate::donor;

/// The same name as that of a single donor, because both are requested with `donor:`.
const NAME: &str = donor::NAME;

/// Words before the table.
const HEAD_WORDS: usize = 2;
/// One more than the highest slab that ever had a place.
const REACHED: usize = 0;
/// How many times a slab fell below its number of copies.
const DEGRADED: usize = 1;

/// The bytes of a stream that must be in flight for each donor. Half of a stream's window has arrived when it is moved,
/// and neighbouring slabs may be at one donor, because slabs get their places in the order of write-back. Over four
/// cables of 100 MB/s, two slabs for each donor gave 0.63 of the cables' sum, and four gave 0.78 and 0.82.
const BUSY_BYTES_PER_DONOR: u64 = 4 * SLAB_BYTES;
/// More donors than these are not kept busy by one stream: its window takes a part of the budget. A choice.
const BUSY_DONORS_MAX: u64 = 8;

/// How often leases are renewed at members that join, until one has: often enough for any of them. A choice.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A tier of several donors.
pub struct Array {
    parts: Arc<Parts>,
    notices: Vec<String>,
}

/// What the array and its queues share.
pub(crate) struct Parts {
    /// By seat: the members, and seats without one.
    members: Box<[Member]>,
    member_table: MemberTable,
    /// For members that join; `None` if nobody can.
    admission: Option<Admission>,
    rotation: Rotation,
    /// How many members should have each slab, and which part of it each of them has.
    shape: Shape,
    /// Cuts pages into shards, where the shape has shards.
    cutter: Option<Cutter>,
    slabs: u32,
    head: Words,
    places: Places,
    counters: TierCounters,
    repair: Repair,
}

impl Array {
    /// An array of these members with their weights, for `slabs` slabs that each lie on some of the members.
    fn new(stores: Vec<(Box<dyn Store>, u32)>, shape: Shape, slabs: u32, notices: Vec<String>) -> Result<Array, Errno> {
        assert!(stores.len() <= MEMBERS_MAX && (1..=POSITIONS).contains(&shape.total), "a description is checked");
        let weights: Vec<u32> = stores.iter().map(|(_, weight)| *weight).collect();
        let members = stores.into_iter().map(|(store, _)| Member::new(Connection::to(store))).collect();
        let (member_table, rotation) = (MemberTable::taken(&weights)?, Rotation::new(&weights));
        Self::of(members, member_table, rotation, None, shape, slabs, notices)
    }

    /// An array without members, which join later: at most [`MEMBERS_MAX`] different donors.
    fn vacant(admission: Admission, shape: Shape, slabs: u32) -> Result<Array, Errno> {
        let members = (0..MEMBERS_MAX).map(|_| Member::new(Connection::none())).collect();
        Self::of(members, MemberTable::new(MEMBERS_MAX)?, Rotation::vacant(), Some(admission), shape, slabs, Vec::new())
    }

    fn of(
        members: Box<[Member]>,
        member_table: MemberTable,
        rotation: Rotation,
        admission: Option<Admission>,
        shape: Shape,
        slabs: u32,
        notices: Vec<String>,
    ) -> Result<Array, Errno> {
        let (head, table) = Words::shared(HEAD_WORDS + slabs as usize * PLACE_WORDS)?.split_at(HEAD_WORDS);
        let parts = Parts {
            members,
            member_table,
            admission,
            rotation,
            shape,
            cutter: shape.is_cut().then(|| Cutter::new(shape)).transpose()?,
            slabs,
            head,
            places: Places::over(table),
            counters: TierCounters::default(),
            repair: Repair::default(),
        };
        Ok(Array { parts: Arc::new(parts), notices })
    }
}

impl Parts {
    fn capacity_bytes(&self) -> u64 {
        u64::from(self.slabs) * SLAB_BYTES
    }

    /// Slabs from this number on never had a place.
    fn reached(&self) -> u32 {
        self.head[REACHED].load(Ordering::Acquire).min(self.slabs.into()) as u32
    }

    /// Where a slab is.
    fn place(&self, slab: SlabIndex) -> Place {
        self.place_of(self.places.see(slab))
    }

    /// The place as read from the table, corrected to a possible one, because any process of the family may have
    /// overwritten the table.
    fn place_of(&self, seen: Seen) -> Place {
        Place(seen.place).possible(self.members.len(), self.shape.total)
    }

    /// Records that a slab has got a place.
    fn reach(&self, slab: SlabIndex) {
        if self.reached() <= slab.0 {
            self.head[REACHED].fetch_max(u64::from(slab.0) + 1, Ordering::AcqRel);
        }
    }

    /// How many times slabs fell below their number of copies, in the whole process family.
    fn degradations(&self) -> u64 {
        self.head[DEGRADED].load(Ordering::Acquire)
    }

    /// Records that some slab has fewer copies than it should.
    fn degraded(&self) {
        self.head[DEGRADED].fetch_add(1, Ordering::AcqRel);
    }
}

impl Tier for Array {
    fn name(&self) -> &'static str {
        NAME
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }

    fn remedy(&self) -> &'static str {
        if self.parts.shape.is_redundant() {
            "check the donors and the network to them"
        } else {
            "check the donors and the network to them, or let some of them be lost (mirror=2, parity=4+1)"
        }
    }

    fn capacity_bytes(&self) -> u64 {
        self.parts.capacity_bytes()
    }

    fn busy_bytes(&self) -> u64 {
        if self.parts.cutter.is_some() {
            // Each transfer is to all donors.
            return BUSY_BYTES;
        }
        // More may join.
        let donors = self.parts.admission.as_ref().map_or(self.parts.members.len() as u64, |_| BUSY_DONORS_MAX);
        BUSY_BYTES.max(donors.min(BUSY_DONORS_MAX) * BUSY_BYTES_PER_DONOR)
    }

    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        Blocking::read(&*self.parts, offset, buffer)
    }

    fn read_other(&self, offset: u64, buffer: &mut FrameBuffer, way: u32) -> Result<bool, TierFailure> {
        check_buffer(NAME, Activity::Read, offset, buffer, self.capacity_bytes())?;
        let read = self.parts.read_way(offset, buffer.bytes_mut(), way as usize);
        if read == Ok(true) {
            count(&self.parts.counters.reads_by_another_way);
        }
        read.map_err(|failure| tier_failure(Activity::Read, offset, failure))
    }

    fn read_verified(
        &self,
        offset: u64,
        buffer: &mut FrameBuffer,
        _: &mut dyn FnMut(u64, usize, u32),
    ) -> Result<(), TierFailure> {
        check_buffer(NAME, Activity::Read, offset, buffer, self.capacity_bytes())?;
        match self.parts.read_agreed(offset, buffer.bytes_mut()) {
            Ok(true) => Ok(()),
            // There is only one way to read it.
            Ok(false) => self.read(offset, buffer),
            Err(failure) => Err(tier_failure(Activity::Read, offset, failure)),
        }
    }

    fn report_corruption(&self, offset: u64, len: usize, way: u32) {
        self.parts.report_corruption(offset, len, way as usize);
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        Blocking::write(&*self.parts, offset, buffer)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure> {
        check_range(NAME, Activity::Discard, offset, len, self.capacity_bytes())?;
        self.parts.discard(offset, len).map_err(|failure| tier_failure(Activity::Discard, offset, failure))
    }

    fn flush(&self) -> Result<(), TierFailure> {
        Ok(())
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        if self.parts.shape.is_cut() {
            return Ok(Box::new(ShardQueue::open(Arc::clone(&self.parts), depth)?));
        }
        Ok(Box::new(ArrayQueue::open(Arc::clone(&self.parts), depth)?))
    }

    fn take_figures(&self) -> TierFigures {
        self.parts.counters.take()
    }

    fn upkeep(&self) -> Option<&dyn Upkeep> {
        Some(self)
    }

    fn forks(&self) -> Option<&dyn Forks> {
        Some(self)
    }
}

impl Upkeep for Array {
    fn turn(&self, verify: Option<&Verify<'_>>) -> Duration {
        self.parts.upkeep(verify)
    }

    fn report_changes(&self, say: &mut dyn FnMut(&str)) {
        self.parts.report_changes(say);
    }

    /// Not left to `turn`, which waits for one member after the other and makes copies in between.
    fn keep_alive_every(&self) -> Option<Duration> {
        // Where members join, one that joins later may need it.
        let of_members = self.parts.members.iter().filter(|member| member.store.is_connected());
        of_members.map(|member| member.store.look_every()).min().or(self.parts.admission.as_ref().map(|_| LOOK_EVERY))
    }

    fn begin_keep_alive(&self) -> Vec<Box<dyn KeepAlive + '_>> {
        // The thread that calls `turn` looks for lost members and reconnects them.
        let there = self.parts.in_use().map(|index| &self.parts.members[index]).filter(|member| !member.is_lost());
        there.filter_map(|member| member.store.begin_keep_alive()).collect()
    }
}

impl Forks for Array {
    fn after_fork_in_child(&self, _: bool) -> Result<(), Errno> {
        self.parts.after_fork_in_child()
    }
}

impl Blocking for Parts {
    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        check_buffer(NAME, Activity::Read, offset, buffer, self.capacity_bytes())?;
        self.read_bytes(offset, buffer.bytes_mut()).map_err(|failure| tier_failure(Activity::Read, offset, failure))
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        check_buffer(NAME, Activity::Write, offset, buffer, self.capacity_bytes())?;
        self.write_bytes(offset, buffer.bytes()).map_err(|failure| tier_failure(Activity::Write, offset, failure))
    }
}

fn tier_failure(activity: Activity, offset: u64, failure: AccessFailure) -> TierFailure {
    TierFailure { tier: NAME, activity, offset, cause: Cause::Errno(failure.errno()) }
}
