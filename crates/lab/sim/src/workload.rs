// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes traces: which blocks a program touches, in which order.
//!
//! A trace has one entry per visit to a block, not per load: a scan over a block is one entry, because only that is
//! visible to a pager. Every workload first writes its memory once in address order, as programs do.

use std::{fmt, str::FromStr};

use crate::{
    graph::{self, Size, Visits},
    merge_sort,
    random::{Random, Zipf},
};

/// One visit to one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch(u32);

impl Touch {
    /// A visit that only reads.
    pub fn read(block: u32) -> Touch {
        Touch(block << 1)
    }

    /// A visit that writes.
    pub fn write(block: u32) -> Touch {
        Touch(block << 1 | 1)
    }

    /// The block visited.
    pub fn block(self) -> u32 {
        self.0 >> 1
    }

    /// Whether the visit writes.
    pub fn writes(self) -> bool {
        self.0 & 1 == 1
    }
}

/// A program's visits, and the facts needed to judge them.
pub struct Trace {
    /// The visits, in order.
    pub touches: Vec<Touch>,
    /// The program's number of blocks; every visited block is below it.
    pub blocks: u32,
    /// Number of visits in the warm-up, which are not counted.
    pub warm: usize,
}

/// The workloads that can be generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Betweenness centrality of a Kronecker graph, from random sources.
    Bc,
    /// Breadth-first searches over a Kronecker graph, from random roots.
    Bfs,
    /// One array, from start to end, again and again.
    Cyclic,
    /// A cyclic scan of half the memory, while one visit in two goes to a hot tenth.
    Mixed,
    /// PageRank over a Kronecker graph.
    PageRank,
    /// A server of small values, three to a block, that are asked for by Zipf's law with exponent 0.99.
    Server,
    /// A scan of one quarter of memory, many times, then of another quarter: each fits in local memory.
    Phase,
    /// The same, visited in random order.
    PhaseRandom,
    /// A merge sort of pointers to lines, by two threads.
    Sort,
    /// STREAM triad: read `b` and `c`, write `a`, in step.
    Triad,
    /// Uniformly random.
    Uniform,
    /// Zipf with exponent 0.99 over shuffled blocks.
    Zipf,
    /// The same, where the popular blocks drift.
    ZipfDrift,
}

impl Workload {
    /// All of them.
    pub const ALL: [Workload; 13] = [
        Workload::Cyclic,
        Workload::Triad,
        Workload::Phase,
        Workload::PhaseRandom,
        Workload::Mixed,
        Workload::Uniform,
        Workload::Zipf,
        Workload::ZipfDrift,
        Workload::Server,
        Workload::Sort,
        Workload::Bfs,
        Workload::PageRank,
        Workload::Bc,
    ];

    /// The name on the command line and in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Workload::Bc => "bc",
            Workload::Bfs => "bfs",
            Workload::Cyclic => "cyclic",
            Workload::Mixed => "mixed",
            Workload::PageRank => "pagerank",
            Workload::Server => "server",
            Workload::Phase => "phase",
            Workload::PhaseRandom => "phase-random",
            Workload::Sort => "sort",
            Workload::Triad => "triad",
            Workload::Uniform => "uniform",
            Workload::Zipf => "zipf",
            Workload::ZipfDrift => "zipf-drift",
        }
    }

    /// Refuses a scale at which the trace would take too much memory. Only graphs have a scale.
    pub fn check_scale(self, scale: u32) -> Result<(), String> {
        let visits = match self {
            Workload::Bc => Visits::BETWEENNESS,
            Workload::Bfs => Visits::BFS,
            Workload::PageRank => Visits::PAGE_RANK,
            _ => return Ok(()),
        };
        Size::of_table(scale).check(visits)
    }

    /// A trace over about `blocks` blocks (the graphs have their own size).
    pub fn trace(self, blocks: u32, seed: u64) -> Trace {
        self.trace_at(graph::SCALE, blocks, seed)
    }

    /// A trace over about `blocks` blocks, or over a graph of this scale.
    pub fn trace_at(self, scale: u32, blocks: u32, seed: u64) -> Trace {
        let mut random = Random::new(seed);
        let mut touches: Vec<Touch> = (0..blocks).map(Touch::write).collect();
        let quarter = blocks / 4;
        let visits = u64::from(blocks) * 12;
        match self {
            Workload::Bc => return graph::betweenness(Size::of_table(scale), seed),
            Workload::Bfs => return graph::bfs(Size::of_table(scale), seed),
            Workload::PageRank => return graph::page_rank(Size::of_table(scale), seed),
            Workload::Sort => return merge_sort::trace(blocks, seed),
            Workload::Cyclic => touches.extend((0..12).flat_map(|_| 0..blocks).map(Touch::read)),
            Workload::Triad => {
                let third = blocks / 3;
                let step = |i| [Touch::read(third + i), Touch::read(2 * third + i), Touch::write(i)];
                touches.extend((0..12).flat_map(|_| 0..third).flat_map(step));
            }
            Workload::Phase => {
                for phase in [3, 1, 2] {
                    touches.extend((0..16).flat_map(|_| phase * quarter..(phase + 1) * quarter).map(Touch::read));
                }
            }
            Workload::PhaseRandom => {
                for phase in [3, 1, 2] {
                    let place = |_| phase * quarter + random.below(u64::from(quarter)) as u32;
                    touches.extend((0..16 * quarter).map(place).map(Touch::read));
                }
            }
            Workload::Mixed => {
                for visit in 0..visits as u32 {
                    touches.push(if visit % 2 == 0 {
                        Touch::read(blocks / 2 + visit / 2 % (blocks / 2))
                    } else {
                        Touch::write(random.below(u64::from(blocks / 10)) as u32)
                    });
                }
            }
            Workload::Uniform => {
                touches.extend((0..visits).map(|_| Touch::read(random.below(u64::from(blocks)) as u32)));
            }
            Workload::Server => {
                let mut order: Vec<u32> = (0..3 * blocks).collect();
                random.shuffle(&mut order);
                let zipf = Zipf::new(3 * blocks, 0.99);
                for _ in 0..visits * 2 {
                    let block = order[zipf.draw(&mut random) as usize] / 3;
                    touches.push(if random.below(10) == 0 { Touch::write(block) } else { Touch::read(block) });
                }
                return Trace { touches, blocks, warm: (blocks + visits as u32) as usize };
            }
            Workload::Zipf | Workload::ZipfDrift => {
                let mut order: Vec<u32> = (0..blocks).collect();
                random.shuffle(&mut order);
                let zipf = Zipf::new(blocks, 0.99);
                let drift = if self == Workload::ZipfDrift { u64::from(blocks) / 4 } else { 0 };
                for visit in 0..visits {
                    let rank = u64::from(zipf.draw(&mut random)) + visit * drift / visits;
                    let block = order[(rank % u64::from(blocks)) as usize];
                    touches.push(if random.below(4) == 0 { Touch::write(block) } else { Touch::read(block) });
                }
            }
        }
        Trace { touches, blocks, warm: blocks as usize }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|workload| workload.as_str() == text).ok_or_else(|| {
            let choices = Self::ALL.map(Workload::as_str).join(", ");
            format!("'{text}' is not a workload; choose one of {choices}")
        })
    }
}
