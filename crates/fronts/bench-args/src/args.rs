// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The table of the bench's arguments: only what the user typed. The bench's own `args.rs` checks it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::size::{parse_duration, parse_rate, parse_size};

/// The command line of `aquifer bench`.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = "\
Examples:
  aquifer bench --quick                                   STREAM at 30 %, beside swap on disk
  aquifer bench --workload stream,bfs --local 30 --rounds 5 --json out.json --plots plots
  aquifer bench --workload all                            everything, at 30, 50 and 70 % (hours)
  aquifer bench --overhead all                            costs: faults, runs below budget, idling
  aquifer bench --workload redis,redis-save --local 75,50 a server: throughput, p99, its dump
  aquifer bench --workload kv --contender dram,contexts:emulated:xl-flash-slc
                                                          a program that uses the library
  aquifer bench --workload memory --plots plots            latency and bandwidth of each NUMA node
  aquifer bench --contender dram,aquifer-node:1,numactl:1  a node as tier, and as all memory
  aquifer bench --against old/aquifer --workload stream   this build beside another one, in turn
  aquifer bench --plan --workload all                     what would run, and what cannot and why
  aquifer bench -- ./program its arguments                your own program: would it help?

Bars are printed last, each met, missed or not measured; with --check, a missed one is exit 4:
  over swap, mmap, UMap, fio  --local 30 --workload stream,stream-static,bfs,pr,bc,load
  scattered accesses          --local 30,50,70 --workload bfs,pr,bc,cg,load
  TLS over plain text         --local 30 --contender aquifer-donor,aquifer-donor-tls
  two cables over one         --local 30 --contender aquifer-donors:1,aquifer-donors:2
  budget kept                 any run of aquifer-flash
  no more memory than swap    any run of aquifer-flash with swap-disk
  throughput left of dram     --local 75,50 --workload redis
  mean loss against dram      --local 50 --workload all --contender dram,aquifer-dram
  a whole run below budget    --local 150 --contender dram,aquifer-flash --workload all --rounds 16
  fault, below budget, idle   --overhead all
  a read from a donor, TLS    --overhead donor
  several donors' cables used --overhead striping
  faults of many threads      --overhead threads
  contexts left of dram       --workload kv --contender dram,contexts:emulated:xl-flash-slc
  contexts, hints over loads  --workload lookup,bfs-hints
  what hints are worth        --workload hints
  contexts over mmap, swap    --workload lookup --contender contexts,mmap-file,swap-disk,fio
  gathers over loads          --workload gather --contender in-place,blocking
  Python's, and over memmap   --workload gather-python --contender in-place,blocking,mmap-file
  YCSB: left of DRAM          --workload ycsb-a,ycsb-c
                              --contender dram,aquifer-emulated:xl-flash-slc
                              --contender cache,cache:emulated:xl-flash-slc
  a miss-ratio curve          --overhead curve
Beside bars over dram and swap: what a pager that reads on demand can reach at most, for servers and
for graphs up to --scale 20, if aquifer-sim is beside this program or in PATH.

Exit codes: 0 everything that could run did; 1 a run failed; 2 bad arguments; 3 nothing could run;
4 a measured bar was missed (with --check); 129, 130, 143 ended by a signal, with everything cleaned
up.
UMap 2.1 is a contender once it is installed, as github.com/LLNL/umap says (a release build), under
PREFIX, and the workloads are built for it: make -C bench/workloads UMAP=PREFIX
Limits, swap areas and hosts for donors need root. A swap area or cgroup that the bench did not make is never touched.")]
pub struct BenchArgs {
    /// Workloads to run, or `all` [default: stream]
    ///
    /// stream, stream-static, uniform-read, uniform-update, zipf-read, zipf-update, chase, matmul, cg, bfs, pr, bc,
    /// load, redis, redis-save, ycsb-a, ycsb-c, kv, lookup, bfs-hints, gather, gather-python, hints.
    ///
    /// `memory`, which is not part of `all`, measures memory itself: latency, bandwidth and latency under load of each
    /// NUMA node, and of the tiers of the named contenders
    #[arg(short, long, value_delimiter = ',', value_name = "NAME")]
    pub workload: Vec<String>,
    /// What Aquifer itself costs: fault, listener, scattered, curve, below-budget, hot-set, idle,
    /// donor, striping, threads, or `all`
    ///
    /// Without --workload, nothing else is measured.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub overhead: Vec<String>,
    /// Contenders to compare [default: all of them]
    ///
    /// Only when named: aquifer-compressed; aquifer-flash-encrypted; swap-zram-counted, whose compressed pages count in
    /// the limit, as those of aquifer-compressed do; aquifer-emulated:PROFILE; aquifer-node:N, over the memory of NUMA
    /// node N; numactl:N, with all of the program's memory on that node; and aquifer-donors:N, over 1 to
    /// 8 donors, each on its own host (a network namespace). The workloads kv, lookup, bfs-hints, gather, gather-python
    /// and hints use the library, and have the contenders blocking, own-faults (by loads; each thread resolves its own
    /// faults), hints, contexts and in-place: over flash, or over another tier, as in contexts:dram,
    /// contexts:compressed and contexts:emulated:PROFILE. For ycsb-a and ycsb-c, `aquifer cache` can be the server:
    /// cache has everything in DRAM, and cache:TIER has in that tier what does not fit its local memory
    #[arg(short, long, value_delimiter = ',', value_name = "NAME")]
    pub contender: Vec<String>,
    /// Local memory in per cent of the workload's footprint [default: 30,50,70; docs/library.md has others]
    #[arg(short, long, value_delimiter = ',', value_name = "PERCENT")]
    pub local: Vec<u32>,
    /// How many times each contender has its turn [default: 3; with --against 4]
    ///
    /// Every other round is in reverse order. With an even number, each of two contenders comes before the other
    /// equally often; with an odd number, one of them comes first once more than the other
    #[arg(short, long)]
    pub rounds: Option<u32>,
    /// Bytes of the arrays, or of the values in Redis, such as 1GiB
    #[arg(long, value_parser = parse_size, value_name = "SIZE")]
    pub bytes: Option<u64>,
    /// Graph workloads: log2 of the number of vertices
    #[arg(long, default_value_t = 22)]
    pub scale: u32,
    /// Graph workloads: use this graph file instead of building one
    #[arg(long, value_name = "FILE")]
    pub graph: Option<PathBuf>,
    /// STREAM: iterations, the first of which does not count [default: 3]
    #[arg(long)]
    pub iterations: Option<u32>,
    /// Graph workloads, matmul and cg: trials in one run
    #[arg(long)]
    pub trials: Option<u32>,
    /// Random access, pointer chase, kv, lookup, gather, hints: how long one run measures [default: 5s]; Redis [10s]
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    pub seconds: Option<Duration>,
    /// Threads of every program [default: one per CPU]; for ycsb-a and ycsb-c, the CPUs of the server
    #[arg(long)]
    pub threads: Option<u32>,
    /// Directory on the disk to measure: flash tier, swap file and mapped file lie there
    #[arg(long, default_value = "/var/tmp/aquifer-bench", value_name = "DIR")]
    pub dir: PathBuf,
    /// Where the workloads were built
    #[arg(long, default_value = "target/workloads", value_name = "DIR")]
    pub programs: PathBuf,
    /// The aquifer binary [default: this one, or the one beside it, or the one in PATH]
    #[arg(long, value_name = "FILE")]
    pub aquifer: Option<PathBuf>,
    /// Another build of aquifer: each Aquifer contender takes turns with it, and the last lines are ratios of the two
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
    /// An additional argument for `aquifer run`, such as --aquifer-arg=--block=1MiB
    #[arg(long, hide_short_help = true, allow_hyphen_values = true, value_name = "ARG")]
    pub aquifer_arg: Vec<String>,
    /// UMap: its page size [default: for each workload, the best of the sizes that were tried]
    #[arg(long, hide_short_help = true, value_parser = parse_size, value_name = "SIZE")]
    pub umap_page: Option<u64>,
    /// aquifer-donors:N, striping: bytes per second that each donor's cable carries in each direction; 250MB/s is 2
    /// Gbit/s
    #[arg(long, hide_short_help = true, value_parser = parse_rate, default_value = "250MB/s", value_name = "RATE")]
    pub cable_rate: u64,
    /// A run that takes longer than this has failed
    #[arg(long, value_parser = parse_duration, default_value = "20min", value_name = "TIME")]
    pub timeout: Duration,
    /// Write everything that was measured to this file; `-` is stdout
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write SVG plots into this directory
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// A demonstration in under five minutes: one round of STREAM at 30 %, Aquifer against swap on disk
    #[arg(long)]
    pub quick: bool,
    /// Exit with 4 when a measured bar is missed
    #[arg(long)]
    pub check: bool,
    /// Only print what would run and what would be skipped
    #[arg(long)]
    pub plan: bool,
    /// Measure this program, with its arguments, instead of a workload
    ///
    /// One run measures its footprint, unless --bytes gives it. Then the program runs in turn in DRAM, under Aquifer,
    /// and with swap on disk and in zram in the same memory limit, with half of its footprint as local memory. It must
    /// exit by itself with status 0. It reads end of file from standard input; its output is discarded.
    #[arg(last = true, value_name = "PROGRAM", conflicts_with_all = ["workload", "overhead", "quick", "umap_page"])]
    pub program: Vec<OsString>,
}
