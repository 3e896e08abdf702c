// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the daemon tells systemd: that it is ready when clients can connect, what it does, and that it lives, as long
//! as its main thread does.

mod daemon;

use std::os::unix::net::UnixDatagram;
use std::time::Instant;

use daemon::{Daemon, WAIT_MAX, address, directory};

struct Systemd(UnixDatagram);

impl Systemd {
    /// Waits for a message with a line.
    fn wait_for(&self, wanted: &str) {
        let (begun, mut message) = (Instant::now(), [0; 4096]);
        self.0.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
        while begun.elapsed() < WAIT_MAX {
            let count = self.0.recv(&mut message).unwrap_or_else(|error| panic!("{wanted} is not sent: {error}"));
            let text = String::from_utf8_lossy(&message[..count]).into_owned();
            if text.lines().any(|line| line == wanted) {
                return;
            }
        }
        panic!("{wanted} is not sent");
    }
}

#[test]
fn systemd_is_told_that_the_daemon_is_ready_and_lives() {
    let directory = directory("notify");
    let socket = directory.join("socket");
    let systemd = Systemd(UnixDatagram::bind(&socket).expect("a socket"));
    let config = format!(
        "state = {:?}\nlisten = \"{}:0\"\n[peers]\nkind = \"simulated\"\n[rounds]\nidle-ms = 60000\n",
        directory.join("state"),
        address()
    );
    let variables = [("NOTIFY_SOCKET", socket.display().to_string()), ("WATCHDOG_USEC", "1000000".to_owned())];
    let daemon = Daemon::launch(&directory, &config, &variables);
    systemd.wait_for("READY=1");
    let answer = daemon.ask("GET", "/redfish/v1", "", "").expect("clients can connect");
    assert_eq!(answer.status, 200);
    systemd.wait_for("STATUS=leads");
    // The watchdog is served even while the daemon has nothing to do for a minute.
    for _ in 0..3 {
        systemd.wait_for("WATCHDOG=1");
    }
    drop(daemon);
    std::fs::remove_dir_all(directory).expect("removed");
}
