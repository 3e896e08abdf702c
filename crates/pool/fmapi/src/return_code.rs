// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How a command ended: the return code of a response. CXL 3.1, table 8-34.

use std::fmt;

/// A return code. Codes that have no name here are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReturnCode(pub u16);

/// What a return code means for the sender of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// It was carried out.
    Done,
    /// The same command may succeed later.
    Retry,
    /// It runs on; ask for the background operation's status.
    Running,
    /// The same command will not succeed later.
    Final,
}

macro_rules! codes {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl ReturnCode {
            $(#[doc = concat!($text, ".")] pub const $name: Self = Self($number);)*

            /// Returns the name of the code, as the specification has it; None where it has none.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    SUCCESS = 0x00, "Success";
    BACKGROUND_STARTED = 0x01, "Background Command Started";
    INVALID_INPUT = 0x02, "Invalid Input";
    UNSUPPORTED = 0x03, "Unsupported";
    INTERNAL_ERROR = 0x04, "Internal Error";
    RETRY_REQUIRED = 0x05, "Retry Required";
    BUSY = 0x06, "Busy";
    MEDIA_DISABLED = 0x07, "Media Disabled";
    FW_TRANSFER_IN_PROGRESS = 0x08, "FW Transfer in Progress";
    FW_TRANSFER_OUT_OF_ORDER = 0x09, "FW Transfer Out of Order";
    FW_VERIFICATION_FAILED = 0x0a, "FW Verification Failed";
    INVALID_SLOT = 0x0b, "Invalid Slot";
    ACTIVATION_FAILED_ROLLED_BACK = 0x0c, "Activation Failed, FW Rolled Back";
    ACTIVATION_FAILED_COLD_RESET = 0x0d, "Activation Failed, Cold Reset Required";
    INVALID_HANDLE = 0x0e, "Invalid Handle";
    INVALID_PHYSICAL_ADDRESS = 0x0f, "Invalid Physical Address";
    INJECT_POISON_LIMIT_REACHED = 0x10, "Inject Poison Limit Reached";
    PERMANENT_MEDIA_FAILURE = 0x11, "Permanent Media Failure";
    ABORTED = 0x12, "Aborted";
    INVALID_SECURITY_STATE = 0x13, "Invalid Security State";
    INCORRECT_PASSPHRASE = 0x14, "Incorrect Passphrase";
    UNSUPPORTED_MAILBOX = 0x15, "Unsupported Mailbox or CCI";
    INVALID_PAYLOAD_LENGTH = 0x16, "Invalid Payload Length";
    INVALID_LOG = 0x17, "Invalid Log";
    INTERRUPTED = 0x18, "Interrupted";
    UNSUPPORTED_FEATURE_VERSION = 0x19, "Unsupported Feature Version";
    UNSUPPORTED_FEATURE_SELECTION = 0x1a, "Unsupported Feature Selection Value";
    FEATURE_TRANSFER_IN_PROGRESS = 0x1b, "Feature Transfer in Progress";
    FEATURE_TRANSFER_OUT_OF_ORDER = 0x1c, "Feature Transfer Out of Order";
    RESOURCES_EXHAUSTED = 0x1d, "Resources Exhausted";
    INVALID_EXTENT_LIST = 0x1e, "Invalid Extent List";
    TRANSFER_OUT_OF_ORDER = 0x1f, "Transfer Out of Order";
    ABORT_NOT_SUPPORTED = 0x20, "Request Abort Background Operation Not Supported";
}

impl ReturnCode {
    /// Returns what the sender of the command should do.
    pub fn disposition(self) -> Disposition {
        match self {
            Self::SUCCESS => Disposition::Done,
            Self::BACKGROUND_STARTED => Disposition::Running,
            Self::RETRY_REQUIRED
            | Self::BUSY
            | Self::FW_TRANSFER_IN_PROGRESS
            | Self::INTERRUPTED
            | Self::FEATURE_TRANSFER_IN_PROGRESS => Disposition::Retry,
            _ => Disposition::Final,
        }
    }
}

impl fmt::Display for ReturnCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({:04x}h)", self.0),
            None => write!(f, "return code {:04x}h", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_named_as_the_specification_names_them() {
        assert_eq!(ReturnCode::BUSY.to_string(), "Busy (0006h)");
        assert_eq!(ReturnCode(0x99).to_string(), "return code 0099h");
        assert_eq!((0..=0x20).filter(|code| ReturnCode(*code).name().is_none()).count(), 0);
    }

    #[test]
    fn only_what_may_pass_is_tried_again() {
        let tried: Vec<u16> = (0..=0x21).filter(|code| ReturnCode(*code).disposition() == Disposition::Retry).collect();
        assert_eq!(tried, [0x05, 0x06, 0x08, 0x18, 0x1b]);
    }
}
