// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Redis's own clients: redis-cli and redis-benchmark.

mod common;

use std::process::{Command, Output};

use aquifer_test_support::skip;
use common::{Running, can_run};

/// Runs a client. `None`, after a skip, if it is not installed.
fn run(server: &Running, program: &str, words: &str) -> Option<String> {
    let port = server.address.port().to_string();
    let words = words.split(' ').filter(|word| !word.is_empty());
    let output: Output = match Command::new(program).args(["-h", "127.0.0.1", "-p", &port]).args(words).output() {
        Ok(output) => output,
        Err(_) => {
            skip(format!("{program} is not installed"));
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program}: {text}{}", String::from_utf8_lossy(&output.stderr));
    Some(text)
}

#[test]
fn redis_cli_is_served() {
    if !can_run() {
        return;
    }
    let server = Running::start("dram:size=96MiB", &[]);
    for (words, answer) in [
        ("SET key value EX 100", "OK\n"),
        ("GET key", "value\n"),
        ("TTL none", "-2\n"),
        ("MGET key none", "value\n\n"),
        ("INCRBY count 41", "41\n"),
        ("DBSIZE", "2\n"),
        ("SELECT 0", "OK\n"),
        ("HGETALL h", "ERR unknown command 'HGETALL', with args beginning with: 'h'\n\n"),
    ] {
        let Some(text) = run(&server, "redis-cli", words) else { return };
        assert_eq!(text, answer, "{words}");
    }
    assert!(run(&server, "redis-cli", "INFO").is_some_and(|text| text.contains("keyspace_hits:2")));
}

/// The tier is slower than DRAM, and there are more values than the budget: nothing that the clients get is an error.
#[test]
fn redis_benchmark_is_served() {
    if !can_run() {
        return;
    }
    let server = Running::start("emulated:xl-flash-slc,size=96MiB", &["--size", "80MiB"]);
    let words = "-t set,get,incr -n 12000 -r 20000 -d 2000 -c 20 -P 8 --csv";
    let Some(text) = run(&server, "redis-benchmark", words) else { return };
    for test in ["SET", "GET", "INCR"] {
        assert!(text.contains(&format!("\"{test}")), "{text}");
    }
    assert!(server.figure("keyspace_hits") > 1000);
    assert_eq!(server.figure("tier_errors"), 0);
}
