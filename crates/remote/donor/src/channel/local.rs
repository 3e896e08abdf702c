// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The bytes of a connection within this machine, unprotected, and the descriptors that are passed with them.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;

use aquifer_wire::Refusal;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::Channel;
use crate::settings::Timeouts;

/// A channel over a Unix socket, which can pass descriptors.
#[derive(Debug)]
pub(super) struct LocalChannel(pub(super) UnixStream);

impl Channel for LocalChannel {
    fn open(&self, _: Timeouts) -> Result<(), Refusal> {
        Ok(())
    }

    fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(into)
    }

    fn write(&self, header: &[u8], body: &[u8]) -> io::Result<usize> {
        (&self.0).write_vectored(&[IoSlice::new(header), IoSlice::new(body)])
    }

    fn give(&self, header: &[u8], descriptors: [BorrowedFd<'_>; 2]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        beside.push(SendAncillaryMessage::ScmRights(&descriptors));
        let sent = rustix::net::sendmsg(&self.0, &[IoSlice::new(header)], &mut beside, SendFlags::NOSIGNAL)?;
        // So few bytes are sent completely, or not at all.
        if sent == header.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
    }

    fn is_local(&self) -> bool {
        true
    }

    fn socket(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn shut(&self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}
