// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Notifies systemd when the donor starts and stops lending: one datagram to the socket that systemd names. See
//! sd_notify(3).
//!
//! Sends nothing when systemd named no socket, and ignores failures to send.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The environment variable that names the socket.
const VARIABLE: &str = "NOTIFY_SOCKET";
/// Time added to the grace period, for wiping what was lent.
const WIPE: Duration = Duration::from_secs(30);

/// Sends lines of the form `NAME=value`.
pub fn tell(lines: &str) {
    if let Some(socket) = env::var_os(VARIABLE) {
        let _ = send(&socket, lines);
    }
}

/// Announces that the donor is stopping, and how long that may take.
pub fn stopping(status: &str, within: Duration) {
    let max = within.saturating_add(WIPE).as_micros();
    tell(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={max}\nSTATUS={status}"));
}

fn send(socket: &OsStr, lines: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(lines.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_arrive_by_either_kind_of_socket_name() {
        let directory = env::temp_dir().join(format!("aquifer-notify-{}", std::process::id()));
        let _ = std::fs::remove_file(&directory);
        let abstract_name = format!("aquifer-notify-test-{}", std::process::id());
        let bound = [
            (UnixDatagram::bind(&directory).unwrap(), directory.clone().into_os_string()),
            (
                UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&abstract_name).unwrap()).unwrap(),
                format!("@{abstract_name}").into(),
            ),
        ];
        std::fs::remove_file(&directory).unwrap_or(());
        for (index, (receiver, name)) in bound.iter().enumerate() {
            let sent = send(name, "READY=1");
            // The first socket's name has been removed, so nobody listens there any more.
            assert_eq!(sent.is_ok(), index == 1);
            if sent.is_ok() {
                let mut text = [0; 64];
                let count = receiver.recv(&mut text).unwrap();
                assert_eq!(&text[..count], b"READY=1");
            }
        }
    }
}
