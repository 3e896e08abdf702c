// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What commands and the agent need to serve metrics to Prometheus.
//!
//! [`Exporter`] starts the program `aquifer-metrics`, which speaks HTTP with scrapers, and supplies its texts.
//! [`Showing`] is for `aquifer run`, which shows its program's statistics to the agent of the host, so that the agent's
//! metrics have those of all programs. [`processes`] says which process of this host a program is.

#![forbid(unsafe_code)]

mod exporter;
mod failure;
pub mod processes;
mod showing;

pub use exporter::{Exporter, PROGRAM};
pub use failure::ExporterFailure;
pub use showing::Showing;
