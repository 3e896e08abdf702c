// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The manager's address: `http://HOST[:PORT]` on this machine, or `https://HOST[:PORT]`. Pure.
//!
//! A password or a token over HTTP can be read by anyone on the path, so HTTP is allowed only on loopback.

use std::fmt;
use std::net::IpAddr;

/// The manager's port, unless another one is given.
const PORT: u16 = 7443;

/// The address of a manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// `true` if the manager is reached by TLS.
    pub is_https: bool,
    /// A name, or an IP address without brackets.
    pub host: String,
    /// The port, never 0.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

impl Address {
    /// Returns `HOST:PORT`, for the header Host.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// Parses and checks a URL. The error is one line.
    pub fn parse(url: &str) -> Result<Address, String> {
        let wrong = |what: &str| {
            Err(format!("'{}' {what}; write https://HOST[:PORT], or http://127.0.0.1[:PORT]", url.escape_debug()))
        };
        let (is_https, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return wrong("is not an address of a manager"),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, port)) if host.contains(':') && host.parse::<IpAddr>().is_ok() => {
                (host, port.strip_prefix(':'))
            }
            Some(_) => return wrong("has no IPv6 address in its brackets"),
            None => rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port))),
        };
        let is_name = |one: char| one.is_ascii_alphanumeric() || "-._:".contains(one);
        if host.is_empty() || !host.chars().all(is_name) {
            return wrong("has no name of a host");
        }
        if rest.starts_with('[') && port.is_none() && !rest.ends_with(']') {
            return wrong("has more text after its IPv6 address");
        }
        let digits = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
        let port = match port.map(|text| Some(text).filter(digits).and_then(|text| text.parse::<u16>().ok())) {
            None => PORT,
            Some(Some(port)) if port > 0 => port,
            Some(_) => return wrong("has an invalid port"),
        };
        let is_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        if !is_https && !is_loopback {
            return wrong("would send the password unencrypted");
        }
        Ok(Address { is_https, host: host.to_owned(), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_printed() {
        for (url, printed) in [
            ("http://127.0.0.1", "http://127.0.0.1:7443"),
            ("http://127.9.9.9:80/", "http://127.9.9.9:80"),
            ("http://localhost:1", "http://localhost:1"),
            ("http://[::1]:65535", "http://[::1]:65535"),
            ("https://[2001:db8::1]", "https://[2001:db8::1]:7443"),
            ("https://fabric.example", "https://fabric.example:7443"),
        ] {
            let address = Address::parse(url).expect(url);
            assert_eq!(address.to_string(), printed);
            assert_eq!(Address::parse(printed), Ok(address));
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_remedy() {
        for url in [
            "",
            "127.0.0.1",
            "ftp://a",
            "http://",
            "https://:1",
            "https://a:",
            "https://a:0",
            "https://a:+1",
            "https://a:65536",
            "https://a/b",
            "https://a@b",
            "https://a b",
            "https://a\r\nx",
            "https://[a]",
            "https://[::1",
            "https://[::1]x",
            "https://[127.0.0.1]",
            "https://a:1:2",
            "http://10.0.0.7",
            "http://localhost.example",
            "http://127.0.0.1.example",
            "http://[::ffff:127.0.0.1]",
            "http://0.0.0.0",
        ] {
            let line = Address::parse(url).expect_err(url);
            assert!(line.contains("; write https://") && !line.contains(['\n', '\r']), "{line}");
        }
    }
}
