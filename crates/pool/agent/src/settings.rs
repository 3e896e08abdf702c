// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The agent's configuration, checked. Pure. `docs/agent.md` documents every setting.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use aquifer_agent_wire::{SOCKET, STATE};
use aquifer_control::ManagerAddress;
use aquifer_cxl_host::{Nodes, Purpose};
use aquifer_fabric::{DeviceId, DonorId, HostId};
use aquifer_telemetry::Collector;
use aquifer_tls::Files;
use serde::Deserialize;

use crate::permits::{Permits, RawPermit};

/// Programs that are served at the same time, unless the file gives another number.
const PROGRAMS: usize = 256;
/// That number at most: each takes a thread and three descriptors.
const PROGRAMS_MAX: usize = 8192;

/// The agent's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// This host's name in the pool.
    pub host: HostId,
    /// Where programs are served.
    pub socket: PathBuf,
    /// The directory of the state.
    pub state: PathBuf,
    /// Programs that are served at the same time.
    pub programs_max: usize,
    /// The fabric managers.
    pub managers: Vec<ManagerAddress>,
    /// This host's certificate, for the managers and the donors; `None` for plain text, only to this machine.
    pub tenant: Option<Files>,
    /// Lists of revoked certificates, for programs, which refuse donors on them; `None` if they are to read no list.
    pub revocations: Option<PathBuf>,
    /// Where donors are, if not where the manager says.
    pub donors: BTreeMap<DonorId, DonorAddress>,
    /// Where Prometheus gets the metrics, without TLS and without a password; nowhere by default.
    pub metrics: Option<SocketAddr>,
    /// Where spans of what the agent does are sent; nowhere by default.
    pub collector: Option<Collector>,
    /// What the host is like, for placement and for people.
    pub labels: BTreeMap<String, String>,
    /// How to bring memory devices that are bound to this host online; `None` if the agent refuses them.
    pub cxl: Option<CxlSettings>,
    /// Which volumes programs may open.
    pub volumes: Permits,
}

/// How to bring memory devices online.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CxlSettings {
    /// Whether their memory becomes a node or stays a device.
    pub purpose: Purpose,
    /// Whether each device gets its own node.
    pub nodes: Nodes,
    /// Whether memory in use is migrated to other nodes before an unbind. If not, the unbind waits until its holders
    /// end.
    pub migrate: bool,
    /// The serial numbers of devices whose names do not end with them.
    pub serials: BTreeMap<DeviceId, u64>,
}

/// Where a donor is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DonorAddress {
    /// The donor's address, as `HOST:PORT`.
    pub address: String,
    /// The name in its certificate; by default the host of the address.
    pub name: Option<String>,
}

/// What is wrong with a configuration: one line with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsFailure(String);

impl fmt::Display for SettingsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SettingsFailure {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    host: String,
    socket: Option<PathBuf>,
    state: Option<PathBuf>,
    programs_max: Option<usize>,
    metrics: Option<SocketAddr>,
    manager: ManagerTable,
    tenant: Option<RawTenant>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    donors: BTreeMap<String, DonorAddress>,
    cxl: Option<RawCxl>,
    telemetry: Option<RawTelemetry>,
    #[serde(default)]
    volume: Vec<RawPermit>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCxl {
    #[serde(default)]
    memory: RawPurpose,
    #[serde(default)]
    nodes: RawNodes,
    #[serde(default = "yes")]
    migrate: bool,
    #[serde(default)]
    serials: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RawPurpose {
    Device,
    #[default]
    Node,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RawNodes {
    Each,
    #[default]
    One,
}

const fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ManagerTable {
    addresses: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTenant {
    cert: PathBuf,
    key: PathBuf,
    ca: PathBuf,
    crl: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTelemetry {
    collector: Collector,
}

impl FromStr for Settings {
    type Err = SettingsFailure;

    fn from_str(text: &str) -> Result<Settings, SettingsFailure> {
        let raw: Raw = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            SettingsFailure(format!(
                "line {line}: {}; see docs/agent.md for the settings",
                error.message().lines().collect::<Vec<_>>().join(" ")
            ))
        })?;
        let socket = raw.socket.unwrap_or_else(|| SOCKET.into());
        let state = raw.state.unwrap_or_else(|| STATE.into());
        let revocations = raw.tenant.as_ref().and_then(|tenant| tenant.crl.clone());
        let tenant = raw.tenant.map(|RawTenant { cert, key, ca, .. }| Files { cert, key, ca });
        let files = tenant.iter().flat_map(|files| [&files.cert, &files.key, &files.ca]).chain(&revocations);
        if let Some(path) = files.chain([&socket, &state]).find(|path| !path.is_absolute()) {
            return Err(failure(format!("'{}' is not an absolute path; write one", path.display())));
        }
        let programs_max = raw.programs_max.unwrap_or(PROGRAMS);
        if !(1..=PROGRAMS_MAX).contains(&programs_max) {
            return Err(failure(format!("programs_max is {programs_max}; write a number from 1 to {PROGRAMS_MAX}")));
        }
        if raw.manager.addresses.is_empty() {
            return Err(failure("manager.addresses is empty; name each manager, such as 'fabric.example:7444'"));
        }
        let donors = raw.donors.into_iter();
        let donors = donors.map(|(name, address)| Ok((name.parse().map_err(failure)?, address)));
        let managers = raw.manager.addresses.iter().map(|address| address.parse().map_err(failure));
        Ok(Settings {
            host: raw.host.parse().map_err(failure)?,
            socket,
            state,
            programs_max,
            metrics: raw.metrics,
            managers: managers.collect::<Result<_, _>>()?,
            tenant,
            revocations,
            donors: donors.collect::<Result<_, SettingsFailure>>()?,
            collector: raw.telemetry.map(|telemetry| telemetry.collector),
            labels: raw.labels,
            cxl: raw.cxl.map(cxl).transpose()?,
            volumes: raw.volume.try_into()?,
        })
    }
}

fn cxl(raw: RawCxl) -> Result<CxlSettings, SettingsFailure> {
    let serial = |(device, text): (String, String)| {
        let number = u64::from_str_radix(text.trim_start_matches("0x"), 16);
        let number = number.map_err(|_| {
            let text = text.escape_debug();
            failure(format!("'{text}' is not a serial number for {device}; write it in hexadecimal, such as 0x4d4"))
        })?;
        Ok((device.parse().map_err(failure)?, number))
    };
    Ok(CxlSettings {
        purpose: if matches!(raw.memory, RawPurpose::Node) { Purpose::Node } else { Purpose::Device },
        nodes: if matches!(raw.nodes, RawNodes::One) { Nodes::One } else { Nodes::Each },
        migrate: raw.migrate,
        serials: raw.serials.into_iter().map(serial).collect::<Result<_, SettingsFailure>>()?,
    })
}

pub(crate) fn failure(why: impl fmt::Display) -> SettingsFailure {
    SettingsFailure(why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "host = 'a'\n[manager]\naddresses = ['m:1']\n";

    #[test]
    fn defaults_are_for_a_package() {
        let settings: Settings = LEAST.parse().unwrap();
        assert_eq!((settings.programs_max, settings.tenant, settings.volumes), (256, None, Permits::default()));
        assert_eq!(settings.socket, PathBuf::from(SOCKET));
        assert_eq!(settings.metrics, None);
        let metrics = format!("metrics = '10.0.0.1:9466'\n{LEAST}").parse::<Settings>().unwrap().metrics;
        assert_eq!(metrics, Some(([10, 0, 0, 1], 9466).into()));
        let tenant = format!("{LEAST}[tenant]\ncert='/c'\nkey='/k'\nca='/a'\n");
        let crl = |more: &str| format!("{tenant}{more}").parse::<Settings>().unwrap().revocations;
        assert_eq!((crl(""), crl("crl='/l'\n")), (None, Some("/l".into())));
    }

    #[test]
    fn devices_become_memory_only_where_that_is_written() {
        assert_eq!(LEAST.parse::<Settings>().unwrap().cxl, None);
        let cxl = |more: &str| format!("{LEAST}[cxl]\n{more}").parse::<Settings>().map(|it| it.cxl.unwrap());
        let defaults = cxl("").unwrap();
        assert_eq!((defaults.purpose, defaults.nodes, defaults.migrate), (Purpose::Node, Nodes::One, true));
        let other = cxl("memory='device'\nnodes='each'\nmigrate=false\n[cxl.serials]\n's0.p3'='0x10'\n").unwrap();
        assert_eq!((other.purpose, other.nodes, other.migrate), (Purpose::Device, Nodes::Each, false));
        assert_eq!(other.serials.into_iter().collect::<Vec<_>>(), [("s0.p3".parse().unwrap(), 16)]);
        for (text, part) in [("memory='x'", "line 5"), ("[cxl.serials]\na='y'", "in hexadecimal")] {
            let message = cxl(text).expect_err(text).to_string();
            assert!(message.contains(part) && !message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn every_mistake_gets_one_line_with_a_remedy() {
        for (text, part) in [
            ("", "line 1"),
            ("host = 'A'\n[manager]\naddresses=['m:1']\n", "use only a-z"),
            ("host = 'a'\nsocket='x'\n[manager]\naddresses=['m:1']\n", "absolute"),
            ("host = 'a'\nprograms_max=0\n[manager]\naddresses=['m:1']\n", "from 1 to 8192"),
            ("host = 'a'\nmetrics='web:9466'\n[manager]\naddresses=['m:1']\n", "line 2: invalid socket address"),
            ("host = 'a'\ncolour='red'\n[manager]\naddresses=['m:1']\n", "line 2"),
            ("host = 'a'\n[manager]\naddresses=['m']\n", "m"),
            ("host = 'a'\n[manager]\naddresses=[]\n", "name each manager"),
            (&format!("{LEAST}[telemetry]\ncollector='http://10.0.0.1:4318'\n"), "on this machine"),
            (&format!("{LEAST}[tenant]\ncert='c'\nkey='/k'\nca='/a'\n"), "absolute"),
            (&format!("{LEAST}[tenant]\ncert='/c'\nkey='/k'\nca='/a'\ncrl='l'\n"), "'l' is not an absolute path"),
            (&format!("{LEAST}[tenant]\ncrl='/l'\n"), "line 4"),
        ] {
            let message = text.parse::<Settings>().expect_err(text).to_string();
            assert!(message.contains(part) && !message.contains('\n'), "{text}: {message}");
        }
    }
}
