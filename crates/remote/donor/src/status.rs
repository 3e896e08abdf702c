// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Asks a donor for its figures, without borrowing anything.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use aquifer_tls::{
    Borrower, Broken, CredentialFailure, Distrust, Opening, Pipe, Protection, RECORD_EXTRA_BYTES, RECORD_HEAD_BYTES,
    ShakeFailure, Words,
};
use aquifer_wire::{
    BorrowerId, DonorStatus, HEADER_BYTES, Header, Message, Refusal, STATUS_BYTES, VERSION_NEWEST, VERSION_OLDEST,
    is_frame,
};

use crate::local_socket;
use crate::settings::Security;

/// Why a donor's figures are unavailable.
#[derive(Debug)]
#[non_exhaustive]
pub enum StatusFailure {
    /// The TLS files are unusable.
    Credentials(CredentialFailure),
    /// The two ends do not trust each other.
    Distrust(Distrust),
    /// There is no answer, or it is not a donor's.
    Io(io::Error),
    /// No certificate can be issued for this name.
    Name(String),
    /// The donor refuses.
    Refused(Refusal),
}

impl fmt::Display for StatusFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StatusFailure::Credentials(failure) => write!(f, "{failure}"),
            StatusFailure::Distrust(distrust) => f.write_str(&distrust.explain(Words::FLAGS)),
            StatusFailure::Io(error) => write!(f, "{error}"),
            StatusFailure::Name(name) => {
                write!(f, "'{}' is not a name that a certificate can be for", name.escape_debug())
            }
            StatusFailure::Refused(refusal) => write!(f, "{refusal}"),
        }
    }
}

impl std::error::Error for StatusFailure {}

impl From<io::Error> for StatusFailure {
    fn from(error: io::Error) -> Self {
        StatusFailure::Io(error)
    }
}

/// Asks the donor at `address`, whose certificate is for `name`, and waits at most `timeout` for each step.
pub fn status(
    address: SocketAddr,
    name: &str,
    security: &Security,
    timeout: Duration,
) -> Result<DonorStatus, StatusFailure> {
    let stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let mut line = Line { stream: Box::new(stream), protection: None, text: Vec::new() };
    if let Security::Tls(files) = security {
        let server = Borrower::name(name).ok_or_else(|| StatusFailure::Name(name.into()))?;
        let borrower = Borrower::new(&files.clone().into(), server).map_err(StatusFailure::Credentials)?;
        line.protection = Some(line.shake_hands(&borrower)?);
    }
    read_status(&mut line)
}

/// Asks the donor at a socket on this machine, and waits at most `timeout` for each step.
pub fn local_status(path: &Path, timeout: Duration) -> Result<DonorStatus, StatusFailure> {
    let stream = local_socket::connect(path, timeout)?;
    read_status(&mut Line { stream: Box::new(stream), protection: None, text: Vec::new() })
}

fn read_status(line: &mut Line) -> Result<DonorStatus, StatusFailure> {
    let bits = || aquifer_sys::raw::random().map_err(|errno| io::Error::from_raw_os_error(errno.0));
    let borrower = BorrowerId(u128::from(bits()?) << 64 | u128::from(bits()?));
    let hello = Message::Hello { oldest: VERSION_OLDEST, newest: VERSION_NEWEST, borrower };
    let Message::Welcome { first_request, .. } = line.ask(0, hello)? else { return Err(unexpected()) };
    if line.ask(first_request, Message::Status)? != Message::StatusReport {
        return Err(unexpected());
    }
    let mut body = [0; STATUS_BYTES];
    line.fill(&mut body)?;
    Ok(DonorStatus::decode(&body))
}

/// A stream of bytes each way.
trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

/// A connection.
struct Line {
    stream: Box<dyn Stream>,
    /// `None`: in plain text.
    protection: Option<Protection>,
    /// Received, and not yet taken.
    text: Vec<u8>,
}

impl Line {
    fn shake_hands(&mut self, borrower: &Borrower) -> Result<Protection, StatusFailure> {
        match borrower.shake_hands(&mut Through(&mut *self.stream)) {
            Ok(protection) => Ok(protection),
            Err(ShakeFailure::Distrust(distrust)) => Err(StatusFailure::Distrust(distrust)),
            Err(ShakeFailure::Pipe(error)) => Err(StatusFailure::Io(error)),
            Err(ShakeFailure::Foreign(begun)) if is_frame(&begun) => {
                let mut header = [0; HEADER_BYTES];
                header[..begun.len()].copy_from_slice(&begun);
                self.stream.read_exact(&mut header[begun.len()..])?;
                match Header::decode(&header).map(|header| header.message) {
                    Ok(Message::Error { refusal }) => Err(StatusFailure::Refused(refusal)),
                    _ => Err(unexpected()),
                }
            }
            Err(ShakeFailure::Foreign(_)) => Err(StatusFailure::Distrust(Distrust::NoHandshake)),
        }
    }

    fn ask(&mut self, request: u64, message: Message) -> Result<Message, StatusFailure> {
        let frame = Header::new(request, message, &[]).encode();
        match &mut self.protection {
            None => match self.stream.write_all(&frame) {
                // A client that is refused before the greeting receives the reason before the end of the connection.
                Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error.into()),
                _ => {}
            },
            Some(protection) => {
                let mut record = [0; HEADER_BYTES + RECORD_EXTRA_BYTES];
                protection.sealing.seal(&frame, &[], &mut record).map_err(broken)?;
                self.stream.write_all(&record)?;
            }
        }
        let mut header = [0; HEADER_BYTES];
        self.fill(&mut header)?;
        let header = Header::decode(&header).map_err(StatusFailure::Refused)?;
        match header.message {
            Message::Error { refusal } => Err(StatusFailure::Refused(refusal)),
            message if header.request == request => Ok(message),
            _ => Err(unexpected()),
        }
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<(), StatusFailure> {
        let Some(protection) = &mut self.protection else { return Ok(self.stream.read_exact(into)?) };
        while self.text.len() < into.len() {
            let mut record = vec![0; RECORD_HEAD_BYTES];
            self.stream.read_exact(&mut record)?;
            let whole = Opening::length(&record).map_err(broken)?.expect("the head is whole");
            record.resize(whole, 0);
            self.stream.read_exact(&mut record[RECORD_HEAD_BYTES..])?;
            let text = protection.opening.open(&mut record).map_err(broken)?;
            self.text.extend_from_slice(&record[text]);
        }
        into.copy_from_slice(&self.text[..into.len()]);
        self.text.drain(..into.len());
        Ok(())
    }
}

/// The stream during a handshake.
struct Through<'a>(&'a mut dyn Stream);

impl Pipe for Through<'_> {
    type Failure = io::Error;

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(into)
    }
}

fn broken(broken: Broken) -> StatusFailure {
    match broken {
        Broken::Ended(distrust) => StatusFailure::Distrust(distrust),
        _ => unexpected(),
    }
}

fn unexpected() -> StatusFailure {
    StatusFailure::Io(io::Error::new(ErrorKind::InvalidData, "not the answer of a donor"))
}
