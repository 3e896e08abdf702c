// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Checks the ranges that callers give.

use std::ops::{Bound, Range, RangeBounds};

use aquifer_core::units::PAGE_BYTES;

use crate::Error;

/// Bytes of a page.
pub(crate) const PAGE: usize = PAGE_BYTES as usize;

/// Checks a range against a mapping of `len` bytes, and returns it as two numbers. It may be empty.
pub(crate) fn within(range: impl RangeBounds<usize>, len: usize) -> Result<Range<usize>, Error> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len,
    };
    if start > end || end > len { Err(Error::OutOfRange { start, end, len }) } else { Ok(start..end) }
}

/// Works like [`within`], and also refuses a range of no bytes.
pub(crate) fn some_of(range: impl RangeBounds<usize>, len: usize) -> Result<Range<usize>, Error> {
    within(range, len).and_then(|range| if range.is_empty() { Err(Error::EmptyRange) } else { Ok(range) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_within_the_mapping_or_refused() {
        assert_eq!(within(.., 10), Ok(0..10));
        assert_eq!(within(3..=9, 10), Ok(3..10));
        assert_eq!(within((Bound::Excluded(3), Bound::Unbounded), 10), Ok(4..10));
        assert_eq!(within(10..10, 10), Ok(10..10));
        assert_eq!(some_of(10..10, 10), Err(Error::EmptyRange));
        #[expect(clippy::reversed_empty_ranges, reason = "as a caller may give it")]
        let reversed = within(5..4, 10);
        assert_eq!(reversed, Err(Error::OutOfRange { start: 5, end: 4, len: 10 }));
        for bad in [within(0..11, 10), within(11.., 10), within(0..=usize::MAX, 10)] {
            assert!(matches!(bad, Err(Error::OutOfRange { len: 10, .. })), "{bad:?}");
        }
    }
}
