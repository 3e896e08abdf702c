// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Parses the kernel's lists of numbers: `0-3,8`.
//!
//! Pure. See the kernel's `Documentation/core-api/printk-formats.rst` on `%*pbl`.

/// The largest number in a list. The kernel allows at most 1024 nodes and 8192 CPUs.
const NUMBER_MAX: u32 = 65_535;

/// The numbers of a list, in its order. An empty text is an empty list. `None` if it is not a list.
pub fn number_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > NUMBER_MAX {
            return None;
        }
        numbers.extend(first..=last);
        if numbers.len() > NUMBER_MAX as usize + 1 {
            return None;
        }
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_single_numbers_are_read() {
        for (text, numbers) in
            [("", &[][..]), ("0", &[0]), ("0-2,5\n", &[0, 1, 2, 5]), ("3,1", &[3, 1]), ("65535", &[65535])]
        {
            assert_eq!(number_list(text).as_deref(), Some(numbers), "{text}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused_and_never_grows() {
        for text in ["a", "1-", "-1", "2-1", "0-4294967295", "1,,2", ",", "65536", "0x1"] {
            assert_eq!(number_list(text), None, "{text}");
        }
        assert_eq!(number_list(&["0-65535"; 9].join(",")), None);
    }
}
