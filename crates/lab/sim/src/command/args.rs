// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The command line's arguments.

use std::path::PathBuf;

use aquifer_core::policy::PolicyName;
use aquifer_core::units::{ByteSize, Order};
use aquifer_sim::bounded::Bounded;
use aquifer_sim::graph::{SCALE, SCALE_MAX};
use aquifer_sim::workload::Workload;
use clap::{Args, Parser, Subcommand};

const EXAMPLES: &str = "Examples:
  aquifer-sim                                      the whole table
  aquifer-sim --workload cyclic,triad --local 30   two workloads, 30 % local
  aquifer-sim --policy s3fifo,lru --json           two policies, as JSON lines
  aquifer-sim --prefetch --block auto --seed 7     with read-ahead and elastic blocks, other random numbers
  aquifer-sim replay run.rec                       does the engine decide as it did when it was recorded?
  aquifer-sim replay run.rec --policy lru,fifo     what others would have cost
  aquifer-sim bound --workload bc --read-us 50 --dram-us 1900000 --threads 2
                                                   the least time of a pager that reads on demand
  aquifer-sim histories --count 100000             the driver, interrupted anywhere, with failures
  aquifer-sim contention --thread-us 8 --worker-us 2 --locks 2.5 --held-us 1.5
                                                   what more cores would give, from what a fault costs

Each figure of the table is the part of visited pages that took nothing from the tier. With --prefetch a second one
follows: the part of visits that did not wait for it. 'opt' is the optimum that knows the future.

Exit codes: 0 done, and the same decisions; 1 a replay differs, a history went wrong, or output refused; 2 bad
arguments; 3 a recording that cannot be read.";

const BOUND: &str = "\
A unit of work is a source of bc, a search of bfs, a round of pagerank (a trial has up to 20), and a request of a
server, where requests follow Zipf's law with exponent 0.99 and popular values lie anywhere. The least time is the time
in DRAM plus the misses times the read, divided by the threads.

This bounds pagers that read on demand, one page of 4 KiB at a time. Reading ahead can be faster: read-ahead that
knows the future, or of data that is read in order, as pagerank reads its edges.";

/// Plays workloads and recordings against Aquifer's engine, and prints what it decides.
#[derive(Debug, Parser)]
#[command(name = "aquifer-sim", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    /// What else to do
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The table of synthetic workloads
    #[command(flatten)]
    pub workloads: Workloads,
}

/// What is done besides the table.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Replay a recording of 'aquifer run --record': does the engine decide the same? With other settings: what would
    /// the program's faults have cost?
    Replay(Replay),
    /// Print how often a pager that reads on demand must read, for programs of 'aquifer bench': the misses of the
    /// optimum that knows the future. It bounds pagers that read one page at a time when it is touched; read-ahead that
    /// knows the future could do better, and so does read-ahead of what is read in order
    Bound(Bound),
    /// Run the shipped driver on a modelled kernel and tier, interrupted anywhere, with failures: does every read
    /// return the last write, or an error? The first history that goes wrong is printed with its seed
    Histories(Histories),
    /// Simulate threads that fault all the time and share cores, the lock of a space and its worker: how many faults
    /// per second would a larger machine give? The figures are upper bounds
    Contention(Contention),
}

/// Which programs are bounded, and by which medium.
#[derive(Args, Debug)]
#[command(after_help = BOUND)]
pub struct Bound {
    /// Programs of the bench: bc, bfs, pagerank, server (redis and kv), ycsb; all when not given
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub workload: Vec<Bounded>,
    /// Local memory in percent of the program's memory
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [30, 50, 70],
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub local: Vec<u32>,
    /// Vertices of the graphs as a power of two, at most 20; each has 16 edges on average, as in Graph500
    #[arg(long, value_name = "N", default_value_t = SCALE, value_parser = scale())]
    pub scale: u32,
    /// Values of the servers
    #[arg(long, value_name = "COUNT", default_value_t = 1 << 19, value_parser = clap::value_parser!(u32).range(1000..=1 << 24))]
    pub values: u32,
    /// Bytes that a value takes in memory, where values lie in a row and may begin on one page and end on the next; a
    /// value of 1 KiB takes 1280 in Redis, where jemalloc rounds up, and 1024 in the library's store
    #[arg(long, value_name = "BYTES", default_value_t = 1280, value_parser = clap::value_parser!(u32).range(16..=1 << 16))]
    pub slot: u32,
    /// Time of one read of a page from the medium, in microseconds; with --dram-us the least time is printed
    #[arg(long, value_name = "US", requires = "dram_us", value_parser = time)]
    pub read_us: Option<f64>,
    /// Time of a unit of work in DRAM, in microseconds, of one program
    #[arg(long, value_name = "US", requires = "read_us", value_parser = long_time)]
    pub dram_us: Option<f64>,
    /// Threads of the program, which read at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "read_us", value_parser = up_to_1024())]
    pub threads: u32,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// One JSON object per line instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Whose faults are simulated, and what each costs. 'aquifer bench --overhead threads' measures it.
#[derive(Args, Debug)]
pub struct Contention {
    /// CPU time of the thread that faults, in microseconds, with its own work between faults
    #[arg(long, value_name = "US", value_parser = time)]
    pub thread_us: f64,
    /// CPU time of the worker for a fault, in microseconds
    #[arg(long, value_name = "US", value_parser = time, default_value = "0")]
    pub worker_us: f64,
    /// Uses of the engine's lock for a fault
    #[arg(long, value_name = "COUNT", value_parser = time)]
    pub locks: f64,
    /// How long a fault holds the lock, in microseconds; a part of the CPU time
    #[arg(long, value_name = "US", value_parser = time)]
    pub held_us: f64,
    /// Cores of the machines
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_values_t = [2, 8, 32], value_parser = up_to_1024())]
    pub cores: Vec<u32>,
    /// Threads of the program
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 64], value_parser = up_to_1024())]
    pub threads: Vec<u32>,
    /// Parts of the space, each with a lock and a worker
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_values_t = [1, 4, 16], value_parser = up_to_1024())]
    pub shards: Vec<u32>,
    /// Faults of each simulation
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub faults: u64,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// One JSON object per line instead of a table
    #[arg(long)]
    pub json: bool,
}

fn up_to_1024() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=1024)
}

fn scale() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(8..=i64::from(SCALE_MAX))
}

fn time(text: &str) -> Result<f64, String> {
    number_up_to(1e6, text)
}

/// Up to eleven days.
fn long_time(text: &str) -> Result<f64, String> {
    number_up_to(1e12, text)
}

fn number_up_to(most: f64, text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("{text} is not a number"))?;
    if value.is_finite() && (0.0..=most).contains(&value) {
        return Ok(value);
    }
    Err(format!("{text} is not between 0 and {most}"))
}

/// How synthetic workloads are played.
#[derive(Args, Debug)]
pub struct Workloads {
    /// Workloads to play; all when not given
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub workload: Vec<Workload>,
    /// Policies to compare; all when not given
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub policy: Vec<PolicyName>,
    /// Local memory in percent of the workload's memory
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [30, 50, 70],
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub local: Vec<u32>,
    /// Blocks of 128 KiB that the synthetic workloads have; the graphs have their own size
    #[arg(long, value_name = "COUNT", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(100..=1 << 24))]
    pub blocks: u32,
    /// Vertices of the graphs as a power of two, at most 20
    #[arg(long, value_name = "N", default_value_t = SCALE, value_parser = scale())]
    pub scale: u32,
    /// How many bytes the engine moves as one, or auto
    #[arg(long, value_name = "SIZE|auto", default_value = "128KiB", value_parser = block)]
    pub block: BlockSize,
    /// Read ahead, too
    #[arg(long)]
    pub prefetch: bool,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// One JSON object per line instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Which histories are run.
#[derive(Args, Debug)]
pub struct Histories {
    /// Seed of the first history; each further one has the next number
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// How many histories
    #[arg(long, default_value_t = 1_000)]
    pub count: u64,
    /// Also stop after this many minutes
    #[arg(long, value_name = "N")]
    pub minutes: Option<u64>,
    /// A JSON object instead of a sentence
    #[arg(long)]
    pub json: bool,
}

/// How a recording is replayed.
#[derive(Args, Debug)]
pub struct Replay {
    /// The recording
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Play its faults under other policies
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub policy: Vec<PolicyName>,
    /// Play its faults in other budgets, for example 4GiB
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    pub dram: Vec<ByteSize>,
    /// Play its faults with other blocks: a size, or auto
    #[arg(long, value_name = "SIZE|auto", value_delimiter = ',', value_parser = block)]
    pub block: Vec<BlockSize>,
    /// Play its faults without reading ahead
    #[arg(long, conflicts_with = "prefetch")]
    pub no_prefetch: bool,
    /// Play its faults with reading ahead
    #[arg(long)]
    pub prefetch: bool,
    /// JSON objects, one per line
    #[arg(long)]
    pub json: bool,
}

impl Replay {
    /// Whether any setting differs from the recorded ones.
    pub fn is_counterfactual(&self) -> bool {
        let lists = [self.policy.is_empty(), self.dram.is_empty(), self.block.is_empty()];
        lists.contains(&false) || self.no_prefetch || self.prefetch
    }
}

/// How many bytes move together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockSize {
    /// Learnt for each range, starting with 128 KiB.
    Auto,
    /// Always this many.
    Fixed(Order),
}

impl BlockSize {
    /// The size at first.
    pub fn order(self) -> Order {
        match self {
            BlockSize::Auto => Order::DEFAULT,
            BlockSize::Fixed(order) => order,
        }
    }
}

fn block(text: &str) -> Result<BlockSize, String> {
    if text == "auto" {
        return Ok(BlockSize::Auto);
    }
    let ByteSize(bytes) = text.parse()?;
    Order::of_bytes(bytes)
        .map(BlockSize::Fixed)
        .ok_or_else(|| format!("{text} cannot be a block; choose a power of two from 4KiB to 2MiB, or auto"))
}
