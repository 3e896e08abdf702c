// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The figures of a bench as a table and as JSON, each with its bar.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::bind_all::BOX_BAR;
use super::{Bench, OWN_COST_BAR, Timed, list};

fn us(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e7).round() / 10.0
}

fn verdict(is_kept: bool) -> &'static str {
    if is_kept { "kept" } else { "missed" }
}

const HEADS: &str = "command                              count   median us     99th us      max us";

/// Returns a line of the table, without what its last column adds.
fn line(timed: &Timed) -> String {
    match (timed.quantile(0.5), timed.quantile(0.99), timed.max()) {
        (Some(median), Some(most), Some(max)) => format!(
            "{:<34} {:>7}  {:>10.1}  {:>10.1}  {:>10.1}",
            timed.name,
            timed.count(),
            us(median),
            us(most),
            us(max),
        ),
        _ => format!("{:<34} not supported", timed.name),
    }
}

/// Returns the figures as a table.
pub(super) fn text(bench: &Bench) -> String {
    let mut text = format!(
        "own cost of a command, at a peer in this process that answers at once; bar: a median of at most {} us\n\
         {HEADS}  bar\n",
        us(OWN_COST_BAR),
    );
    for timed in &bench.own {
        let is_kept = timed.quantile(0.5).is_some_and(|median| median <= OWN_COST_BAR);
        let _ = writeln!(text, "{}  {}", line(timed), verdict(is_kept));
    }
    let _ = writeln!(text, "\n{}, dialect {}\n{HEADS}  commands/s", bench.peer, bench.dialect);
    for timed in &bench.answers {
        let rate = timed.rate().map_or(String::new(), |rate| format!("  {rate:>10.0}"));
        let _ = writeln!(text, "{}{rate}", line(timed));
    }
    if let Some(bound) = &bench.bound {
        let (devices, hosts, most) = BOX_BAR;
        let verdict = bound.keeps_bar().map_or("fewer are here", verdict);
        let _ = writeln!(
            text,
            "\n{} devices were bound to {} hosts {:.2} s after the connection was begun; bar for {devices} devices and \
             {hosts} hosts: less than {} s: {verdict}",
            bound.devices,
            bound.hosts,
            bound.time.as_secs_f64(),
            most.as_secs(),
        );
        if !bound.left_bound.is_empty() {
            let _ = writeln!(text, "could not be unbound, use 'aquifer fmapi unbind': {}", list(&bound.left_bound));
        }
    }
    text
}

fn times(timed: &Timed) -> Value {
    json!({
        "command": timed.name, "count": timed.count(), "median_us": timed.quantile(0.5).map(us),
        "p99_us": timed.quantile(0.99).map(us), "max_us": timed.max().map(us),
    })
}

/// Returns the figures as one JSON object.
pub(super) fn json(bench: &Bench) -> Value {
    let answers = bench.answers.iter().map(|timed| {
        let mut one = times(timed);
        one["commands_per_second"] = json!(timed.rate().map(f64::round));
        one
    });
    let bound = bench.bound.as_ref().map(|bound| {
        let (devices, hosts, most) = BOX_BAR;
        let vppb = |(vcs_id, vppb_id): &(u8, u8)| json!({ "vcs_id": vcs_id, "vppb_id": vppb_id });
        json!({
            "devices": bound.devices, "hosts": bound.hosts, "seconds": bound.time.as_secs_f64(),
            "bar": { "devices": devices, "hosts": hosts, "seconds": most.as_secs() },
            "keeps_bar": bound.keeps_bar(),
            "left_bound": bound.left_bound.iter().map(vppb).collect::<Vec<_>>(),
        })
    });
    json!({
        "peer": bench.peer, "dialect": bench.dialect,
        "own_cost": {
            "commands": bench.own.iter().map(times).collect::<Vec<_>>(), "bar_us": us(OWN_COST_BAR),
            "keeps_bar": bench.keeps_own_cost(),
        },
        "commands": answers.collect::<Vec<_>>(), "bound": bound,
    })
}
