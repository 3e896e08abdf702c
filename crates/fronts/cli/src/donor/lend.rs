// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Runs a donor, from its settings to its end.
//!
//! Signals: on the first SIGTERM or SIGINT the donor asks borrowers to return everything, and waits for up to
//! `--grace`. A second signal, or the end of that time, revokes the remaining leases. The donor then wipes all lent
//! memory. On SIGHUP it reads its files again. These signals are blocked before the first thread starts, and are read
//! synchronously.

use std::net::SocketAddr;
use std::process;
use std::time::Duration;

use aquifer_core::units::ByteSize;
use aquifer_donor::{Address, Donor, Security, Settings, Source};
use aquifer_wire::{Figure, SLAB_BYTES};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::json;

use super::{DonorArgs, cannot, metrics, notify, word};
use crate::exit::{ExitCode, Failure, say};
use crate::output;
use crate::run::{Allowed, Limit};

/// Lends until a signal ends the donor and borrowers have returned the lent memory.
pub fn lend(args: &DonorArgs) -> Result<process::ExitCode, Failure> {
    let settings = settings(args)?;
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGTERM);
    ends.add(Signal::SIGINT);
    let no_signals = |errno| cannot(format!("signals cannot be waited for: {errno}"));
    let mut heeded = ends;
    heeded.add(Signal::SIGHUP);
    heeded.thread_block().map_err(no_signals)?;
    let hurry = SignalFd::with_flags(&ends, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(no_signals)?;
    allow_descriptors();
    if matches!(settings.source, Source::Anonymous | Source::Memfd) {
        let offered = ByteSize(settings.capacity_bytes);
        Allowed::read().ok().and_then(|allowed| beyond(offered, &allowed)).iter().for_each(|line| say(line));
    }
    let donor = Donor::start(settings.clone(), Box::new(|line| say(&line))).map_err(|why| cannot(why.to_string()))?;
    let scraped_at = args.metrics.map(|address| metrics::serve(address, donor.observer())).transpose()?;
    output::print(&announcement(args, &settings, &donor, scraped_at))?;
    notify::ready(&format!("lends {} at {}", ByteSize(donor.capacity_bytes()), donor.place()));
    while heeded.wait().map_err(no_signals)? == Signal::SIGHUP {
        donor.reload();
    }
    let observer = donor.observer();
    let revocations = || observer.status().figure(Figure::RevocationsTotal);
    let (lent, before) = (donor.lent_bytes(), revocations());
    if lent > 0 {
        let (lent, grace) = (ByteSize(lent), args.grace);
        say(&format!("ending: borrowers have {grace:?} to give back {lent}; a second signal ends the donor at once"));
    }
    notify::stopping(&format!("waits for {}", ByteSize(lent)), args.grace);
    donor.drain(args.grace, || hurry.read_signal().is_ok_and(|signal| signal.is_some()));
    donor.stop(Duration::ZERO);
    let revoked = revocations() - before;
    if revoked > 0 {
        say(&format!("revoked {revoked} leases that were not given back in time"));
    }
    Ok(ExitCode::Success.into())
}

fn settings(args: &DonorArgs) -> Result<Settings, Failure> {
    let what = "memory is lent over TLS unless plain text is asked for, and that takes certificates";
    let is_local = matches!(args.listen, Address::Local(_));
    let security = if is_local { args.tls.none(&args.listen)? } else { args.tls.security(what)? };
    let source = if is_local { shared(&args.source.source)? } else { args.source.source.clone() };
    let node = match (args.source.node, args.node) {
        (Some(of_source), Some(node)) if of_source != node => {
            let cause = format!("--source node:{of_source} and --node {node} name two nodes");
            return Err(Failure::new(ExitCode::Usage, cause, "give one of them"));
        }
        (of_source, node) => of_source.or(node),
    };
    if is_local && args.rdma.is_some() {
        let cause = format!("--rdma has no effect at {}: programs there map the memory itself", args.listen);
        return Err(Failure::new(ExitCode::Usage, cause, "leave --rdma out, or listen on a port"));
    }
    let size = args.size.expect("clap asks for it");
    let nobody = |cause: String, remedy| Err(Failure::new(ExitCode::Usage, cause, remedy));
    if let Some(quota) = args.quota.filter(|quota| quota.0 < SLAB_BYTES) {
        let cause = format!("a quota of {quota} is less than a slab of 2 MiB, so nobody could borrow anything");
        return nobody(cause, "give 2MiB or more, or leave --quota out");
    }
    if args.revocations.is_some() && security == Security::Plain {
        let cause = "--tls-crl lists certificates, and there are none without TLS".into();
        return nobody(cause, "leave it out, or lend over TLS");
    }
    if args.connections == 0 {
        return nobody("with --connections 0 nobody could borrow anything".into(), "give ten for each busy borrower");
    }
    let settings = Settings::new(args.listen.clone(), size.0, source, security);
    Ok(Settings {
        quota_bytes: args.quota.map(|quota| quota.0),
        tenants: args.tenants.clone(),
        audit: args.audit.clone(),
        revocations: args.revocations.clone(),
        node,
        rdma: args.rdma.clone(),
        lease: args.lease,
        connections_max: args.connections,
        control: args.control.clone(),
        managed: args.managed.settings(is_local)?,
        ..settings
    })
}

/// Returns the source to use for shared memory, or why the requested source cannot be shared.
fn shared(asked_for: &Source) -> Result<Source, Failure> {
    let refuse = |cause, remedy| Err(Failure::new(ExitCode::Usage, cause, remedy));
    match asked_for {
        Source::Huge => refuse(
            "--source huge cannot be shared: borrowers write by write(2), which hugetlbfs does not support",
            "leave it out; a donor that runs as root shares transparent huge pages",
        ),
        Source::Dax(_) => refuse(
            "--source dax cannot be shared: each borrower gets its own file, and a device cannot be divided into files",
            "leave it out, or listen on a port",
        ),
        Source::Anonymous | Source::Memfd => Ok(Source::Memfd),
    }
}

/// Returns a warning if the donor may lend more than it can have. The kernel takes pages only when memory is lent, so
/// nothing else reports that before it is too late.
fn beyond(size: ByteSize, allowed: &Allowed) -> Option<String> {
    let (most, remedy) = match &allowed.limit {
        Some(Limit { bytes, file }) => (
            format!("this cgroup may have ({bytes}, {})", file.display()),
            format!("lend less than {bytes}, or raise the cgroup's limit"),
        ),
        None => (format!("this machine's memory ({})", allowed.machine), format!("lend less than {}", allowed.machine)),
    };
    let cause = format!("--size {size} is more than {most}, so the kernel may end the donor before all of it is lent");
    (size > allowed.bytes()).then(|| format!("{cause}; {remedy}"))
}

/// Raises the limit on open files. Each connection takes a descriptor, and the usual soft limit of 1024 exists for
/// programs that use select(2).
fn allow_descriptors() {
    if let Ok((_, max)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // If the limit cannot be raised, the donor serves as many connections as the current limit allows.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, max, max);
    }
}

/// Returns the text printed when the donor has started.
fn announcement(args: &DonorArgs, settings: &Settings, donor: &Donor, scraped_at: Option<SocketAddr>) -> String {
    let (address, capacity) = (donor.place(), donor.capacity_bytes());
    let is_local = matches!(address, Address::Local(_));
    let source = word(&settings.source);
    let is_plain = settings.security == Security::Plain;
    if args.json {
        let quota = settings.quota_bytes.unwrap_or(capacity);
        let lease_ms = u64::try_from(settings.lease.as_millis()).expect("a day at most");
        let line = json!({
            "address": address.to_string(),
            "capacity_bytes": capacity,
            "quota_bytes": quota,
            "source": source,
            "security": if is_local { "local" } else if is_plain { "plain" } else { "tls" },
            "rdma": donor.rdma_port().map(|port| port.device.clone()),
            "lease_ms": lease_ms,
            "metrics": scraped_at.map(|address| address.to_string()),
            "pid": process::id(),
        });
        return format!("{line}\n");
    }
    if is_local {
        let size = ByteSize(capacity);
        return format!("shares {size} of memory at {address}\nborrow it with --tier donor:{address}\n");
    }
    let (how, options) = match is_plain {
        true => ("in plain text", "security=plain"),
        false => ("over TLS", "cert=FILE,key=FILE,ca=FILE"),
    };
    let (way, also) = match donor.rdma_port() {
        Some(port) => ("rdma:", format!(", and its bytes by RDMA over {} as they are", port.device)),
        None => ("", String::new()),
    };
    format!(
        "lends {} of {source} memory at {address} {how}{also}\nborrow it with --tier donor:{way}{address},{options}\n",
        ByteSize(capacity)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_donor_that_offers_more_than_it_can_have_says_so() {
        let machine = ByteSize(16 << 30);
        let whole = Allowed { machine, limit: None };
        assert_eq!(beyond(machine, &whole), None);
        let line = "--size 64GiB is more than this machine's memory (16GiB), so the kernel may end the donor before all \
                    of it is lent; lend less than 16GiB";
        assert_eq!(beyond(ByteSize(64 << 30), &whole).as_deref(), Some(line));

        let limit = Limit { bytes: ByteSize(8 << 30), file: "/sys/fs/cgroup/a/memory.max".into() };
        let part = Allowed { machine, limit: Some(limit) };
        assert_eq!(beyond(ByteSize(8 << 30), &part), None);
        let line = "--size 12GiB is more than this cgroup may have (8GiB, /sys/fs/cgroup/a/memory.max), so the kernel \
                    may end the donor before all of it is lent; lend less than 8GiB, or raise the cgroup's limit";
        assert_eq!(beyond(ByteSize(12 << 30), &part).as_deref(), Some(line));
    }
}
