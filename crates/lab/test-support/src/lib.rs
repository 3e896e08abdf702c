// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Shared by all tests of the workspace: [`skip`], with which a test reports that it cannot run here, and why; a
//! cluster of etcd ([`EtcdCluster`]), a [`Link`] that can be cut, a collector of spans ([`SpanCollector`]), a judge of
//! metrics ([`complaints_about_metrics`]), and [`Random`] numbers that follow from a seed.
//!
//! A test that cannot run calls [`skip`] and returns. `cargo xtask ci` lists these tests with their reasons at its end
//! and counts them as skipped; if the variable `CI` is set, only reasons that `.ci/skips` allows are accepted.

#![forbid(unsafe_code)]

mod beside;
mod etcd;
mod link;
mod promtool;
mod random;
mod skips;
mod span_collector;

pub use beside::build_beside;
pub use etcd::{EtcdCluster, EtcdMember};
pub use link::Link;
pub use promtool::complaints_about_metrics;
pub use random::Random;
pub use skips::{SKIPS_VARIABLE, skip, skip_part};
pub use span_collector::{Post, SpanCollector};
