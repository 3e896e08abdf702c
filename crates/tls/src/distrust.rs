// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why two ends do not come to trust each other: what is told to the person who has to mend it.

use std::fmt;

use rustls::{AlertDescription, CertificateError, Error};

/// See the module. What "their" and "our" certificate is, is as the borrower sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Distrust {
    /// The donor's certificate has expired, or is not valid yet.
    DonorExpired,
    /// The donor's certificate is for another name.
    DonorName,
    /// The donor's certificate is of another authority.
    DonorUnknown,
    /// The donor's certificate is not good for another reason.
    DonorUnusable,
    /// What the other end says is not TLS, or none that this end speaks.
    NoHandshake,
    /// The donor says that the borrower's certificate has expired.
    OwnExpired,
    /// The donor says that the borrower's certificate is of another authority.
    OwnUnknown,
    /// The donor says that the borrower's certificate is not good for another reason.
    OwnUnusable,
}

/// What the settings are called that a message names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    /// The own certificate.
    pub cert: &'static str,
    /// The authority of donors.
    pub ca: &'static str,
    /// The name that the donor's certificate is for.
    pub name: &'static str,
    /// How plain text is asked for.
    pub plain: &'static str,
}

impl Words {
    /// Of flags of a command.
    pub const FLAGS: Words =
        Words { cert: "--tls-cert", ca: "--tls-ca", name: "--tls-name SERVERNAME", plain: "--security plain" };
    /// Of the options of a tier.
    pub const OPTIONS: Words = Words { cert: "cert=", ca: "ca=", name: "name=SERVERNAME", plain: "security=plain" };
}

impl Distrust {
    /// What a borrower's session has failed with.
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
                _ => Distrust::DonorUnusable,
            },
            Error::AlertReceived(alert) => Self::of_alert(*alert),
            _ => Distrust::NoHandshake,
        }
    }

    /// What the donor's last word means.
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

    /// The error number for who only wants to know that there is no connection.
    pub fn errno(self) -> i32 {
        const EKEYEXPIRED: i32 = 127;
        const EKEYREJECTED: i32 = 129;
        const EPROTO: i32 = 71;
        match self {
            Distrust::DonorExpired | Distrust::OwnExpired => EKEYEXPIRED,
            Distrust::NoHandshake => EPROTO,
            _ => EKEYREJECTED,
        }
    }
}

impl Distrust {
    /// The cause and the remedy, in the words of whoever set it up.
    pub fn explain(self, words: Words) -> String {
        let Words { cert, ca, name, plain } = words;
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
    /// The cause and the remedy, in the words of a tier.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.explain(Words::OPTIONS))
    }
}

impl std::error::Error for Distrust {}
