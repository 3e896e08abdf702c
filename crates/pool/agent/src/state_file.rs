// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The host state on disk: one file, replaced as a whole, so that a crash leaves the old one or the new one.
//!
//! A lock in the same directory keeps a second agent away.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::host_state::HostState;

const NAME: &str = "agent.json";
const LOCK: &str = "lock";
/// The largest state that is read: far more than the volumes of one host take.
const BYTES_MAX: u64 = 64 << 20;

/// The directory of the state, held by this agent.
pub(crate) struct StateFile {
    directory: PathBuf,
    _lock: File,
}

impl StateFile {
    /// Takes the directory. The error is one line with the remedy.
    pub(crate) fn open(directory: &Path) -> Result<StateFile, String> {
        let at = directory.display();
        let failed = |error: io::Error| {
            format!(
                "the state directory {at} cannot be used: {error}; create it for the agent's user, or name another with state="
            )
        };
        fs::create_dir_all(directory).map_err(failed)?;
        let lock = File::create(directory.join(LOCK)).map_err(failed)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| format!("another agent uses the state directory {at}; end it, or name another with state="))?;
        Ok(StateFile { directory: directory.to_owned(), _lock: lock })
    }

    /// Returns the host state, if there is one.
    pub(crate) fn load(&self) -> Result<Option<HostState>, String> {
        let path = self.directory.join(NAME);
        let failed = |why: String| {
            format!(
                "the state in {} cannot be read: {why}; restore it, or remove it after all programs that use volumes have \
                 ended",
                path.display()
            )
        };
        match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error.to_string())),
            Ok(metadata) if metadata.len() > BYTES_MAX => return Err(failed("it is too large".into())),
            Ok(_) => {}
        }
        let text = fs::read(&path).map_err(|error| failed(error.to_string()))?;
        serde_json::from_slice(&text).map(Some).map_err(|error| failed(error.to_string()))
    }

    /// Replaces the host state.
    pub(crate) fn save(&self, host_state: &HostState) -> io::Result<()> {
        let (path, new) = (self.directory.join(NAME), self.directory.join("agent.new"));
        let text = serde_json::to_vec(host_state).map_err(io::Error::other)?;
        let mut file = File::create(&new)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(&self.directory)?.sync_all()
    }
}
