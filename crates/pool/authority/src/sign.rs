// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Signs certificates and revocation lists, with rcgen and ring. No sockets, no files; time is an argument.
//!
//! A request only proves that its sender has the key. The names in the certificate come from the token, or from the
//! certificate that is renewed. A request for other names, or for a certificate that may sign others, is refused.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aquifer_fabric::Millis;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertificateSigningRequestParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PublicKeyData, RevocationReason,
    RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, crypto};
use time::OffsetDateTime;

use crate::facts::{facts, first_of};
use crate::request::Request;
use crate::subject::Subject;
use crate::token::hex;
use crate::validity::{DAY_MS, Validity};

/// Maximum length of a request: one with an Ed25519 or P-256 key and all names has 2 KiB.
pub const REQUEST_BYTES_MAX: usize = 16 << 10;
/// How long an authority that we make is valid: ten years.
const AUTHORITY_DAYS: u64 = 3650;
/// The time after which a list expires. Donors do not enforce it, because they get each new list at once; programs
/// refuse to start with an expired list.
pub const LIST_DAYS: u32 = 30;

/// Why the authority refuses to sign: one line with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotSigned {
    /// The request asks to be an authority itself.
    Authority,
    /// The authority has expired.
    Expired,
    /// The key's algorithm is not accepted.
    Key,
    /// rcgen reported an error.
    Library(String),
    /// The bytes are not a request, or the request is not signed with the key in it.
    NotARequest,
    /// The request contains a name that its sender may not have.
    OtherName(String),
}

impl fmt::Display for NotSigned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Authority => f.write_str("the request asks for a certificate that can sign others; leave that out"),
            Self::Expired => f.write_str("the pool's authority has expired; give the manager another one"),
            Self::Key => {
                f.write_str("this type of key is not supported; make an ECDSA key on P-256, or an Ed25519 key")
            }
            Self::Library(why) => write!(f, "the certificate cannot be made: {why}; report this bug"),
            Self::NotARequest => {
                f.write_str("the request is not a signing request in PEM; make it with 'aquifer fabric join'")
            }
            Self::OtherName(name) => {
                write!(
                    f,
                    "the request asks for the name {}; leave names out, the token has them",
                    name.escape_default()
                )
            }
        }
    }
}

impl std::error::Error for NotSigned {}

/// Why an authority cannot be used: one line with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable(String);

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

/// A certificate that the authority has signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The certificate and the authority's, in PEM.
    pub chain: String,
    /// The certificate without its chain.
    pub der: Vec<u8>,
    /// Its serial number, in hexadecimal digits.
    pub serial: String,
    /// When it is valid.
    pub validity: Validity,
}

/// A list of revoked certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocations {
    /// The list's number, greater than that of any earlier list.
    pub number: u64,
    /// The list, in PEM.
    pub list: Arc<str>,
}

/// The certificate authority of a pool.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
    until: Millis,
    name: Vec<u8>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Prints no key.
        f.debug_struct("Authority").field("until", &self.until).finish_non_exhaustive()
    }
}

fn library(error: rcgen::Error) -> NotSigned {
    NotSigned::Library(error.to_string())
}

impl Authority {
    /// Makes a new authority, for a pool of this name.
    pub fn make(pool: &str, now: Millis) -> Result<Authority, NotSigned> {
        let (certificate, key) = Authority::make_files(pool, now)?;
        Authority::load(&certificate, &key, now).map_err(|unusable| NotSigned::Library(unusable.to_string()))
    }

    /// Makes a new authority, and returns its certificate and its key, in PEM. No other authority has its name, not
    /// even another one of this pool: ends find the authority and the revocation list of a certificate by that name.
    pub fn make_files(pool: &str, now: Millis) -> Result<(String, String), NotSigned> {
        let number = serial()?;
        let key = KeyPair::generate().map_err(library)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        let name = format!("Aquifer pool {pool} {}", hex(&number.to_bytes()[..4]));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.serial_number = Some(number);
        params.not_before = instant(Millis(now.0.saturating_sub(DAY_MS)));
        params.not_after = instant(Millis(now.0 + AUTHORITY_DAYS * DAY_MS));
        let certificate = params.self_signed(&key).map_err(library)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    /// Loads an authority from its certificate and key, in PEM. Checks a signature as ends will check it, so that an
    /// expired authority, or a key that belongs to another certificate, is detected now.
    pub fn load(certificate: &str, key: &str, now: Millis) -> Result<Authority, Unusable> {
        let unusable =
            |why: &dyn fmt::Display, remedy: &str| Unusable(format!("the authority cannot be used: {why}; {remedy}"));
        let der = first_of(certificate).ok_or_else(|| unusable(&"its certificate is not PEM", "name a file in PEM"))?;
        let found = facts(&der).ok_or_else(|| unusable(&"its certificate is damaged", "name another file"))?;
        if now < found.validity.from || found.validity.until <= now {
            let remedy = "set the clock, or make another authority and have all ends join again";
            return Err(unusable(&"its certificate is not valid now", remedy));
        }
        let pair = "name the certificate and the key of one authority";
        let key = KeyPair::from_pem(key).map_err(|error| unusable(&error, "name a key in PEM (PKCS #8)"))?;
        let issuer = Issuer::from_ca_cert_der(&der, key).map_err(|error| unusable(&error, pair))?;
        let (pem, until, name) = (certificate.to_owned(), found.validity.until, found.subject);
        let authority = Authority { issuer, certificate: der, pem, until, name };
        let subject =
            Subject::new(crate::Kind::Host, "check", "check.internal", &[]).map_err(|why| unusable(&why, pair))?;
        let request = Request::new().map_err(|why| unusable(&why, pair))?;
        let signed = authority.sign(request.pem(), &subject, 1, now).map_err(|why| unusable(&why, pair))?;
        authority.check(&signed.der, now).map_err(|why| unusable(&why, pair))?;
        authority.revocations(&[], 1, now).map_err(|why| unusable(&why, "let it sign revocation lists, too"))?;
        Ok(authority)
    }

    /// Checks whether ends that trust this authority accept a certificate at this instant.
    fn check(&self, certificate: &[u8], now: Millis) -> Result<(), String> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).map_err(|error| error.to_string())?;
        let provider = Arc::new(crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
        let verifier = verifier.map_err(|error| error.to_string())?;
        let at = UnixTime::since_unix_epoch(Duration::from_millis(now.0));
        let checked = verifier.verify_client_cert(&certificate.into(), &[], at);
        checked.map(drop).map_err(|error| error.to_string())
    }

    /// Returns its certificate, in PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns its certificate, in DER.
    pub fn der(&self) -> &[u8] {
        &self.certificate
    }

    /// Returns its name, in DER: the issuer of the certificates that it signs.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the last instant of its validity.
    pub const fn until(&self) -> Millis {
        self.until
    }

    /// Signs a certificate for the subject and for the request's key.
    pub fn sign(&self, request: &str, subject: &Subject, days: u32, now: Millis) -> Result<Signed, NotSigned> {
        if request.len() > REQUEST_BYTES_MAX {
            return Err(NotSigned::NotARequest);
        }
        let request = CertificateSigningRequestParams::from_pem(request).map_err(|_| NotSigned::NotARequest)?;
        check_request(&request.params, subject)?;
        let algorithms = [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519];
        if !algorithms.contains(&PublicKeyData::algorithm(&request.public_key)) {
            return Err(NotSigned::Key);
        }
        let validity = Validity::new(now, days, self.until).ok_or(NotSigned::Expired)?;
        let mut params = CertificateParams::new(subject.names.clone()).map_err(library)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, subject.to_string());
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(serial()?);
        (params.not_before, params.not_after) = (instant(validity.from), instant(validity.until));
        let signed = params.signed_by(&request.public_key, &self.issuer).map_err(library)?;
        let der = signed.der().to_vec();
        let found = facts(&der).ok_or_else(|| NotSigned::Library("it cannot be read back".into()))?;
        Ok(Signed {
            chain: format!("{}{}", signed.pem(), self.pem),
            der,
            serial: found.serial,
            validity: found.validity,
        })
    }

    /// Signs the list of revoked certificates: their serial numbers, and when each was revoked.
    pub fn revocations(
        &self,
        revoked: &[(String, Millis)],
        number: u64,
        now: Millis,
    ) -> Result<Revocations, NotSigned> {
        let one = |(serial, at): &(String, Millis)| {
            Some(RevokedCertParams {
                serial_number: SerialNumber::from_slice(&unhex(serial)?),
                revocation_time: instant(*at),
                reason_code: Some(RevocationReason::KeyCompromise),
                invalidity_date: None,
            })
        };
        let params = CertificateRevocationListParams {
            this_update: instant(now),
            next_update: instant(Millis(now.0 + u64::from(LIST_DAYS) * DAY_MS)),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().filter_map(one).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer).and_then(|list| list.pem()).map_err(library)?;
        Ok(Revocations { number, list: list.into() })
    }
}

/// Refuses a request that contains any but the subject's names.
fn check_request(params: &CertificateParams, subject: &Subject) -> Result<(), NotSigned> {
    let signs = [KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    if matches!(params.is_ca, IsCa::Ca(_)) || params.key_usages.iter().any(|usage| signs.contains(usage)) {
        return Err(NotSigned::Authority);
    }
    for name in &params.subject_alt_names {
        let text = match name {
            SanType::DnsName(name) => name.as_str().to_owned(),
            SanType::IpAddress(address) => address.to_string(),
            other => return Err(NotSigned::OtherName(format!("{other:?}"))),
        };
        if !subject.names.contains(&text) {
            return Err(NotSigned::OtherName(text));
        }
    }
    for (kind, value) in params.distinguished_name.iter() {
        let text = match value {
            rcgen::DnValue::Utf8String(text) => text.clone(),
            rcgen::DnValue::PrintableString(text) => text.as_str().to_owned(),
            other => return Err(NotSigned::OtherName(format!("{other:?}"))),
        };
        let is_own = *kind == DnType::CommonName && (text == subject.name || subject.names.contains(&text));
        if !is_own {
            return Err(NotSigned::OtherName(text));
        }
    }
    Ok(())
}

/// Returns 16 random bytes as a positive number.
fn serial() -> Result<SerialNumber, NotSigned> {
    let mut bytes = [0; 16];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| NotSigned::Library("the system returns no random bytes".into()))?;
    bytes[0] = bytes[0] & 0x3f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    let bytes = (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok());
    bytes.collect()
}

/// Converts an instant to rcgen's type, in whole seconds, because certificates store seconds.
fn instant(at: Millis) -> OffsetDateTime {
    // Certificates end with the year 9999 (RFC 5280, section 4.1.2.5).
    const LAST_SECOND: u64 = 253_402_300_799;
    date_time_ymd(1970, 1, 1) + Duration::from_secs((at.0 / 1000).min(LAST_SECOND))
}
