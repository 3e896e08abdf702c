// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A hash join whose table is four times the budget of DRAM: rows of one relation look up rows of the other by key.
//!
//! The rows to join are known a batch at a time, so their places in the table can be prefetched while earlier rows are
//! joined. The example joins the same rows by plain loads and with prefetches, and prints both figures.
//!
//! ```sh
//! cargo run --release -p aquifer --example hash_join                      # an emulated tier
//! cargo run --release -p aquifer --example hash_join -- flash:/var/tmp/cold,size=1GiB
//! ```
//!
//! A second argument is the number of rows to join.

use std::error::Error;
use std::time::Instant;

use aquifer::{Intent, Mapping, Pattern, Space};

/// Entries of the table: a key and a payload each. 64 MiB, half of it in use.
const ENTRIES: usize = 4 << 20;
const BUILD_ROWS: u64 = (ENTRIES / 2) as u64;
/// Parts of the table that are filled one after the other.
const PARTS: usize = 32;
/// Rows that look for a partner. Half of them have one.
const PROBE_ROWS: u64 = 20_000;
/// How many rows ahead of the present one to prefetch.
const AHEAD: u64 = 24;
const ENTRY_BYTES: usize = 16;

/// Returns the key of a row by SplitMix64's finalizer: scattered, and never 0, which marks a free entry.
fn key(row: u64) -> u64 {
    let key = (row + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (key ^ (key >> 27)) | 1
}

/// Returns the entry where the search for a key begins.
fn home(key: u64) -> usize {
    (key >> 20) as usize % ENTRIES
}

/// Puts the rows of one relation into the table: open addressing with linear probing. The rows of one part of the table
/// come together, so that the part is fetched and written back once.
fn build(table: &mut Mapping) -> Result<(), aquifer::Error> {
    let entries = table.view_mut::<[u64; 2]>(..)?;
    let mut parts = vec![Vec::new(); PARTS];
    (0..BUILD_ROWS).for_each(|row| parts[home(key(row)) / (ENTRIES / PARTS)].push(row));
    for row in parts.into_iter().flatten() {
        let mut at = home(key(row));
        while entries[at][0] != 0 {
            at = (at + 1) % ENTRIES;
        }
        entries[at] = [key(row), row];
    }
    Ok(())
}

/// Returns the payload of a key.
fn partner(entries: &[[u64; 2]], key: u64) -> Option<u64> {
    let mut at = home(key);
    while entries[at][0] != 0 {
        if entries[at][0] == key {
            return Some(entries[at][1]);
        }
        at = (at + 1) % ENTRIES;
    }
    None
}

/// Returns the row that the `index`th row to join wants; beyond `BUILD_ROWS`, none has it.
fn wanted(index: u64) -> u64 {
    index.wrapping_mul(0x2545_f491_4f6c_dd1d) % (2 * BUILD_ROWS)
}

/// Joins, and returns the number of pairs and the sum of their payloads.
fn join(table: &Mapping, rows: std::ops::Range<u64>, with_hints: bool) -> Result<(u64, u64), aquifer::Error> {
    let entries = table.view::<[u64; 2]>(..)?;
    let (mut pairs, mut sum) = (0, 0);
    for row in rows {
        if with_hints {
            let at = home(key(wanted(row + AHEAD))) * ENTRY_BYTES;
            if !table.ready(at..at + ENTRY_BYTES) {
                table.prefetch(at..at + ENTRY_BYTES, Intent::Read)?;
            }
        }
        if let Some(payload) = partner(entries, key(wanted(row))) {
            (pairs, sum) = (pairs + 1, sum + payload);
        }
    }
    Ok((pairs, sum))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let tier = arguments.next().unwrap_or_else(|| "emulated:nvme-gen4,size=256MiB".to_owned());
    let probe_rows: u64 = arguments.next().map_or(Ok(PROBE_ROWS), |count| count.parse())?;
    let space = Space::builder().dram("16MiB").tier(&tier).open()?;
    let mut table = space.map(ENTRIES * ENTRY_BYTES)?;
    build(&mut table)?;
    table.pattern(.., Pattern::Random)?;
    println!("a table of {} MiB over {tier}, 16 MiB of DRAM", (ENTRIES * ENTRY_BYTES) >> 20);
    for (index, (name, with_hints)) in [("loads", false), ("prefetch ahead", true)].into_iter().enumerate() {
        // Other rows each time, so that none finds what the one before has fetched.
        let rows = index as u64 * probe_rows..(index as u64 + 1) * probe_rows;
        let expected = rows.clone().map(wanted).filter(|row| *row < BUILD_ROWS);
        let expected = expected.fold((0, 0), |(pairs, sum), row| (pairs + 1, sum + row));
        let started = Instant::now();
        assert_eq!(join(&table, rows, with_hints)?, expected);
        println!("{name:15} {:6.2} us a row", started.elapsed().as_secs_f64() * 1e6 / probe_rows as f64);
    }
    Ok(())
}
