// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `--metrics`: a donor's figures as Prometheus text over HTTP, for a scraper.
//!
//! hyper parses what strangers send. Connections have bounds, in number and in time: a client that sends nothing, or a
//! byte now and then, is dropped, and so is one that does not take the answer. When there are as many as there may be,
//! a newcomer takes the place of the oldest: a scrape takes some milliseconds, so the oldest is a slow client.
//!
//! Threads: one of its own, which serves nothing else, so that no scrape takes anything from a borrower.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use aquifer_donor::{Observer, to_prometheus};
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

use super::cannot;
use crate::exit::Failure;

/// Connections at the same time. A choice: scrapers are few.
const CONNECTIONS_MOST: usize = 64;
/// For a request, and for a connection from its beginning to its end.
const PATIENCE: Duration = Duration::from_secs(5);
/// What is read of a request at most.
const REQUEST_BYTES_MOST: usize = 16 << 10;
/// After a connection could not be taken in, for want of descriptors say.
const PAUSE: Duration = Duration::from_millis(100);

/// Listens, and serves from a thread of its own until the process ends. Returns where.
pub fn serve(address: SocketAddr, observer: Observer) -> Result<SocketAddr, Failure> {
    let failure = |error: std::io::Error| {
        cannot(format!(
            "metrics cannot be served at {address}: {error}; give an address of this machine and a free port"
        ))
    };
    let listener = std::net::TcpListener::bind(address).map_err(failure)?;
    listener.set_nonblocking(true).map_err(failure)?;
    let address = listener.local_addr().map_err(failure)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().map_err(failure)?;
    let run = move || {
        runtime.block_on(async {
            match TcpListener::from_std(listener) {
                Ok(listener) => accept(listener, observer).await,
                Err(error) => crate::exit::say(&format!("no metrics are served: {error}")),
            }
        });
    };
    thread::Builder::new().name("donor-metrics".into()).spawn(run).map_err(failure)?;
    Ok(address)
}

async fn accept(listener: TcpListener, observer: Observer) {
    // The oldest first.
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.retain(|connection| !connection.is_finished());
                if connections.len() >= CONNECTIONS_MOST
                    && let Some(oldest) = connections.pop_front()
                {
                    oldest.abort();
                }
                let observer = observer.clone();
                let connection = tokio::spawn(async move {
                    // A client that is too slow, or sends what is no request, sees the connection end.
                    let _ = timeout(PATIENCE, converse(stream, observer)).await;
                });
                connections.push_back(connection.abort_handle());
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn converse(stream: TcpStream, observer: Observer) -> hyper::Result<()> {
    let service = service_fn(move |request| {
        let answer = answer(&request, &observer);
        async { Ok::<_, Infallible>(answer) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(PATIENCE).keep_alive(false).max_buf_size(REQUEST_BYTES_MOST);
    builder.serve_connection(TokioIo::new(stream), service).await
}

fn answer(request: &Request<Incoming>, observer: &Observer) -> Response<Full<Bytes>> {
    let plain = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => (StatusCode::OK, to_prometheus(&observer.standing())),
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use aquifer_donor::{Donor, Security, Settings, Source};

    use super::*;

    /// Forty clients that send nothing kept everybody else waiting for ten seconds.
    #[test]
    fn slow_clients_keep_nobody_from_the_metrics() {
        let any = ([127, 0, 0, 1], 0);
        let settings = Settings::new(any.into(), 4 << 20, Source::Anonymous, Security::Plain);
        let donor = Donor::start(settings, Box::new(|_| ())).unwrap();
        let address = serve(any.into(), donor.observer()).unwrap();
        let crowd = |count| (0..count).map(|_| TcpStream::connect(address).unwrap()).collect::<Vec<_>>();
        let _slow = crowd(2 * CONNECTIONS_MOST);
        let mut scraper = TcpStream::connect(address).unwrap();
        // Nobody who is served at once sees that end.
        scraper.set_read_timeout(Some(PATIENCE / 2)).unwrap();
        scraper.write_all(b"GET /metrics HTTP/1.1\r\nHost: donor\r\n\r\n").unwrap();
        let mut text = String::new();
        scraper.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("aquifer_donor_capacity_bytes"), "{text}");
        donor.stop(Duration::ZERO);
    }
}
