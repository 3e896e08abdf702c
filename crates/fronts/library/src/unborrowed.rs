// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Writes through a shared mapping, for bindings to languages in which threads share memory by convention.

#![allow(unsafe_code, reason = "the caller keeps the rules that Rust's borrows would keep")]

use std::ops::RangeBounds;

use crate::{Error, Mapping, NamedError};

impl Mapping {
    /// Works like [`write`](Self::write), for a mapping that is shared.
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use std::sync::Arc;
    ///
    /// use aquifer::Space;
    ///
    /// let space = Space::builder().dram("16MiB").tier("dram:size=16MiB").open()?;
    /// let shared = Arc::new(space.map(1 << 20)?);
    /// // SAFETY: this thread is the only one that uses the mapping.
    /// unsafe { shared.write_shared(10, b"far")? };
    /// let mut found = [0; 3];
    /// shared.read(10, &mut found)?;
    /// assert_eq!(&found, b"far");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    /// No other thread reads or writes these bytes during the call, by [`read`](Self::read), a gather or otherwise, and
    /// no [view](Self::view) of them lives.
    ///
    /// # Errors
    /// The same as for [`read`](Self::read).
    pub unsafe fn write_shared(&self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        self.write_bytes(at, bytes)
    }

    /// Works like [`discard`](Self::discard), for a mapping that is shared.
    ///
    /// # Safety
    /// The same as for [`write_shared`](Self::write_shared).
    ///
    /// # Errors
    /// The same as for [`discard`](Self::discard).
    pub unsafe fn discard_shared(&self, range: impl RangeBounds<usize>) -> Result<(), Error> {
        self.discard_bytes(range)
    }

    /// Works like [`write_in_place`](Self::write_in_place), for a mapping that is shared.
    ///
    /// # Safety
    /// The same as for [`write_shared`](Self::write_shared).
    ///
    /// # Errors
    /// The same as for [`write_in_place`](Self::write_in_place).
    pub unsafe fn write_in_place_shared(&self, at: usize, bytes: &[u8]) -> Result<usize, Error> {
        self.write_bytes_in_place(at, bytes)
    }

    /// Works like [`sync`](Self::sync), for a mapping that is shared.
    ///
    /// # Safety
    /// No other thread writes to the range during the call.
    ///
    /// # Errors
    /// The same as for [`sync`](Self::sync).
    pub unsafe fn sync_shared(&self, range: impl RangeBounds<usize>) -> Result<(), NamedError> {
        self.sync_bytes(range)
    }
}
