// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Connects to the manager: TCP, and TLS 1.3 with the authorities of one file.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aquifer_sys::safe_open::{self, OpenFailure, Purpose};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use crate::address::Address;
use crate::failure::{Failure, failed, unsent, usage};

/// How long a connection and its handshake may take.
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(30);
/// Largest file of authorities.
const CA_BYTES_MAX: u64 = 4 << 20;

/// A connection to a manager, with or without TLS.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Trusts the manager whose chain has the certificate with this fingerprint.
pub(crate) fn trust_pin(pin: &str) -> Result<TlsConnector, Failure> {
    let config = aquifer_authority::pinned_client(pin)
        .map_err(|error| failed(format!("TLS 1.3 cannot be used: {error}; report this bug")))?;
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Reads the authorities that an address needs.
pub(crate) fn trust(address: &Address, ca: Option<&Path>) -> Result<Option<TlsConnector>, Failure> {
    let path = match (address.is_https, ca) {
        (false, _) => return Ok(None),
        (true, None) => {
            return Err(usage("https needs the authorities to trust; name the file with their certificates"));
        }
        (true, Some(path)) => path,
    };
    let shown = path.display();
    let mut text = Vec::new();
    let opened = safe_open::open(path, Purpose::Input, 0, 0).map_err(|failure| match failure {
        OpenFailure::Io(error) => failed(format!("{shown}: {error}; name a file with certificates in PEM")),
        OpenFailure::Objected(objected) => failed(objected),
    })?;
    opened
        .take(CA_BYTES_MAX)
        .read_to_end(&mut text)
        .map_err(|error| failed(format!("{shown}: {error}; name a file with certificates in PEM")))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let added = certificate.map_err(|error| error.to_string());
        let added = added.and_then(|one| roots.add(one).map_err(|error| error.to_string()));
        added.map_err(|error| failed(format!("{shown}: {error}; name a file with certificates in PEM")))?;
    }
    if roots.is_empty() {
        return Err(failed(format!("{shown}: it has no certificate; name a file with certificates in PEM")));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let builder = builder.map_err(|error| failed(format!("TLS 1.3 cannot be used: {error}; report this bug")))?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(TlsConnector::from(Arc::new(config))))
}

/// Connects, and shakes hands, in `wait` at most, or in the longest time that this may take.
pub(crate) async fn connect(
    address: &Address,
    tls: Option<&TlsConnector>,
    wait: Duration,
) -> Result<Box<dyn Stream>, Failure> {
    let until = Instant::now() + wait.min(CONNECT_WAIT_MAX);
    let unreachable = |error: &dyn std::fmt::Display| {
        unsent(format!(
            "the manager at {address} cannot be reached: {error}; start it with 'aquifer fabric serve', or correct \
             its address"
        ))
    };
    let late = |_| unreachable(&"no answer in time");
    let connected = TcpStream::connect((address.host.as_str(), address.port));
    let stream = tokio::time::timeout_at(until, connected).await.map_err(late)?;
    let stream = stream.map_err(|error| unreachable(&error))?;
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    let name = ServerName::try_from(address.host.clone()).map_err(|error| {
        usage(format!("{} is no name for TLS: {error}; correct the manager's address", address.host))
    })?;
    let shaken = tokio::time::timeout_at(until, tls.connect(name, stream)).await.map_err(late)?;
    let stream = shaken.map_err(|error| {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
        let is_untrusted = matches!(cause, Some(rustls::Error::InvalidCertificate(_)));
        let line = format!(
            "TLS with {address} fails: {error}; check the address, the authorities and the manager's certificate"
        );
        Failure { is_untrusted, ..unsent(line) }
    })?;
    Ok(Box::new(stream))
}
