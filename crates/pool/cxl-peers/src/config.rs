// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A switch's part of the configuration: where it is, and which hosts are at its upstream ports. The FM API does not
//! say the latter.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use aquifer_fabric::{EnclosureId, HostId, PortId, RackId, SwitchId};
use aquifer_fmapi_client::{Limits, OpenFailure, PeerAddress};
use serde::{Deserialize, Serialize};

/// How long a switch may take to answer, in milliseconds.
const ANSWER_MS: std::ops::RangeInclusive<u64> = 10..=60_000;
/// How long a background operation may take, in seconds.
const BACKGROUND_SECONDS: std::ops::RangeInclusive<u64> = 1..=600;
/// The form of an MCTP address over TCP as other tools write it; `tcp:` means the same.
const MCTP_TCP: &str = "mctp-tcp://";

/// How memory is wiped before another host gets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wipe {
    /// The switch or the device wipes by itself what is unbound or released, as its vendor states.
    OnUnbind,
    /// LDs by the command Sanitize (4400h), dynamic capacity when it is released.
    #[default]
    Sanitize,
}

/// A switch that the fabric manager manages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SwitchConfig {
    /// Its name, with which the names of its devices begin.
    pub name: SwitchId,
    /// Where it is: `mctp-tcp://HOST:PORT`, `tcp:HOST:PORT`, `unix:PATH`, `mailbox:PATH` or `mctp:NETWORK,EID`.
    pub address: String,
    /// The enclosure of the switch and its devices; without one, they get an enclosure for themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enclosure: Option<EnclosureId>,
    /// The rack of that enclosure, unless another part of the topology says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<RackId>,
    /// How memory is wiped.
    #[serde(default)]
    pub wipe: Wipe,
    /// How long an answer may take. MCTP allows a peer 2 s.
    #[serde(default = "answer_ms")]
    pub answer_ms: u64,
    /// How long a bind or an unbind may take.
    #[serde(default = "background_seconds")]
    pub background_seconds: u64,
    /// The upstream ports of each host.
    #[serde(default)]
    pub hosts: BTreeMap<HostId, BTreeSet<PortId>>,
}

fn answer_ms() -> u64 {
    2000
}

fn background_seconds() -> u64 {
    10
}

/// Why a switch's configuration is refused: one line with the setting and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotASwitch(String);

impl fmt::Display for NotASwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotASwitch {}

impl SwitchConfig {
    /// Checks all switches of a configuration.
    pub fn check_all(switches: &[SwitchConfig]) -> Result<(), NotASwitch> {
        let mut names = BTreeSet::new();
        for switch in switches {
            if !names.insert(&switch.name) {
                return Err(NotASwitch(format!("two switches are called {}; rename one of them", switch.name)));
            }
            switch.check().map_err(|why| NotASwitch(format!("switch {}: {why}", switch.name)))?;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), NotASwitch> {
        self.peer_address()?;
        let limits = [
            ("answer-ms", self.answer_ms, ANSWER_MS),
            ("background-seconds", self.background_seconds, BACKGROUND_SECONDS),
        ];
        for (name, value, range) in limits {
            if !range.contains(&value) {
                let (min, max) = range.into_inner();
                return Err(NotASwitch(format!("{name} = {value} is outside {min} to {max}; write a number within")));
            }
        }
        let mut ports = BTreeSet::new();
        match self.hosts.values().flatten().find(|port_id| !ports.insert(**port_id)) {
            Some(port_id) => Err(NotASwitch(format!("two hosts have port {port_id}; leave it to one of them"))),
            None => Ok(()),
        }
    }

    /// Returns the address, parsed.
    pub fn peer_address(&self) -> Result<PeerAddress, NotASwitch> {
        let text = match self.address.strip_prefix(MCTP_TCP) {
            Some(place) => format!("tcp:{}", place.trim_end_matches('/')),
            None => self.address.clone(),
        };
        // A line of a message, whatever the address holds.
        let plain = |failure: OpenFailure| NotASwitch(failure.to_string().replace(char::is_control, " "));
        text.parse().map_err(plain)
    }

    /// Returns the bounds of the client's waits. A command that is refused as busy is sent again by the caller, after
    /// it has read the state again, and not by the client.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            answer: Duration::from_millis(self.answer_ms),
            background: Duration::from_secs(self.background_seconds),
            background_poll: Duration::from_millis(5),
            busy_retries: 0,
            ..Limits::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch(address: &str) -> SwitchConfig {
        let text = format!(r#"{{"name": "s0", "address": "{address}", "hosts": {{"h0": [6], "h1": [7]}}}}"#);
        serde_json::from_str(&text).expect("the settings without a default")
    }

    #[test]
    fn addresses_are_those_of_the_client_and_of_other_tools() {
        for (written, meant) in [
            ("mctp-tcp://10.0.0.7:2508", "tcp:10.0.0.7:2508"),
            ("mctp-tcp://switch.example/", "tcp:switch.example:2508"),
            ("unix:/run/switch.sock", "unix:/run/switch.sock"),
        ] {
            assert_eq!(switch(written).peer_address().expect(written).to_string(), meant);
        }
        let refused = switch("ftp://10.0.0.7").check().expect_err("no peer").to_string();
        assert!(refused.contains("'ftp' is not a kind of peer; write tcp:"), "{refused}");
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_the_remedy() {
        let mut twice = switch("tcp:a");
        twice.hosts.insert("h2".parse().expect("a name"), [PortId(6)].into());
        let slow = SwitchConfig { answer_ms: 1, ..switch("tcp:a") };
        for (switches, said) in [
            (vec![twice], "switch s0: two hosts have port 6; leave it to one of them"),
            (vec![slow], "switch s0: answer-ms = 1 is outside 10 to 60000; write a number within"),
            (vec![switch("tcp:a"), switch("tcp:b")], "two switches are called s0; rename one of them"),
        ] {
            assert_eq!(SwitchConfig::check_all(&switches).expect_err(said).to_string(), said);
        }
        assert_eq!(SwitchConfig::check_all(&[switch("tcp:a")]), Ok(()));
    }
}
