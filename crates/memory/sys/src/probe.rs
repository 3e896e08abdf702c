// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Probes what this machine supports, by trials on throw-away memory.
//!
//! A kernel can have a feature bit and refuse its use (a seccomp filter, a container), so a bit alone proves nothing. A
//! missing ability is never an error here: each ability says what its absence costs, and what changes that.
//! `probe/userfaults.rs` tries userfaultfd(2) and related calls, `probe/machine.rs` examines everything else.

mod machine;
mod userfaults;

use std::path::Path;

/// One ability that the machine may have.
#[derive(Clone, Debug)]
pub struct Ability {
    /// Its name.
    pub name: &'static str,
    /// Whether it works here and now.
    pub found: bool,
    /// What the probe saw: a version, a setting, an errno.
    pub detail: String,
    /// The cost of its absence.
    pub cost_without: &'static str,
    /// The setting that enables it.
    pub remedy: &'static str,
}

impl Ability {
    /// From a trial: what was seen if it succeeded, or why it failed.
    fn tried(
        name: &'static str,
        outcome: Result<String, String>,
        cost_without: &'static str,
        remedy: &'static str,
    ) -> Self {
        let found = outcome.is_ok();
        let detail = outcome.unwrap_or_else(|why| why);
        Self { name, found, detail, cost_without, remedy }
    }
}

/// Whether listener delivery is available.
pub fn kernel_faults() -> Ability {
    userfaults::kernel()
}

/// Probes everything, the most important first. `state_directory` is the directory of the default tier's file.
pub fn all(state_directory: &Path) -> Vec<Ability> {
    let mut abilities = machine::kernel();
    abilities.extend(userfaults::all());
    abilities.extend(machine::storage(state_directory));
    abilities.extend(machine::limits());
    abilities.push(machine::rdma());
    abilities.extend(machine::for_bench());
    abilities
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ability_says_what_it_costs_and_what_changes_it() {
        let abilities = all(&std::env::temp_dir());
        for ability in &abilities {
            println!("{ability:?}");
            assert!(!ability.detail.is_empty(), "{}", ability.name);
            assert!(!ability.cost_without.is_empty() && !ability.remedy.is_empty(), "{}", ability.name);
        }
        let mut names: Vec<&str> = abilities.iter().map(|ability| ability.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), abilities.len(), "names are unique");
    }

    #[test]
    fn a_directory_that_is_not_there_yet_is_probed_where_it_would_be_made() {
        let absent = std::env::temp_dir().join("aquifer-absent/state");
        let there = machine::storage(&std::env::temp_dir());
        assert_eq!(machine::storage(&absent)[0].found, there[0].found);
        assert!(!absent.exists());
    }
}
