// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Interpreters with their own heaps: CPython, with NumPy and DuckDB; a JVM with three collectors; Node.js.
//!
//! Their programs, in `crates/lab/e2e/programs/`, check what they stored and report errors in their exit status. Their
//! output must match a native run's.

use std::path::PathBuf;
use std::process::Command;

use super::trial::{Trial, Verdict, installed};

const HEAP_PY: &str = include_str!("../../programs/heap.py");
const NUMPY_PY: &str = include_str!("../../programs/arrays.py");
const DUCKDB_PY: &str = include_str!("../../programs/queries.py");
const HEAP_JS: &str = include_str!("../../programs/heap.js");
const HEAP_JAVA: &str = include_str!("../../programs/Heap.java");

/// Names a Python that has the packages, if the one on the path does not.
const PYTHON_VARIABLE: &str = "AQUIFER_E2E_PYTHON";

/// The interpreter binary: the command on the path may be a script that starts it.
fn interpreter(package: &str) -> Result<PathBuf, Verdict> {
    let named = std::env::var_os(PYTHON_VARIABLE).map(PathBuf::from);
    let program = named.map_or_else(|| installed(&["python3"]), Ok)?;
    let script = format!("import sys, {package}; print(sys.executable)");
    match Command::new(&program).args(["-c", &script]).output() {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).trim().into()),
        _ => Err(Verdict::Skipped(format!("python3 has no {package}; {PYTHON_VARIABLE} can name one that has"))),
    }
}

/// Runs a Python script that needs this package.
pub fn script(trial: &Trial, package: &str, text: &str, size: u64) -> Result<Verdict, String> {
    let program = match interpreter(package) {
        Ok(program) => program,
        Err(skipped) => return Ok(skipped),
    };
    let file = trial.write("script.py", text)?;
    trial.same(&program, &[&file, &size.to_string()], || Ok(String::new()))
}

/// Objects, a forked child that sees them unchanged, and a program that the script starts.
pub fn python(trial: &Trial) -> Result<Verdict, String> {
    script(trial, "os", HEAP_PY, trial.size(60_000, 800_000))
}

/// Sorting, transforms, linear algebra, files.
pub fn numpy(trial: &Trial) -> Result<Verdict, String> {
    script(trial, "numpy", NUMPY_PY, trial.size(1_500_000, 15_000_000))
}

/// Queries over a table in memory.
pub fn duckdb(trial: &Trial) -> Result<Verdict, String> {
    script(trial, "duckdb", DUCKDB_PY, trial.size(600_000, 8_000_000))
}

/// Buffers, and a map of objects. V8 reserves its heap without access, and opens it in pieces.
pub fn node(trial: &Trial) -> Result<Verdict, String> {
    let program = match installed(&["node", "nodejs"]) {
        Ok(program) => program,
        Err(skipped) => return Ok(skipped),
    };
    let file = trial.write("heap.js", HEAP_JS)?;
    trial.same(&program, &["--max-old-space-size=8000", &file, &trial.size(20_000, 150_000).to_string()], || {
        Ok(String::new())
    })
}

/// A map whose values are constantly replaced, under the collectors whose heap is private memory.
pub fn jvm(trial: &Trial) -> Result<Verdict, String> {
    let (java, javac) = match (installed(&["java"]), installed(&["javac"])) {
        (Ok(java), Ok(javac)) => (java, javac),
        (Err(skipped), _) | (_, Err(skipped)) => return Ok(skipped),
    };
    let file = trial.write("Heap.java", HEAP_JAVA)?;
    let compiled = Command::new(javac).args(["-d"]).arg(&trial.directory).arg(&file).output();
    if !compiled.is_ok_and(|output| output.status.success()) {
        return Err("Heap.java does not compile".to_owned());
    }
    let heap = format!("-Xmx{}m", trial.size(96, 2000));
    let start = format!("-Xms{}m", trial.size(96, 2000));
    let keys = trial.size(30_000, 800_000).to_string();
    let directory = trial.directory.display().to_string();
    let mut verdict = Ok(Verdict::Works(String::new()));
    for collector in ["Serial", "Parallel", "G1"] {
        let collector = format!("-XX:+Use{collector}GC");
        verdict =
            trial.same(&java, &[&collector, &heap, &start, "-cp", &directory, "Heap", &keys], || Ok(String::new()));
        if verdict.is_err() {
            break;
        }
    }
    verdict
}
