// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads what a certificate says: serial number, names, validity. Pure. Checks no signature: rustls has accepted the
//! certificate before, or this program has made it.

use std::net::IpAddr;

use aquifer_fabric::Millis;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::extensions::GeneralName;

use crate::token::hex;
use crate::validity::Validity;

/// What a certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its serial number, in hexadecimal digits.
    pub serial: String,
    /// Its DNS names and IP addresses, in their order.
    pub names: Vec<String>,
    /// When it is valid.
    pub validity: Validity,
    /// The name of its subject, in DER.
    pub subject: Vec<u8>,
    /// The name of the authority that signed it, in DER.
    pub issuer: Vec<u8>,
}

/// Reads a certificate in DER. Returns `None` if the bytes are not a certificate.
pub fn facts(der: &[u8]) -> Option<Facts> {
    let (rest, found) = x509_parser::parse_x509_certificate(der).ok()?;
    if !rest.is_empty() {
        return None;
    }
    let instant = |seconds: i64| Millis(u64::try_from(seconds).unwrap_or(0).saturating_mul(1000));
    let validity = found.validity();
    let validity =
        Validity { from: instant(validity.not_before.timestamp()), until: instant(validity.not_after.timestamp()) };
    let alternative = found.subject_alternative_name().ok()?;
    let general = alternative.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    Some(Facts {
        serial: hex(found.raw_serial()),
        names: general.iter().filter_map(name).collect(),
        validity,
        subject: found.subject().as_raw().to_vec(),
        issuer: found.issuer().as_raw().to_vec(),
    })
}

fn name(general: &GeneralName<'_>) -> Option<String> {
    match general {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
        },
        _ => None,
    }
}

/// Returns the first certificate of a text in PEM.
pub fn first_of(pem: &str) -> Option<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).next()?.ok()
}
