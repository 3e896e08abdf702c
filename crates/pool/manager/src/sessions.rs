// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Who a request comes from: sessions with expiry, and the accounts behind them.
//!
//! A token is `ID.SECRET`; only its hash is stored, under `session/ID`, so that neither the store nor a backup of it
//! has
//! a token. A session ends when it is deleted, was idle too long, or is too old; when its account changes, it ends,
//! too.

use std::collections::BTreeMap;
use std::net::IpAddr;

use aquifer_fabric::Millis;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::accounts::{ACCOUNTS_MAX, Account, Role, check_name, hash, hex, random, verify};
use crate::attempts::{Attempts, TooMany};
use crate::config::SessionsConfig;
use crate::ledger::{Entry, Ledger, LedgerFailure};

/// Sessions at most. A further login ends the one that was idle longest.
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

/// Who a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) session: Option<String>,
}

/// Why nobody is recognised, or an account cannot be changed.
#[derive(Debug)]
pub(crate) enum NotAllowed {
    /// An account has the name already.
    Exists,
    /// A name, a role or a password cannot be used; the line says why.
    Invalid(String),
    /// The last administrator would be lost.
    LastAdministrator,
    /// The store failed.
    Ledger(LedgerFailure),
    /// Name or password is wrong.
    Login,
    /// Too many attempts.
    TooMany(TooMany),
    /// The session does not exist or has ended.
    Token,
    /// There is no such account or session.
    Unknown,
}

impl From<LedgerFailure> for NotAllowed {
    fn from(failure: LedgerFailure) -> Self {
        Self::Ledger(failure)
    }
}

/// What changes of an account.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccountChange {
    pub(crate) password: Option<String>,
    pub(crate) role: Option<Role>,
    pub(crate) is_enabled: Option<bool>,
}

/// Accounts and sessions.
pub(crate) struct Sessions {
    config: SessionsConfig,
    pub(crate) accounts: BTreeMap<String, Account>,
    pub(crate) sessions: BTreeMap<String, Session>,
    attempts: Attempts,
}

fn secret_hash(secret: &str) -> String {
    hex(digest(&SHA256, secret.as_bytes()).as_ref())
}

impl Sessions {
    /// Reads accounts and sessions.
    pub(crate) fn load(ledger: &Ledger, config: SessionsConfig) -> Result<Sessions, LedgerFailure> {
        let accounts = ledger.all("account/")?.into_iter().collect();
        let sessions = ledger.all("session/")?.into_iter().collect();
        Ok(Sessions { config, accounts, sessions, attempts: Attempts::default() })
    }

    /// How long a session may be idle.
    pub(crate) fn idle_seconds(&self) -> u64 {
        self.config.idle_seconds
    }

    /// Counts an attempt, and gives what the password is checked against, outside the lock of this.
    pub(crate) fn begin(&mut self, from: IpAddr, name: &str, now: Millis) -> Result<Option<Account>, NotAllowed> {
        self.attempts.begin(&self.config, from, name, now).map_err(NotAllowed::TooMany)?;
        Ok(self.accounts.get(name).cloned())
    }

    /// Notes how an attempt ended. Only names of accounts reach the audit log: a stranger may have typed a password.
    pub(crate) fn end(
        &mut self,
        ledger: &mut Ledger,
        account: Option<Account>,
        name: &str,
        is_right: bool,
        now: Millis,
    ) -> Result<Who, NotAllowed> {
        let current = self.accounts.get(name);
        match account.filter(|account| is_right && current == Some(account)) {
            Some(account) => {
                self.attempts.succeed(name);
                Ok(Who { name: name.to_owned(), role: account.role, session: None })
            }
            None => {
                self.attempts.fail(&self.config, name, now);
                if current.is_some() {
                    ledger.set("login", None::<&()>, &[Entry::new(name, "login: wrong password")], now)?;
                }
                Err(NotAllowed::Login)
            }
        }
    }

    /// Makes a session, and returns its id and its token.
    pub(crate) fn create(
        &mut self,
        ledger: &mut Ledger,
        who: &Who,
        now: Millis,
    ) -> Result<(String, String), NotAllowed> {
        self.end_expired(ledger, now)?;
        while self.sessions.len() >= SESSIONS_MAX {
            let idle = self.sessions.iter().min_by_key(|(_, session)| session.used).map(|(id, _)| id.clone());
            let Some(id) = idle else { break };
            self.delete(ledger, &id, &who.name, now)?;
        }
        let (id, secret) = (hex(&random::<8>()), hex(&random::<32>()));
        let session = Session { account: who.name.clone(), secret_hash: secret_hash(&secret), created: now, used: now };
        ledger.set(&format!("session/{id}"), Some(&session), &[Entry::new(&who.name, "login")], now)?;
        self.sessions.insert(id.clone(), session);
        Ok((id.clone(), format!("{id}.{secret}")))
    }

    /// Who has a token.
    pub(crate) fn recognise(&mut self, token: &str, now: Millis) -> Result<Who, NotAllowed> {
        let (id, secret) = token.split_once('.').ok_or(NotAllowed::Token)?;
        let is_over = |session: &Session| self.is_over(session, now);
        let session = self.sessions.get(id).filter(|session| !is_over(session)).ok_or(NotAllowed::Token)?;
        // Hashes are compared, so that the time tells nothing about the secret.
        if session.secret_hash != secret_hash(secret) {
            return Err(NotAllowed::Token);
        }
        let account = self.accounts.get(&session.account).filter(|account| account.is_enabled);
        let role = account.ok_or(NotAllowed::Token)?.role;
        let who = Who { name: session.account.clone(), role, session: Some(id.to_owned()) };
        self.sessions.get_mut(id).expect("it was found").used = now;
        Ok(who)
    }

    fn is_over(&self, session: &Session, now: Millis) -> bool {
        // A clock that was set back makes no session live longer than its life from the new time on.
        let idle = now.0.saturating_sub(session.used.0);
        let age = now.0.saturating_sub(session.created.0);
        idle >= self.config.idle_seconds * 1000 || age >= self.config.life_seconds * 1000
    }

    fn end_expired(&mut self, ledger: &mut Ledger, now: Millis) -> Result<(), LedgerFailure> {
        let over = self.sessions.iter().filter(|(_, session)| self.is_over(session, now));
        let over: Vec<String> = over.map(|(id, _)| id.clone()).collect();
        for id in over {
            ledger.set(&format!("session/{id}"), None::<&()>, &[], now)?;
            self.sessions.remove(&id);
        }
        Ok(())
    }

    /// Ends a session.
    pub(crate) fn delete(&mut self, ledger: &mut Ledger, id: &str, who: &str, now: Millis) -> Result<(), NotAllowed> {
        let session = self.sessions.get(id).ok_or(NotAllowed::Unknown)?;
        let entry = Entry::new(who, format!("logout of {}", session.account));
        ledger.set(&format!("session/{id}"), None::<&()>, &[entry], now)?;
        self.sessions.remove(id);
        Ok(())
    }

    /// Ends all sessions of an account.
    fn delete_of(&mut self, ledger: &mut Ledger, account: &str, who: &str, now: Millis) -> Result<(), NotAllowed> {
        let of = self.sessions.iter().filter(|(_, session)| session.account == account);
        let ids: Vec<String> = of.map(|(id, _)| id.clone()).collect();
        ids.iter().try_for_each(|id| self.delete(ledger, id, who, now))
    }

    /// Creates an account.
    pub(crate) fn add_account(
        &mut self,
        ledger: &mut Ledger,
        name: &str,
        role: Role,
        password: &str,
        who: &str,
        now: Millis,
    ) -> Result<(), NotAllowed> {
        check_name(name).map_err(NotAllowed::Invalid)?;
        if self.accounts.contains_key(name) {
            return Err(NotAllowed::Exists);
        }
        if self.accounts.len() >= ACCOUNTS_MAX {
            return Err(NotAllowed::Invalid(format!("there are {ACCOUNTS_MAX} accounts; delete one first")));
        }
        let hash = hash(password).map_err(NotAllowed::Invalid)?;
        let account = Account { role, hash, is_enabled: true };
        let entry = Entry::new(who, format!("create account {name} with role {}", role.name()));
        ledger.set(&format!("account/{name}"), Some(&account), &[entry], now)?;
        self.accounts.insert(name.to_owned(), account);
        Ok(())
    }

    fn is_last_administrator(&self, name: &str) -> bool {
        let is_one = |account: &Account| account.role == Role::Administrator && account.is_enabled;
        self.accounts.get(name).is_some_and(is_one)
            && self.accounts.values().filter(|account| is_one(account)).count() == 1
    }

    /// Changes an account, and ends its sessions.
    pub(crate) fn change_account(
        &mut self,
        ledger: &mut Ledger,
        name: &str,
        change: &AccountChange,
        who: &str,
        now: Millis,
    ) -> Result<(), NotAllowed> {
        let mut account = self.accounts.get(name).cloned().ok_or(NotAllowed::Unknown)?;
        let loses = change.role.is_some_and(|role| role != Role::Administrator) || change.is_enabled == Some(false);
        if loses && self.is_last_administrator(name) {
            return Err(NotAllowed::LastAdministrator);
        }
        let mut what = format!("change account {name}:");
        if let Some(password) = &change.password {
            account.hash = hash(password).map_err(NotAllowed::Invalid)?;
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
        ledger.set(&format!("account/{name}"), Some(&account), &[Entry::new(who, what)], now)?;
        self.accounts.insert(name.to_owned(), account);
        self.delete_of(ledger, name, who, now)
    }

    /// Deletes an account and its sessions.
    pub(crate) fn delete_account(
        &mut self,
        ledger: &mut Ledger,
        name: &str,
        who: &str,
        now: Millis,
    ) -> Result<(), NotAllowed> {
        if !self.accounts.contains_key(name) {
            return Err(NotAllowed::Unknown);
        }
        if self.is_last_administrator(name) {
            return Err(NotAllowed::LastAdministrator);
        }
        let entry = Entry::new(who, format!("delete account {name}"));
        ledger.set(&format!("account/{name}"), None::<&()>, &[entry], now)?;
        self.accounts.remove(name);
        self.delete_of(ledger, name, who, now)
    }

    /// Checks a password without the limits of strangers: for the first account and for tests.
    pub(crate) fn is_password(&self, name: &str, password: &str) -> bool {
        verify(self.accounts.get(name), password)
    }
}

#[cfg(test)]
mod tests {
    use aquifer_state_store::MemoryStore;

    use super::*;
    use crate::crash::CrashPoint;

    fn site() -> (Ledger, Sessions, Who) {
        let (mut ledger, _) = Ledger::open(Box::new(MemoryStore::default()), CrashPoint::default()).expect("opened");
        let config = SessionsConfig { idle_seconds: 10, life_seconds: 30, ..SessionsConfig::default() };
        let mut sessions = Sessions::load(&ledger, config).expect("loaded");
        sessions
            .add_account(&mut ledger, "amy", Role::Administrator, "correct horse", "test", Millis(0))
            .expect("added");
        (ledger, sessions, Who { name: "amy".into(), role: Role::Administrator, session: None })
    }

    #[test]
    fn a_token_is_good_until_its_session_ends() {
        let (mut ledger, mut sessions, who) = site();
        let (id, token) = sessions.create(&mut ledger, &who, Millis(0)).expect("created");
        assert_eq!(sessions.recognise(&token, Millis(9_000)).expect("known").name, "amy");
        assert!(sessions.recognise(&token, Millis(18_000)).is_ok(), "use keeps it");
        assert!(sessions.recognise(&token, Millis(28_000)).is_err(), "idle for ten seconds");
        let (other, token) = sessions.create(&mut ledger, &who, Millis(30_000)).expect("created");
        assert!(!sessions.sessions.contains_key(&id), "what has ended is forgotten");
        assert!(sessions.recognise(&format!("{other}.{}", "0".repeat(64)), Millis(30_000)).is_err());
        let mut restarted = Sessions::load(&ledger, sessions.config.clone()).expect("loaded");
        assert!(restarted.recognise(&token, Millis(31_000)).is_ok(), "a restart keeps it");
        sessions.delete(&mut ledger, &other, "amy", Millis(31_000)).expect("deleted");
        assert!(sessions.recognise(&token, Millis(31_000)).is_err(), "a replayed token");
        let text = format!("{:?}", ledger.all::<serde_json::Value>("session/").expect("read"));
        assert!(!text.contains(&token[17..]), "no secret is stored");
    }

    #[test]
    fn the_last_administrator_stays() {
        let (mut ledger, mut sessions, _) = site();
        let lower = AccountChange { role: Some(Role::ReadOnly), ..AccountChange::default() };
        let refused = sessions.change_account(&mut ledger, "amy", &lower, "amy", Millis(0));
        assert!(matches!(refused, Err(NotAllowed::LastAdministrator)));
        let refused = sessions.delete_account(&mut ledger, "amy", "amy", Millis(0));
        assert!(matches!(refused, Err(NotAllowed::LastAdministrator)));
    }

    #[test]
    fn a_changed_account_has_no_sessions() {
        let (mut ledger, mut sessions, who) = site();
        let (_, token) = sessions.create(&mut ledger, &who, Millis(0)).expect("created");
        let change = AccountChange { password: Some("another password".into()), ..AccountChange::default() };
        sessions.change_account(&mut ledger, "amy", &change, "amy", Millis(1)).expect("changed");
        assert!(sessions.recognise(&token, Millis(1)).is_err());
        assert!(sessions.is_password("amy", "another password") && !sessions.is_password("amy", "correct horse"));
    }

    #[test]
    fn a_password_that_was_changed_while_it_was_checked_is_wrong() {
        let (mut ledger, mut sessions, _) = site();
        let from = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
        let mut try_right = |change: Option<&AccountChange>| {
            let account = sessions.begin(from, "amy", Millis(1)).expect("not too many");
            if let Some(change) = change {
                sessions.change_account(&mut ledger, "amy", change, "amy", Millis(1)).expect("changed");
            }
            sessions.end(&mut ledger, account, "amy", true, Millis(1))
        };
        assert_eq!(try_right(None).expect("it is right").name, "amy");
        let change = AccountChange { password: Some("another password".into()), ..AccountChange::default() };
        assert!(matches!(try_right(Some(&change)), Err(NotAllowed::Login)));
    }

    #[test]
    fn sessions_are_bounded() {
        let (mut ledger, mut sessions, who) = site();
        for _ in 0..SESSIONS_MAX + 3 {
            sessions.create(&mut ledger, &who, Millis(0)).expect("created");
        }
        assert_eq!(sessions.sessions.len(), SESSIONS_MAX);
    }
}
