// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reloads a donor's files without a restart: certificates, keys, authorities, revocation lists, tenants' limits.
//!
//! This happens when one of them has changed, which is checked every [`LOOK_EVERY`], or on request (SIGHUP). Unusable
//! files change nothing: the previous contents stay in use, and the donor reports it. Connections whose certificates
//! the new files do not accept are ended.
//!
//! Threads: one of its own.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::listener::Shared;
use crate::settings::{Security, Settings};

/// The longest time that a change goes unnoticed.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Asks the thread to check immediately.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    is_asked: Mutex<bool>,
    woken: Condvar,
}

impl Watch {
    pub(crate) fn ask(&self) {
        *self.is_asked.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.woken.notify_all();
    }

    /// Waits for the next check. Returns whether it was requested.
    fn wait(&self) -> bool {
        let is_asked = self.is_asked.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.woken.wait_timeout_while(is_asked, LOOK_EVERY, |is_asked| !*is_asked);
        let (mut is_asked, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *is_asked)
    }
}

/// What identifies a file's contents without reading them: its inode number, its size, and its modification time.
type Look = Option<(u64, u64, i64, i64)>;

fn looks(settings: &Settings) -> Vec<Look> {
    let look = |path: &PathBuf| {
        let found = fs::metadata(path).ok()?;
        Some((found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
    };
    let mut paths: Vec<&PathBuf> = settings.revocations.iter().chain(&settings.tenants).collect();
    if let Security::Tls(files) = &settings.security {
        paths.extend([&files.cert, &files.key, &files.ca]);
    }
    paths.into_iter().map(look).collect()
}

/// The thread's loop.
pub(crate) fn run(shared: &Shared) {
    let mut seen = looks(&shared.settings);
    while !shared.is_over.load(Ordering::Acquire) {
        let is_asked = shared.watch.wait();
        let now = looks(&shared.settings);
        if shared.is_over.load(Ordering::Acquire) {
            return;
        }
        if is_asked || now != seen {
            seen = now;
            if is_asked {
                shared.service.reopen_audit();
            }
            reload(shared);
        }
    }
}

fn reload(shared: &Shared) {
    let settings = &shared.settings;
    let say = |line: &str| shared.service.counters.say(line);
    match settings.security.protection(settings.revocations.as_deref()) {
        Ok(protection) => {
            shared.protect(protection);
            if matches!(settings.security, Security::Tls(_)) {
                say("the certificates, keys and revocation lists were reloaded");
            }
        }
        Err(failure) => say(&format!("new certificates were not loaded, and the previous ones stay in use: {failure}")),
    }
    match settings.limits() {
        Ok(limits) => {
            shared.service.set_limits(limits);
            if settings.tenants.is_some() {
                say("the limits of tenants were reloaded");
            }
        }
        Err(failure) => say(&format!("new limits were not loaded, and the previous ones stay in force: {failure}")),
    }
}
