// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The configuration file: TOML, checked as a whole before anything is started. Unknown keys are refused.
//!
//! [`reference`] is a file with every setting, its default and its meaning; `docs/fabric.md` and
//! `aquifer-fabricd --print-config` print it, and a test reads it back.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use aquifer_cxl_peers::SwitchConfig;
use aquifer_sys::small_file;
use serde::{Deserialize, Serialize};

mod ca;
mod control;
mod events;
mod peers;
mod state;
mod telemetry;

pub use ca::CaConfig;
pub use control::ControlConfig;
pub use events::EventsConfig;
pub(crate) use events::is_loopback;
pub use peers::{PeersConfig, RegisteredConfig, SimulatedConfig};
pub use state::{EmbeddedConfig, EtcdConfig, StateConfig, StoreConfig};
pub use telemetry::TelemetryConfig;

/// Maximum size of a configuration file.
pub const CONFIG_BYTES_MAX: usize = 1 << 20;

/// The configuration of a manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Config {
    /// Where the state is kept.
    pub state: StateConfig,
    /// The address at which clients connect.
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// The directory of the console's files; without it, those that were installed with the daemon, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub console: Option<PathBuf>,
    /// The server's certificate. Without it, only loopback addresses are allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// The pool's authority, which signs certificates of donors, hosts and managers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<CaConfig>,
    /// Where Prometheus gets the metrics, without TLS and without a password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<SocketAddr>,
    /// Where spans are sent; nowhere by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<TelemetryConfig>,
    /// Donors, hosts and switches.
    pub peers: PeersConfig,
    /// Where registered peers connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<ControlConfig>,
    /// The limits on sessions and passwords.
    #[serde(default)]
    pub sessions: SessionsConfig,
    /// The machines to which events may be sent.
    #[serde(default)]
    pub events: EventsConfig,
    /// The rounds of the reconciler.
    #[serde(default)]
    pub rounds: RoundsConfig,
    /// The CXL switches that it manages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<SwitchConfig>,
}

/// The server's certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TlsConfig {
    /// The certificate and those that signed it, as PEM.
    pub certificate: PathBuf,
    /// Its private key, as PEM.
    pub key: PathBuf,
}

/// The limits on sessions and passwords.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct SessionsConfig {
    /// How long a session may be idle before it ends.
    pub idle_seconds: u64,
    /// How long a session lasts at most, even if it is used.
    pub life_seconds: u64,
    /// Wrong passwords in a row that lock an account for the address that sent them, or for its IPv6 network.
    pub failures: u32,
    /// How long it is locked.
    pub locked_seconds: u64,
    /// Logins that one address, or IPv6 network, may try in a minute.
    pub logins_per_minute: u32,
}

impl Default for SessionsConfig {
    fn default() -> SessionsConfig {
        SessionsConfig {
            idle_seconds: 1800,
            life_seconds: 43_200,
            failures: 5,
            locked_seconds: 300,
            logins_per_minute: 30,
        }
    }
}

/// The rounds of the reconciler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct RoundsConfig {
    /// The time between two rounds while nothing is under way.
    pub idle_ms: u64,
    /// The time between two rounds while something is.
    pub busy_ms: u64,
    /// How long a donor may be silent until its members are replaced.
    pub silent_seconds: u64,
}

impl Default for RoundsConfig {
    fn default() -> RoundsConfig {
        RoundsConfig { idle_ms: 1000, busy_ms: 20, silent_seconds: 60 }
    }
}

fn default_listen() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7443)
}

/// Why a configuration is refused: one line with the setting and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAConfig(String);

impl fmt::Display for NotAConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotAConfig {}

fn refuse<T>(line: impl Into<String>) -> Result<T, NotAConfig> {
    Err(NotAConfig(line.into()))
}

impl Config {
    /// Parses and checks the text of a configuration file.
    pub fn parse(text: &str) -> Result<Config, NotAConfig> {
        if text.len() > CONFIG_BYTES_MAX {
            return refuse(format!("the configuration has {} bytes; write {CONFIG_BYTES_MAX} at most", text.len()));
        }
        let config: Config = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let what = error.message().replace(['\n', '\r'], " ");
            NotAConfig(format!("line {line}: {what}; `aquifer fabric serve --print-config` prints every setting"))
        })?;
        config.check()?;
        Ok(config)
    }

    /// Reads a configuration file.
    pub fn read(path: &Path) -> Result<Config, NotAConfig> {
        let name = path.display();
        let text = small_file::read_text(path, CONFIG_BYTES_MAX as u64)
            .map_err(|error| NotAConfig(format!("{name}: {error}; name a file that can be read")))?;
        Config::parse(&text).map_err(|not| NotAConfig(format!("{name}: {not}")))
    }

    /// Returns the text of a configuration file with these settings.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("settings are TOML")
    }

    fn check(&self) -> Result<(), NotAConfig> {
        if self.tls.is_none() && self.ca.is_none() && !self.listen.ip().is_loopback() {
            return refuse(format!(
                "listen = \"{}\" is reachable from other machines without TLS; add [tls], or listen on 127.0.0.1",
                self.listen
            ));
        }
        self.state.check()?;
        match (&self.peers, &self.control) {
            (PeersConfig::Simulated(peers), None) => peers.check()?,
            (PeersConfig::Registered(_), Some(control)) => control.check(self.ca.is_some())?,
            (PeersConfig::Simulated(_), Some(_)) => {
                return refuse("[control] is for registered peers; write peers.kind = \"registered\", or remove it");
            }
            (PeersConfig::Registered(_), None) => {
                return refuse("peers.kind = \"registered\" needs [control]; write where donors and hosts connect");
            }
        }
        if let Some(ca) = &self.ca {
            ca.check(self.state.etcd().is_some())?;
        }
        SwitchConfig::check_all(&self.switches).map_err(|not| NotAConfig(not.to_string()))?;
        let limits = [
            ("sessions.idle-seconds", self.sessions.idle_seconds, 1, 86_400),
            ("sessions.life-seconds", self.sessions.life_seconds, 1, 30 * 86_400),
            ("sessions.failures", u64::from(self.sessions.failures), 1, 100),
            ("sessions.locked-seconds", self.sessions.locked_seconds, 1, 86_400),
            ("sessions.logins-per-minute", u64::from(self.sessions.logins_per_minute), 1, 10_000),
            ("rounds.idle-ms", self.rounds.idle_ms, 10, 60_000),
            ("rounds.busy-ms", self.rounds.busy_ms, 1, 60_000),
            ("rounds.silent-seconds", self.rounds.silent_seconds, 1, 86_400),
        ];
        limits.into_iter().try_for_each(|(name, value, min, max)| within(name, value, min, max))
    }
}

fn within(name: &str, value: u64, min: u64, max: u64) -> Result<(), NotAConfig> {
    match value {
        value if (min..=max).contains(&value) => Ok(()),
        _ => refuse(format!("{name} = {value} is outside {min} to {max}; write a number within")),
    }
}

/// Returns a configuration with every setting, its default and its meaning.
pub fn reference() -> &'static str {
    include_str!("reference.toml")
}

#[cfg(test)]
mod tests {
    use super::control::default_control;
    use super::*;

    const SMALL: &str = "state = \"s\"\n[peers]\nkind = \"simulated\"\n";

    const REGISTERED: &str = "state = \"s\"\n[peers]\nkind = \"registered\"\n[control]\n";

    #[test]
    fn a_file_without_end_is_refused() {
        let refusal = Config::read(Path::new("/dev/zero")).expect_err("no configuration").to_string();
        assert_eq!(refusal, "/dev/zero: it has more than 1048576 bytes; name a file that can be read");
    }

    #[test]
    fn the_control_port_has_defaults() {
        let config = Config::parse(REGISTERED).expect("enough");
        let control = config.control.expect("it is there");
        assert_eq!((control.listen, control.files()), (default_control(), Ok(None)));
        for key in ["listen", "certificate", "key", "authority", "revocations", "donors", "hosts"] {
            let (_, rest) = reference().split_once("# [control]").expect("it is described");
            assert!(rest.contains(&format!("# {key} = ")), "{key}");
        }
    }

    #[test]
    fn the_reference_has_a_line_for_each_setting_of_the_authority() {
        let (_, rest) = reference().split_once("\n# [ca]\n").expect("it is described");
        let (section, _) = rest.split_once("\n\n").expect("its end");
        let plain = ["domain", "name", "addresses", "days", "certificate", "key", "joins-per-minute"];
        for key in plain.into_iter().chain(["next-certificate", "next-key", "old-certificate", "old-key"]) {
            assert!(section.contains(&format!("\n# {key} = ")), "{key}");
        }
    }

    #[test]
    fn the_configuration_in_the_documentation_is_one() {
        let page = include_str!("../../../../docs/fabric.md");
        let (_, rest) = page.split_once("## Real donors").expect("the section");
        let (_, rest) = rest.split_once("```toml\n").expect("its configuration");
        let (text, _) = rest.split_once("```").expect("its end");
        let config = Config::parse(&format!("state = \"s\"\n{text}")).expect("it can be used");
        let control = config.control.expect("it has a control port");
        assert!(control.files().is_ok_and(|files| files.is_some()));
        assert!(control.donors.admit("dns:d1.donors.example", "d1"));
        assert!(!control.hosts.admit("dns:d1.donors.example", "d1"));
    }

    #[test]
    fn the_reference_lists_every_setting_with_its_default() {
        let config = Config::parse(reference()).expect("it can be used as it is");
        let mut small = Config::parse(SMALL).expect("the two settings without a default");
        small.state = config.state.clone();
        assert_eq!(config, small, "the values of the reference are the defaults");
        let written: toml::Table = toml::from_str(&config.to_toml()).expect("TOML");
        for (name, value) in &written {
            assert!(reference().contains(name.as_str()), "{name}");
            for key in value.as_table().into_iter().flat_map(|table| table.keys()) {
                assert!(reference().contains(&format!("{key} = ")), "{name}.{key}");
            }
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_the_remedy() {
        for (text, line) in [
            ("", "missing field `state`"),
            ("state = \"s\"\n[peers]\nkind = \"real\"\n", "unknown variant `real`"),
            ("state = \"s\"\n[peers]\nkind = \"registered\"\n", "needs [control]"),
            (&format!("{SMALL}[control]\n"), "is for registered peers"),
            (&format!("{REGISTERED}listen = \"0.0.0.0:1\"\n"), "write control.certificate"),
            (&format!("{REGISTERED}key = \"k\"\n"), "belong together"),
            (&format!("{REGISTERED}revocations = \"r\"\n"), "write control.certificate, too"),
            (&format!("{REGISTERED}donors = [\"dns:*.a.*\"]\n"), "more than one *"),
            (&format!("{SMALL}[ca]\nnext-key = \"k\"\n"), "ca.next-certificate and ca.next-key belong together"),
            (&format!("{SMALL}[ca]\nold-certificate = \"c\"\n"), "ca.old-certificate and ca.old-key belong together"),
            (
                &format!(
                    "{SMALL}[ca]\nnext-certificate = \"c\"\nnext-key = \"k\"\nold-certificate = \"d\"\n\
                     old-key = \"k\"\n"
                ),
                "finish one change of the authority",
            ),
            (&format!("{SMALL}[[switches]]\nname = \"s0\"\naddress = \"s0\"\n"), "'s0' is not a peer; write tcp:"),
            (&format!("{SMALL}[telemetry]\ncollector = \"http://10.0.0.1:4318\"\n"), "on this machine"),
            (&format!("{SMALL}donrs = 3\n"), "unknown field `donrs`"),
            (&format!("{SMALL}devices = 129\n"), "peers.devices = 129 is outside 0 to 128"),
            (&format!("{SMALL}donor-capacity = \"3MiB\"\n"), "write whole 2MiB"),
            (&format!("{SMALL}[rounds]\nidle-ms = 0\n"), "rounds.idle-ms = 0 is outside 10 to 60000"),
            (&format!("listen = \"0.0.0.0:1\"\n{SMALL}"), "add [tls], or listen on 127.0.0.1"),
            ("state = \"\u{202e}", "line 1"),
        ] {
            let refusal = Config::parse(text).expect_err(text).to_string();
            assert!(refusal.contains(line) && !refusal.contains('\n') && refusal.contains("; "), "{refusal}");
        }
    }
}
