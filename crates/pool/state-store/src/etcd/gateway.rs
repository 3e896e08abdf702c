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
use super::settings::{Bounds, Endpoint, EtcdSettings, EtcdTls, NotSettings};
use crate::failure::Refusal;

/// Longest text of an error that is passed on.
const REASON_BYTES_MAX: usize = 300;
/// gRPC's codes of answers after which the request may have been carried out, or may be carried out later: CANCELLED,
/// UNKNOWN, DEADLINE_EXCEEDED, ABORTED, INTERNAL, UNAVAILABLE. They are transient.
const PASSING_CODES: [u64; 6] = [1, 2, 4, 10, 13, 14];
/// gRPC's codes for clients without rights: PERMISSION_DENIED, UNAUTHENTICATED.
const NOT_ALLOWED_CODES: [u64; 2] = [7, 16];
/// gRPC's code for damaged data: DATA_LOSS.
const DAMAGED_CODE: u64 = 15;
/// What the messages about a request's size contain. The first two are etcd's (`api/v3rpc/rpctypes/error.go`); the
/// others are those of its gRPC library, which refuses a request that is larger still before etcd sees it.
const SIZE_MESSAGES: [&str; 4] = [
    "request is too large",
    "too many operations in txn request",
    "received message larger than max",
    "trying to send message larger than max",
];
/// What the messages about authentication contain that have a code for all sorts of invalid requests (`error.go`).
const NOT_ALLOWED_MESSAGES: [&str; 3] = ["user name is empty", "auth token", "authentication"];

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// No endpoint has answered. The request may have been carried out.
    Lost(String),
    /// etcd refuses the request.
    Refused {
        refusal: Refusal,
        /// etcd's message about it.
        message: String,
        /// Whether it is certain that nothing was carried out. It is not if an earlier attempt was lost.
        is_certain: bool,
    },
}

/// A client of one cluster. One thread at a time uses it.
pub(super) struct Gateway {
    runtime: Runtime,
    endpoints: Vec<Endpoint>,
    tls: Option<EtcdTls>,
    bounds: Bounds,
    state: RefCell<State>,
}

struct State {
    /// The endpoint that answered last.
    current: usize,
    connection: Option<Connection>,
    /// The certificates, as they were when all of them could be used.
    connector: Option<TlsConnector>,
    /// Why those that are in the files now cannot be used, if they cannot.
    not_read: Option<NotSettings>,
}

impl State {
    /// Reads the certificates again, since they may have been replaced. What cannot be used, such as a certificate
    /// whose key is still to be written, changes nothing: etcd may take the last ones.
    fn read_again(&mut self, tls: &EtcdTls) {
        match connector(tls) {
            Ok(connector) => (self.connector, self.not_read) = (Some(connector), None),
            Err(not) => self.not_read = Some(not),
        }
    }

    /// Returns what an attempt without an answer means.
    fn lost(&self, endpoint: &Endpoint, why: &str) -> NoAnswer {
        let old = |not: &NotSettings| format!("; the last certificates are used, since {not}");
        NoAnswer::Lost(format!("{endpoint}: {why}{}", self.not_read.as_ref().map(old).unwrap_or_default()))
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

impl Gateway {
    /// Reads the certificates, and reads them again for each connection. Connections are made when they are needed.
    pub(super) fn new(settings: &EtcdSettings) -> Result<Gateway, NotSettings> {
        let endpoints = settings.parsed_endpoints()?;
        let connector = settings.tls.as_ref().map(connector).transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| NotSettings(format!("etcd cannot be asked: {error}; raise the limit on open files")))?;
        let state = State { current: 0, connection: None, connector, not_read: None };
        Ok(Gateway { runtime, endpoints, tls: settings.tls.clone(), bounds: settings.bounds, state: state.into() })
    }

    /// Sends a request until it is answered, or refused for a lasting reason, within the bounds.
    pub(super) fn call(&self, path: &str, body: &Value) -> Result<Value, NoAnswer> {
        let body = Bytes::from(body.to_string());
        let mut last = NoAnswer::Lost("it was not asked".into());
        let mut is_any_lost = false;
        for attempt in 0..self.bounds.attempts_max {
            let outcome = match self.attempt(path, &body) {
                Ok((status, bytes)) => answer(status, &bytes).inspect_err(|no| {
                    is_any_lost |= matches!(no, NoAnswer::Lost(_));
                }),
                Err(Unanswered { why, is_sent }) => {
                    is_any_lost |= is_sent;
                    Err(NoAnswer::Lost(why))
                }
            };
            let mut state = self.state.borrow_mut();
            last = match outcome {
                Ok(answer) => return Ok(answer),
                Err(NoAnswer::Lost(why)) => state.lost(&self.endpoints[state.current], &why),
                Err(NoAnswer::Refused { refusal, message, .. }) => {
                    let refused = NoAnswer::Refused { refusal, message, is_certain: !is_any_lost };
                    if refusal != Refusal::Busy {
                        return Err(refused);
                    }
                    refused
                }
            };
            state.connection = None;
            state.current = (state.current + 1) % self.endpoints.len();
            if attempt + 1 < self.bounds.attempts_max {
                std::thread::sleep(self.pause(attempt));
            }
        }
        Err(last)
    }

    /// Returns the pause after an attempt: zero while there is another endpoint to try; then it doubles with each
    /// round.
    fn pause(&self, attempt: u32) -> Duration {
        let rounds = (attempt + 1) / u32::try_from(self.endpoints.len()).unwrap_or(u32::MAX);
        if rounds == 0 { Duration::ZERO } else { self.bounds.pause * (1 << (rounds - 1).min(3)) }
    }

    fn attempt(&self, path: &str, body: &Bytes) -> Result<(u16, Bytes), Unanswered> {
        let mut state = self.state.borrow_mut();
        if let (None, Some(tls)) = (&state.connection, &self.tls) {
            state.read_again(tls);
        }
        let State { current, connection, connector, .. } = &mut *state;
        let unsent = |why: String| Unanswered { why, is_sent: false };
        self.runtime.block_on(async {
            if connection.is_none() {
                let opened = Connection::open(&self.endpoints[*current], connector.as_ref());
                let opened = timeout(self.bounds.connect_max, opened).await;
                *connection = Some(opened.unwrap_or_else(|_| Err("no connection in time".into())).map_err(unsent)?);
            }
            let connection = connection.as_mut().expect("it was just made");
            connection.ready().await.map_err(unsent)?;
            let answered = timeout(self.bounds.answer_max, connection.post(path, body.clone())).await;
            answered
                .unwrap_or_else(|_| Err("no answer in time".into()))
                .map_err(|why| Unanswered { why, is_sent: true })
        })
    }
}

/// An attempt without an answer.
struct Unanswered {
    why: String,
    /// Whether the request may have reached the endpoint.
    is_sent: bool,
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
    match code.and_then(|code| refusal(code, &message)) {
        Some(refusal) => Err(NoAnswer::Refused { refusal, message, is_certain: true }),
        None => Err(NoAnswer::Lost(message)),
    }
}

/// Returns the meaning of an error of etcd's; `None` if the request may have been carried out all the same.
fn refusal(code: u64, message: &str) -> Option<Refusal> {
    let has_any = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
    Some(match code {
        _ if has_any(&SIZE_MESSAGES) => Refusal::TooLarge,
        code if PASSING_CODES.contains(&code) => return None,
        _ if message.contains("database space exceeded") => Refusal::NoSpace,
        _ if message.contains("too many requests") => Refusal::Busy,
        code if NOT_ALLOWED_CODES.contains(&code) || has_any(&NOT_ALLOWED_MESSAGES) => Refusal::NotAllowed,
        DAMAGED_CODE => Refusal::Damaged,
        _ => Refusal::Other,
    })
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
        // Whether one of these was carried out before the error is not known.
        assert!(lost(408, r#"{"message":"context canceled","code":1}"#) && lost(500, r#"{"message":"?","code":2}"#));
    }

    /// Each refusal counted as one for the size, so that the manager asked every client for smaller changes.
    #[test]
    fn a_refusal_has_its_own_reason() {
        for (code, message, expected) in [
            (3, "etcdserver: request is too large", Refusal::TooLarge),
            (3, "etcdserver: too many operations in txn request", Refusal::TooLarge),
            (8, "grpc: received message larger than max (4194364 vs. 2097152)", Refusal::TooLarge),
            (8, "etcdserver: mvcc: database space exceeded", Refusal::NoSpace),
            (8, "etcdserver: too many requests", Refusal::Busy),
            (7, "etcdserver: permission denied", Refusal::NotAllowed),
            (16, "etcdserver: invalid auth token", Refusal::NotAllowed),
            (3, "etcdserver: user name is empty", Refusal::NotAllowed),
            (15, "etcdserver: corrupt cluster", Refusal::Damaged),
            (3, "etcdserver: duplicate key given in txn request", Refusal::Other),
        ] {
            let body = format!(r#"{{"error":"e","message":"{message}","code":{code}}}"#);
            let refused = NoAnswer::Refused { refusal: expected, message: message.into(), is_certain: true };
            assert_eq!(answer(400, body.as_bytes()), Err(refused));
        }
    }

    #[test]
    fn a_reason_is_one_bounded_line() {
        let text = format!("{{\"message\":\"{}\\n\",\"code\":3}}", "x".repeat(9000));
        let Err(NoAnswer::Refused { message, .. }) = answer(400, text.as_bytes()) else { panic!("it is refused") };
        assert!(message.len() <= REASON_BYTES_MAX && !message.contains('\n'), "{message}");
    }
}
