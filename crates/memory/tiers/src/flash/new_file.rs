// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Where a file may be created for a path that does not exist.
//!
//! A path that does not exist is meant to be a new file, or is a mistyped directory or device. In `/` it is most likely
//! the mount point of a disk that is not mounted, and in `/dev` a device with another name: a file there would be on
//! the wrong disk, or in memory, and nobody would notice.

use std::path::{Path, PathBuf};

use aquifer_tier::OpenFailure;

/// Directories whose names stand for disks.
const FOR_DISKS: [&str; 2] = ["/", "/dev"];

/// The directory in which the file at `path`, which does not exist, may be created.
pub(super) fn directory_for(path: &Path) -> Result<PathBuf, OpenFailure> {
    if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return Err(OpenFailure::MissingDirectory { path: path.components().collect() });
    }
    let directory = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    };
    let Ok(found) = directory.canonicalize() else {
        return Err(OpenFailure::MissingDirectory { path: directory.into() });
    };
    if FOR_DISKS.iter().any(|disks| found == Path::new(disks)) {
        return Err(OpenFailure::NotThere { path: path.into(), directory: found });
    }
    Ok(directory.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &str) -> String {
        directory_for(Path::new(path)).expect_err(path).to_string()
    }

    #[test]
    fn a_new_name_is_a_file_where_files_are_made() {
        assert_eq!(directory_for(Path::new("/tmp/cold")).ok(), Some("/tmp".into()));
        assert_eq!(directory_for(Path::new("cold")).ok(), Some(".".into()));
    }

    #[test]
    fn mistyped_paths_are_reported() {
        assert_eq!(refusal("/nowhere/cold"), "directory /nowhere does not exist; create it: mkdir -p /nowhere");
        assert_eq!(refusal("/tmp/none/"), "directory /tmp/none does not exist; create it: mkdir -p /tmp/none");
        for path in ["/nowhere", "//nowhere", "/tmp/../nowhere"] {
            let wanted = format!(
                "there is no {path}, and no file is made in /; mount or create it, or name a file in another directory"
            );
            assert_eq!(refusal(path), wanted);
        }
        assert!(refusal("/dev/nvme99n1").starts_with("there is no /dev/nvme99n1, and no file is made in /dev; "));
    }
}
