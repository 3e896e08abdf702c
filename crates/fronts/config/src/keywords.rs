// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The settings whose values are words: policy, delivery, exchange, block size.
//!
//! Each word is written once, in the table of its type; the command line, the configuration and the messages use that
//! table.
//!
//! [`PolicyName`] here is only a word. `preload/src/start.rs` parses that word as the `PolicyName` of
//! `core/src/policy.rs`, which builds the policy; so the words of the two types must be the same.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A word that a setting does not accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWord {
    /// The word that was given.
    pub word: String,
    /// The words that the setting accepts.
    pub choices: &'static str,
}

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is not one of {}", self.word, self.choices)
    }
}

impl std::error::Error for UnknownWord {}

/// Defines an enum whose variants are words, with the same word in text and in JSON.
macro_rules! words {
    (
        $(#[$meta:meta])* $name:ident, $choices:literal,
        $($(#[$variant_meta:meta])* $variant:ident = $word:literal,)+
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_meta])* $variant,)+
        }

        impl $name {
            /// Every choice.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];
            /// The choices, as a message lists them.
            pub const CHOICES: &'static str = $choices;

            /// Returns the word for this choice.
            pub const fn word(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }

        impl FromStr for $name {
            type Err = UnknownWord;

            fn from_str(word: &str) -> Result<Self, UnknownWord> {
                let found = Self::ALL.iter().find(|choice| choice.word() == word);
                found.copied().ok_or_else(|| UnknownWord { word: word.to_owned(), choices: Self::CHOICES })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.word())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

words!(
    /// Which policy chooses the blocks to evict.
    PolicyName, "s3fifo, clock, lru, fifo",
    /// S3-FIFO, which withstands scans.
    #[default]
    S3Fifo = "s3fifo",
    /// CLOCK, which gives a block that was used a second chance.
    Clock = "clock",
    /// Least recently used, as far as refaults and rescues reveal it.
    Lru = "lru",
    /// First in, first out.
    Fifo = "fifo",
);

words!(
    /// Who resolves a fault.
    Delivery, "auto, signal, listener",
    /// The pager decides for each mapping.
    #[default]
    Auto = "auto",
    /// The faulting thread itself, notified by a signal.
    Signal = "signal",
    /// A thread of the pager, notified by the userfaultfd.
    Listener = "listener",
);

words!(
    /// How a block's pages move to and from the program's address.
    Exchange, "auto, move, copy",
    /// The pager moves pages where the kernel can, and copies them elsewhere.
    #[default]
    Auto = "auto",
    /// The pager moves pages by `UFFDIO_MOVE`, which neither allocates nor copies. Needs Linux 6.8.
    Move = "move",
    /// The pager copies pages, by `UFFDIO_COPY` and `MADV_DONTNEED`.
    Copy = "copy",
);

words!(
    /// The processes that share one budget.
    Budget, "tree, process",
    /// The program and all processes that it starts, together.
    #[default]
    Tree = "tree",
    /// Each process has a budget of its own.
    Process = "process",
);

/// How many bytes move together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockSize {
    /// The pager learns the size for each range from its accesses.
    #[default]
    Auto,
    /// Always this many bytes: a power of two from [`BlockSize::MIN`] to [`BlockSize::MAX`].
    Bytes(u64),
}

impl BlockSize {
    /// The smallest block: one page.
    pub const MIN: u64 = 4 << 10;
    /// The largest block: one region of the block map.
    pub const MAX: u64 = 2 << 20;

    /// Returns a fixed block size, if `bytes` is a valid one.
    pub fn of_bytes(bytes: u64) -> Option<BlockSize> {
        let fits = bytes.is_power_of_two() && (Self::MIN..=Self::MAX).contains(&bytes);
        fits.then_some(BlockSize::Bytes(bytes))
    }
}

impl Serialize for BlockSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            BlockSize::Auto => serializer.serialize_str("auto"),
            BlockSize::Bytes(bytes) => serializer.serialize_u64(*bytes),
        }
    }
}

impl<'de> Deserialize<'de> for BlockSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = BlockSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\" or a power of two of bytes from 4096 to 2097152")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<BlockSize, E> {
                if word == "auto" {
                    Ok(BlockSize::Auto)
                } else {
                    Err(E::invalid_value(de::Unexpected::Str(word), &self))
                }
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<BlockSize, E> {
                BlockSize::of_bytes(bytes).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(bytes), &self))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_reads_back_and_is_listed() {
        for choice in PolicyName::ALL {
            assert_eq!(choice.word().parse(), Ok(*choice));
            assert!(PolicyName::CHOICES.split(", ").any(|word| word == choice.word()));
        }
        for choice in Delivery::ALL {
            assert_eq!(choice.word().parse(), Ok(*choice));
            assert!(Delivery::CHOICES.split(", ").any(|word| word == choice.word()));
        }
        for choice in Budget::ALL {
            assert_eq!(choice.word().parse(), Ok(*choice));
            assert!(Budget::CHOICES.split(", ").any(|word| word == choice.word()));
        }
        for choice in Exchange::ALL {
            assert_eq!(choice.word().parse(), Ok(*choice));
            assert!(Exchange::CHOICES.split(", ").any(|word| word == choice.word()));
        }
    }

    #[test]
    fn an_unknown_word_names_the_choices() {
        let error = "mru".parse::<PolicyName>().unwrap_err();
        assert_eq!(error.to_string(), "'mru' is not one of s3fifo, clock, lru, fifo");
    }

    #[test]
    fn only_powers_of_two_in_range_are_block_sizes() {
        assert_eq!(BlockSize::of_bytes(4096), Some(BlockSize::Bytes(4096)));
        assert_eq!(BlockSize::of_bytes(2 << 20), Some(BlockSize::Bytes(2 << 20)));
        for bytes in [0, 1, 2048, 5000, 12288, 4 << 20] {
            assert_eq!(BlockSize::of_bytes(bytes), None, "{bytes}");
        }
    }
}
