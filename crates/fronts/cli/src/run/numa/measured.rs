// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `--numa auto`: measures how fast the CPUs read each node, once, and keeps the result in the state directory.
//!
//! `aquifer_nodes::bandwidth` makes shares of it. This file measures: as many threads as the process has CPUs read
//! memory of one node at the same time. It is a coarse figure, enough for shares; `aquifer bench --workload memory`
//! measures mixes, latencies and loads.
//!
//! Threads: those of a measurement end with it. Their policy is their own.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use aquifer_nodes::bandwidth::{Measurement, NodeBandwidth, with_memory};
use aquifer_nodes::placement::Placement;
use aquifer_nodes::{Node, Nodes};
use aquifer_sys::numa::{NODES_MAX, NodeMask, Policy, count_pages, set_policy};
use aquifer_sys::safe_open::{self, Purpose};
use nix::libc;

use crate::exit::{ExitCode, Failure, say};

/// The file in the state directory.
const FILE: &str = "bandwidth.json";
/// How much of it is read at most: 64 nodes take less.
const FILE_BYTES_MAX: u64 = 16 << 10;
/// What each thread reads: more than its part of the last-level cache. glibc takes an allocation of this size from the
/// kernel, whatever was freed before, so that its pages are new and follow the policy.
const BYTES_EACH: usize = 64 << 20;
/// At most this part of the node's available memory is read, by all threads together.
const AVAILABLE_PART: u64 = 8;
/// More threads than it takes to saturate a node.
const THREADS_MAX: usize = 32;
/// How long memory is filled, at most. A slow node is measured with the memory that was filled by then.
const FILL_TIME_MAX: Duration = Duration::from_millis(300);
/// How long one round reads.
const ROUND_TIME: Duration = Duration::from_millis(80);
/// Rounds, of which the fastest counts: whatever else runs can only slow one down.
const ROUNDS: usize = 3;
/// Words between two looks at the clock: 64 KiB.
const CHUNK_WORDS: usize = 8192;
const PAGE_BYTES: usize = 4096;

/// Returns the placement that follows from the measured bandwidth, measured now or earlier. Returns `None` if one node
/// has all the bandwidth.
pub fn placement(nodes: &Nodes, state_dir: &Path, quiet: bool) -> Result<Option<Placement>, Failure> {
    let path = Some(state_dir).filter(|directory| directory.is_absolute()).map(|directory| directory.join(FILE));
    let kept = path.as_deref().and_then(read).filter(|kept| kept.is_of(nodes));
    let measurement = match kept {
        Some(kept) => kept,
        None => {
            let measurement = measure(nodes)?;
            let kept = path.as_deref().map(|path| keep(path, &measurement));
            if !quiet {
                say(&format!("--numa auto: measured {measurement}; {}", outcome(path.as_deref(), kept)));
            }
            measurement
        }
    };
    let placement = measurement.placement();
    if placement.is_none() && !quiet {
        say(&"--numa auto: no second node is worth spreading over, so nothing is spread; leave --numa out");
    }
    Ok(placement)
}

fn outcome(path: Option<&Path>, kept: Option<io::Result<()>>) -> String {
    match (path, kept) {
        (Some(path), Some(Ok(()))) => format!("kept in {}, remove it to measure again", path.display()),
        (Some(path), Some(Err(error))) => {
            format!("not kept in {}: {error}; name another directory with --state-dir", path.display())
        }
        _ => "not kept: name a directory with --state-dir".to_owned(),
    }
}

/// Returns the kept measurement. What cannot be read, or what others could have written, is measured again.
fn read(path: &Path) -> Option<Measurement> {
    let file = safe_open::open(path, Purpose::Input, libc::O_RDONLY | libc::O_NONBLOCK, 0).ok()?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Keeps a measurement, as a whole or not at all.
fn keep(path: &Path, measurement: &Measurement) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        super::super::state_dir::create(directory).map_err(|failure| io::Error::other(failure.cause))?;
    }
    let new: PathBuf = path.with_extension(format!("{}.new", std::process::id()));
    let written = File::create_new(&new).and_then(|mut file| writeln!(file, "{}", serde_json::json!(measurement)));
    let outcome = written.and_then(|()| fs::rename(&new, path));
    if outcome.is_err() {
        let _ = fs::remove_file(&new);
    }
    outcome
}

fn measure(nodes: &Nodes) -> Result<Measurement, Failure> {
    let measured = with_memory(nodes).map(|node| {
        let mb_per_second = bandwidth(node)?;
        Ok(NodeBandwidth { number: node.number, total_bytes: node.total_bytes, mb_per_second })
    });
    Ok(Measurement::of(measured.collect::<Result<_, Failure>>()?))
}

/// Returns what all threads together read from a node, in MB/s.
fn bandwidth(node: &Node) -> Result<u64, Failure> {
    let failure = |why: String| {
        let cause = format!("--numa auto: the bandwidth of node {} cannot be measured: {why}", node.number);
        Failure::new(ExitCode::CannotStart, cause, "name shares instead, such as dram:3,cxl:1")
    };
    let mask = NodeMask::of([node.number]).ok_or_else(|| failure(format!("its number is {NODES_MAX} or more")))?;
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let part = usize::try_from(node.available_bytes / AVAILABLE_PART).unwrap_or(usize::MAX) / threads;
    let words = part.min(BYTES_EACH) / size_of::<u64>();
    if words < CHUNK_WORDS {
        return Err(failure(format!("only {} MiB of it are available", node.available_bytes >> 20)));
    }
    let barrier = Barrier::new(threads);
    let rates: Vec<io::Result<[f64; ROUNDS]>> = thread::scope(|scope| {
        let each = |_| scope.spawn(|| rates(mask, words, &barrier));
        let running: Vec<_> = (0..threads).map(each).collect();
        let ended =
            running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a panic"))));
        ended.collect()
    });
    let rates = rates.into_iter().collect::<io::Result<Vec<_>>>().map_err(|error| failure(error.to_string()))?;
    let of_round = |round: usize| rates.iter().map(|rates| rates[round]).sum::<f64>();
    let best = (0..ROUNDS).map(of_round).fold(0.0, f64::max);
    Ok((best / 1e6).round() as u64)
}

/// Returns one thread's rates, in bytes a second. Every thread meets the others at the barrier before each round,
/// whatever happens to it.
fn rates(mask: NodeMask, words: usize, barrier: &Barrier) -> io::Result<[f64; ROUNDS]> {
    let filled = filled(mask, words);
    let mut rates = [0.0; ROUNDS];
    for rate in &mut rates {
        barrier.wait();
        if let Ok(memory) = &filled {
            *rate = read_rate(memory);
        }
    }
    filled.map(|_| rates)
}

/// Fills memory of a node, for as long as [`FILL_TIME_MAX`] at most.
fn filled(mask: NodeMask, words: usize) -> io::Result<Vec<u64>> {
    let of = |errno: aquifer_sys::raw::Errno| io::Error::from_raw_os_error(errno.0);
    set_policy(Policy::Bind(mask)).map_err(of)?;
    let mut memory: Vec<u64> = Vec::with_capacity(BYTES_EACH / size_of::<u64>());
    let begun = Instant::now();
    while memory.len() + CHUNK_WORDS <= words && (memory.is_empty() || begun.elapsed() < FILL_TIME_MAX) {
        memory.extend(memory.len() as u64..(memory.len() + CHUNK_WORDS) as u64);
    }
    let first = memory.as_ptr().addr().next_multiple_of(PAGE_BYTES);
    let pages = (memory.as_ptr().addr() + memory.len() * size_of::<u64>()).saturating_sub(first) / PAGE_BYTES;
    let counts = count_pages(first, pages).map_err(of)?;
    let there: u64 = mask.nodes().filter_map(|node| counts.get(node as usize)).sum();
    if there == pages as u64 { Ok(memory) } else { Err(io::Error::other("the kernel places pages elsewhere")) }
}

/// Reads it for the time of a round.
fn read_rate(memory: &[u64]) -> f64 {
    let (begun, mut words) = (Instant::now(), 0);
    let elapsed = loop {
        for chunk in memory.chunks(CHUNK_WORDS) {
            black_box(chunk.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word)));
            words += chunk.len();
            if begun.elapsed() >= ROUND_TIME {
                break;
            }
        }
        let elapsed = begun.elapsed();
        if elapsed >= ROUND_TIME {
            break elapsed;
        }
    };
    (words * size_of::<u64>()) as f64 / elapsed.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use aquifer_nodes::Machine;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("aquifer-bandwidth-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        path
    }

    fn measurement() -> Measurement {
        Measurement::of(vec![NodeBandwidth { number: 0, total_bytes: 1 << 30, mb_per_second: 10_000 }])
    }

    #[test]
    fn a_kept_measurement_is_read_back_and_a_broken_one_is_not() {
        let directory = directory("kept");
        let path = directory.join("state").join(FILE);
        assert_eq!(read(&path), None);
        keep(&path, &measurement()).unwrap();
        assert_eq!(read(&path), Some(measurement()));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
        for text in ["", "{", "{\"format\":1}", "[]", "\u{0}"] {
            fs::write(&path, text).unwrap();
            assert_eq!(read(&path), None, "{text}");
        }
        keep(&path, &measurement()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(read(&path), None, "others could have written it");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn what_cannot_be_kept_is_reported_with_a_remedy() {
        let directory = directory("lost");
        fs::write(directory.join("file"), "").unwrap();
        let path = directory.join("file").join(FILE);
        let text = outcome(Some(&path), Some(keep(&path, &measurement())));
        assert!(text.contains("not kept") && text.contains("--state-dir") && !text.contains('\n'), "{text}");
        assert!(outcome(None, None).contains("--state-dir"));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_node_of_this_machine_is_measured() {
        let Ok(nodes) = Nodes::read(&Machine::running()) else {
            return aquifer_test_support::skip("this kernel shows no NUMA nodes");
        };
        if let Err(errno) = aquifer_sys::numa::policy() {
            return aquifer_test_support::skip(format!("this kernel has no memory policies: {errno}"));
        }
        let near = nodes.near().next().expect("a node with CPUs and memory");
        assert!(bandwidth(near).unwrap() > 0);
        let full = Node { available_bytes: 1 << 10, ..near.clone() };
        assert!(bandwidth(&full).unwrap_err().to_string().contains("name shares instead"));
    }
}
