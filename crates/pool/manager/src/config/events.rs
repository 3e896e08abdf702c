// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! To which machines the manager sends events. A list, so that an account that can subscribe cannot make the manager
//! send requests to any machine that it reaches.

use serde::{Deserialize, Serialize};

/// Where events may be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EventsConfig {
    /// Names and addresses of machines that events may be sent to, besides this one.
    #[serde(default)]
    pub listeners: Vec<String>,
}

impl EventsConfig {
    /// Whether events may be sent to a host of a URL.
    pub(crate) fn allows(&self, host: &str) -> bool {
        is_loopback(host) || self.listeners.iter().any(|listener| listener.eq_ignore_ascii_case(host))
    }
}

/// Whether a host of a URL is this machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}
