// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The counts in `--stats-json` match what happened: writes are counted as writes, and the tier's reserved space is
//! right.
//!
//! A program fills 96 MiB block by block, and then reads all of it, four times. It takes one write fault in each block,
//! and read faults from then on.

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::run::{LIMIT, managed, run};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const PROGRAM: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
enum { LEN = 96 << 20, BLOCK = 128 << 10 };
int main(void) {
    volatile unsigned char *start = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) { perror("mmap"); return 3; }
    for (size_t at = 0; at < LEN; at += 4096) start[at] = (unsigned char)(at / 4096 % 251 + 1);
    for (int round = 0; round < 4; round++)
        for (size_t at = 0; at < LEN; at += BLOCK)
            if (start[at] != at / 4096 % 251 + 1) return 1;
    return 0;
}
"#;

/// All of the program's memory has a temperature, and a scan of four times the budget leaves none of it hot.
fn temperatures(stats: &Value) {
    let bytes = |place: &str, class: &str| stats["temperature_bytes"][place][class].as_u64().expect("a number");
    let all = |place: &str| -> u64 {
        let classes = stats["temperature_bytes"][place].as_object().expect("classes");
        classes.values().map(|bytes| bytes.as_u64().expect("a number")).sum()
    };
    let (resident, away) = (all("resident"), all("away"));
    assert!((16 * MIB..=24 * MIB).contains(&resident), "{resident} resident");
    assert!((94 * MIB..=100 * MIB).contains(&(resident + away)), "{resident} and {away} of 96 MiB");
    let hot = bytes("away", "64-127") + bytes("away", "128-255");
    assert!(hot < 8 * MIB, "{hot} are evicted and hot: {}", stats["temperature_bytes"]);
    assert!(away - bytes("away", "0") > 32 * MIB, "all is cold: {}", stats["temperature_bytes"]);
}

#[test]
fn writes_and_the_tiers_place_are_counted() {
    let Some(program) = compile_text("counts", PROGRAM) else { return };
    for delivery in ["signal", "listener"] {
        let stats = scratch(&format!("counts-{delivery}")).join("stats.json");
        let file = stats.display().to_string();
        let words = ["--dram", "24MiB", "--tier", "dram:", "--block", "128KiB", "--prefetch", "off"];
        let more = ["--delivery", delivery, "--stats-json", &file];
        run(managed(&[&words[..], &more[..]].concat(), &program, &[]), LIMIT).expect(0);
        let stats: Value = serde_json::from_str(&std::fs::read_to_string(&stats).unwrap()).unwrap();
        let count = |name: &str| stats[name].as_u64().unwrap_or_else(|| panic!("no {name}"));
        // Without the privilege for a listener, signals serve its memory; the counts are the same.
        let (faults, writes, fresh) = (count("faults"), count("faults_write"), count("faults_fresh"));
        assert!(writes >= fresh * 9 / 10, "{delivery}: {writes} writes, {fresh} first touches, each a write");
        assert!(writes < faults / 2, "{delivery}: {writes} writes of {faults} faults, most of them reads");
        let stored = count("stored_bytes");
        assert_eq!(stored % (2 * MIB), 0, "{delivery}");
        assert!((64 * MIB..=112 * MIB).contains(&stored), "{delivery}: the tier has set aside {stored} bytes");
        temperatures(&stats);
    }
}
