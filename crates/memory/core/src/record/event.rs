// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The bytes of one event: a tag, the input, the answer. Golden file: `tests/golden/recording_v2.bin`.
//!
//! Pure. Numbers are varints: seven bits to a byte, the lowest first, the high bit set in all but the last.
//!
//! | tag | input              | fields                                                     | answer |
//! |-----|--------------------|------------------------------------------------------------|--------|
//! | 1   | add                | start, pages, order, delivery, bytes of runs, runs         | –      |
//! | 2   | cleaned            | block, verdict, bytes of runs, runs                        | flag   |
//! | 3   | discard            | start, pages                                               | digest |
//! | 4   | remove             | start, pages                                               | digest |
//! | 5   | emptied            | frame                                                      | –      |
//! | 6   | evicted            | block                                                      | flag   |
//! | 7   | eviction refused   | block                                                      | flag   |
//! | 8   | fetch failed       | block, lost                                                | flag   |
//! | 9   | fetched            | block, write                                               | kind   |
//! | 10  | installed          | first block, count, arrival, and a refault's distance      | flag   |
//! | 11  | plan               | blocks, pages                                              | digest |
//! | 12  | read ahead arrived | block                                                      | flag   |
//! | 13  | slot for           | block                                                      | slab   |
//! | 14  | try again          |                                                            | –      |
//! | 15  | dropped            | block                                                      | flag   |
//! | 16  | fault, asked again | page, thread                                               | digest |
//! | 17  | fault, first       | page, thread                                               | digest |
//! | 18  | write, asked again | page, thread                                               | digest |
//! | 19  | write, first       | page, thread                                               | digest |
//! | 20  | advise             | start, pages, advice                                       | –      |
//! | 21  | has arrived        | page                                                       | kind   |
//! | 22  | await arrivals     | whether they are awaited                                   | –      |
//! | 23  | begin change       | page                                                       | flag   |
//! | 24  | end change         | page, guard (0 zero, 1 same, 2 other, 3 lost)              | flag   |
//! | 25  | set file           | start, pages, first slab, bytes of runs, runs              | –      |
//! | 26  | renew              | page, guard (0 zero, 1 same, 2 other)                      | flag   |
//! | 27  | fault, no credit   | page, thread                                               | digest |
//! | 28  | write, no credit   | page, thread                                               | digest |
//!
//! A flag and a kind are one byte. A digest is one byte for the kind of the answer and four, little-endian, for the
//! digest. A slab is one byte, 0 if the tier was full, and four, little-endian, for its number.

use super::answer::Summary;
use super::call::Call;
use super::runs::{Guarded, Runs};
use crate::engine::{Advice, CleanVerdict};
use crate::map::Delivery;
use crate::policy::Arrival;
use crate::units::{BlockIndex, FrameIndex, Order, PageIndex, REGION_PAGES, SlabIndex, ThreadIndex};

/// Maximum number of pages in one mapping: a quarter of the address space that x86-64 programs have with five levels of
/// page tables. A larger number does not come from a valid recording.
const MAPPING_PAGES_MAX: u64 = 1 << 42;
/// Page numbers are below this: 64 bits of addresses.
const PAGE_MAX: u64 = 1 << 52;

const ADD: u8 = 1;
const CLEANED: u8 = 2;
const DISCARD: u8 = 3;
const REMOVE: u8 = 4;
const EMPTIED: u8 = 5;
const EVICTED: u8 = 6;
const EVICTION_REFUSED: u8 = 7;
const FETCH_FAILED: u8 = 8;
// 9 was the arrival of a fetched block, in recordings before the first release.
const INSTALLED: u8 = 10;
const PLAN: u8 = 11;
const READ_AHEAD_ARRIVED: u8 = 12;
const SLOT_FOR: u8 = 13;
const TRY_AGAIN: u8 = 14;
const DROPPED: u8 = 15;
/// A fault, combined with the two bits below.
const FAULT: u8 = 16;
const FAULT_FIRST: u8 = 1;
const FAULT_WRITE: u8 = 2;
const FAULT_MAX: u8 = FAULT + FAULT_FIRST + FAULT_WRITE;
const ADVISE: u8 = 20;
const HAS_ARRIVED: u8 = 21;
const AWAIT_ARRIVALS: u8 = 22;
const BEGIN_CHANGE: u8 = 23;
const END_CHANGE: u8 = 24;
const SET_FILE: u8 = 25;
const RENEW: u8 = 26;
/// A fault that is asked again without credit; the next number if it is a write.
const FAULT_WITHOUT_CREDIT: u8 = 27;
const WRITE_WITHOUT_CREDIT: u8 = FAULT_WITHOUT_CREDIT + 1;

/// The guard of a page that is lost, after the kinds of [`Guarded`].
const LOST: u64 = 3;

/// The kinds of places of a page; see [`Summary::of_arrived`].
const ARRIVED_KINDS: u64 = 5;

/// Receives bytes, one after the other.
pub trait Sink {
    /// Stores one byte, or records that there was no room for it.
    fn put(&mut self, byte: u8);
}

impl Sink for Vec<u8> {
    fn put(&mut self, byte: u8) {
        self.push(byte);
    }
}

pub(super) fn put_varint(sink: &mut impl Sink, mut value: u64) {
    while value >= 0x80 {
        sink.put(value as u8 | 0x80);
        value >>= 7;
    }
    sink.put(value as u8);
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The input.
    pub call: Call<'a>,
    /// The summary of the answer.
    pub summary: Summary,
}

/// The form of the answer that follows the fields of a tag.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Nothing,
    Flag,
    Kind,
    Digest,
}

impl Call<'_> {
    fn form(&self) -> Form {
        match self {
            Call::Add { .. }
            | Call::Advise { .. }
            | Call::AwaitArrivals { .. }
            | Call::Emptied { .. }
            | Call::SetFile { .. }
            | Call::TryAgain => Form::Nothing,
            Call::HasArrived { .. } => Form::Kind,
            Call::BeginChange { .. }
            | Call::Cleaned { .. }
            | Call::Dropped { .. }
            | Call::EndChange { .. }
            | Call::Evicted { .. }
            | Call::EvictionRefused { .. }
            | Call::FetchFailed { .. }
            | Call::Installed { .. }
            | Call::ReadAheadArrived { .. }
            | Call::Renew { .. } => Form::Flag,
            Call::Discard { .. }
            | Call::Fault { .. }
            | Call::FaultWithoutCredit { .. }
            | Call::Plan { .. }
            | Call::SlotFor { .. } => Form::Digest,
        }
    }
}

/// Writes the input. [`put_summary`] must follow.
pub fn put_call(sink: &mut impl Sink, call: &Call<'_>) {
    let mut put = |tag: u8, fields: &[u64]| {
        sink.put(tag);
        fields.iter().for_each(|field| put_varint(sink, *field));
    };
    let block = |block: &BlockIndex| u64::from(block.0);
    match call {
        Call::Add { start, end, order, delivery, present } => {
            let delivery = u64::from(*delivery == Delivery::Listener);
            let len = present.bytes().len() as u64;
            put(ADD, &[start.0, *end - *start, order.exponent() as u64, delivery, len]);
            present.bytes().iter().for_each(|byte| sink.put(*byte));
        }
        Call::Cleaned { block: index, verdict, guards } => {
            let verdict = match verdict {
                CleanVerdict::Stored => 0,
                CleanVerdict::Zero => 1,
                CleanVerdict::Failed => 2,
            };
            put(CLEANED, &[block(index), verdict, guards.bytes().len() as u64]);
            guards.bytes().iter().for_each(|byte| sink.put(*byte));
        }
        Call::Advise { start, end, advice } => put(ADVISE, &[start.0, *end - *start, advice.number()]),
        Call::AwaitArrivals { are_awaited } => put(AWAIT_ARRIVALS, &[(*are_awaited).into()]),
        Call::BeginChange { page } => put(BEGIN_CHANGE, &[page.0]),
        Call::Discard { start, end, remove } => put(if *remove { REMOVE } else { DISCARD }, &[start.0, *end - *start]),
        Call::Dropped { block: index } => put(DROPPED, &[block(index)]),
        Call::Emptied { frame } => put(EMPTIED, &[frame.0.into()]),
        Call::EndChange { page, guarded } => put(END_CHANGE, &[page.0, guarded.map_or(LOST, |guarded| guarded as u64)]),
        Call::Evicted { block: index } => put(EVICTED, &[block(index)]),
        Call::EvictionRefused { block: index } => put(EVICTION_REFUSED, &[block(index)]),
        Call::Fault { page, thread, write, first } => {
            let bits = u8::from(*first) * FAULT_FIRST + u8::from(*write) * FAULT_WRITE;
            put(FAULT + bits, &[page.0, thread.0.into()]);
        }
        Call::FaultWithoutCredit { page, thread, write } => {
            put(FAULT_WITHOUT_CREDIT + u8::from(*write), &[page.0, thread.0.into()]);
        }
        Call::FetchFailed { block: index, lost } => put(FETCH_FAILED, &[block(index), (*lost).into()]),
        Call::HasArrived { page } => put(HAS_ARRIVED, &[page.0]),
        Call::Installed { first, count, arrival } => {
            let fields = [block(first), (*count).into()];
            match arrival {
                Arrival::Fresh => put(INSTALLED, &[fields[0], fields[1], 0]),
                Arrival::Prefetched => put(INSTALLED, &[fields[0], fields[1], 1]),
                Arrival::Refault { distance } => put(INSTALLED, &[fields[0], fields[1], 2, *distance]),
                Arrival::Rescued => put(INSTALLED, &[fields[0], fields[1], 3]),
            }
        }
        Call::Plan { blocks, pages } => put(PLAN, &[(*blocks).into(), (*pages).into()]),
        Call::ReadAheadArrived { block: index } => put(READ_AHEAD_ARRIVED, &[block(index)]),
        Call::Renew { page, guarded } => put(RENEW, &[page.0, *guarded as u64]),
        Call::SetFile { start, end, first, contents } => {
            put(SET_FILE, &[start.0, *end - *start, first.0.into(), contents.bytes().len() as u64]);
            contents.bytes().iter().for_each(|byte| sink.put(*byte));
        }
        Call::SlotFor { block: index } => put(SLOT_FOR, &[block(index)]),
        Call::TryAgain => put(TRY_AGAIN, &[]),
    }
}

/// Writes the summary of the answer to `call`.
pub fn put_summary(sink: &mut impl Sink, call: &Call<'_>, summary: Summary) {
    match call.form() {
        Form::Nothing => {}
        Form::Flag | Form::Kind => sink.put(summary.kind),
        Form::Digest => {
            sink.put(summary.kind);
            summary.digest.to_le_bytes().into_iter().for_each(|byte| sink.put(byte));
        }
    }
}

/// Takes bytes from the start of a slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// A number below `max`.
    fn below(&mut self, max: u64) -> Option<u64> {
        self.varint().filter(|value| *value < max)
    }

    fn word(&mut self) -> Option<u32> {
        u32::try_from(self.varint()?).ok()
    }

    fn block(&mut self) -> Option<BlockIndex> {
        self.word().map(BlockIndex)
    }

    fn page(&mut self) -> Option<PageIndex> {
        self.below(PAGE_MAX).map(PageIndex)
    }

    fn flag(&mut self) -> Option<bool> {
        self.below(2).map(|value| value == 1)
    }

    fn pages(&mut self) -> Option<(PageIndex, PageIndex)> {
        let (start, pages) = (self.below(PAGE_MAX)?, self.below(MAPPING_PAGES_MAX)?);
        (pages > 0 && start + pages <= PAGE_MAX).then_some((PageIndex(start), PageIndex(start + pages)))
    }

    fn runs(&mut self, max: u64) -> Option<Runs<'a>> {
        let len = self.varint()?;
        Runs::checked(self.take(len)?, max)
    }

    /// The page of a fault, and the thread that touched it.
    fn toucher(&mut self) -> Option<(PageIndex, ThreadIndex)> {
        Some((self.page()?, ThreadIndex(u16::try_from(self.varint()?).ok()?)))
    }

    fn arrival(&mut self) -> Option<Arrival> {
        Some(match self.varint()? {
            0 => Arrival::Fresh,
            1 => Arrival::Prefetched,
            2 => Arrival::Refault { distance: self.varint()? },
            3 => Arrival::Rescued,
            _ => return None,
        })
    }

    fn verdict(&mut self) -> Option<CleanVerdict> {
        Some(match self.varint()? {
            0 => CleanVerdict::Stored,
            1 => CleanVerdict::Zero,
            2 => CleanVerdict::Failed,
            _ => return None,
        })
    }

    fn call(&mut self) -> Option<Call<'a>> {
        Some(match self.byte()? {
            ADD => {
                let (start, end) = self.pages()?;
                let order = Order::new(u8::try_from(self.varint()?).ok()?)?;
                let delivery = if self.flag()? { Delivery::Listener } else { Delivery::Signal };
                Call::Add { start, end, order, delivery, present: self.runs(end - start)? }
            }
            ADVISE => {
                let (start, end) = self.pages()?;
                let kind = self.below(Advice::ALL.len() as u64)?;
                Call::Advise { start, end, advice: Advice::ALL[kind as usize] }
            }
            AWAIT_ARRIVALS => Call::AwaitArrivals { are_awaited: self.flag()? },
            BEGIN_CHANGE => Call::BeginChange { page: self.page()? },
            CLEANED => {
                let (block, verdict) = (self.block()?, self.verdict()?);
                Call::Cleaned { block, verdict, guards: self.runs(REGION_PAGES.into())? }
            }
            tag @ (DISCARD | REMOVE) => {
                let (start, end) = self.pages()?;
                Call::Discard { start, end, remove: tag == REMOVE }
            }
            EMPTIED => {
                let frame = FrameIndex(self.word()?);
                frame.has_order().then_some(Call::Emptied { frame })?
            }
            DROPPED => Call::Dropped { block: self.block()? },
            END_CHANGE => {
                let (page, kind) = (self.page()?, self.below(LOST + 1)?);
                Call::EndChange { page, guarded: Guarded::ALL.get(kind as usize).copied() }
            }
            EVICTED => Call::Evicted { block: self.block()? },
            EVICTION_REFUSED => Call::EvictionRefused { block: self.block()? },
            tag @ FAULT..=FAULT_MAX => {
                let (page, thread) = self.toucher()?;
                let (write, first) = (tag & FAULT_WRITE != 0, tag & FAULT_FIRST != 0);
                Call::Fault { page, thread, write, first }
            }
            tag @ (FAULT_WITHOUT_CREDIT | WRITE_WITHOUT_CREDIT) => {
                let (page, thread) = self.toucher()?;
                Call::FaultWithoutCredit { page, thread, write: tag == WRITE_WITHOUT_CREDIT }
            }
            FETCH_FAILED => Call::FetchFailed { block: self.block()?, lost: self.flag()? },
            HAS_ARRIVED => Call::HasArrived { page: self.page()? },
            INSTALLED => {
                let (first, count) = (self.block()?, self.word()?);
                (1..=REGION_PAGES).contains(&count).then_some(())?;
                Call::Installed { first, count, arrival: self.arrival()? }
            }
            PLAN => Call::Plan { blocks: self.word()?, pages: self.word()? },
            READ_AHEAD_ARRIVED => Call::ReadAheadArrived { block: self.block()? },
            RENEW => Call::Renew { page: self.page()?, guarded: Guarded::ALL[self.below(LOST)? as usize] },
            SET_FILE => {
                let ((start, end), first) = (self.pages()?, SlabIndex(self.word()?));
                let has_room = u64::from(first.0) + (end - start).div_ceil(REGION_PAGES.into()) <= u32::MAX.into();
                (first.is_of_file() && has_room).then_some(())?;
                Call::SetFile { start, end, first, contents: self.runs(end - start)? }
            }
            SLOT_FOR => Call::SlotFor { block: self.block()? },
            TRY_AGAIN => Call::TryAgain,
            _ => return None,
        })
    }

    /// The next event; `None` when the bytes are not an event.
    pub(super) fn event(&mut self) -> Option<Event<'a>> {
        let call = self.call()?;
        let summary = match call.form() {
            Form::Nothing => Summary::default(),
            Form::Flag => Summary::of_flag(self.flag()?),
            Form::Kind => Summary { kind: self.below(ARRIVED_KINDS)? as u8, digest: 0 },
            Form::Digest => {
                let kind = self.byte()?;
                let digest = self.take(4)?.try_into().expect("four bytes were taken");
                Summary { kind, digest: u32::from_le_bytes(digest) }
            }
        };
        Some(Event { call, summary })
    }
}
