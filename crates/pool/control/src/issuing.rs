// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A manager's side of renewal and revocation, on one channel: when its end is asked for a request, and gets a list.
//!
//! Threads: the channel's. What the authority signs is stored by the writer, which may be waiting for a report of this
//! very end: so the channel never waits for it, and looks for the result between two other requests.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use aquifer_authority::Revocations;

use crate::end::Refused;
use crate::message::Message;

/// The time between two looks whether a certificate is due, and between two attempts.
const LOOK: Duration = Duration::from_secs(10);
/// The first version with these messages.
pub(crate) const VERSION: u16 = 2;

/// What channels need of a pool's authority.
pub trait Issuer: Send + Sync {
    /// Whether it is time to renew a certificate, in DER, which was checked.
    fn is_due(&self, certificate: &[u8]) -> bool;

    /// Begins to renew a certificate, for the key of a request in PEM. The chain of the new one, in PEM, is sent on the
    /// channel that is returned; nothing here waits.
    fn renew(&self, certificate: &[u8], request: String) -> Receiver<Result<String, Refused>>;

    /// The list of revoked certificates, if there is one.
    fn revocations(&self) -> Option<Revocations>;
}

/// Where the renewal of an end's certificate stands.
#[derive(Debug)]
enum State {
    /// The certificate of this connection has a successor.
    Done,
    /// Nothing is due; last looked at that instant.
    Idle(Option<Instant>),
    /// The authority signs.
    Signing(Receiver<Result<String, Refused>>),
}

/// What a channel does for its end's certificate.
pub(crate) struct Issuing {
    issuer: Option<Arc<dyn Issuer>>,
    state: State,
    /// The number of the list that the end has.
    listed: Option<u64>,
}

impl Issuing {
    /// For an end that speaks this version.
    pub(crate) fn new(issuer: Option<Arc<dyn Issuer>>, version: u16) -> Issuing {
        Issuing { issuer: issuer.filter(|_| version >= VERSION), state: State::Idle(None), listed: None }
    }

    /// The list, if the end does not have it.
    pub(crate) fn news(&mut self) -> Option<String> {
        let found = self.issuer.as_ref()?.revocations()?;
        if self.listed == Some(found.number) {
            return None;
        }
        self.listed = Some(found.number);
        Some(found.list.to_string())
    }

    /// The end may not have the list that it was sent.
    pub(crate) fn forget(&mut self) {
        self.listed = None;
    }

    /// The request to the end that is due now.
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
                // The authority has logged why; another attempt follows.
                Ok(Err(_)) | Err(TryRecvError::Disconnected) => {
                    self.state = State::Idle(Some(Instant::now()));
                    None
                }
            },
        }
    }

    /// Takes the end's answer. `Err`: it is none to what it was asked.
    pub(crate) fn answered(&mut self, answer: Message, certificate: &[u8]) -> Result<Option<Refused>, Message> {
        match (answer, &self.issuer) {
            (Message::Request(request), Some(issuer)) => {
                self.state = State::Signing(issuer.renew(certificate, request));
                Ok(None)
            }
            (Message::Renewed, _) => {
                self.state = State::Done;
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
