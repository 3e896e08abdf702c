// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why a step or an order to a switch was not carried out.

use std::fmt;

use aquifer_fmapi::ReturnCode;
use aquifer_fmapi_client::{Effect, Failure};

/// Why a step was not carried out, as far as the sender knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// The switch is busy with something else; nothing has changed.
    Busy(String),
    /// It may or may not have been carried out: the next report shows it.
    Lost(String),
    /// It was refused by its guard or by the switch; nothing has changed.
    Refused(String),
}

impl NotDone {
    pub(crate) fn refused<T>(why: impl Into<String>) -> Result<T, NotDone> {
        Err(NotDone::Refused(why.into()))
    }
}

impl fmt::Display for NotDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(why) | Self::Lost(why) | Self::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for NotDone {}

/// Returns whether a failure says that the command is to be sent again later, unchanged.
pub(crate) fn is_busy(failure: &Failure) -> bool {
    let codes = [ReturnCode::BUSY, ReturnCode::RETRY_REQUIRED];
    failure.effect == Effect::NotCarriedOut && failure.return_code().is_some_and(|code| codes.contains(&code))
}

/// Returns whether a peer does not know the command.
pub(crate) fn is_unsupported(failure: &Failure) -> bool {
    let codes = [ReturnCode::UNSUPPORTED, ReturnCode::UNSUPPORTED_MAILBOX];
    failure.return_code().is_some_and(|code| codes.contains(&code))
}

impl From<Failure> for NotDone {
    fn from(failure: Failure) -> NotDone {
        let why = failure.to_string();
        match failure.effect {
            _ if is_busy(&failure) => NotDone::Busy(why),
            Effect::NotCarriedOut if failure.return_code().is_some() => NotDone::Refused(why),
            Effect::NotCarriedOut | Effect::Unknown => NotDone::Lost(why),
        }
    }
}
