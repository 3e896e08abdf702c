// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads the files that a configuration names, as the agent does at its start, for `aquifer agent --check`.
//!
//! The lists of revoked certificates (`tenant.crl`) are left out: the agent does not read them, and before the first
//! manager answers, a missing file is no mistake.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use aquifer_sys::safe_open::effective_user;
use aquifer_tls::{CredentialFailure, Credentials};

use crate::settings::Settings;

impl Settings {
    /// Reads the host's certificate, its key and the authority, if they are named, and returns what is wrong with them.
    pub fn check_files(&self) -> Result<(), CredentialFailure> {
        let Some(files) = &self.tenant else { return Ok(()) };
        files.load_kept(Some(agents_user(&self.state))).and_then(Credentials::for_end).map(drop)
    }
}

/// The user that the agent runs as. An administrator checks the configuration as root, whereas the unit runs the agent
/// as a user of its own, who then owns the state directory.
fn agents_user(state: &Path) -> u32 {
    match (effective_user(), std::fs::metadata(state)) {
        (0, Ok(state)) => state.uid(),
        (user, _) => user,
    }
}
