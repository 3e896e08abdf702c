// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Sends requests to etcd's JSON gateway, and retries transient failures at the next endpoint.
//!
//! Every request that is sent here may arrive twice, because a request whose answer was lost must be sent again.
//! Repeated reads are harmless, and the transactions of `etcd.rs` and `leadership.rs` recognise their own earlier
//! attempt.

use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

use hyper::body::Bytes;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::connection::{Connection, connector};
use super::settings::{Bounds, Endpoint, EtcdSettings, NotSettings};

/// Longest text of an error that is passed on.
const REASON_BYTES_MAX: usize = 300;
/// gRPC's codes for transient errors: DEADLINE_EXCEEDED, ABORTED, INTERNAL, UNAVAILABLE.
const PASSING_CODES: [u64; 4] = [4, 10, 13, 14];

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// No endpoint has answered. The request may have been carried out.
    Lost(String),
    /// etcd refuses the request. Nothing was carried out.
    Refused {
        /// gRPC's code for the refusal.
        code: u64,
        /// etcd's message about it.
        message: String,
    },
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(why) => f.write_str(why),
            Self::Refused { message, .. } => f.write_str(message),
        }
    }
}

impl std::error::Error for NoAnswer {}

/// A client of one cluster. One thread at a time uses it.
pub(super) struct Gateway {
    runtime: Runtime,
    endpoints: Vec<Endpoint>,
    tls: Option<TlsConnector>,
    bounds: Bounds,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// The endpoint that answered last.
    current: usize,
    connection: Option<Connection>,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

impl Gateway {
    /// Reads the certificates. Connections are made when they are needed.
    pub(super) fn new(settings: &EtcdSettings) -> Result<Gateway, NotSettings> {
        let endpoints = settings.parsed_endpoints()?;
        let tls = settings.tls.as_ref().map(connector).transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| NotSettings(format!("etcd cannot be asked: {error}; raise the limit on open files")))?;
        Ok(Gateway { runtime, endpoints, tls, bounds: settings.bounds, state: RefCell::default() })
    }

    /// Sends a request until it is answered or refused, within the bounds.
    pub(super) fn call(&self, path: &str, body: &Value) -> Result<Value, NoAnswer> {
        let body = Bytes::from(body.to_string());
        let mut why = String::new();
        for attempt in 0..self.bounds.attempts_max {
            let lost = match self.attempt(path, &body) {
                Ok((status, bytes)) => match answer(status, &bytes) {
                    Err(NoAnswer::Lost(why)) => why,
                    decided => return decided,
                },
                Err(why) => why,
            };
            let mut state = self.state.borrow_mut();
            why = format!("{}: {lost}", self.endpoints[state.current]);
            state.connection = None;
            state.current = (state.current + 1) % self.endpoints.len();
            if attempt + 1 < self.bounds.attempts_max {
                std::thread::sleep(self.pause(attempt));
            }
        }
        Err(NoAnswer::Lost(why))
    }

    /// Returns the pause after an attempt: zero while there is another endpoint to try; then it doubles with each
    /// round.
    fn pause(&self, attempt: u32) -> Duration {
        let rounds = (attempt + 1) / u32::try_from(self.endpoints.len()).unwrap_or(u32::MAX);
        if rounds == 0 { Duration::ZERO } else { self.bounds.pause * (1 << (rounds - 1).min(3)) }
    }

    fn attempt(&self, path: &str, body: &Bytes) -> Result<(u16, Bytes), String> {
        let mut state = self.state.borrow_mut();
        let State { current, connection } = &mut *state;
        self.runtime.block_on(async {
            if connection.is_none() {
                let opened = Connection::open(&self.endpoints[*current], self.tls.as_ref());
                let opened = timeout(self.bounds.connect_max, opened).await;
                *connection = Some(opened.map_err(|_| "no connection in time".to_owned())??);
            }
            let connection = connection.as_mut().expect("it was just made");
            let answered = timeout(self.bounds.answer_max, connection.post(path, body.clone())).await;
            answered.map_err(|_| "no answer in time".to_owned())?
        })
    }
}

/// Decodes an answer, or says why it is none. Pure.
pub(super) fn answer(status: u16, bytes: &[u8]) -> Result<Value, NoAnswer> {
    let cut = |text: &str| text.chars().filter(|one| !one.is_control()).take(REASON_BYTES_MAX).collect::<String>();
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else {
        let begin = cut(&String::from_utf8_lossy(&bytes[..bytes.len().min(REASON_BYTES_MAX)]));
        return Err(NoAnswer::Lost(format!("status {status} with a body that is not JSON ({begin})")));
    };
    // A stream puts an error into the body of an answer with status 200.
    let error = value.get("error").filter(|error| !error.is_null());
    if status == 200 && error.is_none() {
        return Ok(value);
    }
    let of = |name: &str| value.get(name).or_else(|| error.and_then(|error| error.get(name)));
    let message =
        of("message").and_then(Value::as_str).or(error.and_then(Value::as_str)).unwrap_or("no reason is given");
    let message = cut(message);
    let code = of("code").or_else(|| of("grpc_code")).and_then(Value::as_u64);
    match code {
        Some(code) if !PASSING_CODES.contains(&code) => Err(NoAnswer::Refused { code, message }),
        _ => Err(NoAnswer::Lost(message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_sorted_by_whether_they_may_pass() {
        let lost = |status, text: &str| matches!(answer(status, text.as_bytes()), Err(NoAnswer::Lost(_)));
        assert!(answer(200, b"{}").is_ok());
        assert!(lost(200, "") && lost(502, "<html>") && lost(500, "{}"), "no answer of etcd's");
        assert!(lost(
            503,
            r#"{"error":"etcdserver: leader changed","message":"etcdserver: leader changed","code":14}"#
        ));
        assert!(lost(200, r#"{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}"#));
        let refused = answer(400, br#"{"error":"e","message":"etcdserver: duplicate key","code":3}"#);
        assert_eq!(refused, Err(NoAnswer::Refused { code: 3, message: "etcdserver: duplicate key".into() }));
    }

    #[test]
    fn a_reason_is_one_bounded_line() {
        let text = format!("{{\"message\":\"{}\\n\",\"code\":3}}", "x".repeat(9000));
        let refused = answer(400, text.as_bytes()).expect_err("an error").to_string();
        assert!(refused.len() <= REASON_BYTES_MAX && !refused.contains('\n'), "{refused}");
    }
}
