// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the agent notifies systemd of: that it is ready when programs can connect, also while no manager answers; that
//! it is alive; and that it ends.

use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longer than anything takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

struct Systemd(UnixDatagram);

impl Systemd {
    /// Waits for a message with a line, and returns the message.
    fn wait_for(&self, wanted: &str) -> String {
        let (begun, mut message) = (Instant::now(), [0; 4096]);
        self.0.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        while begun.elapsed() < TIMEOUT {
            let count = self.0.recv(&mut message).unwrap_or_else(|error| panic!("{wanted} is not sent: {error}"));
            let text = String::from_utf8_lossy(&message[..count]).into_owned();
            if text.lines().any(|line| line == wanted) {
                return text;
            }
        }
        panic!("{wanted} is not sent");
    }
}

#[test]
fn systemd_is_notified_that_the_agent_is_ready_alive_and_ending() {
    // Short, because the length of a socket path is limited.
    let directory = std::env::temp_dir().join(format!("aq-notify-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a temporary directory");
    let systemd = Systemd(UnixDatagram::bind(directory.join("notify")).expect("a socket"));
    let at = directory.display();
    let config =
        format!("host = 'web-1'\nsocket = '{at}/s'\nstate = '{at}/state'\n[manager]\naddresses = ['127.0.0.1:1']\n");
    std::fs::write(directory.join("agent.toml"), config).expect("a file");
    // The usual soft limit on open files is for a few hundred programs.
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -S -n 200; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_aquifer-agentd")]);
    command.arg("--config").arg(directory.join("agent.toml")).stdout(Stdio::null()).stderr(Stdio::null());
    command.env("NOTIFY_SOCKET", directory.join("notify")).env("WATCHDOG_USEC", "1000000");
    let mut agent = command.spawn().expect("the agent starts");

    let ready = systemd.wait_for("READY=1");
    assert!(ready.contains(&format!("STATUS=serves programs at {at}/s")), "{ready}");
    UnixStream::connect(directory.join("s")).expect("programs can connect");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", agent.id())).expect("it runs");
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a limit");
    let [soft, hard, ..] = files.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{files}") };
    assert_eq!(soft, hard, "each program takes three");
    for _ in 0..3 {
        systemd.wait_for("WATCHDOG=1");
    }
    let pid = Pid::from_raw(agent.id().try_into().expect("a process")).expect("not 0");
    kill_process(pid, Signal::TERM).expect("it is ours");
    systemd.wait_for("STOPPING=1");
    assert!(agent.wait().expect("it is ours").success());
    std::fs::remove_dir_all(directory).expect("removed");
}
