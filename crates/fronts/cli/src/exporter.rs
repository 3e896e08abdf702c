// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Serves this command's figures to scrapers: finds the program that does so, and says how that has failed.

use std::net::SocketAddr;

use aquifer_exporter::{Exporter, ExporterFailure};

use crate::companion::METRICS;
use crate::exit::{ExitCode, Failure};

/// Listens, and starts the program that serves scrapers.
pub fn start(address: SocketAddr) -> Result<Exporter, Failure> {
    Exporter::start(METRICS.find()?, address).map_err(|failure| failed(&failure))
}

/// Returns why metrics are not served, as a failure of this command.
pub fn failed(failure: &ExporterFailure) -> Failure {
    Failure::new(ExitCode::Failure, failure.cause(), failure.remedy())
}
