// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer metrics`: serves the values of every program on this host to Prometheus.

use std::net::SocketAddr;
use std::process;

use aquifer_exporter::processes::unit_of;
use aquifer_stats::{SettleTime, Snapshot, to_prometheus_of_units};

use crate::exit::{Failure, say};
use crate::exporter;
use crate::instances;

/// Serve the statistics of running programs to Prometheus
///
/// One exporter serves the programs on a host: as root those of all users, otherwise only those of your own user. The
/// address has neither TLS nor passwords, so make sure that only the scraper can reach it.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  aquifer metrics --listen 127.0.0.1:9464
  curl http://127.0.0.1:9464/metrics
For a textfile collector: aquifer stat --prometheus")]
pub struct MetricsArgs {
    /// Address and port to listen on; the path is /metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
}

/// Serves until a signal ends the process.
pub fn metrics(args: &MetricsArgs) -> Result<process::ExitCode, Failure> {
    let exporter = exporter::start(args.listen)?;
    say(&format!("metrics of programs at http://{}/metrics", exporter.address()));
    Err(exporter::failed(&exporter.supply(text, |line| say(&line))))
}

/// Returns the text for one scrape. Skips programs that have just ended.
fn text() -> String {
    let instances = instances::all().unwrap_or_default();
    let timeout = SettleTime::default();
    let snapshots = instances.iter().filter_map(|instance| instance.snapshot(&timeout).ok());
    let of_units: Vec<(Snapshot, Option<String>)> = snapshots
        .map(|snapshot| {
            let unit = snapshot.pid().and_then(unit_of);
            (snapshot, unit)
        })
        .collect();
    to_prometheus_of_units(&of_units)
}
