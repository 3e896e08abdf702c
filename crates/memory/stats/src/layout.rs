// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The layout of the segment, in words of 8 bytes, native byte order (it never leaves the machine). Golden file:
//! `tests/golden/layout_v3.txt`.
//!
//! | word  | words       | field     | meaning                                                     |
//! |-------|-------------|-----------|-------------------------------------------------------------|
//! | 0     | 1           | magic     | the bytes `AQUIFERS`                                        |
//! | 1     | 1           | version   | 3                                                           |
//! | 2     | 1           | size      | bytes of the segment                                        |
//! | 3     | 5           | –         | zero                                                        |
//! | 8     | 56          | counters  | one word each, in the order of [`Counter`]; spare ones zero |
//! | 64    | 46          | gauges    | one word each, in the order of [`Gauge`]; spare ones zero   |
//! | 110   | 2 x 9       | heat      | bytes by [`Place`], then by class of [`TEMPERATURES`]       |
//! | 128   | 2 + n each  | texts     | sequence, length, n words of UTF-8, in the order of [`Text`]|
//! | after | 2 + BUCKETS | latencies | sum, maximum, buckets, in the order of [`FaultKind`]        |
//! | after | 16 each     | levels    | of a chain of tiers, the fastest first: name (a text; empty where there is no such level), then [`LevelCounter`], then [`LevelGauge`] |
//! | after | 8 + 3 each  | curve     | the miss-ratio curve: sequence, number of points, the figures of [`CurveFigures`], then its points |
//!
//! Spare words are zero, so that a newer reader reads a counter that an older writer lacks as 0. Any change other than
//! appending to counters or gauges within their room needs a new version.

use crate::curve::CURVE_POINTS;
use crate::latency::BUCKETS;
use crate::names::{
    Counter, FaultKind, Gauge, LEVEL_NAME_BYTES, LEVELS, LevelCounter, LevelGauge, Place, TEMPERATURES, Text,
};

/// The first word of a segment.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"AQUIFERS");
/// The version of this layout.
pub const VERSION: u64 = 3;

/// Place of the magic.
pub const MAGIC_WORD: usize = 0;
/// Place of the version.
pub const VERSION_WORD: usize = 1;
/// Place of the size in bytes.
pub const SIZE_WORD: usize = 2;

const COUNTERS_WORD: usize = 8;
const GAUGES_WORD: usize = 64;
const HEAT_WORD: usize = TEXTS_WORD - Place::COUNT * TEMPERATURES.len();
const TEXTS_WORD: usize = 128;
const LATENCIES_WORD: usize = TEXTS_WORD + texts_words(Text::COUNT);
const LATENCY_WORDS: usize = 2 + BUCKETS;

const LEVELS_WORD: usize = LATENCIES_WORD + FaultKind::COUNT * LATENCY_WORDS;
const LEVEL_WORDS: usize = 16;
/// Words of a level's name: sequence, length and bytes.
pub const LEVEL_NAME_WORDS: usize = 2 + LEVEL_NAME_BYTES / 8;

/// Place of the miss-ratio curve: its sequence word.
pub const CURVE_WORD: usize = LEVELS_WORD + LEVELS * LEVEL_WORDS;
/// Words of a curve before its points, and of each point.
pub const CURVE_HEAD_WORDS: usize = 8;
pub const CURVE_POINT_WORDS: usize = 3;
/// Words of a curve.
pub const CURVE_WORDS: usize = CURVE_HEAD_WORDS + CURVE_POINTS * CURVE_POINT_WORDS;

/// Words of the whole segment.
pub const WORDS: usize = CURVE_WORD + CURVE_WORDS;
/// Bytes of the whole segment.
pub const BYTES: u64 = WORDS as u64 * 8;

const _: () = assert!(COUNTERS_WORD + Counter::COUNT <= GAUGES_WORD);
const _: () = assert!(GAUGES_WORD + Gauge::COUNT <= HEAT_WORD);
const _: () = assert!(LEVEL_NAME_WORDS + LevelCounter::COUNT + LevelGauge::COUNT <= LEVEL_WORDS);

/// Place of a counter.
pub const fn counter(counter: Counter) -> usize {
    COUNTERS_WORD + counter as usize
}

/// Place of a gauge.
pub const fn gauge(gauge: Gauge) -> usize {
    GAUGES_WORD + gauge as usize
}

/// Place of the bytes in a class of temperature.
pub const fn heat(place: Place, class: usize) -> usize {
    assert!(class < TEMPERATURES.len());
    HEAT_WORD + place as usize * TEMPERATURES.len() + class
}

/// Place of a text: its sequence word. Its length follows, then its bytes.
pub const fn text(text: Text) -> usize {
    TEXTS_WORD + texts_words(text as usize)
}

/// Place of a histogram: its sum word. Its maximum follows, then its buckets.
pub const fn latencies(kind: FaultKind) -> usize {
    LATENCIES_WORD + kind as usize * LATENCY_WORDS
}

/// Place of the name of a level's tier: its sequence word. Its length follows, then its bytes.
pub const fn level_name(level: usize) -> usize {
    assert!(level < LEVELS);
    LEVELS_WORD + level * LEVEL_WORDS
}

/// Place of a level's counter.
pub const fn level_counter(level: usize, counter: LevelCounter) -> usize {
    level_name(level) + LEVEL_NAME_WORDS + counter as usize
}

/// Place of a level's gauge.
pub const fn level_gauge(level: usize, gauge: LevelGauge) -> usize {
    level_name(level) + LEVEL_NAME_WORDS + LevelCounter::COUNT + gauge as usize
}

/// Words of the first `count` texts.
const fn texts_words(count: usize) -> usize {
    let mut words = 0;
    let mut index = 0;
    while index < count {
        words += 2 + Text::ALL[index].capacity_bytes() / 8;
        index += 1;
    }
    words
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    /// A change in an existing line breaks readers of running programs: raise the version in that case.
    #[test]
    fn the_layout_is_pinned() {
        let mut lines = format!("version {VERSION} words {WORDS} buckets {BUCKETS}\n");
        for name in Counter::ALL {
            writeln!(lines, "{} counter {}", counter(*name), name.name()).unwrap();
        }
        for name in Gauge::ALL {
            writeln!(lines, "{} gauge {}", gauge(*name), name.name()).unwrap();
        }
        for name in Place::ALL {
            writeln!(lines, "{} heat {} {}", heat(*name, 0), name.name(), TEMPERATURES.join(" ")).unwrap();
        }
        for name in Text::ALL {
            writeln!(lines, "{} text {} {}", text(*name), name.name(), name.capacity_bytes()).unwrap();
        }
        for name in FaultKind::ALL {
            writeln!(lines, "{} latencies {}", latencies(*name), name.name()).unwrap();
        }
        for level in 0..LEVELS {
            writeln!(lines, "{} level {level} name {LEVEL_NAME_BYTES}", level_name(level)).unwrap();
            for name in LevelCounter::ALL {
                writeln!(lines, "{} level {level} counter {}", level_counter(level, *name), name.name()).unwrap();
            }
            for name in LevelGauge::ALL {
                writeln!(lines, "{} level {level} gauge {}", level_gauge(level, *name), name.name()).unwrap();
            }
        }
        writeln!(lines, "{CURVE_WORD} curve {CURVE_HEAD_WORDS} {CURVE_POINTS} {CURVE_POINT_WORDS}").unwrap();
        let golden = include_str!("../tests/golden/layout_v3.txt");
        assert!(lines == golden, "the layout is not the golden one any more; it is now:\n{lines}");
    }

    #[test]
    fn no_two_fields_overlap() {
        for pair in Text::ALL.windows(2) {
            assert_eq!(text(pair[0]) + 2 + pair[0].capacity_bytes() / 8, text(pair[1]));
            assert_eq!(pair[0].capacity_bytes() % 8, 0);
        }
        assert_eq!(heat(Place::Resident, TEMPERATURES.len() - 1) + 1, heat(Place::Away, 0));
        assert_eq!(heat(Place::Away, TEMPERATURES.len() - 1) + 1, text(Text::Program));
        assert_eq!(text(Text::LastMessage) + 2 + Text::LastMessage.capacity_bytes() / 8, latencies(FaultKind::Fresh));
        assert_eq!(latencies(FaultKind::Wait) + 2 + BUCKETS, level_name(0));
        assert_eq!(level_name(1), level_name(0) + LEVEL_WORDS);
        assert_eq!(level_name(LEVELS - 1) + LEVEL_WORDS, CURVE_WORD);
        assert_eq!(CURVE_WORD + CURVE_WORDS, WORDS);
    }
}
