// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Hints that a program gives about memory, and queries of its state.
//!
//! Next on the path: `pager/src/memory_space/hints.rs`, which hands them to the engine.

use std::ops::{Range, RangeBounds};
use std::sync::{Arc, Weak};

use aquifer_core::engine::Advice;
use aquifer_core::map;
use aquifer_core::units::Order;

use crate::fetch::Fetch;
use crate::mapping::Inner;
use crate::range::{PAGE, some_of};
use crate::status::extend;
use crate::{Error, Histogram, Mapping, Pin, Status, StatusRun, TemperatureRun};

/// The intended use of requested memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Intent {
    /// The memory will be read. Memory without contents is left alone.
    Read,
    /// The memory will be written to. Memory without contents gets its zeros ahead of the first touch.
    Write,
}

/// How a range will be used. It holds for each 2 MiB of which the range has more than half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Withdraws earlier advice: the space learns from the accesses.
    Normal,
    /// At scattered addresses: nothing is read ahead, and only what is asked for is fetched where blocks may change
    /// their size (`block_size("auto")`).
    Random,
    /// The range is used in ascending order: the space reads ahead from the first touch on.
    Sequential,
}

/// How long the blocks of a range stay in DRAM, compared with those of other ranges. It holds for each 2 MiB of which
/// the range has more than half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Earlier use does not keep them resident: the default policy evicts them before the blocks that it keeps. This
    /// takes effect when a block becomes resident the next time.
    Low,
    /// As the policy decides.
    #[default]
    Normal,
    /// They leave after all others. Unlike a [pin](Mapping::pin), this is a hint: blocks of high priority leave when
    /// there is little else, and there is no bound on how many there are.
    High,
}

/// Gives hints about a [`Mapping`] while its memory is borrowed, from any thread. It does not keep the mapping: after
/// the mapping has been dropped, each call returns [`Error::Closed`].
///
/// ```
/// # if aquifer::probe().is_err() { return Ok(()) }
/// use aquifer::{Error, Intent, Space};
///
/// let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").open()?;
/// let mut mapping = space.map(48 << 20)?;
/// let hints = mapping.hints();
/// let numbers = mapping.view_mut::<u64>(..)?;
/// for (index, part) in numbers.chunks_mut(1 << 16).enumerate() {
///     let next = (index + 1) << 19;
///     let _ = hints.prefetch(next..next + (1 << 19), Intent::Write);
///     part.fill(index as u64);
///     hints.stream(index << 19..next)?;
/// }
/// drop(mapping);
/// assert_eq!(hints.evict(..), Err(Error::Closed));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Hints {
    mapping: Weak<Inner>,
}

impl Hints {
    pub(crate) fn of(inner: &Arc<Inner>) -> Self {
        Self { mapping: Arc::downgrade(inner) }
    }

    fn inner(&self) -> Result<Arc<Inner>, Error> {
        self.mapping.upgrade().ok_or(Error::Closed)
    }

    /// Works like [`Mapping::prefetch`].
    pub fn prefetch(&self, range: impl RangeBounds<usize>, intent: Intent) -> Result<(), Error> {
        self.inner()?.prefetch(range, intent)
    }

    /// Works like [`Mapping::evict`].
    pub fn evict(&self, range: impl RangeBounds<usize>) -> Result<(), Error> {
        self.inner()?.advise(range, Advice::PageOut)
    }

    /// Works like [`Mapping::stream`].
    pub fn stream(&self, range: impl RangeBounds<usize>) -> Result<(), Error> {
        self.inner()?.advise(range, Advice::Cold)
    }

    /// Works like [`Mapping::pattern`].
    pub fn pattern(&self, range: impl RangeBounds<usize>, pattern: Pattern) -> Result<(), Error> {
        self.inner()?.pattern(range, pattern)
    }

    /// Works like [`Mapping::priority`].
    pub fn priority(&self, range: impl RangeBounds<usize>, priority: Priority) -> Result<(), Error> {
        self.inner()?.priority(range, priority)
    }

    /// Works like [`Mapping::block_size`].
    pub fn block_size(&self, range: impl RangeBounds<usize>, bytes: Option<usize>) -> Result<(), Error> {
        self.inner()?.block_size(range, bytes)
    }

    /// Works like [`Mapping::ready`]; false after the mapping has been dropped.
    pub fn ready(&self, range: Range<usize>) -> bool {
        self.mapping.upgrade().is_some_and(|inner| inner.ready(range))
    }

    /// Works like [`Mapping::fetch`].
    pub fn fetch(&self, range: impl RangeBounds<usize>) -> Fetch {
        let range = self.inner().and_then(|inner| some_of(range, inner.memory.len()));
        Fetch::of(self.mapping.clone(), range)
    }

    /// Works like [`Mapping::status`].
    pub fn status(&self, range: impl RangeBounds<usize>) -> Result<Vec<StatusRun>, Error> {
        self.inner()?.status(range)
    }

    /// Works like [`Mapping::temperature`].
    pub fn temperature(&self, range: impl RangeBounds<usize>) -> Result<Vec<TemperatureRun>, Error> {
        self.inner()?.temperature(range)
    }

    /// Works like [`Mapping::histogram`].
    pub fn histogram(&self, range: impl RangeBounds<usize>) -> Result<Histogram, Error> {
        self.inner()?.histogram(range)
    }

    /// Works like [`Mapping::pin`].
    pub fn pin(&self, range: impl RangeBounds<usize>) -> Result<Pin, Error> {
        let inner = self.inner()?;
        let range = some_of(range, inner.memory.len())?;
        Pin::of(&inner, range)
    }
}

impl Mapping {
    /// Says that the range will be used soon: fetches its evicted pages, in the background. Returns at once.
    ///
    /// Whole blocks are fetched. They wait in DRAM until a touch puts them at their addresses, which takes some
    /// microseconds and no transfer. Where [`Pattern::Random`] was announced and blocks may change their size, a
    /// request for few pages fetches only these.
    ///
    /// A request is a hint: when more than 32 of them wait, the oldest is dropped. To know when memory has arrived, use
    /// [`fetch`](Self::fetch).
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use aquifer::{Error, Intent, Space};
    ///
    /// let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").open()?;
    /// let mapping = space.map(48 << 20)?;
    /// mapping.prefetch(..space.prefetch_bytes_max(), Intent::Read)?;
    /// let all = mapping.prefetch(.., Intent::Read);
    /// assert!(matches!(all, Err(Error::BeyondBudget { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BeyondBudget`] for more than [`Space::prefetch_bytes_max`](crate::Space::prefetch_bytes_max); also
    /// [`Error::OutOfRange`], [`Error::EmptyRange`], [`Error::Ended`], [`Error::Forked`].
    pub fn prefetch(&self, range: impl RangeBounds<usize>, intent: Intent) -> Result<(), Error> {
        self.inner.prefetch(range, intent)
    }

    /// Says that the range will not be used for a long time: moves it to the tier, in the background. Returns at once.
    ///
    /// Blocks that lie only partly in the range stay. A hint: blocks that cannot leave now stay, and when more than 32
    /// evictions wait, the oldest is dropped. An eviction that is under way may also evict pages that are touched
    /// meanwhile.
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use aquifer::{Error, Space};
    ///
    /// let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").open()?;
    /// let mut mapping = space.map(4 << 20)?;
    /// mapping.view_mut::<u8>(..)?.fill(1);
    /// mapping.evict(..)?;
    /// let pin = mapping.pin(0..100)?;
    /// assert_eq!(mapping.evict(..), Err(Error::Pinned));
    /// # drop(pin);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Pinned`] if any block of the range is pinned; also [`Error::OutOfRange`], [`Error::EmptyRange`],
    /// [`Error::Ended`], [`Error::Forked`].
    pub fn evict(&self, range: impl RangeBounds<usize>) -> Result<(), Error> {
        self.inner.advise(range, Advice::PageOut)
    }

    /// Says that the range will not be used again: it is the first to leave when room is needed. Returns at once.
    ///
    /// Unlike [`evict`](Self::evict), this transfers nothing by itself: until its DRAM is needed, a touch brings a
    /// block back within microseconds. Blocks that lie only partly in the range stay. For data that is read once, in
    /// passing.
    ///
    /// # Errors
    /// The same as for [`evict`](Self::evict).
    pub fn stream(&self, range: impl RangeBounds<usize>) -> Result<(), Error> {
        self.inner.advise(range, Advice::Cold)
    }

    /// Announces how a range will be used.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::EmptyRange`], [`Error::Ended`], [`Error::Forked`].
    pub fn pattern(&self, range: impl RangeBounds<usize>, pattern: Pattern) -> Result<(), Error> {
        self.inner.pattern(range, pattern)
    }

    /// Says how long a range is to stay in DRAM, compared with others.
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use aquifer::{Priority, Space};
    ///
    /// let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").open()?;
    /// let mapping = space.map(48 << 20)?;
    /// // An index at the start, and data that are read once in a while.
    /// mapping.priority(..4 << 20, Priority::High)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::EmptyRange`], [`Error::Ended`], [`Error::Forked`].
    pub fn priority(&self, range: impl RangeBounds<usize>, priority: Priority) -> Result<(), Error> {
        self.inner.priority(range, priority)
    }

    /// Says how many bytes of a range move as one: a power of two from 4096 to 2 MiB, or `None` to learn it, as the
    /// space does without this. It holds for each 2 MiB of which the range has more than half, and for a block from its
    /// next fetch on.
    ///
    /// A hint: where the budget has no room for 256 blocks of a size, they are smaller, and a space that was opened
    /// with a [block size](crate::Builder::block_size) of its own keeps that.
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use aquifer::{Error, Space};
    ///
    /// let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").open()?;
    /// let mapping = space.map(48 << 20)?;
    /// // Records of 4 KiB that are read in any order.
    /// mapping.block_size(8 << 20.., Some(4096))?;
    /// assert_eq!(mapping.block_size(.., Some(5000)), Err(Error::BlockSize { bytes: 5000 }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BlockSize`]; also [`Error::OutOfRange`], [`Error::EmptyRange`], [`Error::Ended`], [`Error::Forked`].
    pub fn block_size(&self, range: impl RangeBounds<usize>, bytes: Option<usize>) -> Result<(), Error> {
        self.inner.block_size(range, bytes)
    }

    /// Returns whether a touch of the range would not wait: all of it was resident a moment ago. Takes a few
    /// nanoseconds, no lock and no system call. False for a range that is not within the mapping.
    ///
    /// The answer is a hint. A page that has left meanwhile, or the first touch of a page of a block, still costs a
    /// fault; nothing goes wrong.
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use aquifer::Space;
    ///
    /// let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").open()?;
    /// let mut mapping = space.map(4 << 20)?;
    /// assert!(!mapping.ready(0..8));
    /// mapping.write(0, b"resident")?;
    /// assert!(mapping.ready(0..8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn ready(&self, range: Range<usize>) -> bool {
        self.inner.ready(range)
    }

    /// Returns a future that makes the range resident. The fetch starts when the future is first polled.
    ///
    /// It works in any executor; see [`contexts`](crate::contexts) for one that runs thousands of them on one thread.
    /// It does not keep the mapping. Dropping it does not stop a fetch that has begun: the pages arrive in the
    /// space's own memory.
    ///
    /// The memory may leave again at any time; a [pin](Self::pin) keeps it.
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use aquifer::{Space, contexts};
    ///
    /// let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").open()?;
    /// let mut mapping = space.map(48 << 20)?;
    /// mapping.view_mut::<u64>(..)?.fill(3);
    /// contexts::run(&space, [async {
    ///     mapping.fetch(0..4096).await.expect("the tier has it");
    ///     assert_eq!(mapping.view::<u64>(..).expect("aligned")[1], 3);
    /// }]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The future's output: [`Error::Lost`], [`Error::Closed`], [`Error::BeyondBudget`], [`Error::NoRoom`],
    /// [`Error::OutOfRange`], [`Error::EmptyRange`], [`Error::Ended`], [`Error::Forked`].
    pub fn fetch(&self, range: impl RangeBounds<usize>) -> Fetch {
        self.hints().fetch(range)
    }

    /// Returns where the range is. Adjacent bytes with one status are one run; blocks change while this looks, so each
    /// run was true at one moment of the call.
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use aquifer::{Space, Status};
    ///
    /// let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").block_size("4KiB").open()?;
    /// let mut mapping = space.map(4 << 20)?;
    /// mapping.write(0, b"resident")?;
    /// let runs = mapping.status(..)?;
    /// assert!(matches!(runs[0].status, Status::Resident { .. }));
    /// assert_eq!((runs[1].range.clone(), runs[1].status), (4096..4 << 20, Status::Empty));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::EmptyRange`], [`Error::Ended`], [`Error::Forked`].
    pub fn status(&self, range: impl RangeBounds<usize>) -> Result<Vec<StatusRun>, Error> {
        self.inner.status(range)
    }

    /// Returns how hot the range is, judged by how soon memory comes back after its eviction, which is all that the
    /// space sees. Adjacent bytes of one temperature are one run. Memory without contents is left out.
    ///
    /// # Errors
    /// The same as for [`status`](Self::status).
    pub fn temperature(&self, range: impl RangeBounds<usize>) -> Result<Vec<TemperatureRun>, Error> {
        self.inner.temperature(range)
    }

    /// Returns how much of the range is how hot. [`Space::histogram`](crate::Space::histogram) is cheaper, for all of a
    /// space. Memory that a fault is just bringing in counts a moment after its first access.
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use aquifer::Space;
    ///
    /// let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").open()?;
    /// let mut mapping = space.map(48 << 20)?;
    /// mapping.view_mut::<u8>(..)?.fill(1);
    /// let histogram = mapping.histogram(..)?;
    /// let bytes: u64 = histogram.resident_bytes.iter().chain(&histogram.away_bytes).sum();
    /// assert!(bytes > 40 << 20 && bytes <= 48 << 20);
    /// assert!(!mapping.temperature(..)?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The same as for [`status`](Self::status).
    pub fn histogram(&self, range: impl RangeBounds<usize>) -> Result<Histogram, Error> {
        self.inner.histogram(range)
    }

    /// Makes the range resident and writable, and keeps it so until the pin is dropped. Waits for the tier. Pins of
    /// overlapping ranges are independent of each other.
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use aquifer::Space;
    ///
    /// let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").open()?;
    /// let mut mapping = space.map(48 << 20)?;
    /// let pin = mapping.pin(0..100)?;
    /// mapping.view_mut::<u8>(..)?.fill(1);
    /// assert!(mapping.ready(pin.range()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PinnedTooMuch`] beyond [`Space::pin_bytes_max`](crate::Space::pin_bytes_max), or 1,024 pins;
    /// [`Error::Lost`]; also [`Error::OutOfRange`], [`Error::EmptyRange`], [`Error::NoRoom`], [`Error::Ended`],
    /// [`Error::Forked`].
    pub fn pin(&self, range: impl RangeBounds<usize>) -> Result<Pin, Error> {
        Pin::of(&self.inner, some_of(range, self.len())?)
    }
}

impl Inner {
    fn advise(&self, range: impl RangeBounds<usize>, advice: Advice) -> Result<(), Error> {
        let range = some_of(range, self.memory.len())?;
        Ok(self.memory.advise(range.start, range.len(), advice)?)
    }

    fn prefetch(&self, range: impl RangeBounds<usize>, intent: Intent) -> Result<(), Error> {
        let range = some_of(range, self.memory.len())?;
        self.check_wanted(&range)?;
        let advice = match intent {
            Intent::Read => Advice::WillNeed,
            Intent::Write => Advice::WillWrite,
        };
        Ok(self.memory.advise(range.start, range.len(), advice)?)
    }

    /// Refuses a range if a part of it would not be fetched.
    pub(crate) fn check_wanted(&self, range: &Range<usize>) -> Result<(), Error> {
        self.memory.check()?;
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        let (asked_bytes, bytes_max) = (pages.len() * PAGE, self.space.memory.wanted_bytes_max());
        if asked_bytes > bytes_max { Err(Error::BeyondBudget { asked_bytes, bytes_max }) } else { Ok(()) }
    }

    fn pattern(&self, range: impl RangeBounds<usize>, pattern: Pattern) -> Result<(), Error> {
        let advice = match pattern {
            Pattern::Normal => Advice::Normal,
            Pattern::Random => Advice::Random,
            Pattern::Sequential => Advice::Sequential,
        };
        self.advise(range, advice)
    }

    fn priority(&self, range: impl RangeBounds<usize>, priority: Priority) -> Result<(), Error> {
        let priority = match priority {
            Priority::Low => map::Priority::Low,
            Priority::Normal => map::Priority::Normal,
            Priority::High => map::Priority::High,
        };
        self.advise(range, Advice::Priority(priority))
    }

    fn block_size(&self, range: impl RangeBounds<usize>, bytes: Option<usize>) -> Result<(), Error> {
        let order = |bytes| Order::of_bytes(bytes as u64).ok_or(Error::BlockSize { bytes });
        self.advise(range, Advice::BlockSize(bytes.map(order).transpose()?))
    }

    #[inline]
    pub(crate) fn ready(&self, range: Range<usize>) -> bool {
        let is_within = range.start <= range.end && range.end <= self.memory.len();
        is_within && self.memory.presence().has((range.start / PAGE) as u64, range.end.div_ceil(PAGE) as u64)
    }

    fn status(&self, range: impl RangeBounds<usize>) -> Result<Vec<StatusRun>, Error> {
        let (range, mut runs) = (some_of(range, self.memory.len())?, Vec::new());
        self.memory.reports(range.start, range.len(), |block| {
            let status = Status::of(&block);
            let same = |last: &StatusRun| last.status == status;
            extend(&mut runs, block.bytes, same, |run| &mut run.range, |range| StatusRun { range, status });
        })?;
        Ok(runs)
    }

    fn temperature(&self, range: impl RangeBounds<usize>) -> Result<Vec<TemperatureRun>, Error> {
        let (range, mut runs) = (some_of(range, self.memory.len())?, Vec::new());
        self.memory.reports(range.start, range.len(), |block| {
            if Status::of(&block) == Status::Empty {
                return;
            }
            let (temperature, start) = (block.temperature, block.bytes.start);
            let same = |last: &TemperatureRun| last.temperature == temperature && last.range.end == start;
            let new = |range| TemperatureRun { range, temperature };
            extend(&mut runs, block.bytes, same, |run| &mut run.range, new);
        })?;
        Ok(runs)
    }

    fn histogram(&self, range: impl RangeBounds<usize>) -> Result<Histogram, Error> {
        let (range, mut histogram) = (some_of(range, self.memory.len())?, Histogram::default());
        self.memory.reports(range.start, range.len(), |block| histogram.count(&block))?;
        Ok(histogram)
    }
}
