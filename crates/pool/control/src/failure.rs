// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What can go wrong with a control channel.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use aquifer_tls::{CredentialFailure, Distrust};

use crate::end::Refused;
use crate::message::NotAFrame;

/// Why a channel ended, or was not established.
#[derive(Debug)]
#[non_exhaustive]
pub enum ChannelFailure {
    /// The other end sent an unexpected message.
    Confused {
        /// The name of the expected message.
        expected: &'static str,
        /// The name of the received message.
        found: &'static str,
    },
    /// The ends do not trust each other.
    Distrust(Distrust),
    /// The connection was not established, or was lost.
    Io(io::Error),
    /// The manager's name has no address.
    NoAddress,
    /// The bytes are not a frame.
    NotAFrame(NotAFrame),
    /// Without TLS, only this machine is reached.
    Plain(SocketAddr),
    /// The manager does not register this end.
    Refused(Refused),
    /// Both ends speak different versions.
    Version {
        /// The version that the manager chose.
        chosen: u16,
    },
}

impl fmt::Display for ChannelFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Confused { expected, found } => {
                write!(f, "the other end sent `{found}` instead of `{expected}`; upgrade the older of both ends")
            }
            Self::Distrust(distrust) => match distrust {
                Distrust::DonorExpired => f.write_str("the manager's certificate has expired or is not valid yet; renew it"),
                Distrust::DonorName => {
                    f.write_str("the manager's certificate is for another name; connect to the name that it is for")
                }
                // An end checks no lists for its managers.
                Distrust::DonorRevoked | Distrust::DonorUnlisted => {
                    f.write_str("the manager's certificate was revoked; issue another")
                }
                Distrust::DonorUnknown => {
                    f.write_str("the manager's certificate is signed by another authority; give this end that authority")
                }
                Distrust::DonorUnusable => f.write_str("the manager's certificate is not one for a server; issue another"),
                Distrust::OwnExpired => f.write_str("the manager says that this end's certificate has expired; renew it"),
                Distrust::OwnUnknown => f.write_str(
                    "the manager says that this end's certificate is signed by another authority; have it signed by the \
                     manager's",
                ),
                Distrust::OwnUnusable => {
                    f.write_str("the manager says that this end's certificate is not one for a client; issue another")
                }
                _ => f.write_str("the peer does not speak the TLS 1.3 of a control channel; check the address and port"),
            },
            Self::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
                f.write_str("no answer in time; check the network and the other end")
            }
            Self::Io(error) => write!(f, "{error}; check the network and the other end"),
            Self::NoAddress => f.write_str("the manager's name has no address; check the name"),
            Self::NotAFrame(not) => not.fmt(f),
            Self::Plain(address) => {
                write!(f, "{address} is on another machine, and this end has no certificate; give it one")
            }
            Self::Refused(refused) => refused.fmt(f),
            Self::Version { chosen } => write!(f, "the manager speaks version {chosen}; upgrade this end"),
        }
    }
}

impl ChannelFailure {
    /// The failure as the manager reports it, which checks the certificate of the other end.
    pub(crate) fn at_manager(&self) -> String {
        let Self::Distrust(distrust) = self else { return self.to_string() };
        let line = match distrust {
            Distrust::DonorExpired => {
                "its certificate has expired or is not valid yet; let it join again, or have a new one signed"
            }
            Distrust::DonorRevoked => "its certificate was revoked; let it join again, or stop it",
            Distrust::DonorUnlisted => {
                "there is no list of revoked certificates of the authority that signed its certificate; add that list"
            }
            Distrust::DonorUnknown => {
                "its certificate is signed by another authority; let it join again, or have it signed by this manager's"
            }
            Distrust::DonorUnusable => {
                "its certificate is not one for a client; give it one that has extendedKeyUsage clientAuth, or none"
            }
            Distrust::OwnExpired => "it says that this manager's certificate has expired; renew it",
            Distrust::OwnUnknown => {
                "it says that this manager's certificate is signed by another authority; give it that authority"
            }
            Distrust::OwnUnusable => {
                "it says that this manager's certificate is not one for a server; have another one signed"
            }
            _ => return self.to_string(),
        };
        line.to_owned()
    }
}

impl std::error::Error for ChannelFailure {}

impl From<io::Error> for ChannelFailure {
    fn from(error: io::Error) -> ChannelFailure {
        // rustls reports what it finds in the bytes by this kind.
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match tls.map(Distrust::of_borrower) {
            Some(distrust) => ChannelFailure::Distrust(distrust),
            None => ChannelFailure::Io(error),
        }
    }
}

impl From<NotAFrame> for ChannelFailure {
    fn from(not: NotAFrame) -> ChannelFailure {
        ChannelFailure::NotAFrame(not)
    }
}

/// Why a text is not a manager's address: one line with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAnAddress(pub(crate) String);

impl fmt::Display for NotAnAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: String = self.0.chars().take(60).collect();
        write!(f, "`{}` is not an address of a manager; write HOST:PORT", shown.escape_debug())
    }
}

impl std::error::Error for NotAnAddress {}

/// Why a registrar or a keeper does not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotStarted {
    /// The TLS files are unusable.
    Credentials(CredentialFailure),
    /// The registrar cannot listen.
    Listen(SocketAddr, io::Error),
    /// Without TLS, a registrar listens on this machine only.
    Plain(SocketAddr),
    /// A keeper has no manager, or too many.
    Managers(usize),
    /// A thread cannot be started.
    Thread(io::Error),
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Credentials(failure) => failure.fmt(f),
            Self::Listen(address, error) => {
                write!(f, "{address} cannot be bound for control channels: {error}; change [control] listen")
            }
            Self::Plain(address) => write!(
                f,
                "control channels at {address} are reachable from other machines without TLS; add certificates, or \
                 listen on 127.0.0.1"
            ),
            Self::Managers(count) => write!(f, "{count} managers are named; name 1 to 8"),
            Self::Thread(error) => write!(f, "threads cannot be started: {error}; raise the limit on processes"),
        }
    }
}

impl std::error::Error for NotStarted {}
