// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The server's side of TLS 1.3, with the workspace's rustls and ring.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::TlsConfig;

/// Reads certificate and key.
pub(crate) fn server(config: &TlsConfig) -> Result<Arc<ServerConfig>, String> {
    let (certificate, key) = (config.certificate.display(), config.key.display());
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(&config.certificate).and_then(Iterator::collect);
    let chain = chain.map_err(|error| format!("{certificate}: {error}; name a file with certificates in PEM"))?;
    let private = PrivateKeyDer::from_pem_file(&config.key)
        .map_err(|error| format!("{key}: {error}; name a file with a private key in PEM"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let builder = builder.map_err(|error| format!("TLS 1.3 cannot be used: {error}; report this bug"))?;
    let mut server = builder.with_no_client_auth().with_single_cert(chain, private).map_err(|error| {
        format!("{certificate} and {key} cannot be used: {error}; name a pair that belongs together")
    })?;
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(server))
}
