// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The future that copies bytes of far memory without making a page resident.
//!
//! Under the executor of `contexts.rs`, the executor itself reads evicted pages in place (`executor_reads.rs`), many at
//! a time and without the space's worker. Under other executors, or if a page cannot be read in place, the page is
//! fetched (`fetch.rs`) and then copied.
//!
//! Bytes are copied only while the future is polled, so a future can be dropped at any time: a transfer in flight ends
//! in a scratch page of the executor.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::executor_reads::{Answer, ExecutorReads};
use crate::fetch::Fetch;
use crate::range::{PAGE, within};
use crate::{Error, Mapping};

/// A read of some bytes in place, made by [`Mapping::copy`].
#[must_use = "nothing is copied until the future is polled"]
pub struct Copying<'m, 'b> {
    mapping: &'m Mapping,
    range: Result<usize, Error>,
    into: &'b mut [u8],
    /// How much of `into` has been copied.
    done: usize,
    step: Step,
}

/// What the next part waits for. A part lies within one page.
enum Step {
    /// The next part has not been asked for.
    Ask,
    /// The executor's read with this number.
    Executor(Arc<ExecutorReads>, usize),
    /// The page's fetch.
    Fetch(Fetch),
}

impl Mapping {
    /// Copies the bytes from `at` on, as [`read_in_place`](Self::read_in_place) does, without blocking the thread while
    /// the tier works. For contexts that need a few bytes of each page: [`contexts::run`](crate::contexts::run) reads
    /// up to 64 pages at a time. In other executors, pages become resident, as after [`fetch`](Self::fetch).
    ///
    /// The pages of a range are read one after the other; for long ranges use `fetch`.
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use aquifer::{Space, contexts};
    ///
    /// let space = Space::builder().dram("16MiB").tier("emulated:cmm-h,size=64MiB").open()?;
    /// let mut mapping = space.map(48 << 20)?;
    /// mapping.view_mut::<u8>(..)?.fill(7);
    /// let mapping = &mapping;
    /// let lookups = (0..100).map(|key| async move {
    ///     let mut found = [0; 64];
    ///     mapping.copy(key * 123_456, &mut found).await.expect("the tier has it");
    ///     assert_eq!(found, [7; 64]);
    /// });
    /// assert_eq!(contexts::run(&space, lookups).contexts, 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Lost`] if the tier has lost some of the bytes; also [`Error::OutOfRange`], [`Error::NoRoom`],
    /// [`Error::Ended`], [`Error::Forked`]. After an error, some of the bytes may have been copied.
    pub fn copy<'m, 'b>(&'m self, at: usize, into: &'b mut [u8]) -> Copying<'m, 'b> {
        let range = within(at..at.saturating_add(into.len()), self.len()).map(|range| range.start);
        Copying { mapping: self, range, into, done: 0, step: Step::Ask }
    }
}

impl Copying<'_, '_> {
    /// Returns the next part: its offset in the mapping, its offset in its page, and its length.
    fn part(&self, at: usize) -> (usize, usize, usize) {
        let at = at + self.done;
        let within = at % PAGE;
        (at, within, (PAGE - within).min(self.into.len() - self.done))
    }

    /// Copies the next part in the usual way.
    fn read(&mut self, at: usize, len: usize) -> Result<(), Error> {
        self.mapping.inner.memory.read(at, &mut self.into[self.done..self.done + len])?;
        self.done += len;
        Ok(())
    }
}

impl Future for Copying<'_, '_> {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let start = match &self.range {
            Ok(start) => *start,
            Err(refused) => return Poll::Ready(Err(refused.clone())),
        };
        let this = &mut *self;
        while this.done < this.into.len() {
            let (at, within, len) = this.part(start);
            match &mut this.step {
                Step::Ask => {
                    let inner = &this.mapping.inner;
                    if inner.ready(at..at + len) {
                        this.read(at, len)?;
                        continue;
                    }
                    inner.memory.check()?;
                    let asked = ExecutorReads::current(&inner.space).and_then(|reads| {
                        let number = reads.ask(inner.memory.page_at(at), context.waker())?;
                        Some(Step::Executor(reads, number))
                    });
                    this.step = asked.unwrap_or_else(|| Step::Fetch(this.mapping.fetch(at..at + len)));
                    if let Step::Executor(..) = this.step {
                        return Poll::Pending;
                    }
                }
                Step::Executor(reads, number) => {
                    let into = &mut this.into[this.done..this.done + len];
                    match reads.answer(*number, within, into, context.waker()) {
                        Answer::Copied => {
                            this.done += len;
                            this.step = Step::Ask;
                        }
                        Answer::Pending => return Poll::Pending,
                        Answer::Usual => this.step = Step::Fetch(this.mapping.fetch(at..at + len)),
                    }
                }
                Step::Fetch(fetch) => match Pin::new(fetch).poll(context) {
                    Poll::Ready(outcome) => {
                        outcome?;
                        this.step = Step::Ask;
                        this.read(at, len)?;
                    }
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Copying<'_, '_> {
    fn drop(&mut self) {
        if let Step::Executor(reads, number) = &self.step
            && self.done < self.into.len()
        {
            reads.abandon(*number);
        }
    }
}

impl std::fmt::Debug for Copying<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copying").field("len", &self.into.len()).field("done", &self.done).finish_non_exhaustive()
    }
}
