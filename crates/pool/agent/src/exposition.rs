// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The agent's own metrics as Prometheus reads them. Pure.
//!
//! [`METRICS`] lists every one with its type and its meaning; the alerts and the dashboard in `packaging/` name only
//! these, which a test checks. The metrics of programs are those of `aquifer_stats`.

use std::fmt::{Display, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use aquifer_control::{ChannelStatus, ManagerAddress};
use aquifer_telemetry::Counts;

use crate::host_state::Figures;

/// The name, the type and the meaning of each metric.
pub const METRICS: &[(&str, &str, &str)] = &[
    ("aquifer_agent_manager_connected", "gauge", "1 if the agent is registered with this fabric manager, 0 if not."),
    (
        "aquifer_agent_manager_since_seconds",
        "gauge",
        "When the agent was registered, or lost its connection, or was started: Unix time.",
    ),
    ("aquifer_agent_volumes", "gauge", "Volumes, by state: bound, withdrawn and still in use."),
    ("aquifer_agent_members", "gauge", "Members of volumes, by state."),
    ("aquifer_agent_devices", "gauge", "Members on memory devices, by what this host has of them."),
    ("aquifer_agent_programs", "gauge", "Programs that are connected and have a volume open."),
    ("aquifer_agent_users", "gauge", "Uses of volumes that are remembered, also of programs that have disconnected."),
    ("aquifer_agent_programs_shown", "gauge", "Programs of 'aquifer run' whose statistics are here."),
    ("aquifer_agent_requests_refused_total", "counter", "Requests of programs that were denied, by reason."),
    ("aquifer_agent_state_unsaved", "gauge", "1 if the state directory lacks the newest state."),
    ("aquifer_agent_spans_sent_total", "counter", "Spans that the OpenTelemetry collector has taken."),
    (
        "aquifer_agent_spans_dropped_total",
        "counter",
        "Spans that the OpenTelemetry collector did not take, or not in time.",
    ),
];

/// How the channel to a manager stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManagerReading {
    address: String,
    is_connected: bool,
    since_s: u64,
}

impl ManagerReading {
    pub(crate) fn new(address: &ManagerAddress, status: ChannelStatus, since: SystemTime) -> ManagerReading {
        ManagerReading {
            address: address.to_string(),
            is_connected: status == ChannelStatus::Registered,
            since_s: since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        }
    }
}

/// What metrics show of one moment.
#[derive(Clone, Debug)]
pub(crate) struct Readings {
    pub(crate) managers: Vec<ManagerReading>,
    pub(crate) figures: Figures,
    pub(crate) is_stored: bool,
    pub(crate) shown: usize,
    pub(crate) refused: Vec<(&'static str, u64)>,
    pub(crate) spans: Counts,
}

struct Page(String);

impl Page {
    /// Adds a metric with its samples: labels and values. The labels need no escapes.
    fn add<V: Display>(&mut self, name: &str, samples: impl IntoIterator<Item = (String, V)>) {
        let (_, kind, meaning) = METRICS.iter().find(|metric| metric.0 == name).expect("every metric is listed");
        self.write(format_args!("# HELP {name} {meaning}\n# TYPE {name} {kind}\n"));
        for (labels, value) in samples {
            match labels.as_str() {
                "" => self.write(format_args!("{name} {value}\n")),
                labels => self.write(format_args!("{name}{{{labels}}} {value}\n")),
            }
        }
    }

    fn add_one(&mut self, name: &str, value: impl Display) {
        self.add(name, [(String::new(), value)]);
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) {
        self.0.write_fmt(text).expect("a text takes what is written");
    }
}

/// Returns the text.
pub(crate) fn exposition(readings: &Readings) -> String {
    let mut page = Page(String::new());
    let of_manager = |manager: &ManagerReading| format!("manager=\"{}\"", manager.address);
    let managers = || readings.managers.iter();
    page.add(
        "aquifer_agent_manager_connected",
        managers().map(|manager| (of_manager(manager), u8::from(manager.is_connected))),
    );
    page.add("aquifer_agent_manager_since_seconds", managers().map(|manager| (of_manager(manager), manager.since_s)));
    let Figures { volumes, members, devices, programs, users } = &readings.figures;
    let in_states = |counts: &[(&str, usize)]| -> Vec<(String, usize)> {
        counts.iter().map(|(state, count)| (format!("state=\"{state}\""), *count)).collect()
    };
    page.add("aquifer_agent_volumes", in_states(volumes));
    page.add("aquifer_agent_members", in_states(members));
    page.add("aquifer_agent_devices", in_states(devices));
    page.add_one("aquifer_agent_programs", programs);
    page.add_one("aquifer_agent_users", users);
    page.add_one("aquifer_agent_programs_shown", readings.shown);
    let refused = readings.refused.iter().map(|(reason, count)| (format!("reason=\"{reason}\""), count));
    page.add("aquifer_agent_requests_refused_total", refused);
    page.add_one("aquifer_agent_state_unsaved", u8::from(!readings.is_stored));
    page.add_one("aquifer_agent_spans_sent_total", readings.spans.sent);
    page.add_one("aquifer_agent_spans_dropped_total", readings.spans.dropped);
    page.0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::host_state::HostState;

    #[test]
    fn every_metric_is_given_once_with_its_header_and_a_sample() {
        let manager = |status, address: &str| {
            ManagerReading::new(&address.parse().unwrap(), status, UNIX_EPOCH + Duration::from_millis(1700))
        };
        let readings = Readings {
            managers: vec![manager(ChannelStatus::Registered, "m:1"), manager(ChannelStatus::Apart, "[::1]:2")],
            figures: HostState::new("boot").figures(),
            is_stored: false,
            shown: 3,
            refused: vec![("busy", 2)],
            spans: Counts::default(),
        };
        let text = exposition(&readings);
        for (name, kind, _) in METRICS {
            assert_eq!(text.matches(&format!("# TYPE {name} {kind}\n{name}")).count(), 1, "{name} in {text}");
        }
        for line in [
            "aquifer_agent_manager_connected{manager=\"m:1\"} 1",
            "aquifer_agent_manager_connected{manager=\"[::1]:2\"} 0",
            "aquifer_agent_manager_since_seconds{manager=\"m:1\"} 1",
            "aquifer_agent_volumes{state=\"withdrawn\"} 0",
            "aquifer_agent_programs_shown 3",
            "aquifer_agent_requests_refused_total{reason=\"busy\"} 2",
            "aquifer_agent_state_unsaved 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
