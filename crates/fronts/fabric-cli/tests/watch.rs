// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `--watch` of every command that lists a state, against a real daemon.

mod program;

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout};

use program::{Rack, stderr};
use serde_json::Value;

/// A command that is watched, and what it prints.
struct Watched {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watched {
    fn start(rack: &Rack, words: &[&str]) -> Watched {
        let words = [words, &["--watch", "--interval", "1"]].concat();
        let mut child = program::spawn(&mut rack.command(&words));
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Watched { child, lines }
    }

    fn next(&mut self) -> String {
        self.lines.next().expect("a line").expect("text")
    }

    /// Stops reading, and checks that the command ends well: a broken pipe is success.
    fn end(self) {
        drop(self.lines);
        let output = self.child.wait_with_output().expect("it ends");
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    }
}

#[test]
fn every_list_goes_on_until_nobody_reads_it_with_one_document_a_line() {
    let rack = Rack::ready("watch-all", "");
    let lists = [
        "status",
        "hosts",
        "donors",
        "devices",
        "ports",
        "pools",
        "zones",
        "volumes",
        "tasks",
        "accounts",
        "token",
        "token certificates",
    ];
    let start = |list: &'static str| {
        let words: Vec<&str> = list.split(' ').chain(["--json"]).collect();
        (list, Watched::start(&rack, &words))
    };
    let all: Vec<_> = lists.into_iter().map(start).collect();
    for (list, mut watched) in all {
        for _ in 0..3 {
            let line = watched.next();
            let document: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{list}: {error}: {line}"));
            let is_list = document["Members"].is_array() || document["Id"] == "Aquifer";
            assert!(is_list, "{list}: {line}");
        }
        watched.end();
    }
}

#[test]
fn people_see_a_list_change_with_an_empty_line_between_updates() {
    let rack = Rack::ready("watch-text", "");
    let mut watched = Watched::start(&rack, &["volumes"]);
    let first: Vec<String> = (0..3).map(|_| watched.next()).collect();
    assert!(first[0].starts_with("VOLUME  STATE"), "{first:?}");
    assert!(first[1].starts_with("db ") && first[2].is_empty(), "{first:?}");
    rack.done(&["create", "late", "--size", "2MiB", "--zone", "lab", "--class", "tcp"]);
    let begun = std::time::Instant::now();
    while !watched.next().starts_with("late ") {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "it is not listed");
    }
    watched.end();
}

#[test]
fn what_is_no_list_is_not_watched() {
    let rack = Rack::start("watch-no", "");
    for words in [
        &["accounts", "--watch", "remove", "rita"][..],
        &["token", "--watch", "delete", "0f"],
        &["token", "--watch", "certificates"],
    ] {
        assert!(rack.fails(2, words).contains("--watch repeats the list alone; leave it out"), "{words:?}");
    }
    for words in
        [&["export", "--watch"][..], &["hosts", "--watch", "--interval", "0"], &["bind", "db", "h000", "--watch"]]
    {
        assert_eq!(rack.run(words).status.code(), Some(2), "{words:?}");
    }
}
