// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Traces of graph kernels: BFS and PageRank as the GAP benchmark suite runs them, over a Kronecker graph in
//! compressed rows.
//!
//! The graph is far smaller than the real ones, and so are the blocks (4 KiB): what is kept is the ratio
//! between the arrays, the sequential walk over edges and the random walk over vertices.

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
/// Bytes per block here.
const BLOCK_BYTES: u32 = 4096;
/// Searches per trace.
const SEARCHES: u32 = 8;
/// Iterations of PageRank.
const ITERATIONS: u32 = 8;

/// Compressed rows.
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

/// Top-down searches.
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

/// Pull direction: every vertex reads the contribution of its neighbours.
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
