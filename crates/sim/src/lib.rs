// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Plays traces against the decisions in `aquifer-core`, to choose between them by measurement.
//!
//! Everything is a function of its arguments and a seed: the same command prints the same table.

#![forbid(unsafe_code)]

pub mod graph;
pub mod opt;
pub mod random;
pub mod replay;
pub mod workload;
