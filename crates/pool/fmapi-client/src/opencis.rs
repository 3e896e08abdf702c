// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! OpenCIS's framing: messages without MCTP, on a TCP connection that the switch makes to its fabric manager.
//!
//! | offset | bytes | field | meaning                                                                          |
//! |--------|-------|-------|----------------------------------------------------------------------------------|
//! | 0      | 2     | head  | bits 3:0: what follows, 4 for a CCI message; bits 15:4: bytes of the whole frame |
//! | 2      | 1     | port  | the port whose device is meant; 0 for the switch                                 |
//! | 3      | 1     | class | 1: a request, 2: an answer; the switch leaves it 0                               |
//! | 4      |       |       | the message, from its CCI header on                                              |
//!
//! Little-endian. Frames of other kinds belong to the emulated links and are dropped, and so are the switch's
//! notifications, of which it sends dozens when it connects.
//!
//! The switch has no tunnels. A command of MLDs (54h) goes to the device at the port that the frame names. The client
//! sends such a command in a tunnel, as to any other switch; here the tunnel becomes the frame's port, and the answer's
//! frame a tunnel.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use aquifer_fmapi::{
    Category, Dialect, HEADER_BYTES, Header, Message, MessageType, Opcode, Payload, Reader, ReturnCode, Tunnel,
    TunnelTarget, Tunnelled, Writer,
};

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
/// The command set of MLD components.
const OF_MLDS: u16 = 0x54;
/// The time between two checks whether the switch has connected.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A transport over a connection that the switch has made.
#[derive(Debug)]
pub struct OpenCis<S = TcpStream> {
    name: String,
    stream: S,
    arrived: Vec<u8>,
    is_broken: bool,
    /// The tags of the tunnel and of the command in it, if the last request was for the device at a port.
    tunnelled: Option<(u8, u8)>,
}

/// A request, as the switch takes it.
struct Addressed {
    port_id: u8,
    message: Vec<u8>,
    /// As in [`OpenCis`].
    tunnelled: Option<(u8, u8)>,
}

impl Addressed {
    /// Takes a command of MLDs out of its tunnel.
    fn of(message: &[u8], dialect: &'static Dialect) -> Self {
        let inner = || -> Option<Self> {
            let outer = Message::decode(message, dialect).ok().filter(|it| it.header.opcode == Opcode::TUNNEL)?;
            let tunnel = Tunnel::read(&mut Reader::new(&outer.payload, dialect)).ok()?;
            let command = Header::read(&mut Reader::new(&tunnel.message, dialect)).ok()?;
            let is_for_device = tunnel.target == TunnelTarget::PortOrLd && command.opcode.0 >> 8 == OF_MLDS;
            let tunnelled = Some((outer.header.tag, command.tag));
            is_for_device.then_some(Self { port_id: tunnel.port_or_ld_id, message: tunnel.message, tunnelled })
        };
        inner().unwrap_or_else(|| Self { port_id: 0, message: message.to_vec(), tunnelled: None })
    }
}

/// Puts the answer of a device into the tunnel in which its request was.
fn in_tunnel(answer: Vec<u8>, outer_tag: u8, dialect: &'static Dialect) -> Vec<u8> {
    let mut out = Writer::new(dialect);
    Tunnelled { message: answer }.write(&mut out);
    Message::new(Category::Response, outer_tag, Opcode::TUNNEL, ReturnCode::SUCCESS, out.bytes).encode(dialect)
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
        Self { name, stream, arrived: Vec::new(), is_broken: false, tunnelled: None }
    }

    /// Takes the next complete answer that has arrived; drops everything else.
    fn take(&mut self, dialect: &'static Dialect) -> Result<Option<Vec<u8>>, TransportFailure> {
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
            let is_request = frame.get(3) == Some(&REQUEST);
            if head & 0xf != CCI || is_request || bytes < FRAME_HEADER_BYTES + HEADER_BYTES {
                continue;
            }
            let message = frame[FRAME_HEADER_BYTES..].to_vec();
            let header = Header::read(&mut Reader::new(&message, dialect));
            let Some(header) = header.ok().filter(|header| header.category == Category::Response) else { continue };
            return Ok(Some(match self.tunnelled {
                Some((outer_tag, tag)) if tag == header.tag => in_tunnel(message, outer_tag, dialect),
                _ => message,
            }));
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

    fn send(&mut self, message: &[u8], dialect: &'static Dialect, wait: Duration) -> Result<(), TransportFailure> {
        if self.is_broken {
            return Err(TransportFailure::Closed);
        }
        let Addressed { port_id, message, tunnelled } = Addressed::of(message, dialect);
        self.tunnelled = tunnelled;
        // The client has asked for `message_bytes_max`.
        let bytes = u16::try_from(message.len() + FRAME_HEADER_BYTES).ok().filter(|bytes| *bytes <= 0xfff);
        let Some(bytes) = bytes else {
            let error = io::Error::from(io::ErrorKind::InvalidInput);
            return Err(TransportFailure::Io { doing: "framing a message", error });
        };
        let mut frame = (bytes << 4 | CCI).to_le_bytes().to_vec();
        frame.extend([port_id, REQUEST]);
        frame.extend_from_slice(&message);
        write_within(&mut self.stream, &frame, wait, &mut self.is_broken)
    }

    fn receive(&mut self, dialect: &'static Dialect, wait: Duration) -> Result<Vec<u8>, TransportFailure> {
        let deadline = Instant::now() + wait;
        loop {
            if let Some(message) = self.take(dialect)? {
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

    const ANSWER: u8 = 2;

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
        let (first, second) = (vec![1; HEADER_BYTES], [&[1][..], &[2; 299]].concat());
        let stream = [
            frame(1, ANSWER, &[9; 20]),
            frame(CCI, REQUEST, &[9; 20]),
            frame(CCI, ANSWER, &[9; HEADER_BYTES - 1]),
            frame(CCI, ANSWER, &first),
            // A notification: it is a request of the switch's.
            frame(CCI, 0, &[0; HEADER_BYTES]),
            (2_u16 << 4 | CCI).to_le_bytes().to_vec(),
            // As the switch sends its answers.
            frame(CCI, 0, &second),
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

    /// Takes what is sent, and answers with these bytes.
    struct Answers {
        sent: Vec<u8>,
        answer: Vec<u8>,
    }

    impl Read for Answers {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.answer.len();
            into[..count].copy_from_slice(&self.answer);
            self.answer.clear();
            Ok(count)
        }
    }

    impl Write for Answers {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.sent.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Stream for Answers {
        fn limit_read(&self, _: Duration) -> io::Result<()> {
            Ok(())
        }

        fn limit_write(&self, _: Duration) -> io::Result<()> {
            Ok(())
        }
    }

    /// The bytes are those of opencis-core (cbcc15a), with the tag 7.
    #[test]
    fn a_command_of_an_mld_goes_to_the_port_of_its_tunnel() {
        let dialect = &Dialect::OPENCIS;
        let command = Message::new(Category::Request, 7, Opcode::GET_LD_INFO, ReturnCode::SUCCESS, Vec::new());
        let tunnel = |message: &Message| {
            let mut out = Writer::new(dialect);
            Tunnel { port_or_ld_id: 5, message: message.encode(dialect), ..Tunnel::default() }.write(&mut out);
            Message::new(Category::Request, 8, Opcode::TUNNEL, ReturnCode::SUCCESS, out.bytes).encode(dialect)
        };
        let info = [0, 0, 0, 0x40, 0, 0, 0, 0, 4, 0, 0];
        let answer = [&[1, 7, 0, 0, 0x54, 11, 0, 0, 0, 0, 0, 0][..], &info].concat();
        let stream = Answers { sent: Vec::new(), answer: frame(CCI, 0, &answer) };
        let mut transport = OpenCis::new("opencis:test".into(), stream);
        transport.send(&tunnel(&command), dialect, Duration::from_secs(1)).unwrap();
        let frame = [&[0x04, 0x01, 5, REQUEST][..], &command.encode(dialect)].concat();
        assert_eq!(transport.stream.sent, frame);
        let received = transport.receive(dialect, Duration::from_secs(1)).unwrap();
        let received = Message::decode(&received, dialect).unwrap();
        assert_eq!((received.header.tag, received.header.opcode), (8, Opcode::TUNNEL));
        let inner = Tunnelled::read(&mut Reader::new(&received.payload, dialect)).unwrap();
        assert_eq!(inner.message, answer);
        // Other commands are not taken out of their tunnels: the switch refuses those.
        transport.stream.sent.clear();
        let other = Message::new(Category::Request, 7, Opcode::IDENTIFY, ReturnCode::SUCCESS, Vec::new());
        transport.send(&tunnel(&other), dialect, Duration::from_secs(1)).unwrap();
        assert_eq!(transport.stream.sent[4..], tunnel(&other));
        assert_eq!(transport.stream.sent[2], 0);
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
