// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Betweenness centrality (Brandes 2001), as `bench/workloads/betweenness.hpp` computes it: counts shortest paths level
//! by level outwards, then gathers dependencies level by level inwards. One source is one trial.

use super::{Graph, Recorder, Size, Visits};
use crate::{random::Random, workload::Trace};

/// Betweenness centrality from random sources that have neighbours.
pub fn betweenness(size: Size, seed: u64) -> Trace {
    let mut random = Random::new(seed);
    let graph = Graph::kronecker(size.scale, &mut random);
    let mut brandes = Brandes::new(&graph, size);
    for _ in 0..size.units {
        let source = graph.source(&mut random);
        let levels = brandes.outwards(source);
        brandes.inwards(source, &levels);
    }
    brandes.recorder.finish()
}

/// The depth of a vertex that was not reached.
const UNREACHED: u32 = u32::MAX;

struct Brandes<'a> {
    graph: &'a Graph,
    recorder: Recorder,
    rows: usize,
    edges: usize,
    score: usize,
    depth: usize,
    paths: usize,
    queue: usize,
    depths: Vec<u32>,
    order: Vec<u32>,
}

impl<'a> Brandes<'a> {
    fn new(graph: &'a Graph, size: Size) -> Brandes<'a> {
        let vertices = graph.vertices();
        let values = [(vertices, 4), (vertices, 4), (vertices, 8), (vertices, 4)];
        let (recorder, [rows, edges], [score, depth, paths, queue]) =
            Recorder::new(graph, values, Visits::BETWEENNESS.most(size));
        Brandes { graph, recorder, rows, edges, score, depth, paths, queue, depths: Vec::new(), order: Vec::new() }
    }

    /// Finds the levels and counts the paths. `order[levels[d]..levels[d + 1]]` are the vertices at distance `d`; the
    /// last level is empty.
    fn outwards(&mut self, source: u32) -> Vec<usize> {
        let vertices = self.graph.vertices();
        (0..vertices).for_each(|vertex| self.recorder.write(self.score, vertex));
        for vertex in 0..vertices {
            self.recorder.write(self.depth, vertex);
            self.recorder.write(self.paths, vertex);
        }
        self.depths = vec![UNREACHED; vertices as usize];
        self.depths[source as usize] = 0;
        self.order = vec![source];
        let mut levels = vec![0, 1];
        while levels[levels.len() - 2] < levels[levels.len() - 1] {
            let level = levels.len() as u32 - 2;
            for place in levels[levels.len() - 2]..levels[levels.len() - 1] {
                self.recorder.read(self.queue, place as u32);
                self.extend(self.order[place], level);
            }
            levels.push(self.order.len());
        }
        levels
    }

    /// Counts the paths by way of one vertex. Its own number of paths is visited once: a compiler may keep it.
    fn extend(&mut self, vertex: u32, level: u32) {
        self.recorder.read(self.rows, vertex);
        self.recorder.read(self.paths, vertex);
        for edge in self.graph.row(vertex) {
            self.recorder.read(self.edges, edge);
            let neighbour = self.graph.neighbours[edge as usize];
            self.recorder.read(self.depth, neighbour);
            let depth = &mut self.depths[neighbour as usize];
            if *depth == UNREACHED {
                *depth = level + 1;
                self.recorder.write(self.depth, neighbour);
                self.recorder.write(self.queue, self.order.len() as u32);
                self.order.push(neighbour);
            }
            if *depth == level + 1 {
                self.recorder.write(self.paths, neighbour);
            }
        }
    }

    /// Gathers what each vertex owes to the level behind it, the outermost level first.
    fn inwards(&mut self, source: u32, levels: &[usize]) {
        for level in (0..levels.len() - 1).rev() {
            for place in levels[level]..levels[level + 1] {
                self.recorder.read(self.queue, place as u32);
                let vertex = self.order[place];
                self.recorder.read(self.rows, vertex);
                for edge in self.graph.row(vertex) {
                    self.recorder.read(self.edges, edge);
                    let neighbour = self.graph.neighbours[edge as usize];
                    self.recorder.read(self.depth, neighbour);
                    if self.depths[neighbour as usize] == level as u32 + 1 {
                        self.recorder.read(self.paths, neighbour);
                    }
                }
                self.recorder.write(self.paths, vertex);
                if vertex != source {
                    self.recorder.write(self.score, vertex);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Touch;

    /// 0 - 1, 0 - 2, 1 - 3, 2 - 3, 3 - 4; 5 has no edge. From 0, the levels are 0; 1, 2; 3; 4.
    fn diamond() -> Graph {
        let pairs = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)];
        let mut edges: Vec<(u32, u32)> =
            pairs.iter().flat_map(|(one, other)| [(*one, *other), (*other, *one)]).collect();
        edges.sort_unstable();
        let first_edge = (0..=6).map(|vertex| edges.partition_point(|edge| edge.0 < vertex) as u32).collect();
        Graph { first_edge, neighbours: edges.into_iter().map(|edge| edge.1).collect() }
    }

    #[test]
    fn levels_go_outwards_and_inwards() {
        let graph = diamond();
        let mut brandes = Brandes::new(&graph, Size { scale: 4, units: 1 });
        let levels = brandes.outwards(0);
        assert_eq!(brandes.order, [0, 1, 2, 3, 4]);
        assert_eq!(levels, [0, 1, 3, 4, 5, 5]);
        assert_eq!(brandes.depths, [0, 1, 1, 2, 3, UNREACHED]);
        // Each array has one block here: only its first visit counts, in the order in which the program makes them.
        let outwards: Vec<Touch> = brandes.recorder.touches[6..].to_vec();
        let [rows, edges] = [0, 1];
        let [score, depth, paths, queue] = [2, 3, 4, 5];
        let set_up = [score, depth, paths].map(Touch::write);
        let search = [queue, rows, edges].map(Touch::read);
        assert_eq!(outwards, [set_up, search].concat());
        brandes.inwards(0, &levels);
        assert_eq!(brandes.recorder.touches.len(), 12, "no other block");
    }

    #[test]
    fn each_edge_of_what_is_reached_is_read_outwards_and_inwards() {
        let size = Size { scale: 12, units: 1 };
        let mut random = Random::new(1);
        let graph = Graph::kronecker(size.scale, &mut random);
        let mut brandes = Brandes::new(&graph, size);
        let source = graph.source(&mut random);
        let levels = brandes.outwards(source);
        let (edges, score) = (brandes.recorder.range(brandes.edges), brandes.recorder.range(brandes.score));
        let visited = |brandes: &Brandes, of: &std::ops::Range<u32>| {
            let blocks = brandes.recorder.touches[brandes.recorder.blocks as usize..].iter().map(|touch| touch.block());
            blocks.filter(|block| of.contains(block)).count()
        };
        let out = visited(&brandes, &edges);
        assert_eq!(visited(&brandes, &score), score.len(), "the scores are cleared");
        brandes.inwards(source, &levels);
        let both = visited(&brandes, &edges);
        // Levels are walked from outside in, but each in the same order.
        assert!(out > 10 * edges.len() && both.abs_diff(2 * out) < out / 50, "{out}, then {both}");
        assert!(visited(&brandes, &score) > 2 * score.len(), "scores are written as dependencies come in");
        assert_eq!(brandes.recorder.finish().touches, betweenness(size, 1).touches);
    }
}
