// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why two ends do not trust each other, for the person who has to correct it.

use std::fmt;

use rustls::{AlertDescription, CertificateError, Error};

/// The reason why two ends do not trust each other. "Donor" and "Own" name certificates as the borrower sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Distrust {
    /// The donor's certificate has expired, or is not valid yet.
    DonorExpired,
    /// The donor's certificate is for another name.
    DonorName,
    /// The donor's certificate was revoked by its authority.
    DonorRevoked,
    /// The donor's certificate was issued by another authority.
    DonorUnknown,
    /// No list of revoked certificates is of the authority that issued the donor's certificate.
    DonorUnlisted,
    /// The donor's certificate is invalid for another reason.
    DonorUnusable,
    /// The other end does not speak TLS, or no version that this end speaks.
    NoHandshake,
    /// The donor says that the borrower's certificate has expired.
    OwnExpired,
    /// The donor says that the borrower's certificate was issued by another authority.
    OwnUnknown,
    /// The donor says that the borrower's certificate is invalid for another reason.
    OwnUnusable,
}

/// The names of the settings that a message mentions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    /// This end's certificate.
    pub cert: &'static str,
    /// The authority of donors' certificates.
    pub ca: &'static str,
    /// The lists of revoked certificates.
    pub crl: &'static str,
    /// The name that the donor's certificate is for.
    pub name: &'static str,
    /// The setting that asks for plain text.
    pub plain: &'static str,
}

impl Words {
    /// The names of a command's flags.
    pub const FLAGS: Words = Words {
        cert: "--tls-cert",
        ca: "--tls-ca",
        crl: "--tls-crl",
        name: "--tls-name SERVERNAME",
        plain: "--security plain",
    };
    /// The names of a tier's options.
    pub const OPTIONS: Words =
        Words { cert: "cert=", ca: "ca=", crl: "crl=", name: "name=SERVERNAME", plain: "security=plain" };
}

impl Distrust {
    /// The reason for a borrower's failed session.
    pub fn of_borrower(error: &Error) -> Distrust {
        match error {
            Error::InvalidCertificate(error) => match error {
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. } => Distrust::DonorExpired,
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    Distrust::DonorName
                }
                CertificateError::UnknownIssuer | CertificateError::BadSignature => Distrust::DonorUnknown,
                CertificateError::Revoked => Distrust::DonorRevoked,
                CertificateError::UnknownRevocationStatus => Distrust::DonorUnlisted,
                _ => Distrust::DonorUnusable,
            },
            Error::InvalidCertRevocationList(_) => Distrust::DonorUnlisted,
            Error::AlertReceived(alert) => Self::of_alert(*alert),
            _ => Distrust::NoHandshake,
        }
    }

    /// The meaning of the donor's alert.
    pub(crate) fn of_alert(alert: AlertDescription) -> Distrust {
        match alert {
            AlertDescription::CertificateExpired => Distrust::OwnExpired,
            AlertDescription::UnknownCA | AlertDescription::DecryptError => Distrust::OwnUnknown,
            AlertDescription::AccessDenied
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateRequired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnsupportedCertificate => Distrust::OwnUnusable,
            _ => Distrust::NoHandshake,
        }
    }

    /// The error number, for callers that only need to know that there is no connection.
    pub fn errno(self) -> i32 {
        const EKEYEXPIRED: i32 = 127;
        const EKEYREVOKED: i32 = 128;
        const EKEYREJECTED: i32 = 129;
        const EPROTO: i32 = 71;
        match self {
            Distrust::DonorExpired | Distrust::OwnExpired => EKEYEXPIRED,
            Distrust::DonorRevoked => EKEYREVOKED,
            Distrust::NoHandshake => EPROTO,
            _ => EKEYREJECTED,
        }
    }
}

impl Distrust {
    /// The cause and the remedy, in terms of the settings that the user gave.
    pub fn explain(self, words: Words) -> String {
        let Words { cert, ca, crl, name, plain } = words;
        match self {
            Distrust::DonorExpired => "the donor's certificate has expired or is not valid yet; give the donor a new \
                                       one, and compare the clocks of both machines"
                .into(),
            Distrust::DonorName => {
                format!("the donor's certificate is for another name; name the one that it is for with {name}")
            }
            Distrust::DonorUnknown => format!(
                "the donor's certificate is not signed by the authority in {ca}; give the authority that signed it"
            ),
            Distrust::DonorRevoked => format!(
                "the donor's certificate was revoked, says the list in {crl}; borrow from another donor, or have a new \
                 certificate signed for this one"
            ),
            Distrust::DonorUnlisted => format!(
                "the authority that signed the donor's certificate has no list in {crl}; add the revocation list of that \
                 authority"
            ),
            Distrust::DonorUnusable => {
                "the donor's certificate is not one for a server; give the donor one of X.509 version 3 that has \
                 extendedKeyUsage serverAuth, or none"
                    .into()
            }
            Distrust::NoHandshake => format!(
                "what listens there speaks no TLS 1.3 of a donor; check the address, or ask for plain text with {plain} \
                 where the donor lends so"
            ),
            Distrust::OwnExpired => format!(
                "the donor says that the certificate in {cert} has expired or is not valid yet; have a new one signed"
            ),
            Distrust::OwnUnknown => format!(
                "the donor says that the certificate in {cert} is not signed by its authority; have it signed by the \
                 one that the donor was given"
            ),
            Distrust::OwnUnusable => format!(
                "the donor says that the certificate in {cert} is not one for a borrower; give one of X.509 version 3 that \
                 has extendedKeyUsage clientAuth, or none"
            ),
        }
    }
}

impl fmt::Display for Distrust {
    /// The cause and the remedy, in terms of a tier's options.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.explain(Words::OPTIONS))
    }
}

impl std::error::Error for Distrust {}
