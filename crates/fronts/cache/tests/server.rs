// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Requests and their replies, as Redis has them; pipelines; and a tier that fails while the server serves.

mod common;

use common::{Reply, Running, can_run, numbered_bytes, request};

const TIER: &str = "dram:size=96MiB";

#[test]
fn commands_reply_as_redis_does() {
    if !can_run() {
        return;
    }
    let server = Running::start(TIER, &[]);
    let mut client = server.client();
    for (line, reply) in [
        ("PING", Reply::Status("PONG".into())),
        ("ping hello", Reply::bytes(b"hello")),
        ("GET k", Reply::nothing()),
        ("SET k 10", Reply::ok()),
        ("GET k", Reply::bytes(b"10")),
        ("SET k v NX", Reply::nothing()),
        ("SET other v XX", Reply::nothing()),
        ("SET k 11 GET", Reply::bytes(b"10")),
        ("INCR k", Reply::Number(12)),
        ("DECRBY k 20", Reply::Number(-8)),
        ("INCR fresh", Reply::Number(1)),
        ("MSET a 1 b 2 c x", Reply::ok()),
        ("MGET a none c", Reply::Array(vec![Reply::bytes(b"1"), Reply::nothing(), Reply::bytes(b"x")])),
        ("INCR c", Reply::Error("ERR value is not an integer or out of range".into())),
        ("SET huge 9223372036854775807", Reply::ok()),
        ("INCR huge", Reply::Error("ERR increment or decrement would overflow".into())),
        ("EXISTS a a none", Reply::Number(2)),
        ("TTL a", Reply::Number(-1)),
        ("TTL none", Reply::Number(-2)),
        ("EXPIRE a 1000", Reply::Number(1)),
        ("TTL a", Reply::Number(1000)),
        ("PERSIST a", Reply::Number(1)),
        ("PERSIST a", Reply::Number(0)),
        ("EXPIRE none 1000", Reply::Number(0)),
        ("EXPIRE b -1", Reply::Number(1)),
        ("GET b", Reply::nothing()),
        ("SET t v EX 1000", Reply::ok()),
        ("SET t w KEEPTTL", Reply::ok()),
        ("TTL t", Reply::Number(1000)),
        ("SET t w", Reply::ok()),
        ("TTL t", Reply::Number(-1)),
        ("DEL a none", Reply::Number(1)),
        ("SELECT 0", Reply::ok()),
        ("SELECT 3", Reply::Error("ERR DB index is out of range".into())),
        ("LPUSH l 1", Reply::Error("ERR unknown command 'LPUSH', with args beginning with: 'l' '1'".into())),
        ("GET", Reply::Error("ERR wrong number of arguments for 'get' command".into())),
        ("COMMAND DOCS", Reply::Array(vec![])),
        ("DBSIZE", Reply::Number(5)),
        ("FLUSHALL", Reply::ok()),
        ("DBSIZE", Reply::Number(0)),
        ("QUIT", Reply::ok()),
    ] {
        assert_eq!(client.ask_text(line), reply, "{line}");
    }
    assert!(client.is_ended());
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_key_expires() {
    if !can_run() {
        return;
    }
    let server = Running::start(TIER, &[]);
    let mut client = server.client();
    assert_eq!(client.ask_text("SET k v PX 30"), Reply::ok());
    let started = std::time::Instant::now();
    while client.ask_text("GET k") != Reply::nothing() {
        assert!(started.elapsed() < common::WAIT_MAX);
    }
    assert_eq!(server.figure("expired_keys"), 1);
}

/// Several clients write values of three times the budget in pipelines, and each reads what it has written.
#[test]
fn pipelines_of_several_clients_get_their_replies_in_order() {
    if !can_run() {
        return;
    }
    let server = Running::start("emulated:xl-flash-slc,size=96MiB", &["--size", "80MiB"]);
    let (clients, keys, depth) = (4, 1200, 40);
    std::thread::scope(|scope| {
        for number in 0..clients {
            let mut client = server.client();
            scope.spawn(move || {
                let key = |index: u64| format!("{number}:{index}").into_bytes();
                let value = |index: u64| numbered_bytes(number << 32 | index, 4000 + (index % 9000) as usize);
                let batches =
                    |client: &mut common::Client, make: &dyn Fn(u64) -> Vec<u8>, check: &dyn Fn(u64, Reply)| {
                        for start in (0..keys).step_by(depth) {
                            let batch = start..start + depth as u64;
                            client.send(&batch.clone().flat_map(make).collect::<Vec<u8>>());
                            batch.for_each(|index| check(index, client.reply()));
                        }
                    };
                let set = |index| request(&[b"SET", &key(index), &value(index)]);
                batches(&mut client, &set, &|_, reply| assert_eq!(reply, Reply::ok()));
                let get = |index| request(&[b"GET", &key(index)]);
                batches(&mut client, &get, &|index, reply| assert_eq!(reply, Reply::bytes(&value(index))));
                let names: Vec<Vec<u8>> = (0..keys).step_by(30).map(key).collect();
                let words: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain(names.iter().map(Vec::as_slice)).collect();
                let expected = (0..keys).step_by(30).map(|index| Reply::bytes(&value(index))).collect();
                assert_eq!(client.ask(&words), Reply::Array(expected));
            });
        }
    });
    assert_eq!((server.figure("keys"), server.figure("evicted_keys")), (clients * keys, 0));
    assert!(server.figure("far_reads") > 0 && server.figure("fetched_bytes") > 0);
}

/// Every reply is the value or an error; the server goes on, and takes new values.
#[test]
fn a_tier_that_fails_or_lies_makes_requests_fail_and_nothing_else() {
    if !can_run() {
        return;
    }
    for tier in ["failing:corrupt=1:dram:size=96MiB", "failing:every=1,on=read:dram:size=96MiB"] {
        let server = Running::start(tier, &["--size", "96MiB"]);
        let mut client = server.client();
        let (keys, value) = (4000, |index: u64| numbered_bytes(index, 8000));
        let mut errors = 0;
        let mut is_error = |reply: &Reply| {
            let is_error = matches!(reply, Reply::Error(why) if why.contains("the tier has failed"));
            errors += u64::from(is_error);
            is_error
        };
        for index in 0..keys {
            let reply = client.ask(&[b"SET", index.to_string().as_bytes(), &value(index)]);
            assert!(is_error(&reply) || reply == Reply::ok(), "{tier}: {reply:?}");
        }
        // A read of a tier that fails is retried for a while, so not all of them.
        for index in (0..keys).step_by(20) {
            let reply = client.ask(&[b"GET", index.to_string().as_bytes()]);
            let is_right = reply == Reply::nothing() || reply == Reply::bytes(&value(index));
            assert!(is_error(&reply) || is_right, "{tier}: key {index}");
        }
        assert!(errors > 0, "{tier}: no request has failed: {}", server.client().ask_text("INFO").text());
        assert_eq!(client.ask_text("SET again v"), Reply::ok());
        assert_eq!(client.ask_text("GET again"), Reply::bytes(b"v"));
        assert_eq!(server.figure("tier_errors"), errors);
        assert_eq!(server.end(), Some(0));
    }
}

/// A device whose reads take 100 ms.
const SLOW: &str = "\
description = \"slow\"
[read]
latency_ns = [[0.0, 100_000_000], [1.0, 100_000_000]]
bytes_per_second = 1_000_000_000
[write]
latency_ns = [[0.0, 1_000], [1.0, 1_000]]
bytes_per_second = 10_000_000_000
";

/// Requests that arrived while one waited for a tier were carried out only after that one: a single slow read kept all
/// other clients waiting, whatever they asked for.
#[test]
fn while_one_request_waits_for_a_tier_those_that_arrive_are_carried_out() {
    if !can_run() {
        return;
    }
    let profile = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("slow.toml");
    std::fs::write(&profile, SLOW).expect("the target directory can be written");
    let server = Running::start(&format!("emulated:{},size=160MiB", profile.display()), &["--size", "128MiB"]);
    let (mut client, mut other) = (server.client(), server.client());
    let (cold, filler) = (vec![7; 4000], vec![9; 512 << 10]);
    for number in 0..20 {
        assert_eq!(client.ask(&[b"SET", format!("cold:{number}").as_bytes(), &cold]), Reply::ok());
        (0..3).for_each(|part| {
            let key = format!("filler:{number}:{part}");
            assert_eq!(client.ask(&[b"SET", key.as_bytes(), &filler]), Reply::ok());
        });
    }
    // Once is enough: this machine may be slower than the device.
    let has_overtaken = (0..20).any(|number| {
        client.send(&request(&[b"GET", format!("cold:{number}").as_bytes()]));
        std::thread::sleep(std::time::Duration::from_millis(10));
        assert_eq!(other.ask_text("ECHO word"), Reply::bytes(b"word"));
        let is_first = !client.has_reply();
        assert_eq!(client.reply(), Reply::bytes(&cold));
        is_first && server.figure("far_reads") > 0
    });
    assert!(has_overtaken, "the other client has waited each time");
}
