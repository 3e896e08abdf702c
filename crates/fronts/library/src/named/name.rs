// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The names of named mappings, and of their files.
//!
//! Pure. A name is part of a file name, and must not be able to lead elsewhere.

/// The longest name. With the ending, it is still short enough for a file on every file system.
const NAME_BYTES_MAX: usize = 128;
/// What the names of the files end with.
const ENDING: &str = ".aquifer";

/// Returns whether a mapping can have this name: 1 to 128 letters, digits, `.`, `_` and `-` of ASCII, the first of
/// which is not `.`.
pub(super) fn is_valid(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain) && !name.starts_with('.')
}

/// Returns the file of the mapping.
pub(super) fn file_name(name: &str) -> String {
    format!("{name}{ENDING}")
}

/// Returns the file in which a process makes the mapping, before it is complete. No mapping can have this name.
pub(super) fn new_file_name(name: &str, process: u32, number: u64) -> String {
    format!(".{name}.{process}.{number}{ENDING}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_directory() {
        for good in ["a", "index-2", "Store_1.v2", &"n".repeat(128)] {
            assert!(is_valid(good), "{good}");
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "/etc/passwd", "a\0", "a b", "ü", "a\n", &"n".repeat(129)] {
            assert!(!is_valid(bad), "{bad:?}");
        }
        assert_eq!((file_name("a"), new_file_name("a", 7, 2)), ("a.aquifer".into(), ".a.7.2.aquifer".into()));
    }
}
