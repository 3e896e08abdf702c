// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The machines to which the manager may send events. They are listed, so that an account that can subscribe cannot
//! make the manager send requests to every machine that the manager can reach.

use serde::{Deserialize, Serialize};

/// The machines to which events may be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EventsConfig {
    /// Names and addresses of the machines to which events may be sent, besides this one.
    #[serde(default)]
    pub listeners: Vec<String>,
}

impl EventsConfig {
    /// Returns whether events may be sent to the host of a URL.
    pub(crate) fn allows(&self, host: &str) -> bool {
        is_loopback(host) || self.listeners.iter().any(|listener| listener.eq_ignore_ascii_case(host))
    }
}

/// Returns whether the host of a URL is this machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}
