// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Copies many scattered pieces of a mapping at once, with the tier's reads of them overlapped.
//!
//! A gather has a queue of the tier to itself while it reads, and makes progress when it is polled. In a context, the
//! executor reads for it instead (`executor_reads.rs`), together with its other reads: thousands of contexts share one
//! queue, and a context whose reads are under way sleeps.
//!
//! Next on the path: `gather.rs` of the pager.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A range of a mapping that is copied by [`Mapping::gather_pieces`].
pub use aquifer_pager::memory_space::Piece;
use aquifer_pager::memory_space::{Gathering, Part, SpaceFailure};

use crate::executor_reads::{Answer, ExecutorReads};
use crate::range::within;
use crate::{Error, Mapping};

/// Maximum number of parts that a gather asks of an executor at a time: all reads that the executor has in flight.
const ASKED_MAX: usize = 64;

/// A gather that is under way, made by [`Mapping::start_gather`]. It makes progress when it is polled, on the thread
/// that polls it. Dropping it abandons the gather.
#[must_use = "a gather makes progress only when it is polled"]
pub struct Gather<'m, 'p> {
    /// `None` once it has ended.
    gathering: Option<Gathering<'m, 'p>>,
    mapping: &'m Mapping,
    /// Parts that an executor reads, with the numbers of these reads.
    asked: Vec<(usize, Part)>,
    /// The executor that reads them.
    reads: Option<Arc<ExecutorReads>>,
    /// Parts that were taken back from an executor.
    taken_back: Vec<Part>,
}

impl Gather<'_, '_> {
    /// Copies pieces that have arrived, and asks for more. Does not wait for pieces that are being read in place.
    /// `Ready(Ok(()))` when all pieces have been copied, and at every call after the end. `Ready(Err(_))` when a piece
    /// cannot be copied; others may have been copied by then.
    ///
    /// # Errors
    /// [`Error::Lost`], [`Error::NoRoom`], [`Error::Ended`], [`Error::Forked`].
    pub fn poll(&mut self) -> Poll<Result<(), Error>> {
        let turned = self.turn();
        self.polled(turned)
    }

    /// Works like [`poll`](Self::poll), for a context of [`contexts::run`](crate::contexts::run): the executor reads
    /// evicted pages, as for [`Mapping::copy`], and wakes the context when some of them have arrived. In other
    /// executors, and for a mapping of another space, the task is woken at once, and so polls until the gather has
    /// ended.
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use aquifer::{Piece, Space, contexts};
    ///
    /// let space = Space::builder().dram("16MiB").tier("emulated:cmm-h,size=64MiB").open()?;
    /// let mut mapping = space.map(48 << 20)?;
    /// mapping.view_mut::<u8>(..)?.fill(7);
    /// let mapping = &mapping;
    /// let lookups = (0..100).map(|key| async move {
    ///     let (mut one, mut other) = ([0; 64], [0; 8]);
    ///     let pieces =
    ///         vec![Piece { offset: key * 123_456, into: &mut one }, Piece { offset: key * 7, into: &mut other }];
    ///     let mut gather = mapping.start_gather(pieces).expect("it is within the mapping");
    ///     std::future::poll_fn(|context| gather.poll_in_context(context)).await.expect("the tier has it");
    ///     drop(gather);
    ///     assert_eq!((one, other), ([7; 64], [7; 8]));
    /// });
    /// assert_eq!(contexts::run(&space, lookups).contexts, 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The same as for [`poll`](Self::poll).
    pub fn poll_in_context(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Some(reads) = ExecutorReads::current(&self.mapping.inner.space) else {
            let polled = self.poll();
            if polled.is_pending() {
                context.waker().wake_by_ref();
            }
            return polled;
        };
        let turned = self.turn_in_context(reads, context.waker());
        self.polled(turned)
    }

    fn polled(&mut self, turned: Result<bool, SpaceFailure>) -> Poll<Result<(), Error>> {
        if matches!(turned, Ok(false)) {
            return Poll::Pending;
        }
        self.take_back();
        self.gathering = None;
        Poll::Ready(turned.map(|_| ()).map_err(Error::from))
    }

    /// Does what can be done without waiting for a transfer. True if all pieces have been copied.
    fn turn(&mut self) -> Result<bool, SpaceFailure> {
        self.read_asked()?;
        self.gathering.as_mut().map_or(Ok(true), Gathering::turn)
    }

    /// The same, with the reads of the executor of this thread.
    fn turn_in_context(&mut self, reads: Arc<ExecutorReads>, waker: &Waker) -> Result<bool, SpaceFailure> {
        if self.reads.as_ref().is_some_and(|before| !Arc::ptr_eq(before, &reads)) {
            // The other executor may run again only after this one.
            self.take_back();
        }
        let reads = Arc::clone(self.reads.insert(reads));
        let Self { gathering: Some(gathering), asked, taken_back, .. } = self else { return Ok(true) };
        // It may have been polled outside of contexts. Nothing would wake this one when such a read ends.
        gathering.settle()?;
        let mut index = 0;
        while let Some((number, part)) = asked.get(index).copied() {
            let answer = reads.answer(number, part.within(), gathering.bytes_of(part), waker);
            if answer == Answer::Pending {
                index += 1;
                continue;
            }
            asked.swap_remove(index);
            if answer == Answer::Usual {
                gathering.read_part(part)?;
            }
        }
        while asked.len() < ASKED_MAX {
            let taken_back = taken_back.pop().map(|part| (gathering.page_of(part), part));
            let next = if taken_back.is_some() { taken_back } else { gathering.next_absent()? };
            let Some((page, part)) = next else { break };
            match reads.ask(page, waker) {
                Some(number) => asked.push((number, part)),
                None => gathering.read_part(part)?,
            }
        }
        Ok(asked.is_empty())
    }

    /// Gives up what an executor reads: the executor may run again only after this thread has returned to it, or never.
    fn take_back(&mut self) {
        if let Some(reads) = self.reads.take() {
            for (number, part) in self.asked.drain(..) {
                reads.abandon(number);
                self.taken_back.push(part);
            }
        }
    }

    /// Reads what an executor would have read.
    fn read_asked(&mut self) -> Result<(), SpaceFailure> {
        self.take_back();
        let Some(gathering) = &mut self.gathering else { return Ok(()) };
        self.taken_back.drain(..).try_for_each(|part| gathering.read_part(part))
    }

    /// Waits until all pieces have been copied, or one cannot be.
    ///
    /// # Errors
    /// The same as for [`poll`](Self::poll).
    pub fn wait(mut self) -> Result<(), Error> {
        self.read_asked()?;
        match &mut self.gathering {
            Some(gathering) => Ok(gathering.wait()?),
            None => Ok(()),
        }
    }
}

impl Drop for Gather<'_, '_> {
    fn drop(&mut self) {
        self.take_back();
    }
}

impl fmt::Debug for Gather<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather").field("has_ended", &self.gathering.is_none()).finish_non_exhaustive()
    }
}

impl Mapping {
    /// Copies the items with these indices, one after the other: item `n` is the `size` bytes from `n * size` on. For
    /// items that are scattered over far more memory than the budget. The tier's reads of them overlap, up to a bound,
    /// and make nothing resident, as those of [`read_in_place`](Self::read_in_place).
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use aquifer::{Error, Space};
    ///
    /// let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").open()?;
    /// let mut mapping = space.map(48 << 20)?;
    /// mapping.view_mut::<u32>(..)?.iter_mut().enumerate().for_each(|(index, word)| *word = index as u32);
    ///
    /// let mut found = [0; 12];
    /// mapping.gather(4, &[9_999_999, 3, 7_777_777], &mut found)?;
    /// assert_eq!(found[..4], 9_999_999_u32.to_ne_bytes());
    /// assert_eq!(found[4..8], 3_u32.to_ne_bytes());
    ///
    /// let short = mapping.gather(4, &[1, 2], &mut found);
    /// assert_eq!(short, Err(Error::BufferSize { bytes: 12, needed_bytes: 8 }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BufferSize`] unless `into` has room for just these items, and [`Error::OutOfRange`] if an item is not
    /// within the mapping: then nothing has been copied. [`Error::Lost`] if the tier has lost one of them; also
    /// [`Error::NoRoom`], [`Error::Ended`], [`Error::Forked`].
    pub fn gather(&self, size: usize, indices: &[usize], into: &mut [u8]) -> Result<(), Error> {
        let (bytes, needed_bytes) = (into.len(), size.saturating_mul(indices.len()));
        if bytes != needed_bytes {
            return Err(Error::BufferSize { bytes, needed_bytes });
        }
        // Items of no bytes are no items.
        let items = indices.iter().zip(into.chunks_exact_mut(size.max(1)));
        let pieces = items.map(|(index, into)| Piece { offset: index.saturating_mul(size), into });
        self.start_gather(pieces.collect())?.wait()
    }

    /// Copies pieces of any lengths, as [`gather`](Self::gather) copies items of one length.
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use aquifer::{Piece, Space};
    ///
    /// let space = Space::builder().dram("16MiB").tier("dram:size=16MiB").open()?;
    /// let mut mapping = space.map(1 << 20)?;
    /// mapping.write(1000, b"near and far")?;
    /// let (mut near, mut far) = ([0; 4], [0; 3]);
    /// mapping.gather_pieces(&mut [
    ///     Piece { offset: 1009, into: &mut far },
    ///     Piece { offset: 1000, into: &mut near },
    /// ])?;
    /// assert_eq!((&near, &far), (b"near", b"far"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The same as for [`gather`](Self::gather).
    pub fn gather_pieces(&self, pieces: &mut [Piece<'_>]) -> Result<(), Error> {
        let pieces = pieces.iter_mut().map(|piece| Piece { offset: piece.offset, into: &mut *piece.into });
        self.start_gather(pieces.collect())?.wait()
    }

    /// Starts a gather that is polled, for a thread that does something else meanwhile.
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use aquifer::{Piece, Space};
    ///
    /// let space = Space::builder().dram("16MiB").tier("emulated:cmm-h,size=64MiB").open()?;
    /// let mut mapping = space.map(48 << 20)?;
    /// mapping.view_mut::<u8>(..)?.fill(7);
    /// let mut found = [[0; 64]; 100];
    /// let pieces = found.iter_mut().enumerate();
    /// let pieces = pieces.map(|(index, into)| Piece { offset: index * 123_456, into: into.as_mut_slice() });
    /// let mut gather = mapping.start_gather(pieces.collect())?;
    /// while gather.poll()?.is_pending() {
    ///     std::thread::yield_now();
    /// }
    /// # drop(gather);
    /// assert_eq!(found, [[7; 64]; 100]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if a piece is not within the mapping: then nothing is copied. Also [`Error::Ended`],
    /// [`Error::Forked`].
    pub fn start_gather<'m, 'p>(&'m self, pieces: Vec<Piece<'p>>) -> Result<Gather<'m, 'p>, Error> {
        for piece in &pieces {
            within(piece.offset..piece.offset.saturating_add(piece.into.len()), self.len())?;
        }
        let gathering = Some(self.inner.memory.gather(pieces)?);
        Ok(Gather { gathering, mapping: self, asked: Vec::new(), reads: None, taken_back: Vec::new() })
    }
}
