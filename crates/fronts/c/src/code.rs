// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The numbers of errors, and which errors of the crate `aquifer` they stand for.
//!
//! A number is never given another meaning. `tests/abi/symbols.rs` compares this list with `enum aquifer_error`.

use std::ffi::{CStr, c_int};

use aquifer::{CloseError, Error, NamedError, OpenError};

macro_rules! codes {
    ($($name:ident = $number:literal, $text:literal;)+) => {
        /// The numbers that calls return.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        #[non_exhaustive]
        pub enum Code {
            $(#[doc = $text] $name = $number,)+
        }

        impl Code {
            /// All of them.
            pub const ALL: &'static [Code] = &[$(Code::$name),+];

            /// Returns its name in `aquifer.h`.
            pub fn name(self) -> &'static CStr {
                let name = match self {
                    $(Code::$name => concat!($text, "\0"),)+
                };
                CStr::from_bytes_with_nul(name.as_bytes()).expect("each name ends with the only zero")
            }
        }
    };
}

codes! {
    Ok = 0, "AQUIFER_OK";
    Argument = -1, "AQUIFER_ERR_ARGUMENT";
    Handle = -2, "AQUIFER_ERR_HANDLE";
    TooManyHandles = -3, "AQUIFER_ERR_TOO_MANY_HANDLES";
    Unsupported = -4, "AQUIFER_ERR_UNSUPPORTED";
    Internal = -5, "AQUIFER_ERR_INTERNAL";
    Timeout = -6, "AQUIFER_ERR_TIMEOUT";
    BeyondBudget = -10, "AQUIFER_ERR_BEYOND_BUDGET";
    BufferSize = -11, "AQUIFER_ERR_BUFFER_SIZE";
    Closed = -12, "AQUIFER_ERR_CLOSED";
    EmptyRange = -13, "AQUIFER_ERR_EMPTY_RANGE";
    Ended = -14, "AQUIFER_ERR_ENDED";
    Forked = -15, "AQUIFER_ERR_FORKED";
    Lost = -16, "AQUIFER_ERR_LOST";
    MappingSize = -17, "AQUIFER_ERR_MAPPING_SIZE";
    NoRoom = -18, "AQUIFER_ERR_NO_ROOM";
    OutOfRange = -19, "AQUIFER_ERR_OUT_OF_RANGE";
    Pinned = -20, "AQUIFER_ERR_PINNED";
    PinnedTooMuch = -21, "AQUIFER_ERR_PINNED_TOO_MUCH";
    System = -22, "AQUIFER_ERR_SYSTEM";
    Unaligned = -23, "AQUIFER_ERR_UNALIGNED";
    Other = -24, "AQUIFER_ERR_OTHER";
    InUse = -30, "AQUIFER_ERR_IN_USE";
    NoAnswer = -31, "AQUIFER_ERR_NO_ANSWER";
    BlockSize = -40, "AQUIFER_ERR_BLOCK_SIZE";
    Dram = -41, "AQUIFER_ERR_DRAM";
    Policy = -42, "AQUIFER_ERR_POLICY";
    Start = -43, "AQUIFER_ERR_START";
    Tier = -44, "AQUIFER_ERR_TIER";
    TierSpec = -45, "AQUIFER_ERR_TIER_SPEC";
    AlreadyOpen = -50, "AQUIFER_ERR_ALREADY_OPEN";
    BadName = -51, "AQUIFER_ERR_BAD_NAME";
    Damaged = -52, "AQUIFER_ERR_DAMAGED";
    FullDisk = -53, "AQUIFER_ERR_FULL_DISK";
    NoDirectory = -54, "AQUIFER_ERR_NO_DIRECTORY";
    NotFound = -55, "AQUIFER_ERR_NOT_FOUND";
    NotNamed = -56, "AQUIFER_ERR_NOT_NAMED";
    NotOurs = -57, "AQUIFER_ERR_NOT_OURS";
    OtherSize = -58, "AQUIFER_ERR_OTHER_SIZE";
    Refused = -59, "AQUIFER_ERR_REFUSED";
    TooManyNamed = -60, "AQUIFER_ERR_TOO_MANY_NAMED";
    Truncated = -61, "AQUIFER_ERR_TRUNCATED";
    Unfinished = -62, "AQUIFER_ERR_UNFINISHED";
    Version = -63, "AQUIFER_ERR_VERSION";
    Replaced = -64, "AQUIFER_ERR_REPLACED";
    Unmanaged = -70, "AQUIFER_ERR_UNMANAGED";
}

/// The value of `AQUIFER_PENDING`.
pub const PENDING: c_int = 1;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What the call returns.
    pub code: Code,
    /// One line with cause and remedy.
    pub message: String,
    /// The kernel's error number if the kernel has refused, otherwise 0.
    pub errno: c_int,
}

impl Failure {
    /// Creates a failure of the interface itself.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), errno: 0 }
    }

    /// Returns an invalid argument.
    pub fn argument(message: impl Into<String>) -> Self {
        Self::new(Code::Argument, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (code, errno) = match error {
            Error::BeyondBudget { .. } => (Code::BeyondBudget, 0),
            Error::BlockSize { .. } => (Code::BlockSize, 0),
            Error::BufferSize { .. } => (Code::BufferSize, 0),
            Error::Closed => (Code::Closed, 0),
            Error::EmptyRange => (Code::EmptyRange, 0),
            Error::Ended(_) => (Code::Ended, 0),
            Error::Forked => (Code::Forked, 0),
            Error::Lost => (Code::Lost, 0),
            Error::MappingSize { .. } => (Code::MappingSize, 0),
            Error::NoRoom => (Code::NoRoom, 0),
            Error::OutOfRange { .. } => (Code::OutOfRange, 0),
            Error::Pinned => (Code::Pinned, 0),
            Error::PinnedTooMuch { .. } => (Code::PinnedTooMuch, 0),
            Error::System { errno } => (Code::System, errno),
            Error::Unaligned { .. } => (Code::Unaligned, 0),
            _ => (Code::Other, 0),
        };
        Self { code, message: error.to_string(), errno }
    }
}

impl From<NamedError> for Failure {
    fn from(error: NamedError) -> Self {
        let code = match &error {
            NamedError::Memory(_) => Code::Other,
            NamedError::AlreadyOpen => Code::AlreadyOpen,
            NamedError::BadName => Code::BadName,
            NamedError::Damaged { .. } => Code::Damaged,
            NamedError::FullDisk => Code::FullDisk,
            NamedError::NoDirectory => Code::NoDirectory,
            NamedError::NotFound => Code::NotFound,
            NamedError::NotNamed => Code::NotNamed,
            NamedError::NotOurs => Code::NotOurs,
            NamedError::OtherSize { .. } => Code::OtherSize,
            NamedError::Refused(_) => Code::Refused,
            NamedError::Replaced => Code::Replaced,
            NamedError::System { .. } => Code::System,
            NamedError::TooMany => Code::TooManyNamed,
            NamedError::Truncated => Code::Truncated,
            NamedError::Unfinished => Code::Unfinished,
            NamedError::Version { .. } => Code::Version,
            _ => Code::Other,
        };
        let message = match &error {
            NamedError::NoDirectory => "no directory for named mappings; set `named_in` of the options".to_owned(),
            NamedError::NotFound => "there is no mapping with this name; create it with aquifer_map_named()".to_owned(),
            NamedError::NotNamed => {
                "the mapping has no name, and so no file; create it with aquifer_map_named()".to_owned()
            }
            NamedError::OtherSize { bytes, asked_bytes } => format!(
                "the named mapping has {bytes} bytes, not {asked_bytes}; open it with 0 bytes, or choose another name"
            ),
            other => other.to_string(),
        };
        match error {
            NamedError::Memory(error) => error.into(),
            NamedError::System { errno, .. } => Self { code, message, errno },
            _ => Self::new(code, message),
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let (code, message) = match &error {
            OpenError::BlockSize(_) => (Code::BlockSize, error.to_string()),
            OpenError::Dram(_) => (Code::Dram, error.to_string()),
            OpenError::NoDram => (Code::Dram, "no budget of DRAM; set `dram` to \"1GiB\", for example".to_owned()),
            OpenError::NoTier => {
                (Code::TierSpec, "no tier; give `tiers` one, \"flash:/var/tmp/cold\" for example".to_owned())
            }
            OpenError::Policy(_) => (Code::Policy, error.to_string()),
            OpenError::Start(_) => (Code::Start, error.to_string()),
            OpenError::Tier(_) => (Code::Tier, error.to_string()),
            OpenError::TierSpec(_) => (Code::TierSpec, error.to_string()),
            _ => (Code::Other, error.to_string()),
        };
        Self::new(code, message)
    }
}

impl From<CloseError> for Failure {
    fn from(error: CloseError) -> Self {
        match error {
            CloseError::InUse => {
                Self::new(Code::InUse, "the space is in use; it closes when its mappings, pins and gathers are closed")
            }
            CloseError::NoAnswer => Self::new(Code::NoAnswer, error.to_string()),
            _ => Self::new(Code::Other, error.to_string()),
        }
    }
}
