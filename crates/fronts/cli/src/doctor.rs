// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer doctor`: shows what this machine can do, what each missing ability costs, and which setting enables it.
//! Also measures how long a tier takes to read.

mod abilities;
mod tier_time;

use std::process;

use aquifer_terminal::{columns, width};
use aquifer_tiers::TierSpec;
use serde::Serialize;

use crate::exit::{ExitCode, Failure, say};
use crate::output;
use abilities::Ability;

/// Show what this machine can do, and what to change
///
/// A missing ability is not a failure: the table says what each costs.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  aquifer doctor                         a table, then what to change
  aquifer doctor --json                  one object per line and ability
  aquifer doctor --tier flash:/mnt/nvme  how long this tier takes to read")]
pub struct DoctorArgs {
    /// One JSON object on a line for each ability, or for each size of a read
    #[arg(long)]
    json: bool,

    /// Measure how long reads of this tier take, instead
    #[arg(long, value_name = "SPEC")]
    tier: Option<TierSpec>,
}

/// Probes and prints. A missing ability is not a failure.
pub fn doctor(args: &DoctorArgs) -> Result<process::ExitCode, Failure> {
    if let Some(spec) = &args.tier {
        let (times, notices) = tier_time::measure(spec)?;
        notices.iter().for_each(|notice| say(notice));
        output::print(&if args.json { tier_time::json_lines(&times) } else { tier_time::page(&times) })?;
        return Ok(ExitCode::Success.into());
    }
    let abilities = abilities::all();
    output::print(&if args.json { json_lines(&abilities) } else { page(&abilities, width()) })?;
    Ok(ExitCode::Success.into())
}

#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    found: bool,
    detail: &'a str,
    cost_without: &'a str,
    remedy: &'a str,
}

fn json_lines(abilities: &[Ability]) -> String {
    let line = |ability: &Ability| {
        let line = Line {
            name: ability.name,
            found: ability.found,
            detail: &ability.detail,
            cost_without: ability.cost_without,
            remedy: ability.remedy,
        };
        serde_json::to_string(&line).expect("strings are always JSON") + "\n"
    };
    abilities.iter().map(line).collect()
}

/// Returns the table, followed by one line of advice for each missing ability.
fn page(abilities: &[Ability], width: usize) -> String {
    let head = ["ABILITY", "FOUND", "DETAIL", "WITHOUT IT"].map(str::to_owned).to_vec();
    let rows = abilities.iter().map(|ability| {
        let found = if ability.found { "yes" } else { "no" };
        vec![ability.name.to_owned(), found.to_owned(), ability.detail.clone(), ability.cost_without.to_owned()]
    });
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let mut text = columns(&rows, width);
    if abilities.is_empty() {
        text.push_str("\nThis build has no probes.\n");
        return text;
    }
    let missing: Vec<&Ability> = abilities.iter().filter(|ability| !ability.found).collect();
    if missing.is_empty() {
        text.push_str("\nNothing is missing.\n");
    } else {
        text.push_str("\nTo change:\n");
        let advice: Vec<Vec<String>> =
            missing.iter().map(|ability| vec![format!("  {}", ability.name), ability.remedy.to_owned()]).collect();
        text.push_str(&columns(&advice, width));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Vec<Ability> {
        let ability = |name, found| Ability {
            name,
            found,
            detail: "Linux 6.18".into(),
            cost_without: "5 us more per fault",
            remedy: "sysctl vm.unprivileged_userfaultfd=1",
        };
        vec![ability("move", true), ability("listener", false)]
    }

    #[test]
    fn only_what_is_missing_gets_advice() {
        let page = page(&two(), 80);
        let (table, advice) = page.split_once("\nTo change:\n").unwrap();
        assert_eq!(table.lines().count(), 3);
        assert_eq!(advice, "  listener  sysctl vm.unprivileged_userfaultfd=1\n");
        assert!(super::page(&two()[..1], 80).ends_with("Nothing is missing.\n"));
        assert!(!super::page(&[], 80).contains("Nothing is missing"));
    }

    #[test]
    fn json_is_one_object_per_ability() {
        let lines = json_lines(&two());
        assert_eq!(lines.lines().count(), 2);
        for line in lines.lines() {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(value["found"].is_boolean() && value["remedy"].is_string());
        }
    }
}
