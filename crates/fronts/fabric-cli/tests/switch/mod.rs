// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A real software switch in its own process: the program `aquifer-cxl-switchd`, run by this test program, which
//! starts itself for that. It can be killed at any moment, and ordered to fail.

#![allow(dead_code, reason = "each test program uses a part")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::Parser;

/// The variable that makes this test program a switch; its value is the arguments, one per line.
const ARGUMENTS: &str = "AQUIFER_TEST_SWITCH";

/// Serves as a switch if this process is to be one; otherwise returns at once. A test `switch_program` calls it.
pub fn serve_if_asked() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let words = std::iter::once("aquifer-cxl-switchd").chain(arguments.lines());
    let failure = aquifer_cxl_switchd::run(&aquifer_cxl_switchd::Args::parse_from(words));
    panic!("the switch has ended: {failure:?}");
}

pub struct RunningSwitch {
    child: Child,
    directory: PathBuf,
    arguments: String,
    /// Where it listens on TCP.
    pub tcp: String,
}

impl RunningSwitch {
    /// Starts a switch, with its sockets in a directory.
    pub fn start(directory: &Path, arguments: &[&str]) -> RunningSwitch {
        let path = |name: &str| directory.join(name).display().to_string();
        let (socket, control) = (path("s"), path("c"));
        let mut all = vec!["--listen", "127.0.0.1:0", "--socket", &socket, "--control", &control];
        all.extend(arguments);
        let arguments = all.join("\n");
        let (child, tcp) = spawn(&arguments);
        RunningSwitch { child, directory: directory.to_owned(), arguments, tcp }
    }

    /// Returns where it listens, for a configuration.
    pub fn unix(&self) -> String {
        format!("unix:{}", self.directory.join("s").display())
    }

    /// Ends it at once, whatever it is doing.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again after it was killed, with nothing bound.
    pub fn start_again(&mut self) {
        (self.child, self.tcp) = spawn(&self.arguments);
    }

    /// Sends a line to its control socket.
    pub fn control(&self, line: &str) {
        let mut stream = UnixStream::connect(self.directory.join("c")).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        writeln!(stream, "{line}").expect("sent");
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).expect("an answer");
        assert!(answer.contains("\"ok\":true"), "{line}: {answer}");
    }
}

fn spawn(arguments: &str) -> (Child, String) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["switch_program", "--exact", "--nocapture", "--test-threads=1"]).env(ARGUMENTS, arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut tcp = None;
    for line in lines {
        let line = line.expect("text");
        // The test program's own words may precede ours on the line.
        if let Some((_, address)) = line.split_once("listening on 127.") {
            tcp = Some(format!("tcp:127.{address}"));
            break;
        }
    }
    (child, tcp.expect("it says where it listens"))
}

impl Drop for RunningSwitch {
    fn drop(&mut self) {
        self.kill();
    }
}
