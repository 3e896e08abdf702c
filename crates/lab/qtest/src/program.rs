// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Finds a QEMU with a CXL switch mailbox: version 8.2 or later.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The program, if it has a switch mailbox: that of the variable `AQUIFER_QEMU`; or else the one beside the kernel for
/// guests with far memory, which `.ci/guest-kernel DIR cxl` unpacks (`AQUIFER_E2E_CXL_KERNEL=DIR`); or else the
/// installed one. An error is the reason for a skip.
pub fn find() -> Result<PathBuf, String> {
    let named = std::env::var_os("AQUIFER_QEMU").map(PathBuf::from);
    let unpacked = std::env::var_os("AQUIFER_E2E_CXL_KERNEL").map(|root| Path::new(&root).join(UNPACKED));
    let program = named.or(unpacked.filter(|program| program.is_file())).unwrap_or_else(|| INSTALLED.into());
    let listed = Command::new(&program).args(["-device", "cxl-switch-mailbox-cci,help"]).output();
    let none = |why: String| format!("there is no QEMU with a CXL switch mailbox: {}{why}", program.display());
    let listed = listed.map_err(|error| none(format!(": {error}")))?;
    match String::from_utf8_lossy(&listed.stdout).contains("options") {
        true => Ok(program),
        false => Err(none(" is older than 8.2".into())),
    }
}

/// In the directory of `.ci/guest-kernel`.
const UNPACKED: &str = "usr/bin/qemu-system-x86_64";
const INSTALLED: &str = "qemu-system-x86_64";
