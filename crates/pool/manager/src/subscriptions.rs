// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Subscriptions: listeners to which the manager sends events. They are stored under `subscription/ID`; the progress of
//! each listener, and whether it is suspended, are only in memory. `push.rs` sends the events.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::accounts::{hex, random};
use crate::config::{EventsConfig, is_loopback};
use crate::events::Event;
use crate::manager_store::{Entry, ManagerStore, ManagerStoreFailure, json};

/// Maximum number of subscriptions: each has its own task.
pub(crate) const SUBSCRIPTIONS_MAX: usize = 32;
/// Maximum length of a listener's URL, and of a subscription's context.
pub(crate) const TEXT_BYTES_MAX: usize = 1024;
/// Maximum number of messages that one subscription names.
pub(crate) const MESSAGES_MAX: usize = 64;

/// A subscription, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Subscription {
    /// The URL of the listener.
    pub(crate) destination: String,
    /// The client's text, which is part of every event that its listener gets.
    pub(crate) context: String,
    /// The messages to send; empty for all.
    pub(crate) messages: Vec<String>,
}

impl Subscription {
    /// Returns whether its listener wants an event.
    pub(crate) fn wants(&self, event: &Event) -> bool {
        self.messages.is_empty() || self.messages.iter().any(|message| *message == event.message_id())
    }
}

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listener {
    pub(crate) is_tls: bool,
    /// Without the brackets of an IPv6 address.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Host and port as in the URL.
    pub(crate) authority: String,
    pub(crate) path: String,
}

impl Listener {
    /// Parses a URL. The error is one line with the remedy.
    pub(crate) fn parse(url: &str) -> Result<Listener, String> {
        if url.len() > TEXT_BYTES_MAX || !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("it is not a URL of at most {TEXT_BYTES_MAX} ASCII characters; encode it"));
        }
        let (is_tls, rest) = match url.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            _ => return Err("it is not an HTTP URL; write https://HOST:PORT/PATH".to_owned()),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok().filter(|port| *port != 0)),
            _ => (authority, Some(if is_tls { 443 } else { 80 })),
        };
        let port = port.ok_or("its port is not a number from 1 to 65535; correct it")?;
        let is_host = |one: char| one.is_ascii_alphanumeric() || ".-[]:_".contains(one);
        if host.is_empty() || !host.chars().all(is_host) || path.contains('#') {
            return Err("its host is not valid, or it has a user name, a password or a fragment; correct it".to_owned());
        }
        let path = if path.is_empty() { "/" } else { path };
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Listener { is_tls, host: bare, port, authority: authority.to_owned(), path: path.to_owned() })
    }

    /// Refuses a listener that the configuration does not list, or that would get events without TLS over a network.
    pub(crate) fn check(&self, config: &EventsConfig) -> Result<(), String> {
        if !config.allows(&self.host) {
            return Err(format!("{} is not listed; add it to events.listeners of the configuration", self.host));
        }
        if !self.is_tls && !is_loopback(&self.host) {
            return Err(format!("{} would get events without TLS; use https", self.host));
        }
        Ok(())
    }
}

/// All subscriptions, and how far their listeners are.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    pub(crate) config: EventsConfig,
    pub(crate) all: BTreeMap<String, Subscription>,
    suspended: BTreeSet<String>,
    /// The number of the last event that each listener took, or does not need to get.
    taken: BTreeMap<String, u64>,
}

impl Subscriptions {
    /// Reads the stored subscriptions.
    pub(crate) fn load(store: &ManagerStore, config: EventsConfig) -> Result<Subscriptions, ManagerStoreFailure> {
        let all = store.all("subscription/")?.into_iter().collect();
        Ok(Subscriptions { config, all, ..Subscriptions::default() })
    }

    /// Returns the subscriptions that are not suspended.
    pub(crate) fn active(&self) -> BTreeSet<String> {
        self.all.keys().filter(|id| !self.suspended.contains(*id)).cloned().collect()
    }

    /// Returns whether a subscription with this name can be stored.
    pub(crate) fn has_room(&self, id: &str) -> bool {
        self.all.len() < SUBSCRIPTIONS_MAX || self.all.contains_key(id)
    }

    pub(crate) fn is_suspended(&self, id: &str) -> bool {
        self.suspended.contains(id)
    }

    /// Returns a subscription that is not suspended, and the number of the last event that its listener has.
    pub(crate) fn next(&self, id: &str) -> Option<(Subscription, u64)> {
        let subscription = self.all.get(id).filter(|_| !self.is_suspended(id))?;
        Some((subscription.clone(), self.taken.get(id).copied().unwrap_or_default()))
    }

    /// Notes the last event that a listener took.
    pub(crate) fn note_taken(&mut self, id: &str, event: u64) {
        if self.all.contains_key(id) {
            self.taken.insert(id.to_owned(), event);
        }
    }

    /// Suspends a subscription: its listener gets no events until it is resumed.
    pub(crate) fn suspend(&mut self, id: &str) {
        if self.all.contains_key(id) {
            self.suspended.insert(id.to_owned());
        }
    }

    /// Resumes a subscription.
    pub(crate) fn resume(&mut self, id: &str) {
        self.suspended.remove(id);
    }

    /// Applies a change that was stored; `None` deletes. A new listener gets the events after number `after`.
    pub(crate) fn take_over(&mut self, id: &str, subscription: Option<Subscription>, after: u64) {
        match subscription {
            Some(subscription) => {
                self.all.insert(id.to_owned(), subscription);
                self.taken.entry(id.to_owned()).or_insert(after);
            }
            None => {
                self.all.remove(id);
                self.suspended.remove(id);
                self.taken.remove(id);
            }
        }
    }
}

/// Returns a new name for a subscription.
pub(crate) fn new_id() -> String {
    hex(&random::<8>())
}

/// Stores a subscription; `None` deletes it.
pub(crate) fn store_subscription(
    store: &mut ManagerStore,
    id: &str,
    subscription: Option<&Subscription>,
    entry: Entry,
    now: aquifer_fabric::Millis,
) -> Result<(), ManagerStoreFailure> {
    store.keep(&[(format!("subscription/{id}"), subscription.map(json))], &[entry], now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_named_by_urls_without_secrets() {
        let parsed = Listener::parse("https://[::1]:8443/events?a=b").expect("a URL");
        let (host, path) = ("::1".to_owned(), "/events?a=b".to_owned());
        assert_eq!(parsed, Listener { is_tls: true, host, port: 8443, authority: "[::1]:8443".to_owned(), path });
        let port = |url: &str| Listener::parse(url).map(|listener| (listener.host, listener.port));
        assert_eq!(port("http://localhost"), Ok(("localhost".to_owned(), 80)));
        assert_eq!(port("https://[::1]"), Ok(("::1".to_owned(), 443)));
        for url in [
            "",
            "localhost:80",
            "ftp://localhost/",
            "http://",
            "http:///path",
            "http://name:secret@localhost/",
            "http://localhost:0/",
            "http://localhost:99999/",
            "http://localhost:http/",
            "http://local host/",
            "http://localhost/\r\nX-Auth-Token: a",
            "http://localhost/#part",
            "http://löcalhost/",
            &format!("http://localhost/{}", "x".repeat(TEXT_BYTES_MAX)),
        ] {
            let line = Listener::parse(url).expect_err(url);
            assert!(line.contains("; ") && !line.contains('\n'), "{url}: {line}");
        }
    }

    #[test]
    fn only_listed_machines_get_events_and_only_by_tls() {
        let config = EventsConfig { listeners: vec!["monitor.example".to_owned()] };
        let check = |url: &str| Listener::parse(url).and_then(|listener| listener.check(&config));
        assert!(check("https://Monitor.example/").is_ok() && check("http://127.0.0.2:1/").is_ok());
        assert!(check("http://monitor.example/").is_err_and(|line| line.contains("https")));
        assert!(check("https://other.example/").is_err_and(|line| line.contains("events.listeners")));
        assert!(check("https://169.254.169.254/").is_err());
    }

    #[test]
    fn a_suspended_listener_goes_on_where_it_was() {
        let mut subscriptions = Subscriptions::default();
        let one = Subscription { destination: "http://[::1]/".into(), context: String::new(), messages: Vec::new() };
        subscriptions.take_over("a", Some(one.clone()), 7);
        assert_eq!(subscriptions.next("a"), Some((one.clone(), 7)));
        subscriptions.note_taken("a", 9);
        subscriptions.suspend("a");
        assert_eq!((subscriptions.next("a"), subscriptions.active().len()), (None, 0));
        subscriptions.resume("a");
        assert_eq!(subscriptions.next("a"), Some((one, 9)));
        subscriptions.take_over("a", None, 0);
        subscriptions.note_taken("a", 10);
        assert_eq!(subscriptions.taken.len(), 0, "what is deleted leaves nothing");
    }
}
