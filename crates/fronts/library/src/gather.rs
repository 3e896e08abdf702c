// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Copies many scattered pieces of a mapping at once, with the tier's reads of them overlapped.
//!
//! Next on the path: `gather.rs` of the pager.

use std::fmt;
use std::task::Poll;

use aquifer_pager::memory_space::Gathering;
/// A range of a mapping that is copied by [`Mapping::gather_pieces`].
pub use aquifer_pager::memory_space::Piece;

use crate::range::within;
use crate::{Error, Mapping};

/// A gather that is under way, made by [`Mapping::start_gather`]. It makes progress when it is polled, on the thread
/// that polls it. Dropping it abandons the gather.
#[must_use = "a gather makes progress only when it is polled"]
pub struct Gather<'m, 'p> {
    /// `None` once it has ended.
    gathering: Option<Gathering<'m, 'p>>,
}

impl Gather<'_, '_> {
    /// Copies pieces that have arrived, and asks for more. Does not wait for pieces that are being read in place.
    /// `Ready(Ok(()))` when all pieces have been copied, and at every call after the end. `Ready(Err(_))` when a piece
    /// cannot be copied; others may have been copied by then.
    ///
    /// # Errors
    /// [`Error::Lost`], [`Error::NoRoom`], [`Error::Ended`], [`Error::Forked`].
    pub fn poll(&mut self) -> Poll<Result<(), Error>> {
        let Some(gathering) = &mut self.gathering else { return Poll::Ready(Ok(())) };
        match gathering.turn() {
            Ok(false) => return Poll::Pending,
            Ok(true) => self.gathering = None,
            Err(failure) => {
                self.gathering = None;
                return Poll::Ready(Err(failure.into()));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Waits until all pieces have been copied, or one cannot be.
    ///
    /// # Errors
    /// The same as for [`poll`](Self::poll).
    pub fn wait(mut self) -> Result<(), Error> {
        match &mut self.gathering {
            Some(gathering) => Ok(gathering.wait()?),
            None => Ok(()),
        }
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
        Ok(Gather { gathering: Some(self.inner.memory.gather(pieces)?) })
    }
}
