// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The section `[control]`: where donors and host agents connect, and which of them may register.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use aquifer_control::Patterns;
use aquifer_tls::Files;
use serde::{Deserialize, Serialize};

use super::{NotAConfig, refuse};

/// Where donors and host agents connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ControlConfig {
    /// The address that is listened on. Without certificates, only loopback addresses are allowed.
    #[serde(default = "default_control")]
    pub listen: SocketAddr,
    /// The manager's certificate and those that signed it, as PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// Its private key, as PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// The authority that certificates of donors and hosts must be signed by, as PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<PathBuf>,
    /// Certificates that the authority has revoked, as PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revocations: Option<PathBuf>,
    /// Names in certificates that may register as donors.
    #[serde(default)]
    pub donors: Patterns,
    /// Names in certificates that may register as hosts.
    #[serde(default)]
    pub hosts: Patterns,
}

impl ControlConfig {
    /// Returns the files of TLS: all of them, or none.
    pub(crate) fn files(&self) -> Result<Option<Files>, NotAConfig> {
        match (&self.certificate, &self.key, &self.authority) {
            (None, None, None) => Ok(None),
            (Some(cert), Some(key), Some(ca)) => {
                Ok(Some(Files { cert: cert.clone(), key: key.clone(), ca: ca.clone() }))
            }
            _ => refuse("control.certificate, control.key and control.authority belong together; write all of them"),
        }
    }

    pub(super) fn check(&self, has_authority: bool) -> Result<(), NotAConfig> {
        let is_plain = self.files()?.is_none() && !has_authority;
        if is_plain && !self.listen.ip().is_loopback() {
            return refuse(format!(
                "control.listen = \"{}\" is reachable from other machines without TLS; write control.certificate, \
                 control.key and control.authority, or listen on 127.0.0.1",
                self.listen
            ));
        }
        if is_plain && self.revocations.is_some() {
            return refuse("control.revocations is set without control.certificate; write control.certificate, too");
        }
        match self.donors.unclear().or(self.hosts.unclear()) {
            Some(pattern) => refuse(format!("control: `{}` has more than one *; write one", pattern.escape_default())),
            None => Ok(()),
        }
    }
}

pub(super) fn default_control() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7444)
}
