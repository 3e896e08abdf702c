// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor's end of TLS: what its sessions are made with, and by what borrowers' certificates are judged.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::{Error, ServerConfig};

/// See the module. It stays as it is; what the files hold later is another one.
pub struct DonorSide {
    config: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl fmt::Debug for DonorSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No keys.
        f.debug_struct("DonorSide").finish_non_exhaustive()
    }
}

impl DonorSide {
    pub(crate) fn new(config: ServerConfig, verifier: Arc<dyn ClientCertVerifier>) -> DonorSide {
        DonorSide { config: Arc::new(config), verifier }
    }

    /// What sessions are made with.
    pub fn config(&self) -> &Arc<ServerConfig> {
        &self.config
    }

    /// Whether a borrower's certificates, its own first, are good now.
    pub fn check(&self, chain: &[CertificateDer<'_>]) -> Result<(), Error> {
        let (own, others) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
        self.verifier.verify_client_cert(own, others, UnixTime::now()).map(|_| ())
    }
}
