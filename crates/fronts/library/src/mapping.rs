// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory of a space: copied, viewed as slices, discarded, unmapped. The hints are in `hints.rs`.
//! Next on the path: `pager/src/memory_space.rs`.

#![allow(unsafe_code, reason = "a mapping keeps its space, and hands out references to its own memory")]

use std::ops::RangeBounds;
use std::sync::Arc;

use aquifer_pager::memory_space::{self, MemorySpace, SpaceFailure};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::fetches::Fetches;
use crate::hints::Hints;
use crate::named::NamedFile;
use crate::range::{PAGE, within};
use crate::space::Shared;
use crate::{Error, NamedError};

/// Memory of a [`Space`](crate::Space): zeros at first, as much as was asked for, whatever the budget is.
///
/// Unmapped when it and its [pins](crate::Pin) are dropped.
///
/// ```
/// # if aquifer::probe().is_err() { return Ok(()) }
/// use aquifer::{Error, Space};
///
/// let space = Space::builder().dram("16MiB").tier("dram:size=16MiB").open()?;
/// let mut mapping = space.map(1 << 20)?;
/// mapping.write(4095, b"across two pages")?;
/// let mut found = [0; 16];
/// mapping.read(4095, &mut found)?;
/// assert_eq!(&found, b"across two pages");
///
/// let outside = mapping.read((1 << 20) - 8, &mut found);
/// assert_eq!(outside, Err(Error::OutOfRange { start: (1 << 20) - 8, end: (1 << 20) + 8, len: 1 << 20 }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Mapping {
    pub(crate) inner: Arc<Inner>,
}

/// A mapping of a space in an `Arc`.
type Lasting = memory_space::Mapping<'static>;

/// A mapping and a share of its space.
#[derive(Debug)]
pub(crate) struct Inner {
    // Declared first, so dropped first.
    pub(crate) memory: Lasting,
    /// The file of a named mapping, which is dropped before the space, too.
    pub(crate) named: Option<NamedFile>,
    pub(crate) space: Arc<Shared>,
}

impl Mapping {
    pub(crate) fn of(space: &Arc<Shared>, bytes: usize) -> Result<Self, SpaceFailure> {
        Self::with(space, None, |memory, _| memory.map(bytes))
    }

    pub(crate) fn of_named(space: &Arc<Shared>, named: NamedFile) -> Result<Self, SpaceFailure> {
        Self::with(space, Some(named), |memory, named| named.expect("given above").map(memory))
    }

    fn with(
        space: &Arc<Shared>,
        named: Option<NamedFile>,
        map: impl FnOnce(&'static MemorySpace, Option<&NamedFile>) -> Result<Lasting, SpaceFailure>,
    ) -> Result<Self, SpaceFailure> {
        // SAFETY: the space is in an `Arc`, of which `Inner` has a share that it drops after the mapping.
        let lasting: &'static MemorySpace = unsafe { &*std::ptr::from_ref(&space.memory) };
        let memory = map(lasting, named.as_ref())?;
        Ok(Self { inner: Arc::new(Inner { memory, named, space: Arc::clone(space) }) })
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.inner.memory.len()
    }

    /// Always false: a mapping has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns a pointer to the first byte.
    ///
    /// Code that uses the pointer keeps Rust's rules for references: no write while another thread reads or writes the
    /// same bytes, no write through it while a [`view`](Self::view) lives, no use of it after the mapping has been
    /// dropped or in a forked child. A load or store of lost memory gets SIGBUS.
    pub fn as_ptr(&self) -> *mut u8 {
        self.inner.memory.as_ptr()
    }

    /// Copies the bytes from `at` on. Reading no bytes succeeds.
    ///
    /// # Errors
    /// [`Error::Lost`] if the tier has lost some of them; also [`Error::OutOfRange`], [`Error::NoRoom`],
    /// [`Error::Ended`], [`Error::Forked`].
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), Error> {
        self.check_range(at, into.len())?;
        Ok(self.inner.memory.read(at, into)?)
    }

    /// Overwrites the bytes from `at` on. After an error, some of them may have been written.
    ///
    /// # Errors
    /// The same as for [`read`](Self::read).
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        self.write_bytes(at, bytes)
    }

    /// Copies the bytes from `at` on, without making a page resident for it: for few bytes of a large set, of which
    /// most are not used again soon. Returns how many pages were read in place.
    ///
    /// An evicted page is read from the tier and checked, and only the bytes that were asked for are kept. The second
    /// read of a page within a while makes it resident, as [`read`](Self::read) does: the page is being used.
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use aquifer::Space;
    ///
    /// let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").open()?;
    /// let mut mapping = space.map(48 << 20)?;
    /// mapping.view_mut::<u8>(..)?.fill(7);
    /// let mut found = [0; 64];
    /// mapping.read_in_place(1000, &mut found)?;
    /// assert_eq!(found, [7; 64]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The same as for [`read`](Self::read).
    pub fn read_in_place(&self, at: usize, into: &mut [u8]) -> Result<usize, Error> {
        self.check_range(at, into.len())?;
        Ok(self.inner.memory.read_in_place(at, into)?)
    }

    /// Overwrites the bytes from `at` on, without making a page resident for it: for few bytes of a large set, of which
    /// most are not used again soon. Returns how many pages were written in place.
    ///
    /// An evicted page is read from the tier and checked, changed, and written back. The second touch of a page in
    /// place within a while, by [`read_in_place`](Self::read_in_place) or this, makes it resident, as
    /// [`write`](Self::write) does. A resident page is simply written to.
    ///
    /// If the tier fails, a page has its old or its new bytes, or is lost: never a part of each.
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use aquifer::Space;
    ///
    /// let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").open()?;
    /// let mut mapping = space.map(48 << 20)?;
    /// mapping.view_mut::<u8>(..)?.fill(7);
    /// mapping.write_in_place(1000, b"counter: 8")?;
    /// let mut found = [0; 11];
    /// mapping.read_in_place(1000, &mut found)?;
    /// assert_eq!(&found, b"counter: 8\x07");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The same as for [`write`](Self::write).
    pub fn write_in_place(&mut self, at: usize, bytes: &[u8]) -> Result<usize, Error> {
        self.write_bytes_in_place(at, bytes)
    }

    /// Returns a part of the memory as a slice of `T`. The range is in bytes.
    ///
    /// Elements are fetched when they are touched. A touch of lost memory gets SIGBUS.
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use aquifer::{Error, Space};
    /// // With the feature `derive` of zerocopy.
    /// use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
    ///
    /// #[derive(FromBytes, Immutable, IntoBytes, KnownLayout)]
    /// #[repr(C)]
    /// struct Point {
    ///     x: f64,
    ///     y: f64,
    /// }
    ///
    /// let space = Space::builder().dram("16MiB").tier("dram:size=16MiB").open()?;
    /// let mut mapping = space.map(1600)?;
    /// mapping.view_mut::<Point>(..)?[99].y = 0.5;
    /// assert_eq!(mapping.view::<Point>(1584..)?[0].y, 0.5);
    /// let odd = mapping.view::<Point>(3..).map(<[Point]>::len);
    /// assert_eq!(odd, Err(Error::Unaligned { start: 3, end: 1600, unit: 16 }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unaligned`] if the range does not consist of whole, aligned elements; also [`Error::OutOfRange`],
    /// [`Error::Ended`], [`Error::Forked`].
    pub fn view<T>(&self, range: impl RangeBounds<usize>) -> Result<&[T], Error>
    where
        T: FromBytes + Immutable + KnownLayout,
    {
        let range = within(range, self.len())?;
        self.inner.memory.check()?;
        // SAFETY: the range is within the mapping, which stays mapped while `self` is borrowed. All bytes are
        // initialised. Nobody writes to them: writers borrow `self` exclusively, and the space keeps the bytes as they
        // are wherever it moves them. A forked child, which does not have the memory, was refused above.
        let bytes = unsafe { std::slice::from_raw_parts(self.as_ptr().add(range.start), range.len()) };
        <[T]>::ref_from_bytes(bytes).map_err(|_| unaligned::<T>(range))
    }

    /// Returns a part of the memory as a mutable slice of `T`. The range is in bytes. For threads that share the
    /// memory, split the slice, or view it as atomics:
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// use aquifer::Space;
    ///
    /// let space = Space::builder().dram("16MiB").tier("dram:size=16MiB").open()?;
    /// let mut mapping = space.map(1 << 20)?;
    /// let counts: &[AtomicU64] = mapping.view_mut::<AtomicU64>(..)?;
    /// std::thread::scope(|scope| {
    ///     for _ in 0..2 {
    ///         scope.spawn(|| counts[7].fetch_add(1, Ordering::Relaxed));
    ///     }
    /// });
    /// assert_eq!(counts[7].load(Ordering::Relaxed), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The slice borrows the mapping. To give hints meanwhile, keep a copy of its [`Hints`].
    ///
    /// # Errors
    /// The same as for [`view`](Self::view).
    pub fn view_mut<T>(&mut self, range: impl RangeBounds<usize>) -> Result<&mut [T], Error>
    where
        T: FromBytes + IntoBytes + KnownLayout,
    {
        let range = within(range, self.len())?;
        self.inner.memory.check()?;
        // SAFETY: as in `view`, and `self` is borrowed exclusively. Pins and hints hold a reference to `Inner`, and
        // neither reads nor writes these bytes; they cannot be discarded without `&mut self` either.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.as_ptr().add(range.start), range.len()) };
        <[T]>::mut_from_bytes(bytes).map_err(|_| unaligned::<T>(range))
    }

    /// Empties a range: it reads as zeros from now on, even where bytes were lost, and takes neither DRAM nor room in
    /// the tier. The range consists of whole pages of 4096 bytes; it may also end with the mapping.
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use aquifer::Space;
    ///
    /// let space = Space::builder().dram("16MiB").tier("dram:size=16MiB").open()?;
    /// let mut mapping = space.map(1 << 20)?;
    /// mapping.view_mut::<u8>(..)?.fill(1);
    /// mapping.discard(4096..8192)?;
    /// assert_eq!(mapping.view::<u8>(4095..4097)?, [1, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unaligned`]; [`Error::Pinned`] if any block of the range is pinned; in a space with a
    /// [block size](crate::Builder::block_size) of its own, [`Error::Lost`] if only a part of a lost block is in the
    /// range ([`status`](Self::status) shows whole ones); also [`Error::OutOfRange`], [`Error::EmptyRange`],
    /// [`Error::NoRoom`], [`Error::Ended`], [`Error::Forked`].
    pub fn discard(&mut self, range: impl RangeBounds<usize>) -> Result<(), Error> {
        self.discard_bytes(range)
    }

    /// Works like `discard`, for callers that have made sure that nobody else uses the range.
    pub(crate) fn discard_bytes(&self, range: impl RangeBounds<usize>) -> Result<(), Error> {
        let range = crate::range::some_of(range, self.len())?;
        self.inner.memory.discard_part(range.start, range.len()).map_err(|failure| match failure {
            SpaceFailure::Unaligned => Error::Unaligned { start: range.start, end: range.end, unit: PAGE },
            other => other.into(),
        })
    }

    /// Unmaps the memory, and says what went wrong, as dropping the mapping cannot.
    ///
    /// # Errors
    /// [`Error::Pinned`] if there are pins, or another thread is in a call on its hints: the memory is then given back
    /// when the last of them ends.
    pub fn unmap(self) -> Result<(), Error> {
        let space = Arc::clone(&self.inner.space);
        let inner = Fetches::between_turns(&space, || Arc::into_inner(self.inner)).ok_or(Error::Pinned)?;
        let Inner { memory, named, space: _ } = inner;
        let unmapped = memory.unmap();
        drop(named);
        drop(space);
        Ok(unmapped?)
    }

    /// Returns the name of a [named mapping](crate::named).
    pub fn name(&self) -> Option<&str> {
        self.inner.named.as_ref().map(NamedFile::name)
    }

    /// Makes a range of a [named mapping](crate::named) durable: after a crash, its file has all of the range as it is
    /// now. The range is extended to whole pages of 4096 bytes. Unchanged pages are not written.
    ///
    /// # Errors
    /// [`NamedError::NotNamed`]; [`NamedError::FullDisk`], after which the file is as before, and the sync can be
    /// repeated; [`NamedError::Memory`] with [`Error::Lost`] if a changed page of the range is lost, or with another
    /// error of [`read`](Self::read); [`NamedError::Replaced`] or [`NamedError::Truncated`] if the file was removed,
    /// replaced or cut off while it was open, and nothing of this sync is durable; [`NamedError::System`],
    /// [`NamedError::Unfinished`].
    pub fn sync(&mut self, range: impl RangeBounds<usize>) -> Result<(), NamedError> {
        self.sync_bytes(range)
    }

    /// Makes all of a [named mapping](crate::named) durable, at one moment: [`sync`](Self::sync) of the whole.
    ///
    /// # Errors
    /// The same as for [`sync`](Self::sync).
    pub fn snapshot(&mut self) -> Result<(), NamedError> {
        self.sync(..)
    }

    /// Returns a handle to give hints with while the memory is borrowed, from any thread.
    pub fn hints(&self) -> Hints {
        Hints::of(&self.inner)
    }

    /// Works like `write`, for callers that have made sure that nobody else uses the bytes.
    pub(crate) fn write_bytes(&self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        self.check_range(at, bytes.len())?;
        Ok(self.inner.memory.write(at, bytes)?)
    }

    /// Works like `write_in_place`, for callers that have made sure that nobody else uses the bytes.
    pub(crate) fn write_bytes_in_place(&self, at: usize, bytes: &[u8]) -> Result<usize, Error> {
        self.check_range(at, bytes.len())?;
        Ok(self.inner.memory.write_in_place(at, bytes)?)
    }

    /// Works like `sync`, for callers that have made sure that nobody writes to the range.
    pub(crate) fn sync_bytes(&self, range: impl RangeBounds<usize>) -> Result<(), NamedError> {
        let range = within(range, self.len())?;
        self.inner.memory.check().map_err(Error::from)?;
        let named = self.inner.named.as_ref().ok_or(NamedError::NotNamed)?;
        named.sync(&self.inner.memory, range)
    }

    fn check_range(&self, at: usize, len: usize) -> Result<(), Error> {
        within(at..at.saturating_add(len), self.len()).map(|_| ())
    }
}

fn unaligned<T>(range: std::ops::Range<usize>) -> Error {
    Error::Unaligned { start: range.start, end: range.end, unit: size_of::<T>().max(align_of::<T>()) }
}
