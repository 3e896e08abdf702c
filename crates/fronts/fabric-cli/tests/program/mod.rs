// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A real daemon in this process, on a free port and with a simulated rack; and the program, with its own home.

#![allow(dead_code, reason = "each test program uses a part")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use aquifer_manager::{Config, Daemon};
use serde_json::{Value, json};

/// What the commands and the daemon of one test share.
pub struct Rack {
    pub directory: PathBuf,
    pub url: String,
    /// More arguments of every command.
    pub more: Vec<String>,
}

/// Returns an empty directory that belongs to one test.
pub fn directory(name: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fabric-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("a directory");
    directory
}

impl Rack {
    /// Starts a daemon. Its threads end with the test program.
    pub fn start(name: &str, config: &str) -> Rack {
        let directory = directory(name);
        let scheme = if config.contains("[tls]") || config.contains("[ca]") { "https" } else { "http" };
        let text = format!(
            "state = {:?}\nlisten = \"127.0.0.1:0\"\n[peers]\nkind = \"simulated\"\ndonors = 4\nhosts = 2\n\
             devices = 2\ndonor-capacity = \"64GiB\"\ndevice-capacity = \"64GiB\"\n\
             [rounds]\nidle-ms = 50\nbusy-ms = 2\n{config}",
            directory.join("state")
        );
        let daemon = Daemon::start(&Config::parse(&text).expect("a configuration")).map_err(|line| line.to_string());
        let daemon = daemon.expect("it starts");
        let url = format!("{scheme}://{}", daemon.address().map_err(|line| line.to_string()).expect("an address"));
        std::thread::spawn(move || daemon.serve());
        Rack { directory, url, more: Vec::new() }
    }

    /// Starts a daemon, logs an administrator in, and applies the declaration.
    pub fn ready(name: &str, config: &str) -> Rack {
        let rack = Rack::start(name, config);
        rack.log_in();
        let file = rack.file("pool.json", &declaration().to_string());
        rack.done(&["apply", &file]);
        rack.done(&["status", "--until-settled"]);
        rack
    }

    pub fn password(&self) -> String {
        std::fs::read_to_string(self.directory.join("state/initial-password")).expect("the first password")
    }

    pub fn log_in(&self) {
        let output = self.fed(&["login", "admin", "--password-stdin"], &self.password());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }

    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.directory.join(name);
        std::fs::write(&path, text).expect("written");
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, private).expect("ours");
        path.display().to_string()
    }

    /// Returns the program with these arguments, as a command in this test's environment.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_aquifer-fabric"));
        command.args(words).args(["--url", &self.url]).args(&self.more).stdin(Stdio::null());
        command.env_clear().env("XDG_RUNTIME_DIR", &self.directory);
        command
    }

    pub fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("it starts")
    }

    /// Runs it with this standard input.
    pub fn fed(&self, words: &[&str], input: &str) -> Output {
        let mut child = spawn(self.command(words).stdin(Stdio::piped()));
        // A program that refuses its arguments reads nothing.
        let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
        child.wait_with_output().expect("it ends")
    }

    /// Runs what must succeed, and returns what it prints.
    pub fn done(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{words:?}");
        stdout(&output)
    }

    /// Returns the answer to a request that must succeed.
    pub fn json(&self, words: &[&str]) -> Value {
        let text = self.done(&[words, &["--json"]].concat());
        assert_eq!(text.lines().count(), 1, "{text}");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Runs what must fail with this code, and returns the one line that says why.
    pub fn fails(&self, code: i32, words: &[&str]) -> String {
        one_line(code, &self.run(words))
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        // The daemon has its store open, and goes on without a name for it until this process ends.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub fn spawn(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// Returns the one line of a failure.
pub fn one_line(code: i32, output: &Output) -> String {
    let text = stderr(output);
    assert_eq!((output.status.code(), stdout(output).as_str()), (Some(code), ""), "{text}");
    let line = text.strip_prefix("aquifer fabric: ").unwrap_or_else(|| panic!("{text:?} does not begin right"));
    assert!(line.ends_with('\n') && line.lines().count() == 1 && line.contains("; "), "{line:?}");
    line.trim_end().to_owned()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the only file in a subdirectory whose name begins like this.
pub fn session_file(directory: &Path) -> PathBuf {
    let mut files = std::fs::read_dir(directory.join("aquifer")).expect("it was made").flatten();
    let file = files.next().expect("a file").path();
    assert!(files.next().is_none(), "a new file was left");
    file
}

/// Returns a pool of all donors, a zone with both hosts, and a bound volume.
pub fn declaration() -> Value {
    json!({
        "pools": { "main": { "donors": ["d0000", "d0001", "d0002", "d0003"], "devices": ["m000", "m001"] } },
        "zones": { "lab": { "quota": "200GiB", "hosts": ["h000", "h001"] } },
        "volumes": {
            "db": { "spec": { "size": "8GiB", "pool": "main", "zone": "lab", "class": "tcp",
                              "redundancy": { "mirror": { "copies": 2 } } }, "host": "h000" },
        },
    })
}
