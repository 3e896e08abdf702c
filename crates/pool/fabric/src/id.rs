// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Names and numbers of what the pool consists of, each its own type.
//!
//! A name is 1 to [`NAME_BYTES_MAX`] characters of `a`-`z`, `0`-`9`, `-`, `_` and `.`, and begins with a letter or a
//! digit. So no two names differ only by case or by Unicode characters that look alike, and no name has a special
//! meaning in a path, a URL or a shell.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest name: that of a DNS label, so that a host's name fits.
pub const NAME_BYTES_MAX: usize = 63;

/// Why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAName {
    /// The name contains a character that is not allowed in names.
    Character {
        /// The name, with escapes for what is not ASCII.
        name: String,
        /// The character that is not allowed.
        character: char,
    },
    /// The name has no characters.
    Empty,
    /// The name does not begin with a letter or a digit.
    Start(String),
    /// The name is longer than [`NAME_BYTES_MAX`].
    TooLong(usize),
}

impl fmt::Display for NotAName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Character { name, character } => {
                let shown = match character {
                    ' ' => "a space".to_owned(),
                    '!'..='~' => format!("'{character}'"),
                    _ => character.escape_unicode().to_string(),
                };
                write!(f, "name \"{name}\" contains {shown}; use only a-z, 0-9, '-', '_' and '.'")
            }
            Self::Empty => f.write_str("a name is empty; write 1 to 63 characters of a-z, 0-9, '-', '_' and '.'"),
            Self::Start(name) => write!(f, "name \"{name}\" does not begin with a letter or a digit; change its start"),
            Self::TooLong(bytes) => write!(f, "a name has {bytes} bytes; shorten it to {NAME_BYTES_MAX} at most"),
        }
    }
}

impl std::error::Error for NotAName {}

/// Checks a name. The error for a bad name is short and ASCII.
fn check(text: &str) -> Result<(), NotAName> {
    if text.is_empty() {
        return Err(NotAName::Empty);
    }
    if text.len() > NAME_BYTES_MAX {
        return Err(NotAName::TooLong(text.len()));
    }
    let allowed = |one: char| matches!(one, 'a'..='z' | '0'..='9' | '-' | '_' | '.');
    if let Some(character) = text.chars().find(|one| !allowed(*one)) {
        return Err(NotAName::Character { name: text.escape_default().to_string(), character });
    }
    if text.starts_with(['-', '_', '.']) {
        return Err(NotAName::Start(text.to_owned()));
    }
    Ok(())
}

macro_rules! names {
    ($($name:ident $meaning:literal,)+) => {$(
        #[doc = $meaning]
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = NotAName;

            fn from_str(text: &str) -> Result<Self, NotAName> {
                check(text).map(|()| Self(text.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = NotAName;

            fn try_from(text: String) -> Result<Self, NotAName> {
                check(&text).map(|()| Self(text))
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }
    )+};
}

names! {
    DeviceId "A CXL memory device: one logical device (SLD) or several (MLD).",
    DonorId "A host that lends memory.",
    EnclosureId "A chassis: hosts, switches or devices that share power and cooling.",
    HostId "A host that uses memory of the pool.",
    PoolId "A pool: donors and devices from which volumes are placed.",
    RackId "A rack.",
    SwitchId "A CXL switch.",
    VolumeName "What people call a volume.",
    ZoneId "A zone: the hosts and the quota of one tenant.",
}

macro_rules! numbers {
    ($($name:ident $of:ident $meaning:literal,)+) => {$(
        #[doc = $meaning]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $of);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

numbers! {
    Incarnation u64 "Which start of a donor or a host this is. A new one has none of the state of the one before.",
    LdId u16 "A logical device of a CXL memory device.",
    MemberId u64 "One member of a volume. Never given twice within its volume.",
    Millis u64 "An instant, in milliseconds since an epoch that the caller chooses.",
    PortId u8 "A physical port of a switch.",
    SpanId u32 "One span of a volume. Never given twice within its volume.",
    Term u64 "The term of an elected fabric manager, which alone may write. Greater than all terms before it.",
    Token u64 "A fencing token. Minted by the donor, greater than all that it has minted before.",
    VcsId u8 "A virtual CXL switch of a switch.",
    VppbId u8 "A virtual PCI-to-PCI bridge of a virtual CXL switch.",
}

/// The id of a volume, whatever its name. The caller draws it at random, so that it is not given twice even after the
/// state of a fabric manager was lost. As text, it is sixteen hexadecimal digits, since many JSON parsers cannot
/// represent every 64-bit number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeId(pub u64);

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Why a text is not a volume id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAVolumeId;

impl fmt::Display for NotAVolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a volume id is not 16 hexadecimal digits; copy it from `aquifer fabric volumes --json`")
    }
}

impl TryFrom<String> for VolumeId {
    type Error = NotAVolumeId;

    fn try_from(text: String) -> Result<VolumeId, NotAVolumeId> {
        let digits = text.len() == 16 && text.bytes().all(|one| matches!(one, b'0'..=b'9' | b'a'..=b'f'));
        let number = u64::from_str_radix(&text, 16).ok().filter(|_| digits);
        number.map(VolumeId).ok_or(NotAVolumeId)
    }
}

impl From<VolumeId> for String {
    fn from(id: VolumeId) -> String {
        id.to_string()
    }
}

/// Where a vPPB is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VppbAddress {
    /// The switch that has it.
    pub switch: SwitchId,
    /// The virtual CXL switch on it.
    pub vcs_id: VcsId,
    /// The vPPB's number in the virtual CXL switch.
    pub vppb_id: VppbId,
}

impl fmt::Display for VppbAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/vcs{}/vppb{}", self.switch, self.vcs_id, self.vppb_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_ascii() {
        for name in ["a", "0", "db-1.rack_3", &"x".repeat(63)] {
            assert_eq!(name.parse::<VolumeName>().expect(name).as_str(), name);
        }
        // Cyrillic a, full-width a, combining accent, right-to-left override, zero-width joiner, line separator, NUL.
        for name in
            ["\u{430}", "\u{ff41}", "a\u{301}", "a\u{202e}b", "a\u{200d}", "a\u{2028}", "a\0", "A", "a b", "a/b"]
        {
            let failure = name.parse::<VolumeName>().expect_err(name).to_string();
            assert!(failure.is_ascii() && failure.contains("use only a-z"), "{failure}");
        }
        for (name, shown) in [("a b", "a space;"), ("a/b", "'/';"), ("a\0", "\\u{0};")] {
            let failure = name.parse::<VolumeName>().expect_err(name).to_string();
            assert!(failure.contains(&format!("contains {shown}")), "{failure}");
        }
        assert_eq!("".parse::<VolumeName>(), Err(NotAName::Empty));
        assert_eq!(".a".parse::<VolumeName>(), Err(NotAName::Start(".a".into())));
        assert_eq!("x".repeat(64).parse::<VolumeName>(), Err(NotAName::TooLong(64)));
    }

    #[test]
    fn a_volume_id_is_sixteen_digits() {
        let id = VolumeId(0x0123_4567_89ab_cdef);
        assert_eq!(VolumeId::try_from(String::from(id)), Ok(id));
        for text in ["", "123", "+123456789abcdef", "0123456789ABCDEF"] {
            assert_eq!(VolumeId::try_from(text.to_owned()), Err(NotAVolumeId), "{text}");
        }
    }
}
