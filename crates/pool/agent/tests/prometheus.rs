// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The alerts and the dashboard in `packaging/` name only metrics of agents and programs that exist. That the rules are
//! right, and fire when they should, is tested with those of the managers (`manager/tests/prometheus.rs`); that a real
//! Prometheus scrapes an agent, in `e2e/tests/metrics.rs`.

use std::collections::BTreeSet;
use std::path::Path;

use aquifer_agent::METRICS;

/// The metrics of programs, which `aquifer_stats` pins.
const OF_PROGRAMS: &str = include_str!("../../../memory/stats/tests/golden/prometheus_names.txt");

/// Returns the metrics of agents and programs that a text names, without the endings of histograms.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|one: char| !one.is_ascii_alphanumeric() && one != '_');
    let ours = words.filter(|word| word.starts_with("aquifer_") && !word.starts_with("aquifer_fabric_"));
    let base =
        |word: &str| ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end).map(str::to_owned));
    ours.map(|word| base(word).unwrap_or_else(|| word.to_owned())).collect()
}

#[test]
fn alerts_and_dashboard_name_only_metrics_that_exist() {
    let of_programs = OF_PROGRAMS.lines().filter_map(|line| line.split(' ').nth(2));
    let known: BTreeSet<String> = METRICS.iter().map(|metric| metric.0).chain(of_programs).map(str::to_owned).collect();
    for (file, of_agents, all) in [("prometheus/alerts.yml", 3, 3), ("grafana/aquifer.json", 6, 12)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging").join(file);
        let named = named(&std::fs::read_to_string(path).expect("the file"));
        assert!(named.len() >= all, "{file}: {named:?}");
        assert!(
            named.iter().filter(|name| name.starts_with("aquifer_agent_")).count() >= of_agents,
            "{file}: {named:?}"
        );
        let unknown: Vec<_> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
}
