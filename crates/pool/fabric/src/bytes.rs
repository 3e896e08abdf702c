// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! An amount of memory. People write it by the one rule for sizes, that of
//! [`ByteSize`](aquifer_core::units::ByteSize): `2MiB`, `16G`, `1.5TiB`, `16GB`.
//!
//! An amount is written in the largest unit that divides it, so that reading what was written gives the same amount.

use std::fmt;
use std::str::FromStr;

use aquifer_core::units::ByteSize;
use serde::{Deserialize, Serialize};

/// The unit in which a donor lends, as in `aquifer-wire`: one slab.
pub const SLAB: Bytes = Bytes(2 << 20);

/// Units by name, the largest first.
const UNITS: [(&str, u64); 6] =
    [("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// An amount of memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);

    /// Returns this many GiB.
    pub const fn gib(count: u64) -> Bytes {
        Bytes(count << 30)
    }

    /// Returns this many slabs.
    pub const fn slabs(count: u64) -> Bytes {
        Bytes(count * SLAB.0)
    }

    /// Returns whether it is a whole number of slabs.
    pub const fn is_whole_slabs(self) -> bool {
        self.0.is_multiple_of(SLAB.0)
    }

    /// Returns the next whole number of slabs.
    pub const fn round_up_to_slabs(self) -> Bytes {
        Bytes(self.0.div_ceil(SLAB.0).saturating_mul(SLAB.0))
    }

    /// Returns the sum, or the largest amount there is.
    pub const fn plus(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }

    /// Returns the difference, or nothing.
    pub const fn minus(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// Returns the product, or the largest amount there is.
    pub const fn times(self, factor: u64) -> Bytes {
        Bytes(self.0.saturating_mul(factor))
    }

    /// Returns this percentage of it, rounded down, or the largest amount there is.
    pub fn percent(self, percent: u16) -> Bytes {
        let exact = u128::from(self.0) * u128::from(percent) / 100;
        Bytes(u64::try_from(exact).unwrap_or(u64::MAX))
    }
}

impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(amounts: I) -> Bytes {
        amounts.fold(Bytes::ZERO, Bytes::plus)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit));
        let (name, unit) = unit.copied().unwrap_or(("B", 1));
        write!(f, "{}{name}", self.0 / unit)
    }
}

/// No size that people write is longer; what is longer is not repeated in messages as a whole.
const TEXT_MAX: usize = 40;

/// Why a text is not an amount of memory: one line with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotBytes(String);

impl NotBytes {
    /// Quotes a text that may come from anywhere: only its beginning, and without control characters.
    fn of_hostile(text: &str) -> NotBytes {
        let shown: String = text.chars().take(TEXT_MAX).flat_map(char::escape_debug).collect();
        NotBytes(format!("'{shown}' is not a size; write a number and a unit, for example 4GiB or 307MiB"))
    }
}

impl fmt::Display for NotBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotBytes {}

impl FromStr for Bytes {
    type Err = NotBytes;

    fn from_str(text: &str) -> Result<Bytes, NotBytes> {
        if text.len() > TEXT_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
            return Err(NotBytes::of_hostile(text));
        }
        text.parse::<ByteSize>().map(|size| Bytes(size.0)).map_err(NotBytes)
    }
}

impl TryFrom<String> for Bytes {
    type Error = NotBytes;

    fn try_from(text: String) -> Result<Bytes, NotBytes> {
        text.parse()
    }
}

impl From<Bytes> for String {
    fn from(bytes: Bytes) -> String {
        bytes.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_amount_is_read_as_the_same_amount() {
        for amount in [0, 1, 1023, 1024, 3 << 20, 5 << 30, (22 * 256) << 30, u64::MAX] {
            assert_eq!(Bytes(amount).to_string().parse(), Ok(Bytes(amount)));
        }
        assert_eq!(Bytes::gib(5632).to_string(), "5632GiB");
    }

    #[test]
    fn an_amount_is_read_by_the_rule_for_sizes() {
        for text in
            ["16GB", "16G", "16g", "16Gi", "16GiB", "16 GiB", "1.5TiB", "12", "15EiB", "", "4gib", "16EiB", "1e3"]
        {
            let size = text.parse::<ByteSize>();
            assert_eq!(
                text.parse::<Bytes>().map(|amount| amount.0).ok(),
                size.as_ref().ok().map(|size| size.0),
                "{text}"
            );
            assert_eq!(text.parse::<Bytes>().err().map(|failure| failure.to_string()), size.err(), "{text}");
        }
        assert_eq!("16GB".parse(), Ok(Bytes(16_000_000_000)));
    }

    #[test]
    fn text_that_is_no_amount_is_refused_with_the_remedy() {
        let long = "9".repeat(1 << 16);
        for text in ["", "GiB", "-1GiB", "1gib", "١GiB", "1\nGiB", "1\u{1b}[2JGiB", &long] {
            let failure = text.parse::<Bytes>().expect_err(text).to_string();
            assert!(failure.contains("is not a size; write a number and a unit"), "{failure}");
            assert!(failure.len() < 200 && !failure.contains(char::is_control), "{failure:?}");
        }
        for text in ["18446744073709551616B", "16384PiB"] {
            let failure = text.parse::<Bytes>().expect_err(text).to_string();
            assert!(failure.contains("give less than 16EiB"), "{failure}");
        }
    }

    #[test]
    fn sums_and_percentages_do_not_wrap() {
        assert_eq!(Bytes(u64::MAX).plus(SLAB), Bytes(u64::MAX));
        assert_eq!(Bytes(u64::MAX).percent(150), Bytes(u64::MAX));
        assert_eq!(Bytes(200).percent(150), Bytes(300));
        assert_eq!(Bytes(1).round_up_to_slabs(), SLAB);
    }
}
