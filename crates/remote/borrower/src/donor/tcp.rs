// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor over TCP: each read and write is a request, whose bytes go straight from and to the frame. Demand has a few
//! links, and each queue has one more.
//!
//! Next on the path: `links.rs`.

use std::sync::Arc;
use std::time::Duration;

use aquifer_sys::raw::Errno;
use aquifer_tier::TierQueue;
use aquifer_wire::Message;

use super::incarnation::Incarnation;
use super::links::{Begun, Links, REFRESH_EVERY};
use super::queue::TcpQueue;
use super::ranges::Lease;
use super::recalls::Recalls;
use super::remote::{Piece, Remote};
use super::transport::{Loss, Transport};
use crate::access_failure::LinkFailure;

/// Links for demand. A choice: threads that wait for one at the same time share the path to the donor anyway.
pub(crate) const LINKS: usize = 8;

/// The transport over TCP, plain or sealed. Its queues share the links' state.
pub(crate) struct Tcp(pub(crate) Arc<Links>);

impl Transport for Tcp {
    fn ask(&self, message: Message) -> Result<Message, Loss> {
        self.0.ask(message, &[], &mut [])
    }

    fn begin_ask(&self, message: Message) -> Option<Begun<'_>> {
        self.0.begin(message, &[])
    }

    fn read(&self, piece: Piece, lease: Lease, into: &mut [u8]) -> Result<(), Loss> {
        match self.0.ask(read(piece, lease), &[], into)? {
            Message::Found => Ok(()),
            _ => Err(Loss::Connection(LinkFailure::Protocol)),
        }
    }

    fn begin_read(&self, piece: Piece, lease: Lease) -> Option<Begun<'_>> {
        self.0.begin(read(piece, lease), &[])
    }

    fn begin_write(&self, piece: Piece, lease: Lease, bytes: &[u8]) -> Option<Begun<'_>> {
        self.0.begin(write(piece, lease), bytes)
    }

    fn write(&self, piece: Piece, lease: Lease, bytes: &[u8]) -> Result<(), Loss> {
        match self.0.ask(write(piece, lease), bytes, &mut [])? {
            Message::Written => Ok(()),
            _ => Err(Loss::Connection(LinkFailure::Protocol)),
        }
    }

    fn open_queue(&self, remote: &Arc<Remote>, depth: u32) -> Result<Box<dyn TierQueue>, Errno> {
        Ok(Box::new(TcpQueue::new(Arc::clone(&self.0), Arc::clone(remote), depth)?))
    }

    fn refresh(&self) -> Option<Duration> {
        self.0.refresh().map(|_| REFRESH_EVERY)
    }

    fn take_notice(&self) -> Option<String> {
        self.0.take_notice()
    }

    fn recalls(&self) -> &Recalls {
        self.0.recalls()
    }

    fn lease(&self) -> Option<Duration> {
        self.0.lease()
    }

    fn incarnation(&self) -> &Incarnation {
        self.0.incarnation()
    }

    fn waits(&self) -> bool {
        true
    }

    fn replace_in_child(&self) -> Result<bool, Errno> {
        self.0.replace_in_child()
    }
}

pub(crate) fn read(piece: Piece, lease: Lease) -> Message {
    let Piece { offset, bytes, .. } = piece;
    Message::Read { lease: lease.slab().lease(), token: lease.token(), offset, bytes: bytes as u64 }
}

pub(crate) fn write(piece: Piece, lease: Lease) -> Message {
    Message::Write { lease: lease.slab().lease(), token: lease.token(), offset: piece.offset }
}
