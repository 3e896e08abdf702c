// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Sends events to listeners: one task for each subscription, so that a slow listener delays no other. A listener that
//! fails all attempts is suspended, and an event reports that.
//!
//! A listener gets each event at most [`ATTEMPTS_MAX`] times, in order, in requests of at most [`BATCH_MAX`] events.
//! It misses events that the ring of `events.rs` has dropped meanwhile.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use crate::events::{self, Event};
use crate::rest::{Service, now};
use crate::subscriptions::Listener;

/// Maximum number of attempts for a request.
pub(crate) const ATTEMPTS_MAX: u32 = 3;
/// The pause between attempts.
pub(crate) const ATTEMPT_PAUSE: Duration = Duration::from_secs(2);
/// How long one attempt may take.
const ATTEMPT_WAIT_MAX: Duration = Duration::from_secs(10);
/// Maximum number of events in one request.
const BATCH_MAX: usize = 64;
/// The time between two comparisons of the subscriptions with the tasks that serve them.
const LOOK: Duration = Duration::from_millis(250);
/// Maximum number of bytes that are read of an answer: only the status line is needed.
const ANSWER_BYTES_MAX: usize = 1024;
/// The file of trusted authorities on Debian. The variable SSL_CERT_FILE names another file.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Starts a task for each new subscription and ends those of deleted ones, until the process ends. Only the leader
/// sends events.
pub(crate) async fn run(service: Arc<Service>) {
    let mut running: BTreeMap<String, JoinHandle<()>> = BTreeMap::new();
    loop {
        let wanted = if service.is_leader() { service.shared.subscriptions().active() } else { Default::default() };
        running.retain(|id, task| {
            let is_kept = wanted.contains(id) && !task.is_finished();
            if !is_kept {
                task.abort();
            }
            is_kept
        });
        for id in wanted {
            let service = Arc::clone(&service);
            running.entry(id.clone()).or_insert_with(|| tokio::spawn(serve(service, id)));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Sends a listener the events that it does not have, until its subscription ends or is suspended.
async fn serve(service: Arc<Service>, id: String) {
    loop {
        let Some((subscription, after)) = service.shared.subscriptions().next(&id) else { return };
        let (mut kept, mut following) = service.shared.events.follow(after);
        kept.truncate(BATCH_MAX);
        let Some(last) = kept.last().map(|event| event.id) else {
            // The awaited event is also in the ring. After a timeout, check the subscription again.
            let _ = tokio::time::timeout(LOOK, following.recv()).await;
            continue;
        };
        let wanted: Vec<Event> = kept.into_iter().filter(|event| subscription.wants(event)).collect();
        if !wanted.is_empty() {
            let body = events::body(&wanted, Some(&subscription.context)).to_string();
            if let Err(why) = deliver(&subscription.destination, &body).await {
                service.shared.subscriptions().suspend(&id);
                let what = format!("the listener of subscription {id} does not take events: {why}");
                service.shared.events.add(now(), "DeliveryFailed", "Warning", what);
                return;
            }
        }
        service.shared.subscriptions().note_taken(&id, last);
    }
}

/// Sends one request, and repeats it if it fails.
async fn deliver(destination: &str, body: &str) -> Result<(), String> {
    let listener = Listener::parse(destination)?;
    let mut why = String::new();
    for attempt in 0..ATTEMPTS_MAX {
        if attempt > 0 {
            tokio::time::sleep(ATTEMPT_PAUSE).await;
        }
        match tokio::time::timeout(ATTEMPT_WAIT_MAX, post(&listener, body)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(failure)) => why = failure,
            Err(_) => why = format!("no answer within {} s", ATTEMPT_WAIT_MAX.as_secs()),
        }
    }
    Err(why)
}

async fn post(listener: &Listener, body: &str) -> Result<(), String> {
    let line = |error: std::io::Error| error.to_string();
    let stream = TcpStream::connect((listener.host.as_str(), listener.port)).await.map_err(line)?;
    if !listener.is_tls {
        return exchange(stream, listener, body).await;
    }
    let name = ServerName::try_from(listener.host.clone()).map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(client()?).connect(name, stream).await.map_err(line)?;
    exchange(stream, listener, body).await
}

/// Returns a client that trusts the authorities of this machine.
fn client() -> Result<Arc<ClientConfig>, String> {
    let file = std::env::var_os("SSL_CERT_FILE").map_or_else(|| AUTHORITIES.into(), PathBuf::from);
    let unreadable =
        |error: pem::Error| format!("{}: {error}; install ca-certificates, or set SSL_CERT_FILE", file.display());
    let mut roots = RootCertStore::empty();
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(&file).and_then(Iterator::collect);
    roots.add_parsable_certificates(found.map_err(unreadable)?);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let builder = builder.map_err(|error| format!("TLS 1.3 cannot be used: {error}"))?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

/// Sends the request, and reads the status.
async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    listener: &Listener,
    body: &str,
) -> Result<(), String> {
    let Listener { authority, path, .. } = listener;
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\nOData-Version: 4.0\r\n\
         User-Agent: aquifer-fabricd\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let line = |error: std::io::Error| error.to_string();
    stream.write_all(request.as_bytes()).await.map_err(line)?;
    stream.flush().await.map_err(line)?;
    let mut answer = Vec::new();
    while answer.len() < ANSWER_BYTES_MAX && !answer.contains(&b'\n') {
        if stream.read_buf(&mut answer).await.map_err(line)? == 0 {
            break;
        }
    }
    let text = String::from_utf8_lossy(&answer).into_owned();
    let mut words = text.lines().next().unwrap_or_default().split(' ');
    match (words.next(), words.next().and_then(|status| status.parse::<u16>().ok())) {
        (Some(version), Some(200..=299)) if version.starts_with("HTTP/1.") => Ok(()),
        (Some(version), Some(status)) if version.starts_with("HTTP/1.") => Err(format!("it answers {status}")),
        _ => Err("its answer is not HTTP".to_owned()),
    }
}
