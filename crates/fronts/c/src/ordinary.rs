// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `AQUIFER_MEMORY`: hints about a program's ordinary memory under `aquifer run`, by the calls that mappings have.
//!
//! The preload library is in the same process, and offers a table of functions (`config/src/ordinary_memory.rs`), which
//! is looked up by name. Without it, the calls return `AQUIFER_ERR_UNMANAGED`. Where a mapping counts from its start,
//! ordinary memory counts from address zero.

#![allow(unsafe_code, reason = "looks up a symbol")]

use std::sync::OnceLock;

use aquifer_config::ordinary_memory::{Look, OrdinaryMemory, SYMBOL, outcome};

use crate::code::{Code, Failure};
use crate::mapping::Mapping;
use crate::queries::StatusRun;

/// The handle of `AQUIFER_MEMORY`. No entry of the table of handles has it.
const HANDLE: u64 = u64::MAX;

/// Returns the calls on ordinary memory, if `mapping` stands for it.
pub(crate) fn of(mapping: Mapping) -> Result<Option<Ordinary>, Failure> {
    if mapping.handle != HANDLE {
        return Ok(None);
    }
    static TABLE: OnceLock<Option<&'static OrdinaryMemory>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        // SAFETY: dlsym(3) with a name that ends in NUL.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, SYMBOL.as_ptr()) };
        // SAFETY: the symbol, whose name has its version, is such a table in a library that is never unloaded.
        unsafe { found.cast::<OrdinaryMemory>().as_ref() }
    });
    let why = "ordinary memory is managed under 'aquifer run' only; start the program with it, or use a mapping";
    table.map(|table| Some(Ordinary { table })).ok_or_else(|| Failure::new(Code::Unmanaged, why))
}

/// The program's ordinary memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ordinary {
    table: &'static OrdinaryMemory,
}

impl Ordinary {
    /// Gives a hint about a range of addresses.
    pub fn advise(self, start: usize, len: usize, hint: u32) -> Result<(), Failure> {
        check(start, len)?;
        served((self.table.advise)(start, len, hint).into()).map(|_| ())
    }

    /// Returns where the range is.
    pub fn status(self, start: usize, len: usize) -> Result<Vec<StatusRun>, Failure> {
        check(start, len)?;
        let mut runs: Vec<StatusRun> = Vec::new();
        let (mut at, end) = (start, start + len);
        while at < end {
            let Look { len, status } = (self.table.look)(at, end - at);
            let len = (len as usize).clamp(1, end - at);
            let (status, level, is_clean) =
                ((status & 0xff) as u32, (status >> 8 & 0xff) as u32, (status >> 16) as u32);
            match runs.last_mut() {
                Some(last) if (last.status, last.level, last.is_clean) == (status, level, is_clean) => last.len += len,
                _ => runs.push(StatusRun { start: at, len, status, level, is_clean, reserved: 0 }),
            }
            at += len;
        }
        Ok(runs)
    }

    /// Returns whether all of the range is resident.
    pub fn is_ready(self, start: usize, len: usize) -> Result<bool, Failure> {
        const RESIDENT: u32 = 4;
        let is_there = |run: &StatusRun| run.status == RESIDENT || u64::from(run.status) == Look::UNMANAGED;
        Ok(len == 0 || self.status(start, len)?.iter().all(is_there))
    }

    /// Keeps the range resident for as long as the value lives.
    pub fn pin(self, start: usize, len: usize) -> Result<OrdinaryPin, Failure> {
        check(start, len)?;
        served((self.table.pin)(start, len)).map(|slot| OrdinaryPin { table: self.table, slot })
    }
}

/// A pin of ordinary memory.
#[derive(Debug)]
pub(crate) struct OrdinaryPin {
    table: &'static OrdinaryMemory,
    slot: u64,
}

impl Drop for OrdinaryPin {
    fn drop(&mut self) {
        (self.table.unpin)(self.slot);
    }
}

/// Refuses a range outside the address space of programs.
fn check(start: usize, len: usize) -> Result<(), Failure> {
    if len == 0 {
        return Err(aquifer::Error::EmptyRange.into());
    }
    let is_within = start.checked_add(len).is_some_and(|end| end <= 1 << 47);
    let why = "the range is not within the memory of a program; give an address and a length";
    if is_within { Ok(()) } else { Err(Failure::new(Code::OutOfRange, why)) }
}

/// Returns the return value of a call, or the failure that a negative value stands for.
fn served(number: i64) -> Result<u64, Failure> {
    let failure = |code, why: &str| Err(Failure::new(code, why));
    match i32::try_from(number) {
        _ if number >= 0 => Ok(number as u64),
        Ok(outcome::PINNED) => Err(aquifer::Error::Pinned.into()),
        Ok(outcome::PINNED_TOO_MUCH) => failure(
            Code::PinnedTooMuch,
            "half of the budget may be pinned, in whole blocks; end a pin, or raise the budget (--dram)",
        ),
        Ok(outcome::NO_ROOM) => Err(aquifer::Error::NoRoom.into()),
        Ok(outcome::LOST) => Err(aquifer::Error::Lost.into()),
        Ok(outcome::BEYOND_BUDGET) => failure(
            Code::BeyondBudget,
            "the range is larger than a sixteenth of the budget, so it could be evicted before use; ask for parts",
        ),
        Ok(outcome::UNMANAGED) => failure(
            Code::Unmanaged,
            "none of the range is managed: it is a small mapping, shared, or of a file; use larger private memory",
        ),
        _ => failure(Code::Other, "the library that 'aquifer run' preloads is of another version; use the same one"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_memory_is_unmanaged_without_aquifer_run() {
        let refused = of(Mapping { handle: HANDLE }).unwrap_err();
        assert_eq!(refused.code, Code::Unmanaged);
        assert!(of(Mapping { handle: 7 }).is_ok_and(|found| found.is_none()));
    }

    #[test]
    fn ranges_that_no_program_has_are_refused() {
        assert_eq!(check(0, 0).unwrap_err().code, Code::EmptyRange);
        for (start, len) in [(usize::MAX, 1), (1, usize::MAX), (1 << 47, 1)] {
            assert_eq!(check(start, len).unwrap_err().code, Code::OutOfRange);
        }
        assert!(check(4096, 100).is_ok());
    }

    #[test]
    fn every_outcome_is_an_error_of_the_header() {
        assert_eq!(served(7), Ok(7));
        let codes = [-1, -2, -3, -4, -5, -6, -7, i64::MIN].map(|number| served(number).unwrap_err().code);
        let expected = [
            Code::Unmanaged,
            Code::Pinned,
            Code::PinnedTooMuch,
            Code::NoRoom,
            Code::Lost,
            Code::BeyondBudget,
            Code::Other,
            Code::Other,
        ];
        assert_eq!(codes, expected);
    }
}
