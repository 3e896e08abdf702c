// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads `cargo metadata`: the edges between the workspace's crates, and the licences of all others.

use std::collections::{BTreeMap, BTreeSet};
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
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata is not JSON: {error}"))
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

/// The crates that one of ours is built from, directly or not, without those of its tests. Needs the metadata of
/// dependencies.
pub fn built_from(metadata: &Value, package: &str) -> BTreeSet<String> {
    let packages = || metadata["packages"].as_array().into_iter().flatten();
    let names: BTreeMap<&str, &str> = packages().map(|package| (text(package, "id"), text(package, "name"))).collect();
    let nodes = metadata["resolve"]["nodes"].as_array().into_iter().flatten();
    let uses: BTreeMap<&str, &Value> = nodes.map(|node| (text(node, "id"), &node["deps"])).collect();
    let is_built = |used: &&Value| used["dep_kinds"].as_array().into_iter().flatten().any(|kind| kind["kind"] != "dev");
    let mut found = BTreeSet::new();
    let mut next: Vec<&str> =
        ours(metadata).filter(|ours| short(text(ours, "name")) == package).map(|ours| text(ours, "id")).collect();
    while let Some(user) = next.pop() {
        let used = uses.get(user).and_then(|used| used.as_array()).into_iter().flatten().filter(is_built);
        next.extend(used.map(|used| text(used, "pkg")).filter(|used| found.insert(*used)));
    }
    found.into_iter().filter_map(|id| names.get(id)).map(|name| (*name).to_owned()).collect()
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

/// The folder with the sources of a crate from outside the workspace.
pub fn outsider_folder(metadata: &Value, outsider: &Outsider) -> Option<PathBuf> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let is_it =
        |package: &&Value| text(package, "name") == outsider.name && text(package, "version") == outsider.version;
    let manifest = packages.filter(|package| !package["source"].is_null()).find(is_it)?;
    Path::new(text(manifest, "manifest_path")).parent().map(Path::to_path_buf)
}

/// The packages of the workspace, which are those whose `source` is null.
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
    fn dependencies_of_a_crate_include_indirect_ones_but_not_those_of_tests() {
        let uses = |id: &str, kind: Value| serde_json::json!({ "pkg": id, "dep_kinds": [{ "kind": kind }] });
        let metadata = serde_json::json!({
            "packages": [
                { "id": "1", "name": "aquifer-cli", "source": null },
                { "id": "2", "name": "clap", "source": "registry" },
                { "id": "3", "name": "heck", "source": "registry" },
                { "id": "4", "name": "hyper", "source": "registry" },
            ],
            "resolve": { "nodes": [
                { "id": "1", "deps": [uses("2", Value::Null), uses("4", "dev".into())] },
                { "id": "2", "deps": [uses("3", "build".into()), uses("2", Value::Null)] },
            ]},
        });
        assert_eq!(built_from(&metadata, "cli").into_iter().collect::<Vec<_>>(), ["clap", "heck"]);
        assert!(built_from(&metadata, "moon").is_empty());
    }

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
