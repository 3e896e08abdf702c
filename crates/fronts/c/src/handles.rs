// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The table of all objects to which programs have handles.
//!
//! | bits of a handle | what |
//! |------------------|------|
//! | 0 to 15          | the place in the table |
//! | 16 to 47         | the generation of the place: it grows when the place is given up, and is never 0 |
//! | 48 to 62         | forks that this process descends from, modulo 2^15 |
//!
//! So a handle that was closed, invented, or inherited by a forked child is refused, and never mistaken for another
//! one. A place whose generations are used up is never used again.
//!
//! Threads: any. A look-up takes the lock of one place, for as long as it takes to copy a pointer. A forked child has a
//! table of its own, so that it never waits for a lock that another thread of its parent had.

#![allow(unsafe_code, reason = "registers what a forked child does, and keeps tables for ever")]

use std::any::Any;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::code::{Code, Failure};

/// Places in the table, which come in chunks.
pub const PLACES_MAX: usize = CHUNKS * CHUNK;
const CHUNKS: usize = 64;
const CHUNK: usize = 1024;
const FORKS_MASK: u64 = 0x7fff;

type Entry = Arc<dyn Any + Send + Sync>;

#[derive(Default)]
struct Place {
    /// The generation of the present entry; if there is none, that of the next one, less 1.
    generation: u32,
    entry: Option<Entry>,
}

struct Table {
    chunks: [OnceLock<Box<[RwLock<Place>]>>; CHUNKS],
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    places: Vec<u16>,
    /// Places from here on have never been used.
    unused: usize,
}

/// The table of this process; null until it is needed. It is never freed: a handle may be used until the process ends.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());
/// How often this process, or one that it descends from, is a forked child.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Runs in a forked child, which has only the thread that forked.
extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    TABLE.store(ptr::null_mut(), Ordering::Relaxed);
}

fn table() -> &'static Table {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    let mut table = TABLE.load(Ordering::Acquire);
    if table.is_null() {
        // Threads that come here at the same time may each register it, and then a child counts several times, which
        // changes nothing. None waits for another, which a forked child would not have.
        if !IS_REGISTERED.load(Ordering::Acquire) {
            // SAFETY: the function may be called in any child. Without memory to register it, the crate `aquifer` still
            // refuses its parent's spaces in a child.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            IS_REGISTERED.store(true, Ordering::Release);
        }
        let new =
            Box::into_raw(Box::new(Table { chunks: [const { OnceLock::new() }; CHUNKS], free: Mutex::default() }));
        let set = TABLE.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
        table = set.map_or_else(
            |others| {
                // SAFETY: nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
                others
            },
            |_| new,
        );
    }
    // SAFETY: tables are never freed.
    unsafe { &*table }
}

fn forks() -> u64 {
    u64::from(FORKS.load(Ordering::Relaxed)) & FORKS_MASK
}

fn encode(place: usize, generation: u32) -> u64 {
    place as u64 | u64::from(generation) << 16 | forks() << 48
}

/// Returns the place and the generation of a handle that can be one of this process.
fn decode(handle: u64) -> Result<(usize, u32), Failure> {
    let (place, generation, forks_then) = (handle as usize % PLACES_MAX, (handle >> 16) as u32, handle >> 48);
    if generation == 0 || forks_then > FORKS_MASK {
        Err(stale())
    } else if forks_then != forks() {
        Err(aquifer::Error::Forked.into())
    } else {
        Ok((place, generation))
    }
}

fn stale() -> Failure {
    Failure::new(Code::Handle, "this handle is closed, or was never open; use one that an opening call has returned")
}

impl Table {
    fn place(&self, place: usize) -> Option<&RwLock<Place>> {
        Some(&self.chunks[place / CHUNK].get()?[place % CHUNK])
    }
}

/// Puts something into the table. Returns its handle.
pub fn insert<T: Any + Send + Sync>(entry: T) -> Result<u64, Failure> {
    let table = table();
    let index = {
        let mut free = table.free.lock().unwrap_or_else(PoisonError::into_inner);
        let recycled = free.places.pop().map(usize::from);
        recycled.or_else(|| {
            let is_left = free.unused < PLACES_MAX;
            free.unused += usize::from(is_left);
            is_left.then(|| free.unused - 1)
        })
    };
    let Some(index) = index else {
        let why = format!("{PLACES_MAX} handles are open; close some");
        return Err(Failure::new(Code::TooManyHandles, why));
    };
    let chunk = table.chunks[index / CHUNK].get_or_init(|| (0..CHUNK).map(|_| RwLock::default()).collect());
    let mut place = chunk[index % CHUNK].write().unwrap_or_else(PoisonError::into_inner);
    place.generation += 1;
    place.entry = Some(Arc::new(entry));
    Ok(encode(index, place.generation))
}

/// Returns what a handle stands for.
pub fn get<T: Any + Send + Sync>(handle: u64) -> Result<Arc<T>, Failure> {
    let (index, generation) = decode(handle)?;
    let place = table().place(index).ok_or_else(stale)?.read().unwrap_or_else(PoisonError::into_inner);
    let entry = place.entry.as_ref().filter(|_| place.generation == generation).ok_or_else(stale)?;
    Arc::clone(entry).downcast().map_err(|_| stale())
}

/// Takes what a handle stands for out of the table: the handle is then closed.
pub fn remove<T: Any + Send + Sync>(handle: u64) -> Result<Arc<T>, Failure> {
    let (index, generation) = decode(handle)?;
    let table = table();
    let mut place = table.place(index).ok_or_else(stale)?.write().unwrap_or_else(PoisonError::into_inner);
    let is_it = place.generation == generation && place.entry.as_ref().is_some_and(|entry| entry.is::<T>());
    let entry = place.entry.take_if(|_| is_it).ok_or_else(stale)?;
    if place.generation < u32::MAX {
        table.free.lock().unwrap_or_else(PoisonError::into_inner).places.push(index as u16);
    }
    entry.downcast().map_err(|_| stale())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_handle_is_refused_even_when_its_place_is_used_again() {
        let first = insert("first").unwrap();
        assert_eq!(*get::<&str>(first).unwrap(), "first");
        assert_eq!(*remove::<&str>(first).unwrap(), "first");
        // The other tests of this file may take the place that has become free; then this takes another one.
        let second = insert("second").unwrap();
        assert_ne!(first, second);
        for refused in [get::<&str>(first), remove::<&str>(first)] {
            assert_eq!(refused.unwrap_err().code, Code::Handle);
        }
        assert_eq!(*remove::<&str>(second).unwrap(), "second");
    }

    #[test]
    fn a_handle_of_another_kind_is_refused_and_stays() {
        let handle = insert(7_u8).unwrap();
        assert_eq!(get::<u16>(handle).unwrap_err().code, Code::Handle);
        assert_eq!(remove::<u16>(handle).unwrap_err().code, Code::Handle);
        assert_eq!(*remove::<u8>(handle).unwrap(), 7);
    }

    #[test]
    fn invented_handles_are_refused() {
        let handle = insert(7_u8).unwrap();
        let flipped = (0..48).map(|bit| handle ^ 1 << bit);
        for invented in flipped.chain([0, 1, u64::MAX, 1 << 63, handle | 1 << 63]) {
            assert_eq!(
                get::<u8>(invented).map(|_| ()).map_err(|failure| failure.code),
                Err(Code::Handle),
                "{invented:#x}"
            );
        }
        for forked in (48..63).map(|bit| handle ^ 1 << bit) {
            assert_eq!(get::<u8>(forked).unwrap_err().code, Code::Forked);
        }
        remove::<u8>(handle).unwrap();
    }

    #[test]
    fn threads_open_and_close_at_the_same_time() {
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                scope.spawn(move || {
                    for round in 0..2000_u64 {
                        let number = thread * 10_000 + round;
                        let handle = insert(number).unwrap();
                        assert_eq!(*get::<u64>(handle).unwrap(), number);
                        assert_eq!(*remove::<u64>(handle).unwrap(), number);
                        assert!(get::<u64>(handle).is_err());
                    }
                });
            }
        });
    }
}
