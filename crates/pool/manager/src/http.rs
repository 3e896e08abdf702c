// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! HTTP/1.1: connections, limits, and the event stream. `rest.rs` answers requests on threads for blocking work.
//! `http/crowd.rs` decides who ends when there are too many connections, `http/taken_in_time.rs` ends those whose
//! clients do not read.
//!
//! A request with Transfer-Encoding is refused and its connection ended: bodies have a length, so that no proxy and
//! this server can disagree on where a request ends.

mod crowd;
mod taken_in_time;

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Full, channel::Channel, combinators::UnsyncBoxBody};
use hyper::body::{Body as _, Bytes, Frame, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use self::crowd::{CONNECTIONS_MAX, Crowd, Doing, Place};
use self::taken_in_time::TakenInTime;
use crate::console::Page;
use crate::events::{self, Event};
use crate::rest::{Answer, BODY_BYTES_MAX, DECLARATION_BYTES_MAX, Problem, Request, Service, now};
use crate::sessions::Who;
use crate::tls::Served;

/// Maximum number of requests that are answered at a time. Further ones wait, with their connections.
const REQUESTS_MAX: usize = CONNECTIONS_MAX;
/// Maximum number of requests with long bodies that are answered at a time: each takes up to 200 MB. Further ones wait.
const LONG_MAX: usize = 4;
/// How long a client may take to send the head of a request, and to shake hands.
const HEAD_WAIT_MAX: Duration = Duration::from_secs(30);
/// How long a client may take to send a body.
const BODY_WAIT_MAX: Duration = Duration::from_secs(60);
/// How long a client may take to read an answer, or an event.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(60);
/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// How often an idle event stream sends a heartbeat, which also detects clients that are gone.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// How often an event stream checks whether its client's session has ended.
const SESSION_LOOK: Duration = Duration::from_secs(1);

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Accepts connections until the process ends.
pub(crate) async fn serve(listener: TcpListener, tls: Option<Arc<Served>>, service: Arc<Service>) {
    let (crowd, requests) = (Arc::new(Crowd::default()), Arc::new(Semaphore::new(REQUESTS_MAX)));
    let long = Arc::new(Semaphore::new(LONG_MAX));
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                eprintln!("aquifer-fabricd: a connection cannot be accepted: {error}; raise the limit on open files");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let acceptor = tls.as_ref().map(|served| served.acceptor());
        let client = Arc::new(Client {
            from,
            place: crowd.enter(from.ip()),
            requests: Arc::clone(&requests),
            long: Arc::clone(&long),
            service: Arc::clone(&service),
        });
        tokio::spawn(async move {
            let served = async {
                match acceptor {
                    None => connection(stream, &client).await,
                    Some(tls) => {
                        if let Ok(Ok(stream)) = tokio::time::timeout(HEAD_WAIT_MAX, tls.accept(stream)).await {
                            connection(stream, &client).await;
                        }
                    }
                }
            };
            let (mut served, mut taken) = (pin!(served), pin!(client.place.taken()));
            let is_over = |context: &mut Context<'_>| match taken.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => served.as_mut().poll(context),
            };
            poll_fn(is_over).await;
        });
    }
}

/// What the requests of one connection need.
struct Client {
    from: SocketAddr,
    place: Place,
    requests: Arc<Semaphore>,
    long: Arc<Semaphore>,
    service: Arc<Service>,
}

async fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, client: &Arc<Client>) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_WAIT_MAX).max_buf_size(HEAD_BYTES_MAX);
    let answer = service_fn(|request| {
        let client = Arc::clone(client);
        async move { Ok::<_, Infallible>(one(request, &client).await) }
    });
    let stream = TakenInTime::new(stream, ANSWER_WAIT_MAX);
    // An error of one connection affects no other.
    let _ = builder.serve_connection(TokioIo::new(stream), answer).await;
}

async fn one(request: hyper::Request<Incoming>, client: &Client) -> Response<Body> {
    let service = &client.service;
    let is_head = request.method() == hyper::Method::HEAD;
    let answer = match arrived(request, client).await {
        Ok(request) => {
            client.place.note(Doing::Answering);
            let known = request.header("if-none-match");
            let page = service.console.page(&request.method, &request.path, known);
            if let Some(page) = page {
                client.place.note(Doing::Waiting);
                return console(page, is_head);
            }
            let asked = Arc::clone(service);
            // Held until the request is answered, even if its connection ends before.
            let permit = Arc::clone(&client.requests).acquire_owned().await;
            let long = match request.body.len() > BODY_BYTES_MAX {
                true => Some(Arc::clone(&client.long).acquire_owned().await),
                false => None,
            };
            let answered = tokio::task::spawn_blocking(move || {
                let _permits = (permit, long);
                asked.answer(&request)
            });
            answered.await.unwrap_or_else(|_| {
                Problem::new(500, "Base.1.18.InternalError", "the request ended in a bug", "report it").answer()
            })
        }
        Err(problem) => problem.answer(),
    };
    match answer.follows {
        Some((after, who)) if !is_head => {
            client.place.note(Doing::Streaming);
            stream(after, who, service)
        }
        _ => {
            client.place.note(Doing::Waiting);
            response(answer, is_head)
        }
    }
}

/// Waits until a request has arrived as a whole.
async fn arrived(request: hyper::Request<Incoming>, client: &Client) -> Result<Request, Problem> {
    let ends = |mut problem: Problem| {
        problem.headers.push(("connection", "close".to_owned()));
        problem
    };
    if request.headers().contains_key(TRANSFER_ENCODING) {
        let what = "bodies with Transfer-Encoding are not accepted";
        return Err(ends(Problem::new(411, "Base.1.18.GeneralError", what, "send Content-Length")));
    }
    let (parts, mut body) = request.into_parts();
    let mut request = Request {
        method: parts.method.as_str().to_owned(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        headers: headers(&parts.headers),
        body: Vec::new(),
        from: client.from.ip(),
    };
    // A body without Transfer-Encoding has the length that its head declares.
    let length = body.size_hint().lower();
    let admitted = client.service.admit_body(&request, length);
    if length > DECLARATION_BYTES_MAX as u64 {
        return admitted.map(|()| request);
    }
    // What is refused is received all the same, and dropped: many clients read no answer before they have sent all.
    let kept = admitted.is_ok().then_some(&mut request.body);
    match tokio::time::timeout(BODY_WAIT_MAX, receive(&mut body, kept)).await {
        Ok(Ok(())) => admitted.map(|()| request),
        _ => Err(ends(Problem::new(400, "Base.1.18.GeneralError", "the body did not arrive", "send it again"))),
    }
}

/// Receives a body, and appends it to `kept`.
async fn receive(body: &mut Incoming, mut kept: Option<&mut Vec<u8>>) -> Result<(), hyper::Error> {
    while let Some(frame) = body.frame().await {
        if let (Some(kept), Ok(data)) = (&mut kept, frame?.into_data()) {
            kept.extend_from_slice(&data);
        }
    }
    Ok(())
}

/// Returns the headers as text. One that is sent several times is a list (RFC 9110, 5.3). Bytes that are not UTF-8 stay
/// as replacement characters: if a condition in such a header were left out, the request would be carried out without
/// it.
fn headers(map: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let all = |name| map.get_all(name).iter().map(text).collect::<Vec<_>>().join(", ");
    map.keys().map(|name| (name.as_str().to_owned(), all(name))).collect()
}

fn response(answer: Answer, is_head: bool) -> Response<Body> {
    let (media, bytes) = match (answer.text, answer.body) {
        (Some((media, text)), _) => (media, text),
        (None, body) => ("application/json", body.map(|body| format!("{body}\n")).unwrap_or_default()),
    };
    let is_empty = bytes.is_empty();
    let mut response =
        Response::new(Full::new(Bytes::from(if is_head { String::new() } else { bytes })).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    if !is_empty {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
    }
    for (name, value) in [
        ("odata-version", "4.0"),
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    for (name, value) in answer.headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    if answer.status == 411 || answer.status == 413 {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn console(page: Page, is_head: bool) -> Response<Body> {
    let bytes = if is_head { Bytes::new() } else { page.bytes };
    let mut response = Response::new(Full::new(bytes).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(page.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in page.headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
}

/// Returns the stream of events: those that are kept, then those that happen. It ends with the session of its client,
/// and when this manager stops leading.
fn stream(after: u64, who: Who, service: &Arc<Service>) -> Response<Body> {
    let (mut sender, body) = Channel::<Bytes, Infallible>::new(16);
    let (kept, mut following) = service.shared.events.follow(after);
    let service = Arc::clone(service);
    tokio::spawn(async move {
        for event in kept {
            if sender.send(Frame::data(text(&event))).await.is_err() {
                return;
            }
        }
        let mut idle = Duration::ZERO;
        loop {
            let next = tokio::time::timeout(SESSION_LOOK, following.recv()).await;
            if !service.is_leader() || !service.sessions().is_still(&who, now()) {
                return;
            }
            let next = match next {
                Ok(Ok(event)) => text(&event),
                // Too far behind, or the daemon ends: the client reconnects with the last id that it has.
                Ok(Err(_)) => return,
                Err(_) if idle + SESSION_LOOK < HEARTBEAT => {
                    idle += SESSION_LOOK;
                    continue;
                }
                Err(_) => Bytes::from_static(b": alive\n\n"),
            };
            idle = Duration::ZERO;
            if sender.send(Frame::data(next)).await.is_err() {
                return;
            }
        }
    });
    let mut response = Response::new(body.boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert("cache-control", HeaderValue::from_static("no-store"));
    response
}

fn text(event: &Event) -> Bytes {
    let body = events::body(std::slice::from_ref(event), None);
    Bytes::from(format!("id: {}\ndata: {body}\n\n", event.id))
}
