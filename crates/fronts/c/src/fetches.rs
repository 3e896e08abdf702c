// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Fetches: ranges that are made resident, while the program does something else or waits.

#![allow(unsafe_code, reason = "exports symbols, and uses the program's pointers")]

use std::ffi::c_int;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::arguments::{Place, array, range};
use crate::code::{Failure, PENDING};
use crate::contexts::wait_for;
use crate::guard::{call, done};
use crate::handles;
use crate::mapping::{self, Mapping};

/// Maximum number of ranges of one fetch. A bound on memory; the tier has far fewer of them at a time.
const RANGES_MAX: usize = 1 << 16;
/// Maximum number of wakers that one fetch remembers: as many as there are contexts at a time.
const WAITERS_MAX: usize = 1 << 16;

/// The layout of `aquifer_fetch_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Fetch {
    /// See `handles.rs`.
    pub handle: u64,
}

/// The layout of `struct aquifer_range`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "aquifer.h says what they mean")]
pub struct Range {
    pub start: usize,
    pub len: usize,
}

/// What a handle of a fetch stands for. The lock is held while it is polled, which waits for a tier only if what has
/// arrived was evicted again, or if the space drops requests.
struct Fetching {
    state: Mutex<State>,
    waiters: Arc<Waiters>,
}

struct State {
    pending: Vec<aquifer::Fetch>,
    /// The first failure of one of the ranges.
    failure: Option<Failure>,
}

/// The threads and contexts that wait for one fetch. A future of the crate `aquifer` wakes only who polled it last, and
/// that may be a call that does not wait; so it wakes this, which wakes all of them.
#[derive(Default)]
struct Waiters(Mutex<Vec<Waker>>);

impl Waiters {
    fn add(&self, waker: &Waker) {
        if waker.will_wake(Waker::noop()) {
            return;
        }
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if list.iter().any(|known| known.will_wake(waker)) {
            return;
        }
        // Who waits is woken and comes back; who has given up is forgotten.
        let full = if list.len() < WAITERS_MAX { Vec::new() } else { std::mem::take(&mut *list) };
        list.push(waker.clone());
        drop(list);
        full.into_iter().for_each(Waker::wake);
    }

    fn wake_all(&self) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        all.into_iter().for_each(Waker::wake);
    }
}

impl Wake for Waiters {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }
}

impl Fetching {
    fn new(pending: Vec<aquifer::Fetch>) -> Self {
        Self { state: Mutex::new(State { pending, failure: None }), waiters: Arc::default() }
    }

    /// Returns `Ready` when none is pending, or one of them has failed.
    fn poll(&self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.waiters.add(context.waker());
        let outcome = self.poll_all(&mut Context::from_waker(&Arc::clone(&self.waiters).into()));
        if outcome.is_ready() {
            self.waiters.wake_all();
        }
        outcome
    }

    fn poll_all(&self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { pending, failure } = &mut *state;
        if failure.is_none() {
            pending.retain_mut(|fetch| match Pin::new(fetch).poll(context) {
                Poll::Pending => true,
                Poll::Ready(outcome) => {
                    if let Err(error) = outcome {
                        failure.get_or_insert(error.into());
                    }
                    false
                }
            });
        }
        match failure {
            Some(failure) => {
                // A fetch that is no longer awaited completes all the same.
                pending.clear();
                Poll::Ready(Err(failure.clone()))
            }
            None if pending.is_empty() => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    }
}

fn get(fetch: Fetch) -> Result<Arc<Fetching>, Failure> {
    handles::get(fetch.handle)
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_fetch(mapping: Mapping, start: usize, len: usize) -> c_int {
    done(|| {
        let mut fetch = pin!(mapping::get(mapping)?.fetch(range(start, len)));
        wait_for(None, |context| fetch.as_mut().poll(context).map_err(Failure::from))
    })
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_fetch_start(
    mapping: Mapping,
    ranges: *const Range,
    count: usize,
    fetch: *mut Fetch,
) -> c_int {
    done(|| {
        let mapping = mapping::get(mapping)?;
        if count > RANGES_MAX {
            return Err(Failure::argument(format!("{count} ranges are too many; give at most {RANGES_MAX} at a time")));
        }
        // SAFETY: the caller's promise.
        let (ranges, place) = unsafe { (array(ranges, count, "ranges")?, Place::new(fetch, "fetch")?) };
        let pending = ranges.iter().map(|one| mapping.fetch(range(one.start, one.len))).collect();
        let fetching = Fetching::new(pending);
        // A fetch starts when it is first polled. Nobody waits yet.
        if let Poll::Ready(Err(failure)) = fetching.poll(&mut Context::from_waker(Waker::noop())) {
            return Err(failure);
        }
        place.put(Fetch { handle: handles::insert(fetching)? });
        Ok(())
    })
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_fetch_poll(fetch: Fetch) -> c_int {
    call(|| match get(fetch)?.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Pending => Ok(PENDING),
        Poll::Ready(outcome) => outcome.map(|()| 0),
    })
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_fetch_wait(fetch: Fetch, timeout_ms: i64) -> c_int {
    done(|| {
        let fetching = get(fetch)?;
        let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        // A time beyond what a clock can show is not a limit.
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        wait_for(until, |context| fetching.poll(context))
    })
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_fetch_close(fetch: Fetch) -> c_int {
    done(|| handles::remove::<Fetching>(fetch.handle).map(|_| ()))
}
