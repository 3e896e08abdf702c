// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Gives the metrics to Prometheus: plain HTTP, one path, at the address that the setting `metrics` names.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::exposition::exposition;
use crate::rest::Service;

/// Maximum number of connections at a time: a few Prometheus servers, and people.
const CONNECTIONS_MAX: usize = 16;
/// How long a request may take to arrive, and a connection may be idle.
const HEAD_WAIT_MAX: Duration = Duration::from_secs(30);
/// How long a connection lasts at most, so that slow clients do not use all of them up.
const CONNECTION_MAX: Duration = Duration::from_secs(600);

/// Accepts connections until the process ends.
pub(crate) async fn serve(listener: TcpListener, service: Arc<Service>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let service = Arc::clone(&service);
        tokio::spawn(async move {
            let answer = service_fn(move |request| {
                let service = Arc::clone(&service);
                async move { Ok::<_, Infallible>(answer(&request, &service)) }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEAD_WAIT_MAX);
            let connection = builder.serve_connection(TokioIo::new(stream), answer);
            let _ = tokio::time::timeout(CONNECTION_MAX, connection).await;
            drop(permit);
        });
    }
}

fn answer(request: &Request<Incoming>, service: &Service) -> Response<Full<Bytes>> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {
            let led = service.is_leader().then(|| service.shared.snapshot());
            let shared = &service.shared;
            (StatusCode::OK, exposition(&shared.meters.read(shared.telemetry.counts()), led.as_deref()))
        }
        (&Method::GET | &Method::HEAD, _) => (StatusCode::NOT_FOUND, "the metrics are at /metrics\n".to_owned()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "use GET\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
