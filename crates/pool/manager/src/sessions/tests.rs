// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Tokens, accounts, and what ends them.

use std::sync::Mutex;

use aquifer_state_store::MemoryStore;

use super::*;
use crate::account_changes::carry_out;
use crate::accounts::{Memory, hash};
use crate::crash::CrashPoint;

/// Accounts and sessions with their store.
struct Site {
    store: ManagerStore,
    sessions: Mutex<Sessions>,
}

impl Site {
    fn new() -> (Site, Who) {
        let store = ManagerStore::open(Box::new(MemoryStore::default()), CrashPoint::default()).expect("opened");
        let config = SessionsConfig { idle_seconds: 10, life_seconds: 30, ..SessionsConfig::default() };
        let sessions = Mutex::new(Sessions::load(&store, config).expect("loaded"));
        let mut site = Site { store, sessions };
        let hash = hash("correct horse", &mut Memory::default()).expect("hashed");
        site.keep(0, |sessions| sessions.add_account("amy", Role::Administrator, &hash, "test")).expect("added");
        let who = site.by_password("amy");
        (site, who)
    }

    /// Returns who has just sent the right password of an account.
    fn by_password(&self, name: &str) -> Who {
        let sessions = self.sessions.lock().expect("a lock");
        let account = &sessions.accounts[name];
        Who { name: name.to_owned(), role: account.role, account: account.etag(), session: None }
    }

    fn keep<T>(&mut self, now: u64, decide: impl FnOnce(&Sessions) -> Decided<T>) -> Result<T, NotAllowed> {
        carry_out(&self.sessions, &mut self.store, Millis(now), decide).expect("stored")
    }

    fn recognise(&self, token: &str, now: u64) -> Result<Who, NotAllowed> {
        self.sessions.lock().expect("a lock").recognise(token, Millis(now))
    }

    fn is_still(&self, who: &Who, now: u64) -> bool {
        self.sessions.lock().expect("a lock").is_still(who, Millis(now))
    }
}

#[test]
fn a_token_is_good_until_its_session_ends() {
    let (mut site, who) = Site::new();
    let (id, token) = site.keep(0, |sessions| sessions.create(&who, Millis(0))).expect("created");
    assert_eq!(site.recognise(&token, 9_000).expect("known").name, "amy");
    assert!(site.recognise(&token, 18_000).is_ok(), "use keeps it");
    assert!(site.recognise(&token, 28_000).is_err(), "idle for ten seconds");
    let (other, token) = site.keep(30_000, |sessions| sessions.create(&who, Millis(30_000))).expect("created");
    assert!(!site.sessions.lock().expect("a lock").sessions.contains_key(&id), "what has ended is forgotten");
    assert!(site.recognise(&format!("{other}.{}", "0".repeat(64)), 30_000).is_err());
    let config = site.sessions.lock().expect("a lock").config.clone();
    let mut restarted = Sessions::load(&site.store, config).expect("loaded");
    assert!(restarted.recognise(&token, Millis(31_000)).is_ok(), "a restart keeps it");
    site.keep(31_000, |sessions| sessions.delete(&other, "amy")).expect("deleted");
    assert!(site.recognise(&token, 31_000).is_err(), "a replayed token");
    let text = format!("{:?}", site.store.all::<serde_json::Value>("session/").expect("read"));
    assert!(!text.contains(&token[17..]), "no secret is stored");
}

#[test]
fn a_stream_keeps_its_session_and_ends_with_it() {
    let (mut site, who) = Site::new();
    let (id, token) = site.keep(0, |sessions| sessions.create(&who, Millis(0))).expect("created");
    let who = site.recognise(&token, 0).expect("known");
    assert!(site.is_still(&who, 9_000) && site.is_still(&who, 18_000), "it counts as use");
    assert!(!site.is_still(&who, 30_000), "a session that is too old");
    assert!(site.is_still(&who, 20_000));
    site.keep(20_000, |sessions| sessions.delete(&id, "amy")).expect("deleted");
    assert!(!site.is_still(&who, 20_000), "a session that was ended");
    let by_password = Who { session: None, ..who };
    assert!(site.is_still(&by_password, 20_000));
    let lower = AccountChange { is_enabled: Some(false), ..AccountChange::default() };
    let hash = hash("another horse", &mut Memory::default()).expect("hashed");
    site.keep(0, |sessions| sessions.add_account("bob", Role::Administrator, &hash, "test")).expect("added");
    site.keep(0, |sessions| sessions.change_account("amy", &lower, "bob")).expect("changed");
    assert!(!site.is_still(&by_password, 20_000), "an account that was disabled");
}

#[test]
fn a_clock_that_jumps_keeps_no_session_for_ever() {
    let (mut site, who) = Site::new();
    let late = 1_000_000_000;
    let (_, token) = site.keep(late, |sessions| sessions.create(&who, Millis(late))).expect("created");
    assert!(site.recognise(&token, 1000).is_ok(), "set back: the session goes on");
    assert!(site.recognise(&token, 9000).is_ok() && site.recognise(&token, 18_000).is_ok());
    assert!(
        site.recognise(&token, 27_000).is_ok() && site.recognise(&token, 31_000).is_err(),
        "for its life from then"
    );
    let (_, token) = site.keep(40_000, |sessions| sessions.create(&who, Millis(40_000))).expect("created");
    assert!(site.recognise(&token, 20_000).is_ok() && site.recognise(&token, 30_000).is_err(), "idle from then on");
    let (_, token) = site.keep(50_000, |sessions| sessions.create(&who, Millis(50_000))).expect("created");
    assert!(site.recognise(&token, late).is_err(), "set forward: it ends");
}

#[test]
fn a_change_by_somebody_who_read_an_older_account_is_refused() {
    let (mut site, _) = Site::new();
    let tag = |site: &Site| site.sessions.lock().expect("a lock").accounts["amy"].etag();
    let old = tag(&site);
    let change = AccountChange { is_enabled: Some(true), ..AccountChange::default() };
    site.keep(1, |sessions| sessions.change_account("amy", &change, "amy")).expect("changed");
    assert_ne!(tag(&site), old, "even if it is as it was");
    let check = |if_match: Option<&str>| site.sessions.lock().expect("a lock").check_match("amy", if_match);
    assert!(matches!(check(Some(&old)), Err(NotAllowed::Stale)));
    assert!(check(Some(&tag(&site))).is_ok() && check(Some("*")).is_ok() && check(None).is_ok());
}

#[test]
fn the_last_administrator_stays() {
    let (mut site, _) = Site::new();
    let lower = AccountChange { role: Some(Role::ReadOnly), ..AccountChange::default() };
    let refused = site.keep(0, |sessions| sessions.change_account("amy", &lower, "amy"));
    assert!(matches!(refused, Err(NotAllowed::LastAdministrator)));
    let refused = site.keep(0, |sessions| sessions.delete_account("amy", "amy"));
    assert!(matches!(refused, Err(NotAllowed::LastAdministrator)));
}

#[test]
fn a_changed_account_has_no_sessions() {
    let (mut site, who) = Site::new();
    let (_, token) = site.keep(0, |sessions| sessions.create(&who, Millis(0))).expect("created");
    let change = AccountChange {
        hash: Some(hash("another password", &mut Memory::default()).expect("hashed")),
        ..AccountChange::default()
    };
    site.keep(1, |sessions| sessions.change_account("amy", &change, "amy")).expect("changed");
    assert!(site.recognise(&token, 1).is_err());
    let sessions = site.sessions.lock().expect("a lock");
    assert!(sessions.is_password("amy", "another password") && !sessions.is_password("amy", "correct horse"));
}

#[test]
fn a_password_that_was_changed_while_it_was_checked_is_wrong() {
    let (mut site, _) = Site::new();
    let from = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    let mut try_right = |change: Option<&AccountChange>| {
        let account = site.sessions.lock().expect("a lock").begin(from, "amy", Millis(1)).expect("not too many");
        if let Some(change) = change {
            site.keep(1, |sessions| sessions.change_account("amy", change, "amy")).expect("changed");
        }
        site.sessions.lock().expect("a lock").end(from, account, "amy", true, Millis(1))
    };
    assert_eq!(try_right(None).expect("it is right").name, "amy");
    let change = AccountChange {
        hash: Some(hash("another password", &mut Memory::default()).expect("hashed")),
        ..AccountChange::default()
    };
    assert!(matches!(try_right(Some(&change)), Err(Some(_))));
}

/// The writer makes the session, after other changes that came before.
#[test]
fn a_password_that_was_changed_before_the_session_is_made_makes_none() {
    let (mut site, who) = Site::new();
    let change = AccountChange {
        hash: Some(hash("another password", &mut Memory::default()).expect("hashed")),
        ..AccountChange::default()
    };
    site.keep(1, |sessions| sessions.change_account("amy", &change, "amy")).expect("changed");
    let refused = site.keep(1, |sessions| sessions.create(&who, Millis(1)));
    assert!(matches!(refused, Err(NotAllowed::Login)), "{refused:?}");
    assert!(!site.is_still(&who, 1), "nor does it keep a stream");
    let who = site.by_password("amy");
    assert!(site.keep(1, |sessions| sessions.create(&who, Millis(1))).is_ok() && site.is_still(&who, 1));
    site.keep(1, |sessions| sessions.add_account("bob", Role::Administrator, "", "amy")).expect("added");
    site.keep(1, |sessions| sessions.delete_account("amy", "bob")).expect("deleted");
    site.keep(1, |sessions| sessions.add_account("amy", Role::Administrator, "", "bob")).expect("added again");
    let refused = site.keep(1, |sessions| sessions.create(&who, Millis(1)));
    assert!(matches!(refused, Err(NotAllowed::Login)), "another account of the same name: {refused:?}");
}

#[test]
fn sessions_are_bounded() {
    let (mut site, who) = Site::new();
    for _ in 0..SESSIONS_MAX + 3 {
        site.keep(0, |sessions| sessions.create(&who, Millis(0))).expect("created");
    }
    assert_eq!(site.sessions.lock().expect("a lock").sessions.len(), SESSIONS_MAX);
}

#[test]
fn an_account_that_logs_in_often_ends_only_its_own_sessions() {
    let (mut site, who) = Site::new();
    site.keep(0, |sessions| sessions.add_account("rita", Role::ReadOnly, "", "admin")).expect("added");
    let (mine, _) = site.keep(0, |sessions| sessions.create(&who, Millis(0))).expect("created");
    let rita = site.by_password("rita");
    let rounds = u64::try_from(SESSIONS_MAX).expect("a small number") + 3;
    let begun = site.sessions.lock().expect("a lock").sessions.len();
    for time in 1..rounds {
        site.keep(0, |sessions| sessions.create(&rita, Millis(time))).expect("created");
    }
    let sessions = site.sessions.lock().expect("a lock");
    assert_eq!((begun, sessions.sessions.len()), (1, SESSIONS_MAX));
    assert!(sessions.sessions.contains_key(&mine), "the oldest session is of somebody else");
}
