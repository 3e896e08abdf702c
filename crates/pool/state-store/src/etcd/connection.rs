// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One connection to one member: TCP or TLS 1.3, and HTTP/1.1 by hyper.

use std::path::Path;
use std::sync::Arc;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::settings::{Endpoint, EtcdTls, NotSettings};

/// Longest answer: a page of a scan with a few of the largest values, in base 64.
const ANSWER_BYTES_MAX: usize = 128 << 20;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, NotSettings> {
    let refuse = |error: &dyn std::fmt::Display| {
        NotSettings(format!("{}: {error}; name a file with certificates in PEM", path.display()))
    };
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    match found {
        Ok(found) if found.is_empty() => Err(refuse(&"it has no certificate")),
        Ok(found) => Ok(found),
        Err(error) => Err(refuse(&error)),
    }
}

/// Reads the certificates.
pub(super) fn connector(tls: &EtcdTls) -> Result<TlsConnector, NotSettings> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&tls.ca)? {
        let refuse = |error| NotSettings(format!("{}: {error}; name a file with authorities in PEM", tls.ca.display()));
        roots.add(certificate).map_err(refuse)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let builder = builder.map_err(|error| NotSettings(format!("TLS 1.3 cannot be used: {error}; report this bug")))?;
    let builder = builder.with_root_certificates(roots);
    let mut config = match &tls.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            let private = PrivateKeyDer::from_pem_file(key).map_err(|error| {
                NotSettings(format!("{}: {error}; name a file with a private key in PEM", key.display()))
            })?;
            let (certificate, key) = (certificate.display(), key.display());
            builder.with_client_auth_cert(chain, private).map_err(|error| {
                NotSettings(format!(
                    "{certificate} and {key} cannot be used: {error}; name a pair that belongs together"
                ))
            })?
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// A connection that carries one request at a time.
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

impl Connection {
    /// Connects and shakes hands. The caller bounds the wait.
    pub(super) async fn open(endpoint: &Endpoint, tls: Option<&TlsConnector>) -> Result<Connection, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await.map_err(|error| text(&error))?;
        // Nagle's algorithm could only delay: a request is one write, and its answer comes before the next one.
        stream.set_nodelay(true).map_err(|error| text(&error))?;
        let stream: Box<dyn Stream> = match tls.filter(|_| endpoint.is_https) {
            None => Box::new(stream),
            Some(tls) => {
                let name = ServerName::try_from(endpoint.host.clone()).map_err(|error| text(&error))?;
                Box::new(tls.connect(name, stream).await.map_err(|error| text(&error))?)
            }
        };
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| text(&error))?;
        // The task ends when the sender is dropped, or with the runtime.
        tokio::spawn(connection);
        Ok(Connection { sender, host: endpoint.authority() })
    }

    /// Waits until a request can be sent. An error says that the other side has closed the connection.
    pub(super) async fn ready(&mut self) -> Result<(), String> {
        self.sender.ready().await.map_err(|error| error.to_string())
    }

    /// Sends one request and returns status and body. After an error the connection cannot be used.
    pub(super) async fn post(&mut self, path: &str, body: Bytes) -> Result<(u16, Bytes), String> {
        let request = hyper::Request::post(path)
            .header("host", self.host.as_str())
            .header("content-type", "application/json")
            .body(Full::new(body))
            .map_err(|error| error.to_string())?;
        let response = self.sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
    }
}
