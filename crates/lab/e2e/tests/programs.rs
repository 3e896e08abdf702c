// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Common programs on 40 % of the memory that they take: they work, by their own checks or by comparison with a native
//! run. Programs that are not installed are skipped. Larger: `cargo run --release -p aquifer-e2e --bin programs --
//! --large`.

use aquifer_e2e::build::scratch;
use aquifer_e2e::programs::trial::{Verdict, installed};
use aquifer_e2e::programs::{find, turn};
use aquifer_e2e::run::{LIMIT, managed, run, stats};

fn works(name: &str) {
    let program = find(name).expect("it is one of the programs");
    let kind = program.kind_at(turn());
    println!("{name} over {}", kind.name());
    match program.judge(false, kind) {
        Ok(Verdict::Works(_)) => {}
        Ok(Verdict::Skipped(why)) => aquifer_test_support::skip(why),
        Err(why) => panic!(
            "{why}\nreproduce: cargo run --release -p aquifer-e2e --bin programs -- --tier {} {name}",
            kind.name()
        ),
    }
}

macro_rules! programs {
    ($($function:ident $name:literal;)*) => {
        $(
            #[test]
            fn $function() {
                works($name);
            }
        )*

        #[test]
        fn every_program_has_a_test() {
            let mut named = [$($name),*];
            let mut all = aquifer_e2e::programs::ALL.map(|program| program.name);
            named.sort_unstable();
            all.sort_unstable();
            assert_eq!(named.as_slice(), all.as_slice());
        }
    };
}

programs! {
    redis "redis";
    sqlite "sqlite";
    sort "sort";
    python "python";
    gcc "gcc";
    jvm "jvm";
    node "node";
    postgres "postgres";
    memcached "memcached";
    stress_ng "stress-ng";
    duckdb "duckdb";
    numpy "numpy";
    openmp "openmp";
    php "php";
    ruby "ruby";
    perl "perl";
    sbcl "sbcl";
    erlang "erlang";
    go "go";
    luajit "luajit";
    r "r";
    polars "polars";
}

/// SBCL's heap used not to be managed at all: it is mapped by syscall(2), which the library did not notice. Once it was
/// managed, SBCL's collector did not find the stacks of waiting threads under signal delivery (tests/signal_stacks.rs).
#[test]
fn sbcl_keeps_its_heap_within_the_budget() {
    let program = match installed(&["sbcl"]) {
        Ok(program) => program,
        Err(Verdict::Skipped(why) | Verdict::Works(why)) => return aquifer_test_support::skip(why),
    };
    for delivery in ["signal", "listener"] {
        let directory = scratch(&format!("sbcl-{delivery}"));
        let path = |name: &str| directory.join(name).display().to_string();
        let (script, file) = (path("vectors.lisp"), path("stats.json"));
        std::fs::write(&script, include_str!("../programs/vectors.lisp")).expect("the directory can be written");
        let settings =
            ["--dram", "96MiB", "--delivery", delivery, "--tier", "dram:", "--stats-json", &file, "--strict"];
        let words = ["--noinform", "--no-sysinit", "--no-userinit", "--disable-debugger", "--load", &script];
        let words = [&["--dynamic-space-size", "1024"][..], &words, &["--end-toplevel-options", "300"]].concat();
        let ended = run(managed(&settings, &program, &words), LIMIT);
        assert_eq!(ended.status, Some(0), "{delivery}: {}{}", ended.stdout, ended.stderr);
        assert!(ended.stdout.contains("300 vectors, 0 wrong, several collections"), "{}", ended.stdout);
        let stats = stats(file.as_ref());
        let mib = |name: &str| stats[name].as_u64().expect("a figure") >> 20;
        assert!(mib("resident_bytes_peak") <= 96 && mib("managed_bytes_peak") >= 1000, "{stats}");
        assert!(mib("fetched_bytes") > 200, "it was evicted: {stats}");
        // By the kernel's count: the budget, the pager's own memory, and the pages of its core file that SBCL changed.
        let anonymous = ended.stdout.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib: u64 = anonymous.and_then(|text| text.split_whitespace().next()?.parse().ok()).expect("it says so");
        assert!(kib < 120 << 10, "{delivery}: {kib} KiB in DRAM under --dram 96MiB");
        let _ = std::fs::remove_dir_all(directory);
    }
}
