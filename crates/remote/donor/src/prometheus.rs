// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor's figures as Prometheus text, exposition format 0.0.4.
//!
//! The name of a figure is its word (`aquifer_wire::Figure::word`) with the prefix `aquifer_donor_`. Refusals are
//! counted by their reason, and a donor with fabric managers has figures about these. A name that ends in `_total` is a
//! counter.

use std::fmt::Write;

use aquifer_wire::{DonorStatus, Figure, Refusal};

use crate::control_end::ManagedStatus;

/// The text for a scrape.
pub fn to_prometheus(status: &DonorStatus) -> String {
    const REFUSALS: &str = "aquifer_donor_refusals_total";
    let mut text = String::new();
    let mut line = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("a String takes any text");
    for figure in Figure::ALL {
        let kind = if figure.word().ends_with("_total") { "counter" } else { "gauge" };
        let name = format!("aquifer_donor_{}", figure.word());
        line(format_args!("# HELP {name} {}.", figure.meaning()));
        line(format_args!("# TYPE {name} {kind}"));
        line(format_args!("{name} {}", status.figure(*figure)));
    }
    line(format_args!("# HELP {REFUSALS} What was refused, by the reason."));
    line(format_args!("# TYPE {REFUSALS} counter"));
    for refusal in Refusal::ALL {
        line(format_args!("{REFUSALS}{{reason=\"{}\"}} {}", refusal.word(), status.refused(*refusal)));
    }
    text
}

/// The text about fabric managers, for a donor that has some.
pub fn managed_to_prometheus(status: &ManagedStatus) -> String {
    let mut text = String::new();
    for (name, meaning, value) in [
        ("managers", "Fabric managers that have registered this donor", status.managers),
        ("drained", "1 while an operator drains this donor", u64::from(status.is_drained)),
    ] {
        let name = format!("aquifer_donor_{name}");
        writeln!(text, "# HELP {name} {meaning}.\n# TYPE {name} gauge\n{name} {value}")
            .expect("a String takes any text");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of a name breaks somebody's alerts: AQUIFER_GOLDEN=1 accepts it.
    #[test]
    fn the_names_and_kinds_are_pinned() {
        let mut status = DonorStatus { figures: [3; Figure::ALL.len()], refusals: [0; Refusal::ALL.len()] };
        status.refusals[Refusal::Slow.index()] = 5;
        let text = to_prometheus(&status);
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/prometheus.txt");
        if std::env::var_os("AQUIFER_GOLDEN").is_some() {
            std::fs::write(golden, &text).unwrap();
        }
        assert!(std::fs::read_to_string(golden).unwrap_or_default() == text, "it is now:\n{text}");
        assert!(text.contains("\naquifer_donor_refusals_total{reason=\"slow\"} 5\n"));
    }
}
