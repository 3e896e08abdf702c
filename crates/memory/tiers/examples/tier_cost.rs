// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Prints what one tier costs: 4 KiB, 128 KiB and 1 MiB, read and written, alone and overlapped.
//!
//! ```text
//! cargo run --release -p aquifer-tiers --example tier_cost -- flash:/mnt/nvme,size=2GiB
//! cargo run --release -p aquifer-tiers --example tier_cost -- dram:size=2GiB encrypted
//! ```
//!
//! With the word `encrypted`, the contents of the tier are sealed. With local memory, the difference is the cost of
//! sealing.
//!
//! Compare with fio: `--direct=1 --ioengine=psync` for depth "sync", `--ioengine=io_uring --iodepth=N` for the
//! queues, `--rw=randread` or `randwrite`. Exit codes: 0 done, 1 the tier failed, 2 a bad description.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use aquifer_core::units::ByteSize;
use aquifer_sys::{FrameBuffer, direct_io};
use aquifer_tiers::{Encrypted, Operation, PAGE, Request, Tier, TierFailure, TierSpec, Wait, open};

/// How much of the tier is used: enough that a disk cannot hold it in a small cache.
const SPAN_BYTES: u64 = 1 << 30;
/// Maximum number of bytes to transfer, and the longest time to measure, for one line of the table.
const BYTES_MAX: u64 = 512 << 20;
const TIME_MAX: Duration = Duration::from_secs(2);
const SIZES: [usize; 3] = [PAGE, 128 << 10, 1 << 20];
const DEPTHS: [u32; 3] = [1, 8, 32];

fn main() -> ExitCode {
    let Some(spec) = std::env::args().nth(1) else {
        eprintln!("tier_cost: no tier is given; for example: tier_cost flash:/tmp,size=2GiB");
        return ExitCode::from(2);
    };
    let seal = std::env::args().nth(2).is_some_and(|word| word == "encrypted");
    let sealed = |tier| if seal { Encrypted::new(tier).map(|tier| Box::new(tier) as Box<dyn Tier>) } else { Ok(tier) };
    let tier = match spec
        .parse::<TierSpec>()
        .map_err(|e| e.to_string())
        .and_then(|s| open(&s).and_then(sealed).map_err(|e| e.to_string()))
    {
        Ok(tier) => tier,
        Err(message) => {
            eprintln!("tier_cost: {message}");
            return ExitCode::from(2);
        }
    };
    for notice in tier.notices() {
        eprintln!("note: {notice}");
    }
    match report(&*tier) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("tier_cost: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn report(tier: &dyn Tier) -> Result<(), TierFailure> {
    println!("{} tier, {}", tier.name(), ByteSize(tier.capacity_bytes()));
    println!(
        "{:>8} {:>6} {:>6} {:>10} {:>10} {:>10} {:>8}",
        "bytes", "what", "depth", "mean us", "p50 us", "p99 us", "GB/s"
    );
    let depth_max = DEPTHS[DEPTHS.len() - 1] as usize;
    for size in SIZES {
        let mut buffers: Vec<FrameBuffer> = (0..depth_max).map(|_| direct_io::lasting_buffer(size / PAGE)).collect();
        for (index, buffer) in buffers.iter_mut().enumerate() {
            buffer.bytes_mut().fill(index as u8 + 1);
        }
        let offsets = Offsets::new(tier.capacity_bytes().min(SPAN_BYTES), size as u64);
        fill(tier, &mut buffers[0], offsets)?;
        for operation in [Operation::Read, Operation::Write] {
            synchronous(tier, operation, &mut buffers[0], offsets)?.print(size, operation, "sync");
            for depth in DEPTHS {
                overlapped(tier, operation, &mut buffers, depth, offsets)?.print(size, operation, &depth.to_string());
            }
        }
    }
    Ok(())
}

/// Offsets in the tier, in an order that no read-ahead can guess: a walk whose step is a large prime.
#[derive(Clone, Copy)]
struct Offsets {
    count: u64,
    size: u64,
    next: u64,
}

impl Offsets {
    fn new(span_bytes: u64, size: u64) -> Self {
        Self { count: span_bytes / size, size, next: 0 }
    }
}

impl Iterator for Offsets {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.next = (self.next + 1_000_003) % self.count;
        Some(self.next * self.size)
    }
}

fn fill(tier: &dyn Tier, buffer: &mut FrameBuffer, offsets: Offsets) -> Result<(), TierFailure> {
    for index in 0..offsets.count {
        tier.write(index * offsets.size, buffer)?;
    }
    tier.flush()
}

struct Figures {
    latencies_us: Vec<f64>,
    elapsed: Duration,
}

impl Figures {
    fn print(mut self, size: usize, operation: Operation, depth: &str) {
        self.latencies_us.sort_by(f64::total_cmp);
        let count = self.latencies_us.len();
        let mean = self.latencies_us.iter().sum::<f64>() / count as f64;
        let (p50, p99) = (self.latencies_us[count / 2], self.latencies_us[count * 99 / 100]);
        let rate = (count * size) as f64 / self.elapsed.as_secs_f64() / 1e9;
        let what = if operation == Operation::Read { "read" } else { "write" };
        println!("{size:>8} {what:>6} {depth:>6} {mean:>10.1} {p50:>10.1} {p99:>10.1} {rate:>8.2}");
    }
}

fn synchronous(
    tier: &dyn Tier,
    operation: Operation,
    buffer: &mut FrameBuffer,
    offsets: Offsets,
) -> Result<Figures, TierFailure> {
    let mut latencies_us = Vec::new();
    let start = Instant::now();
    for offset in offsets {
        let before = Instant::now();
        match operation {
            Operation::Read => tier.read(offset, buffer)?,
            Operation::Write => tier.write(offset, buffer)?,
        }
        latencies_us.push(before.elapsed().as_secs_f64() * 1e6);
        if start.elapsed() > TIME_MAX || latencies_us.len() as u64 * offsets.size > BYTES_MAX {
            break;
        }
    }
    Ok(Figures { latencies_us, elapsed: start.elapsed() })
}

fn overlapped(
    tier: &dyn Tier,
    operation: Operation,
    buffers: &mut Vec<FrameBuffer>,
    depth: u32,
    mut offsets: Offsets,
) -> Result<Figures, TierFailure> {
    let mut queue = tier.open_queue(depth)?;
    let requests_max = (BYTES_MAX / offsets.size).max(u64::from(depth));
    let mut latencies_us = Vec::new();
    let mut submitted_at = Vec::new();
    let mut failure = None;
    let start = Instant::now();
    loop {
        let stop = failure.is_some() || start.elapsed() > TIME_MAX || submitted_at.len() as u64 >= requests_max;
        while !stop && queue.in_flight() < depth as usize {
            let buffer = buffers.pop().expect("as many buffers as the greatest depth");
            let offset = offsets.next().expect("offsets never end");
            let request = Request { operation, offset, buffer, tag: submitted_at.len() as u64 };
            submitted_at.push(Instant::now());
            assert!(queue.submit(request).is_ok(), "in_flight is below the depth");
        }
        if queue.in_flight() == 0 {
            break;
        }
        queue.kick()?;
        queue.complete(Wait::ForOne, depth as usize, &mut |completion| {
            latencies_us.push(submitted_at[completion.tag as usize].elapsed().as_secs_f64() * 1e6);
            failure = failure.or(completion.outcome.err());
            buffers.push(completion.buffer);
        });
    }
    failure.map_or(Ok(Figures { latencies_us, elapsed: start.elapsed() }), Err)
}
