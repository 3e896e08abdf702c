// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Who writes: one leadership, a key under a lease of etcd's. The leader keeps the lease alive; when it dies, etcd
//! removes the key after the lease's time, and another candidate takes the leadership.
//!
//! The leadership only keeps candidates from disturbing each other. It protects nothing, because a holder that was
//! stopped or cut off may act after its lease has ended: that is what the term in each transaction and each command is
//! for.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::gateway::Gateway;
use super::messages::{bytes, compare, number_of, outcome_of, read};
use super::settings::{Bounds, EtcdSettings};
use super::{not_answered, odd, random_name};
use crate::failure::StoreFailure;

/// The shortest lease: etcd prolongs shorter ones, at its default timeouts.
pub const LEASE_SECONDS_MIN: u64 = 2;
/// Longest value of the leadership that is read.
const HOLDER_BYTES_MAX: usize = 4096;

/// A candidate for the leadership.
#[derive(Debug)]
pub struct Election {
    gateway: Gateway,
    settings: EtcdSettings,
    key: String,
    holder: String,
    lease_seconds: u64,
}

/// The outcome of a campaign.
#[derive(Debug)]
pub enum Campaign {
    /// The leadership is this candidate's.
    Won(Box<Leadership>),
    /// Somebody else has the leadership, or nobody yet.
    Lost {
        /// How the holder calls itself.
        holder: Option<String>,
    },
}

/// The leadership, while it is held.
#[derive(Debug)]
pub struct Leadership {
    gateway: Gateway,
    lease: String,
    /// The time until which it is certainly held.
    until: Instant,
}

/// Returns the remaining seconds in an answer about a lease; 0 if it has ended.
pub(super) fn time_to_live(answer: &Value) -> Option<u64> {
    number_of(answer.get("result").unwrap_or(answer), "TTL")
}

/// Returns the end of a lease that has this many seconds left; `None` for a number that no lease has.
fn end_of(begun: Instant, live: u64) -> Option<Instant> {
    begun.checked_add(Duration::from_secs(live))
}

impl Election {
    /// Creates a candidate that calls itself `holder`: the URL at which it answers.
    pub fn new(settings: &EtcdSettings, holder: &str, lease_seconds: u64) -> Result<Election, StoreFailure> {
        let gateway = Gateway::new(settings).map_err(StoreFailure::Settings)?;
        let key = format!("{}/leader", settings.prefix);
        let lease_seconds = lease_seconds.max(LEASE_SECONDS_MIN);
        Ok(Election { gateway, settings: settings.clone(), key, holder: holder.to_owned(), lease_seconds })
    }

    fn call(&self, path: &str, body: &Value) -> Result<Value, StoreFailure> {
        self.gateway.call(path, body).map_err(not_answered)
    }

    /// Returns who has the leadership.
    pub fn holder(&self) -> Result<Option<String>, StoreFailure> {
        let answer = self.call("/v3/kv/range", &read(&self.key))?;
        let pairs = super::messages::pairs_of(&answer).ok_or_else(odd)?;
        Ok(pairs.first().and_then(|pair| holder_of(&pair.entry.value)).map(|(holder, _)| holder))
    }

    /// Takes the leadership if nobody has it.
    pub fn campaign(&self) -> Result<Campaign, StoreFailure> {
        if let Some(holder) = self.holder()? {
            return Ok(Campaign::Lost { holder: Some(holder) });
        }
        let begun = Instant::now();
        let granted = self.call("/v3/lease/grant", &json!({ "TTL": self.lease_seconds.to_string() }))?;
        let lease = granted.get("ID").and_then(Value::as_str).ok_or_else(odd)?.to_owned();
        let live = time_to_live(&granted).filter(|live| *live > 0).ok_or_else(odd)?;
        let name = random_name();
        let value = json!({ "holder": self.holder, "name": name }).to_string();
        let put = json!({ "request_put": { "key": bytes(&self.key), "value": bytes(value), "lease": lease } });
        let transaction = json!({ "compare": [compare(&self.key, 0)], "success": [put],
                                  "failure": [{ "request_range": read(&self.key) }] });
        let outcome = outcome_of(&self.call("/v3/kv/txn", &transaction)?).ok_or_else(odd)?;
        let found = outcome.found.first().and_then(|pairs| holder_of(&pairs.first()?.entry.value));
        // An earlier attempt, whose answer was lost, may have taken it.
        if outcome.succeeded || found.as_ref().is_some_and(|(_, found)| *found == name) {
            let gateway = Gateway::new(&self.quick()).map_err(StoreFailure::Settings)?;
            let until = end_of(begun, live).ok_or_else(odd)?;
            return Ok(Campaign::Won(Box::new(Leadership { gateway, lease, until })));
        }
        // If that fails, the lease ends by itself.
        let _ = self.call("/v3/lease/revoke", &json!({ "ID": lease }));
        Ok(Campaign::Lost { holder: found.map(|(holder, _)| holder) })
    }

    /// Bounds for renewals: each endpoint can be tried within a part of the lease's time.
    fn quick(&self) -> EtcdSettings {
        let lease = Duration::from_secs(self.lease_seconds);
        let Bounds { connect_max, answer_max, pause, .. } = self.settings.bounds;
        let attempts_max = u32::try_from(self.settings.endpoints.len()).unwrap_or(1);
        let bounds = Bounds {
            connect_max: connect_max.min(lease / 6),
            answer_max: answer_max.min(lease / 4),
            attempts_max,
            pause: pause.min(lease / 50),
        };
        EtcdSettings { bounds, ..self.settings.clone() }
    }
}

/// Returns the holder's text and the name of its campaign.
fn holder_of(value: &[u8]) -> Option<(String, String)> {
    let value: Value = serde_json::from_slice(&value[..value.len().min(HOLDER_BYTES_MAX)]).ok()?;
    let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    Some((text("holder")?, text("name")?))
}

impl Leadership {
    /// Returns the time until which the leadership is held, by this machine's clock. The lease's time counts from
    /// before it was asked for, so that etcd ends it later than this.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Prolongs the lease. `false` says that it has ended: the leadership is lost.
    pub fn renew(&mut self) -> Result<bool, StoreFailure> {
        let begun = Instant::now();
        let answer = self.gateway.call("/v3/lease/keepalive", &json!({ "ID": self.lease }));
        match time_to_live(&answer.map_err(not_answered)?).ok_or_else(odd)? {
            0 => Ok(false),
            live => {
                self.until = end_of(begun, live).ok_or_else(odd)?;
                Ok(true)
            }
        }
    }

    /// Gives the leadership up, so that the next one need not wait for the lease to end.
    pub fn resign(self) -> Result<(), StoreFailure> {
        self.gateway.call("/v3/lease/revoke", &json!({ "ID": self.lease })).map(drop).map_err(not_answered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_has_ended_has_no_time_left() {
        let of = |text: &str| time_to_live(&serde_json::from_str(text).expect("JSON"));
        assert_eq!(of(r#"{"result":{"ID":"7","TTL":"5"}}"#), Some(5));
        assert_eq!(of(r#"{"result":{"ID":"7"}}"#), Some(0));
        assert_eq!(of(r#"{"ID":"7","TTL":"9"}"#), Some(9));
        assert_eq!(of(r#"{"ID":"7","TTL":"-1"}"#), None);
    }

    #[test]
    fn an_absurd_time_to_live_is_not_etcds() {
        let now = Instant::now();
        assert_eq!((end_of(now, 5), end_of(now, u64::MAX)), (Some(now + Duration::from_secs(5)), None));
    }

    #[test]
    fn a_foreign_holder_is_nobody() {
        assert_eq!(holder_of(br#"{"holder":"http://a","name":"n"}"#), Some(("http://a".into(), "n".into())));
        for value in [&b""[..], b"{}", b"\xff", br#"{"holder":3,"name":"n"}"#] {
            assert_eq!(holder_of(value), None);
        }
    }
}
