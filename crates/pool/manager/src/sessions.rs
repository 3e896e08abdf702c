// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Who a request comes from: sessions with expiry, and the accounts behind them.
//!
//! A token is `ID.SECRET`; only its hash is stored, under `session/ID`, so that neither the store nor a backup of it
//! has a token. A session ends when it is deleted, was idle too long, or is too old; when its account changes, it ends,
//! too. Changes are decided here and carried out by `account_changes.rs`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use aquifer_fabric::Millis;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::account_changes::Pending;
use crate::accounts::{ACCOUNTS_MAX, Account, Memory, Role, check_name, hex, random, verify};
use crate::config::SessionsConfig;
use crate::login_attempts::{Attempts, TooMany};
use crate::manager_store::{Entry, ManagerStore, ManagerStoreFailure};
use crate::order::matches;

/// Maximum number of sessions. A further login ends the longest-idle one of the account that has the most, so that no
/// account can end the sessions of others by logging in.
pub(crate) const SESSIONS_MAX: usize = 256;

/// A session, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Session {
    pub(crate) account: String,
    secret_hash: String,
    pub(crate) created: Millis,
    /// When it was used last. In the store, when it was created.
    pub(crate) used: Millis,
}

impl Session {
    /// Notes that the session is used. If the clock was set back, the session keeps its age, so that it does not last
    /// longer.
    fn use_at(&mut self, now: Millis) {
        self.created = self.created.min(now);
        self.used = now;
    }
}

/// Who a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// The ETag that the account had when the caller was recognised.
    pub(crate) account: String,
    pub(crate) session: Option<String>,
}

/// Why a caller is not recognised, or an account cannot be changed.
#[derive(Debug)]
pub(crate) enum NotAllowed {
    /// Too many passwords are being hashed at the moment.
    Busy,
    /// An account has the name already.
    Exists,
    /// A name, a role or a password cannot be used; the line says why.
    Invalid(String),
    /// The last administrator would be lost.
    LastAdministrator,
    /// Name or password is wrong.
    Login,
    /// The account no longer has the ETag that the client names.
    Stale,
    /// There were too many attempts to log in.
    TooMany(TooMany),
    /// The session does not exist or has ended.
    Token,
    /// There is no such account or session; the text names it.
    Unknown(String),
}

/// The changes to an account.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccountChange {
    /// The hash of a new password.
    pub(crate) hash: Option<String>,
    pub(crate) role: Option<Role>,
    pub(crate) is_enabled: Option<bool>,
}

/// The accounts and sessions that this manager knows.
pub(crate) struct Sessions {
    config: SessionsConfig,
    pub(crate) accounts: BTreeMap<String, Account>,
    pub(crate) sessions: BTreeMap<String, Session>,
    attempts: Attempts,
}

/// Returns the longest-idle session of the account that has the most.
fn superfluous<'a>(live: &[(&'a String, &'a Session)]) -> Option<(&'a String, &'a Session)> {
    let mut counts = BTreeMap::<&str, usize>::new();
    live.iter().for_each(|(_, session)| *counts.entry(&session.account).or_default() += 1);
    let most = counts.values().max()?;
    let of_max = live.iter().filter(|(_, session)| counts[session.account.as_str()] == *most);
    of_max.min_by_key(|(_, session)| session.used).copied()
}

/// What was decided, and what is to be stored for it.
pub(crate) type Decided<T> = Result<(T, Pending), NotAllowed>;

fn end_session(pending: &mut Pending, id: &str, session: &Session, who: &str) {
    pending.sessions.push((id.to_owned(), None));
    pending.entries.push(Entry::new(who, format!("logout of {}", session.account)));
}

fn no_account(name: &str) -> NotAllowed {
    NotAllowed::Unknown(format!("account {name}"))
}

fn secret_hash(secret: &str) -> String {
    hex(digest(&SHA256, secret.as_bytes()).as_ref())
}

impl Sessions {
    /// Returns no accounts and no sessions, as on a standby.
    pub(crate) fn none(config: SessionsConfig) -> Sessions {
        let (accounts, sessions) = (BTreeMap::new(), BTreeMap::new());
        Sessions { config, accounts, sessions, attempts: Attempts::default() }
    }

    /// Reads accounts and sessions.
    pub(crate) fn load(store: &ManagerStore, config: SessionsConfig) -> Result<Sessions, ManagerStoreFailure> {
        let accounts = store.all("account/")?.into_iter().collect();
        let sessions = store.all("session/")?.into_iter().collect();
        Ok(Sessions { config, accounts, sessions, attempts: Attempts::default() })
    }

    /// Returns how long a session may be idle.
    pub(crate) fn idle_seconds(&self) -> u64 {
        self.config.idle_seconds
    }

    /// Counts an attempt. Returns the account whose hash the caller checks the password against, without this lock.
    pub(crate) fn begin(&mut self, from: IpAddr, name: &str, now: Millis) -> Result<Option<Account>, NotAllowed> {
        self.attempts.begin(&self.config, from, name, now).map_err(NotAllowed::TooMany)?;
        Ok(self.accounts.get(name).cloned())
    }

    /// Notes how an attempt ended. After a wrong password, returns what is to be stored. Only names of accounts reach
    /// the audit log: a stranger may have typed a password.
    pub(crate) fn end(
        &mut self,
        from: IpAddr,
        account: Option<Account>,
        name: &str,
        is_right: bool,
        now: Millis,
    ) -> Result<Who, Option<Entry>> {
        let current = self.accounts.get(name);
        match account.filter(|account| is_right && current == Some(account)) {
            Some(account) => {
                self.attempts.succeed(from, name);
                Ok(Who { name: name.to_owned(), role: account.role, account: account.etag(), session: None })
            }
            None => {
                let entry = current.map(|_| Entry::new(name, "login: wrong password"));
                self.attempts.fail(&self.config, from, name, now);
                Err(entry)
            }
        }
    }

    /// Makes a session, and returns its id and its token.
    pub(crate) fn create(&self, who: &Who, now: Millis) -> Decided<(String, String)> {
        // The account may have been deleted, or its password changed, since it was checked.
        if !self.is_unchanged(who) {
            return Err(NotAllowed::Login);
        }
        let mut pending = Pending::default();
        let (over, live): (Vec<_>, Vec<_>) = self.sessions.iter().partition(|(_, session)| self.is_over(session, now));
        pending.sessions.extend(over.into_iter().map(|(id, _)| (id.clone(), None)));
        if live.len() >= SESSIONS_MAX
            && let Some((id, session)) = superfluous(&live)
        {
            end_session(&mut pending, id, session, &who.name);
        }
        let (id, secret) = (hex(&random::<8>()), hex(&random::<32>()));
        let session = Session { account: who.name.clone(), secret_hash: secret_hash(&secret), created: now, used: now };
        pending.sessions.push((id.clone(), Some(session)));
        pending.entries.push(Entry::new(&who.name, "login"));
        Ok(((id.clone(), format!("{id}.{secret}")), pending))
    }

    /// Returns the caller to whom a token belongs.
    pub(crate) fn recognise(&mut self, token: &str, now: Millis) -> Result<Who, NotAllowed> {
        let (id, secret) = token.split_once('.').ok_or(NotAllowed::Token)?;
        let is_over = |session: &Session| self.is_over(session, now);
        let session = self.sessions.get(id).filter(|session| !is_over(session)).ok_or(NotAllowed::Token)?;
        // Hashes are compared, so that the time tells nothing about the secret.
        if session.secret_hash != secret_hash(secret) {
            return Err(NotAllowed::Token);
        }
        let account = self.accounts.get(&session.account).filter(|account| account.is_enabled);
        let account = account.ok_or(NotAllowed::Token)?;
        let (role, tag) = (account.role, account.etag());
        let who = Who { name: session.account.clone(), role, account: tag, session: Some(id.to_owned()) };
        self.sessions.get_mut(id).expect("it was found").use_at(now);
        Ok(who)
    }

    fn is_over(&self, session: &Session, now: Millis) -> bool {
        // A clock that was set back makes no session live longer than its life from the new time on.
        let idle = now.0.saturating_sub(session.used.0);
        let age = now.0.saturating_sub(session.created.0);
        idle >= self.config.idle_seconds * 1000 || age >= self.config.life_seconds * 1000
    }

    /// Returns whether a caller's account is as it was when the caller was recognised: the same password and role.
    fn is_unchanged(&self, who: &Who) -> bool {
        self.accounts.get(&who.name).is_some_and(|account| account.is_enabled && account.etag() == who.account)
    }

    /// Returns whether a caller who was recognised earlier still would be. This counts as use: a stream keeps its
    /// session.
    pub(crate) fn is_still(&mut self, who: &Who, now: Millis) -> bool {
        if !self.is_unchanged(who) {
            return false;
        }
        let Some(id) = &who.session else { return true };
        let is_over = self.sessions.get(id).is_none_or(|session| self.is_over(session, now));
        if !is_over && let Some(session) = self.sessions.get_mut(id) {
            session.use_at(now);
        }
        !is_over
    }

    /// Takes over what was stored.
    pub(crate) fn take_over(&mut self, pending: Pending) {
        for (name, account) in pending.accounts {
            match account {
                Some(account) => drop(self.accounts.insert(name, account)),
                None => drop(self.accounts.remove(&name)),
            }
        }
        for (id, session) in pending.sessions {
            match session {
                Some(session) => drop(self.sessions.insert(id, session)),
                None => drop(self.sessions.remove(&id)),
            }
        }
    }

    /// Ends a session.
    pub(crate) fn delete(&self, id: &str, who: &str) -> Decided<()> {
        let session = self.sessions.get(id).ok_or_else(|| NotAllowed::Unknown(format!("session {id}")))?;
        let mut pending = Pending::default();
        end_session(&mut pending, id, session, who);
        Ok(((), pending))
    }

    /// Ends all sessions of an account.
    fn delete_of(&self, pending: &mut Pending, account: &str, who: &str) {
        let of = self.sessions.iter().filter(|(_, session)| session.account == account);
        of.for_each(|(id, session)| end_session(pending, id, session, who));
    }

    /// Creates an account with the hash of its password.
    pub(crate) fn add_account(&self, name: &str, role: Role, hash: &str, who: &str) -> Decided<()> {
        check_name(name).map_err(NotAllowed::Invalid)?;
        if self.accounts.contains_key(name) {
            return Err(NotAllowed::Exists);
        }
        if self.accounts.len() >= ACCOUNTS_MAX {
            return Err(NotAllowed::Invalid(format!("there are {ACCOUNTS_MAX} accounts; delete one first")));
        }
        let account = Account { role, hash: hash.to_owned(), is_enabled: true, changes: 0 };
        let entry = Entry::new(who, format!("create account {name} with role {}", role.name()));
        let accounts = vec![(name.to_owned(), Some(account))];
        Ok(((), Pending { accounts, sessions: Vec::new(), entries: vec![entry] }))
    }

    fn is_last_administrator(&self, name: &str) -> bool {
        let is_one = |account: &Account| account.role == Role::Administrator && account.is_enabled;
        self.accounts.get(name).is_some_and(is_one)
            && self.accounts.values().filter(|account| is_one(account)).count() == 1
    }

    /// Refuses a change of an account that no longer has the ETag which the client names.
    pub(crate) fn check_match(&self, name: &str, if_match: Option<&str>) -> Result<(), NotAllowed> {
        let account = self.accounts.get(name).ok_or_else(|| no_account(name))?;
        let is_stale = if_match.is_some_and(|wanted| !matches(wanted, &account.etag()));
        if is_stale { Err(NotAllowed::Stale) } else { Ok(()) }
    }

    /// Changes an account, and ends its sessions.
    pub(crate) fn change_account(&self, name: &str, change: &AccountChange, who: &str) -> Decided<()> {
        let mut account = self.accounts.get(name).cloned().ok_or_else(|| no_account(name))?;
        let loses = change.role.is_some_and(|role| role != Role::Administrator) || change.is_enabled == Some(false);
        if loses && self.is_last_administrator(name) {
            return Err(NotAllowed::LastAdministrator);
        }
        account.changes += 1;
        let mut what = format!("change account {name}:");
        if let Some(hash) = &change.hash {
            account.hash.clone_from(hash);
            what += " password";
        }
        if let Some(role) = change.role {
            account.role = role;
            what += &format!(" role {}", role.name());
        }
        if let Some(is_enabled) = change.is_enabled {
            account.is_enabled = is_enabled;
            what += if is_enabled { " enabled" } else { " disabled" };
        }
        let accounts = vec![(name.to_owned(), Some(account))];
        let mut pending = Pending { accounts, sessions: Vec::new(), entries: vec![Entry::new(who, what)] };
        self.delete_of(&mut pending, name, who);
        Ok(((), pending))
    }

    /// Deletes an account and its sessions.
    pub(crate) fn delete_account(&self, name: &str, who: &str) -> Decided<()> {
        if !self.accounts.contains_key(name) {
            return Err(no_account(name));
        }
        if self.is_last_administrator(name) {
            return Err(NotAllowed::LastAdministrator);
        }
        let entry = Entry::new(who, format!("delete account {name}"));
        let accounts = vec![(name.to_owned(), None)];
        let mut pending = Pending { accounts, sessions: Vec::new(), entries: vec![entry] };
        self.delete_of(&mut pending, name, who);
        Ok(((), pending))
    }

    /// Checks a password without the limits of strangers: for the first account and for tests.
    pub(crate) fn is_password(&self, name: &str, password: &str) -> bool {
        verify(self.accounts.get(name), password, &mut Memory::default())
    }
}

#[cfg(test)]
mod tests;
