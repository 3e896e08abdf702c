// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Trusts a manager by the fingerprint in a join token, before the joining machine has the authority's certificate.
//!
//! The manager's chain must contain the certificate with this fingerprint. Either that is the manager's own
//! certificate, or rustls checks the chain with it as the only authority, and checks the manager's name. In both cases
//! rustls checks the signature of the handshake.

use std::sync::Arc;

use ring::digest::{SHA256, digest};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::token::hex;

/// Returns the fingerprint of a certificate: SHA-256 of its DER.
pub fn pin(certificate: &[u8]) -> String {
    hex(digest(&SHA256, certificate).as_ref())
}

/// Returns the configuration of a client that trusts only the manager with this fingerprint.
pub fn pinned_client(pin: &str) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13])?;
    let verifier = Arc::new(Pinned { pin: pin.to_owned(), provider });
    let mut config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[derive(Debug)]
struct Pinned {
    pin: String,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if pin(own) == self.pin {
            return Ok(ServerCertVerified::assertion());
        }
        let found = others.iter().find(|certificate| pin(certificate) == self.pin);
        let authority = found.ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let builder = WebPkiServerVerifier::builder_with_provider(roots.into(), Arc::clone(&self.provider));
        let verifier = builder.build().map_err(|error| Error::General(error.to_string()))?;
        verifier.verify_server_cert(own, others, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
