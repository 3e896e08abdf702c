// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the table of a compressed tier says about one page: one word.
//!
//! Pure. Related processes share the table and may overwrite it, so every word is a valid entry; the store checks that
//! the record exists.
//!
//! | bits  | what                                                                               |
//! |-------|------------------------------------------------------------------------------------|
//! | 0–2   | the kind, see [`Kind`]; other numbers count as nothing stored                       |
//! | 3–12  | the version: the number of times that the entry has changed, for readers            |
//! | 13–63 | of a page that repeats one small value: the value                                   |
//! | 13–24 | of a record: the number of its bytes, less one                                      |
//! | 25–63 | of a record: where it starts, in units of [`UNIT_BYTES`]                            |

use aquifer_tier::PAGE;

/// Records start at multiples of this many bytes.
pub(super) const UNIT_BYTES: usize = 4;
/// Where records can start, at most: 2 TiB.
pub(super) const UNITS_MAX: u64 = 1 << (64 - UNIT_SHIFT);
/// A record starts with the number of its page, for the cleaner; then come its bytes.
pub(super) const HEADER_BYTES: usize = 4;
/// How many pages such a number can tell apart: 16 TiB.
pub(super) const PAGES_MAX: u64 = 1 << (8 * HEADER_BYTES);

const KIND: u64 = 7;
const VERSION_SHIFT: u32 = 3;
const VERSION: u64 = 0x3ff << VERSION_SHIFT;
const VALUE_SHIFT: u32 = 13;
const LEN_SHIFT: u32 = 13;
const UNIT_SHIFT: u32 = 25;

/// How the bytes of a record become a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// By LZ4.
    Lz4,
    /// They are the page.
    Raw,
    /// They are 8 bytes, which the page repeats.
    Repeated,
    /// By Zstandard.
    Zstd,
}

/// The stored form of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// Nothing: the page may read as anything.
    Nothing,
    /// A page that repeats this value. It has no record.
    Value(u64),
    /// A record.
    Record(Record),
}

/// Where the bytes of a page are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: Kind,
    /// The number of its bytes, from 1 to [`PAGE`], without the header.
    pub(super) len: usize,
    /// The unit at which its header starts.
    pub(super) unit: u64,
}

/// One word of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry(pub(super) u64);

impl Kind {
    const fn number(self) -> u64 {
        match self {
            Kind::Raw => 2,
            Kind::Lz4 => 3,
            Kind::Zstd => 4,
            Kind::Repeated => 5,
        }
    }

    fn of(number: u64) -> Option<Kind> {
        [Kind::Raw, Kind::Lz4, Kind::Zstd, Kind::Repeated].into_iter().find(|kind| kind.number() == number)
    }
}

impl Stored {
    /// A page that repeats `value`, if the value fits into an entry.
    pub(super) fn value(value: u64) -> Option<Stored> {
        (value >> (64 - VALUE_SHIFT) == 0).then_some(Stored::Value(value))
    }
}

impl Record {
    /// The units that a record of `len` bytes takes, with its header.
    pub(super) fn units_of(len: usize) -> u32 {
        (HEADER_BYTES + len).div_ceil(UNIT_BYTES) as u32
    }

    pub(super) fn units(&self) -> u32 {
        Self::units_of(self.len)
    }

    /// The offset of its bytes in the file.
    pub(super) fn offset(&self) -> u64 {
        self.unit * UNIT_BYTES as u64 + HEADER_BYTES as u64
    }
}

impl Entry {
    pub(super) fn stored(self) -> Stored {
        let Entry(word) = self;
        match (word & KIND, Kind::of(word & KIND)) {
            (1, _) => Stored::Value(word >> VALUE_SHIFT),
            (_, Some(kind)) => {
                let len = (word >> LEN_SHIFT) as usize % PAGE + 1;
                Stored::Record(Record { kind, len, unit: word >> UNIT_SHIFT })
            }
            (_, None) => Stored::Nothing,
        }
    }

    /// The entry that says `stored`, and that differs from `self`, which it replaces.
    pub(super) fn next(self, stored: Stored) -> Entry {
        let version = self.0.wrapping_add(1 << VERSION_SHIFT) & VERSION;
        Entry(
            version
                | match stored {
                    Stored::Nothing => 0,
                    Stored::Value(value) => value << VALUE_SHIFT | 1,
                    Stored::Record(Record { kind, len, unit }) => {
                        unit << UNIT_SHIFT | (len as u64 - 1) << LEN_SHIFT | kind.number()
                    }
                },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_say_what_was_put_into_them() {
        let record = |kind, len, unit| Stored::Record(Record { kind, len, unit });
        let all = [
            Stored::Nothing,
            Stored::value(0).unwrap(),
            Stored::value((1 << 51) - 1).unwrap(),
            record(Kind::Raw, PAGE, UNITS_MAX - 1),
            record(Kind::Lz4, 1, 0),
            record(Kind::Zstd, 3000, 77),
            record(Kind::Repeated, 8, 1 << 30),
        ];
        let mut entry = Entry(0);
        for stored in all.into_iter().cycle().take(5000) {
            let next = entry.next(stored);
            assert_eq!(next.stored(), stored);
            assert_ne!(next, entry);
            entry = next;
        }
        assert_eq!(Stored::value(1 << 51), None);
    }

    #[test]
    fn every_word_is_an_entry() {
        for word in (0..64).flat_map(|bit| [1 << bit, !(1 << bit), (1u64 << bit) - 1]) {
            match Entry(word).stored() {
                Stored::Record(record) => assert!((1..=PAGE).contains(&record.len) && record.unit < UNITS_MAX),
                Stored::Value(value) => assert!(Stored::value(value).is_some()),
                Stored::Nothing => {}
            }
        }
    }
}
