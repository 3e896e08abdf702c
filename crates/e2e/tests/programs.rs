// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Programs that people use, on 40 % of the memory that they take: they work, by their own judgement or by comparison
//! with a native run. What is not installed is skipped. Larger: `cargo run --release -p aquifer-e2e --bin programs --
//! --large`.

use aquifer_e2e::programs::trial::Verdict;
use aquifer_e2e::programs::{find, turn};

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
    luajit "luajit";
    r "r";
    polars "polars";
}
