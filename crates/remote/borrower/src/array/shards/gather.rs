// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Gathers as many shards as a read needs: from all members at the same time, and if that is not enough, from one after
//! the other.

use std::sync::atomic::Ordering;
use std::time::Duration;

use aquifer_core::units::SlabIndex;
use aquifer_sys::raw::now_ns;
use aquifer_tier::figures::count;

use super::{Requests, mask, positions};
use crate::access_failure::AccessFailure;
use crate::array::Parts;
use crate::array::copies::may_come_back;
use crate::array::hedge::{BOTH_TIMEOUT, wait_for};
use crate::array::piece::SlabPiece;
use crate::array::place::Place;
use crate::donor::{Missed, Piece};

/// One read that is gathered from the shards of several members.
struct Gathering<'a> {
    parts: &'a Parts,
    place: Place,
    /// What members have of the piece.
    part: Piece,
    /// Positions whose shards have been read into their places.
    there: u16,
    /// Positions that were asked, or could not be asked immediately.
    tried: u16,
    /// Positions of members that are present, and have refused.
    refused: u16,
    /// Positions of members that were asked and have not answered.
    silent: u16,
}

impl Parts {
    /// Reads as many shards of `among` as are needed into their places in `shards`. Returns their positions.
    pub(super) fn gather(
        &self,
        place: Place,
        among: u16,
        piece: SlabPiece,
        shards: &mut [u8],
    ) -> Result<u16, AccessFailure> {
        let part = self.shape.part(piece);
        let mut gathering = Gathering { parts: self, place, part, there: 0, tried: 0, refused: 0, silent: 0 };
        gathering.at_once(among, shards);
        gathering.one_by_one(among, piece.slab, shards)?;
        Ok(gathering.there)
    }
}

impl<'a> Gathering<'a> {
    fn lacks(&self) -> bool {
        !self.parts.is_enough(self.there)
    }

    fn is_lost(&self, position: usize) -> bool {
        self.parts.at(self.place, position).is_none_or(|(_, member)| member.is_lost())
    }

    /// Asks all the members needed, and then takes their answers as they arrive.
    fn at_once(&mut self, among: u16, shards: &mut [u8]) {
        let mut requests: Requests<'a> = Default::default();
        let there = mask(positions(among).filter(|position| !self.is_lost(*position)));
        while !self.parts.is_enough(pending(&requests)) && self.ask_next(there, &mut requests) {}
        // If lost members have to be waited for anyway, it is too early to ask for more.
        let mut may_hedge = self.parts.is_enough(pending(&requests));
        let mut timeout = if may_hedge { self.hedge_after(&requests) } else { BOTH_TIMEOUT };
        let started = now_ns();
        let elapsed = || Duration::from_nanos(now_ns().saturating_sub(started));
        while self.lacks() && pending(&requests) != 0 {
            let sockets = requests.iter().flatten().map(|request| request.socket());
            match wait_for(sockets, timeout.saturating_sub(elapsed())) {
                Some(nth) => {
                    let position = positions(pending(&requests)).nth(nth).expect("one of those that are waited for");
                    if self.arrive(position, &mut requests, shards) {
                        self.took(position, elapsed());
                    } else {
                        self.ask_next(there, &mut requests);
                    }
                }
                None if may_hedge => {
                    may_hedge = false;
                    count(&self.parts.counters.reads_hedged);
                    positions(pending(&requests)).for_each(|position| self.took(position, elapsed()));
                    while self.ask_next(there, &mut requests) {}
                    timeout += BOTH_TIMEOUT;
                }
                None => break,
            }
        }
        self.silent |= pending(&requests);
        positions(self.silent).for_each(|position| self.suspect(position));
    }

    /// Asks the next of these members, if there is one; quarantined members come last.
    fn ask_next(&mut self, among: u16, requests: &mut Requests<'a>) -> bool {
        let is_healthy =
            |position: &usize| self.parts.at(self.place, *position).is_some_and(|(_, member)| !member.is_quarantined());
        let mut left = positions(among & !self.tried);
        let Some(position) = left.clone().find(is_healthy).or(left.next()) else { return false };
        self.tried |= 1 << position;
        let member = self.parts.at(self.place, position).map(|(_, member)| member);
        requests[position] = member.and_then(|member| member.store.begin_read(self.part));
        if requests[position].is_none() {
            self.suspect(position);
        }
        true
    }

    /// Takes a member's answer. Returns false if it is not the shard.
    fn arrive(&mut self, position: usize, requests: &mut Requests<'a>, shards: &mut [u8]) -> bool {
        let Some(request) = requests[position].take() else { return false };
        match request.finish(&mut shards[position * self.part.bytes..][..self.part.bytes]) {
            Ok(()) => self.there |= 1 << position,
            Err(Missed::Refused) => self.refused |= 1 << position,
            Err(Missed::Silent | Missed::Broken) => self.silent |= 1 << position,
        }
        self.there & 1 << position != 0
    }

    fn suspect(&self, position: usize) {
        if let Some((_, member)) = self.parts.at(self.place, position) {
            if self.silent & 1 << position != 0 {
                member.is_silent.store(true, Ordering::Relaxed);
            }
            member.suspect();
        }
    }

    fn took(&self, position: usize, time: Duration) {
        if let Some((_, member)) = self.parts.at(self.place, position) {
            member.answered_in(time);
        }
    }

    /// How long to wait before asking more members: long enough for the slowest of those that were asked.
    fn hedge_after(&self, requests: &Requests<'a>) -> Duration {
        let asked = positions(pending(requests)).filter_map(|position| self.parts.at(self.place, position));
        asked.map(|(_, member)| member.hedge_after()).max().unwrap_or(BOTH_TIMEOUT)
    }

    /// Reads the missing shards. Members that have refused are read from in any case, which shows whether there is a
    /// newer token or the slab is gone. Lost members come last, after members that did not answer this read or an
    /// earlier one. So a member that hangs is waited for only where nobody knew that it hangs, and only once.
    fn one_by_one(&mut self, among: u16, slab: SlabIndex, shards: &mut [u8]) -> Result<(), AccessFailure> {
        let mut failed = None;
        for position in positions(self.refused) {
            self.read_one(position, slab, shards, &mut failed);
        }
        let rest = among & !self.there & !self.refused;
        let lost = mask(positions(rest).filter(|position| self.is_lost(*position)));
        let silent = (self.silent | self.parts.silent(self.place, rest)) & !lost;
        for position in positions(rest & !lost & !silent).chain(positions(rest & silent)).chain(positions(lost)) {
            if !self.lacks() {
                break;
            }
            self.read_one(position, slab, shards, &mut failed);
        }
        if failed.is_some() && !self.lacks() {
            count(&self.parts.counters.reads_by_another_way);
        }
        if self.lacks() { Err(failed.unwrap_or(AccessFailure::Gone)) } else { Ok(()) }
    }

    fn read_one(&mut self, position: usize, slab: SlabIndex, shards: &mut [u8], failed: &mut Option<AccessFailure>) {
        let Some((index, member)) = self.parts.at(self.place, position) else { return };
        let shard = &mut shards[position * self.part.bytes..][..self.part.bytes];
        match member.store.read(self.part.offset, shard) {
            Ok(()) if self.lacks() => self.there |= 1 << position,
            Ok(()) => {}
            Err(failure) => {
                self.parts.request_failed(index, slab, failure);
                // If any member may come back, the read is retried.
                *failed = failed.filter(|before| may_come_back(*before)).or(Some(failure));
            }
        }
    }
}

/// Positions that were asked and have not answered.
fn pending(requests: &Requests<'_>) -> u16 {
    mask(requests.iter().enumerate().filter(|(_, request)| request.is_some()).map(|(position, _)| position))
}
