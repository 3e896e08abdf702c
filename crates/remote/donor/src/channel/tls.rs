// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A connection's bytes sealed by a rustls session, which requests the borrower's certificate.
//!
//! The session's lock is held while it seals and opens and while sealed bytes are sent, never while bytes are awaited:
//! so a notice to the borrower can be sent while its connection's thread waits for the next request.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aquifer_wire::{Refusal, is_frame, is_tls};
use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, CertificateError, Error, ServerConfig, ServerConnection};

use super::Channel;
use crate::settings::Timeouts;

/// How much is read from the socket at a time.
const READ_BYTES: usize = 64 << 10;
/// How much is sealed before it is sent.
const WRITE_BYTES: usize = 64 << 10;
/// The interval between checks for more of the first bytes.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How many bytes of a connection show its protocol.
const BEGINNING_BYTES: usize = 4;

/// A channel sealed by a rustls session.
pub(super) struct TlsChannel {
    stream: TcpStream,
    config: Arc<ServerConfig>,
    /// How long sending sealed bytes may take.
    timeout: Duration,
    /// Held by the connection's thread, even while it waits for bytes.
    arrived: Mutex<Arrived>,
    /// Set from the beginning of the handshake.
    session: Mutex<Option<ServerConnection>>,
}

/// Bytes from the socket, and which of them the session has not been given.
struct Arrived {
    bytes: Box<[u8]>,
    rest: Range<usize>,
}

impl fmt::Debug for TlsChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsChannel").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl TlsChannel {
    pub(super) fn new(stream: TcpStream, config: Arc<ServerConfig>, timeout: Duration) -> TlsChannel {
        let arrived = Mutex::new(Arrived { bytes: vec![0; READ_BYTES].into(), rest: 0..0 });
        TlsChannel { stream, config, timeout, arrived, session: Mutex::new(None) }
    }

    fn session(&self) -> MutexGuard<'_, Option<ServerConnection>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the first bytes, without consuming them.
    fn look(&self, deadline: Instant) -> Result<(), Refusal> {
        let mut begun = [0; BEGINNING_BYTES];
        loop {
            let there = match self.stream.peek(&mut begun) {
                Ok(0) => return Err(Refusal::Truncated),
                Ok(count) => &begun[..count],
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(if is_late(&error) { Refusal::Slow } else { Refusal::Truncated }),
            };
            if is_tls(there) {
                return Ok(());
            }
            if is_frame(there) {
                return Err(Refusal::TlsOnly);
            }
            if there.len() == BEGINNING_BYTES {
                return Err(Refusal::Foreign);
            }
            if Instant::now() > deadline {
                return Err(Refusal::Slow);
            }
            // Some bytes have arrived, but too few: peek(2) does not wait for more.
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Bytes that have been opened already, if there are any.
    fn read_opened(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match self.session().as_mut().ok_or(ErrorKind::NotConnected)?.reader().read(into) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            read => read.map(Some),
        }
    }

    /// Gives the session what the socket has, until it can open something. Returns false when the connection has ended.
    fn feed(&self) -> io::Result<Result<bool, Error>> {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let Arrived { bytes, rest } = &mut *arrived;
        if rest.start == rest.end {
            *rest = 0..(&self.stream).read(bytes)?;
            if rest.start == rest.end {
                return Ok(Ok(false));
            }
        }
        let mut session = self.session();
        let session = session.as_mut().ok_or(ErrorKind::NotConnected)?;
        // The session accepts no more while there is something to be read from it.
        while rest.start < rest.end && session.wants_read() {
            rest.start += session.read_tls(&mut &bytes[rest.clone()])?;
            if let Err(error) = session.process_new_packets() {
                // This tells the borrower's user the reason.
                let _ = self.flush(session);
                return Ok(Err(error));
            }
        }
        self.flush(session)?;
        Ok(Ok(true))
    }

    /// Sends what the session has sealed. An incomplete send ends the connection, because half of a record cannot be
    /// taken back.
    fn flush(&self, session: &mut ServerConnection) -> io::Result<()> {
        let deadline = Instant::now() + self.timeout;
        while session.wants_write() {
            match session.write_tls(&mut &self.stream) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if session.wants_write() && Instant::now() > deadline {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }
}

impl Channel for TlsChannel {
    fn open(&self, timeouts: Timeouts) -> Result<(), Refusal> {
        let deadline = Instant::now() + timeouts.handshake;
        self.look(deadline)?;
        let session = ServerConnection::new(Arc::clone(&self.config)).map_err(|_| Refusal::Handshake)?;
        *self.session() = Some(session);
        loop {
            match self.feed() {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => return Err(Refusal::Handshake),
                Ok(Err(error)) => return Err(refusal(&error)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(if is_late(&error) { Refusal::Slow } else { Refusal::Handshake }),
            }
            if !self.session().as_ref().is_some_and(|session| session.is_handshaking()) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Refusal::Slow);
            }
        }
    }

    fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(count) = self.read_opened(into)? {
            return Ok(count);
        }
        if !self.feed()?.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))? {
            return Ok(0);
        }
        self.read_opened(into)?.ok_or_else(|| ErrorKind::Interrupted.into())
    }

    fn write(&self, header: &[u8], body: &[u8]) -> io::Result<usize> {
        let mut session = self.session();
        let Some(session) = session.as_mut() else {
            return (&self.stream).write_vectored(&[io::IoSlice::new(header), io::IoSlice::new(body)]);
        };
        let body = &body[..body.len().min(WRITE_BYTES)];
        let count = session.writer().write_vectored(&[io::IoSlice::new(header), io::IoSlice::new(body)])?;
        self.flush(session)?;
        Ok(count)
    }

    fn certificates(&self) -> Option<Vec<CertificateDer<'static>>> {
        let session = self.session();
        let shown = session.as_ref().and_then(|session| session.peer_certificates()).unwrap_or_default();
        Some(shown.iter().map(|certificate| certificate.clone().into_owned()).collect())
    }

    fn socket(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    fn shut(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Why a handshake has failed, for the operator.
fn refusal(error: &Error) -> Refusal {
    match error {
        Error::NoCertificatesPresented => Refusal::NoCertificate,
        Error::InvalidCertificate(error) => match error {
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => Refusal::CertificateExpired,
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Refusal::CertificateUnknown,
            _ => Refusal::CertificateUnusable,
        },
        Error::AlertReceived(
            AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::DecryptError,
        ) => Refusal::Distrusted,
        _ => Refusal::Handshake,
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
