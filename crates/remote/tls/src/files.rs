// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The files of each end: its certificate, the certificate's key, and the authority that the other end's certificate
//! must be signed by; also the authority's lists of revoked certificates (a borrower's: `revocations.rs`).

use std::path::{self, Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io, mem};

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, Error, RootCertStore, ServerConfig};

use aquifer_sys::safe_open::{self, Objected, OpenFailure};

use crate::donor_side::DonorSide;
use crate::revocations::{Mark, Revocations, lists};
use crate::{CONTROL_PROTOCOL, PROTOCOL, renewal};

/// Maximum size of a file with a certificate, a key, or an authority's certificates. A choice, so that a wrong path
/// does not make the process read a huge file to its end.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum size of a file with revocation lists: as much as a manager can send its ends in a frame.
const LISTS_BYTES_MAX: u64 = 16 << 20;

/// The paths of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The certificate, and those between it and the authority, in PEM.
    pub cert: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
    /// The authority's certificates, in PEM.
    pub ca: PathBuf,
}

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The other end's authority.
    Authority,
    /// This end's certificate.
    Certificate,
    /// The certificate's key.
    Key,
    /// Lists of revoked certificates.
    Revocations,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Purpose::Authority => "the authority's certificate",
            Purpose::Certificate => "the certificate",
            Purpose::Key => "the private key",
            Purpose::Revocations => "the revocation list",
        })
    }
}

/// One file, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// What the file is for.
    pub purpose: Purpose,
    /// Its path.
    pub path: PathBuf,
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.purpose, self.path.display().to_string().escape_debug())
    }
}

/// Why files cannot be used as credentials: one line that names the cause and the remedy.
#[derive(Debug)]
#[non_exhaustive]
pub enum CredentialFailure {
    /// A revocation list has expired: certificates may have been revoked since.
    Expired(File),
    /// Not in PEM, or with something else in it.
    NotPem(File),
    /// A revocation list is signed by none of the authorities.
    OtherAuthority {
        /// The list.
        list: File,
        /// The authorities.
        ca: PathBuf,
    },
    /// The key belongs to another certificate.
    OtherKey {
        /// The key.
        key: File,
        /// The certificate.
        cert: PathBuf,
    },
    /// The file's owner or permissions are unsafe: other users own it, can read a key, or can change it.
    Objected(File, Objected),
    /// The file has more bytes than this many, and was not read.
    TooLarge(File, u64),
    /// A file has two revocation lists of one authority: only one of them would be looked at.
    TwoLists(File),
    /// The file cannot be read.
    Unreadable(File, io::Error),
    /// The file can be read, but is of an unsupported kind.
    Unusable(File, Error),
}

impl fmt::Display for CredentialFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CredentialFailure::Expired(file) => {
                write!(f, "{file} has expired; get the authority's newest one, and compare this machine's clock")
            }
            CredentialFailure::OtherAuthority { list, ca } => {
                let ca = ca.display().to_string();
                write!(
                    f,
                    "{list} is not signed by an authority in {}; give the list of that authority, or add the \
                     certificate of the authority that signed it there",
                    ca.escape_debug()
                )
            }
            CredentialFailure::NotPem(file) => {
                let label = match file.purpose {
                    Purpose::Authority | Purpose::Certificate => "CERTIFICATE",
                    Purpose::Key => "PRIVATE KEY",
                    Purpose::Revocations => "X509 CRL",
                };
                write!(f, "{file} is not PEM; give a text file that has '-----BEGIN {label}-----'")
            }
            CredentialFailure::OtherKey { key, cert } => {
                let cert = cert.display().to_string();
                write!(f, "{key} is not the key of {}; give the key that it was made for", cert.escape_debug())
            }
            CredentialFailure::Objected(file, objected) => write!(f, "{}: {objected}", file.purpose),
            CredentialFailure::TooLarge(file, max) => {
                write!(f, "{file} is too large; give a file of at most {max} bytes")
            }
            CredentialFailure::TwoLists(file) => {
                write!(f, "{file} has two lists of one authority; leave only the newest list of each authority in it")
            }
            CredentialFailure::Unreadable(file, error) => {
                let remedy = match error.kind() {
                    io::ErrorKind::NotFound => "check the path",
                    io::ErrorKind::PermissionDenied => {
                        "make it readable for this user, or add the user to the group that can read it \
                         (usermod --append --groups)"
                    }
                    _ => "give another file",
                };
                write!(f, "{file} cannot be read: {error}; {remedy}")
            }
            CredentialFailure::Unusable(file, error) if file.purpose == Purpose::Revocations => {
                write!(f, "{file} cannot be used: {error}; give one that the authority has signed, in PEM")
            }
            CredentialFailure::Unusable(file, error) => {
                write!(f, "{file} cannot be used: {error}; make one with an ECDSA key on P-256, or an Ed25519 key")
            }
        }
    }
}

impl std::error::Error for CredentialFailure {}

/// The contents of the files.
#[derive(Debug)]
pub struct Credentials {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Arc<RootCertStore>,
    files: Files,
}

/// The paths of a borrower's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BorrowerFiles {
    /// Its certificate and key, and the authority of the donors that it trusts.
    pub identity: Files,
    /// Lists of revoked certificates, in PEM: a donor on one of them is not trusted. `None`: no list is checked.
    pub crl: Option<PathBuf>,
    /// The user of the service that has named the files and keeps them: they may be that user's. `None`: a person has
    /// named them.
    pub service: Option<u32>,
}

impl From<Files> for BorrowerFiles {
    /// Without lists.
    fn from(identity: Files) -> BorrowerFiles {
        BorrowerFiles { identity, crl: None, service: None }
    }
}

/// What a borrower's files say.
pub(crate) struct BorrowerSide {
    /// The configuration of handshakes.
    pub(crate) config: Arc<ClientConfig>,
    /// The revoked certificates, in order.
    pub(crate) revoked: Vec<Mark>,
    /// When the first list expires, in seconds since 1970.
    pub(crate) valid_until: u64,
}

impl BorrowerFiles {
    /// What identifies the contents of the files without reading them.
    pub(crate) fn look(&self) -> u64 {
        let Files { cert, key, ca } = &self.identity;
        renewal::look([cert, key, ca].into_iter().chain(&self.crl))
    }

    /// The same files, wherever the process goes.
    pub(crate) fn absolute(&self) -> BorrowerFiles {
        let absolute = |path: &PathBuf| path::absolute(path).unwrap_or_else(|_| path.clone());
        let Files { cert, key, ca } = &self.identity;
        let identity = Files { cert: absolute(cert), key: absolute(key), ca: absolute(ca) };
        BorrowerFiles { identity, crl: self.crl.as_ref().map(absolute), service: self.service }
    }

    /// Reads the files.
    pub(crate) fn load(&self) -> Result<BorrowerSide, CredentialFailure> {
        self.identity.load_kept(self.service).and_then(|credentials| credentials.for_borrower(self.crl.as_deref()))
    }
}

impl Files {
    /// Reads the files.
    pub fn load(&self) -> Result<Credentials, CredentialFailure> {
        self.load_kept(None)
    }

    /// The same, for files that a service keeps for programs of other users: they may belong to the user `service`, and
    /// its group may read that user's key.
    pub fn load_kept(&self, service: Option<u32>) -> Result<Credentials, CredentialFailure> {
        let file = |purpose, path: &Path| File { purpose, path: path.to_owned() };
        let key_file = file(Purpose::Key, &self.key);
        let key = match PrivateKeyDer::from_pem_slice(&read(&key_file, service)?) {
            Ok(key) => key,
            Err(_) => return Err(CredentialFailure::NotPem(key_file)),
        };
        let mut roots = RootCertStore::empty();
        let ca = file(Purpose::Authority, &self.ca);
        for certificate in certificates(&ca, service)? {
            roots.add(certificate).map_err(|error| CredentialFailure::Unusable(ca.clone(), error))?;
        }
        let chain = certificates(&file(Purpose::Certificate, &self.cert), service)?;
        Ok(Credentials { chain, key, roots: Arc::new(roots), files: self.clone() })
    }
}

pub(crate) fn read(file: &File, service: Option<u32>) -> Result<Vec<u8>, CredentialFailure> {
    use std::io::Read;

    let (purpose, max) = match file.purpose {
        Purpose::Authority | Purpose::Certificate => (safe_open::Purpose::Input, FILE_BYTES_MAX),
        Purpose::Key => (safe_open::Purpose::PrivateKey, FILE_BYTES_MAX),
        Purpose::Revocations => (safe_open::Purpose::Signed, LISTS_BYTES_MAX),
    };
    let opened = safe_open::open_kept(&file.path, purpose, 0, 0, service).map_err(|failure| match failure {
        OpenFailure::Io(error) => CredentialFailure::Unreadable(file.clone(), error),
        OpenFailure::Objected(objected) => CredentialFailure::Objected(file.clone(), objected),
    })?;
    let mut bytes = Vec::new();
    // One byte more: a file that was cut may look like a whole one.
    let read = opened.take(max + 1).read_to_end(&mut bytes);
    match read {
        Ok(read) if read as u64 > max => Err(CredentialFailure::TooLarge(file.clone(), max)),
        Ok(_) => Ok(bytes),
        Err(error) => Err(CredentialFailure::Unreadable(file.clone(), error)),
    }
}

fn certificates(file: &File, service: Option<u32>) -> Result<Vec<CertificateDer<'static>>, CredentialFailure> {
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&read(file, service)?).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(CredentialFailure::NotPem(file.clone())),
    }
}

/// The provider is ring, named explicitly: the process may belong to another program that has chosen a different
/// default.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

impl Credentials {
    /// A donor's end. `revoked` is a file with lists of revoked certificates.
    pub fn for_donor(self, revoked: Option<&Path>) -> Result<DonorSide, CredentialFailure> {
        self.for_server(PROTOCOL, revoked)
    }

    /// A fabric manager's end of control channels, to which donors and agents connect.
    pub fn for_manager(self, revoked: Option<&Path>) -> Result<DonorSide, CredentialFailure> {
        self.for_server(CONTROL_PROTOCOL, revoked)
    }

    fn for_server(self, protocol: &[u8], revoked: Option<&Path>) -> Result<DonorSide, CredentialFailure> {
        let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&self.roots), provider());
        let mut asked = self.file(Purpose::Authority);
        if let Some(path) = revoked {
            asked = File { purpose: Purpose::Revocations, path: path.to_owned() };
            // A certificate of an authority without a list is refused: otherwise nobody would notice that a list is
            // missing.
            verifier = verifier.with_crls(lists(&asked)?).only_check_end_entity_revocation();
        }
        let verifier =
            verifier.build().map_err(|error| CredentialFailure::Unusable(asked, Error::General(error.to_string())))?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .expect("the provider has suites of TLS 1.3")
            .with_client_cert_verifier(Arc::clone(&verifier));
        let (chain, key) = (self.chain.clone(), self.key.clone_key());
        let mut config = builder.with_single_cert(chain, key).map_err(|error| self.judge(error))?;
        config.alpn_protocols = vec![protocol.to_vec()];
        // A borrower keeps its connections, and performs a full handshake when one is lost.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(DonorSide::new(config, verifier))
    }

    /// A borrower's end. `crl` is a file with lists of revoked certificates.
    pub(crate) fn for_borrower(self, crl: Option<&Path>) -> Result<BorrowerSide, CredentialFailure> {
        let load = |path: &Path| Revocations::load(path, &self.roots, &self.files.ca, &provider());
        let mut revocations = crl.map(load).transpose()?;
        let valid_until = revocations.as_ref().map_or(u64::MAX, |revocations| revocations.valid_until);
        let revoked = revocations.as_mut().map(|revocations| mem::take(&mut revocations.revoked)).unwrap_or_default();
        let mut config = self.for_client(PROTOCOL, revocations)?;
        config.enable_secret_extraction = true;
        Ok(BorrowerSide { config: Arc::new(config), revoked, valid_until })
    }

    /// The configuration of a donor's or an agent's sessions with a fabric manager.
    pub fn for_end(self) -> Result<Arc<ClientConfig>, CredentialFailure> {
        self.for_client(CONTROL_PROTOCOL, None).map(Arc::new)
    }

    fn for_client(self, protocol: &[u8], revoked: Option<Revocations>) -> Result<ClientConfig, CredentialFailure> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .expect("the provider has suites of TLS 1.3");
        let roots = Arc::clone(&self.roots);
        let builder = match revoked {
            Some(revoked) => builder.with_webpki_verifier(revoked.verifier(roots, provider())?),
            None => builder.with_root_certificates(roots),
        };
        let (chain, key) = (self.chain.clone(), self.key.clone_key());
        let mut config = builder.with_client_auth_cert(chain, key).map_err(|error| self.judge(error))?;
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    fn file(&self, purpose: Purpose) -> File {
        let path = match purpose {
            Purpose::Authority => &self.files.ca,
            Purpose::Certificate => &self.files.cert,
            Purpose::Key => &self.files.key,
            Purpose::Revocations => unreachable!("the lists are no part of these files"),
        };
        File { purpose, path: path.clone() }
    }

    fn judge(&self, error: Error) -> CredentialFailure {
        match error {
            Error::InconsistentKeys(_) => {
                CredentialFailure::OtherKey { key: self.file(Purpose::Key), cert: self.files.cert.clone() }
            }
            Error::InvalidCertificate(_) => CredentialFailure::Unusable(self.file(Purpose::Certificate), error),
            _ => CredentialFailure::Unusable(self.file(Purpose::Key), error),
        }
    }
}
