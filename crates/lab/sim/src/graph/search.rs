// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Breadth-first searches from random sources: top down alone, and as `aquifer bench` makes them.

use super::{Graph, Recorder, Size, Visits};
use crate::{random::Random, workload::Trace};

/// A search goes bottom up when the frontier's edges are more than this part of those unexplored, and top down again
/// when fewer than that part of the vertices are found at a level: the thresholds of Beamer, Asanovic, Patterson,
/// SC 2012.
const ALPHA: u64 = 15;
const BETA: u64 = 18;

/// Breadth-first searches, top down.
pub fn bfs(size: Size, seed: u64) -> Trace {
    let mut random = Random::new(seed);
    let graph = Graph::kronecker(size.scale, &mut random);
    let vertices = graph.vertices();
    let values = [(vertices, 4), (vertices, 4)];
    let (mut recorder, [rows, edges], [parents, queue]) = Recorder::new(&graph, values, Visits::BFS.most(size));
    for _ in 0..size.units {
        let root = random.below(u64::from(vertices)) as u32;
        let mut seen = vec![false; vertices as usize];
        (0..vertices).for_each(|vertex| recorder.write(parents, vertex));
        seen[root as usize] = true;
        let (mut order, mut next) = (vec![root], 0);
        while next < order.len() {
            recorder.read(queue, next as u32);
            let vertex = order[next];
            next += 1;
            recorder.read(rows, vertex);
            for edge in graph.row(vertex) {
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

/// Breadth-first searches as `bench/workloads/bfs.hpp` makes them: top down while the frontier is small, bottom up
/// while it is large. Each source has neighbours.
pub fn bfs_two_ways(size: Size, seed: u64) -> Trace {
    let mut random = Random::new(seed);
    let graph = Graph::kronecker(size.scale, &mut random);
    let mut search = Search::new(&graph, size);
    for _ in 0..size.units {
        search.run(graph.source(&mut random));
    }
    search.recorder.finish()
}

/// The state of the searches, and where its arrays lie.
struct Search<'a> {
    graph: &'a Graph,
    recorder: Recorder,
    rows: usize,
    edges: usize,
    parents: usize,
    queue: usize,
    /// Bits of the vertices of a level, and of the next one.
    front: usize,
    next: usize,
    seen: Vec<bool>,
    is_front: Vec<bool>,
    order: Vec<u32>,
}

impl<'a> Search<'a> {
    fn new(graph: &'a Graph, size: Size) -> Search<'a> {
        let vertices = graph.vertices();
        let words = vertices.div_ceil(64);
        let values = [(vertices, 4), (vertices, 4), (words, 8), (words, 8)];
        let (recorder, [rows, edges], [parents, queue, front, next]) =
            Recorder::new(graph, values, Visits::BFS.most(size));
        let (seen, is_front, order) = (Vec::new(), Vec::new(), Vec::new());
        Search { graph, recorder, rows, edges, parents, queue, front, next, seen, is_front, order }
    }

    fn run(&mut self, source: u32) {
        let vertices = self.graph.vertices();
        (0..vertices).for_each(|vertex| self.recorder.write(self.parents, vertex));
        self.seen = vec![false; vertices as usize];
        self.seen[source as usize] = true;
        self.order = vec![source];
        let mut begin = 0;
        let mut unexplored = self.graph.neighbours.len() as u64;
        let mut scout = u64::from(self.graph.degree(source));
        while begin < self.order.len() {
            if scout > unexplored / ALPHA {
                self.go_bottom_up(begin);
                (begin, scout) = (0, 1);
            } else {
                unexplored -= unexplored.min(scout);
                let end = self.order.len();
                scout = self.top_down(begin..end);
                begin = end;
            }
        }
    }

    /// Finds the neighbours of the queued vertices, and returns the sum of their degrees.
    fn top_down(&mut self, frontier: std::ops::Range<usize>) -> u64 {
        let mut scout = 0;
        for place in frontier {
            self.recorder.read(self.queue, place as u32);
            let vertex = self.order[place];
            self.recorder.read(self.rows, vertex);
            for edge in self.graph.row(vertex) {
                self.recorder.read(self.edges, edge);
                let neighbour = self.graph.neighbours[edge as usize];
                self.recorder.read(self.parents, neighbour);
                if !std::mem::replace(&mut self.seen[neighbour as usize], true) {
                    self.recorder.write(self.parents, neighbour);
                    self.recorder.read(self.rows, neighbour);
                    scout += u64::from(self.graph.degree(neighbour));
                    self.recorder.write(self.queue, self.order.len() as u32);
                    self.order.push(neighbour);
                }
            }
        }
        scout
    }

    /// Goes bottom up until a level is small, and queues that level alone.
    fn go_bottom_up(&mut self, begin: usize) {
        let vertices = self.graph.vertices();
        self.clear(self.front);
        self.is_front = vec![false; vertices as usize];
        let mut awake = (self.order.len() - begin) as u64;
        for place in begin..self.order.len() {
            self.recorder.read(self.queue, place as u32);
            self.recorder.write(self.front, self.order[place] / 64);
            self.is_front[self.order[place] as usize] = true;
        }
        loop {
            let before = std::mem::replace(&mut awake, self.bottom_up());
            std::mem::swap(&mut self.front, &mut self.next);
            if awake < before && awake <= u64::from(vertices) / BETA {
                break;
            }
        }
        self.order.clear();
        for vertex in 0..vertices {
            self.recorder.read(self.front, vertex / 64);
            if self.is_front[vertex as usize] {
                self.recorder.write(self.queue, self.order.len() as u32);
                self.order.push(vertex);
            }
        }
    }

    /// Looks for a neighbour in the frontier of each vertex that was not found, and returns how many have one.
    fn bottom_up(&mut self) -> u64 {
        self.clear(self.next);
        let mut found = Vec::new();
        for vertex in 0..self.graph.vertices() {
            self.recorder.read(self.parents, vertex);
            if self.seen[vertex as usize] {
                continue;
            }
            self.recorder.read(self.rows, vertex);
            for edge in self.graph.row(vertex) {
                self.recorder.read(self.edges, edge);
                let neighbour = self.graph.neighbours[edge as usize];
                self.recorder.read(self.front, neighbour / 64);
                if self.is_front[neighbour as usize] {
                    self.recorder.write(self.parents, vertex);
                    self.recorder.write(self.next, vertex / 64);
                    found.push(vertex);
                    break;
                }
            }
        }
        self.is_front.fill(false);
        for vertex in &found {
            self.seen[*vertex as usize] = true;
            self.is_front[*vertex as usize] = true;
        }
        found.len() as u64
    }

    fn clear(&mut self, bits: usize) {
        (0..self.graph.vertices().div_ceil(64)).for_each(|word| self.recorder.write(bits, word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_searches_find_the_same_vertices_and_two_ways_read_fewer_edges() {
        let size = Size { scale: 12, units: 1 };
        let graph = Graph::kronecker(size.scale, &mut Random::new(3));
        let source = graph.source(&mut Random::new(9));
        let mut search = Search::new(&graph, size);
        search.run(source);
        let mut reached = vec![false; graph.vertices() as usize];
        let mut order = vec![source];
        reached[source as usize] = true;
        while let Some(vertex) = order.pop() {
            for edge in graph.row(vertex) {
                let neighbour = graph.neighbours[edge as usize];
                if !std::mem::replace(&mut reached[neighbour as usize], true) {
                    order.push(neighbour);
                }
            }
        }
        assert_eq!(search.seen, reached);
        assert!(reached.iter().filter(|one| **one).count() > 1000, "the source has the giant component");
        let edges = search.recorder.range(search.edges);
        let two_ways = search.recorder.finish().visits(&edges).len();
        let top_down = bfs(Size { units: 8, ..size }, 3).visits(&edges).len() / 8;
        assert!(two_ways * 10 < top_down, "{two_ways} visits of edges, and {top_down} top down");
    }
}
