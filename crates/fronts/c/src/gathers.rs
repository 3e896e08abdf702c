// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Gathers: scattered pieces of a mapping, copied at once, or while the program does something else.

#![allow(unsafe_code, reason = "exports symbols, uses the program's pointers, and keeps a mapping with its gather")]

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use aquifer::Error;

use crate::arguments::{Place, addresses_of, array, bytes_mut, check_apart, check_disjoint};
use crate::code::{Failure, PENDING};
use crate::contexts::{is_in_context, wait_for};
use crate::guard::{call, done};
use crate::handles;
use crate::mapping::{self, Mapping, addresses};

/// The layout of `aquifer_gather_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Gather {
    /// See `handles.rs`.
    pub handle: u64,
}

/// The layout of `struct aquifer_piece`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "aquifer.h says what they mean")]
pub struct Piece {
    pub offset: usize,
    pub into: *mut c_void,
    pub len: usize,
}

/// What a handle of a gather stands for. The lock is held while it is polled.
struct Gathering(Mutex<State>);

struct State {
    /// The gather; `None` once it has ended. It is declared first, so it is dropped before its mapping.
    gather: Option<aquifer::Gather<'static, 'static>>,
    outcome: Result<(), Failure>,
    /// Contexts that wait for the gather. The executor of the one that polled it last wakes that one.
    waiting: Vec<Waker>,
    _mapping: Arc<aquifer::Mapping>,
}

// SAFETY: the destinations belong to the gather by the caller's promise, and any thread may write to them; the rest is
// a mapping, pieces, a queue of a tier, which is `Send` by its trait, and numbers of an executor's reads, which any
// thread may give up. The lock lets one thread in at a time.
unsafe impl Send for State {}

impl Gathering {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll(&self) -> Poll<Result<(), Failure>> {
        let mut state = self.state();
        let Some(gather) = &mut state.gather else { return Poll::Ready(state.outcome.clone()) };
        let Poll::Ready(outcome) = gather.poll() else {
            // What an executor was to read has been taken back from it, so it wakes nobody.
            state.wake();
            return Poll::Pending;
        };
        Poll::Ready(state.end(outcome.map_err(Failure::from)))
    }

    /// Polls for a context, which is woken when there is progress.
    fn poll_in_context(&self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let mut state = self.state();
        let Some(gather) = &mut state.gather else { return Poll::Ready(state.outcome.clone()) };
        let Poll::Ready(outcome) = gather.poll_in_context(context) else {
            if !state.waiting.iter().any(|other| other.will_wake(context.waker())) {
                state.waiting.push(context.waker().clone());
            }
            return Poll::Pending;
        };
        Poll::Ready(state.end(outcome.map_err(Failure::from)))
    }

    /// Waits for the tier, and for other threads that poll it.
    fn wait(&self) -> Result<(), Failure> {
        let mut state = self.state();
        match state.gather.take() {
            Some(gather) => state.end(gather.wait().map_err(Failure::from)),
            None => state.outcome.clone(),
        }
    }
}

impl State {
    /// Notes how the gather has ended, for all that wait for it.
    fn end(&mut self, outcome: Result<(), Failure>) -> Result<(), Failure> {
        (self.gather, self.outcome) = (None, outcome.clone());
        self.wake();
        outcome
    }

    fn wake(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
    }
}

/// Returns the program's pieces as the crate `aquifer` takes them, unless two destinations overlap.
///
/// # Safety
/// The pointers are as `aquifer.h` says, and stay so for `'p`.
unsafe fn pieces<'p>(
    mapping: &aquifer::Mapping,
    pieces: *const Piece,
    count: usize,
) -> Result<Vec<aquifer::Piece<'p>>, Failure> {
    // SAFETY: the caller's promise.
    let pieces = unsafe { array(pieces, count, "pieces") }?;
    let (own, memory) = (addresses_of(pieces.as_ptr(), count, "pieces")?, addresses(mapping, 0, mapping.len()));
    for piece in pieces {
        let into = addresses_of(piece.into, piece.len, "into")?;
        check_apart(into.clone(), memory.clone(), "into")?;
        check_apart(into, own.clone(), "into")?;
    }
    // None of them overflows: that was checked above.
    let destinations = pieces.iter().map(|piece| piece.into.addr()..piece.into.addr() + piece.len);
    check_disjoint(destinations, "into")?;
    let checked = pieces.iter().map(|piece| {
        // SAFETY: the caller's promise; that no two of these references have a byte in common was checked.
        let into = unsafe { bytes_mut(piece.into, piece.len, "into") }?;
        Ok(aquifer::Piece { offset: piece.offset, into })
    });
    checked.collect()
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_gather(
    mapping: Mapping,
    size: usize,
    indices: *const usize,
    count: usize,
    into: *mut c_void,
    into_len: usize,
) -> c_int {
    done(|| {
        let mapping = mapping::get(mapping)?;
        let destination = addresses_of(into, into_len, "into")?;
        check_apart(destination.clone(), addresses(&mapping, 0, mapping.len()), "into")?;
        check_apart(destination, addresses_of(indices, count, "indices")?, "into")?;
        // SAFETY: the caller's promise.
        let (indices, into) = unsafe { (array(indices, count, "indices")?, bytes_mut(into, into_len, "into")?) };
        Ok(mapping.gather(size, indices, into)?)
    })
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_gather_pieces(mapping: Mapping, pieces: *const Piece, count: usize) -> c_int {
    done(|| {
        let mapping = mapping::get(mapping)?;
        // SAFETY: the caller's promise.
        let pieces = unsafe { self::pieces(&mapping, pieces, count) }?;
        Ok(mapping.start_gather(pieces)?.wait()?)
    })
}

/// See `aquifer.h`.
///
/// # Safety
/// Pointers are as `aquifer.h` says, and the destinations are the gather's until it has ended or is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aquifer_gather_start(
    mapping: Mapping,
    pieces: *const Piece,
    count: usize,
    gather: *mut Gather,
) -> c_int {
    done(|| {
        let mapping = mapping::get(mapping)?;
        // SAFETY: the caller's promise.
        let (pieces, place) = unsafe { (self::pieces(&mapping, pieces, count)?, Place::new(gather, "gather")?) };
        // SAFETY: `State` holds a reference to the mapping, which it drops after the gather.
        let lasting: &'static aquifer::Mapping = unsafe { &*Arc::as_ptr(&mapping) };
        let gather = lasting.start_gather(pieces)?;
        let state = State { gather: Some(gather), outcome: Ok(()), waiting: Vec::new(), _mapping: mapping };
        place.put(Gather { handle: handles::insert(Gathering(Mutex::new(state)))? });
        Ok(())
    })
}

fn get(gather: Gather) -> Result<Arc<Gathering>, Failure> {
    handles::get(gather.handle)
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_gather_poll(gather: Gather) -> c_int {
    call(|| match get(gather)?.poll() {
        Poll::Pending => Ok(PENDING),
        Poll::Ready(outcome) => outcome.map(|()| 0),
    })
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_gather_wait(gather: Gather) -> c_int {
    done(|| {
        let gathering = get(gather)?;
        if !is_in_context() {
            return gathering.wait();
        }
        wait_for(None, |context| gathering.poll_in_context(context))
    })
}

/// See `aquifer.h`.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_gather_close(gather: Gather) -> c_int {
    done(|| {
        let gathering = handles::remove::<Gathering>(gather.handle)?;
        // Another thread may be polling it: it finds that it has ended.
        let mut state = gathering.state();
        if state.gather.is_some() {
            let _ = state.end(Err(Error::Closed.into()));
        }
        Ok(())
    })
}
