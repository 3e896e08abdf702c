// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The section `[ca]`: the pool's authority.

use std::path::PathBuf;

use aquifer_authority::{DAYS_MAX, Kind, Subject};
use serde::{Deserialize, Serialize};

use super::{NotAConfig, refuse, within};

/// The pool's authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct CaConfig {
    /// The domain at the end of identities: `d1.donor.DOMAIN`.
    pub domain: String,
    /// This manager's name in its own certificate.
    pub name: String,
    /// The host names and addresses at which this manager is reached.
    pub addresses: Vec<String>,
    /// For how many days certificates are valid. They are renewed after two thirds of that.
    pub days: u32,
    /// The authority's certificate, as PEM. Without it, one is made in the state directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// Its private key, as PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// The authority that will replace it, as PEM: trusted already, but signs no certificate yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_certificate: Option<PathBuf>,
    /// Its private key, as PEM, for its list of revoked certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_key: Option<PathBuf>,
    /// The authority that it has replaced, as PEM: still trusted, but signs no certificate any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_certificate: Option<PathBuf>,
    /// Its private key, as PEM, for its list of revoked certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_key: Option<PathBuf>,
    /// Maximum number of join requests from one address in a minute.
    pub joins_per_minute: u32,
}

impl Default for CaConfig {
    fn default() -> CaConfig {
        CaConfig {
            domain: "aquifer.internal".into(),
            name: "manager".into(),
            addresses: vec!["localhost".into(), "127.0.0.1".into()],
            days: 90,
            certificate: None,
            key: None,
            next_certificate: None,
            next_key: None,
            old_certificate: None,
            old_key: None,
            joins_per_minute: 30,
        }
    }
}

impl CaConfig {
    /// Returns the subject of this manager's own certificate.
    pub(crate) fn subject(&self) -> Result<Subject, NotAConfig> {
        let subject = Subject::new(Kind::Manager, &self.name, &self.domain, &self.addresses);
        subject.or_else(|why| refuse(format!("ca: {why}")))
    }

    pub(super) fn check(&self, is_shared: bool) -> Result<(), NotAConfig> {
        self.subject()?;
        within("ca.days", u64::from(self.days), 1, u64::from(DAYS_MAX))?;
        within("ca.joins-per-minute", u64::from(self.joins_per_minute), 1, 10_000)?;
        if self.next_certificate.is_some() != self.next_key.is_some() {
            return refuse("ca.next-certificate and ca.next-key belong together; write both, or neither");
        }
        if self.old_certificate.is_some() != self.old_key.is_some() {
            return refuse("ca.old-certificate and ca.old-key belong together; write both, or neither");
        }
        if self.next_certificate.is_some() && self.old_certificate.is_some() {
            return refuse(
                "ca.next-certificate and ca.old-certificate are both set; finish one change of the authority before the \
                 next",
            );
        }
        match (&self.certificate, &self.key) {
            (Some(_), Some(_)) => Ok(()),
            (None, None) if is_shared => refuse(
                "several managers share one authority; write ca.certificate and ca.key, with the same contents at each",
            ),
            (None, None) => Ok(()),
            _ => refuse("ca.certificate and ca.key belong together; write both, or neither"),
        }
    }
}
