// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Runs the attacks: programs that each try to break one promise, over every tier and delivery that they name.
//!
//! `cargo test -p aquifer-e2e --test attacks -- NAME` runs those whose names contain NAME. A run's name is
//! `NAME::TIER::DELIVERY`. Without a NAME, an attack runs under each of its deliveries on the first tier that it names,
//! and on each further tier under one delivery, in turn; `AQUIFER_ATTACKS=all` runs every pair. Exit status 0: the
//! promise held; 77: the attack cannot run here, and the last line on standard error says why; anything else, a signal,
//! or no end within the limit: the promise is broken.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use aquifer_e2e::attacks::{Attack, all};
use aquifer_e2e::build::{binaries, compile_linked, scratch};
use aquifer_e2e::run::{Ended, aquifer, managed, run};
use aquifer_e2e::tier_kinds::{TierKind, Tiers};
use aquifer_test_support::skip;

/// Capacity of a donor for an attack's memory.
const DONOR_MIB: u64 = 2048;
const SKIPPED: i32 = 77;
/// Set to `all`, it asks for every pair of tier and delivery.
const ALL_VARIABLE: &str = "AQUIFER_ATTACKS";

enum Verdict {
    Held,
    Skipped(String),
    Broken(String),
}

/// The tiers and deliveries of an attack: all pairs, or each tier and each delivery at least once.
fn pairs(attack: &Attack, every: bool) -> Vec<(TierKind, &str)> {
    let deliveries = || attack.deliveries.iter().map(String::as_str).enumerate();
    let tiers = attack.tiers.iter().copied().enumerate();
    let runs = |tier: usize, delivery: usize| every || tier == 0 || tier % attack.deliveries.len() == delivery;
    tiers
        .flat_map(|(at, tier)| deliveries().filter(move |(how, _)| runs(at, *how)).map(move |(_, how)| (tier, how)))
        .collect()
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let filters: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let attacks = all();
    let every = !filters.is_empty() || std::env::var(ALL_VARIABLE).is_ok_and(|value| value == "all");
    let runs = attacks.iter().flat_map(|attack| {
        pairs(attack, every).into_iter().map(move |(tier, delivery)| {
            (format!("{}::{}::{delivery}", attack.name, tier.name()), attack, tier, delivery)
        })
    });
    let (chosen, left_out): (Vec<_>, Vec<_>) =
        runs.partition(|(name, ..)| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str())));
    if words.iter().any(|word| word == "--list") {
        chosen.iter().for_each(|(name, ..)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", chosen.len());
    let (started, mut broken) = (Instant::now(), Vec::new());
    let count = chosen.len();
    for (name, attack, tier, delivery) in chosen {
        // A reported skip names the thread, as in every other test.
        let thread = std::thread::Builder::new().name(name.clone());
        let verdict = std::thread::scope(|scope| {
            let work = || {
                let verdict = one(&name, attack, tier, delivery);
                if let Verdict::Skipped(why) = &verdict {
                    skip(why);
                }
                verdict
            };
            let ended = thread.spawn_scoped(scope, work).expect("a thread can be started").join();
            ended.unwrap_or_else(|_| Verdict::Broken("the test panicked".to_owned()))
        });
        match verdict {
            Verdict::Held | Verdict::Skipped(_) => println!("test {name} ... ok"),
            Verdict::Broken(why) => {
                println!("test {name} ... FAILED\n{why}");
                broken.push(name);
            }
        }
    }
    let verdict = if broken.is_empty() { "ok" } else { "FAILED" };
    if !broken.is_empty() {
        println!("\nfailures:\n    {}", broken.join("\n    "));
    }
    println!(
        "\ntest result: {verdict}. {} passed; {} failed; 0 ignored; 0 measured; {} filtered out; finished in {:.2}s\n",
        count - broken.len(),
        broken.len(),
        left_out.len(),
        started.elapsed().as_secs_f64()
    );
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(101) }
}

fn one(name: &str, attack: &Attack, tier: TierKind, delivery: &str) -> Verdict {
    if let Some(missing) = attack.needs.iter().find(|need| !is_there(need)) {
        return Verdict::Skipped(format!("there is no {missing}"));
    }
    let scratch_name = name.replace("::", "-");
    let tiers = match tier.make(&scratch_name, DONOR_MIB) {
        Ok(tiers) => tiers,
        Err(why) => return Verdict::Skipped(why),
    };
    let directory = scratch(&format!("attack-{scratch_name}"));
    let Some(command) = command(attack, &tiers, delivery, &directory) else {
        return Verdict::Skipped("cc cannot be started".to_owned());
    };
    let ended = run(command, attack.limit);
    let _ = std::fs::remove_dir_all(&directory);
    judge(&ended)
}

fn judge(ended: &Ended) -> Verdict {
    let said = ended.stderr.lines().rev().find(|line| !line.starts_with("aquifer: ")).unwrap_or("it does not say why");
    match ended.status {
        Some(0) => Verdict::Held,
        Some(SKIPPED) => Verdict::Skipped(said.to_owned()),
        Some(status) => Verdict::Broken(format!("status {status}\n{}{}", ended.stdout, ended.stderr)),
        None => Verdict::Broken(format!("it hangs\n{}{}", ended.stdout, ended.stderr)),
    }
}

fn is_there(need: &str) -> bool {
    if need == "root" {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        return status.lines().any(|line| line.starts_with("Uid:\t0\t0\t"));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(need).is_file())
}

/// The command of one run. The program finds its tiers and its own directory in its environment.
fn command(attack: &Attack, tiers: &Tiers, delivery: &str, directory: &Path) -> Option<Command> {
    let source = attack.source.to_str().expect("a path of ours");
    let (program, arguments) = match attack.source.extension().and_then(|ending| ending.to_str()) {
        Some("py") => ("python3".into(), vec![source]),
        Some("sh") => ("bash".into(), vec![source]),
        _ => (compile_linked(&attack.name, std::slice::from_ref(&attack.source), &attack.libraries)?, Vec::new()),
    };
    let mut command = if attack.is_alone {
        let mut command = Command::new(program);
        command.args(arguments).env("AQUIFER_PRELOAD", binaries().join("libaquifer_preload.so"));
        command
    } else {
        let mut words = vec!["--dram", &attack.dram, "--delivery", delivery];
        words.extend(tiers.words.iter().chain(&attack.flags).map(String::as_str));
        managed(&words, &program, &arguments)
    };
    command.env("ATTACK_AQUIFER", aquifer().get_program()).env("ATTACK_TIERS", tiers.words.join(" "));
    command.env("ATTACK_DRAM", &attack.dram).env("ATTACK_DELIVERY", delivery).env("ATTACK_SCRATCH", directory);
    Some(command)
}
