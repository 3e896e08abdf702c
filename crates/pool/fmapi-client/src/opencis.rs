// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! OpenCIS's framing: messages without MCTP, on a TCP connection that the switch makes to its fabric manager.
//!
//! | offset | bytes | field | meaning                                                                          |
//! |--------|-------|-------|----------------------------------------------------------------------------------|
//! | 0      | 2     | head  | bits 3:0: what follows, 4 for a CCI message; bits 15:4: bytes of the whole frame |
//! | 2      | 1     | port  | the port whose device is meant; 0 for the switch                                 |
//! | 3      | 1     | class | 1: a request, 2: an answer                                                       |
//! | 4      |       |       | the message, from its CCI header on                                              |
//!
//! Little-endian. Frames of other kinds belong to the emulated links and are dropped.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use aquifer_fmapi::{Dialect, HEADER_BYTES, MessageType, Opcode};

use crate::packet_stream::{Stream, failure, write_within};
use crate::transport::{Transport, TransportFailure};

/// The port at which OpenCIS's switch expects its fabric manager.
pub(crate) const PORT: u16 = 8100;
const HEAD_BYTES: usize = 2;
const FRAME_HEADER_BYTES: usize = 4;
/// Maximum length of a frame, whose length field has 12 bits.
const FRAME_BYTES_MAX: usize = 0xfff;
const CCI: u16 = 4;
const REQUEST: u8 = 1;
const ANSWER: u8 = 2;
/// The time between two checks whether the switch has connected.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A transport over a connection that the switch has made.
#[derive(Debug)]
pub struct OpenCis<S = TcpStream> {
    name: String,
    stream: S,
    arrived: Vec<u8>,
    is_broken: bool,
}

impl OpenCis {
    /// Listens, and waits until the switch connects.
    pub fn accept(address: &str, wait: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let deadline = Instant::now() + wait;
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    stream.set_nodelay(true)?;
                    return Ok(Self::new(format!("opencis:{address}"), stream));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                    std::thread::sleep(LOOK_EVERY);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "no switch has connected"));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl<S: Stream> OpenCis<S> {
    /// Creates a transport over a connected stream.
    pub fn new(name: String, stream: S) -> Self {
        Self { name, stream, arrived: Vec::new(), is_broken: false }
    }

    /// Takes the next complete message that has arrived; drops other frames.
    fn take(&mut self) -> Result<Option<Vec<u8>>, TransportFailure> {
        loop {
            let Some(head) = self.arrived.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
            let head = u16::from_le_bytes(*head);
            let bytes = usize::from(head >> 4);
            if bytes < HEAD_BYTES {
                // The bytes after it cannot be parsed.
                self.is_broken = true;
                return Err(TransportFailure::Closed);
            }
            if self.arrived.len() < bytes {
                return Ok(None);
            }
            let frame: Vec<u8> = self.arrived.drain(..bytes).collect();
            if head & 0xf == CCI && frame.get(3) == Some(&ANSWER) && bytes >= FRAME_HEADER_BYTES + HEADER_BYTES {
                return Ok(Some(frame[FRAME_HEADER_BYTES..].to_vec()));
            }
        }
    }
}

impl<S: Stream> Transport for OpenCis<S> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn message_bytes_max(&self) -> usize {
        FRAME_BYTES_MAX - FRAME_HEADER_BYTES
    }

    fn message_type(&self, _opcode: Opcode) -> Option<MessageType> {
        Some(MessageType::FabricManager)
    }

    fn send(&mut self, message: &[u8], _: &'static Dialect, wait: Duration) -> Result<(), TransportFailure> {
        if self.is_broken {
            return Err(TransportFailure::Closed);
        }
        // The client has asked for `message_bytes_max`.
        let bytes = u16::try_from(message.len() + FRAME_HEADER_BYTES).ok().filter(|bytes| *bytes <= 0xfff);
        let Some(bytes) = bytes else {
            let error = io::Error::from(io::ErrorKind::InvalidInput);
            return Err(TransportFailure::Io { doing: "framing a message", error });
        };
        let mut frame = (bytes << 4 | CCI).to_le_bytes().to_vec();
        frame.extend([0, REQUEST]);
        frame.extend_from_slice(message);
        write_within(&mut self.stream, &frame, wait, &mut self.is_broken)
    }

    fn receive(&mut self, _: &'static Dialect, wait: Duration) -> Result<Vec<u8>, TransportFailure> {
        let deadline = Instant::now() + wait;
        loop {
            if let Some(message) = self.take()? {
                return Ok(message);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(TransportFailure::TimedOut);
            }
            let mut bytes = [0; FRAME_BYTES_MAX];
            match self.stream.limit_read(left).and_then(|()| self.stream.read(&mut bytes)) {
                Ok(0) => return Err(TransportFailure::Closed),
                Ok(more) => self.arrived.extend_from_slice(&bytes[..more]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failure("receiving", error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    /// A switch that sends these bytes in pieces and then closes the connection, and that takes one byte at a time.
    struct Sends {
        bytes: Vec<u8>,
        at_once: usize,
    }

    /// How long it takes for a byte.
    const BYTE_TIME: Duration = Duration::from_millis(2);

    impl Read for Sends {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let some = self.at_once.min(into.len()).min(self.bytes.len());
            into[..some].copy_from_slice(&self.bytes[..some]);
            self.bytes.drain(..some);
            Ok(some)
        }
    }

    impl Write for Sends {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            std::thread::sleep(BYTE_TIME);
            Ok(bytes.len().min(1))
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Stream for Sends {
        fn limit_read(&self, _: Duration) -> io::Result<()> {
            Ok(())
        }

        fn limit_write(&self, _: Duration) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the messages that arrive before the connection ends.
    fn received(bytes: &[u8], at_once: usize) -> Vec<Vec<u8>> {
        let mut transport = OpenCis::new("opencis:test".into(), Sends { bytes: bytes.to_vec(), at_once });
        std::iter::from_fn(|| transport.receive(&Dialect::OPENCIS, Duration::from_secs(60)).ok()).collect()
    }

    fn frame(kind: u16, class: u8, message: &[u8]) -> Vec<u8> {
        let head = (message.len() as u16 + 4) << 4 | kind;
        [&head.to_le_bytes()[..], &[0, class], message].concat()
    }

    #[test]
    fn answers_are_taken_however_they_are_cut_and_everything_else_is_dropped() {
        let (first, second) = (vec![1; HEADER_BYTES], vec![2; 300]);
        let stream = [
            frame(1, ANSWER, &[9; 20]),
            frame(CCI, REQUEST, &[9; 20]),
            frame(CCI, ANSWER, &[9; HEADER_BYTES - 1]),
            frame(CCI, ANSWER, &first),
            (2_u16 << 4 | CCI).to_le_bytes().to_vec(),
            frame(CCI, ANSWER, &second),
        ]
        .concat();
        for at_once in [1, 2, 3, 7, 4000] {
            assert_eq!(received(&stream, at_once), [first.clone(), second.clone()], "{at_once}");
        }
    }

    /// The limit is on the whole message. It was on each write, of which there are as many as the switch likes.
    #[test]
    fn a_switch_that_takes_a_byte_at_a_time_is_not_waited_for() {
        let mut transport = OpenCis::new("opencis:test".into(), Sends { bytes: Vec::new(), at_once: 1 });
        let mut send = |bytes| transport.send(&vec![0; bytes], &Dialect::OPENCIS, BYTE_TIME * 20);
        assert!(matches!(send(1000), Err(TransportFailure::TimedOut)));
        assert!(matches!(send(1), Err(TransportFailure::Closed)), "it has a part of a message");
    }

    #[test]
    fn lengths_that_lie_end_the_connection_and_nothing_else() {
        for head in [0_u16, 1 << 4 | CCI] {
            let stream = [head.to_le_bytes().to_vec(), frame(CCI, ANSWER, &[1; HEADER_BYTES])].concat();
            assert_eq!(received(&stream, 100), Vec::<Vec<u8>>::new(), "{head:#x}");
        }
        let mut state = 7_u64;
        for _ in 0..500 {
            let junk: Vec<u8> = std::iter::repeat_with(|| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                (state >> 33) as u8
            })
            .take(200)
            .collect();
            assert!(received(&junk, 50).iter().all(|message| message.len() >= HEADER_BYTES));
        }
    }
}
