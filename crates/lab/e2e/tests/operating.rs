// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Checks that a reader can type what the documents in docs/operating show. Every snippet that an ordinary machine can
//! run is run on this one, in the order of the documents, with a donor started as the documents say. The options in the
//! other snippets are compared with the help. `deployment.rs` runs all snippets, on separate machines.
//!
//! Differences from the documents: addresses, ports, paths and sizes.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use aquifer_e2e::build::{binaries, compile_small, scratch};
use aquifer_e2e::operating_docs::{Snippet, SnippetKind, smaller, snippets};
use aquifer_e2e::run::{LIMIT, aquifer, eventually, run, start};

/// The donor's configuration file.
const CONFIGURATION: &str = "/etc/aquifer/donor.conf";

fn is_configuration(snippet: &Snippet) -> bool {
    snippet.kind == SnippetKind::File(CONFIGURATION.into())
}

/// The help of `aquifer`, or of one of its commands.
fn help(words: &[&str]) -> String {
    let mut command = aquifer();
    command.args(words).arg("--help");
    run(command, LIMIT).expect(0).stdout.clone()
}

#[test]
fn every_option_of_ours_is_one_and_every_snippet_is_a_script() {
    let mut commands = 0;
    for Snippet { place, kind, text, .. } in snippets() {
        if matches!(kind, SnippetKind::Text | SnippetKind::File(_)) {
            continue;
        }
        let read = Command::new("sh").args(["-n", "-c", &text]).output().expect("sh can be started");
        assert!(read.status.success(), "{place}: {}", String::from_utf8_lossy(&read.stderr));
        for line in text.replace("\\\n", " ").lines() {
            let ours = line.split(" -- ").next().unwrap_or_default();
            let words: Vec<&str> = ours.split_whitespace().collect();
            let ["aquifer", command, rest @ ..] = &words[..] else { continue };
            let inner = rest.first().filter(|word| *command == "donor" && !word.starts_with('-'));
            let known = help(&[Some(*command), inner.copied()].into_iter().flatten().collect::<Vec<_>>());
            for flag in rest.iter().filter(|word| word.starts_with("--")) {
                assert!(known.contains(&format!("{flag} ")) || known.contains(&format!("{flag}\n")), "{place}: {flag}");
            }
            // The tier is parsed before anything else is checked, so an error in its text is reported first.
            for tier in rest.windows(2).filter(|pair| pair[0] == "--tier").map(|pair| pair[1]) {
                let mut command = aquifer();
                command.args(["run", "--dram", "16MiB", "--tier", tier, "--", "/nonexistent"]);
                assert!(!run(command, LIMIT).stderr.contains("invalid value"), "{place}: {tier}");
            }
            commands += 1;
        }
    }
    assert!(commands > 10, "the documents have commands: {commands}");
    let configuration = snippets().into_iter().find(is_configuration).expect("what the donor lends");
    let known = help(&["donor"]);
    for flag in configuration.text.split([' ', '=']).filter(|word| word.starts_with("--")) {
        assert!(known.contains(&format!("{flag} <")), "{flag}");
    }
}

/// A donor that is killed on drop.
struct Donor(Child);

impl Drop for Donor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ports that are currently free.
fn free_ports() -> [u16; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    listeners.map(|listener| listener.local_addr().expect("it listens").port())
}

#[test]
fn the_documents_can_be_followed_on_one_machine() {
    for tool in ["openssl", "curl"] {
        if Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
            return aquifer_test_support::skip(format!("there is no {tool}"));
        }
    }
    let body = "char *memory = touch(48); for (size_t at = 0; at < 48u << 20; at += 4096) \
                if (memory[at] != (char)(at >> 12 | 1)) return 5; return 0;";
    let Some(program) = compile_small("operating", body) else { return };
    let directory = scratch("operating");
    std::fs::copy(program, directory.join("program")).expect("the scratch directory can be written");
    // Short, because the length of a socket path is limited.
    let control = std::env::temp_dir().join(format!("aq-op-{}", std::process::id()));
    let [port, metrics] = free_ports();
    let here = |text: &str| {
        smaller(text)
            .replace("10.0.0.2:7411", &format!("127.0.0.1:{port}"))
            .replace("10.0.0.2:7412", &format!("127.0.0.1:{metrics}"))
            .replace("10.0.0.2", "127.0.0.1")
            .replace("/etc/aquifer", directory.to_str().expect("a path of ours"))
            .replace("/run/aquifer-donor/control", control.to_str().expect("a path of ours"))
    };
    let mut donor = None;
    for snippet in snippets() {
        let Snippet { place, kind, text, .. } = &snippet;
        if is_configuration(&snippet) {
            let text = here(text);
            let words = text.trim().strip_prefix("DONOR_ARGS=").expect("what the unit reads");
            donor = Some(lend(words, &control));
        } else if let SnippetKind::Skipped(why) = kind {
            aquifer_test_support::skip_part(place, format!("the document says: {why}"));
        } else if *kind == (SnippetKind::Script { or_here: true }) {
            println!("{place}");
            let mut shell = Command::new("sh");
            shell.args(["-e", "-c", &here(text)]).current_dir(&directory);
            let path = std::env::var("PATH").unwrap_or_default();
            shell.env("PATH", format!("{}:{path}", binaries().display()));
            shell.env("AQUIFER_PRELOAD", binaries().join("libaquifer_preload.so")).env_remove("AQUIFER_CONFIG");
            let ended = start(shell).wait(LIMIT);
            println!("{}{}", ended.stdout, ended.stderr);
            assert_eq!(ended.status, Some(0), "{place}: {}", ended.stderr);
        } else if *kind != SnippetKind::Text {
            println!("{place}: left to deployment.rs, which has machines for it");
        }
    }
    assert!(donor.is_some(), "the documents have a donor");
    let stats = std::fs::read_to_string(directory.join("stats.json")).expect("the program's numbers");
    let stats: serde_json::Value = serde_json::from_str(&stats).expect("one object");
    assert!(stats["written_back_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "it had memory there: {stats}");
    drop(donor);
    let _ = std::fs::remove_file(&control);
}

/// Starts a donor as the unit does.
fn lend(words: &str, control: &Path) -> Donor {
    let unit = include_str!("../../../../packaging/aquifer-donor.service");
    assert!(unit.contains("aquifer donor --control /run/aquifer-donor/control $DONOR_ARGS"), "{unit}");
    let mut command = aquifer();
    command.args(["donor", "--control"]).arg(control).args(words.split_whitespace());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("aquifer can be started");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("it says where");
    assert!(line.contains("256MiB"), "{line}");
    eventually("its control socket", || control.exists());
    Donor(child)
}
