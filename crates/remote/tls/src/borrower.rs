// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A borrower's handshake: rustls performs it, and its session is freed afterwards.
//!
//! The handshake allocates about 100 KiB, all of which it frees, and needs a deep stack (`aquifer_sys::deep_stack`).
//! Records are read one at a time, so that no byte after the handshake is consumed, and a peer that speaks another
//! protocol is recognised by its first bytes.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustls::ClientConnection;
use rustls::pki_types::{ServerName, UnixTime};

use crate::distrust::Distrust;
use crate::files::{BorrowerFiles, BorrowerSide, CredentialFailure, File, Purpose};
use crate::records::{Opening, RECORD_BYTES_MAX, RECORD_HEAD_BYTES, Sealing};
use crate::renewal::{Replaceable, Seen};
use crate::revocations::Mark;

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
    /// The donor's certificate.
    donor: Option<Mark>,
    /// The count of changes of the files when this certificate was last looked up, and whether it was revoked.
    looked_up_at: u64,
    is_revoked: bool,
}

/// A borrower's credentials, and the donor that it trusts. The credentials follow their files, as often as somebody
/// calls [`refresh`](Self::refresh).
pub struct Borrower {
    side: Replaceable<BorrowerSide>,
    /// Counts the changes of the files.
    changes: AtomicU64,
    name: ServerName<'static>,
    /// With absolute paths: the program may change its directory.
    files: BorrowerFiles,
    seen: Seen,
    /// When the lists of revoked certificates expire, in seconds since 1970; `u64::MAX` once that was reported.
    lists_valid_until: AtomicU64,
    /// Why the files cannot be used, until it is reported. Never waited for: in a forked child, it may stay locked.
    failure: Mutex<Option<CredentialFailure>>,
}

impl fmt::Debug for Borrower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Prints no keys.
        f.debug_struct("Borrower").field("name", &self.name).field("files", &self.files).finish_non_exhaustive()
    }
}

impl Borrower {
    /// `name` is the name that the donor's certificate must have: a host name or an address.
    pub fn new(files: &BorrowerFiles, name: ServerName<'static>) -> Result<Borrower, CredentialFailure> {
        // Before they are read: what changes meanwhile will look different the next time.
        let seen = Seen::new(files.look());
        let side = files.load()?;
        let (lists_valid_until, changes) = (AtomicU64::new(side.valid_until), AtomicU64::new(0));
        let (side, files) = (Replaceable::new(Arc::new(side)), files.absolute());
        Ok(Borrower { side, changes, name, files, seen, lists_valid_until, failure: Mutex::new(None) })
    }

    /// Reads the files again if they have changed; new connections use what was read. If the files cannot be used, or
    /// the lists have expired meanwhile, connections are made with the previous contents until that is corrected.
    /// Returns whether other contents are in use now. Called by one thread at a time. May allocate, and reads files.
    pub fn refresh(&self) -> bool {
        let look = self.files.look();
        if self.seen.is_used(look) {
            self.check_lists(UnixTime::now().as_secs());
            return false;
        }
        match self.files.load() {
            Ok(side) => {
                let valid_until = side.valid_until;
                // Without a free slot, the next call tries again.
                let is_replaced = self.side.replace(Arc::new(side));
                if is_replaced {
                    self.seen.use_it(look);
                    self.lists_valid_until.store(valid_until, Ordering::Relaxed);
                    // Release pairs with the Acquire in `has_revoked`, which then finds the new lists.
                    self.changes.fetch_add(1, Ordering::Release);
                }
                return is_replaced;
            }
            Err(failure) if self.seen.fail(look) => self.fail(failure),
            Err(_) => {}
        }
        false
    }

    /// Whether the certificate that the donor of a connection has shown is revoked now. Looks it up only if the files
    /// have changed since the last call. Allocates nothing.
    pub fn has_revoked(&self, connection: &mut Protection) -> bool {
        let changes = self.changes.load(Ordering::Acquire);
        if connection.looked_up_at != changes
            && let Some(side) = self.side.present()
        {
            connection.looked_up_at = changes;
            connection.is_revoked = connection.donor.is_some_and(|donor| side.revoked.binary_search(&donor).is_ok());
        }
        connection.is_revoked
    }

    /// Reports once that lists in use have expired. They are used further: without its donors, the program would end.
    fn check_lists(&self, now: u64) {
        if let Some(path) = self.files.crl.clone().filter(|_| now >= self.lists_valid_until.load(Ordering::Relaxed)) {
            self.lists_valid_until.store(u64::MAX, Ordering::Relaxed);
            self.fail(CredentialFailure::Expired(File { purpose: Purpose::Revocations, path }));
        }
    }

    fn fail(&self, failure: CredentialFailure) {
        if let Ok(mut place) = self.failure.try_lock() {
            *place = Some(failure);
        }
    }

    /// Why changed files cannot be used, or that lists have expired, once.
    pub fn take_failure(&self) -> Option<CredentialFailure> {
        self.failure.try_lock().ok()?.take()
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
        // Before the lists are read: if they change meanwhile, the certificate is looked up again.
        let looked_up_at = self.changes.load(Ordering::Acquire);
        let side = self.side.present().ok_or_else(no_handshake)?;
        let mut session = ClientConnection::new(Arc::clone(&side.config), self.name.clone()).map_err(distrust)?;
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
        let shown = session.peer_certificates().and_then(|chain| chain.first());
        let donor = shown.and_then(|certificate| Mark::of_certificate(certificate));
        let secrets = session.dangerous_extract_secrets().map_err(distrust)?;
        let (sealing, opening) = (Sealing::new(&secrets.tx.1, secrets.tx.0), Opening::new(&secrets.rx.1, secrets.rx.0));
        match (sealing, opening) {
            (Some(sealing), Some(opening)) => {
                Ok(Protection { sealing, opening, donor, looked_up_at, is_revoked: false })
            }
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
