// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Measures a real fabric manager with many ends that lend no memory:
//! `pool_scale [DONORS] [HOSTS] [VOLUMES] [ETCD_URL]...`; the defaults are 1000, 200, 10000 and the embedded store.
//!
//! Starts `aquifer-fabricd` (from `AQUIFER_FABRICD`, or next to this program's directory) in a temporary directory.
//! The ends are in this process; like real ends, each has its own control channel. The program creates all volumes and
//! binds nine of ten. Then it measures, one after the other: a request for the status; the time from a bind until the
//! host has the volume; the time from a restart of all donors of a rack, without their memory, until every volume has
//! its copies again. It prints one line of JSON for each figure.

mod ends;
mod running;

use std::time::{Duration, Instant};

use ends::Ends;
use running::{Failure, Running};
use serde_json::{Value, json};

/// Number of status requests, and of binds, that are measured.
const STATUSES: usize = 200;
const BINDS: usize = 100;
/// Number of donors in one rack.
pub(crate) const RACK: usize = 20;
/// The time limit for each step.
const WAIT_MAX: Duration = Duration::from_secs(1800);
/// The size of each volume, which takes two copies of one slab.
const VOLUME_MIB: u64 = 2;

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| words.get(at).map_or(Ok(default), |word| word.parse::<usize>());
    let (donors, hosts, volumes) = (number(0, 1000)?, number(1, 200)?, number(2, 10_000)?);
    let etcd = words.get(3..).unwrap_or_default();
    let manager = Running::start(etcd)?;
    let mut ends = Ends::start(donors, hosts, &manager.control)?;
    let of = |what: &str, took: Duration| {
        let store = if etcd.is_empty() { "embedded" } else { "etcd" };
        let ms = took.as_secs_f64() * 1000.0;
        println!(
            "{}",
            json!({ "what": what, "ms": (ms * 10.0).round() / 10.0, "donors": donors, "hosts": hosts,
                    "volumes": volumes, "store": store })
        );
    };
    let begun = Instant::now();
    manager.until(|status| status["Donors"]["Answering"] == donors && status["Hosts"]["Answering"] == hosts)?;
    of("all ends register", begun.elapsed());

    let begun = Instant::now();
    manager.apply(&declaration(donors, hosts, volumes))?;
    of("apply of all volumes", begun.elapsed());
    manager.until(|status| status["IsSettled"] == true)?;
    of("all volumes are bound", begun.elapsed());

    let mut took: Vec<Duration> = Vec::new();
    for _ in 0..STATUSES {
        let begun = Instant::now();
        manager.status()?;
        took.push(begun.elapsed());
    }
    report("status", &mut took, of);
    for number in (0..volumes).filter(|number| number % 10 == 0).take(BINDS) {
        let begun = Instant::now();
        manager.bind(&format!("v{number:05}"), &format!("h{:03}", number % hosts))?;
        took.push(begun.elapsed());
    }
    report("bind to usable", &mut took, of);

    let begun = Instant::now();
    ends.reboot_rack(0)?;
    manager.until(|status| status["Donors"]["Answering"] != donors || status["IsSettled"] == false)?;
    manager.until(|status| status["Donors"]["Answering"] == donors && status["IsSettled"] == true)?;
    of("a rack's reboot is reconciled", begun.elapsed());
    let begun = Instant::now();
    manager.verify_audit()?;
    of("the audit log is verified", begun.elapsed());
    Ok(())
}

/// Prints the median and the maximum of some durations, and clears them.
fn report(what: &str, took: &mut Vec<Duration>, of: impl Fn(&str, Duration)) {
    took.sort();
    if let (Some(median), Some(max)) = (took.get(took.len() / 2), took.last()) {
        of(&format!("{what}, median"), *median);
        of(&format!("{what}, largest"), *max);
    }
    took.clear();
}

/// One pool, a zone for each host, and volumes, every tenth of which stays unbound.
fn declaration(donors: usize, hosts: usize, volumes: usize) -> Value {
    let donors: Vec<String> = (0..donors).map(|number| format!("d{number:04}")).collect();
    let zones = (0..hosts).map(|number| {
        let host = format!("h{number:03}");
        (format!("z{number:03}"), json!({ "quota": "1TiB", "hosts": [host] }))
    });
    let volumes = (0..volumes).map(|number| {
        let (zone, host) = (format!("z{:03}", number % hosts), format!("h{:03}", number % hosts));
        let spec = json!({ "size": format!("{VOLUME_MIB}MiB"), "pool": "main", "zone": zone, "class": "tcp",
                           "redundancy": { "mirror": { "copies": 2 } } });
        let volume = match number % 10 {
            0 => json!({ "spec": spec }),
            _ => json!({ "spec": spec, "host": host }),
        };
        (format!("v{number:05}"), volume)
    });
    json!({
        "pools": { "main": { "donors": donors } },
        "zones": zones.collect::<serde_json::Map<_, _>>(),
        "volumes": volumes.collect::<serde_json::Map<_, _>>(),
    })
}
