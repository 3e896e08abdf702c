// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Serves figures as Prometheus text over HTTP, for a scraper.
//!
//! hyper parses the requests of untrusted clients. Connections are bounded in number and in time: a client that sends
//! nothing, sends a byte now and then, or does not read the answer is dropped. At the limit, a new connection replaces
//! the oldest one: a scrape takes some milliseconds, so the oldest connection belongs to a slow client.
//!
//! Threads: one, which does nothing else.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
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

use crate::exit::{ExitCode, Failure};

/// Maximum number of simultaneous connections. An arbitrary choice: scrapers are few.
pub const CONNECTIONS_MAX: usize = 64;
/// Timeout for reading a request header, and for a whole connection.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes read of a request.
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// Pause after a failed accept, for example when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// Produces the text for one scrape.
pub type Text = Arc<dyn Fn() -> String + Send + Sync>;

/// Listens, and serves the output of `text` from a separate thread until the process ends. Returns the bound address.
pub fn serve(address: SocketAddr, text: Text) -> Result<SocketAddr, Failure> {
    let failure = |error: std::io::Error| {
        let cause = format!("metrics cannot be served at {address}: {error}");
        Failure::new(ExitCode::Failure, cause, "give an address of this machine and a free port")
    };
    let listener = std::net::TcpListener::bind(address).map_err(failure)?;
    listener.set_nonblocking(true).map_err(failure)?;
    let address = listener.local_addr().map_err(failure)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().map_err(failure)?;
    let run = move || {
        runtime.block_on(async {
            match TcpListener::from_std(listener) {
                Ok(listener) => accept(listener, text).await,
                Err(error) => crate::exit::say(&format!("no metrics are served: {error}")),
            }
        });
    };
    thread::Builder::new().name("metrics".into()).spawn(run).map_err(failure)?;
    Ok(address)
}

async fn accept(listener: TcpListener, text: Text) {
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
                let text = text.clone();
                let connection = tokio::spawn(async move {
                    // A client that is too slow, or whose request is invalid, sees its connection closed.
                    let _ = timeout(TIMEOUT, converse(stream, text)).await;
                });
                connections.push_back(connection.abort_handle());
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn converse(stream: TcpStream, text: Text) -> hyper::Result<()> {
    let service = service_fn(move |request| {
        let answer = answer(&request, &text);
        async { Ok::<_, Infallible>(answer) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(TIMEOUT).keep_alive(false).max_buf_size(REQUEST_BYTES_MAX);
    builder.serve_connection(TokioIo::new(stream), service).await
}

fn answer(request: &Request<Incoming>, text: &Text) -> Response<Full<Bytes>> {
    let plain = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => (StatusCode::OK, text()),
        (_, "/metrics") => (StatusCode::METHOD_NOT_ALLOWED, String::new()),
        _ => (StatusCode::NOT_FOUND, "the metrics are at /metrics\n".into()),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, plain);
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
