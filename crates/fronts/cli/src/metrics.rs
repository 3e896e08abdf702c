// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer metrics`: serves the values of every program on this host to Prometheus.

use std::fs;
use std::net::SocketAddr;
use std::process;

use aquifer_stats::{SettleTime, Snapshot, to_prometheus_of_units};

use crate::exit::{Failure, say};
use crate::exporter::Exporter;
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
    let exporter = Exporter::start(args.listen)?;
    say(&format!("metrics of programs at http://{}/metrics", exporter.address()));
    Err(exporter.supply(text))
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

/// Returns the systemd unit of a process. See cgroups(7), and `Delegate=` in systemd.resource-control(5).
fn unit_of(pid: u32) -> Option<String> {
    unit_in(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

/// Returns the innermost service or scope in the process's cgroup path: from the line `0::PATH`, or from systemd's own
/// hierarchy.
fn unit_in(cgroup: &str) -> Option<String> {
    let path = cgroup.lines().find_map(|line| {
        line.strip_prefix("0::").or_else(|| line.split_once(":name=systemd:").map(|(_, path)| path))
    })?;
    let is_unit = |part: &&str| part.ends_with(".service") || part.ends_with(".scope");
    path.split('/').rev().find(is_unit).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_the_innermost_one() {
        let unit = |text: &str| unit_in(text);
        assert_eq!(unit("0::/system.slice/aquifer@web.service\n").as_deref(), Some("aquifer@web.service"));
        assert_eq!(unit("0::/system.slice/a.service/inner\n").as_deref(), Some("a.service"));
        assert_eq!(unit("4:memory:/x\n1:name=systemd:/user.slice/b.scope\n").as_deref(), Some("b.scope"));
        assert_eq!(unit("0::/\n"), None);
        assert_eq!(unit(""), None);
    }
}
