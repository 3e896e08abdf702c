// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads the elements of DER (X.690), one after the other: names in certificates (`identity.rs`), and what revocation
//! lists say about themselves (`revocations.rs`). Pure. No input causes a panic.

pub(crate) const BIT_STRING: u8 = 0x03;
pub(crate) const BOOLEAN: u8 = 0x01;
pub(crate) const GENERALIZED_TIME: u8 = 0x18;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const OBJECT_IDENTIFIER: u8 = 0x06;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const UTC_TIME: u8 = 0x17;

/// The unread rest of some DER.
#[derive(Clone, Copy)]
pub(crate) struct Der<'a>(pub(crate) &'a [u8]);

impl<'a> Der<'a> {
    /// The next element: its tag and its contents.
    pub(crate) fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], mut rest) = self.0.split_first_chunk::<2>()?;
        let mut length = usize::from(first);
        if first >= 0x80 {
            let digits = usize::from(first & 0x7f);
            if !(1..=4).contains(&digits) || rest.len() < digits {
                return None;
            }
            let (digits, after) = rest.split_at(digits);
            length = digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit));
            rest = after;
        }
        let (contents, after) = rest.split_at_checked(length)?;
        self.0 = after;
        Some((tag, contents))
    }

    /// The contents of the next element, which must have this tag.
    pub(crate) fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, contents)| contents)
    }

    /// The next element with its tag and length; it must have this tag.
    pub(crate) fn take_whole(&mut self, tag: u8) -> Option<&'a [u8]> {
        let before = self.0;
        self.take(tag)?;
        Some(&before[..before.len() - self.0.len()])
    }

    /// Skips the next element if it has this tag.
    pub(crate) fn skip(&mut self, tag: u8) {
        if self.0.first() == Some(&tag) {
            let _ = self.next();
        }
    }
}
