// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Serves figures to scrapers through a child process: the program `aquifer-metrics` speaks HTTP, and asks this process
//! for texts.
//!
//! The port is bound here, so that a wrong address is reported here, and stays bound while a child is replaced. The
//! child gets the listening socket as its standard input, and one end of a pair of sockets as its standard output;
//! `config/src/scrape.rs` defines the protocol on the pair. The child needs nothing else of this process: neither a
//! name that others could open, nor its memory. It ends when this process does, because the sockets close then.
//!
//! Threads: [`Exporter::supply`] takes the calling thread.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use aquifer_config::scrape::{ASK, READY, TEXT_BYTES_MAX, head};

use crate::failure::ExporterFailure;

/// The name of the program that serves scrapers.
pub const PROGRAM: &str = "aquifer-metrics";
/// How long a child may take to start. It takes milliseconds, but longer on a machine that has no memory left.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait while the port is in use. If a previous command was killed, its child closes the port some
/// milliseconds later.
const BIND_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a child may take to exit once it has closed its socket.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause between two checks of a child, or of a port that is in use.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// How many children are replaced in a row. With the pauses below, this takes an hour and a half: a shortage of memory
/// may last that long, but a problem that lasts longer is one that somebody has to repair.
const RESTARTS_MAX: u32 = 100;
/// The pause before the first replacement in a row. It doubles with each further one, up to `RESTART_PAUSE_MAX`.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(60);
/// A child that ran for longer than this was steady: its replacement begins a new row. An arbitrary choice.
const STEADY: Duration = Duration::from_secs(600);

/// What is served instead of a text that is too long.
const TOO_LONG: &str = "# The metrics are longer than 64 MiB, and are not served.\n";

/// A port at which a child serves.
#[derive(Debug)]
pub struct Exporter {
    program: PathBuf,
    listener: TcpListener,
    address: SocketAddr,
    child: Exporting,
}

/// A child that has said that it serves.
#[derive(Debug)]
struct Exporting {
    process: Child,
    socket: UnixStream,
    since: Instant,
}

impl Exporter {
    /// Listens, and starts the child: `program` is the path of [`PROGRAM`].
    pub fn start(program: PathBuf, address: SocketAddr) -> Result<Exporter, ExporterFailure> {
        let refused = |source| ExporterFailure::Address { address, source };
        let listener = bind(address).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let child = Exporting::start(&program, &listener)?;
        Ok(Exporter { program, listener, address, child })
    }

    /// Returns where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers the child, and replaces it when it ends; `say` gets a line each time. Returns only when metrics are no
    /// longer served, with the reason.
    pub fn supply(mut self, text: impl Fn() -> String, say: impl Fn(&str)) -> ExporterFailure {
        let mut restarts = Restarts::default();
        let mut ended = self.child.answer(&text);
        loop {
            let Some(pause) = restarts.pause(self.child.since.elapsed()) else {
                let what = format!("has ended {RESTARTS_MAX} times ({ended}), and metrics are no longer served");
                return ExporterFailure::Program { what };
            };
            say(&format!("the program {PROGRAM} has ended ({ended}); it is started again in {pause:?}"));
            sleep(pause);
            ended = match Exporting::start(&self.program, &self.listener) {
                Ok(child) => {
                    self.child = child;
                    self.child.answer(&text)
                }
                Err(failure) => failure.cause(),
            };
        }
    }
}

/// How many children in a row have been replaced.
#[derive(Debug, Default)]
struct Restarts(u32);

impl Restarts {
    /// Returns how long to wait before the next child is started; `None` if none is started any more. `since_start` is
    /// the age of the child that has exited.
    fn pause(&mut self, since_start: Duration) -> Option<Duration> {
        if since_start > STEADY {
            self.0 = 0;
        }
        let pause = RESTART_PAUSE.saturating_mul(1 << self.0.min(16)).min(RESTART_PAUSE_MAX);
        self.0 += 1;
        (self.0 <= RESTARTS_MAX).then_some(pause)
    }
}

/// Listens. While the port is in use, tries again for up to `BIND_TIMEOUT`.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let begun = Instant::now();
    loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && begun.elapsed() < BIND_TIMEOUT => sleep(LOOK_PAUSE),
            outcome => return outcome,
        }
    }
}

/// Returns the text, or a notice in its place if it is too long.
fn bounded(text: &str) -> &str {
    if text.len() > TEXT_BYTES_MAX { TOO_LONG } else { text }
}

impl Exporting {
    /// Starts a child, and waits until it serves.
    fn start(program: &Path, listener: &TcpListener) -> Result<Exporting, ExporterFailure> {
        let at = program.display();
        let failure =
            |error: io::Error| ExporterFailure::Program { what: format!("at {at} cannot be started: {error}") };
        let (socket, theirs) = UnixStream::pair().map_err(failure)?;
        let listener = listener.try_clone().map_err(failure)?;
        let mut command = Command::new(program);
        // Nothing runs between fork and exec, so a donor's memory is not copied: see posix_spawn(3).
        command.stdin(OwnedFd::from(listener)).stdout(OwnedFd::from(theirs)).env_clear();
        let process = command.spawn().map_err(failure)?;
        // Closes this process's copy of the child's socket. While it is open, this process cannot notice that the child
        // has ended.
        drop(command);
        let mut child = Exporting { process, socket, since: Instant::now() };
        child.socket.set_read_timeout(Some(START_TIMEOUT)).map_err(failure)?;
        let what = match child.read() {
            Ok(Some(READY)) => {
                child.socket.set_read_timeout(None).map_err(failure)?;
                return Ok(child);
            }
            Ok(Some(_)) => format!("at {at} has a different version"),
            Ok(None) => format!("at {at} exits immediately ({})", child.end()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                format!("at {at} did not start within {START_TIMEOUT:?}")
            }
            Err(error) => return Err(failure(error)),
        };
        Err(ExporterFailure::Program { what })
    }

    /// Answers until the child exits. Returns how it ended.
    fn answer(&mut self, text: impl Fn() -> String) -> String {
        while let Ok(Some(ASK)) = self.read() {
            let text = text();
            let text = bounded(&text);
            let written = self.socket.write_all(&head(text.len()));
            if written.and_then(|()| self.socket.write_all(text.as_bytes())).is_err() {
                break;
            }
        }
        self.end()
    }

    /// Returns the next byte; `None` if the child has exited.
    fn read(&mut self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        loop {
            match self.socket.read(&mut byte) {
                Ok(count) => return Ok((count > 0).then_some(byte[0])),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends the child if it has not ended by itself, and says how it has ended.
    fn end(&mut self) -> String {
        // A child that closes its socket is about to exit by itself. Its own exit status says more than that of a child
        // killed here.
        let begun = Instant::now();
        while begun.elapsed() < EXIT_TIMEOUT {
            match self.process.try_wait() {
                Ok(None) => sleep(LOOK_PAUSE),
                Ok(Some(status)) => return status.to_string(),
                Err(error) => return error.to_string(),
            }
        }
        let _ = self.process.kill();
        self.process.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
    }
}

/// Waits for the child, so that it is not left behind as a zombie.
impl Drop for Exporting {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// systemd restarts a killed command while the child of the previous one has not closed the port yet.
    #[test]
    fn a_port_that_is_about_to_be_closed_is_waited_for() {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = holder.local_addr().unwrap();
        let closes = std::thread::spawn(move || {
            sleep(BIND_TIMEOUT / 5);
            drop(holder);
        });
        assert_eq!(bind(address).unwrap().local_addr().unwrap(), address);
        closes.join().unwrap();
        let stays = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(bind(stays.local_addr().unwrap()).unwrap_err().kind(), ErrorKind::AddrInUse);
    }

    #[test]
    fn a_text_that_is_too_long_is_not_served() {
        let text = " ".repeat(TEXT_BYTES_MAX + 1);
        assert_eq!(bounded(&text), TOO_LONG);
        assert_eq!(bounded(&text[1..]).len(), TEXT_BYTES_MAX);
    }

    #[test]
    fn children_are_replaced_ever_more_slowly_and_not_for_ever() {
        let mut restarts = Restarts::default();
        let pauses: Vec<u64> =
            std::iter::from_fn(|| restarts.pause(Duration::ZERO)).map(|pause| pause.as_secs()).collect();
        assert_eq!(pauses[..8], [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pauses.len(), RESTARTS_MAX as usize);
        assert_eq!(restarts.pause(STEADY + Duration::from_secs(1)), Some(RESTART_PAUSE));
    }
}
