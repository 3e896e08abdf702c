// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Notifies systemd that a service is ready, what it does, that it is alive, and that it ends: sd_notify(3), as
//! datagrams to the socket that `NOTIFY_SOCKET` names. Without it, nothing is sent.
//!
//! The thread that does the service's work sends the signs of life, so that systemd starts the service again when that
//! thread hangs.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The service manager, if there is one.
#[derive(Debug, Default)]
pub struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// Half of the time within which systemd wants a sign of life.
    every: Option<Duration>,
    last: Mutex<Option<Instant>>,
}

/// Returns the socket of a name as systemd writes it: a path, or `@` and an abstract name.
fn address(name: &OsStr) -> Option<SocketAddr> {
    match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest).ok(),
        [b'/', ..] => SocketAddr::from_pathname(name).ok(),
        _ => None,
    }
}

impl Notify {
    /// Reads what systemd has put into the environment.
    pub fn from_environment() -> Notify {
        let text = |name: &str| std::env::var(name).ok();
        let pid = text("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let every = text("WATCHDOG_USEC").filter(|_| pid).and_then(|us| us.parse::<u64>().ok());
        let to = std::env::var_os("NOTIFY_SOCKET").and_then(|name| address(&name));
        let to = to.and_then(|address| Some((UnixDatagram::unbound().ok()?, address)));
        Notify { to, every: every.map(|us| Duration::from_micros(us / 2)), last: Mutex::default() }
    }

    /// Sends lines of the form `NAME=value`.
    pub fn send(&self, lines: &str) {
        if let Some((socket, address)) = &self.to {
            // The service goes on if the service manager does not listen.
            let _ = socket.send_to_addr(lines.as_bytes(), address);
        }
    }

    /// Notifies systemd that clients can connect.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// Notifies systemd of what the service does now, in a line.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}"));
    }

    /// Notifies systemd that the service ends.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Sends a sign of life to systemd, if one is due.
    pub fn alive(&self) {
        let Some(every) = self.every else { return };
        let mut last = self.last.lock().expect("no holder of this lock panics");
        if last.is_none_or(|last| last.elapsed() >= every) {
            *last = Some(Instant::now());
            self.send("WATCHDOG=1");
        }
    }

    /// Returns how long the service may wait before it checks whether a sign of life is due.
    pub fn wait_max(&self, wanted: Duration) -> Duration {
        self.every.map_or(wanted, |every| wanted.min(every / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_paths_or_abstract() {
        assert!(
            address(OsStr::new("@/org/freedesktop/systemd1/notify"))
                .is_some_and(|one| one.as_abstract_name().is_some())
        );
        assert!(address(OsStr::new("/run/systemd/notify")).is_some_and(|one| one.as_pathname().is_some()));
        assert!(address(OsStr::new("vsock:2:1")).is_none() && address(OsStr::new("")).is_none());
    }

    #[test]
    fn lines_arrive_by_either_kind_of_socket_name() {
        let own = std::process::id();
        let path = std::env::temp_dir().join(format!("aquifer-notify-{own}"));
        let _ = std::fs::remove_file(&path);
        let name = format!("@aquifer-notify-test-{own}");
        let bound = [
            (UnixDatagram::bind(&path).unwrap(), path.as_os_str()),
            (UnixDatagram::bind_addr(&address(OsStr::new(&name)).unwrap()).unwrap(), OsStr::new(&name)),
        ];
        for (receiver, name) in &bound {
            let to = Some((UnixDatagram::unbound().unwrap(), address(name).unwrap()));
            let notify = Notify { to, every: Some(Duration::ZERO), ..Notify::default() };
            notify.ready("serves");
            notify.alive();
            let mut text = [0; 64];
            for sent in ["READY=1\nSTATUS=serves", "WATCHDOG=1"] {
                let count = receiver.recv(&mut text).unwrap();
                assert_eq!(&text[..count], sent.as_bytes());
            }
        }
        // Nobody listens any more, which does not concern the service.
        let to = Some((UnixDatagram::unbound().unwrap(), address(path.as_os_str()).unwrap()));
        drop(bound);
        std::fs::remove_file(&path).unwrap();
        Notify { to, ..Notify::default() }.stopping();
    }

    #[test]
    fn without_a_service_manager_nothing_is_sent() {
        let notify = Notify::default();
        notify.ready("leads");
        notify.alive();
        assert_eq!(notify.wait_max(Duration::from_secs(9)), Duration::from_secs(9));
    }
}
