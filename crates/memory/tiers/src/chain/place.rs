// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A place in a chain: a level and a slab of the level, as the number that the table of places keeps.
//!
//! | bits  | what                                                                        |
//! |-------|-----------------------------------------------------------------------------|
//! | 0–2   | the level plus one; 0: the slab has no place, nothing was written to it      |
//! | 3     | 1: something was stored there. Before, the level may still refuse it         |
//! | 4–35  | the slab of that level                                                      |

use aquifer_core::units::REGION_BYTES;

const LEVEL: u64 = 7;
const STORED: u64 = 1 << 3;
const SLAB_SHIFT: u32 = 4;

/// The number of a slab within its level, not the number of the chain's slab that is stored in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LevelSlab(pub(super) u32);

impl LevelSlab {
    /// The offset of its first byte in its level.
    pub(super) fn offset(self) -> u64 {
        u64::from(self.0) * REGION_BYTES
    }
}

/// The slab has no place.
pub(super) const NOWHERE: u64 = 0;

/// A place in a chain: a level, and a slab of that level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) level: usize,
    pub(super) slab: LevelSlab,
    /// Something was stored there.
    pub(super) is_stored: bool,
}

impl Place {
    /// `None`: the slab has no place. The level and the slab need not exist: see `Levels::place`.
    pub(super) fn of(number: u64) -> Option<Place> {
        let level = (number & LEVEL).checked_sub(1)? as usize;
        let place = Place { level, slab: LevelSlab((number >> SLAB_SHIFT) as u32), is_stored: number & STORED != 0 };
        (place.number() == number).then_some(place)
    }

    pub(super) fn number(self) -> u64 {
        let stored = if self.is_stored { STORED } else { 0 };
        u64::from(self.slab.0) << SLAB_SHIFT | stored | (self.level as u64 + 1)
    }

    pub(super) fn stored(self) -> Place {
        Place { is_stored: true, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_from_their_numbers() {
        for number in [NOWHERE, STORED, 1 << SLAB_SHIFT, 1 << 36 | 1, u64::MAX] {
            assert_eq!(Place::of(number), None);
        }
        for (level, slab) in [(0, 0), (3, u32::MAX), (2, 77)] {
            let place = Place { level, slab: LevelSlab(slab), is_stored: false };
            assert_eq!(Place::of(place.number()), Some(place));
            assert_eq!(Place::of(place.stored().number()), Some(place.stored()));
            assert_ne!(place.number(), place.stored().number());
        }
    }
}
