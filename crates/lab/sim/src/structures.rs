// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Traces of programs whose use of memory differs from place to place, or changes: every visit is to one page.
//!
//! They show whether block sizes follow the use of each range: a log that is scanned wants large blocks, a table that
//! is read at random wants pages, and one program can have both.

use crate::random::{Random, Zipf};
use crate::workload::{BLOCK_PAGES, Touch, Trace};

/// The exponent of Zipf's law for popular pages and clusters.
const EXPONENT: f64 = 0.99;
/// How many adjacent pages of a block of the index one visit reads, of [`BLOCK_PAGES`].
const CLUSTER_PAGES: u32 = 12;
/// Visits to pages of the log and of the table for one visit to a cluster of the index.
const LOG_VISITS: u32 = 24;
const TABLE_VISITS: u32 = 12;
/// Scans after the random use that are counted, and before them those during which blocks may grow.
const SCANS: u32 = 6;
const SCANS_BEFORE: u32 = 5;

/// The same popularity of pages or clusters in every trace, scattered over addresses.
struct Popular {
    order: Vec<u32>,
    zipf: Zipf,
}

impl Popular {
    fn new(count: u32, random: &mut Random) -> Popular {
        let mut order: Vec<u32> = (0..count).collect();
        random.shuffle(&mut order);
        Popular { order, zipf: Zipf::new(count, EXPONENT) }
    }

    fn draw(&self, random: &mut Random) -> u32 {
        self.order[self.zipf.draw(random) as usize]
    }
}

/// Half of the memory is a log that is scanned again and again, three eighths are a table of pages that are read by
/// Zipf's law, and the rest is an index of which a visit reads a few adjacent pages, the same in each block.
pub fn log_table_and_index(pages: u32, seed: u64) -> Trace {
    let random = &mut Random::new(seed);
    let mut touches: Vec<Touch> = (0..pages).map(Touch::write).collect();
    let (log, table) = (pages / 2, pages / 8 * 3);
    let (in_table, in_index) = (Popular::new(table, random), Popular::new(pages / 8 / BLOCK_PAGES, random));
    let mut next = 0;
    // The log is scanned six times.
    for _ in 0..pages * 3 / LOG_VISITS {
        for _ in 0..LOG_VISITS {
            touches.push(Touch::read(next % log));
            next += 1;
        }
        for _ in 0..TABLE_VISITS {
            let page = log + in_table.draw(random);
            touches.push(if random.below(8) == 0 { Touch::write(page) } else { Touch::read(page) });
        }
        let block = in_index.draw(random);
        let first = log + table + block * BLOCK_PAGES + block * 7 % (BLOCK_PAGES - CLUSTER_PAGES);
        touches.extend((first..first + CLUSTER_PAGES).map(Touch::read));
    }
    Trace { touches, blocks: pages, block_pages: 1, warm: pages as usize }
}

/// Memory that was written in address order is used page by page, as a store of small values is once it is loaded.
pub fn load_then_random(pages: u32, seed: u64) -> Trace {
    let mut touches: Vec<Touch> = (0..pages).map(Touch::write).collect();
    touches.extend(by_popularity(pages, u64::from(pages) * 4, seed));
    Trace { touches, blocks: pages, block_pages: 1, warm: pages as usize }
}

/// Memory that is used at random for a while is then scanned again and again. Only the last scans are counted: they
/// should cost what they cost where all memory has always been scanned.
pub fn random_then_scans(pages: u32, seed: u64) -> Trace {
    let mut touches: Vec<Touch> = (0..pages).map(Touch::write).collect();
    touches.extend(by_popularity(pages, u64::from(pages) * 3, seed));
    let warm = touches.len() + (SCANS_BEFORE * pages) as usize;
    touches.extend((0..SCANS_BEFORE + SCANS).flat_map(|_| 0..pages).map(Touch::read));
    Trace { touches, blocks: pages, block_pages: 1, warm }
}

fn by_popularity(pages: u32, visits: u64, seed: u64) -> Vec<Touch> {
    let random = &mut Random::new(seed);
    let popular = Popular::new(pages, random);
    let visit = |_| {
        let page = popular.draw(random);
        if random.below(8) == 0 { Touch::write(page) } else { Touch::read(page) }
    };
    (0..visits).map(visit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_written_once_and_then_visited_where_it_is() {
        for make in [log_table_and_index, load_then_random, random_then_scans] {
            let trace = make(8192, 1);
            assert_eq!(trace.touches[..8192], (0..8192).map(Touch::write).collect::<Vec<_>>());
            assert!(trace.touches.iter().all(|touch| touch.block() < trace.blocks));
            assert!(trace.warm >= 8192 && trace.touches.len() > trace.warm + 8192);
            assert_eq!(make(8192, 1).touches, trace.touches);
        }
    }

    #[test]
    fn the_log_is_scanned_in_order_and_the_index_is_read_in_clusters() {
        let trace = log_table_and_index(8192, 1);
        let counted = || trace.touches[8192..].iter().map(|touch| touch.block());
        let log: Vec<u32> = counted().filter(|page| *page < 4096).collect();
        assert!(log.iter().enumerate().all(|(turn, page)| *page == turn as u32 % 4096));
        let index: Vec<u32> = counted().filter(|page| *page >= 4096 + 3072).collect();
        for cluster in index.chunks(CLUSTER_PAGES as usize) {
            assert!(cluster.is_sorted(), "{cluster:?}");
            let last = cluster[CLUSTER_PAGES as usize - 1];
            assert_eq!((last - cluster[0], last / BLOCK_PAGES), (CLUSTER_PAGES - 1, cluster[0] / BLOCK_PAGES));
        }
    }
}
