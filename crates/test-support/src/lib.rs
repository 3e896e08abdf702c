// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What every test of the workspace shares: [`skip`], with which a test says that it cannot run here, and why.
//!
//! A test that cannot run returns after it has called [`skip`]. `cargo xtask ci` lists these with their reasons at its
//! end and counts them as skipped; where the variable `CI` is set, only reasons that `.ci/skips` allows may be given.

#![forbid(unsafe_code)]

mod skips;

pub use skips::{SKIPS_VARIABLE, skip, skip_part};
