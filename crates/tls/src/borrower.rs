// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A borrower's handshake: rustls does it, and is gone afterwards.
//!
//! It allocates some 100 KiB, all of which it gives back, and needs a deep stack (`aquifer_sys::deep_stack`). Records
//! are read one at a time, so nothing of what follows the handshake is taken along, and a peer that speaks something
//! else is known by its first bytes.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::distrust::Distrust;
use crate::files::{CredentialFailure, Credentials};
use crate::records::{Opening, RECORD_BYTES_MOST, RECORD_HEAD_BYTES, Sealing};

/// Records that a donor's part of a handshake has at most: it is five, and each certificate of a long chain may be one.
const RECORDS_MOST: u32 = 64;

/// What carries a handshake's bytes, within the time that its maker gives it.
pub trait Pipe {
    /// Why it does not.
    type Failure;

    /// Sends all of it.
    fn send(&mut self, bytes: &[u8]) -> Result<(), Self::Failure>;

    /// Fills all of it.
    fn receive(&mut self, into: &mut [u8]) -> Result<(), Self::Failure>;
}

/// Why there is no protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShakeFailure<F> {
    /// The two do not trust each other.
    Distrust(Distrust),
    /// The donor speaks something else, which begins so.
    Foreign([u8; RECORD_HEAD_BYTES]),
    /// The bytes do not go through.
    Pipe(F),
}

/// What a handshake has agreed on.
pub struct Protection {
    /// For what is sent.
    pub sealing: Sealing,
    /// For what is received.
    pub opening: Opening,
}

/// How a borrower shows who it is, and which donor it trusts.
#[derive(Debug)]
pub struct Borrower {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Borrower {
    /// `name` is what the donor's certificate must be for: a host's name, or an address.
    pub fn new(credentials: Credentials, name: ServerName<'static>) -> Result<Borrower, CredentialFailure> {
        Ok(Borrower { config: credentials.for_borrower()?, name })
    }

    /// Reads what a certificate can be for.
    pub fn name(text: &str) -> Option<ServerName<'static>> {
        ServerName::try_from(text.to_owned()).ok()
    }

    /// Shakes hands. The donor has checked the borrower's certificate only when it answers the first request.
    pub fn shake_hands<P: Pipe>(&self, pipe: &mut P) -> Result<Protection, ShakeFailure<P::Failure>> {
        let distrust = |error: rustls::Error| ShakeFailure::Distrust(Distrust::of_borrower(&error));
        let no_handshake = || ShakeFailure::Distrust(Distrust::NoHandshake);
        let mut session = ClientConnection::new(Arc::clone(&self.config), self.name.clone()).map_err(distrust)?;
        let mut record = vec![0; RECORD_BYTES_MOST];
        let mut records = 0;
        loop {
            flush(&mut session, pipe)?;
            if !session.is_handshaking() {
                break;
            }
            records += 1;
            if records > RECORDS_MOST {
                return Err(no_handshake());
            }
            let whole = receive_record(pipe, &mut record)?;
            let mut rest = &record[..whole];
            while !rest.is_empty() {
                session.read_tls(&mut rest).map_err(|_| no_handshake())?;
                if let Err(error) = session.process_new_packets() {
                    // So that the donor can tell its operator.
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

/// One record. Returns how long it is.
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
