// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer tiering status`: a table of the nodes, the settings, what has been moved, and what to change.

use std::process;
use std::thread;
use std::time::Duration;

use aquifer_core::units::{ByteSize, PAGE_BYTES};
use aquifer_hotness::{damon_counts, devices_with_monitors};
use aquifer_nodes::Tree;
use aquifer_nodes::tiering::{State, advice};
use aquifer_terminal::{columns, width};
use serde::Serialize;

use super::read;
use crate::duration::duration;
use crate::exit::{ExitCode, Failure};
use crate::output;

/// Show which parts of the kernel's tiering are on, what they have done, and what to change
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  aquifer tiering status
  aquifer tiering status --over 10s    promotions and demotions within ten seconds
  aquifer tiering status --json        one object")]
pub struct StatusArgs {
    /// Count pages that are moved within this time, instead of since the start of the machine
    #[arg(long, value_name = "TIME", value_parser = duration)]
    over: Option<Duration>,

    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    state: &'a State,
    /// The seconds in which `counters` has counted; null: since the start of the machine.
    counted_s: Option<f64>,
    advice: Vec<String>,
    /// The sources of hotness, as 'aquifer tiering hot --source' takes them.
    hotness_sources: Vec<String>,
}

impl<'a> Report<'a> {
    fn of(state: &'a State, counted_s: Option<f64>, hotness_sources: Vec<String>) -> Report<'a> {
        Report { state, counted_s, advice: advice(state), hotness_sources }
    }
}

/// Returns what can tell which memory is hot.
fn sources(state: &State, tree: &dyn Tree) -> Vec<String> {
    let damon = damon_counts(state.damon.as_ref()).then(|| "damon".to_owned());
    damon.into_iter().chain(devices_with_monitors(tree).into_iter().map(|device| format!("chmu:{device}"))).collect()
}

/// Reads, and prints.
pub fn status(args: &StatusArgs, tree: &dyn Tree) -> Result<process::ExitCode, Failure> {
    let mut state = read(tree)?;
    if let Some(over) = args.over {
        thread::sleep(over);
        let before = std::mem::take(&mut state.counters);
        state = read(tree)?;
        state.counters = state.counters.since(&before);
    }
    let text = if args.json {
        let report = Report::of(&state, args.over.map(|over| over.as_secs_f64()), sources(&state, tree));
        serde_json::to_string(&report).expect("numbers and strings are always JSON") + "\n"
    } else {
        page(&state, args.over, &sources(&state, tree), width())
    };
    output::print(&text)?;
    Ok(ExitCode::Success.into())
}

fn page(state: &State, over: Option<Duration>, sources: &[String], width: usize) -> String {
    let head = ["NODE", "CPUS", "MEMORY", "AVAILABLE", "LEVEL", "WEIGHT", "PROMOTED TO", "DEMOTED FROM"];
    let rows: Vec<Vec<String>> = std::iter::once(head.map(str::to_owned).to_vec()).chain(node_rows(state)).collect();
    let mut text = columns(&rows, width);
    text.push('\n');
    let mut settings = settings(state, over);
    let sources = if sources.is_empty() { "none".to_owned() } else { sources.join(", ") };
    settings.push(vec!["hotness".to_owned(), sources]);
    text.push_str(&columns(&settings, width));
    let advice = advice(state);
    if !advice.is_empty() {
        text.push_str("\nTo know or change:\n");
        let advice: Vec<Vec<String>> = advice.into_iter().map(|line| vec![format!("  {line}")]).collect();
        text.push_str(&columns(&advice, width));
    }
    text
}

fn node_rows(state: &State) -> impl Iterator<Item = Vec<String>> + '_ {
    state.nodes.iter().map(|node| {
        let number = node.number;
        let level = state.levels.iter().find(|level| level.nodes.contains(&number));
        let weight = state.weights.as_ref().and_then(|weights| weights.by_node.get(&number));
        let counted = state.counters.nodes.iter().find(|counted| counted.node == number);
        vec![
            number.to_string(),
            if node.has_cpus { "yes" } else { "no" }.to_owned(),
            ByteSize(node.total_bytes).to_string(),
            ByteSize(node.available_bytes).to_string(),
            level.map_or_else(|| "-".to_owned(), |level| level.name.trim_start_matches("memory_").to_owned()),
            weight.map_or_else(|| "-".to_owned(), u8::to_string),
            moved(counted.and_then(|counted| counted.promoted_pages)),
            moved(counted.and_then(|counted| counted.demoted_pages)),
        ]
    })
}

/// Returns pages as bytes; `-` if the kernel does not count them.
fn moved(pages: Option<u64>) -> String {
    pages.map_or_else(|| "-".to_owned(), |pages| ByteSize(pages.saturating_mul(PAGE_BYTES)).to_string())
}

fn settings(state: &State, over: Option<Duration>) -> Vec<Vec<String>> {
    let on = |is_on: Option<bool>| match is_on {
        None => "this kernel cannot",
        Some(true) => "on",
        Some(false) => "off",
    };
    let balancing = match state.balancing {
        None => "this kernel cannot",
        Some(0) => "off",
        Some(1) => "placement",
        Some(2) => "tiering",
        Some(_) => "placement and tiering",
    };
    let rate = state.promote_rate_max_mbps.map_or_else(|| "-".to_owned(), |rate| format!("{rate}MB/s at most"));
    let counters = &state.counters;
    let since = over.map_or_else(|| "since the start of the machine".to_owned(), |over| format!("in {over:?}"));
    let causes: Vec<String> = counters
        .demoted_by
        .iter()
        .map(|(name, pages)| format!("{} {}", name.trim_start_matches("pgdemote_"), moved(Some(*pages))))
        .collect();
    let causes = if causes.is_empty() { String::new() } else { format!(" ({})", causes.join(", ")) };
    [
        ("demotion", on(state.demotion).to_owned()),
        ("balancing", balancing.to_owned()),
        ("promotion rate", rate),
        ("weights", weights(state)),
        ("damon", damon(state)),
        ("promoted", format!("{} {since}", moved(counters.promoted_pages))),
        ("demoted", format!("{} {since}{causes}", moved(counters.demoted_pages))),
    ]
    .map(|(name, value)| vec![name.to_owned(), value])
    .to_vec()
}

fn weights(state: &State) -> String {
    match &state.weights {
        None => "this kernel has none".to_owned(),
        Some(weights) if weights.is_automatic == Some(true) => format!("{}, by the kernel", weights.text()),
        Some(weights) => weights.text(),
    }
}

fn damon(state: &State) -> String {
    let Some(damon) = &state.damon else { return "this kernel cannot".to_owned() };
    let running = damon.kdamonds.iter().filter(|kdamond| kdamond.is_on);
    let schemes: Vec<String> = running
        .flat_map(|kdamond| &kdamond.schemes)
        .map(|scheme| {
            let to = scheme.target_node.map_or_else(String::new, |node| format!(" to node {node}"));
            let applied = scheme.applied_bytes.map_or_else(String::new, |bytes| format!(", {}", ByteSize(bytes)));
            format!("{}{to}{applied}", scheme.action)
        })
        .collect();
    if schemes.is_empty() { "off".to_owned() } else { schemes.join("; ") }
}

#[cfg(test)]
mod tests {
    use aquifer_nodes::Fixture;

    use super::*;

    fn tree() -> Fixture {
        Fixture::new()
            .with("/sys/devices/system/node/online", "0-1")
            .with("/sys/devices/system/node/node0/cpulist", "0-1")
            .with("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1048576 kB\nNode 0 MemFree: 524288 kB")
            .with("/sys/devices/system/node/node1/cpulist", "")
            .with("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 524288 kB\nNode 1 MemFree: 524288 kB")
            .with("/sys/devices/system/node/node1/vmstat", "pgdemote_kswapd 0")
            .with("/sys/devices/system/node/node0/vmstat", "pgdemote_kswapd 512")
            .with("/sys/kernel/mm/numa/demotion_enabled", "false")
            .with("/proc/sys/kernel/numa_balancing", "2")
            .with("/proc/vmstat", "pgdemote_kswapd 512\npgpromote_success 0")
            .with("/sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "0")
            .with("/sys/devices/virtual/memory_tiering/memory_tier22/nodelist", "1")
    }

    #[test]
    fn the_page_shows_nodes_settings_and_what_to_change() {
        let page = page(&State::read(&tree()).unwrap(), None, &[], 100);
        for line in [
            "0     yes   1GiB    512MiB     tier4   -       -            2MiB",
            "1     no    512MiB  512MiB     tier22  -       -            0B",
            "demotion        off",
            "balancing       tiering",
            "demoted         2MiB since the start of the machine (kswapd 2MiB)",
            "hotness         none",
            "  cold pages are not demoted: 'aquifer tiering apply --demotion on'",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
        assert!(!page.contains("hot pages are not promoted"), "{page}");
    }

    #[test]
    fn json_is_one_object_with_advice() {
        let state = State::read(&tree()).unwrap();
        let report = Report::of(&state, None, sources(&state, &tree()));
        let value: serde_json::Value = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(value["counters"]["demoted_pages"], 512);
        assert_eq!((value["nodes"][1]["has_cpus"].as_bool(), value["balancing"].as_u64()), (Some(false), Some(2)));
        assert_eq!(value["advice"].as_array().unwrap().len(), 1);
        assert_eq!(value["hotness_sources"], serde_json::json!([]));
    }
}
