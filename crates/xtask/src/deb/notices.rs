// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Collects the licences and copyright notices of the crates that the packaged programs link. Their licences require
//! that the notices accompany the programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::crate_graph::{self, Outsider};

/// Our crates whose programs and libraries are packaged.
const PACKAGED: &[&str] = &[
    "agent",
    "bench",
    "c",
    "cache",
    "cli",
    "device-plugin",
    "e2e",
    "fabric-cli",
    "fmapi-cli",
    "manager",
    "metrics",
    "pool-switchd",
    "preload",
    "workloads",
];
/// The usual names of the files with notices.
const NAMES: &[&str] = &["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// A text of a licence or a notice, with the crates that have it.
type Texts = BTreeMap<String, BTreeSet<String>>;

/// The file in the packages: a list of the crates, then each text once.
pub fn of_all_packages(root: &Path) -> Result<String, String> {
    let metadata = crate_graph::metadata(root, true)?;
    let built = PACKAGED.iter().flat_map(|package| crate_graph::built_from(&metadata, package));
    let built: BTreeSet<String> = built.collect();
    let mut outsiders = crate_graph::outsiders(&metadata);
    outsiders.retain(|one| built.contains(&one.name));
    let mut texts = Texts::new();
    for one in &outsiders {
        let folder = crate_graph::outsider_folder(&metadata, one);
        for text in folder.iter().flat_map(|folder| notices(folder)) {
            texts.entry(text).or_default().insert(format!("{} {}", one.name, one.version));
        }
    }
    Ok(written(&outsiders, &texts))
}

/// The texts of the files with notices in a crate's folder.
fn notices(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    paths.sort();
    let is_notice = |path: &&std::path::PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        NAMES.iter().any(|start| name.starts_with(start))
    };
    let texts = paths.iter().filter(is_notice).filter_map(|path| fs::read_to_string(path).ok());
    texts.map(|text| text.replace("\r\n", "\n").trim().to_owned()).collect()
}

fn written(outsiders: &[Outsider], texts: &Texts) -> String {
    let mut out = String::from("The programs of these packages are linked with the following crates.\n\n");
    for Outsider { name, version, licence } in outsiders {
        out.push_str(&format!("{name} {version}: {}\n", licence.as_deref().unwrap_or("see below")));
    }
    for (text, crates) in texts {
        let crates: Vec<&str> = crates.iter().map(String::as_str).collect();
        out.push_str(&format!("\n{}\n\nOf {}:\n\n{text}\n", "-".repeat(80), crates.join(", ")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_two_crates_have_is_there_once() {
        let outsider = |name: &str| Outsider { name: name.into(), version: "1.0".into(), licence: Some("MIT".into()) };
        let texts = Texts::from([("Permission.".to_owned(), ["a 1.0", "b 1.0"].map(str::to_owned).into())]);
        let out = written(&[outsider("a"), outsider("b")], &texts);
        assert!(out.contains("a 1.0: MIT\nb 1.0: MIT\n") && out.contains("Of a 1.0, b 1.0:\n\nPermission.\n"), "{out}");
        assert_eq!(out.matches("Permission.").count(), 1);
    }

    #[test]
    fn every_packaged_crate_is_one_of_the_workspace() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let edges = crate_graph::edges(&crate_graph::metadata(&root, false).unwrap());
        PACKAGED.iter().for_each(|name| assert!(edges.contains_key(*name), "{name}"));
    }
}
