// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer donor reclaim`: sends an administrator's reclaim order to a donor on this machine, and waits until it is
//! carried out.

use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use aquifer_core::units::ByteSize;
use aquifer_donor::{ControlFailure, EVERY_BYTE};
use aquifer_wire::{DonorStatus, Figure};
use clap::ArgGroup;
use serde_json::json;

use crate::duration::duration;
use crate::exit::{ExitCode, Failure};
use crate::output;

/// Interval between checks whether everything has been returned.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Additional time after the borrowers' deadline, for the donor to wipe what it revoked.
const WIPE: Duration = Duration::from_secs(30);

/// Take memory back from a donor on this machine
///
/// The donor stops lending it. Memory that no borrower has is free at once. The rest is reclaimed from the borrowers,
/// starting with the one that has most; slabs that a borrower does not give back in time are revoked, and it loses
/// their contents. An idle program gets the notice within a third of a lease. The command waits until the memory is
/// free; interrupting it does not cancel the reclaim.
#[derive(Clone, Debug, clap::Args)]
#[command(group = ArgGroup::new("amount").args(["bytes", "all"]).required(true), after_long_help = "\
Examples:
  aquifer donor reclaim /run/donor.sock --bytes 16GiB
  aquifer donor reclaim /run/donor.sock --all --within 10m --json")]
pub struct ReclaimArgs {
    /// The donor's control socket: the path that it got with --control
    #[arg(value_name = "PATH")]
    control: PathBuf,

    /// How much, for example 16GiB; in whole slabs of 2 MiB
    #[arg(long, value_name = "SIZE")]
    bytes: Option<ByteSize>,

    /// All of the donor's memory
    #[arg(long)]
    all: bool,

    /// How long borrowers have to give it back
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    within: Duration,

    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Sends the order, waits, and prints the result.
pub fn reclaim(args: &ReclaimArgs) -> Result<process::ExitCode, Failure> {
    let path = &args.control;
    let before = control_status(path)?;
    let bytes = args.bytes.map_or(EVERY_BYTE, |bytes| bytes.0);
    aquifer_donor::reclaim(path, bytes, args.within).map_err(|why| failure(path, &why))?;
    let started = Instant::now();
    let after = loop {
        let now = control_status(path)?;
        if now.figure(Figure::DrainingBytes) == 0 || started.elapsed() > args.within.saturating_add(WIPE) {
            break now;
        }
        thread::sleep(LOOK_AGAIN);
    };
    let more = |figure| after.figure(figure).saturating_sub(before.figure(figure));
    let (reclaimed, revoked) = (more(Figure::ReclaimedBytes), more(Figure::RevocationsTotal));
    let left = after.figure(Figure::DrainingBytes);
    let lendable = after.figure(Figure::CapacityBytes) - after.figure(Figure::ReclaimedBytes);
    output::print(&if args.json {
        let line = json!({
            "reclaimed_bytes": reclaimed,
            "revocations": revoked,
            "draining_bytes": left,
            "lendable_bytes": lendable,
            "elapsed_s": started.elapsed().as_secs_f64(),
        });
        format!("{line}\n")
    } else {
        format!(
            "took back {}; {revoked} leases were revoked; {} are left to lend\n",
            ByteSize(reclaimed),
            ByteSize(lendable)
        )
    })?;
    if left > 0 {
        let cause = format!("{} did not come back", ByteSize(left));
        return Err(Failure::new(ExitCode::Failure, cause, "see 'aquifer donor status --control' for its progress"));
    }
    Ok(ExitCode::Success.into())
}

/// Returns the status of the donor that owns this control socket.
pub fn control_status(control: &Path) -> Result<DonorStatus, Failure> {
    aquifer_donor::control_status(control).map_err(|why| failure(control, &why))
}

fn failure(control: &Path, why: &ControlFailure) -> Failure {
    let cause = format!("no donor can be reached at {}: {why}", control.display());
    Failure::new(ExitCode::Failure, cause, "name the socket that it was given with --control, as its user or as root")
}
