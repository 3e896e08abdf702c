// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Accepts connections, and reloads the certificates when their files change.
//!
//! Threads: runs on its own thread. If the new files cannot be used, the old certificates stay in use.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use aquifer_tls::{CredentialFailure, DonorSide};

use crate::channel;
use crate::registrar::{RegistrarSettings, Shared};
use crate::strangers::Stranger;

/// The time between two checks of the files for a change.
const LOOK: Duration = Duration::from_secs(2);
/// The pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);
/// The stack of a connection's thread; messages are on the heap, and parsing JSON nests 128 levels at most.
const STACK_BYTES: usize = 512 << 10;

pub(crate) fn load(settings: &RegistrarSettings) -> Result<Option<Arc<DonorSide>>, CredentialFailure> {
    let Some(files) = &settings.tls else { return Ok(None) };
    Ok(Some(Arc::new(files.load()?.for_manager(settings.revocations.as_deref())?)))
}

/// What identifies a file's contents without reading them: its inode number, its size, and when it was changed.
type Look = Option<(u64, u64, i64, i64)>;

fn looks(settings: &RegistrarSettings) -> Vec<Look> {
    let look = |path: &PathBuf| {
        let found = fs::metadata(path).ok()?;
        Some((found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
    };
    let files = settings.tls.iter().flat_map(|files| [&files.cert, &files.key, &files.ca]);
    files.chain(&settings.revocations).map(look).collect()
}

/// The certificates as last read.
struct Watch<'a> {
    settings: &'a RegistrarSettings,
    seen: Vec<Look>,
    at: Instant,
}

impl Watch<'_> {
    /// Reads the files again if they have changed.
    fn look(&mut self, shared: &Shared) {
        if self.at.elapsed() < LOOK {
            return;
        }
        self.at = Instant::now();
        let now = looks(self.settings);
        if now == self.seen {
            return;
        }
        self.seen = now;
        match load(self.settings) {
            Ok(side) => *shared.side.write().unwrap_or_else(PoisonError::into_inner) = side,
            Err(failure) => shared.say(&format!("the old certificates stay in use: {failure}")),
        }
    }
}

/// Accepts connections, on the accepting thread, until the registrar ends.
pub(crate) fn accept(shared: &Arc<Shared>, listener: &TcpListener, settings: &RegistrarSettings) {
    // The files may have changed since the registrar read them at its start.
    let mut watch = Watch { settings, seen: Vec::new(), at: Instant::now() };
    let mut connection = 0;
    while !shared.is_over() {
        watch.look(shared);
        match listener.accept() {
            Ok((socket, peer)) => {
                connection += 1;
                // Closed without an answer: there are too many strangers, or no descriptor is left. An end tries again.
                let Ok(Some(stranger)) = Stranger::admit(shared, &socket, peer.ip(), connection) else { continue };
                let (shared, connection) = (Arc::clone(shared), connection);
                let serve = move || channel::serve(&shared, stranger, socket, peer.ip(), connection);
                // If the thread cannot be started, the connection ends with the closure.
                let _ = thread::Builder::new().name("control-serve".into()).stack_size(STACK_BYTES).spawn(serve);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                shared.wakeup.sleep(Some(listener.as_raw_fd()), LOOK);
            }
            Err(_) => shared.wakeup.sleep(None, PAUSE),
        }
    }
}
