// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a check, a switch of context and a fetch cost.
//!
//! ```sh
//! cargo run --release -p aquifer --example context_cost
//! ```

use std::cell::Cell;
use std::hint::black_box;
use std::time::Instant;

use aquifer::{Mapping, Pattern, Space, Status, contexts};

const CHECKS: usize = 20_000_000;
const SWITCHES: u64 = 1_000_000;
const LOOKUPS: usize = 20_000;
const BYTES: usize = 64 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let space = Space::builder().dram("16MiB").tier("emulated:cmm-h,size=128MiB").block_size("4KiB").open()?;
    let mut mapping = space.map(BYTES)?;
    mapping.write(0, &[1; 4096])?;
    let spent = time(|| (0..CHECKS).for_each(|index| assert!(black_box(mapping.ready(index % 64..index % 64 + 8)))));
    println!("check of a page that is ready: {:.1} ns", spent / CHECKS as f64);

    let runs = Cell::new(0);
    let spent = time(|| {
        let context = || {
            std::future::poll_fn(|context| {
                runs.set(runs.get() + 1);
                context.waker().wake_by_ref();
                if runs.get() >= SWITCHES { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
        };
        contexts::run(&space, [context(), context()]);
    });
    println!("switch from one context to the other: {:.0} ns", spent / runs.get() as f64);

    mapping.view_mut::<u64>(..)?.iter_mut().enumerate().for_each(|(index, word)| *word = index as u64);
    mapping.pattern(.., Pattern::Random)?;
    evict(&mapping)?;
    let spent = time(|| (0..LOOKUPS).for_each(|key| look_up(&mapping, place(key))));
    println!("lookup of a scattered word by a load: {:.1} us", spent / LOOKUPS as f64 / 1e3);
    evict(&mapping)?;
    let shared = &mapping;
    let mut report = None;
    let spent = time(|| {
        let lookups = (0..LOOKUPS).map(|key| async move {
            let at = place(key) * 8;
            if !shared.ready(at..at + 8) {
                shared.fetch(at..at + 8).await.expect("the tier has it");
            }
            look_up(shared, place(key));
        });
        report = Some(contexts::run(&space, lookups));
    });
    println!("the same by contexts: {:.1} us; {report:?}", spent / LOOKUPS as f64 / 1e3);
    Ok(())
}

/// Returns how long `what` takes, in nanoseconds.
fn time(what: impl FnOnce()) -> f64 {
    let started = Instant::now();
    what();
    started.elapsed().as_nanos() as f64
}

/// Returns the word that a key selects.
fn place(key: usize) -> usize {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (BYTES / 8)
}

fn look_up(mapping: &Mapping, index: usize) {
    let words = mapping.view::<u64>(index * 8..index * 8 + 8).expect("aligned");
    assert_eq!(words, [index as u64]);
}

/// Evicts most of the memory.
fn evict(mapping: &Mapping) -> Result<(), aquifer::Error> {
    mapping.evict(..)?;
    for _ in 0..200 {
        let stored = |run: &&aquifer::StatusRun| matches!(run.status, Status::Stored { .. });
        if mapping.status(..)?.iter().filter(stored).map(|run| run.range.len()).sum::<usize>() > BYTES / 32 * 31 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    Ok(())
}
