// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The future that makes a range resident.
//!
//! First poll: asks the space's list of fetches (`fetches.rs`) for the range. Later polls: check whether it has
//! arrived. The last step, which puts the blocks at their addresses, is made by the thread that polls: it needs no
//! transfer, unless the blocks have been evicted again meanwhile. Dropping the future takes it off the list.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use aquifer_core::engine::Arrived;

use crate::Error;
use crate::fetches::{Asked, Fetches};
use crate::mapping::Inner;
use crate::space::Shared;

/// A fetch of a range, made by [`Mapping::fetch`](crate::Mapping::fetch).
#[derive(Debug)]
#[must_use = "nothing is fetched until the future is polled"]
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

impl Fetch {
    pub(crate) fn of(mapping: Weak<Inner>, range: Result<Range<usize>, Error>) -> Self {
        Self { mapping, range, asked: None }
    }

    /// Returns the result, if it is known without asking the space to fetch.
    fn begin(inner: &Inner, range: &Range<usize>) -> Option<Result<(), Error>> {
        if inner.ready(range.clone()) {
            return Some(inner.memory.check().map_err(Error::from));
        }
        if let Err(refused) = inner.check_wanted(range) {
            return Some(Err(refused));
        }
        match inner.memory.has_arrived(range.start, range.len()) {
            Ok(Arrived::Here) => Some(install(inner, range)),
            Ok(Arrived::Lost) => Some(Err(Error::Lost)),
            Ok(Arrived::Away | Arrived::Busy | Arrived::Foreign) => None,
            Err(failure) => Some(Err(failure.into())),
        }
    }
}

impl Future for Fetch {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let range = match &self.range {
            Ok(range) => range.clone(),
            Err(refused) => return Poll::Ready(Err(refused.clone())),
        };
        let Some(inner) = self.mapping.upgrade() else { return Poll::Ready(Err(Error::Closed)) };
        if inner.space.memory.is_forked() {
            return Poll::Ready(Err(Error::Forked));
        }
        if let Some(listed) = &self.asked {
            return listed.asked.outcome(context.waker()).map(|outcome| outcome.and_then(|()| install(&inner, &range)));
        }
        if let Some(outcome) = Self::begin(&inner, &range) {
            return Poll::Ready(outcome);
        }
        let asked = Arc::new(Asked::new(self.mapping.clone(), range, context.waker()));
        let Some(number) = Fetches::ask(&inner.space, Arc::clone(&asked)) else {
            return Poll::Ready(Err(Error::Forked));
        };
        self.asked = Some(Listed { asked, number, space: Arc::downgrade(&inner.space) });
        Poll::Pending
    }
}

fn install(inner: &Inner, range: &Range<usize>) -> Result<(), Error> {
    Ok(inner.memory.install(range.start, range.len())?)
}
