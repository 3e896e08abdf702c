// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The future that makes a range resident.
//!
//! First poll: asks the space's list of fetches (`fetches.rs`) for the range. Later polls: check whether it has
//! arrived. The last step, which puts the blocks at their addresses, is made by the thread that polls: it needs no
//! transfer, unless the blocks have been evicted again meanwhile. A fetch that is started and not polled ends without
//! the last step. Dropping the future takes it off the list.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use aquifer_core::engine::Arrived;

use crate::Error;
use crate::fetches::{Asked, Fetches};
use crate::mapping::Inner;
use crate::space::Shared;

/// A fetch of a range, made by [`Mapping::fetch`](crate::Mapping::fetch).
#[derive(Debug)]
#[must_use = "nothing is fetched until the future is polled or started"]
pub struct Fetch {
    mapping: Weak<Inner>,
    range: Result<Range<usize>, Error>,
    asked: Option<Listed>,
}

/// A fetch on the list of its space.
#[derive(Debug)]
struct Listed {
    asked: Arc<Asked>,
    number: u64,
    space: Weak<Shared>,
}

impl Drop for Listed {
    fn drop(&mut self) {
        if let Some(space) = self.space.upgrade() {
            Fetches::abandon(&space, self.number);
        }
    }
}

/// Where a range is before the space is asked for it.
enum Found {
    /// In a tier, or on its way.
    Away,
    /// In DRAM.
    Here,
    /// At its addresses.
    Resident,
}

impl Found {
    fn of(inner: &Inner, range: &Range<usize>) -> Result<Self, Error> {
        if inner.ready(range.clone()) {
            inner.memory.check()?;
            return Ok(Self::Resident);
        }
        inner.check_wanted(range)?;
        match inner.memory.has_arrived(range.start, range.len())? {
            Arrived::Here => Ok(Self::Here),
            Arrived::Lost => Err(Error::Lost),
            Arrived::Away | Arrived::Busy | Arrived::Foreign => Ok(Self::Away),
        }
    }
}

impl Fetch {
    pub(crate) fn of(mapping: Weak<Inner>, range: Result<Range<usize>, Error>) -> Self {
        Self { mapping, range, asked: None }
    }

    /// Asks for the range without waiting for it: a prefetch for which there is no bound on how many wait, for as long
    /// as the future is kept. Returns whether there is nothing left to keep it for: the range has arrived in DRAM, or
    /// the space has dropped the request several times.
    ///
    /// Unlike a poll, it never waits for a tier. It leaves what has arrived where a touch, or a poll, finds it.
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use aquifer::Space;
    ///
    /// let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").open()?;
    /// let mut mapping = space.map(48 << 20)?;
    /// mapping.view_mut::<u64>(..)?.fill(3);
    /// let mut ahead: Vec<_> = [7, 3000, 11_000].map(|page| mapping.fetch(page << 12..(page + 1) << 12)).into();
    /// // Now, and when there are more to ask for:
    /// ahead.retain_mut(|fetch| fetch.start() == Ok(false));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Mapping::fetch`](crate::Mapping::fetch).
    pub fn start(&mut self) -> Result<bool, Error> {
        let (inner, range) = self.open()?;
        if let Some(listed) = &self.asked {
            return listed.asked.known().map_or(Ok(false), |outcome| outcome.map(|()| true));
        }
        match Found::of(&inner, &range)? {
            Found::Here | Found::Resident => Ok(true),
            Found::Away => self.ask(&inner, range, Waker::noop()).map(|()| false),
        }
    }

    /// Returns the mapping and the range, if the range can be fetched.
    fn open(&self) -> Result<(Arc<Inner>, Range<usize>), Error> {
        let range = self.range.clone()?;
        let inner = self.mapping.upgrade().ok_or(Error::Closed)?;
        if inner.space.memory.is_forked() { Err(Error::Forked) } else { Ok((inner, range)) }
    }

    /// Puts the fetch on the space's list.
    fn ask(&mut self, inner: &Arc<Inner>, range: Range<usize>, waker: &Waker) -> Result<(), Error> {
        let asked = Arc::new(Asked::new(self.mapping.clone(), range, waker));
        let number = Fetches::ask(&inner.space, Arc::clone(&asked)).ok_or(Error::Forked)?;
        self.asked = Some(Listed { asked, number, space: Arc::downgrade(&inner.space) });
        Ok(())
    }
}

impl Future for Fetch {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (inner, range) = match self.open() {
            Ok(open) => open,
            Err(refused) => return Poll::Ready(Err(refused)),
        };
        if let Some(listed) = &self.asked {
            return listed.asked.outcome(context.waker()).map(|outcome| outcome.and_then(|()| install(&inner, &range)));
        }
        let asked = match Found::of(&inner, &range) {
            Ok(Found::Resident) => return Poll::Ready(Ok(())),
            Ok(Found::Here) => return Poll::Ready(install(&inner, &range)),
            Ok(Found::Away) => self.ask(&inner, range, context.waker()),
            Err(refused) => Err(refused),
        };
        asked.map_or_else(|refused| Poll::Ready(Err(refused)), |()| Poll::Pending)
    }
}

fn install(inner: &Inner, range: &Range<usize>) -> Result<(), Error> {
    Ok(inner.memory.install(range.start, range.len())?)
}
