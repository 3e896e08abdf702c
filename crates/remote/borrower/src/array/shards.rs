// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads and writes slabs whose members have shards: all the members needed are asked at the same time.
//!
//! A read asks for as many shards as it needs, data shards first. If an answer is late or missing, the read asks for
//! parity shards, too, and computes what is missing. The upkeep thread looks for members that have not answered
//! (`repair.rs`), so that no reader waits here for long; a member is waited for only if the others are too few.
//!
//! A write goes to all members of the place. It succeeds when enough members to read the slab have their shards, and
//! all others have been removed from the place. So every member of the place has its shard of the last write, as with
//! copies, and shards of different ages are never combined: this side knows which shards are valid and does not ask the
//! members. If fewer members have accepted the write, it fails. These pages may then be neither the old nor the new
//! ones; their owner does not count them as stored, and its guards detect the mixture.
//!
//! Threads: any, including signal handlers. Shards are assembled in frames of the array, each of which is claimed for
//! that time only. Allocates nothing, and locks nothing.

mod gather;
mod queue;

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aquifer_core::units::SlabIndex;
use aquifer_sys::FrameBuffer;
use aquifer_sys::raw::{Errno, now_ns};
use aquifer_sys::spare_frames::SpareFrames;

pub(super) use self::queue::ShardQueue;
use super::code::{Code, positions};
use super::piece::SlabPiece;
use super::place::{POSITIONS, Place};
use super::shape::Shape;
use super::{Member, Parts};
use crate::access_failure::{AccessFailure, LinkFailure};
use crate::donor::{Asked, Missed, Piece};

/// How much of each shard goes over the wire in one request. A choice: with four data shards this is a block of 128
/// KiB, which donors answer within some hundred microseconds.
const SHARD_BYTES_MAX: usize = 32 << 10;
/// A write that enough members have accepted is retried at the others for this time after it began, in nanoseconds:
/// longer than members have for their answers (`donor/timeouts.rs`), so that at least one of them gets a second chance.
const STRAGGLERS_TIMEOUT: u64 = 700_000_000;
/// One frame for each thread that reads or writes at the same time: those of the program and of the pager. More than
/// most machines have CPUs.
const FRAMES: Range<u32> = 0..16;
/// How long to wait for a frame: its holder waits for members, each of which has a time limit of some seconds.
const FRAME_TIMEOUT: Duration = Duration::from_secs(30);

/// Queue requests that members carry out at the same time, each with one frame for each shard: enough to keep a link
/// busy (`pager/src/worker.rs`).
const QUEUE_FRAMES: Range<u32> = 0..16;

/// What is needed to cut pages into shards and to assemble them.
pub(super) struct Cutter {
    shape: Shape,
    code: Code,
    frames: SpareFrames,
    /// For queues, by position.
    queues: Box<[SpareFrames]>,
}

impl Cutter {
    pub(super) fn new(shape: Shape) -> Result<Cutter, Errno> {
        let frames = SpareFrames::new(FRAMES.end, shape.total * SHARD_BYTES_MAX)?;
        let queues = (0..shape.total).map(|_| SpareFrames::new(QUEUE_FRAMES.end, SHARD_BYTES_MAX));
        let queues = queues.collect::<Result<_, Errno>>()?;
        Ok(Cutter { shape, code: Code::new(shape.needed, shape.total), frames, queues })
    }

    /// Calls `act` with a frame for all shards of `len` bytes.
    fn with_shards<R>(
        &self,
        len: usize,
        act: impl FnOnce(&mut [u8]) -> Result<R, AccessFailure>,
    ) -> Result<R, AccessFailure> {
        let frame = self.frames.wait(FRAMES, self.shape.total * len, FRAME_TIMEOUT);
        let mut frame: FrameBuffer = frame.ok_or(AccessFailure::NotNow)?;
        let outcome = act(frame.bytes_mut());
        self.frames.give_back(frame);
        outcome
    }

    /// The parts of a piece that each go over the wire in one request: their place in the piece's bytes, and the part
    /// as a piece.
    fn chunks(&self, piece: SlabPiece) -> impl Iterator<Item = (Range<usize>, SlabPiece)> + use<> {
        let max = self.shape.needed * SHARD_BYTES_MAX;
        (0..piece.bytes).step_by(max).map(move |start| {
            let bytes = max.min(piece.bytes - start);
            (start..start + bytes, SlabPiece { offset: piece.offset + start as u64, bytes, ..piece })
        })
    }
}

/// Requests to members for their shards, by position.
type Requests<'a> = [Option<Asked<'a>>; POSITIONS];

impl Parts {
    fn cutter(&self) -> &Cutter {
        self.cutter.as_ref().expect("only where members have shards")
    }

    fn at(&self, place: Place, position: usize) -> Option<(usize, &Member)> {
        let member = place.at(position)?;
        Some((member, &self.members[member]))
    }

    /// Fills `into` from any shards that can be read.
    pub(super) fn read_shards(&self, place: Place, piece: SlabPiece, into: &mut [u8]) -> Result<(), AccessFailure> {
        self.read_shards_of(place, place.positions(), piece, into)
    }

    /// Fills `into` from the choice of shards number `way`, counted from 1, if there is one.
    pub(super) fn read_shards_by(
        &self,
        place: Place,
        piece: SlabPiece,
        into: &mut [u8],
        way: usize,
    ) -> Result<bool, AccessFailure> {
        let Some(choice) = way.checked_sub(1).and_then(|index| choice(place.positions(), self.shape.needed, index))
        else {
            return Ok(false);
        };
        let is_waited_for = positions(choice).filter_map(|position| place.at(position)).any(|it| self.may_be_back(it));
        if is_waited_for {
            return Err(AccessFailure::NotNow);
        }
        self.read_shards_of(place, choice, piece, into).map(|()| true)
    }

    fn read_shards_of(&self, place: Place, among: u16, piece: SlabPiece, into: &mut [u8]) -> Result<(), AccessFailure> {
        let Cutter { code, .. } = self.cutter();
        for (range, chunk) in self.cutter().chunks(piece) {
            let part = self.shape.part(chunk);
            self.cutter().with_shards(part.bytes, |shards| {
                let there = self.gather(place, among, chunk, shards)?;
                code.restore(shards, part.bytes, there, code.data_mask() & !there);
                code.join(shards, &mut into[range]);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Computes, from the shards of others, what a new member at this position needs of a piece of the slab at `place`,
    /// and stores it there.
    pub(super) fn copy_shard(&self, place: Place, position: usize, target: usize, piece: SlabPiece) -> bool {
        let Cutter { code, .. } = self.cutter();
        self.cutter().chunks(piece).all(|(_, chunk)| {
            let part = self.shape.part(chunk);
            let copied = self.cutter().with_shards(part.bytes, |shards| {
                let there = self.gather(place, place.positions() & !(1 << position), chunk, shards)?;
                code.restore(shards, part.bytes, there, 1 << position);
                self.store_one(target, part, &shards[position * part.bytes..])
            });
            copied.is_ok()
        })
    }

    /// Stores what a member at this position needs of a piece of a slab, whose pages are `bytes`.
    pub(super) fn store_shard(&self, position: usize, target: usize, piece: SlabPiece, bytes: &[u8]) -> bool {
        let Cutter { code, .. } = self.cutter();
        self.cutter().chunks(piece).all(|(range, chunk)| {
            let part = self.shape.part(chunk);
            let stored = self.cutter().with_shards(part.bytes, |shards| {
                code.encode(&bytes[range], shards);
                self.store_one(target, part, &shards[position * part.bytes..])
            });
            stored.is_ok()
        })
    }

    fn store_one(&self, target: usize, part: Piece, shard: &[u8]) -> Result<(), AccessFailure> {
        let written = self.members[target].store.write(part.offset, &shard[..part.bytes]);
        written.inspect_err(|failure| _ = self.note(target, *failure))
    }

    /// The members of `place` whose shards of a page are not those of `bytes`.
    pub(super) fn wrong_shards(&self, place: Place, page: SlabPiece, bytes: &[u8]) -> Vec<usize> {
        let part = self.shape.part(page);
        let mut read = vec![0; part.bytes];
        let wrong = self.cutter().with_shards(part.bytes, |shards| {
            self.cutter().code.encode(bytes, shards);
            let is_wrong = |(position, shard): &(usize, &[u8])| {
                let member = self.at(place, *position).filter(|(_, member)| !member.is_lost());
                member.is_some_and(|(_, member)| member.store.read(part.offset, &mut read).is_ok() && read != *shard)
            };
            let wrong = shards.chunks_exact(part.bytes).enumerate().filter(is_wrong);
            Ok(wrong.filter_map(|(position, _)| place.at(position)).collect())
        });
        wrong.unwrap_or_default()
    }

    /// Stores the shards of a piece at the members of a place, as far as they are present. Returns those that have
    /// them, one bit each, if they are enough.
    pub(super) fn write_shards(&self, place: Place, piece: SlabPiece, bytes: &[u8]) -> Result<u64, AccessFailure> {
        let is_there = |position: &usize| {
            self.at(place, *position).is_some_and(|(_, member)| !member.is_lost() && !member.is_quarantined())
        };
        let mut good = mask(positions(place.positions()).filter(is_there));
        if !self.is_enough(good) {
            good = place.positions();
        }
        let Cutter { code, .. } = self.cutter();
        for (range, chunk) in self.cutter().chunks(piece) {
            let part = self.shape.part(chunk);
            good = self.cutter().with_shards(part.bytes, |shards| {
                code.encode(&bytes[range], shards);
                self.spread(place, good, piece.slab, part, shards)
            })?;
        }
        let members = positions(good).filter_map(|position| place.at(position));
        Ok(members.fold(0, |mask, member| mask | 1 << member))
    }

    /// Stores shards at the members at these positions, all at the same time. Returns the positions that have accepted
    /// theirs, if they are enough.
    fn spread(
        &self,
        place: Place,
        among: u16,
        slab: SlabIndex,
        part: Piece,
        shards: &[u8],
    ) -> Result<u16, AccessFailure> {
        let shard = |position: usize| &shards[position * part.bytes..][..part.bytes];
        let started = now_ns();
        let mut requests: Requests<'_> = Default::default();
        for position in positions(among) {
            let member = self.at(place, position).map(|(_, member)| member);
            requests[position] = member.and_then(|member| member.store.begin_write(part, shard(position)));
        }
        let (mut written, mut silent) = (0, 0);
        for (position, request) in requests.into_iter().enumerate() {
            match request.map(|request| request.finish(&mut [])) {
                Some(Ok(())) => written |= 1 << position,
                Some(Err(Missed::Silent)) => silent |= 1 << position,
                _ => {}
            }
        }
        let mut failed = AccessFailure::NoMember;
        // This starts only after all connections that other threads may wait for were given back. Members that have
        // used up their time come last, after those that recently left other requests unanswered.
        let rest = among & !written;
        let doubtful = self.silent(place, rest & !silent);
        let in_order = [rest & !silent & !doubtful, doubtful, rest & silent];
        for position in in_order.into_iter().flat_map(positions) {
            let Some((index, member)) = self.at(place, position) else { continue };
            let is_late = now_ns().saturating_sub(started) > STRAGGLERS_TIMEOUT;
            if is_late && self.is_enough(written) {
                // Continues without this member. Its shard is rebuilt, whereas a program that waits loses time for
                // good.
                self.request_failed(index, slab, AccessFailure::Link(LinkFailure::TimedOut));
                continue;
            }
            match member.store.write(part.offset, shard(position)) {
                Ok(()) => written |= 1 << position,
                Err(failure) => {
                    self.request_failed(index, slab, failure);
                    failed = failure;
                }
            }
        }
        if self.is_enough(written) { Ok(written) } else { Err(failed) }
    }

    /// The positions whose members recently did not answer, and that nobody has looked for since.
    fn silent(&self, place: Place, among: u16) -> u16 {
        let is_silent = |member: &Member| member.is_silent.load(Ordering::Relaxed);
        mask(positions(among).filter(|position| self.at(place, *position).is_some_and(|(_, it)| is_silent(it))))
    }

    /// Whether shards at these positions are enough to read what is stored.
    fn is_enough(&self, positions: u16) -> bool {
        positions.count_ones() as usize >= self.shape.needed
    }
}

fn mask(positions: impl Iterator<Item = usize>) -> u16 {
    positions.fold(0, |mask, position| mask | 1 << position)
}

/// Choice number `index` of `needed` of these positions. The first choices leave out adjacent positions, so that any
/// damaged one is soon left out; after them come all choices.
pub(super) fn choice(among: u16, needed: usize, index: usize) -> Option<u16> {
    let count = among.count_ones() as usize;
    if count <= needed {
        return (count == needed && index == 0).then_some(among);
    }
    if index < count {
        return Some(mask(positions(among).cycle().skip(index + 1).take(needed)));
    }
    let is_one = |mask: &u16| mask & !among == 0 && mask.count_ones() as usize == needed;
    (0..=among).filter(is_one).nth(index - count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_member_is_soon_left_out_and_no_choice_is_forgotten() {
        let all = |among, needed| (0..).map_while(move |index| choice(among, needed, index)).collect::<Vec<u16>>();
        let first = &all(0b11111, 4)[..5];
        assert!((0..5).all(|damaged| first.iter().any(|choice| choice & 1 << damaged == 0)));
        let two = all(0b1011_1011, 4);
        assert!(two.iter().all(|choice| choice.count_ones() == 4 && choice & !0b1011_1011 == 0));
        let mut each = two[6..].to_vec();
        each.dedup();
        assert_eq!(each.len(), 15, "four of six");
        assert_eq!((all(0b1111, 4), all(0b111, 4)), (vec![0b1111], vec![]));
    }
}
