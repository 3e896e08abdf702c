// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Whether a mapping is open, and what keeps it open: buffers that were handed out, and pins. Pure.

/// Why a mapping cannot be closed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// Memoryviews or arrays over it exist.
    Exported(usize),
    /// Ranges of it are pinned.
    Pinned(usize),
}

/// The uses of one mapping. Callers lock it only for an instant, and never during a wait.
#[derive(Debug, Default)]
pub struct Lifetime {
    is_closed: bool,
    exports: usize,
    pins: usize,
}

impl Lifetime {
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Notes that a buffer is handed out. Returns false if the mapping is closed.
    pub fn export(&mut self) -> bool {
        self.exports += usize::from(!self.is_closed);
        !self.is_closed
    }

    /// Notes that a buffer was given back.
    pub fn release(&mut self) {
        self.exports -= 1;
    }

    /// Notes that a range is pinned. Returns false if the mapping is closed.
    pub fn pin(&mut self) -> bool {
        self.pins += usize::from(!self.is_closed);
        !self.is_closed
    }

    /// Notes that a pin has ended.
    pub fn unpin(&mut self) {
        self.pins -= 1;
    }

    /// Closes the mapping for everybody. `Ok(false)` if it was closed already.
    pub fn close(&mut self) -> Result<bool, Busy> {
        match (self.exports, self.pins) {
            (0, 0) => Ok(!std::mem::replace(&mut self.is_closed, true)),
            (0, pins) => Err(Busy::Pinned(pins)),
            (exports, _) => Err(Busy::Exported(exports)),
        }
    }
}
