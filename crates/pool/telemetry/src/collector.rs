// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The URL of a collector, which is on this machine. Pure.
//!
//! Spans name volumes, hosts and the paths of requests, and OTLP over HTTP has no protection of its own. So the
//! collector is on this machine, as OpenTelemetry recommends for each host, and it is the collector that sends them on,
//! over TLS.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The URL of a collector, such as `http://127.0.0.1:4318`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Collector {
    /// `localhost`, or an address without brackets.
    host: String,
    port: u16,
}

/// Why a text is not the URL of a collector: one line with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotACollector {
    url: String,
    why: &'static str,
}

impl fmt::Display for NotACollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotACollector { url, why } = self;
        write!(f, "spans cannot be sent to '{}': {why}", url.escape_debug())
    }
}

impl std::error::Error for NotACollector {}

impl FromStr for Collector {
    type Err = NotACollector;

    fn from_str(text: &str) -> Result<Collector, NotACollector> {
        let not = |why| Err(NotACollector { url: text.to_owned(), why });
        let Some(place) = text.strip_prefix("http://") else {
            return not("write a URL such as http://127.0.0.1:4318, where a collector of this machine listens");
        };
        let Some((host, port)) = place.strip_suffix('/').unwrap_or(place).rsplit_once(':') else {
            return not("its port is missing; OTLP over HTTP usually has 4318");
        };
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        let Some(port) = port.parse().ok().filter(|port| is_number && *port != 0) else {
            return not("its port is not a number from 1 to 65535, or a path follows; write http://HOST:PORT");
        };
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let address = bare.unwrap_or(host).parse::<IpAddr>().ok();
        let is_written = address.is_none_or(|address| address.is_ipv6() == bare.is_some());
        if host != "localhost" && !(is_written && address.is_some_and(|address| address.is_loopback())) {
            return not("spans are sent in plain text; name a collector on this machine, and let it send them on");
        }
        Ok(Collector { host: bare.unwrap_or(host).to_owned(), port })
    }
}

impl TryFrom<String> for Collector {
    type Error = NotACollector;

    fn try_from(text: String) -> Result<Collector, NotACollector> {
        text.parse()
    }
}

impl From<Collector> for String {
    fn from(collector: Collector) -> String {
        collector.to_string()
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority())
    }
}

impl Collector {
    /// Returns the host's name or address, and the port.
    pub(crate) fn place(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// Returns host and port as in a URL.
    pub(crate) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_on_this_machine() {
        for url in ["http://127.0.0.1:4318", "http://localhost:4318/", "http://[::1]:4318", "http://127.0.0.2:1"] {
            let collector: Collector = url.parse().unwrap();
            assert_eq!(collector.to_string(), url.trim_end_matches('/'));
            assert_eq!(String::from(collector.clone()).parse(), Ok(collector));
        }
        for (url, part) in [
            ("", "write a URL such as http://127.0.0.1:4318"),
            ("https://localhost:4318", "write a URL"),
            ("http://localhost", "port is missing"),
            ("http://localhost:0", "1 to 65535"),
            ("http://localhost:+1", "1 to 65535"),
            ("http://localhost:65536", "1 to 65535"),
            ("http://localhost:4318/v1/traces", "1 to 65535"),
            ("http://localhost:4318//", "1 to 65535"),
            ("http://:4318", "on this machine"),
            ("http://10.0.0.1:4318", "on this machine"),
            ("http://0.0.0.0:4318", "on this machine"),
            ("http://::1:4318", "on this machine"),
            ("http://[127.0.0.1]:4318", "on this machine"),
            ("http://[[::1]]:4318", "on this machine"),
            ("http://user@127.0.0.1:4318", "on this machine"),
            ("http://localhost.example:4318", "on this machine"),
            ("http://a\r\nb:4318", "on this machine"),
        ] {
            let message = url.parse::<Collector>().expect_err(url).to_string();
            assert!(message.contains(part) && !message.contains('\n'), "{url}: {message}");
        }
    }
}
