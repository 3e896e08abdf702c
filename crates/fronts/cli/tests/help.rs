// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Pins the `--help` of every command, so that a change of the interface shows up in review.
//!
//! To accept a change: `AQUIFER_BLESS=1 cargo test -p aquifer-cli --test help`.

mod support;

use std::path::Path;

use support::{aquifer, stderr, stdout};

const COMMANDS: [&str; 78] = [
    "",
    "run",
    "vm",
    "stat",
    "top",
    "metrics",
    "donor",
    "donor reclaim",
    "donor status",
    "agent",
    "doctor",
    "bench",
    "cache",
    "set",
    "tiering",
    "tiering status",
    "tiering apply",
    "tiering hot",
    "cxl",
    "cxl list",
    "cxl create",
    "cxl destroy",
    "cxl online",
    "cxl offline",
    "fabric",
    "fabric serve",
    "fabric login",
    "fabric logout",
    "fabric status",
    "fabric hosts",
    "fabric donors",
    "fabric devices",
    "fabric ports",
    "fabric pools",
    "fabric zones",
    "fabric volumes",
    "fabric tasks",
    "fabric create",
    "fabric bind",
    "fabric unbind",
    "fabric grow",
    "fabric shrink",
    "fabric move",
    "fabric release",
    "fabric drain",
    "fabric declare-gone",
    "fabric adopt",
    "fabric plan",
    "fabric apply",
    "fabric diff",
    "fabric export",
    "fabric audit",
    "fabric events",
    "fabric accounts",
    "fabric accounts add",
    "fabric accounts change",
    "fabric accounts remove",
    "fabric token",
    "fabric token create",
    "fabric token delete",
    "fabric token certificates",
    "fabric token revoke",
    "fabric join",
    "fmapi",
    "fmapi bench",
    "fmapi check",
    "fmapi identify",
    "fmapi ports",
    "fmapi vcs",
    "fmapi lds",
    "fmapi capacity",
    "fmapi events",
    "fmapi bind",
    "fmapi unbind",
    "fmapi decode",
    "stress",
    "completions",
    "man",
];

#[test]
fn help_is_the_golden_one() {
    for command in COMMANDS {
        let output = aquifer().args(command.split_whitespace()).arg("--help").output().unwrap();
        assert!(output.status.success(), "{command}");
        assert_eq!(stderr(&output), "");
        let name = if command.is_empty() { "aquifer" } else { &command.replace(' ', "-") };
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.help"));
        if std::env::var_os("AQUIFER_BLESS").is_some() {
            std::fs::write(&file, &output.stdout).unwrap();
        }
        let golden = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(stdout(&output) == golden, "{} is not what is printed now:\n{}", file.display(), stdout(&output));
    }
}

#[test]
fn every_listed_command_is_pinned_here() {
    let help = stdout(&aquifer().arg("--help").output().unwrap());
    let commands = help.split_once("Commands:\n").unwrap().1;
    let commands = commands.lines().take_while(|line| !line.is_empty());
    for command in commands.map(|line| line.split_whitespace().next().unwrap()).filter(|command| *command != "help") {
        assert!(COMMANDS.contains(&command), "{command} has no golden help");
    }
}

#[test]
fn short_help_fits_a_screen_and_lines_fit_a_terminal() {
    for command in COMMANDS {
        let short = stdout(&aquifer().args(command.split_whitespace()).arg("-h").output().unwrap());
        assert!(short.lines().count() <= 40, "{command}: {} lines", short.lines().count());
        let long = stdout(&aquifer().args(command.split_whitespace()).arg("--help").output().unwrap());
        for line in long.lines() {
            assert!(line.chars().count() <= 100, "{command}: {line}");
        }
    }
}

#[test]
fn versions_of_everything_that_meets_other_releases_are_printed() {
    let version = stdout(&aquifer().arg("--version").output().unwrap());
    assert!(version.starts_with(concat!("aquifer ", env!("CARGO_PKG_VERSION"))), "{version}");
    assert!(version.contains("configuration 6, statistics segment 3"), "{version}");
}

#[test]
fn no_command_is_a_usage_error() {
    let output = aquifer().output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stderr(&output), "aquifer: no command was given; see 'aquifer --help'\n");
    let output = aquifer().arg("tiering").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stderr(&output), "aquifer: no command was given; see 'aquifer tiering --help'\n");
}

#[test]
fn a_command_without_arguments_says_which_it_needs() {
    for (words, needs) in [
        ("cache", "--dram <SIZE> --tier <SPEC>"),
        ("donor reclaim /run/donor.sock", "<--bytes <SIZE>|--all>"),
        ("donor status", "<HOST:PORT|--control <PATH>>"),
    ] {
        let output = aquifer().args(words.split(' ')).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words}");
        let text = stderr(&output);
        assert!(text.contains(&format!("the following required arguments were not provided: {needs};")), "{text}");
    }
}

#[test]
fn completions_and_manual_are_printed() {
    for shell in ["bash", "zsh", "fish", "elvish"] {
        let output = aquifer().args(["completions", shell]).output().unwrap();
        assert!(output.status.success() && stdout(&output).contains("stats-json"), "{shell}");
    }
    let directory = support::scratch("man");
    let output = aquifer().arg("man").arg("--dir").arg(&directory).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    for command in COMMANDS {
        let page = if command.is_empty() {
            "aquifer.1".to_owned()
        } else {
            format!("aquifer-{}.1", command.replace(' ', "-"))
        };
        assert!(directory.join(&page).exists(), "{page}");
    }
}

/// The pipe has no reader: its read end belonged to a process that has exited.
#[test]
fn a_broken_pipe_is_success() {
    let mut reader = std::process::Command::new("true").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let pipe = reader.stdin.take().unwrap();
    reader.wait().unwrap();
    let output = aquifer().args(["completions", "bash"]).stdout(pipe).output().unwrap();
    assert_eq!(stderr(&output), "");
    assert_eq!(output.status.code(), Some(0));
}
