// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The wheel, as a user gets it: built by maturin, installed by pip, tested by pytest, its types checked by mypy, and
//! its documentation run.
//!
//! `AQUIFER_E2E_PYTHON` names a Python with maturin, mypy, NumPy, pip and pytest, if the one on the path lacks them.
//! The library is that of `cargo build --workspace`, which CI has run before.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use aquifer_test_support::skip;

const PYTHON_VARIABLE: &str = "AQUIFER_E2E_PYTHON";
const MODULES: &[&str] = &["maturin", "mypy", "numpy", "pip", "pytest"];

/// Cargo, as maturin starts it. It builds what `cargo build --workspace` builds, with the same features, so that
/// nothing is built twice. It unsets maturin's variables: with them, pyo3 would be built again, here and by the next
/// ordinary build.
const CARGO: &str = r#"#!/bin/sh
unset PYO3_BUILD_EXTENSION_MODULE PYO3_CONFIG_FILE PYO3_ENVIRONMENT_SIGNATURE PYO3_PYTHON
case "$1" in
rustc) exec "$AQUIFER_TEST_CARGO" build --workspace --offline --message-format json-render-diagnostics ;;
*) exec "$AQUIFER_TEST_CARGO" "$@" ;;
esac
"#;

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn workspace() -> PathBuf {
    package().join("../../..")
}

fn python() -> PathBuf {
    std::env::var_os(PYTHON_VARIABLE).unwrap_or_else(|| "python3".into()).into()
}

/// Returns the command of a Python without the settings of the person who runs the test.
fn python_command() -> Command {
    let mut command = Command::new(python());
    command.current_dir(std::env::temp_dir()).env("PYTHONDONTWRITEBYTECODE", "1").env_remove("PYTHONPATH");
    // As `crates/lab/e2e/src/build.rs` does: build scripts read what Cargo has set for this test program.
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&variable);
        }
    }
    command
}

#[track_caller]
fn succeeded(command: &mut Command, what: &str) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{what}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{out}\n{err}", output.status);
    output
}

/// Returns why the tests cannot run here.
fn missing() -> Option<String> {
    if let Err(why) = aquifer::probe() {
        return Some(why.to_string());
    }
    let imports = format!("import {}", MODULES.join(", "));
    let output = python_command().args(["-c", &imports]).output();
    let has_all = output.is_ok_and(|output| output.status.success());
    (!has_all)
        .then(|| format!("{} lacks one of {}; {PYTHON_VARIABLE} names another", python().display(), MODULES.join(", ")))
}

/// Returns the directory into which the wheel is installed, once for this program; `None`, and reported, if it cannot
/// be.
fn installed() -> Option<&'static Path> {
    static INSTALLED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match INSTALLED.get_or_init(|| missing().map_or_else(|| Ok(install()), Err)) {
        Ok(directory) => Some(directory),
        Err(why) => {
            skip(why);
            None
        }
    }
}

fn install() -> PathBuf {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("python-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&scratch);
    std::fs::create_dir_all(&scratch).expect("the target directory can be written");
    let cargo = scratch.join("cargo");
    std::fs::write(&cargo, CARGO).expect("the directory is new");
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).expect("it was just written");
    let real = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let wheels = scratch.join("wheels");
    let mut maturin = python_command();
    maturin.args(["-m", "maturin", "build", "--profile", "dev", "--auditwheel", "skip", "--offline"]);
    maturin.arg("--interpreter").arg(python()).arg("--out").arg(&wheels).current_dir(workspace());
    maturin.arg("--manifest-path").arg(package().join("Cargo.toml"));
    succeeded(maturin.env("CARGO", cargo).env("AQUIFER_TEST_CARGO", real), "maturin");
    let wheel = std::fs::read_dir(&wheels).expect("maturin made it").flatten().next().expect("one wheel").path();
    assert!(wheel.to_string_lossy().contains("-cp39-abi3-"), "{}", wheel.display());
    let site = scratch.join("site");
    let mut pip = python_command();
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check", "--target"]);
    succeeded(pip.arg(&site).arg(wheel), "pip");
    site
}

/// Runs one file of `tests/py`.
fn pytest(file: &str) {
    let Some(site) = installed() else { return };
    let mut pytest = python_command();
    pytest.args(["-m", "pytest", "-q", "--durations=5", "-p", "no:cacheprovider"]).env("PYTHONPATH", site);
    let output = succeeded(pytest.arg(package().join("tests/py").join(file)), file);
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(out.contains(" passed") && !out.contains(" skipped"), "{out}");
    println!("{out}");
}

#[test]
fn mappings_are_buffers_and_every_read_is_the_last_write() {
    pytest("test_buffers.py");
}

#[test]
fn hints_gathers_and_coroutines_do_what_they_say() {
    pytest("test_hints.py");
}

#[test]
fn named_mappings_keep_what_was_synced_and_curves_show_the_working_set() {
    pytest("test_named.py");
}

#[test]
fn what_is_wrong_with_a_named_mapping_is_an_exception() {
    pytest("test_named_trouble.py");
}

#[test]
fn tiers_that_fail_lie_or_are_slow_raise_and_never_give_wrong_bytes() {
    pytest("test_tiers.py");
}

#[test]
fn threads_resolve_their_own_faults_and_system_calls_raise() {
    pytest("test_own_faults.py");
}

#[test]
fn bad_input_and_trouble_are_exceptions() {
    pytest("test_trouble.py");
}

#[test]
fn the_types_are_those_of_the_module() {
    let Some(site) = installed() else { return };
    let settings = package().join("pyproject.toml");
    let mut mypy = python_command();
    mypy.args(["-m", "mypy", "--cache-dir"]).arg(site.join("../mypy")).arg("--config-file").arg(&settings);
    succeeded(mypy.arg(site.join("aquifer")), "mypy");
    let mut stubtest = python_command();
    stubtest.args(["-m", "mypy.stubtest", "aquifer", "--mypy-config-file"]).arg(&settings);
    succeeded(stubtest.env("PYTHONPATH", site).env("MYPYPATH", site).current_dir(site), "stubtest");
}

/// Each block of the page is a separate script.
#[test]
fn the_examples_of_the_documentation_run() {
    let Some(site) = installed() else { return };
    let page = std::fs::read_to_string(workspace().join("docs/python.md")).expect("the page is there");
    let blocks: Vec<&str> = page.split("```python\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() > 3, "{}", blocks.len());
    for block in blocks {
        succeeded(python_command().args(["-c", block]).env("PYTHONPATH", site), block);
    }
    let mut gather = python_command();
    gather.arg(package().join("examples/gather.py")).args(["--dram", "16MiB", "--rows", "200"]);
    let output = succeeded(gather.env("PYTHONPATH", site), "examples/gather.py");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(["gather", "indexing", "prefetch", "memmap"].iter().all(|line| out.contains(line)), "{out}");
}
