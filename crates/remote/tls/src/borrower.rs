// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A borrower's handshake: rustls performs it, and its session is freed afterwards.
//!
//! The handshake allocates about 100 KiB, all of which it frees, and needs a deep stack (`aquifer_sys::deep_stack`).
//! Records are read one at a time, so that no byte after the handshake is consumed, and a peer that speaks another
//! protocol is recognised by its first bytes.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::distrust::Distrust;
use crate::files::{CredentialFailure, Credentials};
use crate::records::{Opening, RECORD_BYTES_MAX, RECORD_HEAD_BYTES, Sealing};

/// Maximum number of records in a donor's part of a handshake: usually five, and each certificate of a long chain may
/// be one more.
const RECORDS_MAX: u32 = 64;

/// Carries a handshake's bytes, within the time limit that its implementor sets.
pub trait Pipe {
    /// Why the bytes were not carried.
    type Failure;

    /// Sends all of `bytes`.
    fn send(&mut self, bytes: &[u8]) -> Result<(), Self::Failure>;

    /// Fills all of `into`.
    fn receive(&mut self, into: &mut [u8]) -> Result<(), Self::Failure>;
}

/// Why no protected connection was established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShakeFailure<F> {
    /// One end does not trust the other.
    Distrust(Distrust),
    /// The donor speaks another protocol, which begins with these bytes.
    Foreign([u8; RECORD_HEAD_BYTES]),
    /// The bytes could not be sent or received.
    Pipe(F),
}

/// The result of a handshake.
pub struct Protection {
    /// For sent records.
    pub sealing: Sealing,
    /// For received records.
    pub opening: Opening,
}

/// A borrower's credentials, and the donor that it trusts.
#[derive(Debug)]
pub struct Borrower {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Borrower {
    /// `name` is the name that the donor's certificate must have: a host name or an address.
    pub fn new(credentials: Credentials, name: ServerName<'static>) -> Result<Borrower, CredentialFailure> {
        Ok(Borrower { config: credentials.for_borrower()?, name })
    }

    /// Parses a name that a certificate can have.
    pub fn name(text: &str) -> Option<ServerName<'static>> {
        ServerName::try_from(text.to_owned()).ok()
    }

    /// Performs a handshake. Whether the donor accepts the borrower's certificate is known only when the donor answers
    /// the first request.
    pub fn shake_hands<P: Pipe>(&self, pipe: &mut P) -> Result<Protection, ShakeFailure<P::Failure>> {
        let distrust = |error: rustls::Error| ShakeFailure::Distrust(Distrust::of_borrower(&error));
        let no_handshake = || ShakeFailure::Distrust(Distrust::NoHandshake);
        let mut session = ClientConnection::new(Arc::clone(&self.config), self.name.clone()).map_err(distrust)?;
        let mut record = vec![0; RECORD_BYTES_MAX];
        let mut records = 0;
        loop {
            flush(&mut session, pipe)?;
            if !session.is_handshaking() {
                break;
            }
            records += 1;
            if records > RECORDS_MAX {
                return Err(no_handshake());
            }
            let whole = receive_record(pipe, &mut record)?;
            let mut rest = &record[..whole];
            while !rest.is_empty() {
                session.read_tls(&mut rest).map_err(|_| no_handshake())?;
                if let Err(error) = session.process_new_packets() {
                    // Sends the alert, so that the donor can report it to its operator.
                    let _ = flush(&mut session, pipe);
                    return Err(distrust(error));
                }
            }
        }
        let secrets = session.dangerous_extract_secrets().map_err(distrust)?;
        let (sealing, opening) = (Sealing::new(&secrets.tx.1, secrets.tx.0), Opening::new(&secrets.rx.1, secrets.rx.0));
        match (sealing, opening) {
            (Some(sealing), Some(opening)) => Ok(Protection { sealing, opening }),
            _ => Err(no_handshake()),
        }
    }
}

fn flush<P: Pipe>(session: &mut ClientConnection, pipe: &mut P) -> Result<(), ShakeFailure<P::Failure>> {
    let mut bytes = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut bytes).expect("a vector takes everything");
    }
    if bytes.is_empty() { Ok(()) } else { pipe.send(&bytes).map_err(ShakeFailure::Pipe) }
}

/// Receives one record. Returns its length.
fn receive_record<P: Pipe>(pipe: &mut P, record: &mut [u8]) -> Result<usize, ShakeFailure<P::Failure>> {
    pipe.receive(&mut record[..RECORD_HEAD_BYTES]).map_err(ShakeFailure::Pipe)?;
    let head: [u8; RECORD_HEAD_BYTES] = record[..RECORD_HEAD_BYTES].try_into().expect("a slice of this length");
    if !(20..=23).contains(&head[0]) || head[1] != 3 {
        return Err(ShakeFailure::Foreign(head));
    }
    let whole = RECORD_HEAD_BYTES + usize::from(u16::from_be_bytes([head[3], head[4]]));
    let body = record.get_mut(RECORD_HEAD_BYTES..whole).ok_or(ShakeFailure::Distrust(Distrust::NoHandshake))?;
    pipe.receive(body).map_err(ShakeFailure::Pipe)?;
    Ok(whole)
}
