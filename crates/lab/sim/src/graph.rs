// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Traces of graph kernels: BFS, PageRank and betweenness centrality as the GAP benchmark suite runs them, over a
//! Kronecker graph in compressed rows. `search.rs`: breadth-first searches. `betweenness.rs`: betweenness centrality.
//!
//! The graph is smaller than real ones, and so are the blocks (4 KiB). The ratio between the arrays, the sequential
//! walk over edges and the random walk over vertices are preserved.

mod betweenness;
mod search;

pub use betweenness::betweenness;
pub use search::{bfs, bfs_two_ways};

use crate::{
    random::Random,
    workload::{Touch, Trace},
};

/// Vertices as a power of two, unless another number is given.
pub const SCALE: u32 = 16;
/// The largest scale.
pub const SCALE_MAX: u32 = 20;
/// Searches, rounds or sources of a trace of the table.
pub const UNITS: u32 = 8;
/// Memory that a trace may take, with what the optimum needs.
const BYTES_MAX: u64 = 4 << 30;
/// Undirected edges per vertex, as in Graph500.
const DEGREE: u32 = 16;
/// Probability of the first three quadrants in 1/100, as in Graph500.
const QUADRANTS: [u64; 3] = [57, 19, 19];
/// Bytes per block in these traces.
const BLOCK_BYTES: u32 = 4096;

/// The size of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Vertices of the graph as a power of two, at most [`SCALE_MAX`].
    pub scale: u32,
    /// Searches, rounds of PageRank, or sources of betweenness centrality.
    pub units: u32,
}

impl Size {
    /// What the table plays at this scale.
    pub fn of_table(scale: u32) -> Size {
        Size { scale, units: UNITS }
    }

    /// Refuses a size whose trace takes too much memory, if each unit visits at most `visits` blocks for each edge.
    pub fn check(self, visits: Visits) -> Result<(), String> {
        let bytes = visits.bytes(self);
        if self.scale <= SCALE_MAX && bytes <= BYTES_MAX {
            return Ok(());
        }
        let gib = |bytes: u64| bytes.div_ceil(1 << 30);
        Err(format!(
            "a trace at --scale {} may take {} GiB of memory, and at most {} are allowed; give a smaller --scale",
            self.scale,
            gib(bytes),
            gib(BYTES_MAX)
        ))
    }
}

/// How many blocks a unit visits at most, in a quarter of a visit for each directed edge.
#[derive(Clone, Copy, Debug)]
pub struct Visits {
    quarters: u64,
}

impl Visits {
    /// Breadth-first searches, in one way or two.
    pub const BFS: Visits = Visits { quarters: 6 };
    /// PageRank.
    pub const PAGE_RANK: Visits = Visits { quarters: 6 };
    /// Betweenness centrality: both ways look at the depth of each neighbour, and at the paths of many.
    pub const BETWEENNESS: Visits = Visits { quarters: 18 };

    fn most(self, size: Size) -> u64 {
        let edges = u64::from(2 * DEGREE) << size.scale;
        edges * self.quarters / 4 * u64::from(size.units)
    }

    /// A visit, its next visit, and its bit take 8 bytes and a bit; an edge takes 12 while the graph is made.
    fn bytes(self, size: Size) -> u64 {
        self.most(size) * 33 / 4 + (u64::from(2 * DEGREE) << size.scale) * 12
    }
}

/// A graph in compressed rows.
struct Graph {
    first_edge: Vec<u32>,
    neighbours: Vec<u32>,
}

impl Graph {
    fn kronecker(scale: u32, random: &mut Random) -> Graph {
        let vertices = 1u32 << scale;
        let mut labels: Vec<u32> = (0..vertices).collect();
        random.shuffle(&mut labels);
        let mut edges = Vec::with_capacity((vertices * DEGREE * 2) as usize);
        for _ in 0..vertices * DEGREE {
            let (mut from, mut to) = (0, 0);
            for _ in 0..scale {
                let draw = random.below(100);
                let quadrant = u32::from(draw >= QUADRANTS[0])
                    + u32::from(draw >= QUADRANTS[0] + QUADRANTS[1])
                    + u32::from(draw >= QUADRANTS[0] + QUADRANTS[1] + QUADRANTS[2]);
                from = from << 1 | quadrant >> 1;
                to = to << 1 | quadrant & 1;
            }
            let (from, to) = (labels[from as usize], labels[to as usize]);
            edges.extend([(from, to), (to, from)]);
        }
        edges.sort_unstable();
        edges.dedup();
        let first_edge = (0..=vertices).map(|vertex| edges.partition_point(|edge| edge.0 < vertex) as u32).collect();
        Graph { first_edge, neighbours: edges.into_iter().map(|edge| edge.1).collect() }
    }

    fn vertices(&self) -> u32 {
        self.first_edge.len() as u32 - 1
    }

    /// The numbers of a vertex's edges.
    fn row(&self, vertex: u32) -> std::ops::Range<u32> {
        self.first_edge[vertex as usize]..self.first_edge[vertex as usize + 1]
    }

    fn degree(&self, vertex: u32) -> u32 {
        self.row(vertex).len() as u32
    }

    /// A random vertex with neighbours.
    fn source(&self, random: &mut Random) -> u32 {
        loop {
            let vertex = random.below(u64::from(self.vertices())) as u32;
            if self.degree(vertex) > 0 {
                return vertex;
            }
        }
    }
}

/// Lays arrays out in blocks and records visits; repeated visits of an array's current block count once.
struct Recorder {
    touches: Vec<Touch>,
    blocks: u32,
    arrays: Vec<Array>,
}

struct Array {
    first_block: u32,
    element_bytes: u32,
    current: u32,
}

impl Recorder {
    /// The graph, and arrays of so many elements of so many bytes each. Reserves room for `visits`, which takes memory
    /// only when it is used.
    fn new<const N: usize>(graph: &Graph, arrays: [(u32, u32); N], visits: u64) -> (Recorder, [usize; 2], [usize; N]) {
        let mut recorder = Recorder { touches: Vec::new(), blocks: 0, arrays: Vec::new() };
        let rows = recorder.array(graph.vertices(), 8);
        let edges = recorder.array(graph.neighbours.len() as u32, 4);
        let arrays = arrays.map(|(elements, element_bytes)| recorder.array(elements, element_bytes));
        recorder.touches.reserve_exact(recorder.blocks as usize + visits as usize);
        recorder.touches.extend((0..recorder.blocks).map(Touch::write));
        (recorder, [rows, edges], arrays)
    }

    fn array(&mut self, elements: u32, element_bytes: u32) -> usize {
        self.arrays.push(Array { first_block: self.blocks, element_bytes, current: u32::MAX });
        self.blocks += (elements * element_bytes).div_ceil(BLOCK_BYTES);
        self.arrays.len() - 1
    }

    fn read(&mut self, array: usize, element: u32) {
        self.visit(array, element, Touch::read);
    }

    fn write(&mut self, array: usize, element: u32) {
        self.visit(array, element, Touch::write);
    }

    fn visit(&mut self, array: usize, element: u32, touch: fn(u32) -> Touch) {
        let array = &mut self.arrays[array];
        let block = array.first_block + element * array.element_bytes / BLOCK_BYTES;
        if array.current != block {
            array.current = block;
            self.touches.push(touch(block));
        }
    }

    fn finish(self) -> Trace {
        Trace { touches: self.touches, blocks: self.blocks, warm: self.blocks as usize }
    }
}

/// PageRank in pull direction: every vertex reads the contribution of its neighbours.
pub fn page_rank(size: Size, seed: u64) -> Trace {
    let graph = Graph::kronecker(size.scale, &mut Random::new(seed));
    let vertices = graph.vertices();
    let values = [(vertices, 4), (vertices, 4)];
    let (mut recorder, [rows, edges], [scores, contributions]) =
        Recorder::new(&graph, values, Visits::PAGE_RANK.most(size));
    for _ in 0..size.units {
        for vertex in 0..vertices {
            recorder.read(scores, vertex);
            recorder.write(contributions, vertex);
        }
        for vertex in 0..vertices {
            recorder.read(rows, vertex);
            for edge in graph.row(vertex) {
                recorder.read(edges, edge);
                recorder.read(contributions, graph.neighbours[edge as usize]);
            }
            recorder.write(scores, vertex);
        }
    }
    recorder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_is_undirected_sorted_and_without_repeats() {
        let graph = Graph::kronecker(SCALE, &mut Random::new(1));
        assert_eq!(graph.vertices(), 1 << SCALE);
        assert_eq!(graph.first_edge[graph.vertices() as usize] as usize, graph.neighbours.len());
        assert!(graph.first_edge.is_sorted());
        let row = |vertex: u32| {
            let (first, last) = (graph.first_edge[vertex as usize], graph.first_edge[vertex as usize + 1]);
            &graph.neighbours[first as usize..last as usize]
        };
        for vertex in 0..graph.vertices() {
            assert!(row(vertex).is_sorted_by(|one, next| one < next), "{vertex}");
            for neighbour in row(vertex) {
                assert!(row(*neighbour).binary_search(&vertex).is_ok(), "{vertex} - {neighbour} has no way back");
            }
        }
    }

    /// In Kronecker graphs a few vertices have most of the edges; that is why these graphs are used.
    #[test]
    fn degrees_are_skewed() {
        let graph = Graph::kronecker(SCALE, &mut Random::new(1));
        let mut degrees: Vec<u32> = graph.first_edge.windows(2).map(|pair| pair[1] - pair[0]).collect();
        degrees.sort_unstable_by(|one, other| other.cmp(one));
        let first_tenth: u32 = degrees[..degrees.len() / 10].iter().sum();
        assert!(first_tenth as usize > graph.neighbours.len() / 2, "{first_tenth} of {}", graph.neighbours.len());
        assert!(graph.neighbours.len() <= ((2 * DEGREE) << SCALE) as usize);
    }

    /// Checks the traces: memory is written once in order, every visit is to a block that exists, and the visits are
    /// no more than what was reserved.
    #[test]
    fn traces_are_within_their_arrays_and_the_same_for_the_same_seed() {
        let (bfs_max, rank_max) = (Visits::BFS, Visits::PAGE_RANK);
        type Make = fn(Size, u64) -> Trace;
        let kernels: [(Make, Visits); 4] =
            [(bfs, bfs_max), (bfs_two_ways, bfs_max), (page_rank, rank_max), (betweenness, Visits::BETWEENNESS)];
        for (make, visits) in kernels {
            let size = Size { scale: 14, units: 4 };
            let trace = make(size, 1);
            assert_eq!(trace.warm, trace.blocks as usize);
            let set_up: Vec<Touch> = (0..trace.blocks).map(Touch::write).collect();
            assert_eq!(trace.touches[..trace.warm], set_up);
            assert!(trace.touches.iter().all(|touch| touch.block() < trace.blocks));
            assert!(trace.touches.len() > 10 * trace.warm);
            assert!((trace.touches.len() - trace.warm) as u64 <= visits.most(size));
            assert_eq!(make(size, 1).touches, trace.touches);
        }
        for make in [bfs, bfs_two_ways, betweenness] {
            let size = Size { scale: 10, units: 1 };
            assert_ne!(make(size, 1).touches, make(size, 2).touches);
        }
    }

    #[test]
    fn page_rank_reads_the_edges_in_order_in_each_iteration() {
        let size = Size { scale: 12, units: 3 };
        let graph = Graph::kronecker(size.scale, &mut Random::new(1));
        let (recorder, [_, edges], [scores, _]) = Recorder::new(&graph, [(graph.vertices(), 4); 2], 0);
        let (edges, scores) = (recorder.range(edges), recorder.range(scores));
        let trace = page_rank(size, 1);
        assert_eq!(trace.visits(&edges), (0..size.units).flat_map(|_| edges.clone()).collect::<Vec<_>>());
        // Each iteration passes over the scores twice: once to share them out, once to write them.
        let twice: Vec<u32> = (0..2 * size.units).flat_map(|_| scores.clone()).collect();
        assert_eq!(trace.visits(&scores), twice);
    }

    #[test]
    fn a_trace_that_needs_too_much_memory_is_refused_with_cause_and_remedy() {
        let table = Size::of_table;
        assert_eq!(table(SCALE_MAX).check(Visits::BFS), Ok(()));
        assert_eq!(table(18).check(Visits::BETWEENNESS), Ok(()));
        let refused = table(SCALE_MAX).check(Visits::BETWEENNESS).unwrap_err();
        assert_eq!(
            refused,
            "a trace at --scale 20 may take 10 GiB of memory, and at most 4 are allowed; give a smaller --scale"
        );
        assert!(Size { scale: 21, units: 1 }.check(Visits::PAGE_RANK).is_err());
    }

    impl Recorder {
        /// The blocks of an array that is not the last.
        pub(super) fn range(&self, array: usize) -> std::ops::Range<u32> {
            self.arrays[array].first_block..self.arrays[array + 1].first_block
        }
    }

    impl Trace {
        /// The counted visits of these blocks.
        pub(super) fn visits(&self, of: &std::ops::Range<u32>) -> Vec<u32> {
            self.touches[self.warm..].iter().map(|touch| touch.block()).filter(|block| of.contains(block)).collect()
        }
    }
}
