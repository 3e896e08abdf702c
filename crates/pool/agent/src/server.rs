// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The socket at which programs are served. The kernel says who each program is (SO_PEERCRED, unix(7)).
//!
//! Threads: one accepts, notices at intervals which programs have ended, and sends systemd the signs of life; one for
//! each program (`session.rs`).

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use aquifer_agent_wire::{Answer, Denial, encode};
use aquifer_sys::notify::Notify;
use aquifer_sys::peer_credentials::PeerCredentials;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::host::Shared;
use crate::host_state::share_of;
use crate::processes::Process;
use crate::session::{Peer, Session};

/// The mode of the socket: its owner and its group may use it.
const MODE: u32 = 0o660;
/// How often the agent checks which programs have ended, if nothing else happens.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause after a connection could not be accepted, such as without a free descriptor.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the reason of a denial may take to be sent.
const DENY_WAIT: Duration = Duration::from_secs(1);
/// The stack of a session's thread; parsing TOML nests a limited number of levels.
const STACK_BYTES: usize = 512 << 10;

/// The programs that are served now, by user.
type Served = Arc<Mutex<BTreeMap<u32, usize>>>;

/// The socket, and what ends it.
#[derive(Clone)]
pub(crate) struct Server {
    path: PathBuf,
    listener: Arc<UnixListener>,
    /// Readable when the server is to end.
    ended: Arc<UnixStream>,
    ender: Arc<UnixStream>,
    served: Served,
}

impl Server {
    /// Binds the socket. One that an agent has left behind is replaced; one that answers is not, and neither is
    /// anything else at its path.
    pub(crate) fn bind(path: &Path) -> io::Result<Server> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && is_left_behind(path) => {
                fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            bound => bound?,
        };
        fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
        listener.set_nonblocking(true)?;
        let (ended, ender) = UnixStream::pair()?;
        Ok(Server {
            path: path.to_owned(),
            listener: Arc::new(listener),
            ended: Arc::new(ended),
            ender: Arc::new(ender),
            served: Served::default(),
        })
    }

    /// Returns a socket that ends the server when anything is written to it.
    pub(crate) fn ender(&self) -> io::Result<UnixStream> {
        self.ender.try_clone()
    }

    /// Ends the server.
    pub(crate) fn end(&self) {
        let _ = (&*self.ender).write_all(b"e");
    }

    /// Serves until the server is ended.
    pub(crate) fn run(&self, shared: &Arc<Shared>, log: &Arc<dyn Fn(&str) + Send + Sync>) {
        let notify = Notify::from_environment();
        let limit = Timespec::try_from(notify.wait_max(LOOK_EVERY)).expect("it is short");
        notify.ready(&format!("serves programs at {}", self.path.display()));
        let (mut last, mut looked) = (String::new(), Instant::now());
        loop {
            notify.alive();
            let mut polled = [PollFd::new(&*self.listener, PollFlags::IN), PollFd::new(&*self.ended, PollFlags::IN)];
            let _ = poll(&mut polled, Some(&limit));
            if !polled[1].revents().is_empty() {
                break;
            }
            match self.listener.accept() {
                Ok((stream, _)) => self.admit(stream, shared),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => thread::sleep(PAUSE),
            }
            if looked.elapsed() < LOOK_EVERY {
                continue;
            }
            looked = Instant::now();
            if let Err(error) = shared.change(|host_state| host_state.look(Process::runs)).1 {
                let line = format!("the state cannot be stored: {error}; free space in the state directory");
                if line != last {
                    log(&line);
                }
                last = line;
            } else {
                last.clear();
            }
        }
        notify.stopping();
        let _ = fs::remove_file(&self.path);
    }

    fn admit(&self, stream: UnixStream, shared: &Arc<Shared>) {
        let Ok(PeerCredentials { pid, uid, gid }) = PeerCredentials::of(&stream) else { return };
        let max = shared.settings.programs_max;
        let Some(admitted) = Admitted::take(&self.served, uid, max) else {
            let denial = Denial::Busy { programs: max };
            shared.refusals.count(&denial);
            let _ = deny(&stream, denial);
            return;
        };
        let (shared, peer) = (Arc::clone(shared), Peer { uid, gid, pid });
        let spawned = thread::Builder::new().name("agent-session".into()).stack_size(STACK_BYTES).spawn(move || {
            Session::new(shared, peer, stream, admitted).serve();
        });
        // Without a thread, the connection ends, and the program tries again.
        drop(spawned);
    }
}

/// Returns whether this is a socket that nobody serves.
fn is_left_behind(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
    is_socket && UnixStream::connect(path).is_err_and(refused)
}

/// Tells a program why it cannot use a volume.
pub(crate) fn deny(mut stream: &UnixStream, denial: Denial) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(DENY_WAIT))?;
    stream.write_all(&encode(&Answer::Denied(denial)).map_err(io::Error::other)?)
}

/// One program's place among those that are served.
pub(crate) struct Admitted {
    served: Served,
    uid: u32,
}

impl Admitted {
    fn take(served: &Served, uid: u32, max: usize) -> Option<Admitted> {
        let mut taken = served.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, own) = (taken.values().sum::<usize>(), taken.get(&uid).copied().unwrap_or(0));
        if all >= max || own >= share_of(uid, max) {
            return None;
        }
        *taken.entry(uid).or_default() += 1;
        Some(Admitted { served: Arc::clone(served), uid })
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut taken = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = taken.get_mut(&self.uid) {
            *own -= 1;
        }
        taken.retain(|_, own| *own > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_that_nobody_serves_is_replaced() {
        // Short, because the length of a socket path is limited.
        let directory = std::env::temp_dir().join(format!("aq-bind-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("s");
        fs::write(&path, "precious").unwrap();
        assert_eq!(Server::bind(&path).err().map(|error| error.kind()), Some(ErrorKind::AddrInUse));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious", "a wrong path in the file destroys nothing");
        fs::remove_file(&path).unwrap();
        let served = Server::bind(&path).unwrap();
        assert!(Server::bind(&path).is_err(), "another agent serves it");
        drop(served);
        assert!(Server::bind(&path).is_ok(), "an agent that was killed has left it");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn no_user_keeps_the_others_out() {
        let served = Served::default();
        let taken: Vec<Admitted> = std::iter::from_fn(|| Admitted::take(&served, 5, 8)).collect();
        assert_eq!(taken.len(), 6);
        let (root, other) = (Admitted::take(&served, 0, 8), Admitted::take(&served, 6, 8));
        assert!(root.is_some() && other.is_some() && Admitted::take(&served, 0, 8).is_none());
        drop(taken);
        assert!(Admitted::take(&served, 5, 8).is_some());
    }
}
