// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer donor`: lends this machine's memory, reclaims it, and shows a donor's status.
//!
//! The arguments are defined here and, for fabric managers, in `managed.rs`. `lend.rs` runs the donor; `reclaim.rs` and
//! `status.rs` talk to a running one.

mod lend;
mod managed;
mod metrics;
mod notify;
mod reclaim;
mod status;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process;
use std::str::FromStr;
use std::time::Duration;

use aquifer_core::units::ByteSize;
use aquifer_donor::{Address, CONNECTIONS_MAX, DeviceChoice, Files, Security, Source};

use crate::duration::duration;
use crate::exit::{ExitCode, Failure};

/// The default listen address: loopback only.
const LISTEN: &str = "127.0.0.1:7411";

/// Lend this machine's memory to programs on others
///
/// Runs until SIGTERM or SIGINT. Then it asks borrowers to return everything, and waits for as long as --grace says; a
/// second signal ends it at once. A program elsewhere borrows with --tier donor:HOST:PORT,cert=FILE,key=FILE,ca=FILE;
/// one on this machine shares the memory itself, with --tier donor:unix:PATH. Memory that a borrower gives back is
/// wiped before another borrower gets it; leases that it does not renew expire. Changed certificates, revocation lists
/// and limits are read within seconds, and at SIGHUP. docs/donor.md has the commands that make certificates.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_long_help = "\
Examples:
  aquifer donor --size 64GiB --listen 10.0.0.2:7411 \\
    --tls-cert donor.pem --tls-key donor.key --tls-ca ca.pem
  aquifer run --dram 4GiB \\
    --tier donor:10.0.0.2:7411,cert=borrower.pem,key=borrower.key,ca=ca.pem -- ./program
  aquifer donor --size 64GiB --listen unix:/run/aquifer.sock   for programs on this machine
  aquifer run --dram 4GiB --tier donor:unix:/run/aquifer.sock -- ./program
  aquifer donor --size 64GiB --listen 10.0.0.2:7411 --rdma auto \\
    --tls-cert donor.pem --tls-key donor.key --tls-ca ca.pem
  aquifer donor --size 8GiB --source huge --quota 2GiB --security plain
  aquifer donor --size 64GiB --source dax:/dev/dax0.0 --security plain
  aquifer donor --size 64GiB --source node:1 --security plain
  aquifer donor --size 64GiB --listen 10.0.0.2:7411 \\
    --tls-cert donor.pem --tls-key donor.key --tls-ca ca.pem \\
    --manager pool.example:7444 --manager-state /var/lib/aquifer/donor.json --label rack=r1
  aquifer donor --size 64GiB --security plain --control /run/donor.sock
  aquifer donor reclaim /run/donor.sock --bytes 16GiB --within 5m
  aquifer donor status 10.0.0.2:7411 \\
    --tls-cert borrower.pem --tls-key borrower.key --tls-ca ca.pem
  aquifer run --dram 4GiB --tier donor:127.0.0.1:7411,security=plain -- ./program")]
pub struct DonorArgs {
    #[command(subcommand)]
    action: Option<Action>,

    /// How much to lend, for example 64GiB
    #[arg(long, value_name = "SIZE", required = true)]
    size: Option<ByteSize>,

    /// Where to listen; port 0 takes any free port; unix:PATH shares the memory with programs of this user and root
    #[arg(long, value_name = "ADDRESS:PORT", default_value = LISTEN)]
    listen: Address,

    /// Let borrowers reach it by RDMA, too: a device's name, or auto
    #[arg(long, value_name = "DEVICE|auto")]
    rdma: Option<DeviceChoice>,

    #[command(flatten)]
    tls: TlsArgs,

    /// Certificates revoked by the authorities of --tls-ca, in PEM
    ///
    /// Borrowers that show one lose their connections.
    #[arg(long = "tls-crl", value_name = "FILE")]
    revocations: Option<PathBuf>,

    /// What the memory is taken from: anonymous, huge, memfd, node:N or dax:PATH
    ///
    /// anonymous, with huge pages where the kernel has some; huge, pages that the administrator has reserved
    /// (vm.nr_hugepages); memfd, a file in memory; node:N, anonymous memory of one NUMA node, as with --node; dax:PATH,
    /// a device that is memory, such as /dev/dax0.0.
    #[arg(long, value_name = "WHAT", default_value = "anonymous", value_parser = source)]
    source: Taken,

    /// Take the memory from one NUMA node, which may be memory behind CXL
    #[arg(long, value_name = "NUMBER")]
    node: Option<u32>,

    /// How much one tenant may have [default: all]
    ///
    /// A tenant is all programs with certificates for one name, or of one address with --security plain, or of one user
    /// at unix:PATH.
    #[arg(long, value_name = "SIZE")]
    quota: Option<ByteSize>,

    /// A file with the limits of each tenant
    ///
    /// One per line: NAME quota=SIZE connections=NUMBER rate=SIZE requests=NUMBER. docs/donor.md says what NAME can be.
    #[arg(long, value_name = "FILE")]
    tenants: Option<PathBuf>,

    /// Append a line here for each lease that is granted, renewed, released or refused
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,

    /// How long a borrower keeps its memory without a sign of life
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = lease)]
    lease: Duration,

    /// How many connections are served at the same time; a busy program has about ten
    #[arg(long, value_name = "NUMBER", default_value_t = CONNECTIONS_MAX, hide_short_help = true)]
    connections: usize,

    /// Create a socket here, through which its owner and root can reclaim memory or query the donor's status
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,

    #[command(flatten)]
    managed: managed::ManagedArgs,

    /// How long a stopping donor waits for borrowers to return its memory
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    grace: Duration,

    /// Serve Prometheus text here, at /metrics, without authentication
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    metrics: Option<SocketAddr>,

    /// Print one JSON object that says what is lent and where
    #[arg(long)]
    json: bool,
}

/// How connections are protected.
#[derive(Clone, Debug, clap::Args)]
pub struct TlsArgs {
    /// How connections are protected
    ///
    /// tls: both sides show certificates; plain: not at all, so that anyone who reaches the port can borrow, and
    /// anyone on the path can read.
    #[arg(long, value_name = "HOW", default_value = "tls", value_parser = ["tls", "plain"])]
    security: String,

    /// This side's certificate, in PEM, with the intermediate ones
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,

    /// Its private key, in PEM
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// The authority that the other side's certificate must be signed by, in PEM
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
}

impl TlsArgs {
    /// Returns the security of a local socket, which needs no TLS: rejects `--security plain` and TLS files.
    fn none(&self, address: &Address) -> Result<Security, Failure> {
        if self.security == "plain" || [&self.tls_cert, &self.tls_key, &self.tls_ca].iter().any(|file| file.is_some()) {
            let cause = format!("nothing leaves the machine at {address}, and the kernel says who comes");
            return Err(Failure::new(ExitCode::Usage, cause, "leave --security and the files of TLS out"));
        }
        Ok(Security::Plain)
    }

    /// Returns the requested security, if all of its files are given.
    fn security(&self, what: &str) -> Result<Security, Failure> {
        let usage = |cause: &str, remedy: &str| Failure::new(ExitCode::Usage, cause, remedy);
        let (cert, key, ca) = (&self.tls_cert, &self.tls_key, &self.tls_ca);
        if self.security == "plain" {
            if [cert, key, ca].iter().any(|file| file.is_some()) {
                return Err(usage(
                    "--security plain uses no certificates",
                    "leave it out, or leave --tls-cert, --tls-key and --tls-ca out",
                ));
            }
            return Ok(Security::Plain);
        }
        let (Some(cert), Some(key), Some(ca)) = (cert.clone(), key.clone(), ca.clone()) else {
            let remedy = "give --tls-cert FILE, --tls-key FILE and --tls-ca FILE, or --security plain where nobody else is \
                          on the network";
            return Err(usage(what, remedy));
        };
        Ok(Security::Tls(Files { cert, key, ca }))
    }
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Action {
    Reclaim(reclaim::ReclaimArgs),
    Status(status::StatusArgs),
}

/// What memory is taken from.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Taken {
    source: Source,
    /// The node, if the source names one.
    node: Option<u32>,
}

fn source(text: &str) -> Result<Taken, String> {
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    let taken = |source, node| Ok(Taken { source, node });
    match (kind, rest, rest.parse()) {
        ("anonymous", "", _) => taken(Source::Anonymous, None),
        ("huge", "", _) => taken(Source::Huge, None),
        ("memfd", "", _) => taken(Source::Memfd, None),
        ("node", _, Ok(node)) => taken(Source::Anonymous, Some(node)),
        ("dax", path, _) if !path.is_empty() => taken(Source::Dax(path.into()), None),
        _ => Err(format!(
            "'{}' is nothing that memory is taken from; write anonymous, huge, memfd, node:N or dax:PATH",
            text.escape_debug()
        )),
    }
}

/// Returns the name of a source, as on the command line.
fn word(source: &Source) -> &'static str {
    match source {
        Source::Anonymous => "anonymous",
        Source::Dax(_) => "dax",
        Source::Huge => "huge",
        Source::Memfd => "memfd",
    }
}

/// Parses the duration of a lease. A borrower renews its leases three times per lease duration.
fn lease(text: &str) -> Result<Duration, String> {
    let lease = duration(text)?;
    let bounds = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);
    if bounds.contains(&lease) { Ok(lease) } else { Err(format!("{text} is out of range; give 1s to 24h")) }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    SocketAddr::from_str(text)
        .map_err(|_| "write an address on this machine and a port, for example 10.0.0.2:7411 or [::]:7411".into())
}

/// Lends until a signal arrives, or talks to a running donor.
pub fn donor(args: &DonorArgs) -> Result<process::ExitCode, Failure> {
    match &args.action {
        None => lend::lend(args),
        Some(Action::Reclaim(args)) => reclaim::reclaim(args),
        Some(Action::Status(args)) => status::status(args),
    }
}

fn cannot(cause: String) -> Failure {
    Failure::new(ExitCode::Failure, cause, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_taken_from_what_is_named() {
        for (text, taken_from) in [
            ("anonymous", Source::Anonymous),
            ("huge", Source::Huge),
            ("memfd", Source::Memfd),
            ("dax:/dev/dax0.0", Source::Dax("/dev/dax0.0".into())),
        ] {
            assert_eq!(source(text), Ok(Taken { source: taken_from.clone(), node: None }));
            assert!(text.starts_with(word(&taken_from)));
        }
        assert_eq!(source("node:1"), Ok(Taken { source: Source::Anonymous, node: Some(1) }));
        for text in ["", "dax", "dax:", "disk", "Huge", "node", "node:", "node:x", "node:-1", "memfd:1"] {
            assert!(source(text).is_err_and(|reported| reported.contains("dax:PATH")), "{text}");
        }
    }

    #[test]
    fn leases_have_bounds() {
        assert_eq!(lease("3s"), Ok(Duration::from_secs(3)));
        assert!(lease("10ms").is_err() && lease("25h").is_err() && lease("x").is_err());
    }
}
