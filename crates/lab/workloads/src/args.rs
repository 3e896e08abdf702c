// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The table of arguments.

use std::path::PathBuf;

use aquifer_core::units::ByteSize;
use clap::{Parser, ValueEnum};

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Breadth-first search over a graph file, which knows the vertices that it will visit next.
    BfsHints,
    /// Items of 64 bytes at uniformly random places of a large array.
    Gather,
    /// A hot set beside a scan, and what hints about the scan are worth.
    Hints,
    /// Values of 1 KiB by key, by Zipf's law with exponent 0.99, scrambled.
    Kv,
    /// Pages of 4 KiB, uniformly random.
    Lookup,
}

impl Workload {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::BfsHints => "bfs-hints",
            Self::Gather => "gather",
            Self::Hints => "hints",
            Self::Kv => "kv",
            Self::Lookup => "lookup",
        }
    }
}

/// How items are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// By loads, which wait for the tier.
    Blocking,
    /// By contexts, of which others run while one waits.
    Contexts,
    /// All of it in DRAM.
    Dram,
    /// By loads, with prefetches of what is read soon.
    Hints,
    /// In place, without making pages resident.
    InPlace,
}

impl Way {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocking => "blocking",
            Self::Contexts => "contexts",
            Self::Dram => "dram",
            Self::Hints => "hints",
            Self::InPlace => "in-place",
        }
    }
}

impl Args {
    /// The name of the way in the result.
    pub fn way_name(&self) -> &'static str {
        if self.file.is_some() { "mmap-file" } else { self.way.name() }
    }
}

/// The command line.
#[derive(Clone, Debug, Parser)]
#[command(name = "aquifer-workloads", version, max_term_width = 100)]
pub struct Args {
    /// What is read
    #[arg(value_enum)]
    pub workload: Workload,
    /// How items are read; not with --file
    #[arg(long, value_enum, default_value = "dram")]
    pub way: Way,
    /// kv, lookup, gather: the items are in this new file, and are read through a mapping with MADV_RANDOM
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// kv, lookup, gather: sample touches for a miss-ratio curve half of the time, and print the reads per second
    /// with sampling, relative to those without
    #[arg(long, conflicts_with = "file")]
    pub curve: bool,
    /// Local memory for everything: the index and other ordinary memory of the workload are taken off it
    #[arg(long, value_name = "SIZE")]
    pub dram: Option<ByteSize>,
    /// The tier, as for `aquifer run`
    #[arg(long, value_name = "SPEC")]
    pub tier: Option<String>,
    /// Let each thread resolve its own faults, since no system call uses the memory
    #[arg(long)]
    pub without_system_calls: bool,
    /// Bytes of the items
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    pub bytes: ByteSize,
    /// How long to measure
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// How long to read before that, so that what is read often is resident
    #[arg(long, default_value_t = 2.0)]
    pub warmup: f64,
    /// bfs-hints: the graph, made by `graph build` of bench/workloads
    #[arg(long, value_name = "FILE", required_if_eq("workload", "bfs-hints"))]
    pub graph: Option<PathBuf>,
    /// bfs-hints: searches, each from another vertex
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub trials: u32,
    /// The stream of random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print how many bytes the workload takes in DRAM alone, and end
    #[arg(long)]
    pub footprint: bool,
}
