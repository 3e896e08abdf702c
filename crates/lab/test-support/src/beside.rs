// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Builds a program that another one starts and finds beside itself.

use std::path::Path;
use std::process::Command;

/// Builds the programs of a package beside `program`, which Cargo has built. For a package's tests, Cargo builds only
/// that package's own programs.
pub fn build_beside(program: &Path, package: &str) {
    let directory = program.parent().expect("it is in a directory");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet", "--package", package, "--target-dir"]);
    cargo.arg(directory.parent().expect("of a target directory"));
    cargo.args(directory.ends_with("release").then_some("--release"));
    assert!(cargo.status().is_ok_and(|status| status.success()), "{package} does not build");
}
