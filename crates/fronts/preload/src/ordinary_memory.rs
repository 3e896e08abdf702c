// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The table of calls that `libaquifer` finds in a program under `aquifer run`: hints about ordinary memory.
//!
//! `config/src/ordinary_memory.rs` defines it. Each call is made by the program, on its own threads.

use aquifer_config::ordinary_memory::{Look, OrdinaryMemory, hint, outcome};
use aquifer_core::block::State;
use aquifer_core::engine::Advice;
use aquifer_core::map::Priority;
use aquifer_core::units::Order;
use aquifer_pager::ordinary::Unserved;

use crate::start::instance;

/// The table of calls on ordinary memory. The symbol's name contains its version.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, unsafe_code, reason = "the name of a symbol")]
pub static aquifer_ordinary_memory_1: OrdinaryMemory = OrdinaryMemory { advise, look, pin, unpin };

extern "C" fn advise(start: usize, len: usize, hint: u32) -> i32 {
    let Some(advice) = advice_of(hint) else { return outcome::MEANINGLESS };
    let Some(instance) = instance() else { return outcome::UNMANAGED };
    match instance.adopter.hint(start, len, advice) {
        Ok(()) => outcome::DONE,
        Err(unserved) => number_of(unserved),
    }
}

extern "C" fn look(start: usize, len: usize) -> Look {
    let Some(instance) = instance() else { return Look { len: len as u64, status: Look::UNMANAGED } };
    let place = instance.adopter.place(start, len);
    let status = place.state.map_or(Look::UNMANAGED, status_of);
    Look { len: place.len as u64, status: status | u64::from(place.level) << 8 | u64::from(place.is_clean) << 16 }
}

extern "C" fn pin(start: usize, len: usize) -> i64 {
    let Some(instance) = instance() else { return outcome::UNMANAGED.into() };
    match instance.adopter.pin(start, len) {
        Ok(slot) => slot as i64,
        Err(unserved) => number_of(unserved).into(),
    }
}

extern "C" fn unpin(slot: u64) {
    if let Some(instance) = instance() {
        instance.adopter.unpin(slot as usize);
    }
}

fn advice_of(hint: u32) -> Option<Advice> {
    const PATTERNS: [Advice; 3] = [Advice::Normal, Advice::Random, Advice::Sequential];
    const PRIORITIES: [Priority; 3] = [Priority::Low, Priority::Normal, Priority::High];
    let place = |numbers: [u32; 3]| numbers.into_iter().position(|number| number == hint);
    Some(match hint {
        hint::EVICT => Advice::PageOut,
        hint::STREAM => Advice::Cold,
        hint::PREFETCH_READ => Advice::WillNeed,
        hint::PREFETCH_WRITE => Advice::WillWrite,
        hint::BLOCK_SIZE => Advice::BlockSize(None),
        hint if hint > hint::BLOCK_SIZE => {
            Advice::BlockSize(Some(Order::new(u8::try_from(hint - hint::BLOCK_SIZE - 1).ok()?)?))
        }
        _ => match (place(hint::PATTERNS), place(hint::PRIORITIES)) {
            (Some(pattern), _) => PATTERNS[pattern],
            (_, Some(priority)) => Advice::Priority(PRIORITIES[priority]),
            (None, None) => return None,
        },
    })
}

/// Returns a number of `enum aquifer_status_of`.
fn status_of(state: State) -> u64 {
    match state {
        State::Empty => 0,
        State::Fetching => 1,
        State::Poisoned => 2,
        State::Changing | State::Cleaning | State::Installing | State::Leaving => 3,
        State::Resident => 4,
        State::Standby => 5,
        State::Stored => 6,
    }
}

fn number_of(unserved: Unserved) -> i32 {
    match unserved {
        Unserved::Unmanaged => outcome::UNMANAGED,
        Unserved::Pinned => outcome::PINNED,
        Unserved::PinnedTooMuch => outcome::PINNED_TOO_MUCH,
        Unserved::NoRoom => outcome::NO_ROOM,
        Unserved::Lost => outcome::LOST,
        Unserved::BeyondBudget => outcome::BEYOND_BUDGET,
    }
}
