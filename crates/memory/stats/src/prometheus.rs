// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Prometheus text, exposition format 0.0.4, of any number of instances.
//!
//! Names are those of `names.rs` with the prefix `aquifer_`, the suffix `_total` for a counter, and units as Prometheus
//! wants them: seconds and bytes, last in the name. Every sample is labelled with the instance's `pid` and `program`,
//! and with its systemd `unit` if the caller knows it. `instance` is a scraper's own label, so it is not used.

use std::fmt::{Display, Write};

use crate::names::{Counter, FaultKind, Gauge, LevelCounter, LevelGauge, Place, TEMPERATURES, Text};
use crate::snapshot::{LevelSnapshot, Snapshot};

/// Histogram bounds: powers of two from 1.024 us, below the cheapest fault measured (4.7 us), to 4.3 s.
const BOUNDS_POWERS: std::ops::RangeInclusive<u32> = 10..=32;

/// The text for a scrape. Each name is described once, regardless of the number of instances.
pub fn to_prometheus(snapshots: &[Snapshot]) -> String {
    let instances: Vec<Labelled<'_>> = snapshots.iter().map(|snapshot| Labelled::new(snapshot, None)).collect();
    page(&instances)
}

/// The same, for instances with the systemd units that they belong to.
pub fn to_prometheus_of_units(instances: &[(Snapshot, Option<String>)]) -> String {
    let instances: Vec<Labelled<'_>> =
        instances.iter().map(|(snapshot, unit)| Labelled::new(snapshot, unit.as_deref())).collect();
    page(&instances)
}

/// One instance, and the labels of all its samples.
struct Labelled<'a> {
    snapshot: &'a Snapshot,
    labels: String,
}

impl<'a> Labelled<'a> {
    fn new(snapshot: &'a Snapshot, unit: Option<&str>) -> Labelled<'a> {
        let program = escaped(snapshot.text(Text::Program));
        let pid = snapshot.pid().map(|pid| pid.to_string()).unwrap_or_default();
        let mut labels = format!("pid=\"{pid}\",program=\"{program}\"");
        if let Some(unit) = unit {
            write!(labels, ",unit=\"{}\"", escaped(unit)).expect("a String takes any text");
        }
        Labelled { snapshot, labels }
    }
}

/// A gauge's name. The unit is last, and is a base unit.
fn gauge_name(gauge: Gauge) -> String {
    match gauge {
        Gauge::StartTimeUnixS => "aquifer_start_time_seconds".into(),
        _ => match gauge.name().strip_suffix("_bytes_peak") {
            Some(what) => format!("aquifer_{what}_peak_bytes"),
            None => format!("aquifer_{}", gauge.name()),
        },
    }
}

/// A counter's name, and what its value has to be divided by for the unit of that name.
fn counter_name(counter: Counter) -> (String, Option<f64>) {
    match counter.name().strip_suffix("_ns") {
        Some(what) => (format!("aquifer_{what}_seconds_total"), Some(1e9)),
        None => (format!("aquifer_{}_total", counter.name()), None),
    }
}

fn page(instances: &[Labelled<'_>]) -> String {
    let mut page = Page { text: String::new() };
    for counter in Counter::ALL {
        let (name, divisor) = counter_name(*counter);
        page.describe(&name, "counter", counter.help());
        for Labelled { snapshot, labels } in instances {
            let count = snapshot.counter(*counter);
            match divisor {
                Some(divisor) => page.sample(&name, labels, count as f64 / divisor),
                None => page.sample(&name, labels, count),
            }
        }
    }
    for gauge in Gauge::ALL.iter().filter(|gauge| **gauge != Gauge::Pid) {
        let name = gauge_name(*gauge);
        page.describe(&name, "gauge", gauge.help());
        for Labelled { snapshot, labels } in instances {
            page.sample(&name, labels, snapshot.gauge(*gauge));
        }
    }
    page.levels(instances);
    page.temperatures(instances);
    page.latencies(instances);
    page.describe("aquifer_instance_info", "gauge", "Settings of the instance; always 1.");
    for Labelled { snapshot, labels } in instances {
        let settings = [Text::Policy, Text::Tier, Text::Block, Text::Delivery, Text::Exchange];
        let mut all = labels.clone();
        for text in settings {
            write!(all, ",{}=\"{}\"", text.name(), escaped(snapshot.text(text))).expect("a String takes any text");
        }
        page.sample("aquifer_instance_info", &all, 1);
    }
    page.text
}

struct Page {
    text: String,
}

impl Page {
    fn describe(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        self.line(format_args!("{name}{{{labels}}} {value}"));
    }

    /// Writes nothing if no instance has a chain of tiers.
    fn levels(&mut self, instances: &[Labelled<'_>]) {
        if instances.iter().all(|instance| instance.snapshot.levels().is_empty()) {
            return;
        }
        for counter in LevelCounter::ALL {
            let name = format!("aquifer_level_{}_total", counter.name());
            self.describe(&name, "counter", counter.help());
            self.each_level(&name, instances, |level| level.counter(*counter));
        }
        for gauge in LevelGauge::ALL {
            let name = format!("aquifer_level_{}", gauge.name());
            self.describe(&name, "gauge", gauge.help());
            self.each_level(&name, instances, |level| level.gauge(*gauge));
        }
    }

    fn each_level(&mut self, name: &str, instances: &[Labelled<'_>], value: impl Fn(&LevelSnapshot) -> u64) {
        for Labelled { snapshot, labels } in instances {
            for (index, level) in snapshot.levels().iter().enumerate() {
                let labels = format!("{labels},level=\"{index}\",tier=\"{}\"", escaped(&level.name));
                self.sample(name, &labels, value(level));
            }
        }
    }

    fn temperatures(&mut self, instances: &[Labelled<'_>]) {
        const NAME: &str = "aquifer_temperature_bytes";
        self.describe(NAME, "gauge", "Memory with contents by temperature: 0 is cold, 255 as hot as it gets.");
        for Labelled { snapshot, labels } in instances {
            for place in Place::ALL {
                for (class, bytes) in TEMPERATURES.iter().zip(snapshot.heat_bytes(*place)) {
                    self.sample(NAME, &format!("{labels},place=\"{}\",temperature=\"{class}\"", place.name()), bytes);
                }
            }
        }
    }

    fn latencies(&mut self, instances: &[Labelled<'_>]) {
        const NAME: &str = "aquifer_fault_latency_seconds";
        self.describe(NAME, "histogram", "Time to resolve a fault, by how it was resolved.");
        for Labelled { snapshot, labels } in instances {
            for kind in FaultKind::ALL {
                let latencies = snapshot.latencies(*kind);
                let labels = format!("{labels},kind=\"{}\"", kind.name());
                for power in BOUNDS_POWERS {
                    let bound_s = (1_u64 << power) as f64 / 1e9;
                    let below = latencies.count_below_power(power);
                    self.line(format_args!("{NAME}_bucket{{{labels},le=\"{bound_s}\"}} {below}"));
                }
                let count = latencies.count();
                self.line(format_args!("{NAME}_bucket{{{labels},le=\"+Inf\"}} {count}"));
                self.line(format_args!("{NAME}_sum{{{labels}}} {}", latencies.sum_us() / 1e6));
                self.line(format_args!("{NAME}_count{{{labels}}} {count}"));
            }
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        self.text.write_fmt(line).expect("a String takes any text");
        self.text.push('\n');
    }
}

/// A label's value: backslash, quote and newline are escaped.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::Counters;

    #[test]
    fn times_are_in_seconds() {
        let counters = Counters::create().unwrap();
        counters.add(Counter::EngineLockHeldNs, 2_500_000_000);
        let text = to_prometheus(&[counters.snapshot()]);
        let held = text.lines().find(|line| line.starts_with("aquifer_engine_lock_held_seconds_total{"));
        assert!(held.is_some_and(|line| line.ends_with("} 2.5")), "{held:?}");
    }

    /// A parser of the format, as strict as scrapers are: a family is described before its first sample, once; names
    /// and label names contain only allowed characters; values are numbers.
    fn families(text: &str) -> BTreeMap<String, (String, Vec<String>)> {
        let mut families: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
        let mut described = String::new();
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                described = help.split_once(' ').expect("HELP has a sentence").0.to_owned();
                assert!(!families.contains_key(&described), "{described} is described twice");
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("TYPE has a kind");
                assert_eq!(name, described);
                assert!(["counter", "gauge", "histogram"].contains(&kind));
                families.insert(name.to_owned(), (kind.to_owned(), Vec::new()));
            } else {
                let (name, rest) = line.split_once('{').expect("every sample is labelled");
                let (labels, value) = rest.rsplit_once("} ").expect("labels are closed");
                assert!(value.parse::<f64>().is_ok(), "{line}");
                assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{line}");
                assert!(labels.starts_with("pid=\""), "{line}");
                let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
                let family = family.filter(|family| families.contains_key(*family)).unwrap_or(name);
                assert_eq!(family, described, "{line}");
                families.get_mut(family).expect("described first").1.push(line.to_owned());
            }
        }
        families
    }

    #[test]
    fn the_text_is_well_formed_and_complete() {
        let counters = Counters::create().unwrap();
        counters.write(Text::Program, "odd \"name\\\n");
        counters.set(Gauge::Pid, 42);
        counters.record(FaultKind::Fetch, 3000);
        counters.record(FaultKind::Fetch, 100_000_000_000);
        counters.write_level(0, "dram");
        counters.write_level(1, "flash");
        counters.add_level(1, LevelCounter::Reads, 9);
        let one = counters.snapshot();
        let text = to_prometheus(&[one.clone(), one]);
        assert!(text.ends_with('\n'));
        let families = families(&text);
        let levels = LevelCounter::COUNT + LevelGauge::COUNT;
        assert_eq!(families.len(), Counter::COUNT + Gauge::COUNT - 1 + 3 + levels);
        for (name, (kind, samples)) in &families {
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            assert!(!samples.is_empty(), "{name}");
        }
        let reads = &families["aquifer_level_reads_total"].1;
        assert!(reads.len() == 4 && reads[1].ends_with(",level=\"1\",tier=\"flash\"} 9"), "{reads:?}");
        let heat = &families["aquifer_temperature_bytes"].1;
        assert_eq!(heat.len(), 2 * Place::COUNT * TEMPERATURES.len());
        assert!(heat[12].ends_with(",place=\"away\",temperature=\"4-7\"} 0"), "{}", heat[12]);
        let buckets = &families["aquifer_fault_latency_seconds"].1;
        let fetch = |le: &str| {
            let found =
                buckets.iter().find(|line| line.contains("kind=\"fetch\"") && line.contains(&format!("le=\"{le}\"")));
            found.expect("the bound exists").rsplit_once(' ').unwrap().1.to_owned()
        };
        assert_eq!((fetch("0.000002048"), fetch("0.000004096"), fetch("+Inf")), ("0".into(), "1".into(), "2".into()));
        assert!(text.contains(r#"program="odd \"name\\?""#));
    }

    #[test]
    fn names_are_pinned() {
        let counters = Counters::create().unwrap();
        assert!(!to_prometheus(&[counters.snapshot()]).contains("aquifer_level"), "only of chains");
        counters.write_level(0, "dram");
        let text = to_prometheus(&[counters.snapshot()]);
        let names: String =
            text.lines().filter(|line| line.starts_with("# TYPE ")).map(|line| format!("{line}\n")).collect();
        let golden = include_str!("../tests/golden/prometheus_names.txt");
        assert!(names == golden, "the names are not the golden ones any more; they are now:\n{names}");
    }
}
