// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The metrics as Prometheus reads them. Pure.
//!
//! [`METRICS`] lists every one with its type and its meaning; the alerts and the dashboard in `packaging/` name only
//! these, which a test checks. Only the leader exports the metrics that describe the pool.

use std::fmt::Write;

use aquifer_control::FaultFigures;
use aquifer_fabric::Bytes;

use crate::meters::{BUCKETS_US, Durations, Readings};
use crate::snapshot::{Answering, Snapshot};

/// Upper limits of the buckets of fault latencies, as powers of two of nanoseconds: 1 us to 4.3 s, each four times as
/// long as the one before.
const FAULT_POWERS: [u8; 12] = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32];

/// The name, the type and the meaning of each metric.
pub const METRICS: &[(&str, &str, &str)] = &[
    ("aquifer_fabric_leader", "gauge", "1 if this manager leads, 0 if it stands by."),
    ("aquifer_fabric_terms_total", "counter", "How often this manager became the leader."),
    (
        "aquifer_fabric_claims_rejected_total",
        "counter",
        "Answers of donors, hosts and devices that claim a greater term, and were rejected.",
    ),
    ("aquifer_fabric_term", "gauge", "The term of this manager."),
    ("aquifer_fabric_capacity_bytes", "gauge", "Maximum memory that the donors lend."),
    ("aquifer_fabric_lent_bytes", "gauge", "Memory that is lent, and returned memory that is not wiped yet."),
    ("aquifer_fabric_volumes", "gauge", "Volumes, by state: bound, unbound."),
    ("aquifer_fabric_unsettled_volumes", "gauge", "Volumes that are not yet as desired."),
    (
        "aquifer_fabric_unrepaired_members",
        "gauge",
        "Members that cannot be replaced, and volumes whose change cannot be stored.",
    ),
    ("aquifer_fabric_peers", "gauge", "Donors, hosts and devices, by kind and by whether they answer."),
    ("aquifer_fabric_fault_hosts", "gauge", "Hosts whose agents have counted the faults of their programs lately."),
    (
        "aquifer_fabric_fault_latency_seconds",
        "histogram",
        "Time to resolve a fault, for those that agents have counted since this manager leads.",
    ),
    ("aquifer_fabric_rounds_seconds", "histogram", "Rounds of the reconciler."),
    ("aquifer_fabric_steps_total", "counter", "Steps that were sent."),
    ("aquifer_fabric_steps_failed_total", "counter", "Steps that were refused or lost."),
    ("aquifer_fabric_store_commit_seconds", "histogram", "Transactions of the state's store."),
    ("aquifer_fabric_store_commits_failed_total", "counter", "Transactions that were not committed."),
    ("aquifer_fabric_requests_total", "counter", "Answered requests, by route, method and status."),
    ("aquifer_fabric_spans_sent_total", "counter", "Spans that the OpenTelemetry collector has taken."),
    (
        "aquifer_fabric_spans_dropped_total",
        "counter",
        "Spans that the OpenTelemetry collector did not take, or not in time.",
    ),
    ("aquifer_fabric_audit_damaged", "gauge", "1 if the last check of the audit log found damage."),
];

struct Page {
    text: String,
    last: &'static str,
}

impl Page {
    /// Adds one sample. All samples of a metric follow each other, below its header.
    fn add(&mut self, name: &'static str, suffix: &str, labels: &str, value: impl std::fmt::Display) {
        if self.last != name {
            let (_, kind, meaning) = METRICS.iter().find(|metric| metric.0 == name).expect("every metric is listed");
            self.last = name;
            self.write(format_args!("# HELP {name} {meaning}\n# TYPE {name} {kind}\n"));
        }
        match labels {
            "" => self.write(format_args!("{name}{suffix} {value}\n")),
            labels => self.write(format_args!("{name}{suffix}{{{labels}}} {value}\n")),
        }
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) {
        self.text.write_fmt(text).expect("a text takes what is written");
    }

    fn durations(&mut self, name: &'static str, durations: &Durations) {
        let mut count = 0;
        for (number, bucket) in durations.buckets.iter().enumerate() {
            count += bucket;
            let limit = BUCKETS_US.get(number).map_or("+Inf".to_owned(), |us| seconds(*us));
            self.add(name, "_bucket", &format!("le=\"{limit}\""), count);
        }
        self.add(name, "_sum", "", seconds(durations.sum_us));
        self.add(name, "_count", "", count);
    }

    fn faults(&mut self, figures: &FaultFigures) {
        const NAME: &str = "aquifer_fabric_fault_latency_seconds";
        self.add("aquifer_fabric_fault_hosts", "", "", figures.hosts);
        for power in FAULT_POWERS {
            let limit_s = (1_u64 << power) as f64 / 1e9;
            self.add(NAME, "_bucket", &format!("le=\"{limit_s}\""), figures.total.count_below_power(power));
        }
        let count = figures.total.count();
        self.add(NAME, "_bucket", "le=\"+Inf\"", count);
        self.add(NAME, "_sum", "", figures.total.sum_ns as f64 / 1e9);
        self.add(NAME, "_count", "", count);
    }

    fn pool(&mut self, snapshot: &Snapshot) {
        let lent: Bytes = snapshot.topology.parts().donors.keys().map(|donor| snapshot.lent(donor)).sum();
        self.add("aquifer_fabric_term", "", "", snapshot.term.0);
        self.add("aquifer_fabric_capacity_bytes", "", "", snapshot.capacity().0);
        self.add("aquifer_fabric_lent_bytes", "", "", lent.0);
        let (wanted, bound) = (snapshot.desired.volumes.wanted_count(), snapshot.desired.volumes.bound_count());
        self.add("aquifer_fabric_volumes", "", "state=\"bound\"", bound);
        self.add("aquifer_fabric_volumes", "", "state=\"unbound\"", wanted - bound);
        self.add("aquifer_fabric_unsettled_volumes", "", "", snapshot.unsettled());
        self.add("aquifer_fabric_unrepaired_members", "", "", snapshot.unrepaired.len());
        for (kind, Answering { answering, all }) in
            [("donor", snapshot.donors()), ("host", snapshot.hosts()), ("device", snapshot.devices())]
        {
            self.add("aquifer_fabric_peers", "", &format!("kind=\"{kind}\",answers=\"yes\""), answering);
            self.add("aquifer_fabric_peers", "", &format!("kind=\"{kind}\",answers=\"no\""), all - answering);
        }
        self.faults(&snapshot.faults);
    }
}

/// Returns microseconds as seconds, exactly.
fn seconds(us: u64) -> String {
    let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns the page of metrics. A standby has no snapshot of the pool.
pub(crate) fn exposition(readings: &Readings, led: Option<&Snapshot>) -> String {
    let mut page = Page { text: String::new(), last: "" };
    page.add("aquifer_fabric_leader", "", "", u8::from(led.is_some()));
    page.add("aquifer_fabric_terms_total", "", "", readings.terms);
    page.add("aquifer_fabric_claims_rejected_total", "", "", readings.claims_rejected);
    if let Some(snapshot) = led {
        page.pool(snapshot);
    }
    page.durations("aquifer_fabric_rounds_seconds", &readings.rounds);
    page.add("aquifer_fabric_steps_total", "", "", readings.steps);
    page.add("aquifer_fabric_steps_failed_total", "", "", readings.steps_failed);
    page.durations("aquifer_fabric_store_commit_seconds", &readings.commits);
    page.add("aquifer_fabric_store_commits_failed_total", "", "", readings.commits_failed);
    for ((method, route, status), count) in &readings.answered {
        let labels = format!("route=\"{route}\",method=\"{method}\",status=\"{status}\"");
        page.add("aquifer_fabric_requests_total", "", &labels, count);
    }
    page.add("aquifer_fabric_spans_sent_total", "", "", readings.spans.sent);
    page.add("aquifer_fabric_spans_dropped_total", "", "", readings.spans.dropped);
    page.add("aquifer_fabric_audit_damaged", "", "", u8::from(readings.is_audit_damaged));
    page.text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use aquifer_telemetry::Counts;

    use super::*;
    use crate::meters::Meters;

    #[test]
    fn every_metric_is_given_once_with_its_header() {
        let meters = Meters::default();
        meters.count_answer("GET", "/redfish/v1", 200);
        meters.count_commit(Duration::from_micros(700), true);
        let text = exposition(&meters.read(Counts::default()), Some(&Snapshot::default()));
        for (name, kind, _) in METRICS {
            assert_eq!(text.matches(&format!("# TYPE {name} {kind}\n")).count(), 1, "{name} in {text}");
        }
        let buckets = "aquifer_fabric_store_commit_seconds_bucket{le=\"0.0005\"} 0\n\
                       aquifer_fabric_store_commit_seconds_bucket{le=\"0.001\"} 1\n";
        assert!(text.contains(buckets) && text.contains("aquifer_fabric_store_commit_seconds_sum 0.0007\n"), "{text}");
        assert!(text.contains("{route=\"/redfish/v1\",method=\"GET\",status=\"200\"} 1\n"), "{text}");
    }

    #[test]
    fn fault_latencies_are_a_histogram() {
        let total = aquifer_control::Faults { sum_ns: 27_000, buckets: [(40, 3)].into() };
        let faults = FaultFigures { hosts: 2, total, ..FaultFigures::default() };
        let text = exposition(&Readings::default(), Some(&Snapshot { faults: faults.into(), ..Snapshot::default() }));
        let name = "aquifer_fabric_fault_latency_seconds";
        let lines = format!("{name}_bucket{{le=\"0.000004096\"}} 0\n{name}_bucket{{le=\"0.000016384\"}} 3\n");
        let ends = format!("{name}_bucket{{le=\"+Inf\"}} 3\n{name}_sum 0.000027\n{name}_count 3\n");
        assert!(text.contains(&lines) && text.contains(&ends), "{text}");
        assert!(text.contains("aquifer_fabric_fault_hosts 2\n"), "{text}");
    }

    #[test]
    fn a_standby_says_nothing_about_the_pool() {
        let text = exposition(&Readings::default(), None);
        assert!(text.starts_with("# HELP aquifer_fabric_leader") && text.contains("aquifer_fabric_leader 0\n"));
        assert!(!text.contains("capacity") && !text.contains("peers"), "{text}");
    }
}
