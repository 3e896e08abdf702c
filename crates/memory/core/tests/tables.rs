// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Measures how much the engine's tables take for 1 TiB of managed memory in 48 GiB of local memory, from a simulated
//! part of it.
//!
//! All regions of 1 TiB are added. Eight in a row of each 512 are used, with one 64th of the local memory, and nearly
//! all of these are evicted and written back; their part of the tables is then multiplied. No managed memory exists
//! here.

use aquifer_core::engine::{CleanVerdict, Engine, FaultStep, Settings, Tables};
use aquifer_core::map::Delivery;
use aquifer_core::policy::{self, Arrival, PolicyName};
use aquifer_core::prefetch::WINDOW_PAGES;
use aquifer_core::units::{Order, PAGE_BYTES, PageIndex, REGION_PAGES, ThreadIndex};

const MANAGED: u64 = 1 << 40;
const LOCAL: u64 = 48 << 30;
/// One region of this many is used.
const PART: u64 = 64;
/// The regions that are used are adjacent: their entries fill whole pages of the tables.
const ADJACENT: u64 = 8;

fn engine(managed_bytes: u64, local_bytes: u64, policy: PolicyName) -> Engine {
    let settings = Settings {
        budget_pages: local_bytes / PAGE_BYTES,
        tier_slabs: u32::try_from(managed_bytes / PAGE_BYTES / u64::from(REGION_PAGES)).expect("at most 8 PiB"),
        prefetch: false,
        elastic: true,
        copied_pages_max: 0,
        seals: false,
        fetch_cost: 5,
        window_pages: WINDOW_PAGES,
    };
    let mut engine = Engine::new(settings, policy::build(policy));
    engine
        .add(PageIndex(0), PageIndex(managed_bytes / PAGE_BYTES), Order::DEFAULT, Delivery::Signal, &mut |_, _| false);
    engine
}

/// Touches `page` for the first time; whatever leaves for it is written back, and no byte of it is zero.
fn touch(engine: &mut Engine, page: PageIndex) {
    let guards = [7; REGION_PAGES as usize];
    let mut first = true;
    loop {
        match engine.fault(page, ThreadIndex(0), true, first) {
            FaultStep::Fill { block, .. } => {
                engine.installed(block, Arrival::Fresh);
                return;
            }
            FaultStep::Evict { block, .. } => {
                engine.evicted(block);
            }
            FaultStep::Clean { block, pages, .. } => {
                engine.slot_for(block).expect("the tier has room");
                engine.cleaned(block, CleanVerdict::Stored, &guards[..pages.count as usize]);
            }
            FaultStep::Empty { frames } => frames.frames().iter().for_each(|frame| engine.emptied(*frame)),
            step => panic!("unforeseen: {step:?}"),
        }
        first = false;
    }
}

/// Touches all pages of one region in `PART`; returns how many pages were touched.
fn use_part(engine: &mut Engine, managed_bytes: u64) -> u64 {
    let regions = managed_bytes / PAGE_BYTES / u64::from(REGION_PAGES);
    let mut touched = 0;
    for region in (0..regions).filter(|region| region % (ADJACENT * PART) < ADJACENT) {
        let start = PageIndex(region * u64::from(REGION_PAGES));
        let mut page = start;
        while page < start + u64::from(REGION_PAGES) {
            touch(engine, page);
            let block = engine.map().find(page).expect("managed");
            let pages = engine.map().pages(block);
            touched += u64::from(pages.count);
            page = pages.end();
        }
    }
    touched
}

/// The tables as they would be if all of the regions were used.
fn scaled(before: Tables, after: Tables) -> Tables {
    let part = |before: u64, after: u64| before + (after - before) * PART;
    Tables {
        block_map: part(before.block_map, after.block_map),
        guards: part(before.guards, after.guards),
        policy: part(before.policy, after.policy),
        frames: part(before.frames, after.frames),
    }
}

#[test]
fn the_tables_of_a_tebibyte_fit_beside_48_gibibytes() {
    for policy in PolicyName::ALL {
        let mut engine = engine(MANAGED, LOCAL / PART, policy);
        let empty = engine.tables();
        let touched = use_part(&mut engine, MANAGED);
        assert_eq!(touched * PART, MANAGED / PAGE_BYTES, "every page of the part");
        engine.check();
        let tables = scaled(empty, engine.tables());
        let evicted = (touched * PART - LOCAL / PAGE_BYTES) as f64;
        let of_pages = tables.block_map + tables.guards + tables.policy;
        println!("{policy}: {tables:?}, before any use {empty:?}");
        println!("{policy}: {:.1} bytes for each page that is evicted", of_pages as f64 / evicted);
        assert!(tables.total() <= MANAGED / 100 + (4 << 20), "{tables:?}");
        assert!(tables.total() <= LOCAL / 10, "{tables:?}");
        // Empty regions take no more than this.
        assert!(empty.total() <= MANAGED / 10_000, "{empty:?}");
    }
}

#[test]
fn blocks_of_one_page_take_less_than_a_hundredth() {
    // As much as may have units of one page: `SMALL_UNITS_MAX` in `map/ranges.rs`.
    let managed = 2 << 30;
    let mut engine = engine(managed, 8 << 20, PolicyName::default());
    let empty = engine.tables();
    let touched = use_part(&mut engine, managed);
    let tables = scaled(empty, engine.tables());
    println!("{tables:?}, of which {empty:?} before any use");
    assert_eq!(tables.block_map - empty.block_map, touched * PART * 16);
    assert_eq!(tables.policy, touched * PART * 12);
    assert!(tables.guards <= touched * PART * 8);
    assert!(tables.block_map + tables.policy + tables.guards <= managed / 100, "{tables:?}");
}
