// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor's end of TLS: the configuration of its sessions, and the verifier of borrowers' certificates.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::{Error, ServerConfig};

/// A donor's end of TLS. It never changes: reloading the files creates a new `DonorSide`.
pub struct DonorSide {
    config: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl fmt::Debug for DonorSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Prints no keys.
        f.debug_struct("DonorSide").finish_non_exhaustive()
    }
}

impl DonorSide {
    pub(crate) fn new(config: ServerConfig, verifier: Arc<dyn ClientCertVerifier>) -> DonorSide {
        DonorSide { config: Arc::new(config), verifier }
    }

    /// The configuration of sessions.
    pub fn config(&self) -> &Arc<ServerConfig> {
        &self.config
    }

    /// Checks that a borrower's certificates, its own first, are valid now.
    pub fn check(&self, chain: &[CertificateDer<'_>]) -> Result<(), Error> {
        let (own, others) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
        self.verifier.verify_client_cert(own, others, UnixTime::now()).map(|_| ())
    }
}
