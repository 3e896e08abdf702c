// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads the graph file that `graph build` of `bench/workloads` writes; `csr.hpp` there has the table of its bytes.
//!
//! The offsets are in DRAM, the neighbours in the memory of the workload. A file that is not such a graph is refused:
//! whatever it contains, no row and no neighbour is outside the arrays.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use aquifer::zerocopy::{FromBytes, IntoBytes};

use crate::args::Args;
use crate::failure::Failure;
use crate::memory::Memory;

const MAGIC: &[u8; 8] = b"CSRGRAPH";
const VERSION: u64 = 1;
/// The arrays begin at multiples of this.
const PAGE: u64 = 4096;
const HEADER_BYTES: usize = 32;
/// As in `csr.hpp`.
const VERTICES_MAX: u64 = 1 << 31;
const EDGES_MAX: u64 = 1 << 40;
/// Bytes that are read at a time: far memory may not be passed to read(2).
const PIECE_BYTES: usize = 1 << 20;

/// The sizes of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of vertices.
    pub vertices: u64,
    /// Number of directed edges.
    pub edges: u64,
}

impl Shape {
    /// Reads the first page of a file.
    pub fn read(page: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(page.get(at..at + 8)?.try_into().ok()?));
        let shape = Self { vertices: number(16)?, edges: number(24)? };
        let is_graph = page.get(..8)? == MAGIC && number(8)? == VERSION;
        let fits = (1..=VERTICES_MAX).contains(&shape.vertices) && shape.edges <= EDGES_MAX;
        (is_graph && fits).then_some(shape)
    }

    /// Bytes of the offsets, which are in DRAM.
    pub fn offsets_bytes(&self) -> u64 {
        (self.vertices + 1) * 8
    }

    /// Bytes of the neighbours.
    pub fn neighbours_bytes(&self) -> u64 {
        self.edges * 4
    }
}

/// A graph whose neighbours are in far memory or in DRAM.
pub struct Graph {
    /// Its sizes.
    pub shape: Shape,
    /// Where the row of each vertex begins, and where the last one ends.
    pub offsets: Vec<u64>,
    /// The neighbours, two to a word.
    pub memory: Memory,
}

/// A file that is open at its second page.
pub struct GraphFile {
    file: File,
    name: String,
    /// The sizes of the graph.
    pub shape: Shape,
}

impl GraphFile {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let cannot = |error| Failure::of(&format!("the graph {name} cannot be read"), error);
        let mut file = File::open(path).map_err(cannot)?;
        let mut page = vec![0; PAGE as usize];
        file.read_exact(&mut page).map_err(cannot)?;
        let shape = Shape::read(&page[..HEADER_BYTES]);
        let shape = shape.ok_or_else(|| Failure(format!("{name} is not a graph; make one: graph build --out FILE")))?;
        Ok(Self { file, name, shape })
    }

    /// Reads the graph. `ordinary_bytes` is what the search takes in DRAM, the offsets included.
    pub fn load(mut self, args: &Args, ordinary_bytes: u64) -> Result<Graph, Failure> {
        let shape = self.shape;
        let mut offsets = vec![0_u64; shape.vertices as usize + 1];
        self.fill(offsets.as_mut_bytes())?;
        let padding = shape.offsets_bytes().next_multiple_of(PAGE) - shape.offsets_bytes();
        self.fill(&mut vec![0; padding as usize])?;
        let is_sound = offsets[0] == 0 && offsets.is_sorted() && offsets.last() == Some(&shape.edges);
        let mut memory = Memory::open(args, (shape.edges as usize).div_ceil(2).max(1), ordinary_bytes)?;
        let bytes = &mut memory.words_mut()?.as_mut_bytes()[..shape.neighbours_bytes() as usize];
        let mut piece = vec![0; PIECE_BYTES];
        let mut is_within = true;
        for part in bytes.chunks_mut(PIECE_BYTES) {
            let piece = &mut piece[..part.len()];
            self.fill(piece)?;
            let mut neighbours = piece.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
            is_within &= neighbours.all(|neighbour| u64::from(neighbour) < shape.vertices);
            part.copy_from_slice(piece);
        }
        match is_sound && is_within {
            true => Ok(Graph { shape, offsets, memory }),
            false => Err(Failure(format!("the graph {} is damaged; make it again: graph build", self.name))),
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Failure> {
        self.file
            .read_exact(bytes)
            .map_err(|error| Failure::of(&format!("the graph {} cannot be read", self.name), error))
    }
}

impl Graph {
    /// The row of a vertex, as indices of neighbours.
    pub fn row(&self, vertex: u32) -> Range<usize> {
        self.offsets[vertex as usize] as usize..self.offsets[vertex as usize + 1] as usize
    }

    /// All neighbours, to be read by loads.
    pub fn neighbours(&self) -> Result<&[u32], Failure> {
        let bytes = &self.memory.words()?.as_bytes()[..self.shape.neighbours_bytes() as usize];
        <[u32]>::ref_from_bytes(bytes).map_err(|_| Failure("neighbours are not aligned".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(version: u64, vertices: u64, edges: u64) -> Vec<u8> {
        [&MAGIC[..], &version.to_le_bytes(), &vertices.to_le_bytes(), &edges.to_le_bytes()].concat()
    }

    #[test]
    fn only_graphs_are_graphs() {
        assert_eq!(Shape::read(&page(1, 8, 20)), Some(Shape { vertices: 8, edges: 20 }));
        for wrong in [page(2, 8, 20), page(1, 0, 0), page(1, (1 << 31) + 1, 0), page(1, 8, u64::MAX), vec![0; 32]] {
            assert_eq!(Shape::read(&wrong), None);
        }
        assert_eq!(Shape::read(&page(1, 8, 20)[..31]), None);
    }
}
