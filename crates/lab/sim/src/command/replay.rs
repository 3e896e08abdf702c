// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer-sim replay`: verifies that the engine decides the same, reports the first difference, and tries other
//! settings.

use std::io::Write;

use aquifer_core::engine::{Engine, Settings};
use aquifer_core::frames::BUDGET_PAGES_MAX;
use aquifer_core::policy::PolicyName;
use aquifer_core::record::{End, Header};
use aquifer_core::temperature::{CLASS_NAMES, Histogram};
use aquifer_core::units::{ByteSize, Order, PAGE_BYTES};
use aquifer_sim::accesses::Accesses;
use aquifer_sim::counterfactual::{self, Machine, NOTES};
use aquifer_sim::outcome::Outcome as Cost;
use aquifer_sim::recording::{self, Difference, Outcome, Replayed};
use aquifer_sim::synthetic::BUDGET_PAGES_MIN;
use serde::Serialize;
use serde_json::json;

use super::Failure;
use super::args::{BlockSize, Replay};

/// The release of this simulator, and so of its engine.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Replays the recording, and plays it with other settings if any are given. Returns the exit code.
pub fn run(arguments: &Replay, out: &mut impl Write) -> Result<u8, Failure> {
    check_budgets(arguments)?;
    let path = &arguments.file;
    let bytes = recording::load(path).map_err(Failure::Recording)?;
    let mut accesses = Accesses::default();
    let other = arguments.is_counterfactual();
    // An engine that refuses an event panics; that is reported as a difference, below.
    std::panic::set_hook(Box::new(|_| {}));
    let replayed = recording::replay(path, &bytes, |_, call, answer, plan, engine| {
        if other {
            accesses.see(call, answer, plan, engine);
        }
    });
    drop(std::panic::take_hook());
    let replayed = replayed.map_err(Failure::Recording)?;
    print_replay(arguments, &replayed, out)?;
    if let Outcome::Differs(_) = replayed.outcome {
        return Ok(1);
    }
    if other {
        accesses.finish(&replayed.engine);
        print_others(arguments, &replayed.header, &accesses, out)?;
    }
    Ok(0)
}

fn print_replay(arguments: &Replay, replayed: &Replayed, out: &mut impl Write) -> Result<(), Failure> {
    let Replayed { header, end, outcome, .. } = replayed;
    if arguments.json {
        let difference = match outcome {
            Outcome::Same => None,
            Outcome::Differs(Difference { number, call, recorded, now }) => {
                Some(json!({ "event": number, "call": call, "recorded": recorded, "now": now }))
            }
        };
        let Settings { budget_pages, prefetch, elastic, .. } = header.settings;
        let line = json!({
            "file": arguments.file, "program": header.program, "pid": header.pid, "release": header.release,
            "policy": header.policy, "dram_bytes": budget_pages * PAGE_BYTES, "prefetch": prefetch, "elastic": elastic,
            "events": end.events, "lost": end.lost, "closed": end.closed,
            "temperature_bytes": temperatures(&replayed.engine),
            "same_decisions": difference.is_none(), "difference": difference,
        });
        writeln!(out, "{line}")?;
        return Ok(());
    }
    let file = arguments.file.display();
    writeln!(out, "{file}: {} (pid {}), recorded by release {}", header.program, header.pid, header.release)?;
    writeln!(out, "  {}", settings(header))?;
    match outcome {
        Outcome::Same => writeln!(out, "  {} events, same decisions", end.events)?,
        Outcome::Differs(Difference { number, call, recorded, now }) => {
            writeln!(out, "  event {number} differs: {call}")?;
            writeln!(out, "    recorded: {recorded}")?;
            writeln!(out, "    now:      {now}")?;
            if header.release != RELEASE {
                writeln!(out, "  this is release {RELEASE}, which may decide otherwise than {}", header.release)?;
            }
            return Ok(());
        }
    }
    writeln!(out, "  {}", ending(*end))?;
    print_temperatures(&replayed.engine, out)
}

/// Prints the temperatures of memory at the end, hot memory first.
fn print_temperatures(engine: &Engine, out: &mut impl Write) -> Result<(), Failure> {
    let Histogram { resident, away } = engine.map().temperatures().histogram();
    writeln!(out, "\n  {:<16}{:>10}{:>10}", "temperature", "resident", "away")?;
    for (class, name) in CLASS_NAMES.iter().enumerate().rev() {
        let bytes = |pages: &[u64]| ByteSize(pages[class] * PAGE_BYTES).to_string();
        writeln!(out, "  {name:<16}{:>10}{:>10}", bytes(resident), bytes(away))?;
    }
    Ok(())
}

/// The same for `--json`.
fn temperatures(engine: &Engine) -> serde_json::Value {
    let Histogram { resident, away } = engine.map().temperatures().histogram();
    let classes = |pages: &[u64]| -> serde_json::Map<String, serde_json::Value> {
        CLASS_NAMES.iter().zip(pages).map(|(name, pages)| (name.to_string(), json!(pages * PAGE_BYTES))).collect()
    };
    json!({ "resident": classes(resident), "away": classes(away) })
}

fn settings(header: &Header) -> String {
    let Settings { budget_pages, prefetch, elastic, .. } = header.settings;
    let on = |on: bool| if on { "on" } else { "off" };
    let budget = ByteSize(budget_pages * PAGE_BYTES);
    format!("budget {budget}, policy {}, prefetch {}, elastic blocks {}", header.policy, on(prefetch), on(elastic))
}

/// How the recording ended.
fn ending(end: End) -> String {
    match end {
        End { events, lost: 1.., .. } => {
            let lost = end.lost;
            let min = if end.closed { "" } else { "at least " };
            format!(
                "complete up to event {events}, then {min}{lost} events were lost: they came faster than they could \
                 be written"
            )
        }
        End { closed: true, .. } => "complete: closed when the process ended".into(),
        End { closed: false, .. } => {
            "not closed: the program was killed, or left without exit(3); good up to there".into()
        }
    }
}

/// One row of the output: settings, and their cost.
#[derive(Serialize)]
struct Row {
    setting: String,
    policy: String,
    dram_bytes: u64,
    /// In bytes; `None` means the sizes of the recorded mappings.
    block: Option<u64>,
    elastic: bool,
    prefetch: bool,
    #[serde(flatten)]
    cost: Cost,
}

fn print_others(arguments: &Replay, header: &Header, accesses: &Accesses, out: &mut impl Write) -> Result<(), Failure> {
    let recorded: PolicyName = header.policy.parse().map_err(Failure::Recording)?;
    let as_recorded = Machine { policy: recorded, settings: header.settings, order: None };
    let row = |setting: &str, machine: Machine, cost: Cost| Row {
        setting: setting.to_owned(),
        policy: machine.policy.to_string(),
        dram_bytes: machine.settings.budget_pages * PAGE_BYTES,
        block: machine.order.map(Order::bytes),
        elastic: machine.settings.elastic,
        prefetch: machine.settings.prefetch,
        cost,
    };
    let mut rows = vec![
        row("recorded", as_recorded, accesses.recorded),
        row("recorded settings", as_recorded, counterfactual::play(accesses, as_recorded)),
    ];
    for machine in machines(arguments, as_recorded) {
        rows.push(row(&name(machine, as_recorded), machine, counterfactual::play(accesses, machine)));
    }
    if arguments.json {
        for row in rows {
            writeln!(out, "{}", serde_json::to_string(&row).map_err(std::io::Error::from)?)?;
        }
        writeln!(out, "{}", json!({ "notes": NOTES }))?;
        return Ok(());
    }
    writeln!(out)?;
    print_table(&rows, out)?;
    for note in NOTES {
        writeln!(out, "note: {note}")?;
    }
    Ok(())
}

fn check_budgets(arguments: &Replay) -> Result<(), Failure> {
    let [min, max] = [BUDGET_PAGES_MIN, BUDGET_PAGES_MAX].map(|pages| ByteSize(pages * PAGE_BYTES));
    match arguments.dram.iter().find(|dram| !(min..=max).contains(dram)) {
        None => Ok(()),
        Some(dram) if *dram < min => {
            Err(Failure::Usage(format!("--dram {dram} is below the pager's minimum; give at least {min}")))
        }
        Some(dram) => {
            let max = ByteSize(max.0 >> 30 << 30);
            Err(Failure::Usage(format!("--dram {dram} is more than a budget can be; give at most {max}")))
        }
    }
}

/// Every combination of the given settings, with the recorded value for those not given. The recorded combination
/// itself is left out.
fn machines(arguments: &Replay, recorded: Machine) -> Vec<Machine> {
    let or = |given: Vec<Machine>, change: &dyn Fn(Machine) -> Vec<Machine>| -> Vec<Machine> {
        given
            .into_iter()
            .flat_map(|machine| Some(change(machine)).filter(|all| !all.is_empty()).unwrap_or(vec![machine]))
            .collect()
    };
    let mut all = vec![recorded];
    all = or(all, &|machine| arguments.policy.iter().map(|policy| Machine { policy: *policy, ..machine }).collect());
    all = or(all, &|machine| {
        let with = |dram: &ByteSize| Settings { budget_pages: dram.0 / PAGE_BYTES, ..machine.settings };
        arguments.dram.iter().map(|dram| Machine { settings: with(dram), ..machine }).collect()
    });
    all = or(all, &|machine| {
        let with = |block: &BlockSize| Settings { elastic: *block == BlockSize::Auto, ..machine.settings };
        let change = |block: &BlockSize| Machine { settings: with(block), order: Some(block.order()), ..machine };
        arguments.block.iter().map(change).collect()
    });
    if arguments.prefetch || arguments.no_prefetch {
        all.iter_mut().for_each(|machine| machine.settings.prefetch = arguments.prefetch);
    }
    all.retain(|machine| *machine != recorded);
    all
}

/// A label made of the settings that differ from the recorded ones.
fn name(machine: Machine, recorded: Machine) -> String {
    let mut parts = Vec::new();
    if machine.policy != recorded.policy {
        parts.push(machine.policy.to_string());
    }
    if machine.settings.budget_pages != recorded.settings.budget_pages {
        parts.push(ByteSize(machine.settings.budget_pages * PAGE_BYTES).to_string());
    }
    if let Some(order) = machine.order {
        parts.push(if machine.settings.elastic {
            "block auto".into()
        } else {
            format!("block {}", ByteSize(order.bytes()))
        });
    }
    if machine.settings.prefetch != recorded.settings.prefetch {
        parts.push(if machine.settings.prefetch { "prefetch".into() } else { "no prefetch".into() });
    }
    parts.join(", ")
}

fn print_table(rows: &[Row], out: &mut impl Write) -> Result<(), Failure> {
    let heads = ["faults", "fetches", "fetched", "read ahead", "hits", "wasted", "rescued", "evicted", "written back"];
    let width = rows.iter().map(|row| row.setting.chars().count()).max().unwrap_or(0);
    write!(out, "{:width$}", "")?;
    for head in heads {
        write!(out, " {head:>12}")?;
    }
    writeln!(out)?;
    for Row { setting, cost, .. } in rows {
        write!(out, "{setting:width$}")?;
        let bytes = |pages: u64| ByteSize(pages * PAGE_BYTES).to_string();
        for cell in [
            cost.faults.to_string(),
            cost.fetches.to_string(),
            bytes(cost.fetched_pages),
            bytes(cost.read_ahead_pages),
            cost.prefetch_hits.to_string(),
            cost.prefetch_wasted.to_string(),
            cost.rescued_blocks.to_string(),
            bytes(cost.evicted_pages),
            bytes(cost.written_back_pages),
        ] {
            write!(out, " {cell:>12}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}
