// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Traces of graph kernels: BFS and PageRank as the GAP benchmark suite runs them, over a Kronecker graph in
//! compressed rows.
//!
//! The graph is far smaller than real ones, and so are the blocks (4 KiB). The ratio between the arrays, the sequential
//! walk over edges and the random walk over vertices are preserved.

use crate::{
    random::Random,
    workload::{Touch, Trace},
};

/// Vertices as a power of two.
const SCALE: u32 = 16;
/// Undirected edges per vertex, as in Graph500.
const DEGREE: u32 = 16;
/// Probability of the first three quadrants in 1/100, as in Graph500.
const QUADRANTS: [u64; 3] = [57, 19, 19];
/// Bytes per block in these traces.
const BLOCK_BYTES: u32 = 4096;
/// Searches per trace.
const SEARCHES: u32 = 8;
/// Iterations of PageRank.
const ITERATIONS: u32 = 8;

/// A graph in compressed rows.
struct Graph {
    first_edge: Vec<u32>,
    neighbours: Vec<u32>,
}

impl Graph {
    fn kronecker(random: &mut Random) -> Graph {
        let vertices = 1u32 << SCALE;
        let mut labels: Vec<u32> = (0..vertices).collect();
        random.shuffle(&mut labels);
        let mut edges = Vec::with_capacity((vertices * DEGREE * 2) as usize);
        for _ in 0..vertices * DEGREE {
            let (mut from, mut to) = (0, 0);
            for _ in 0..SCALE {
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
    fn new(graph: &Graph) -> (Recorder, [usize; 4]) {
        let mut recorder = Recorder { touches: Vec::new(), blocks: 0, arrays: Vec::new() };
        let vertices = graph.vertices();
        let rows = recorder.array(vertices, 8);
        let edges = recorder.array(graph.neighbours.len() as u32, 4);
        let values = recorder.array(vertices, 4);
        let others = recorder.array(vertices, 4);
        recorder.touches.extend((0..recorder.blocks).map(Touch::write));
        (recorder, [rows, edges, values, others])
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

/// Breadth-first searches, top-down.
pub fn bfs(seed: u64) -> Trace {
    let mut random = Random::new(seed);
    let graph = Graph::kronecker(&mut random);
    let (mut recorder, [rows, edges, parents, queue]) = Recorder::new(&graph);
    for _ in 0..SEARCHES {
        let root = random.below(u64::from(graph.vertices())) as u32;
        let mut seen = vec![false; graph.vertices() as usize];
        (0..graph.vertices()).for_each(|vertex| recorder.write(parents, vertex));
        seen[root as usize] = true;
        let (mut order, mut next) = (vec![root], 0);
        while next < order.len() {
            recorder.read(queue, next as u32);
            let vertex = order[next];
            next += 1;
            recorder.read(rows, vertex);
            for edge in graph.first_edge[vertex as usize]..graph.first_edge[vertex as usize + 1] {
                recorder.read(edges, edge);
                let neighbour = graph.neighbours[edge as usize];
                recorder.read(parents, neighbour);
                if !std::mem::replace(&mut seen[neighbour as usize], true) {
                    recorder.write(parents, neighbour);
                    order.push(neighbour);
                }
            }
        }
    }
    recorder.finish()
}

/// PageRank in pull direction: every vertex reads the contribution of its neighbours.
pub fn page_rank(seed: u64) -> Trace {
    let graph = Graph::kronecker(&mut Random::new(seed));
    let (mut recorder, [rows, edges, scores, contributions]) = Recorder::new(&graph);
    for _ in 0..ITERATIONS {
        for vertex in 0..graph.vertices() {
            recorder.read(scores, vertex);
            recorder.write(contributions, vertex);
        }
        for vertex in 0..graph.vertices() {
            recorder.read(rows, vertex);
            for edge in graph.first_edge[vertex as usize]..graph.first_edge[vertex as usize + 1] {
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
        let graph = Graph::kronecker(&mut Random::new(1));
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
        let graph = Graph::kronecker(&mut Random::new(1));
        let mut degrees: Vec<u32> = graph.first_edge.windows(2).map(|pair| pair[1] - pair[0]).collect();
        degrees.sort_unstable_by(|one, other| other.cmp(one));
        let first_tenth: u32 = degrees[..degrees.len() / 10].iter().sum();
        assert!(first_tenth as usize > graph.neighbours.len() / 2, "{first_tenth} of {}", graph.neighbours.len());
        assert!(graph.neighbours.len() <= ((2 * DEGREE) << SCALE) as usize);
    }

    /// Checks both traces: memory is written once in order, every visit is to a block that exists, and no array's
    /// block is visited twice in a row by the array's own walk.
    #[test]
    fn traces_are_within_their_arrays_and_the_same_for_the_same_seed() {
        for make in [bfs, page_rank] {
            let trace = make(1);
            assert_eq!(trace.warm, trace.blocks as usize);
            let set_up: Vec<Touch> = (0..trace.blocks).map(Touch::write).collect();
            assert_eq!(trace.touches[..trace.warm], set_up);
            assert!(trace.touches.iter().all(|touch| touch.block() < trace.blocks));
            assert!(trace.touches.len() > 10 * trace.warm);
            assert_eq!(make(1).touches, trace.touches);
        }
        assert_ne!(bfs(1).touches, bfs(2).touches);
    }

    #[test]
    fn page_rank_reads_the_edges_in_order_in_each_iteration() {
        let graph = Graph::kronecker(&mut Random::new(1));
        let (recorder, [_, edges, scores, _]) = Recorder::new(&graph);
        let range = |array: usize| recorder.arrays[array].first_block..recorder.arrays[array + 1].first_block;
        let (edges, scores) = (range(edges), range(scores));
        let trace = page_rank(1);
        let visits = |of: &std::ops::Range<u32>| -> Vec<u32> {
            trace.touches[trace.warm..].iter().map(|touch| touch.block()).filter(|block| of.contains(block)).collect()
        };
        assert_eq!(visits(&edges), (0..ITERATIONS).flat_map(|_| edges.clone()).collect::<Vec<_>>());
        // Each iteration passes over the scores twice: once to share them out, once to write them.
        let twice: Vec<u32> = (0..2 * ITERATIONS).flat_map(|_| scores.clone()).collect();
        assert_eq!(visits(&scores), twice);
    }
}
