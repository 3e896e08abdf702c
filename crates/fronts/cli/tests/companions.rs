// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The programs that the command starts: they are found beside it or where packages install them, and an error for a
//! missing or broken one names it and says how to install it. Scripts stand in for them.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::{alone, aquifer_at, stderr, stdout};

/// Writes a program of this name beside the command, or where packages install it. A shell writes it, because a file
/// that this process has written may be busy: see `alone`.
fn place(command: &Path, directory: &str, name: &str, script: &str) -> PathBuf {
    let directory = command.with_file_name(directory);
    std::fs::create_dir_all(&directory).unwrap();
    let program = directory.canonicalize().unwrap().join(name);
    let write = r#"rm -f "$0"; printf '#!/bin/sh\n%s\n' "$1" > "$0"; chmod 755 "$0""#;
    assert!(Command::new("sh").args(["-c", write]).arg(&program).arg(script).status().unwrap().success());
    program
}

/// Far longer than a start takes, even on a slow and busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A bench that prints its arguments to standard output.
const SAYS_WORDS: &str = "for word; do echo \"$word\"; done; exit 4";

#[test]
fn the_bench_gets_the_words_and_its_status_is_the_commands() {
    let command = alone("bench-words");
    let own = command.display().to_string();
    for directory in ["../libexec/aquifer", "."] {
        place(&command, directory, "aquifer-bench", SAYS_WORDS);
        let words = ["bench", "--quick", "--json", "-", "--local", "30,50"];
        let output = aquifer_at(&command).args(words).output().unwrap();
        assert_eq!(stdout(&output), format!("--aquifer\n{own}\n--quick\n--json\n-\n--local\n30,50\n"), "{directory}");
        assert_eq!((output.status.code(), stderr(&output)), (Some(4), String::new()));
    }
    let words = ["--log-format", "json", "bench", "--aquifer", "/old/aquifer", "--", "bench", "--plan"];
    let output = aquifer_at(&command).args(words).output().unwrap();
    assert_eq!(stdout(&output), "--log-format\njson\n--aquifer\n/old/aquifer\n--\nbench\n--plan\n");
}

#[test]
fn the_fmapi_program_gets_the_words_and_its_status_is_the_commands() {
    let command = alone("fmapi-words");
    place(&command, ".", "aquifer-fmapi", SAYS_WORDS);
    let words = ["--log-format", "json", "fmapi", "check", "tcp:10.0.0.7", "--json", "--html", "fmapi"];
    let output = aquifer_at(&command).args(words).output().unwrap();
    assert_eq!(stdout(&output), "check\ntcp:10.0.0.7\n--json\n--html\nfmapi\n");
    assert_eq!((output.status.code(), stderr(&output)), (Some(4), String::new()));
    let output = aquifer_at(&command).args(["fmapi", "prots", "tcp:10.0.0.7"]).output().unwrap();
    let line = "aquifer: unrecognized subcommand 'prots'; a similar subcommand exists: 'ports'\n";
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(2), line));
}

#[test]
fn the_fabric_program_gets_the_words_and_its_status_is_the_commands() {
    let command = alone("fabric-words");
    place(&command, ".", "aquifer-fabric", SAYS_WORDS);
    let words = ["fabric", "bind", "fabric", "h000", "--json", "--dry-run", "--log-format", "json"];
    let output = aquifer_at(&command).args(words).output().unwrap();
    assert_eq!(stdout(&output), "bind\nfabric\nh000\n--json\n--dry-run\n");
    assert_eq!((output.status.code(), stderr(&output)), (Some(4), String::new()));
    let output = aquifer_at(&command).args(["fabric", "grow", "db", "16gb"]).output().unwrap();
    assert!(stderr(&output).contains("'16gb' is not a size; write"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(2));
    for size in ["16G", "16GB"] {
        let output = aquifer_at(&command).args(["fabric", "grow", "db", size]).output().unwrap();
        assert!(stdout(&output).ends_with(&format!("grow\ndb\n{size}\n")), "as by --dram: {}", stderr(&output));
    }
}

#[test]
fn the_cache_gets_the_words_and_its_status_is_the_commands() {
    let command = alone("cache-words");
    place(&command, ".", "aquifer-cache", SAYS_WORDS);
    let words = ["cache", "--dram", "64MiB", "--tier", "dram:"];
    let output = aquifer_at(&command).args(words).output().unwrap();
    assert_eq!(stdout(&output), "--dram\n64MiB\n--tier\ndram:\n");
    assert_eq!((output.status.code(), stderr(&output)), (Some(4), String::new()));
    let output = aquifer_at(&command).args(["cache", "--dram", "much", "--tier", "dram:"]).output().unwrap();
    assert!(stderr(&output).contains("'much' is not a size"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn the_agent_gets_the_words_and_its_status_is_the_commands() {
    let command = alone("agent-words");
    let output = aquifer_at(&command).args(["agent", "--check"]).output().unwrap();
    assert!(stderr(&output).contains("the program aquifer-agentd is not at"), "{}", stderr(&output));
    assert!(stderr(&output).ends_with("run 'make agent' in the source tree\n"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(125));
    place(&command, ".", "aquifer-agentd", SAYS_WORDS);
    let words = ["agent", "--config", "agent", "--check", "--log-format", "json"];
    let output = aquifer_at(&command).args(words).output().unwrap();
    assert_eq!(stdout(&output), "--config\nagent\n--check\n");
    assert_eq!((output.status.code(), stderr(&output)), (Some(4), String::new()));
}

#[test]
fn arguments_unknown_to_the_bench_are_refused_without_it() {
    let command = alone("bench-refused");
    for (words, line) in [
        (&["--rouns", "3"][..], "unexpected argument '--rouns' found; a similar argument exists: '--rounds'"),
        (
            &["--bytes", "4x"],
            "invalid value '4x' for '--bytes <SIZE>': 'x' is not a unit of size; use KiB, MiB, GiB or TiB",
        ),
    ] {
        let output = aquifer_at(&command).arg("bench").args(words).output().unwrap();
        assert_eq!((output.status.code(), stderr(&output)), (Some(2), format!("aquifer: {line}\n")));
    }
    let output = aquifer_at(&command).args(["bench", "--help"]).output().unwrap();
    assert!(output.status.success() && stdout(&output).contains("--workload"), "{}", stderr(&output));
}

/// Expects that the command fails with this line about the program. A command that serves instead is ended.
fn fails(command: &Path, words: &[&str], name: &str, what: &str) {
    let mut running = aquifer_at(command);
    let mut running = running.args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while running.try_wait().unwrap().is_none() && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = running.kill();
    let output = running.wait_with_output().unwrap();
    let target = name.strip_prefix("aquifer-").unwrap();
    let remedy = format!("install aquifer again, or run 'make {target}' in the source tree");
    assert_eq!(stderr(&output), format!("aquifer: the program {name} {what}; {remedy}\n"));
    // The bench and the suite use exit status 1 themselves.
    let status = if name == "aquifer-metrics" { 1 } else { 125 };
    assert_eq!(output.status.code(), Some(status));
    assert_eq!(stdout(&output), "");
}

const EXPORTS: [&[&str]; 2] = [
    &["metrics", "--listen", "127.0.0.1:0"],
    &["donor", "--size", "4MiB", "--security", "plain", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"],
];

#[test]
fn a_missing_program_is_named_with_what_installs_it() {
    let command = alone("missing");
    let (bin, prefix) = (command.parent().unwrap(), command.parent().unwrap().parent().unwrap());
    let nowhere =
        |name: &str| format!("is not at {}/{name} or {}/libexec/aquifer/{name}", bin.display(), prefix.display());
    fails(&command, &["bench", "--plan"], "aquifer-bench", &nowhere("aquifer-bench"));
    fails(&command, &["stress", "--list"], "aquifer-stress", &nowhere("aquifer-stress"));
    let cache = ["cache", "--dram", "64MiB", "--tier", "dram:"];
    fails(&command, &cache, "aquifer-cache", &nowhere("aquifer-cache"));
    fails(&command, &["fabric", "status"], "aquifer-fabric", &nowhere("aquifer-fabric"));
    fails(&command, &["fmapi", "ports", "tcp:127.0.0.1"], "aquifer-fmapi", &nowhere("aquifer-fmapi"));
    for words in EXPORTS {
        fails(&command, words, "aquifer-metrics", &nowhere("aquifer-metrics"));
    }
}

#[test]
fn a_program_that_does_not_start_is_reported() {
    let command = alone("broken");
    for (name, words) in [("aquifer-bench", &["bench", "--plan"][..]), ("aquifer-metrics", EXPORTS[0])] {
        let program = place(&command, ".", name, "");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o644)).unwrap();
        let what = format!("at {} cannot be started: Permission denied (os error 13)", program.display());
        fails(&command, words, name, &what);
    }
    for words in EXPORTS {
        let program = place(&command, ".", "aquifer-metrics", "exit 3");
        let what = format!("at {} exits immediately (exit status: 3)", program.display());
        fails(&command, words, "aquifer-metrics", &what);
        // The greeting goes to standard output, which is the socket to the command.
        let program = place(&command, ".", "aquifer-metrics", "echo hello; exec sleep 100");
        fails(&command, words, "aquifer-metrics", &format!("at {} has a different version", program.display()));
    }
}
