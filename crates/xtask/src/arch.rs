// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The one table of which crate may use which, and the check that it is true.
//!
//! Rings are listed from the inside out; an arrow points to the same ring or inwards. A new edge or a new crate is one
//! line here, visible to a reviewer. Pure crates are also searched for what they may not do.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::crate_graph::{self, Edges};
use crate::tidy::files;
use crate::walks;

struct Ring {
    name: &'static str,
    /// Each crate, with the workspace crates that it uses.
    crates: &'static [(&'static str, &'static [&'static str])],
}

/// The table. Alphabetical within a ring.
const RINGS: &[Ring] = &[
    // For the tests of any crate.
    Ring { name: "tests", crates: &[("test-support", &[])] },
    Ring {
        name: "pure",
        crates: &[
            ("agent-wire", &[]),
            ("config", &[]),
            ("core", &[]),
            ("cxl-switch", &["fmapi"]),
            ("driver", &["core"]),
            ("fabric", &["core", "test-support"]),
            ("fmapi", &[]),
            ("named", &["core"]),
            ("wire", &[]),
        ],
    },
    Ring {
        name: "adapters",
        crates: &[
            // The edge to tiers is for its tests only: they seal an array.
            ("borrower", &["core", "sys", "tier", "tiers", "tls", "wire"]),
            ("authority", &["fabric"]),
            ("control", &["authority", "fabric", "sys", "test-support", "tls"]),
            // The edge to cxl-switch is for its tests only: they need a switch.
            ("cxl-peers", &["cxl-switch", "fabric", "fmapi", "fmapi-client"]),
            // The edge to cxl-switch is for its tests only: they need a peer.
            ("fmapi-client", &["cxl-switch", "fmapi", "sys", "test-support"]),
            ("hotness", &["nodes", "sys"]),
            ("nodes", &["sys", "test-support"]),
            ("state-store", &["test-support"]),
            ("stats", &["sys"]),
            ("sys", &["test-support"]),
            ("telemetry", &["test-support"]),
            ("tier", &["core", "sys", "test-support"]),
            ("tiers", &["agent-wire", "borrower", "core", "nodes", "sys", "test-support", "tier", "tls", "wire"]),
            ("tls", &["sys"]),
        ],
    },
    Ring {
        name: "services",
        crates: &[
            ("cxl-host", &["nodes", "test-support"]),
            // The edge to tiers is for donor's tests only: they borrow from a real donor.
            ("donor", &["control", "core", "fabric", "sys", "test-support", "tiers", "tls", "wire"]),
            // The edges to donor and wire are for its tests only: they need donors.
            (
                "manager",
                &[
                    "authority",
                    "control",
                    "cxl-peers",
                    "donor",
                    "fabric",
                    "state-store",
                    "sys",
                    "telemetry",
                    "test-support",
                    "tls",
                    "wire",
                ],
            ),
            // For tests of fronts: a machine of QEMU without a guest.
            ("qtest", &["fmapi", "fmapi-client"]),
            // The edge to borrower is for its tests only: their members break.
            ("pager", &["borrower", "core", "driver", "stats", "sys", "test-support", "tiers"]),
        ],
    },
    Ring {
        name: "fronts",
        crates: &[
            // The edge to donor is for its tests only.
            ("aquifer", &["core", "donor", "named", "pager", "stats", "sys", "test-support", "tier", "tiers"]),
            // The edges to donor, manager and tiers are for its tests only: they open volumes as programs do, and
            // follow a request from the manager to the agent.
            (
                "agent",
                &[
                    "agent-args",
                    "agent-wire",
                    "control",
                    "cxl-host",
                    "donor",
                    "exporter",
                    "fabric",
                    "manager",
                    "nodes",
                    "stats",
                    "sys",
                    "telemetry",
                    "test-support",
                    "tiers",
                    "tls",
                ],
            ),
            ("agent-args", &[]),
            ("bench-args", &[]),
            ("c", &["aquifer", "config", "test-support"]),
            ("cache", &["aquifer", "cache-args", "test-support"]),
            ("cache-args", &["core"]),
            // The edges to control and fabric are for its tests only: they need a manager.
            // It starts the agent, the bench, the cache, the exporter and what speaks to managers and switches; it is
            // linked with none of them.
            (
                "cli",
                &[
                    "agent-args",
                    "agent-wire",
                    "bench-args",
                    "cache-args",
                    "config",
                    "control",
                    "core",
                    "cxl-host",
                    "donor",
                    "exporter",
                    "fabric",
                    "fabric-args",
                    "fmapi-args",
                    "hotness",
                    "nodes",
                    "stats",
                    "sys",
                    "terminal",
                    "test-support",
                    "tiers",
                    "wire",
                ],
            ),
            ("cxl-switchd", &["cxl-switch", "fmapi", "test-support"]),
            ("device-plugin", &["agent-wire"]),
            ("exporter", &["agent-wire", "config"]),
            ("fabric-args", &["fabric"]),
            // The edges to manager, cxl-switchd, fmapi-client and qtest are for its tests only: they need a daemon and
            // switches.
            (
                "fabric-cli",
                &[
                    "authority",
                    "cxl-switchd",
                    "fabric",
                    "fabric-args",
                    "fmapi-client",
                    "manager",
                    "manager-client",
                    "qtest",
                    "sys",
                    "terminal",
                    "test-support",
                    "tls",
                ],
            ),
            ("fmapi-args", &["core"]),
            // The edges to cxl-switchd and qtest are for its tests only: they need peers. Its bench has a switch in the
            // same process.
            (
                "fmapi-cli",
                &["core", "cxl-switch", "cxl-switchd", "fmapi", "fmapi-args", "fmapi-client", "qtest", "test-support"],
            ),
            ("manager-client", &["authority", "sys"]),
            ("metrics", &["config"]),
            // The edges to fmapi-args, fmapi-cli and manager are for its tests only: they need a client and a manager.
            (
                "pool-switchd",
                &[
                    "cxl-switch",
                    "cxl-switchd",
                    "fabric",
                    "fmapi",
                    "fmapi-args",
                    "fmapi-cli",
                    "fmapi-client",
                    "manager",
                    "manager-client",
                    "sys",
                ],
            ),
            ("preload", &["config", "core", "pager", "stats", "sys", "tiers"]),
            ("python", &["aquifer", "test-support"]),
            ("terminal", &[]),
        ],
    },
    Ring {
        name: "lab",
        crates: &[
            ("bench", &["bench-args", "contention", "test-support"]),
            ("contention", &[]),
            ("e2e", &["aquifer", "authority", "fabric", "test-support"]),
            // Every decoder of foreign bytes, wherever it is.
            (
                "fuzz",
                &[
                    "agent-wire",
                    "authority",
                    "bench",
                    "c",
                    "cache",
                    "config",
                    "control",
                    "core",
                    "cxl-switch",
                    "donor",
                    "fabric",
                    "fmapi",
                    "hotness",
                    "manager",
                    "named",
                    "state-store",
                    "stats",
                    "sys",
                    "tiers",
                    "tls",
                    "wire",
                ],
            ),
            ("sim", &["contention", "core", "driver", "sys"]),
            // Its distributions are the simulator's, and its index is the cache's.
            ("workloads", &["aquifer", "cache", "core", "sim", "sys", "test-support"]),
            ("xtask", &[]),
        ],
    },
];

/// Crates, each with those that it may not depend on, directly or indirectly: `aquifer` starts separate programs that
/// speak HTTP and draw plots, so that it needs no libraries for HTTP or plots itself.
const APART: &[(&str, &[&str])] = &[("cli", &["hyper", "indicatif", "plotters", "tokio"])];

/// Source text that a pure crate may not contain.
const IMPURE: &[&str] =
    &["std::fs", "std::net", "std::process", "std::thread", "Instant::now", "SystemTime", "HashMap", "unsafe {"];

/// The crates with decisions and formats.
const PURE: &[&str] = &["agent-wire", "config", "core", "cxl-switch", "driver", "fabric", "fmapi", "named", "wire"];

/// Prints the table, and returns where the workspace differs from it.
pub fn check(root: &Path) -> Vec<String> {
    let metadata = match crate_graph::metadata(root, true) {
        Ok(metadata) => metadata,
        Err(error) => return vec![format!("arch: {error}")],
    };
    print!("{}", drawing(RINGS));
    let mut complaints = compare(RINGS, &crate_graph::edges(&metadata));
    complaints.extend(outward(RINGS));
    complaints.extend(walks::check(root));
    for (name, apart) in APART {
        complaints.extend(mixed(name, &crate_graph::built_from(&metadata, name), apart));
    }
    let folders = crate_graph::folders(&metadata);
    for pure in PURE {
        let Some(folder) = folders.get(*pure) else {
            complaints.push(format!("arch: there is no crate {pure}; correct the list of pure crates"));
            continue;
        };
        let sources = files(&folder.join("src"), &["rs"]);
        for file in sources.iter().filter(|file| !file.ends_with("tests.rs")) {
            let source = fs::read_to_string(file).unwrap_or_default();
            let name = file.strip_prefix(root).unwrap_or(file).display();
            complaints.extend(impurities(&source).map(|(line, what)| {
                format!("arch: {name}:{line}: a pure crate says `{what}`; make it an argument, or move it to a driver")
            }));
        }
    }
    complaints
}

/// The differences between the table and the workspace.
fn compare(rings: &[Ring], edges: &Edges) -> Vec<String> {
    let mut complaints = Vec::new();
    let table: Vec<(&str, &[&str])> = rings.iter().flat_map(|ring| ring.crates).copied().collect();
    for (name, targets) in edges {
        let Some((_, allowed)) = table.iter().find(|(listed, _)| listed == name) else {
            complaints.push(format!("arch: crate {name} is not in the table; add it to a ring in {}", file!()));
            continue;
        };
        for target in targets.iter().filter(|target| !allowed.contains(&target.as_str())) {
            complaints.push(format!("arch: new edge {name} -> {target}; if it is right, add it in {}", file!()));
        }
        for target in allowed.iter().filter(|target| !targets.iter().any(|used| used == *target)) {
            complaints.push(format!("arch: edge {name} -> {target} is gone; delete it in {}", file!()));
        }
    }
    for (name, _) in table.iter().filter(|(name, _)| !edges.contains_key(*name)) {
        complaints.push(format!("arch: crate {name} is gone; delete it in {}", file!()));
    }
    complaints
}

/// Edges of the table that lead to an outer ring.
fn outward(rings: &[Ring]) -> Vec<String> {
    let ring_of = |name: &str| rings.iter().position(|ring| ring.crates.iter().any(|(listed, _)| *listed == name));
    let mut complaints = Vec::new();
    for (source, targets) in rings.iter().flat_map(|ring| ring.crates) {
        for target in *targets {
            if ring_of(target) > ring_of(source) {
                complaints.push(format!("arch: {source} -> {target} points outwards"));
            }
        }
    }
    complaints
}

/// The crates that `name` is built from and may not be.
fn mixed(name: &str, built_from: &BTreeSet<String>, apart: &[&str]) -> Vec<String> {
    let wrong = apart.iter().filter(|other| built_from.contains(**other));
    let mut complaints: Vec<String> =
        wrong.map(|other| format!("arch: {name} is built from {other}; make that a program that it starts")).collect();
    if built_from.is_empty() {
        complaints.push(format!("arch: it is not known what {name} is built from; correct {}", file!()));
    }
    complaints
}

/// Lines of a pure crate's code that are not pure; tests and comments are exempt.
fn impurities(source: &str) -> impl Iterator<Item = (usize, &'static str)> {
    let code = source.lines().enumerate().take_while(|(_, line)| !line.starts_with("#[cfg(test)]"));
    let code = code.filter(|(_, line)| !line.trim_start().starts_with("//"));
    code.filter_map(|(index, line)| IMPURE.iter().find(|word| line.contains(**word)).map(|word| (index + 1, *word)))
}

/// The table as text, the outermost ring first.
fn drawing(rings: &[Ring]) -> String {
    let mut text = String::new();
    for ring in rings.iter().rev() {
        for (index, (name, targets)) in ring.crates.iter().enumerate() {
            let ring = if index == 0 { ring.name } else { "" };
            let arrow = if targets.is_empty() { String::new() } else { format!(" -> {}", targets.join(", ")) };
            text.push_str(&format!("{ring:<10} {name:<8}{arrow}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[Ring] =
        &[Ring { name: "pure", crates: &[("core", &[])] }, Ring { name: "services", crates: &[("pager", &["core"])] }];

    fn edges(of: &[(&str, &[&str])]) -> Edges {
        of.iter().map(|(name, targets)| (name.to_string(), targets.iter().map(|to| to.to_string()).collect())).collect()
    }

    #[test]
    fn a_true_table_has_nothing_to_complain_about() {
        assert!(compare(TWO, &edges(&[("core", &[]), ("pager", &["core"])])).is_empty());
        assert!(outward(TWO).is_empty());
        assert!(outward(RINGS).is_empty());
    }

    #[test]
    fn a_new_edge_a_new_crate_and_what_is_gone_are_reported() {
        let complaints = compare(TWO, &edges(&[("core", &["pager"]), ("vm", &[])]));
        assert_eq!(complaints.len(), 3, "{complaints:?}");
        assert!(complaints[0].contains("new edge core -> pager"));
        assert!(complaints[1].contains("crate vm is not in the table"));
        assert!(complaints[2].contains("crate pager is gone"));
        let complaints = compare(TWO, &edges(&[("core", &[]), ("pager", &[])]));
        assert!(complaints[0].contains("pager -> core is gone"));
    }

    #[test]
    fn an_arrow_outwards_is_reported() {
        let rings = [
            Ring { name: "pure", crates: &[("core", &["pager"])] },
            Ring { name: "services", crates: &[("pager", &[])] },
        ];
        assert_eq!(outward(&rings), ["arch: core -> pager points outwards"]);
    }

    #[test]
    fn forbidden_dependencies_of_a_crate_are_reported() {
        let built_from = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert!(mixed("cli", &built_from(&["clap", "nix"]), &["hyper"]).is_empty());
        let complaints = mixed("cli", &built_from(&["clap", "hyper"]), &["hyper", "tokio"]);
        assert_eq!(complaints, ["arch: cli is built from hyper; make that a program that it starts"]);
        assert_eq!(mixed("cli", &built_from(&[]), &["hyper"]).len(), 1);
    }

    #[test]
    fn pure_code_has_no_clock_and_no_threads_outside_its_tests() {
        let source = "//! No std::thread here.\nuse std::fs;\n#[cfg(test)]\nuse std::thread;\n";
        assert_eq!(impurities(source).collect::<Vec<_>>(), [(2, "std::fs")]);
    }

    #[test]
    fn the_drawing_names_the_outermost_ring_first() {
        assert_eq!(drawing(TWO), "services   pager    -> core\npure       core    \n");
    }
}
