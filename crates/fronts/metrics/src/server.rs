// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Serves the command's texts over HTTP, to scrapers.
//!
//! hyper parses the requests of untrusted clients. Connections are bounded in number and in time: a client that sends
//! nothing, sends a byte now and then, or does not read the answer is dropped. At the limit, a new connection replaces
//! the oldest one: a scrape takes some milliseconds, so the oldest connection belongs to a slow client.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::parent::Texts;

/// Maximum number of simultaneous connections. An arbitrary choice: scrapers are few.
const CONNECTIONS_MAX: usize = 64;
/// Timeout for reading a request header, and for a whole connection.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes read of a request.
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// Pause after a failed accept, for example when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections for as long as the program runs.
pub async fn accept(listener: TcpListener, texts: Texts) {
    // Ordered by age, oldest first.
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.retain(|connection| !connection.is_finished());
                if connections.len() >= CONNECTIONS_MAX
                    && let Some(oldest) = connections.pop_front()
                {
                    oldest.abort();
                }
                let texts = texts.clone();
                let connection = tokio::spawn(async move {
                    // A client that is too slow, or whose request is invalid, sees its connection closed.
                    let _ = timeout(TIMEOUT, converse(stream, texts)).await;
                });
                connections.push_back(connection.abort_handle());
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn converse(stream: TcpStream, texts: Texts) -> hyper::Result<()> {
    let service = service_fn(move |request| {
        let texts = texts.clone();
        async move { Ok::<_, Infallible>(answer(&request, &texts).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(TIMEOUT).keep_alive(false).max_buf_size(REQUEST_BYTES_MAX);
    builder.serve_connection(TokioIo::new(stream), service).await
}

async fn answer(request: &Request<Incoming>, texts: &Texts) -> Response<Full<Bytes>> {
    let plain = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => match texts.next().await {
            Some(text) => (StatusCode::OK, text),
            None => (StatusCode::SERVICE_UNAVAILABLE, Bytes::new()),
        },
        (_, "/metrics") => (StatusCode::METHOD_NOT_ALLOWED, Bytes::new()),
        _ => (StatusCode::NOT_FOUND, Bytes::from_static(b"the metrics are at /metrics\n")),
    };
    let mut response = Response::new(Full::new(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, plain);
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
