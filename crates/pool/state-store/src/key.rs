// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A key: segments of plain ASCII, separated by `/`. Keys are ordered byte by byte.

use std::fmt;

/// Longest key: four names of 63 bytes with separators.
pub const KEY_BYTES_MAX: usize = 255;

/// A key of the store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

/// Why a text is not a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAKey(String);

impl fmt::Display for NotAKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.0.escape_default();
        write!(f, "\"{key}\" is not a key; use 1 to {KEY_BYTES_MAX} of a-z, A-Z, 0-9, '-', '_', '.' and '/'")
    }
}

impl std::error::Error for NotAKey {}

impl Key {
    /// Checks a text.
    pub fn new(text: impl Into<String>) -> Result<Key, NotAKey> {
        let text = text.into();
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/');
        match text.len() {
            1..=KEY_BYTES_MAX if text.bytes().all(is_allowed) => Ok(Key(text)),
            _ => Err(NotAKey(text.chars().take(KEY_BYTES_MAX).collect())),
        }
    }

    /// Returns the key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_plain_and_bounded() {
        assert_eq!(Key::new("a/B-1_.").expect("a key").as_str(), "a/B-1_.");
        for text in ["", "a b", "a\0", "\u{e4}", &"x".repeat(KEY_BYTES_MAX + 1)] {
            let failure = Key::new(text).expect_err(text).to_string();
            assert!(failure.is_ascii() && failure.contains("use 1 to 255"), "{failure}");
        }
    }
}
