// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The sockets that managers and testers connect to. Each listener has a thread; the caller waits for all of them.

use std::io;
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::args::{Ended, Failure};
use crate::control;
use crate::peer::Stream;
use crate::server::Server;

/// How long a listener waits after it could not accept, so that it does not spin when descriptors have run out.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The sockets of a switch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sockets<'a> {
    /// The address for MCTP over TCP; none to listen on no TCP.
    pub listen: Option<&'a str>,
    /// The path of a Unix socket with the same packets.
    pub socket: Option<&'a Path>,
    /// The path of a Unix socket for failures.
    pub control: Option<&'a Path>,
    /// Called once clients can connect.
    pub ready: Option<fn()>,
}

/// Listens on all sockets that the arguments ask for. Returns only if one of them cannot be opened, or a thread fails.
pub fn serve(server: &Arc<Server>, sockets: &Sockets<'_>) -> Result<(), Ended> {
    let mut listeners: Vec<thread::JoinHandle<()>> = Vec::new();
    let written = Arc::clone(server);
    // It is not waited for: it may wait for the reader of standard error for ever.
    start("stderr", move || written.write_stderr())?;
    if let Some(path) = sockets.socket {
        let (listener, server) = (unix(path, "--socket")?, Arc::clone(server));
        println!("listening on {}", path.display());
        listeners.push(start("socket", move || {
            accept(&server, || listener.accept().map(|(it, _)| it), |it| managed(&server, it))
        })?);
    }
    if let Some(path) = sockets.control {
        let (listener, server) = (unix(path, "--control")?, Arc::clone(server));
        println!("controlled by {}", path.display());
        listeners.push(start("control", move || {
            accept(&server, || listener.accept().map(|(it, _)| it), |it| control::serve(&server, it));
        })?);
    }
    if let Some(address) = sockets.listen {
        let refuse = |error: io::Error| {
            let remedy = "give another --listen ADDRESS:PORT, or --no-tcp with --socket PATH";
            let failure = Failure::new(format!("cannot listen on {address}: {error}"), remedy);
            Ended { failure, is_final: stays(&error) }
        };
        let listener = TcpListener::bind(address).map_err(refuse)?;
        println!("listening on {}", listener.local_addr().map_err(refuse)?);
        let server = Arc::clone(server);
        listeners.push(start("tcp", move || {
            accept(
                &server,
                || listener.accept().map(|(it, _)| it),
                |it| {
                    // Without it, answers are only later.
                    let _ = it.set_nodelay(true);
                    managed(&server, it);
                },
            );
        })?);
    }
    let server = Arc::clone(server);
    listeners.push(start("time", move || server.let_time_pass())?);
    if let Some(ready) = sockets.ready {
        ready();
    }
    // The threads run until a signal ends the process; a thread that panics ends the process, too.
    for listener in listeners {
        let failed = |_| Ended::passing(Failure::new("a thread of the switch has failed", "report what it printed"));
        listener.join().map_err(failed)?;
    }
    Ok(())
}

/// Starts a thread, or fails with the cause and the remedy.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<thread::JoinHandle<()>, Failure> {
    let started = thread::Builder::new().name(name.into()).spawn(body);
    started.map_err(|error| Failure::new(format!("cannot start a thread: {error}"), "raise the limit of processes"))
}

fn start(name: &str, body: impl FnOnce() + Send + 'static) -> Result<thread::JoinHandle<()>, Ended> {
    spawn(name, body).map_err(Ended::passing)
}

fn accept<S>(server: &Server, mut next: impl FnMut() -> io::Result<S>, mut take: impl FnMut(S)) {
    loop {
        match next() {
            Ok(stream) => take(stream),
            Err(error) => {
                server.report(&format!("cannot accept a connection: {error}; raise the limit of open files"));
                thread::sleep(ACCEPT_RETRY);
            }
        }
    }
}

/// Starts a thread for a manager that has connected, or turns it away.
fn managed(server: &Arc<Server>, stream: impl Stream) {
    let served = Arc::clone(server);
    if let Err(failure) = served.admit(Box::new(stream)) {
        server.report(&failure.to_string());
    }
}

/// Whether a socket can never be opened at its place until somebody changes that or this machine. A port or an address
/// in use may become free, and so may descriptors and memory; an address of this machine, or the answer for a name, may
/// come later than this program.
fn stays(error: &io::Error) -> bool {
    use io::ErrorKind::{
        InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem,
        Unsupported,
    };
    let is_name_wrong = matches!(error.kind(), InvalidFilename | InvalidInput | Unsupported);
    let is_directory_wrong = matches!(error.kind(), IsADirectory | NotADirectory | NotFound | ReadOnlyFilesystem);
    is_name_wrong || is_directory_wrong || error.kind() == PermissionDenied
}

/// Listens on a socket at a path. Replaces a socket there that nobody listens on any more.
fn unix(path: &Path, option: &str) -> Result<UnixListener, Ended> {
    let is_socket = path.symlink_metadata().is_ok_and(|file| file.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        let _ = std::fs::remove_file(path);
    }
    UnixListener::bind(path).map_err(|error| {
        let remedy = format!("give {option} a path that is free, in a directory that can be written to");
        let failure = Failure::new(format!("cannot listen on {}: {error}", path.display()), remedy);
        // A file that is no socket stays where it is; a socket is that of a program, which may end.
        let is_occupied = error.kind() == io::ErrorKind::AddrInUse && !is_socket;
        Ended { failure, is_final: is_occupied || stays(&error) }
    })
}
