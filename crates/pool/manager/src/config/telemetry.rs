// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Where the manager sends spans of what it does.

use aquifer_telemetry::Collector;
use serde::{Deserialize, Serialize};

/// Where spans are sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TelemetryConfig {
    /// An OpenTelemetry collector on this machine, which takes OTLP over HTTP.
    pub collector: Collector,
}
