// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Measures a real fabric manager with many ends that lend no memory, and compares the figures with the project's bars.
//!
//! Starts `aquifer-fabricd` (from `AQUIFER_FABRICD`, or next to this program's directory) in a temporary directory.
//! The ends are in this process, each with its own control channel, as real ones have. For each number of volumes:
//! all are created, nine of ten are bound, and then the status and binds are measured one by one, each bind until the
//! host has the volume. At the end a rack's donors all restart without their memory, and the time is measured until
//! every volume has its copies again.
//!
//! Prints a table; with `--json` one object per line for each figure. Exits with 1 if a bar is missed.

mod ends;
mod figures;
mod running;

use std::time::{Duration, Instant};

use clap::Parser;
use ends::Ends;
use figures::{Figure, Figures};
use running::{Failure, Running};
use serde_json::{Value, json};

/// Donors that stand in one rack.
pub(crate) const RACK: usize = 20;
/// The time limit for each step.
const WAIT_MAX: Duration = Duration::from_secs(1800);
/// The size of each volume, which takes two copies of one slab.
const VOLUME_MIB: u64 = 2;

/// Measures a real fabric manager with many donors, hosts and volumes.
#[derive(Parser)]
struct Args {
    /// Donors, in racks of 20.
    #[arg(long, default_value_t = 1000)]
    donors: usize,
    /// Hosts, each with its own zone.
    #[arg(long, default_value_t = 200)]
    hosts: usize,
    /// Volumes: the pool grows from one number to the next.
    #[arg(long, value_delimiter = ',', default_value = "1000,3000,10000")]
    volumes: Vec<usize>,
    /// Requests for the status and binds that are measured at each size.
    #[arg(long, default_value_t = 100)]
    samples: usize,
    /// Members of an etcd cluster that stores the state, such as `http://127.0.0.1:2379`; by default a file does.
    #[arg(long)]
    etcd: Vec<String>,
    /// Prints one JSON object for each figure instead of a table.
    #[arg(long)]
    json: bool,
}

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let manager = Running::start(&args.etcd)?;
    let mut ends = Ends::start(args.donors, args.hosts, &manager.control)?;
    let mut figures = Figures::default();
    let everybody =
        |status: &Value| status["Donors"]["Answering"] == args.donors && status["Hosts"]["Answering"] == args.hosts;
    let begun = Instant::now();
    manager.until(everybody)?;
    figures.add(0, "all ends register", begun.elapsed());
    for volumes in &args.volumes {
        measure(&args, *volumes, &manager, &mut figures)?;
    }
    let volumes = args.volumes.last().copied().unwrap_or_default();
    let whole = manager.status()?["Volumes"]["Bound"].as_u64().unwrap_or_default() * 2;
    let begun = Instant::now();
    ends.reboot_rack(0)?;
    while ends.lent() != whole || !manager.is_settled()? {
        if begun.elapsed() > WAIT_MAX {
            return Err(format!("a rack's reboot is not reconciled within {WAIT_MAX:?}").into());
        }
        std::thread::sleep(running::LOOK);
    }
    figures.add(volumes, Figure::REBOOT, begun.elapsed());
    let begun = Instant::now();
    manager.verify_audit()?;
    figures.add(volumes, "the audit log is verified", begun.elapsed());
    let store = if args.etcd.is_empty() { "embedded" } else { "etcd" };
    let all_met = if args.json {
        figures.print_json(args.donors, args.hosts, store)
    } else {
        figures.print_table(args.donors, args.hosts, store)
    };
    // Ends the daemon before the process ends.
    drop(manager);
    std::process::exit(if all_met { 0 } else { 1 });
}

/// Grows the pool to a number of volumes, and measures requests.
fn measure(args: &Args, volumes: usize, manager: &Running, figures: &mut Figures) -> Result<(), Failure> {
    let begun = Instant::now();
    manager.apply(&declaration(args.donors, args.hosts, volumes))?;
    figures.add(volumes, "apply of all volumes", begun.elapsed());
    manager.until(|status| status["IsSettled"] == true)?;
    figures.add(volumes, "all volumes are bound", begun.elapsed());

    let mut took: Vec<Duration> = Vec::new();
    for _ in 0..args.samples {
        let begun = Instant::now();
        manager.status()?;
        took.push(begun.elapsed());
    }
    figures.add_median(volumes, Figure::STATUS, &mut took);
    let unbound: Vec<usize> = (0..volumes).filter(|number| number % 10 == 0).take(args.samples).collect();
    let cpu = manager.cpu()?;
    for number in &unbound {
        let begun = Instant::now();
        manager.bind(&format!("v{number:05}"), &format!("h{:03}", number % args.hosts))?;
        took.push(begun.elapsed());
    }
    let each = manager.cpu()?.saturating_sub(cpu) / u32::try_from(unbound.len().max(1))?;
    figures.add_median(volumes, Figure::BIND, &mut took);
    figures.add(volumes, Figure::CPU, each);
    Ok(())
}

/// Returns one pool, a zone for each host, and volumes, every tenth of which is unbound.
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
