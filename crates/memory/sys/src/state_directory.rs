// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Creates state directories, in which programs keep files beyond their own life.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

/// The state directory of root, which services share.
pub const ROOTS: &str = "/var/lib/aquifer";

/// Creates a state directory if it is missing. A user's directory is accessible to its owner alone, since its files may
/// hold a program's memory. Root's also holds the directories of services that run as other users, such as the agent.
/// So everybody may search it, whatever root's umask is.
pub fn create(path: &Path) -> io::Result<()> {
    let is_shared = path == Path::new(ROOTS);
    if is_shared && !path.exists() {
        return create_shared(path);
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn create_shared(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_directory_is_the_users_and_a_shared_one_can_be_searched() {
        let directory = std::env::temp_dir().join(format!("aquifer-state-directory-{}", std::process::id()));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let own = directory.join("a/b");
        create(&own).unwrap();
        create(&own).unwrap();
        assert_eq!(mode(&own), 0o700);
        let shared = directory.join("c/d");
        create_shared(&shared).unwrap();
        assert_eq!(mode(&shared), 0o755);
        fs::remove_dir_all(&directory).unwrap();
    }
}
