// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A breadth-first search over a graph whose edges are four times the budget of DRAM. The queue says which rows are
//! read next: the search looks some vertices ahead in it, and prefetches their rows.
//!
//! The example searches the graph without hints and with them, checks that both reach the same vertices at the same
//! distances, and prints both figures.
//!
//! ```sh
//! cargo run --release -p aquifer --example graph_lookahead                # an emulated tier
//! cargo run --release -p aquifer --example graph_lookahead -- flash:/var/tmp/cold,size=1GiB
//! ```
//!
//! A second argument is the number of vertices that a search visits.

use std::error::Error;
use std::time::Instant;

use aquifer::{Intent, Mapping, Pattern, Space};

/// Vertices, and the neighbours that each has: 64 MiB of edges.
const VERTICES: u32 = 1 << 20;
const DEGREE: usize = 16;
/// How many vertices ahead of the present one to prefetch.
const AHEAD: usize = 24;
/// Vertices that a search visits.
const VISITS_MAX: usize = 20_000;
const ROW_BYTES: usize = DEGREE * 4;
const UNREACHED: u32 = u32::MAX;

/// Returns a neighbour of a vertex: scattered, so that a row says nothing about where the next one is.
fn neighbour(vertex: u32, edge: usize) -> u32 {
    let number = (u64::from(vertex) << 8 | edge as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((number ^ (number >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as u32 % VERTICES
}

fn row(vertex: u32) -> std::ops::Range<usize> {
    vertex as usize * ROW_BYTES..(vertex as usize + 1) * ROW_BYTES
}

/// Returns the distances of the vertices that were reached from `source`, and how many rows were read.
fn search(
    edges: &Mapping,
    source: u32,
    visits_max: usize,
    with_hints: bool,
) -> Result<(Vec<u32>, usize), aquifer::Error> {
    let mut distances = vec![UNREACHED; VERTICES as usize];
    let (mut queue, mut visited) = (vec![source], 0);
    distances[source as usize] = 0;
    while visited < queue.len().min(visits_max) {
        let vertex = queue[visited];
        if let Some(next) = queue.get(visited + AHEAD).filter(|next| with_hints && !edges.ready(row(**next))) {
            edges.prefetch(row(*next), Intent::Read)?;
        }
        for other in edges.view::<u32>(row(vertex))? {
            if distances[*other as usize] == UNREACHED {
                distances[*other as usize] = distances[vertex as usize] + 1;
                queue.push(*other);
            }
        }
        visited += 1;
    }
    Ok((distances, visited))
}

/// Runs the same search without far memory: its result is the right one.
fn expected(source: u32, visits_max: usize) -> Vec<u32> {
    let mut distances = vec![UNREACHED; VERTICES as usize];
    let (mut queue, mut visited) = (vec![source], 0);
    distances[source as usize] = 0;
    while visited < queue.len().min(visits_max) {
        let vertex = queue[visited];
        for other in (0..DEGREE).map(|edge| neighbour(vertex, edge)) {
            if distances[other as usize] == UNREACHED {
                distances[other as usize] = distances[vertex as usize] + 1;
                queue.push(other);
            }
        }
        visited += 1;
    }
    distances
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let tier = arguments.next().unwrap_or_else(|| "emulated:nvme-gen4,size=256MiB".to_owned());
    let visits_max: usize = arguments.next().map_or(Ok(VISITS_MAX), |count| count.parse())?;
    let space = Space::builder().dram("16MiB").tier(&tier).open()?;
    let mut edges = space.map(VERTICES as usize * ROW_BYTES)?;
    for (vertex, row) in (0..).zip(edges.view_mut::<[u32; DEGREE]>(..)?) {
        *row = std::array::from_fn(|edge| neighbour(vertex, edge));
    }
    edges.pattern(.., Pattern::Random)?;
    println!("{} MiB of edges over {tier}, 16 MiB of DRAM", (VERTICES as usize * ROW_BYTES) >> 20);
    for (name, with_hints, source) in [("loads", false, 1), ("lookahead", true, 2)] {
        let started = Instant::now();
        let (distances, visited) = search(&edges, source, visits_max, with_hints)?;
        println!("{name:10} {:6.2} us a vertex", started.elapsed().as_secs_f64() * 1e6 / visited as f64);
        assert_eq!(distances, expected(source, visits_max));
    }
    Ok(())
}
