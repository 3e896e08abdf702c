// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The first account. A manager without accounts creates `admin` with a random password, and writes the password to the
//! file `initial-password` (mode 0600) in its state directory. It removes the file once the password has been changed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;

use aquifer_fabric::Millis;

use crate::account_changes::carry_out;
use crate::accounts::{Memory, Role, hash, hex, random};
use crate::manager_store::{ManagerStore, ManagerStoreFailure};
use crate::sessions::Sessions;

/// The first account's name.
pub(crate) const ADMIN: &str = "admin";
const FILE: &str = "initial-password";

/// Creates the first account if there is no account. Returns whether it did. The outer error is the store's; the inner
/// one is a line about the file.
pub(crate) fn make_first(
    sessions: &Mutex<Sessions>,
    store: &mut ManagerStore,
    directory: &Path,
    now: Millis,
) -> Result<Result<bool, String>, ManagerStoreFailure> {
    if !sessions.lock().expect("a panic ends the daemon").accounts.is_empty() {
        return Ok(Ok(false));
    }
    let hash = match write_password(directory) {
        Ok(hash) => hash,
        Err(line) => return Ok(Err(line)),
    };
    let add = |sessions: &Sessions| sessions.add_account(ADMIN, Role::Administrator, &hash, "aquifer-fabricd");
    let added = carry_out(sessions, store, now, add)?;
    let line = |other| format!("the first account cannot be made: {other:?}; report this bug");
    Ok(added.map(|()| true).map_err(line))
}

/// Writes a new password to its file, and returns its hash.
fn write_password(directory: &Path) -> Result<String, String> {
    let password = hex(&random::<12>());
    let path = directory.join(FILE);
    let unwritable = |error: io::Error| format!("{}: {error}; make the state directory writable", path.display());
    // The file is written first: after a crash in between, nobody would know the password of the account.
    let _ = fs::remove_file(&path);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    file.and_then(|mut file| writeln!(file, "{password}").and_then(|()| file.sync_all())).map_err(unwritable)?;
    // A power failure could take the name of a new file, and leave the account.
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(unwritable)?;
    hash(&password, &mut Memory::default())
}

/// Removes the file once its password is no longer the account's.
pub(crate) fn forget(sessions: &Sessions, directory: &Path) {
    let path = directory.join(FILE);
    let Ok(password) = fs::read_to_string(&path) else { return };
    if !sessions.is_password(ADMIN, password.trim()) {
        let _ = fs::remove_file(path);
    }
}
