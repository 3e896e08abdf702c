// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Runs every decoder of untrusted bytes on malformed inputs.
//!
//! The inputs are the same in each run, so that a failure is reproducible. A canary with a planted bug shows that the
//! generated inputs can find bugs. `fuzz/` has the coverage-guided fuzzer.

use std::panic::{AssertUnwindSafe, catch_unwind};

use aquifer_fuzz::mutate::{Random, mutated};
use aquifer_fuzz::{TARGETS, Target};

/// Number of inputs for each decoder; all together take some seconds.
const INPUTS: usize = 60_000;
/// The default seed; AQUIFER_FUZZ_SEED selects others.
const SEED: u64 = 1;

/// Runs the target until it panics. Returns the input that caused the panic.
fn first_panic(target: &Target, inputs: usize) -> Option<Vec<u8>> {
    let seeds = (target.seeds)();
    let seed = std::env::var("AQUIFER_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(SEED);
    let mut random = Random::new(seed);
    let changed = (0..inputs).map(|_| mutated(&seeds, &mut random));
    let mut all = seeds.clone().into_iter().chain(changed);
    all.find(|input| catch_unwind(AssertUnwindSafe(|| (target.body)(input))).is_err())
}

fn holds(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target of this name");
    if let Some(input) = first_panic(target, INPUTS) {
        panic!("{name} panics on b\"{}\"", input.escape_ascii());
    }
}

macro_rules! targets {
    ($($name:ident)+) => {
        $(#[test] fn $name() { holds(stringify!($name)); })+

        #[test]
        fn every_target_is_tested_here_and_has_a_program() {
            let here = [$(stringify!($name)),+];
            let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz");
            let manifest = std::fs::read_to_string(format!("{programs}/Cargo.toml")).unwrap();
            for target in &TARGETS {
                assert!(here.contains(&target.name), "{} is not tested here", target.name);
                let file = format!("fuzz_targets/{}.rs", target.name);
                assert!(manifest.contains(&file), "{file} is not in fuzz/Cargo.toml");
                let program = std::fs::read_to_string(format!("{programs}/{file}")).unwrap();
                assert!(program.contains(&format!("targets::{}(", target.name)), "{file} runs something else");
            }
        }
    };
}

targets!(
    agent_messages bench_result c_abi cache_requests cedt certificate compressed_page config control cxl_switch
    driven_switch elf etcd_answer fabric_body fabric_config fabric_request fmapi hotness join_token named profile
    recording size stats_segment tenants tier_spec wire
);

/// Parses records `tag, length, bytes`, but does not check the length for a rare tag: the planted bug.
fn canary(bytes: &[u8]) {
    let mut rest = bytes;
    while let [tag, length, tail @ ..] = rest {
        let length = usize::from(*length);
        if *tag == b'Z' {
            rest = &tail[length..];
        } else {
            rest = tail.get(length..).unwrap_or_default();
        }
    }
}

#[test]
fn a_planted_bug_is_found() {
    let seeds = || vec![b"A\x03abcB\x01x".to_vec(), b"Z\x02zzA\x00".to_vec()];
    let planted = Target { name: "canary", body: canary, seeds };
    let found = first_panic(&planted, INPUTS).expect("the canary lives: the inputs find nothing");
    assert!(found.contains(&b'Z'));
    // A sound target gives no finding.
    let sound = Target { name: "sound", body: |bytes| drop(bytes.to_vec()), seeds };
    assert_eq!(first_panic(&sound, 1000), None);
}
