// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Where the abilities come from: the probes belong to the crate that uses what they find.

/// One thing that a kernel may be able to do for us.
#[derive(Clone, Debug)]
pub struct Ability {
    /// Its name.
    pub name: &'static str,
    /// Whether it works here and now.
    pub found: bool,
    /// What was seen: a version, an errno.
    pub detail: String,
    /// What it costs to be without it.
    pub cost_without: &'static str,
    /// Which setting changes it.
    pub remedy: &'static str,
}

/// Probes everything.
pub fn all() -> Vec<Ability> {
    Vec::new()
}
