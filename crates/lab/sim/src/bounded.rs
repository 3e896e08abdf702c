// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How often a pager that reads on demand must read, at least: the misses of the optimum (`opt.rs`) for each unit of
//! work of a program of `aquifer bench`.
//!
//! The traces follow the programs in `bench/workloads`, and leave out what only adds visits: a server's table and keys,
//! and what a compiler may keep in registers. Fewer visits never have more misses, so the figures stay lower bounds.

use std::{fmt, str::FromStr};

use crate::{
    graph::{self, Size, Visits},
    opt::Optimum,
    random::{Random, Zipf},
    workload::{Touch, Trace},
    ycsb::Scrambled,
};

/// Bytes of a block of these traces: one page.
const PAGE_BYTES: u64 = 4096;
/// Requests for each value of a server: in the warm-up, and counted.
const WARM_REQUESTS: u64 = 1;
const REQUESTS: u64 = 4;
/// Skew of the requests to a server.
const EXPONENT: f64 = 0.99;

/// The programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bounded {
    /// Betweenness centrality.
    Bc,
    /// Breadth-first search, top down and bottom up.
    Bfs,
    /// PageRank.
    PageRank,
    /// A server of values, which are asked for by Zipf's law over as many ranks as there are values.
    Server,
    /// The same, with YCSB's way of choosing values.
    Ycsb,
}

/// How large the programs' data is.
#[derive(Clone, Copy, Debug)]
pub struct Data {
    /// Vertices of a graph as a power of two.
    pub scale: u32,
    /// Values of a server.
    pub values: u32,
    /// Bytes that each value takes in a row of values.
    pub slot_bytes: u32,
}

/// A program's trace.
pub struct Work {
    /// Its visits to pages.
    pub trace: Trace,
    /// Units of work in its counted part.
    pub units: u64,
}

impl Bounded {
    /// All of them.
    pub const ALL: [Bounded; 5] = [Bounded::Bc, Bounded::Bfs, Bounded::PageRank, Bounded::Server, Bounded::Ycsb];

    /// The name on the command line and in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Bounded::Bc => "bc",
            Bounded::Bfs => "bfs",
            Bounded::PageRank => "pagerank",
            Bounded::Server => "server",
            Bounded::Ycsb => "ycsb",
        }
    }

    /// What is counted as one unit of work.
    pub fn unit(self) -> &'static str {
        match self {
            Bounded::Bc => "source",
            Bounded::Bfs => "search",
            Bounded::PageRank => "round",
            Bounded::Server | Bounded::Ycsb => "request",
        }
    }

    /// The trace, or why there is none.
    pub fn work(self, data: Data, seed: u64) -> Result<Work, String> {
        let kernel = |visits: Visits, units_min: u32, make: fn(Size, u64) -> Trace| {
            // As many visits at every scale, so that a large graph takes little more time than a small one.
            let units = (graph::UNITS >> data.scale.saturating_sub(graph::SCALE)).max(units_min);
            let size = Size { scale: data.scale, units };
            size.check(visits)?;
            Ok(Work { trace: make(size, seed), units: u64::from(units) })
        };
        match self {
            Bounded::Bc => kernel(Visits::BETWEENNESS, 1, graph::betweenness),
            // Searches are short, and differ by their sources.
            Bounded::Bfs => kernel(Visits::BFS, 4, graph::bfs_two_ways),
            Bounded::PageRank => kernel(Visits::PAGE_RANK, 2, graph::page_rank),
            Bounded::Server => {
                let mut random = Random::new(seed);
                let zipf = Zipf::new(data.values, EXPONENT);
                let mut order: Vec<u32> = (0..data.values).collect();
                random.shuffle(&mut order);
                Ok(requests(data, || order[zipf.draw(&mut random) as usize]))
            }
            Bounded::Ycsb => {
                let mut random = Random::new(seed);
                let scrambled = Scrambled::new(data.values, EXPONENT);
                Ok(requests(data, || scrambled.draw(&mut random)))
            }
        }
    }
}

/// Values in a row, written in order and then asked for.
fn requests(data: Data, mut draw: impl FnMut() -> u32) -> Work {
    let slot = u64::from(data.slot_bytes);
    let blocks = (u64::from(data.values) * slot).div_ceil(PAGE_BYTES) as u32;
    let mut touches: Vec<Touch> = (0..blocks).map(Touch::write).collect();
    let mut ask = |touches: &mut Vec<Touch>, requests: u64| {
        for _ in 0..requests {
            let start = u64::from(draw()) * slot;
            let pages = start / PAGE_BYTES..=(start + slot - 1) / PAGE_BYTES;
            touches.extend(pages.map(|page| Touch::read(page as u32)));
        }
    };
    let values = u64::from(data.values);
    ask(&mut touches, values * WARM_REQUESTS);
    let warm = touches.len();
    ask(&mut touches, values * REQUESTS);
    Work { trace: Trace { touches, blocks, warm }, units: values * REQUESTS }
}

impl Work {
    /// The optimum's misses for each unit of work, for each of these percentages of local memory.
    pub fn misses(&self, local_percents: &[u32]) -> Vec<f64> {
        let optimum = Optimum::new(&self.trace);
        let frames = |percent: u32| (u64::from(self.trace.blocks) * u64::from(percent) / 100) as u32;
        local_percents.iter().map(|percent| optimum.misses(frames(*percent)) as f64 / self.units as f64).collect()
    }
}

/// The least time of a unit of work in microseconds: what it takes in DRAM, and its reads, which `threads` threads
/// share evenly.
pub fn least_us(dram_us: f64, misses: f64, read_us: f64, threads: u32) -> f64 {
    dram_us + misses * read_us / f64::from(threads)
}

impl fmt::Display for Bounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Bounded {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|one| one.as_str() == text).ok_or_else(|| {
            let choices = Self::ALL.map(Bounded::as_str).join(", ");
            format!("'{text}' has no bound; choose one of {choices}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: Data = Data { scale: 12, values: 5_000, slot_bytes: 1280 };

    #[test]
    fn a_value_may_lie_in_two_pages() {
        let mut next = 0..;
        // 16 values of 1280 bytes take five pages. Values 3, 6, 9 and 12 begin on one page and end on the next.
        let data = Data { values: 16, ..DATA };
        let work = requests(data, || next.next().expect("it has no end") % 16);
        assert_eq!((work.trace.blocks, work.units), (5, 64));
        let pages: Vec<u32> = work.trace.touches[5..work.trace.warm].iter().map(|touch| touch.block()).collect();
        assert_eq!(pages, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4]);
        // Slots that divide a page never do.
        let mut next = 0..;
        let work = requests(Data { slot_bytes: 1024, ..data }, || next.next().expect("it has no end") % 16);
        assert_eq!(work.trace.touches.len(), 4 + 16 + 64);
    }

    #[test]
    fn with_all_memory_nothing_is_read_and_with_less_more() {
        for program in Bounded::ALL {
            let misses = program.work(DATA, 1).unwrap().misses(&[10, 30, 70, 100]);
            assert_eq!(misses[3], 0.0, "{program}");
            assert!(misses.is_sorted_by(|more, less| more > less), "{program}: {misses:?}");
        }
    }

    /// A request reads at most the pages that a value may lie in, and PageRank reads at least the part of the edges
    /// that does not fit beside the rest.
    #[test]
    fn misses_are_of_the_size_that_they_must_be() {
        let server = Bounded::Server.work(DATA, 1).unwrap().misses(&[1])[0];
        assert!(server > 0.2 && server < 2.0, "{server}");
        let work = Bounded::PageRank.work(DATA, 1).unwrap();
        let blocks = f64::from(work.trace.blocks);
        let misses = work.misses(&[50])[0];
        assert!(misses > 0.5 * 0.8 * blocks && misses < 0.6 * blocks, "{misses} of {blocks} blocks");
    }

    #[test]
    fn ycsb_spreads_its_requests_wider() {
        let [server, ycsb] =
            [Bounded::Server, Bounded::Ycsb].map(|program| program.work(DATA, 1).unwrap().misses(&[50])[0]);
        assert!(ycsb > 1.2 * server, "{ycsb} and {server}");
    }

    #[test]
    fn large_graphs_have_fewer_units_and_too_large_ones_are_refused() {
        let work = |scale| Bounded::PageRank.work(Data { scale, ..DATA }, 1);
        assert_eq!(work(12).unwrap().units, 8);
        assert_eq!(work(17).unwrap().units, 4);
        let refused = work(21).err().expect("it is refused");
        assert!(refused.contains("give a smaller --scale"), "{refused}");
    }

    #[test]
    fn threads_share_the_reads() {
        assert_eq!(least_us(100.0, 3.0, 50.0, 1), 250.0);
        assert_eq!(least_us(100.0, 3.0, 50.0, 2), 175.0);
    }
}
