// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The joining machine's side: its key, which never leaves the machine, and a request signed with that key.

use rcgen::{CertificateParams, DistinguishedName, KeyPair};

use crate::sign::NotSigned;

/// A key, and a request for a certificate for this key. The request contains no names: the authority decides them.
pub struct Request {
    key: KeyPair,
    pem: String,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Prints no key.
        f.debug_struct("Request").finish_non_exhaustive()
    }
}

fn failed(error: rcgen::Error) -> NotSigned {
    NotSigned::Library(error.to_string())
}

impl Request {
    /// Makes a request with a new key, for ECDSA on P-256.
    pub fn new() -> Result<Request, NotSigned> {
        Request::of(KeyPair::generate().map_err(failed)?)
    }

    /// Makes a request with an existing key in PEM (PKCS #8).
    pub fn with_key(pem: &str) -> Result<Request, NotSigned> {
        Request::of(KeyPair::from_pem(pem).map_err(failed)?)
    }

    fn of(key: KeyPair) -> Result<Request, NotSigned> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let pem = params.serialize_request(&key).and_then(|request| request.pem()).map_err(failed)?;
        Ok(Request { key, pem })
    }

    /// Returns the request, in PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns the key and its certificates as one text, so that one rename replaces both.
    pub fn credentials(&self, chain: &str) -> String {
        format!("{}{chain}", self.key.serialize_pem())
    }
}
