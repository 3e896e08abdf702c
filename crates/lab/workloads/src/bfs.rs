// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `bfs-hints`: breadth-first search, level by level. The vertices of a level are known before their rows are read:
//! hints and contexts depend on that.
//!
//! Each search is verified by Graph500's rules: every tree edge is an edge of the graph, and no edge spans more than
//! one level or leaves the part that was reached.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use aquifer::{Intent, Piece, contexts};
use aquifer_sim::random::Random;
use serde_json::json;

use crate::args::{Args, Way};
use crate::failure::Failure;
use crate::graph::{Graph, GraphFile, Shape};
use crate::meter::{Measured, Spent};

/// How many vertices ahead of the present one rows are prefetched: fewer than a space's list of prefetches takes (32).
const AHEAD: usize = 24;
/// Contexts of a level: more than the fetches that the executor keeps under way (64).
const CONTEXTS: usize = 96;
/// Vertices whose rows are gathered at a time: twice what a tier's queue takes.
const GATHERED: usize = 64;
/// How often a vertex with neighbours is looked for.
const SOURCES_TRIED_MAX: usize = 10_000;
const UNREACHED: u32 = u32::MAX;
/// Bytes of a neighbour.
const NEIGHBOUR: usize = 4;

/// DRAM that a search takes beside the neighbours: offsets, parents, levels and the queue.
fn ordinary_bytes(shape: &Shape) -> u64 {
    shape.offsets_bytes() + 3 * 4 * shape.vertices
}

/// Runs the searches.
pub fn run(args: &Args) -> Result<String, Failure> {
    let path = args.graph.as_deref().ok_or_else(|| Failure("bfs-hints needs --graph FILE".to_owned()))?;
    let file = GraphFile::open(path)?;
    let ordinary_bytes = ordinary_bytes(&file.shape);
    if args.footprint {
        return Ok((file.shape.neighbours_bytes() + ordinary_bytes).to_string());
    }
    let graph = file.load(args, ordinary_bytes)?;
    let mut search = Search::new(&graph, args.way);
    let (mut random, mut spent, mut times, mut is_verified) =
        (Random::new(args.seed), Spent::default(), Vec::new(), true);
    let fetched_before = graph.memory.fetched_bytes();
    for _ in 0..args.trials {
        let source = source(&graph, &mut random)?;
        let before = spent.wall;
        spent.measure(|| search.run(source))?;
        times.push((spent.wall - before).as_secs_f64());
        is_verified &= search.is_right(source)?;
    }
    times.sort_by(f64::total_cmp);
    let measured = Measured {
        spent,
        reads: search.reads,
        far_reads: search.far_reads,
        fetched_bytes: graph.memory.fetched_bytes() - fetched_before,
        bytes: graph.shape.neighbours_bytes(),
        ordinary_bytes,
        is_verified,
    };
    let median = (times[(times.len() - 1) / 2] + times[times.len() / 2]) / 2.0;
    Ok(measured.line(args, json!({ "name": "time", "value": median, "unit": "s", "better": "lower" })))
}

/// A vertex that has neighbours.
fn source(graph: &Graph, random: &mut Random) -> Result<u32, Failure> {
    let draw = || random.below(graph.shape.vertices) as u32;
    std::iter::repeat_with(draw)
        .take(SOURCES_TRIED_MAX)
        .find(|vertex| !graph.row(*vertex).is_empty())
        .ok_or_else(|| Failure("the graph has hardly any edges; make another one".to_owned()))
}

/// One search, and what all searches have counted.
struct Search<'g> {
    graph: &'g Graph,
    way: Way,
    parents: Vec<u32>,
    levels: Vec<u32>,
    /// Vertices in the order in which they were reached.
    queue: Vec<u32>,
    reads: u64,
    far_reads: u64,
}

impl<'g> Search<'g> {
    fn new(graph: &'g Graph, way: Way) -> Self {
        let count = graph.shape.vertices as usize;
        let (parents, levels) = (vec![UNREACHED; count], vec![UNREACHED; count]);
        Self { graph, way, parents, levels, queue: Vec::with_capacity(count), reads: 0, far_reads: 0 }
    }

    fn run(&mut self, source: u32) -> Result<(), Failure> {
        self.parents.fill(UNREACHED);
        self.levels.fill(UNREACHED);
        self.queue.clear();
        self.queue.push(source);
        (self.parents[source as usize], self.levels[source as usize]) = (source, 0);
        let (mut begin, mut level) = (0, 0);
        while begin < self.queue.len() {
            let frontier = self.queue[begin..].to_vec();
            begin = self.queue.len();
            level += 1;
            let Self { parents, levels, queue, .. } = self;
            let visit = |vertex: u32, row: &[u32]| {
                for neighbour in row {
                    let parent = &mut parents[*neighbour as usize];
                    if *parent == UNREACHED {
                        *parent = vertex;
                        levels[*neighbour as usize] = level;
                        queue.push(*neighbour);
                    }
                }
            };
            self.far_reads += visit_all(self.graph, self.way, &frontier, visit)?;
            self.reads += frontier.len() as u64;
        }
        Ok(())
    }

    fn is_right(&self, source: u32) -> Result<bool, Failure> {
        let (neighbours, mut is_right) = (self.graph.neighbours()?, self.parents[source as usize] == source);
        for vertex in 0..self.graph.shape.vertices as u32 {
            let (level, parent) = (self.levels[vertex as usize], self.parents[vertex as usize]);
            let mut has_parent = vertex == source || parent == UNREACHED;
            for neighbour in &neighbours[self.graph.row(vertex)] {
                let other = self.levels[*neighbour as usize];
                is_right &= (level == UNREACHED) == (other == UNREACHED) && level.abs_diff(other) <= 1;
                has_parent |= *neighbour == parent;
            }
            is_right &= has_parent && (vertex == source || parent == UNREACHED || self.is_child(vertex, parent));
        }
        Ok(is_right)
    }

    fn is_child(&self, vertex: u32, parent: u32) -> bool {
        self.levels[vertex as usize] == self.levels[parent as usize] + 1
    }
}

/// Visits the rows of these vertices. Returns how many of them were not resident.
fn visit_all(graph: &Graph, way: Way, vertices: &[u32], mut visit: impl FnMut(u32, &[u32])) -> Result<u64, Failure> {
    match way {
        Way::Dram => {
            let neighbours = graph.neighbours()?;
            vertices.iter().for_each(|vertex| visit(*vertex, &neighbours[graph.row(*vertex)]));
            Ok(0)
        }
        Way::Blocking | Way::Hints => by_loads(graph, way == Way::Hints, vertices, visit),
        Way::Contexts => by_contexts(graph, vertices, visit),
        Way::InPlace => in_place(graph, vertices, visit),
    }
}

fn bytes_of(row: &Range<usize>) -> Range<usize> {
    row.start * NEIGHBOUR..row.end * NEIGHBOUR
}

fn by_loads(
    graph: &Graph,
    with_hints: bool,
    vertices: &[u32],
    mut visit: impl FnMut(u32, &[u32]),
) -> Result<u64, Failure> {
    let ((space, mapping), neighbours, mut far_reads) = (graph.memory.far()?, graph.neighbours()?, 0);
    let bytes_max = space.prefetch_bytes_max();
    let mut announce = |vertex: &u32| {
        let bytes = bytes_of(&graph.row(*vertex));
        if bytes.is_empty() || mapping.ready(bytes.clone()) {
            return;
        }
        far_reads += 1;
        if with_hints {
            // A hint, for the start of a long row: where it is refused, the load fetches.
            let _ = mapping.prefetch(bytes.start..bytes.end.min(bytes.start + bytes_max), Intent::Read);
        }
    };
    let ahead = if with_hints { AHEAD } else { 0 };
    vertices.iter().take(ahead).for_each(&mut announce);
    for (index, vertex) in vertices.iter().enumerate() {
        vertices.get(index + ahead).into_iter().for_each(&mut announce);
        visit(*vertex, &neighbours[graph.row(*vertex)]);
    }
    Ok(far_reads)
}

fn by_contexts(graph: &Graph, vertices: &[u32], visit: impl FnMut(u32, &[u32])) -> Result<u64, Failure> {
    let ((space, mapping), neighbours) = (graph.memory.far()?, graph.neighbours()?);
    // A part of a row shares its pages with its neighbours: half of what may be asked for is always accepted.
    let bytes_max = space.prefetch_bytes_max() / 2;
    let (next, far_reads, failed, visit) = (Cell::new(0), Cell::new(0), Cell::new(None), RefCell::new(visit));
    let context = || async {
        while let Some(vertex) = vertices.get(next.replace(next.get() + 1)) {
            let row = graph.row(*vertex);
            let bytes = bytes_of(&row);
            if !mapping.ready(bytes.clone()) {
                far_reads.set(far_reads.get() + 1);
                for start in bytes.clone().step_by(bytes_max) {
                    if let Err(error) = mapping.fetch(start..bytes.end.min(start + bytes_max)).await {
                        failed.set(Some(error));
                        return;
                    }
                }
            }
            (visit.borrow_mut())(*vertex, &neighbours[row]);
        }
    };
    contexts::run(space, (0..CONTEXTS.min(vertices.len())).map(|_| context()));
    failed.take().map_or(Ok(far_reads.get()), |error| Err(error.into()))
}

/// By gathers, each of the rows of some vertices.
fn in_place(graph: &Graph, vertices: &[u32], mut visit: impl FnMut(u32, &[u32])) -> Result<u64, Failure> {
    let (_, mapping) = graph.memory.far()?;
    let (mut row, mut far_reads) = (Vec::new(), 0);
    for part in vertices.chunks(GATHERED) {
        let ranges: Vec<Range<usize>> = part.iter().map(|vertex| bytes_of(&graph.row(*vertex))).collect();
        far_reads += ranges.iter().filter(|range| !mapping.ready((*range).clone())).count() as u64;
        let mut rows: Vec<Vec<u8>> = ranges.iter().map(|range| vec![0; range.len()]).collect();
        let pieces = ranges.iter().zip(&mut rows).map(|(range, into)| Piece { offset: range.start, into });
        mapping.gather_pieces(&mut pieces.collect::<Vec<_>>())?;
        for (vertex, bytes) in part.iter().zip(&rows) {
            row.clear();
            row.extend(bytes.as_chunks().0.iter().map(|neighbour| u32::from_le_bytes(*neighbour)));
            visit(*vertex, &row);
        }
    }
    Ok(far_reads)
}
