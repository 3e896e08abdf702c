// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A blocking client of the manager's REST interface: one connection for each request, bounded waits and sizes. Nothing
//! is sent twice, because a change may have been carried out although its answer was lost.

use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use crate::address::Address;
use crate::connection::{Stream, connect, trust, trust_pin};
use crate::failure::{Failure, failed, refused, usage};
use crate::leader::Members;

/// How long an answer may take. The manager itself answers within 60 seconds.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(90);
/// Largest answer: a page of a thousand volumes is smaller.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// How long an event stream may be silent. The manager sends a sign of life every 15 seconds.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The statuses with which a standby answers: to a reader, and to a change.
const STANDBY: [u16; 2] = [307, 421];

/// A request to the manager.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    /// The method of HTTP.
    pub method: &'static str,
    /// The path at the manager.
    pub path: &'a str,
    /// The body, if the request has one.
    pub body: Option<Value>,
    /// Whether the manager only says what would be done.
    pub is_dry_run: bool,
    /// Whether a volume that is released is unbound first.
    pub unbinds: bool,
    /// The ETag that the resource must still have.
    pub if_match: Option<&'a str>,
    /// The event after which the stream begins.
    pub last_event: Option<u64>,
}

impl<'a> Request<'a> {
    /// Returns a request that reads.
    pub fn get(path: &'a str) -> Request<'a> {
        Request { method: "GET", path, ..Request::default() }
    }

    /// Returns a request with a body.
    pub fn post(path: &'a str, body: Value) -> Request<'a> {
        Request { method: "POST", path, body: Some(body), ..Request::default() }
    }
}

/// The manager's answer, which is not an error.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The body; `null` if there is none.
    pub body: Value,
    /// The header ETag.
    pub etag: Option<String>,
    /// The header Location.
    pub location: Option<String>,
    /// The token of a new session.
    pub token: Option<String>,
    /// The header Retry-After, if it has seconds.
    pub retry_after: Option<Duration>,
}

/// A client of one manager.
pub struct Client {
    runtime: Runtime,
    /// The manager that is asked first.
    pub address: Address,
    tls: Option<TlsConnector>,
    members: Members,
    /// How long an answer may take, with its connection.
    wait: Duration,
    /// The session's token.
    pub token: Option<String>,
}

impl Client {
    /// Creates a client. `members` are the other managers to which a standby may send it.
    pub fn new(url: &str, ca: Option<&Path>, members: &[String]) -> Result<Client, Failure> {
        let address = Address::parse(url).map_err(usage)?;
        let tls = trust(&address, ca)?;
        let members = Members::new(&address, members)?;
        Client::with(address, tls, members)
    }

    /// Returns a client that trusts managers by a fingerprint, at any address.
    pub fn pinned(url: &str, pin: &str) -> Result<Client, Failure> {
        let address = Address::parse(url).map_err(usage)?;
        let members = Members::any(&address);
        Client::with(address, Some(trust_pin(pin)?), members)
    }

    fn with(address: Address, tls: Option<TlsConnector>, members: Members) -> Result<Client, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| failed(format!("no requests can be made: {error}; raise the limit on open files")))?;
        Ok(Client { runtime, address, tls, members, wait: ANSWER_WAIT_MAX, token: None })
    }

    /// Changes how long an answer may take.
    pub fn with_wait(self, wait: Duration) -> Client {
        Client { wait, ..self }
    }

    /// Asks, and returns the answer. An error of the manager is a failure.
    pub fn ask(&self, request: &Request<'_>) -> Result<Answer, Failure> {
        match self.try_ask(request)? {
            (status, answer) if (200..300).contains(&status) => Ok(answer),
            (status, answer) => Err(refused(status, &answer.body)),
        }
    }

    /// Works like [`ask`](Self::ask), and returns `None` if there is nothing at the path.
    pub fn find(&self, path: &str) -> Result<Option<Answer>, Failure> {
        match self.try_ask(&Request::get(path))? {
            (404, _) => Ok(None),
            (status, answer) if (200..300).contains(&status) => Ok(Some(answer)),
            (status, answer) => Err(refused(status, &answer.body)),
        }
    }

    /// Sends a request to the leader, to which standbys redirect this client, and returns the status and the answer,
    /// which may be an error. A standby has carried out nothing.
    pub fn try_ask(&self, request: &Request<'_>) -> Result<(u16, Answer), Failure> {
        self.members.find_leader(|address| {
            let (status, answer) = self.ask_at(address, request)?;
            let elsewhere = answer.location.clone().filter(|_| STANDBY.contains(&status));
            Ok((elsewhere, (status, answer)))
        })
    }

    fn ask_at(&self, address: &Address, request: &Request<'_>) -> Result<(u16, Answer), Failure> {
        self.runtime.block_on(async {
            let until = Instant::now() + self.wait;
            let stream = connect(address, self.tls.as_ref(), self.wait).await?;
            let answered = async {
                let response = self.send(address, stream, request).await?;
                let status = response.status().as_u16();
                let header =
                    |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
                let (etag, location, token) = (header("etag"), header("location"), header("x-auth-token"));
                let seconds = header("retry-after").and_then(|value| value.parse().ok());
                let retry_after = seconds.map(Duration::from_secs);
                let body = self.body(status, response.into_body()).await?;
                Ok((status, Answer { body, etag, location, token, retry_after }))
            };
            let late = failed(format!(
                "the manager at {address} does not answer in time; look at its log, and at the state before you try again"
            ));
            tokio::time::timeout_at(until, answered).await.unwrap_or(Err(late))
        })
    }

    async fn send(
        &self,
        address: &Address,
        stream: Box<dyn Stream>,
        request: &Request<'_>,
    ) -> Result<hyper::Response<Incoming>, Failure> {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| unanswered(address, &error))?;
        // It ends with the request, or with the runtime.
        tokio::spawn(connection);
        let mut built = hyper::Request::builder()
            .method(request.method)
            .uri(request.path)
            .header("host", address.authority())
            .header("connection", "close");
        let number = request.last_event.map(|number| number.to_string());
        let headers = [
            ("x-auth-token", self.token.as_deref()),
            ("aquifer-dry-run", request.is_dry_run.then_some("true")),
            ("aquifer-unbind", request.unbinds.then_some("true")),
            ("if-match", request.if_match),
            ("last-event-id", number.as_deref()),
            ("content-type", request.body.as_ref().map(|_| "application/json")),
        ];
        for (name, value) in headers {
            built = value.into_iter().fold(built, |built, value| built.header(name, value));
        }
        let body = request.body.as_ref().map(Value::to_string).unwrap_or_default();
        let built = built.body(Full::new(Bytes::from(body))).map_err(|error| {
            failed(format!("the request cannot be sent: {error}; log in again, or report this bug"))
        })?;
        sender.send_request(built).await.map_err(|error| unanswered(address, &error))
    }

    async fn body(&self, status: u16, body: Incoming) -> Result<Value, Failure> {
        let bytes = match Limited::new(body, ANSWER_BYTES_MAX).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                let line = format!("the answer is larger than {ANSWER_BYTES_MAX} bytes; check the manager's address");
                return Err(failed(line));
            }
            Err(error) => {
                let line = format!("the answer of {} broke off: {error}; look at the state", self.address);
                return Err(failed(line));
            }
        };
        match serde_json::from_slice(&bytes) {
            Ok(value) => Ok(value),
            Err(_) if bytes.is_empty() || status >= 400 => Ok(Value::Null),
            Err(error) => {
                let line = format!("the answer of {} is not JSON: {error}; is it a fabric manager?", self.address);
                Err(failed(line))
            }
        }
    }

    /// Follows a stream: calls `take` with bytes as they come, until it answers `false` or the stream ends.
    pub fn follow(
        &self,
        request: &Request<'_>,
        mut take: impl FnMut(&[u8]) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let response = self.members.find_leader(|address| {
            let response = self.runtime.block_on(async {
                let stream = connect(address, self.tls.as_ref(), self.wait).await?;
                self.send(address, stream, request).await
            })?;
            let location = response.headers().get("location").and_then(|value| value.to_str().ok()).map(str::to_owned);
            let elsewhere = location.filter(|_| STANDBY.contains(&response.status().as_u16()));
            Ok((elsewhere, response))
        })?;
        self.runtime.block_on(async {
            let status = response.status().as_u16();
            let mut body = response.into_body();
            if status != 200 {
                return Err(refused(status, &self.body(status, body).await?));
            }
            loop {
                let frame = tokio::time::timeout(SILENCE_MAX, body.frame()).await;
                let frame = frame.map_err(|_| failed("the event stream is silent; look at the manager's log"))?;
                match frame {
                    None => return Ok(()),
                    Some(Err(error)) => return Err(lost(&self.address, &error, "")),
                    Some(Ok(frame)) => {
                        if let Some(bytes) = frame.data_ref()
                            && !take(bytes)?
                        {
                            return Ok(());
                        }
                    }
                }
            }
        })
    }
}

/// Returns the failure of a request to which no answer in HTTP began.
///
/// A server of TLS that gets plain text sends a TLS alert, which is no HTTP, or only closes the connection.
fn unanswered(address: &Address, error: &hyper::Error) -> Failure {
    let hint = match address.is_https {
        true => String::new(),
        false => format!("if it uses TLS, its address is https://{}; otherwise ", address.authority()),
    };
    lost(address, error, &hint)
}

fn lost(address: &Address, error: &hyper::Error, hint: &str) -> Failure {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    failed(format!(
        "the connection to {address} was lost: {error}{cause}; {hint}check that this is a manager, and look at the \
         state before you try again"
    ))
}
