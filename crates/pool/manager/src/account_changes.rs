// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A change of accounts and sessions on its way: decided on what is in memory, then stored by the writer, then taken
//! over into memory. Between these steps nothing is locked, so that only the client that asked for the change waits for
//! the store. Only the writer's thread carries out these steps, one change after the other.

use std::sync::{Mutex, MutexGuard};

use aquifer_fabric::Millis;

use crate::accounts::Account;
use crate::manager_store::{Entry, ManagerStore, ManagerStoreFailure, json};
use crate::sessions::{NotAllowed, Session, Sessions};

/// What is to be stored.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// The accounts to store, by name; `None` deletes one.
    pub(crate) accounts: Vec<(String, Option<Account>)>,
    /// The sessions to store, each with its key; `None` deletes one.
    pub(crate) sessions: Vec<(String, Option<Session>)>,
    pub(crate) entries: Vec<Entry>,
}

impl Pending {
    /// Stores it as one transaction.
    fn store(&self, store: &mut ManagerStore, now: Millis) -> Result<(), ManagerStoreFailure> {
        let accounts = self.accounts.iter();
        let accounts = accounts.map(|(name, account)| (format!("account/{name}"), account.as_ref().map(json)));
        let sessions = self.sessions.iter();
        let sessions = sessions.map(|(id, session)| (format!("session/{id}"), session.as_ref().map(json)));
        let values: Vec<(String, Option<Vec<u8>>)> = accounts.chain(sessions).collect();
        if values.is_empty() && self.entries.is_empty() {
            return Ok(());
        }
        store.keep(&values, &self.entries, now)
    }
}

fn lock(sessions: &Mutex<Sessions>) -> MutexGuard<'_, Sessions> {
    sessions.lock().expect("a panic ends the daemon")
}

/// Decides on a change, stores it, and then makes it in memory. The outer error is the store's, and ends the writer.
pub(crate) fn carry_out<T>(
    sessions: &Mutex<Sessions>,
    store: &mut ManagerStore,
    now: Millis,
    decide: impl FnOnce(&Sessions) -> Result<(T, Pending), NotAllowed>,
) -> Result<Result<T, NotAllowed>, ManagerStoreFailure> {
    // The lock is released at the end of this statement.
    let decided = decide(&lock(sessions));
    let (value, pending) = match decided {
        Ok(decided) => decided,
        Err(not) => return Ok(Err(not)),
    };
    pending.store(store, now)?;
    lock(sessions).take_over(pending);
    Ok(Ok(value))
}
