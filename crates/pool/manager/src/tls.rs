// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The server's side of TLS 1.3, with the workspace's rustls and ring. A renewed certificate is used without a restart.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::config::TlsConfig;
use crate::issuance::Issuance;
use crate::rest::now;

/// Reads certificate and key.
fn server(config: &TlsConfig) -> Result<Arc<ServerConfig>, String> {
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

/// The time between two checks of the files for a change.
const LOOK: Duration = Duration::from_secs(2);
/// The time between two checks whether this manager's own certificate or its list of revoked ones must be renewed: much
/// shorter than a day.
const RENEW: Duration = Duration::from_secs(60);

/// Renews this manager's certificate and its list of revoked ones, and reads renewed files, for as long as the process
/// runs.
pub(crate) fn watch(served: &Served, issuance: Option<&Issuance>) {
    let mut renewed = Instant::now();
    let mut last = None;
    loop {
        std::thread::sleep(LOOK);
        let mut outcome = Ok(());
        if let Some(issuance) = issuance
            && renewed.elapsed() > RENEW
        {
            renewed = Instant::now();
            outcome = issuance.renew(now());
        }
        if let Err(line) = outcome.and_then(|()| served.renew())
            && last.as_ref() != Some(&line)
        {
            eprintln!("aquifer-fabricd: the old files stay in use: {line}");
            last = Some(line);
        }
    }
}

/// Identifies the contents of both files without reading them.
type Look = [Option<(u64, u64, i64, i64)>; 2];

fn look(config: &TlsConfig) -> Look {
    [&config.certificate, &config.key].map(|path| {
        let found = fs::metadata(path).ok()?;
        Some((found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
    })
}

/// The certificate that is served, and its files.
pub(crate) struct Served {
    config: TlsConfig,
    acceptor: RwLock<TlsAcceptor>,
    seen: Mutex<Look>,
}

impl Served {
    pub(crate) fn open(config: &TlsConfig) -> Result<Served, String> {
        let seen = look(config);
        let acceptor = TlsAcceptor::from(server(config)?);
        Ok(Served { config: config.clone(), acceptor: acceptor.into(), seen: seen.into() })
    }

    /// Returns the configuration for the next connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reloads the files if they have changed. Returns an error once if the new files cannot be used; the old
    /// certificate then stays in use.
    pub(crate) fn renew(&self) -> Result<(), String> {
        let now = look(&self.config);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == now {
            return Ok(());
        }
        *seen = now;
        let acceptor = TlsAcceptor::from(server(&self.config)?);
        *self.acceptor.write().unwrap_or_else(PoisonError::into_inner) = acceptor;
        Ok(())
    }
}
