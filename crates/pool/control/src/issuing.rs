// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The manager's side of renewal and revocation on one channel: decides when to ask the end for a certificate request,
//! and when to send it the revocation list.
//!
//! Threads: runs on the channel's thread. The writer stores what the authority signs, and may itself be waiting for a
//! report of this end. So the channel never waits for the writer; it polls for the result between two other requests.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use aquifer_authority::Revocations;

use crate::end::Refused;
use crate::message::Message;

/// The time between two checks whether a renewal is due, and between two attempts to renew.
const LOOK: Duration = Duration::from_secs(10);
/// The first version with these messages.
pub(crate) const VERSION: u16 = 2;

/// What channels need of a pool's authority.
pub trait Issuer: Send + Sync {
    /// Returns whether a renewal of this certificate, in DER, is due. The certificate has been verified.
    fn is_due(&self, certificate: &[u8]) -> bool;

    /// Starts the renewal of a certificate, for the key of a request in PEM. Does not block: the chain of the new
    /// certificate, in PEM, arrives on the returned channel.
    fn renew(&self, certificate: &[u8], request: String) -> Receiver<Result<String, Refused>>;

    /// Notes that the owner of this certificate has stored the one that replaces it. Does not block.
    fn replaced(&self, certificate: &[u8]) {
        let _ = certificate;
    }

    /// Returns the list of revoked certificates, if there is one.
    fn revocations(&self) -> Option<Revocations>;
}

/// The progress of a renewal.
#[derive(Debug)]
enum State {
    /// The end has a new certificate; this connection still uses the old one.
    Done,
    /// No renewal is due; last checked at that instant.
    Idle(Option<Instant>),
    /// Waiting for the authority to sign.
    Signing(Receiver<Result<String, Refused>>),
}

/// The state of renewal and revocation on one channel.
pub(crate) struct Issuing {
    issuer: Option<Arc<dyn Issuer>>,
    state: State,
    /// The number of the revocation list that the end has.
    listed: Option<u64>,
}

impl Issuing {
    /// Makes the state for an end that speaks this version.
    pub(crate) fn new(issuer: Option<Arc<dyn Issuer>>, version: u16) -> Issuing {
        Issuing { issuer: issuer.filter(|_| version >= VERSION), state: State::Idle(None), listed: None }
    }

    /// Returns the newest list, unless the end has it.
    pub(crate) fn news(&mut self) -> Option<String> {
        let found = self.issuer.as_ref()?.revocations()?;
        if self.listed == Some(found.number) {
            return None;
        }
        self.listed = Some(found.number);
        Some(found.list.to_string())
    }

    /// Notes that the end may not have received the list, so that it is sent again.
    pub(crate) fn forget(&mut self) {
        self.listed = None;
    }

    /// Returns the next request to the end, if one is due now.
    pub(crate) fn due(&mut self, certificate: Option<&[u8]>) -> Option<Message> {
        let (issuer, certificate) = (self.issuer.as_ref()?, certificate?);
        match &self.state {
            State::Done => None,
            State::Idle(Some(looked)) if looked.elapsed() < LOOK => None,
            State::Idle(_) => {
                self.state = State::Idle(Some(Instant::now()));
                issuer.is_due(certificate).then_some(Message::Renew)
            }
            State::Signing(receiver) => match receiver.try_recv() {
                Ok(Ok(chain)) => Some(Message::Certificate(chain)),
                Err(TryRecvError::Empty) => None,
                // The authority has logged the cause; another attempt follows.
                Ok(Err(_)) | Err(TryRecvError::Disconnected) => {
                    self.state = State::Idle(Some(Instant::now()));
                    None
                }
            },
        }
    }

    /// Applies the end's answer. `Err` if it does not answer the last request.
    pub(crate) fn answered(&mut self, answer: Message, certificate: &[u8]) -> Result<Option<Refused>, Message> {
        match (answer, &self.issuer) {
            (Message::Request(request), Some(issuer)) => {
                self.state = State::Signing(issuer.renew(certificate, request));
                Ok(None)
            }
            (Message::Renewed, issuer) => {
                self.state = State::Done;
                issuer.iter().for_each(|issuer| issuer.replaced(certificate));
                Ok(None)
            }
            (Message::Unable(refused), _) => {
                self.state = State::Idle(Some(Instant::now()));
                Ok(Some(Refused::new(refused.why)))
            }
            (other, _) => Err(other),
        }
    }
}
