// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads `cargo metadata`: the edges between the workspace's crates, and the licences of all others.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// From each workspace crate to the workspace crates that it uses in any way, in alphabetical order.
pub type Edges = BTreeMap<String, Vec<String>>;

/// A crate from outside the workspace, and the licences under which it may be used.
#[derive(Debug, PartialEq, Eq)]
pub struct Outsider {
    pub name: String,
    pub version: String,
    /// An SPDX expression; `None` when the crate does not say.
    pub licence: Option<String>,
}

/// Runs `cargo metadata`. `dependencies` includes the crates from outside the workspace, for which cargo may download
/// manifests.
pub fn metadata(root: &Path, dependencies: bool) -> Result<Value, String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["metadata", "--format-version", "1"]);
    if !dependencies {
        cargo.arg("--no-deps");
    }
    let output = cargo.output().map_err(|error| format!("cargo metadata cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata is no JSON: {error}"))
}

/// The edges between workspace crates. Names omit the prefix `aquifer-`.
pub fn edges(metadata: &Value) -> Edges {
    let packages: Vec<&Value> = ours(metadata).collect();
    let names: Vec<&str> = packages.iter().map(|package| text(package, "name")).collect();
    let mut edges = Edges::new();
    for package in &packages {
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        let mut targets: Vec<String> = dependencies
            .map(|dependency| text(dependency, "name"))
            .filter(|name| names.contains(name) && *name != text(package, "name"))
            .map(short)
            .collect();
        targets.sort();
        targets.dedup();
        edges.insert(short(text(package, "name")), targets);
    }
    edges
}

/// The folder of each workspace crate. Names omit the prefix `aquifer-`.
pub fn folders(metadata: &Value) -> BTreeMap<String, PathBuf> {
    let folder = |package| Path::new(text(package, "manifest_path")).parent().unwrap_or(Path::new("")).to_path_buf();
    ours(metadata).map(|package| (short(text(package, "name")), folder(package))).collect()
}

/// The crates from outside the workspace.
pub fn outsiders(metadata: &Value) -> Vec<Outsider> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .filter(|package| !package["source"].is_null())
        .map(|package| Outsider {
            name: text(package, "name").to_owned(),
            version: text(package, "version").to_owned(),
            licence: package["license"].as_str().map(str::to_owned),
        })
        .collect()
}

/// The workspace's packages, which have no source.
fn ours(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().into_iter().flatten().filter(|package| package["source"].is_null())
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn short(name: &str) -> String {
    name.trim_start_matches("aquifer-").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_edges_between_our_own_crates_count() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "aquifer-core", "source": null, "dependencies": [{ "name": "crc-fast" }] },
            { "name": "aquifer-sim", "source": null, "dependencies": [{ "name": "aquifer-core" }, { "name": "clap" }] },
            { "name": "clap", "version": "4.5.0", "license": "MIT", "source": "registry", "dependencies": [] },
        ]});
        let edges = edges(&metadata);
        assert_eq!(edges["core"], Vec::<String>::new());
        assert_eq!(edges["sim"], ["core"]);
        assert_eq!(edges.len(), 2);
        let licence = Some("MIT".to_owned());
        assert_eq!(outsiders(&metadata), [Outsider { name: "clap".into(), version: "4.5.0".into(), licence }]);
    }
}
