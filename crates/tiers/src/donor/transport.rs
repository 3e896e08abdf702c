// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A way to a donor: what every one can do, whatever carries it.
//!
//! [`Transport::ask`] is one round trip on the calling thread, which may be the faulting one inside a signal handler:
//! it allocates nothing, logs nothing, and comes to its end within a bounded time. What it tells the donor is a message
//! of `aquifer_wire`; bulk bytes go straight from and to the frame. It tries once: whether to try again is decided in
//! `remote.rs`, since only there is it known what may be done twice.

use std::sync::Arc;

use aquifer_sys::raw::Errno;
use aquifer_wire::{Message, Refusal};

use super::remote::Remote;
use super::tcp::Begun;
use crate::tier::TierQueue;

/// Why there is no answer, or none that was hoped for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The connection failed. Whether the donor has done what it was asked to is not known.
    Connection(i32),
    /// The donor has not done it, and will not.
    Refused(Refusal),
}

/// See the module.
pub(crate) trait Transport: Send + Sync {
    /// Asks for one thing. `payload` goes along; the answer's body fills `into`, which is as long as it must be.
    fn ask(&self, message: Message, payload: &[u8], into: &mut [u8]) -> Result<Message, Loss>;

    /// Asks for bytes, and does not wait for them: where there is a connection that can be asked at once.
    fn begin(&self, message: Message) -> Option<Begun<'_>>;

    /// A queue for one worker, with a connection of its own.
    fn open_queue(&self, remote: &Arc<Remote>, depth: u32) -> Result<Box<dyn TierQueue>, Errno>;

    /// Nothing is known any more of a run of the donor: the next one that answers is taken.
    fn start_over(&self);

    /// In a forked child: connections of its own in place of its parent's. Returns whether there was anything to do.
    fn renew(&self) -> Result<bool, Errno>;
}
