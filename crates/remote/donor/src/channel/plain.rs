// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The bytes of a connection, unprotected.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};

use aquifer_wire::Refusal;

use super::Channel;
use crate::settings::Timeouts;

/// A channel that neither encrypts nor authenticates.
#[derive(Debug)]
pub(super) struct PlainChannel(pub(super) TcpStream);

impl Channel for PlainChannel {
    fn open(&self, _: Timeouts) -> Result<(), Refusal> {
        Ok(())
    }

    fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(into)
    }

    fn write(&self, header: &[u8], body: &[u8]) -> io::Result<usize> {
        (&self.0).write_vectored(&[IoSlice::new(header), IoSlice::new(body)])
    }

    fn socket(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn shut(&self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}
