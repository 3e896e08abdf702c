// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Collects the abilities. The probes live in the crates that use the abilities; this file only adds the default tier's
//! location.

use std::env;
use std::path::PathBuf;

use aquifer_sys::probe;
use nix::unistd::geteuid;

use crate::run::state_dir;

pub use aquifer_sys::probe::Ability;

/// Runs every probe.
pub fn all() -> Vec<Ability> {
    let path = state_dir::default_path(geteuid().is_root(), env::var_os("XDG_STATE_HOME"), env::var_os("HOME"));
    probe::all(&path.unwrap_or_else(|| PathBuf::from("/")))
}
