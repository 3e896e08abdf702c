// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A range that stays resident for as long as a value lives.

#![allow(unsafe_code, reason = "a pin and its mapping are in one value")]

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use aquifer_pager::memory_space::{LastingPin, Mapping, SpaceFailure};

use crate::Error;
use crate::mapping::Inner;

/// Keeps a range resident and writable until it is dropped. [`Mapping::pin`](crate::Mapping::pin) makes it.
///
/// The memory of a dropped mapping is given back when the last of its pins is dropped, too.
#[must_use = "the range is pinned only while this value lives"]
pub struct Pin {
    // Declared first, so dropped first.
    _pin: LastingPin<'static>,
    _mapping: Arc<Inner>,
    range: Range<usize>,
}

impl Pin {
    pub(crate) fn of(mapping: &Arc<Inner>, range: Range<usize>) -> Result<Self, Error> {
        // SAFETY: the mapping is in an `Arc`, to which this value holds a reference, which it drops after the pin.
        let memory: &'static Mapping<'static> = unsafe { &*std::ptr::from_ref(&mapping.memory) };
        let pin = memory.pin_for_long(range.start, range.len()).map_err(|failure| match failure {
            SpaceFailure::TooMuchPinned => Error::PinnedTooMuch { bytes_max: mapping.space.memory.pinned_bytes_max() },
            other => other.into(),
        })?;
        Ok(Self { _pin: pin, _mapping: Arc::clone(mapping), range })
    }

    /// Returns the bytes that are pinned, counted from the start of the mapping. The rest of their blocks is, too.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pin").field(&self.range).finish()
    }
}
