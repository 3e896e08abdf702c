// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads a donor's files again without a restart: certificates, keys, authorities, revocation lists, tenants' limits.
//!
//! When one of them has changed, which is looked at every [`LOOK_EVERY`], or when somebody asks (SIGHUP). Files that
//! are no good change nothing: what was read before stays in use, and the donor says so. Connections whose certificates
//! are not good by the new files are ended.
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

/// How long a change goes unnoticed at most.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// By which the thread is asked to look at once.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    is_asked: Mutex<bool>,
    rung: Condvar,
}

impl Watch {
    pub(crate) fn ask(&self) {
        *self.is_asked.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.rung.notify_all();
    }

    /// Waits for the next look. Returns whether it was asked for.
    fn wait(&self) -> bool {
        let is_asked = self.is_asked.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.rung.wait_timeout_while(is_asked, LOOK_EVERY, |is_asked| !*is_asked);
        let (mut is_asked, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *is_asked)
    }
}

/// What a file is known by, without its being read: its number, its size, and when it was changed.
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

/// The thread's life.
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
    let say = |line: &str| shared.service.tallies.say(line);
    match settings.security.protection(settings.revocations.as_deref()) {
        Ok(protection) => {
            shared.protect(protection);
            say("has read its files again");
        }
        Err(failure) => say(&format!("goes on with the certificates that it has: {failure}")),
    }
    match settings.limits() {
        Ok(limits) => shared.service.set_limits(limits),
        Err(failure) => say(&format!("goes on with the limits that it has: {failure}")),
    }
}
