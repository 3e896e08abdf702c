// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! An amount of memory, in text a whole number with its unit: `2MiB`. `5.6TiB` is refused, since the number is not
//! whole.
//!
//! An amount is written in the largest unit that divides it, so that reading what was written gives the same amount.

use std::fmt;
use std::str::FromStr;

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
    /// Nothing.
    pub const ZERO: Bytes = Bytes(0);

    /// This many GiB.
    pub const fn gib(count: u64) -> Bytes {
        Bytes(count << 30)
    }

    /// This many slabs.
    pub const fn slabs(count: u64) -> Bytes {
        Bytes(count * SLAB.0)
    }

    /// Whether it is a whole number of slabs.
    pub const fn is_whole_slabs(self) -> bool {
        self.0.is_multiple_of(SLAB.0)
    }

    /// The next whole number of slabs.
    pub const fn round_up_to_slabs(self) -> Bytes {
        Bytes(self.0.div_ceil(SLAB.0).saturating_mul(SLAB.0))
    }

    /// The sum, or the largest amount there is.
    pub const fn plus(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }

    /// The difference, or nothing.
    pub const fn minus(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// The product, or the largest amount there is.
    pub const fn times(self, factor: u64) -> Bytes {
        Bytes(self.0.saturating_mul(factor))
    }

    /// This percentage of it, rounded down, or the largest amount there is.
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

/// Why a text is not an amount of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotBytes(String);

impl fmt::Display for NotBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a size; write a whole number and a unit (B, KiB, MiB, GiB, TiB, PiB)",
            self.0.escape_debug()
        )
    }
}

impl std::error::Error for NotBytes {}

impl FromStr for Bytes {
    type Err = NotBytes;

    fn from_str(text: &str) -> Result<Bytes, NotBytes> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, name) = text.split_at(digits);
        let unit = UNITS.iter().find(|(unit, _)| *unit == name).map(|(_, unit)| *unit);
        let amount = number.parse::<u64>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
        amount.map(Bytes).ok_or_else(|| NotBytes(text.chars().take(40).collect()))
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
    fn text_that_is_no_amount_is_refused_with_the_remedy() {
        for text in ["", "12", "GiB", "-1GiB", "1.5GiB", "1gib", "18446744073709551616B", "16384PiB", "١GiB"] {
            let failure = text.parse::<Bytes>().expect_err(text).to_string();
            assert!(failure.contains("write a whole number and a unit"), "{failure}");
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
