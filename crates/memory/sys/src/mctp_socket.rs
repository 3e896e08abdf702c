// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A socket of the kernel's MCTP stack (AF_MCTP, since Linux 5.15), for requests and their answers.
//!
//! The kernel chooses the tag of a request, and delivers the answer that has it to the socket that sent the request.
//! The message type is part of the address, so neither direction carries it in the bytes. See networking/mctp in the
//! kernel's documentation. Without it, `MctpSocket::new` fails with EAFNOSUPPORT.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::raw::syscall;

/// linux/socket.h
const AF_MCTP: u16 = 45;
/// linux/mctp.h: the sender owns the tag, that is, it sends a request; the kernel chooses the tag.
const TAG_OWNER: u8 = 0x08;

/// An endpoint of an MCTP network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MctpEndpoint {
    /// The number of the network; 0 for the default one.
    pub network: u32,
    /// The endpoint ID.
    pub id: u8,
}

/// `struct sockaddr_mctp`, 12 bytes; linux/mctp.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Address {
    family: u16,
    reserved: u16,
    network: u32,
    endpoint: u8,
    message_type: u8,
    tag: u8,
    reserved_end: u8,
}

/// A message that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MctpReceived {
    /// The bytes of the message, of which those that fit are in the buffer.
    pub bytes: usize,
    /// Its sender.
    pub from: MctpEndpoint,
    /// Its message type.
    pub message_type: u8,
    /// True for a request.
    pub is_request: bool,
}

/// A socket for requests; see the module.
#[derive(Debug)]
pub struct MctpSocket {
    descriptor: OwnedFd,
}

impl MctpSocket {
    /// A socket. EAFNOSUPPORT where the kernel has no MCTP.
    pub fn new() -> io::Result<Self> {
        let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as usize;
        // SAFETY: socket(2) touches no memory.
        let made = checked(unsafe { syscall(libc::SYS_socket, [AF_MCTP.into(), kind, 0, 0, 0, 0]) })?;
        // SAFETY: the new descriptor has no other owner.
        Ok(Self { descriptor: unsafe { OwnedFd::from_raw_fd(made as i32) } })
    }

    /// Sends a request.
    pub fn send(&self, to: MctpEndpoint, message_type: u8, bytes: &[u8]) -> io::Result<()> {
        let address = Address {
            family: AF_MCTP,
            network: to.network,
            endpoint: to.id,
            message_type,
            tag: TAG_OWNER,
            ..Address::default()
        };
        let (start, socket) = (bytes.as_ptr() as usize, self.descriptor.as_raw_fd() as usize);
        let args = [socket, start, bytes.len(), 0, &raw const address as usize, size_of::<Address>()];
        // SAFETY: sendto(2) reads the bytes and the address, which both live until it returns.
        checked(unsafe { syscall(libc::SYS_sendto, args) }).map(drop)
    }

    /// Waits for a message, and copies as much of it as fits. None if none arrives in time.
    pub fn receive(&self, buffer: &mut [u8], wait: Duration) -> io::Result<Option<MctpReceived>> {
        let mut polled = libc::pollfd { fd: self.descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // Rounded up, so that a wait of less than a millisecond does not spin.
        let milliseconds = wait.as_micros().div_ceil(1000).min(i32::MAX as u128) as usize;
        // SAFETY: poll(2) reads and writes the one entry.
        match checked(unsafe { syscall(libc::SYS_poll, [&raw mut polled as usize, 1, milliseconds, 0, 0, 0]) }) {
            Ok(0) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(None),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        let (mut address, mut length) = (Address::default(), size_of::<Address>() as u32);
        let args = [
            self.descriptor.as_raw_fd() as usize,
            buffer.as_mut_ptr() as usize,
            buffer.len(),
            libc::MSG_TRUNC as usize,
            &raw mut address as usize,
            &raw mut length as usize,
        ];
        // SAFETY: recvfrom(2) writes at most the length of the buffer to it, and the address and its length.
        match checked(unsafe { syscall(libc::SYS_recvfrom, args) }) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
            Ok(bytes) => Ok(Some(MctpReceived {
                bytes,
                from: MctpEndpoint { network: address.network, id: address.endpoint },
                message_type: address.message_type,
                is_request: address.tag & TAG_OWNER != 0,
            })),
        }
    }
}

fn checked(result: Result<usize, crate::raw::Errno>) -> io::Result<usize> {
    result.map_err(|errno| io::Error::from_raw_os_error(errno.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_as_long_as_the_kernels() {
        assert_eq!((size_of::<Address>(), align_of::<Address>()), (12, 4));
    }

    /// A request to an endpoint that nobody has is refused, or, without MCTP in the kernel, the socket is.
    #[test]
    fn nothing_arrives_from_nobody() {
        match MctpSocket::new() {
            Ok(socket) => {
                assert!(socket.send(MctpEndpoint { network: 0, id: 250 }, 7, &[0; 12]).is_err());
                assert_eq!(socket.receive(&mut [0; 16], Duration::from_millis(1)).unwrap(), None);
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EAFNOSUPPORT), "{error}"),
        }
    }
}
