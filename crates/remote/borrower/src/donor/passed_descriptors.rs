// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The channel of a connection within this machine, and the descriptors that the donor passes with its greeting.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aquifer_wire::HEADER_BYTES;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};

use super::channel::{Channel, Miss};
use super::plain::PlainChannel;

/// The descriptors that arrived with a greeting.
#[derive(Debug, Default)]
pub(crate) struct PassedDescriptors(Mutex<Vec<OwnedFd>>);

impl PassedDescriptors {
    /// The two descriptors, if exactly two arrived.
    pub(crate) fn take(&self) -> Option<[OwnedFd; 2]> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).try_into().ok()
    }
}

/// The channel of the connection on which a tier is opened. Not for connections on which faults are resolved, because
/// it allocates.
#[derive(Debug)]
pub(crate) struct DescriptorChannel(pub(crate) Arc<PassedDescriptors>);

impl Channel for DescriptorChannel {
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
        PlainChannel.send(socket, header, payload, sent, flags)
    }

    fn receive(&self, socket: BorrowedFd<'_>, into: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(into)];
        let received = rustix::net::recvmsg(socket, &mut parts, &mut beside, flags | RecvFlags::CMSG_CLOEXEC)?;
        let mut passed = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                passed.extend(descriptors);
            }
        }
        Ok(received.bytes)
    }
}
