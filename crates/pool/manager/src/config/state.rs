// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The setting `state`: a directory, or a table that names the store and what it needs.

use std::fmt;
use std::path::{Path, PathBuf};

use aquifer_state_store::{Bounds, EtcdSettings, EtcdTls};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{NotAConfig, refuse, within};

/// Shortest and longest lease of the leadership. Below, etcd's own elections let it end; above, a failover takes
/// minutes.
const LEASE_SECONDS: (u64, u64) = (3, 300);

/// Where the state is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StateConfig {
    /// In a file in this directory.
    Directory(PathBuf),
    /// In the store that the table describes.
    Store(StoreConfig),
}

/// The kind of store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum StoreConfig {
    /// A file in a directory: one manager.
    Embedded(EmbeddedConfig),
    /// A cluster of etcd: several managers, of which one writes.
    Etcd(EtcdConfig),
}

/// The settings of the store in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EmbeddedConfig {
    /// Where the file is.
    pub directory: PathBuf,
}

/// The store on etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EtcdConfig {
    /// The directory for what this manager keeps for itself: the first password.
    pub directory: PathBuf,
    /// URLs of etcd's members.
    pub endpoints: Vec<String>,
    /// What the keys of this pool begin with.
    #[serde(default = "default_prefix")]
    pub prefix: String,
    /// The authorities that sign etcd's certificates, as PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// This manager's certificate for etcd, as PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// Its private key, as PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// The URL at which clients reach this manager, by default where it listens. Standbys name the leader's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// How long the leader may fail to renew its lease before another manager takes its place.
    #[serde(default = "default_lease")]
    pub lease_seconds: u64,
}

fn default_prefix() -> String {
    "aquifer".into()
}

fn default_lease() -> u64 {
    10
}

impl<'de> Deserialize<'de> for StateConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StateConfig, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = StateConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a directory, or a table with kind = \"embedded\" or \"etcd\"")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<StateConfig, E> {
                Ok(StateConfig::Directory(text.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<StateConfig, A::Error> {
                StoreConfig::deserialize(MapAccessDeserializer::new(map)).map(StateConfig::Store)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl StateConfig {
    /// Returns the directory that this manager has for itself.
    pub fn directory(&self) -> &Path {
        match self {
            Self::Directory(directory) => directory,
            Self::Store(StoreConfig::Embedded(embedded)) => &embedded.directory,
            Self::Store(StoreConfig::Etcd(etcd)) => &etcd.directory,
        }
    }

    /// Returns the settings of etcd, if the state is there.
    pub fn etcd(&self) -> Option<&EtcdConfig> {
        match self {
            Self::Store(StoreConfig::Etcd(etcd)) => Some(etcd),
            _ => None,
        }
    }

    pub(super) fn check(&self) -> Result<(), NotAConfig> {
        if self.directory().as_os_str().is_empty() {
            return refuse("state is empty; name a directory");
        }
        self.etcd().map_or(Ok(()), EtcdConfig::check)
    }
}

impl EtcdConfig {
    fn check(&self) -> Result<(), NotAConfig> {
        if self.certificate.is_some() != self.key.is_some() {
            return refuse("state.certificate and state.key belong together; write both or neither");
        }
        if self.certificate.is_some() && self.ca.is_none() {
            return refuse("state.certificate is without state.ca; name the authorities of etcd, too");
        }
        if let Some(url) = &self.url {
            let is_url = url.starts_with("http://") || url.starts_with("https://");
            if !is_url || url.len() > 255 || url.bytes().any(|byte| !byte.is_ascii_graphic()) || url.ends_with('/') {
                let shown = url.escape_default();
                return refuse(format!("state.url = \"{shown}\" is no URL; write https://HOST:PORT"));
            }
        }
        within("state.lease-seconds", self.lease_seconds, LEASE_SECONDS.0, LEASE_SECONDS.1)?;
        self.settings().check().map_err(|not| NotAConfig(format!("state: {not}")))
    }

    /// Returns the settings as the store takes them.
    pub(crate) fn settings(&self) -> EtcdSettings {
        let identity = self.certificate.clone().zip(self.key.clone());
        let tls = self.ca.clone().map(|ca| EtcdTls { ca, identity });
        EtcdSettings { endpoints: self.endpoints.clone(), prefix: self.prefix.clone(), tls, bounds: Bounds::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn parse(table: &str) -> Result<Config, NotAConfig> {
        Config::parse(&format!("[peers]\nkind = \"simulated\"\n[state]\ndirectory = \"s\"\n{table}"))
    }

    #[test]
    fn the_state_is_a_directory_or_a_table() {
        let plain = Config::parse("state = \"s\"\n[peers]\nkind = \"simulated\"\n").expect("a directory");
        let table = parse("kind = \"embedded\"").expect("a table");
        assert_eq!(plain.state.directory(), table.state.directory());
        let etcd = parse("kind = \"etcd\"\nendpoints = [\"http://a:1\"]").expect("a table");
        let settings = etcd.state.etcd().expect("etcd").settings();
        assert_eq!((settings.prefix.as_str(), settings.tls), ("aquifer", None));
        for config in [plain, table, etcd] {
            assert_eq!(Config::parse(&config.to_toml()), Ok(config));
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_the_remedy() {
        let etcd = |more: &str| format!("kind = \"etcd\"\nendpoints = [\"http://a:1\"]\n{more}");
        for (table, line) in [
            ("kind = \"redis\"".to_owned(), "unknown variant `redis`"),
            ("kind = \"etcd\"".to_owned(), "missing field `endpoints`"),
            ("kind = \"etcd\"\nendpoints = []".to_owned(), "name 1 to 16"),
            (etcd("prefx = \"a\""), "unknown field `prefx`"),
            (etcd("key = \"k\""), "write both or neither"),
            (etcd("key = \"k\"\ncertificate = \"c\""), "name the authorities"),
            (etcd("url = \"manager1\""), "write https://HOST:PORT"),
            (etcd("lease-seconds = 1"), "state.lease-seconds = 1 is outside 3 to 300"),
            (etcd("prefix = \"\""), "is not a key"),
        ] {
            let refusal = parse(&table).expect_err(&table).to_string();
            assert!(refusal.contains(line) && !refusal.contains('\n') && refusal.contains("; "), "{refusal}");
        }
    }
}
