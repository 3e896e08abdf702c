// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The bytes of a link, unprotected.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use aquifer_wire::HEADER_BYTES;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use super::channel::{Channel, Miss};

/// A channel that neither encrypts nor authenticates.
#[derive(Debug)]
pub(crate) struct PlainChannel;

impl Channel for PlainChannel {
    fn open(&self, _: BorrowedFd<'_>, _: Duration) -> Result<(), Miss> {
        Ok(())
    }

    fn send(
        &self,
        socket: BorrowedFd<'_>,
        header: &[u8; HEADER_BYTES],
        payload: &[u8],
        sent: usize,
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        let head = &header[sent.min(HEADER_BYTES)..];
        let parts = [IoSlice::new(head), IoSlice::new(&payload[sent.saturating_sub(HEADER_BYTES)..])];
        rustix::net::sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), flags | SendFlags::NOSIGNAL)
    }

    fn receive(&self, socket: BorrowedFd<'_>, into: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
        rustix::net::recv(socket, into, flags).map(|(_, bytes)| bytes)
    }
}
