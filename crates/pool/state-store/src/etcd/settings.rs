// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How etcd is reached: endpoints, the prefix of all keys, certificates, and the bounds of every wait.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::key::Key;

/// Maximum number of endpoints. Clusters of etcd have three, five or seven members.
pub const ENDPOINTS_MAX: usize = 16;
/// Maximum length of the prefix: with it, keys stay short enough for etcd.
pub const PREFIX_BYTES_MAX: usize = 200;

/// Bounds of waits and retries. The default suits a cluster with etcd's default timeouts: an election of etcd's takes
/// one to two seconds, within which requests fail or hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How long a connection with its handshake may take.
    pub connect_max: Duration,
    /// How long an answer may take. etcd itself gives a request up after 7 s.
    pub answer_max: Duration,
    /// How often a request is sent before it counts as failed, each time to the next endpoint.
    pub attempts_max: u32,
    /// The pause when every endpoint has failed. It doubles with each round over them, up to eight times this.
    pub pause: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            connect_max: Duration::from_secs(2),
            answer_max: Duration::from_secs(4),
            attempts_max: 8,
            pause: Duration::from_millis(100),
        }
    }
}

/// Certificates for `https` endpoints, as PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdTls {
    /// The authorities that sign etcd's certificates.
    pub ca: PathBuf,
    /// The certificate that is shown to etcd, with its private key, where etcd asks for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Where the state is, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdSettings {
    /// URLs of members: `http://HOST:PORT` or `https://HOST:PORT`.
    pub endpoints: Vec<String>,
    /// What the keys of this pool begin with; several pools may share a cluster.
    pub prefix: String,
    /// The certificates for endpoints with `https`.
    pub tls: Option<EtcdTls>,
    /// The bounds of waits for etcd.
    pub bounds: Bounds,
}

/// Why settings cannot be used: one line with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotSettings(pub(super) String);

impl fmt::Display for NotSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotSettings {}

/// One member of etcd, as a URL names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) is_https: bool,
    /// The host, without the brackets of an IPv6 address.
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

impl Endpoint {
    /// Returns host and port, as the header `host` has them.
    pub(super) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Parses `http://HOST:PORT` or `https://HOST:PORT`.
    pub(super) fn parse(url: &str) -> Result<Endpoint, NotSettings> {
        let shown = url.escape_default();
        let refuse = || NotSettings(format!("\"{shown}\" is not an endpoint of etcd; write https://HOST:2379"));
        let (is_https, rest) = match url.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            _ => return Err(refuse()),
        };
        let (host, port) = rest.strip_suffix('/').unwrap_or(rest).rsplit_once(':').ok_or_else(refuse)?;
        let port = port.parse().map_err(|_| refuse())?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        let is_plain = match bare {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.bytes().all(is_name),
        };
        match is_plain && port > 0 {
            true => Ok(Endpoint { is_https, host: bare.unwrap_or(host).to_owned(), port }),
            false => Err(refuse()),
        }
    }
}

impl EtcdSettings {
    /// Checks everything that can be checked without a file or a connection.
    pub fn check(&self) -> Result<(), NotSettings> {
        self.parsed_endpoints().map(drop)
    }

    pub(super) fn parsed_endpoints(&self) -> Result<Vec<Endpoint>, NotSettings> {
        let refuse = |line: String| Err(NotSettings(line));
        if !(1..=ENDPOINTS_MAX).contains(&self.endpoints.len()) {
            let count = self.endpoints.len();
            return refuse(format!("{count} endpoints of etcd are named; name 1 to {ENDPOINTS_MAX} of its members"));
        }
        let is_prefix = Key::new(self.prefix.as_str()).is_ok() && self.prefix.len() <= PREFIX_BYTES_MAX;
        if !is_prefix || self.prefix.ends_with('/') {
            let shown = self.prefix.escape_default();
            return refuse(format!(
                "prefix \"{shown}\" is not a key; use letters, digits and '/' within, such as aquifer"
            ));
        }
        let endpoints: Vec<Endpoint> =
            self.endpoints.iter().map(|url| Endpoint::parse(url)).collect::<Result<_, _>>()?;
        if self.tls.is_none() && endpoints.iter().any(|one| one.is_https) {
            return refuse(
                "an endpoint is https, and no authority is named; set ca to the file that signs etcd".into(),
            );
        }
        Ok(endpoints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(endpoints: &[&str], prefix: &str) -> EtcdSettings {
        let endpoints = endpoints.iter().map(|&url| url.to_owned()).collect();
        EtcdSettings { endpoints, prefix: prefix.into(), tls: None, bounds: Bounds::default() }
    }

    #[test]
    fn endpoints_are_urls_with_a_port() {
        for (url, shown) in [
            ("http://127.0.0.1:2379", "http://127.0.0.1:2379"),
            ("https://[::1]:2379/", "https://[::1]:2379"),
            ("https://etcd-1.example:2379", "https://etcd-1.example:2379"),
        ] {
            assert_eq!(Endpoint::parse(url).expect(url).to_string(), shown);
        }
        for url in
            ["", "etcd:2379", "http://etcd", "http://:1", "http://a b:1", "http://a/x:1", "http://a:0", "ftp://a:1"]
        {
            let refusal = Endpoint::parse(url).expect_err(url).to_string();
            assert!(refusal.contains("; write https://HOST:2379") && !refusal.contains('\n'), "{refusal}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_the_remedy() {
        for (wrong, line) in [
            (settings(&[], "aquifer"), "name 1 to 16"),
            (settings(&["http://a:1"; 17], "aquifer"), "17 endpoints"),
            (settings(&["http://a:1"], "aquifer/"), "is not a key"),
            (settings(&["http://a:1"], "\u{202e}"), "is not a key"),
            (settings(&["https://a:1"], "aquifer"), "set ca"),
        ] {
            let refusal = wrong.check().expect_err(line).to_string();
            assert!(refusal.contains(line) && refusal.contains("; ") && refusal.is_ascii(), "{refusal}");
        }
        assert_eq!(settings(&["http://a:1", "http://b:1"], "pools/one").check(), Ok(()));
    }
}
