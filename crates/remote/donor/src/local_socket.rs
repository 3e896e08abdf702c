// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Sockets on this machine. Connects to one within a bounded time: connect(2) waits while the listener's queue is full,
//! and a stopped donor accepts nobody. See unix(7), socket(7) on SO_SNDTIMEO.
//!
//! Threads: any.

use std::io::{self, ErrorKind};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Listens at `path`, where nobody but this user and root may connect. Up to `waiting_max` connections wait to be
/// accepted.
pub(crate) fn listen(path: &Path, waiting_max: i32) -> io::Result<UnixListener> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // bind(2) gives the file the socket's mode, so the file never has another mode, not even for a moment. See unix(7).
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, waiting_max)?;
    Ok(socket.into())
}

/// Connects to the listener at `path`. Neither the connection attempt nor any later operation takes longer than
/// `timeout`.
pub(crate) fn connect(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let stream = try_connect(path, SocketFlags::CLOEXEC, Some(timeout)).map_err(|errno| match errno {
        Errno::AGAIN => ErrorKind::TimedOut.into(),
        errno => io::Error::from(errno),
    })?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    Ok(stream)
}

/// Whether nobody listens at a socket because its owner has left it. Does not wait.
pub(crate) fn is_left(path: &Path) -> bool {
    try_connect(path, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None).err() == Some(Errno::CONNREFUSED)
}

fn try_connect(path: &Path, flags: SocketFlags, timeout: Option<Duration>) -> Result<UnixStream, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // This bounds connect(2), too.
    set_socket_timeout(&socket, Timeout::Send, timeout)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// A donor that was stopped kept `aquifer donor status` and its own successor waiting for ever.
    #[test]
    fn a_listener_that_accepts_nobody_is_not_waited_for() {
        let path = std::env::temp_dir().join(format!("aq-{}-local-socket", std::process::id()));
        assert_eq!(connect(&path, Duration::from_secs(1)).unwrap_err().kind(), ErrorKind::NotFound);
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let listener = listener.unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert!(is_left(&path), "nobody listens yet");
        rustix::net::listen(&listener, 1).unwrap();
        let waiting = || try_connect(&path, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None);
        let queue: Vec<UnixStream> = std::iter::from_fn(|| waiting().ok()).take(100).collect();
        assert_eq!(waiting().unwrap_err(), Errno::AGAIN, "{} wait, and there is no room for more", queue.len());
        let begun = Instant::now();
        assert_eq!(connect(&path, Duration::from_millis(100)).unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(!is_left(&path), "somebody listens");
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        drop(listener);
        assert!(is_left(&path));
        std::fs::remove_file(&path).unwrap();
    }
}
