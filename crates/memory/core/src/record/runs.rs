// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Lists within an event, as runs of equal entries: which blocks were populated, and how each page's guard compares
//! with that of the tier's copy.
//!
//! Pure. A guard is 64 unpredictable bits, but the engine only ever asks whether it is zero and whether it equals the
//! stored guard. So one of three values for each page tells an engine everything, in a byte or two for a whole block; a
//! replay makes up guards that compare in the same way.
//!
//! A run is a varint: its kind in the low two bits, its length above them.

use super::event::{Reader, Sink, put_varint};
use crate::guard;
use crate::units::REGION_PAGES;

/// A page's guard, compared with that of the tier's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarded {
    /// The page is zero.
    Zero,
    /// The tier holds the same bytes.
    Same,
    /// The bytes are new.
    Other,
}

impl Guarded {
    pub(super) const ALL: [Guarded; 3] = [Guarded::Zero, Guarded::Same, Guarded::Other];

    /// Compares one page's guards.
    pub fn of(stored: u64, found: u64) -> Guarded {
        match found {
            guard::ZERO => Guarded::Zero,
            _ if found == stored => Guarded::Same,
            _ => Guarded::Other,
        }
    }

    /// A guard that compares in this way with `stored`. `number` is the event's.
    pub(super) fn guard(self, stored: u64, number: u64) -> u64 {
        match self {
            Guarded::Zero => guard::ZERO,
            Guarded::Same => stored,
            Guarded::Other => number + 1,
        }
    }
}

/// Maximum number of bytes that the runs of one block's guards take, when each page is a run by itself.
pub const GUARD_RUNS_BYTES: usize = REGION_PAGES as usize;

/// Runs in their encoded form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs<'a>(&'a [u8]);

impl<'a> Runs<'a> {
    /// Wraps runs that [`push_run`] has written.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Wraps runs from untrusted bytes: `None` when they are malformed, or have more than `max` entries in all.
    pub(super) fn checked(bytes: &'a [u8], max: u64) -> Option<Self> {
        let (mut reader, mut total) = (Reader::new(bytes), 0u64);
        while !reader.is_empty() {
            let run = reader.varint()?;
            total = total.checked_add(run >> 2)?;
            if run & 3 == 3 || run >> 2 == 0 || total > max {
                return None;
            }
        }
        Some(Self(bytes))
    }

    /// The encoded form.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Kind and length of each run.
    pub fn iter(self) -> impl Iterator<Item = (u8, u64)> + 'a {
        let mut reader = Reader::new(self.0);
        std::iter::from_fn(move || reader.varint().map(|run| ((run & 3) as u8, run >> 2)))
    }

    /// For each entry, whether its kind is not 0.
    pub fn flags(self) -> impl Iterator<Item = bool> + 'a {
        self.iter().flat_map(|(kind, len)| (0..len).map(move |_| kind != 0))
    }

    /// The comparison of each page's guard.
    pub fn guarded(self) -> impl Iterator<Item = Guarded> + 'a {
        let kind = |kind: u8| Guarded::ALL[usize::from(kind).min(Guarded::ALL.len() - 1)];
        self.iter().flat_map(move |(run, len)| (0..len).map(move |_| kind(run)))
    }
}

/// Writes one run.
pub fn push_run(sink: &mut impl Sink, kind: u8, len: u64) {
    put_varint(sink, len << 2 | u64::from(kind));
}

/// Writes the runs of one block's guards into `buffer`.
pub fn guard_runs<'a>(stored: &[u64], found: &[u64], buffer: &'a mut [u8; GUARD_RUNS_BYTES]) -> Runs<'a> {
    let mut sink = Slice { bytes: buffer, len: 0 };
    let (mut kind, mut len) = (Guarded::Zero, 0);
    for (stored, found) in stored.iter().zip(found) {
        let next = Guarded::of(*stored, *found);
        if next != kind && len > 0 {
            push_run(&mut sink, kind as u8, len);
            len = 0;
        }
        kind = next;
        len += 1;
    }
    if len > 0 {
        push_run(&mut sink, kind as u8, len);
    }
    let len = sink.len;
    Runs(&buffer[..len])
}

/// A slice that is filled from its start. If it is too short, its user has a bug.
struct Slice<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl Sink for Slice<'_> {
    fn put(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_compare_after_a_replay_as_they_did() {
        let stored = [0, 0, 7, 7, 7, u64::MAX, 9];
        let found = [0, 5, 7, 0, 8, 8, 9];
        let mut buffer = [0; GUARD_RUNS_BYTES];
        let runs = guard_runs(&stored, &found, &mut buffer);
        use Guarded::*;
        assert_eq!(runs.guarded().collect::<Vec<_>>(), [Zero, Other, Same, Zero, Other, Other, Same]);
        assert_eq!(Runs::checked(runs.bytes(), 7), Some(runs));
    }

    #[test]
    fn the_worst_block_fits_its_buffer() {
        let found: Vec<u64> = (0..u64::from(REGION_PAGES)).map(|page| page % 2).collect();
        let mut buffer = [0; GUARD_RUNS_BYTES];
        let runs = guard_runs(&vec![0; found.len()], &found, &mut buffer);
        assert_eq!(runs.bytes().len(), GUARD_RUNS_BYTES);
        assert_eq!(runs.guarded().filter(|guarded| *guarded == Guarded::Other).count(), found.len() / 2);
        let whole = vec![3; found.len()];
        let mut buffer = [0; GUARD_RUNS_BYTES];
        assert_eq!(guard_runs(&whole, &whole, &mut buffer).bytes().len(), 2);
    }

    #[test]
    fn malformed_runs_are_refused() {
        let run = |kind: u8, len: u64| {
            let mut bytes = Vec::new();
            push_run(&mut bytes, kind, len);
            bytes
        };
        assert!(Runs::checked(&run(2, 512), 512).is_some());
        for (bytes, why) in [
            (run(2, 513), "too long"),
            (run(3, 1), "no such kind"),
            (run(1, 0), "empty"),
            (vec![0x80], "cut short"),
            ([run(1, 400), run(0, 400)].concat(), "too long together"),
        ] {
            assert_eq!(Runs::checked(&bytes, 512), None, "{why}");
        }
    }
}
