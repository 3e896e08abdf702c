// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The host state on disk: one file, replaced as a whole, so that a crash leaves the old one or the new one.
//!
//! A lock in the same directory keeps a second agent away.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::host_state::HostState;

const NAME: &str = "agent.json";
const LOCK: &str = "lock";
/// The mode of the state.
const MODE: u32 = 0o600;
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

    /// Replaces the host state. Only the agent's user may read it: with the tokens of reservations, a program could use
    /// volumes that are not permitted to it.
    pub(crate) fn save(&self, text: &[u8]) -> io::Result<()> {
        let (path, new) = (self.directory.join(NAME), self.directory.join("agent.new"));
        // An agent that was killed may have left one, with other rights.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&new)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(&self.directory)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_state_is_for_the_agents_user_alone() {
        let directory = std::env::temp_dir().join(format!("aquifer-state-file-{}", std::process::id()));
        let kept = StateFile::open(&directory).unwrap();
        // What an agent that was killed has left, with the rights that its umask gave.
        fs::write(directory.join("agent.new"), "half").unwrap();
        for boot in ["one", "two"] {
            kept.save(&HostState::new(boot).to_store()).unwrap();
            assert_eq!(kept.load().unwrap(), Some(HostState::new(boot)));
            let mode = fs::metadata(directory.join(NAME)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "it has the tokens of reservations");
        }
        fs::remove_dir_all(directory).unwrap();
    }
}
