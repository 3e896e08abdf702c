// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The contents of pages and of the tier, reduced to a version number for each.
//!
//! Version 0 is zeros. A write creates a new version, so a page is dirty exactly while the tier has another version.

use std::collections::HashMap;

use aquifer_core::map::Pages;
use aquifer_core::record::{GUARD_RUNS_BYTES, Runs, guard_runs};
use aquifer_core::units::REGION_PAGES;

/// The pages of one region. Sparse: programs' mappings lie far apart.
#[derive(Clone)]
struct Region {
    now: [u32; REGION_PAGES as usize],
    stored: [u32; REGION_PAGES as usize],
}

/// Versions of all pages; see the module.
#[derive(Default)]
pub struct Contents {
    regions: HashMap<u64, Box<Region>>,
    versions: u32,
}

fn place(page: u64) -> (u64, usize) {
    (page / u64::from(REGION_PAGES), (page % u64::from(REGION_PAGES)) as usize)
}

impl Contents {
    fn region(&mut self, number: u64) -> &mut Region {
        let empty = || Box::new(Region { now: [0; REGION_PAGES as usize], stored: [0; REGION_PAGES as usize] });
        self.regions.entry(number).or_insert_with(empty)
    }

    /// The program writes to the pages.
    pub fn write(&mut self, pages: Pages) {
        // Never 0, even after a wrap.
        self.versions = self.versions.wrapping_add(1).max(1);
        let version = self.versions;
        for page in pages.start..pages.start + u64::from(pages.count) {
            let (region, index) = place(page);
            self.region(region).now[index] = version;
        }
    }

    /// The program discards the pages.
    pub fn forget(&mut self, start: u64, end: u64) {
        let mut page = start;
        while page < end {
            let (number, index) = place(page);
            let len = (u64::from(REGION_PAGES) - index as u64).min(end - page) as usize;
            if let Some(region) = self.regions.get_mut(&number) {
                region.now[index..index + len].fill(0);
                region.stored[index..index + len].fill(0);
            }
            page += len as u64;
        }
    }

    /// Compares the pages with the tier's copies, and returns how many must be written: those that differ and are not
    /// zeros.
    pub fn compare<'a>(&mut self, pages: Pages, buffer: &'a mut [u8; GUARD_RUNS_BYTES]) -> (Runs<'a>, u64) {
        let (mut stored, mut now) = ([0u64; REGION_PAGES as usize], [0u64; REGION_PAGES as usize]);
        for (index, page) in (pages.start..pages.start + u64::from(pages.count)).enumerate() {
            let (region, at) = place(page);
            let region = self.region(region);
            (stored[index], now[index]) = (region.stored[at].into(), region.now[at].into());
        }
        let (stored, now) = (&stored[..pages.count as usize], &now[..pages.count as usize]);
        let dirty = stored.iter().zip(now).filter(|(stored, now)| stored != now && **now != 0).count();
        (guard_runs(stored, now, buffer), dirty as u64)
    }

    /// Copies the pages' versions to the tier.
    pub fn store(&mut self, pages: Pages) {
        for page in pages.start..pages.start + u64::from(pages.count) {
            let (region, index) = place(page);
            let region = self.region(region);
            region.stored[index] = region.now[index];
        }
    }

    /// Whether the tier's copies equal the pages' contents, as a fetch requires.
    pub fn are_stored(&mut self, pages: Pages) -> bool {
        (pages.start..pages.start + u64::from(pages.count)).all(|page| {
            let (region, index) = place(page);
            let region = self.region(region);
            region.stored[index] == region.now[index]
        })
    }
}

#[cfg(test)]
mod tests {
    use aquifer_core::record::Guarded;

    use super::*;

    #[test]
    fn pages_are_dirty_from_a_write_until_they_are_stored() {
        let (mut contents, mut buffer) = (Contents::default(), [0; GUARD_RUNS_BYTES]);
        let pages = Pages { start: 510, count: 4 };
        contents.write(Pages { start: 511, count: 2 });
        let (runs, dirty) = contents.compare(pages, &mut buffer);
        assert_eq!(
            (runs.guarded().collect::<Vec<_>>(), dirty),
            (vec![Guarded::Zero, Guarded::Other, Guarded::Other, Guarded::Zero], 2)
        );
        assert!(!contents.are_stored(pages));
        contents.store(pages);
        assert!(contents.are_stored(pages));
        contents.write(Pages { start: 512, count: 1 });
        let (runs, dirty) = contents.compare(pages, &mut buffer);
        assert_eq!(runs.guarded().nth(1), Some(Guarded::Same));
        assert_eq!(dirty, 1);
        contents.forget(500, 1200);
        assert_eq!(contents.compare(pages, &mut buffer).1, 0);
    }
}
