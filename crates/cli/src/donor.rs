// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer donor`: lends this machine's memory, and shows how a donor stands.
//!
//! Signals: SIGTERM and SIGINT end it; what is lent is revoked and wiped. They are blocked before the first thread
//! starts, and waited for.

mod status;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process;
use std::str::FromStr;
use std::time::Duration;

use aquifer_core::units::ByteSize;
use aquifer_donor::{Donor, Files, LEASE, Security, Settings, Source};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use nix::sys::signal::{SigSet, Signal};
use serde_json::json;

use crate::exit::{ExitCode, Failure, say};
use crate::output;

/// Where a donor listens unless it is told: on this machine alone.
const LISTEN: &str = "127.0.0.1:7411";
const SOURCES: [(&str, Source); 3] =
    [("anonymous", Source::Anonymous), ("huge", Source::Huge), ("memfd", Source::Memfd)];

/// Lend this machine's memory to programs on others
///
/// Runs until it is interrupted. A program elsewhere borrows with --tier donor:HOST:PORT,cert=FILE,key=FILE,ca=FILE.
/// What a borrower leaves is wiped before anybody else gets it; what it does not renew comes back by itself.
/// docs/donor.md has the commands that make certificates.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_long_help = "\
Examples:
  aquifer donor --size 64GiB --listen 10.0.0.2:7411 \\
    --tls-cert donor.pem --tls-key donor.key --tls-ca ca.pem
  aquifer run --dram 4GiB \\
    --tier donor:10.0.0.2:7411,cert=borrower.pem,key=borrower.key,ca=ca.pem -- ./program
  aquifer donor --size 64GiB --security plain                  for programs on this machine
  aquifer donor --size 8GiB --source huge --quota 2GiB --security plain
  aquifer donor status 10.0.0.2:7411 \\
    --tls-cert borrower.pem --tls-key borrower.key --tls-ca ca.pem
  aquifer run --dram 4GiB --tier donor:127.0.0.1:7411,security=plain -- ./program")]
pub struct DonorArgs {
    #[command(subcommand)]
    action: Option<Action>,

    /// How much to lend, for example 64GiB
    #[arg(long, value_name = "SIZE", required = true)]
    size: Option<ByteSize>,

    /// Where to listen; port 0 is any that is free
    #[arg(long, value_name = "ADDRESS:PORT", default_value = LISTEN, value_parser = address)]
    listen: SocketAddr,

    #[command(flatten)]
    tls: TlsArgs,

    /// What the memory is taken from
    #[arg(long, value_name = "WHAT", default_value = "anonymous", value_parser = source())]
    source: Source,

    /// Take it from one NUMA node
    #[arg(long, value_name = "NUMBER")]
    node: Option<u32>,

    /// How much one borrower may have [default: all]
    #[arg(long, value_name = "SIZE")]
    quota: Option<ByteSize>,

    /// One JSON object that says what is lent and where
    #[arg(long)]
    json: bool,
}

/// How connections are protected.
#[derive(Clone, Debug, clap::Args)]
pub struct TlsArgs {
    /// How connections are protected; tls: both sides show certificates; plain: not at all, so that whoever reaches the
    /// port can borrow, and whoever is on the way can read
    #[arg(long, value_name = "HOW", default_value = "tls", value_parser = ["tls", "plain"])]
    security: String,

    /// The certificate of this side, in PEM, with those between it and its authority
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
    /// What is asked for, if it is whole.
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
    Status(status::StatusArgs),
}

fn source() -> impl TypedValueParser<Value = Source> {
    PossibleValuesParser::new(SOURCES.map(|(word, _)| word)).map(|chosen| {
        let found = SOURCES.iter().find(|(word, _)| *word == chosen);
        found.expect("only these words are accepted").1
    })
}

fn address(text: &str) -> Result<SocketAddr, String> {
    SocketAddr::from_str(text)
        .map_err(|_| "write an address of this machine and a port, for example 10.0.0.2:7411 or [::]:7411".into())
}

/// Lends until a signal comes, or shows how a donor stands.
pub fn donor(args: &DonorArgs) -> Result<process::ExitCode, Failure> {
    if let Some(Action::Status(args)) = &args.action {
        return status::status(args);
    }
    let settings = settings(args)?;
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGTERM);
    ends.add(Signal::SIGINT);
    ends.thread_block().map_err(|errno| cannot(format!("signals cannot be waited for: {errno}")))?;
    let donor = Donor::start(settings.clone(), Box::new(|line| say(&line))).map_err(|why| cannot(why.to_string()))?;
    output::print(&announcement(args.json, &settings, &donor))?;
    ends.wait().map_err(|errno| cannot(format!("signals cannot be waited for: {errno}")))?;
    donor.stop(Duration::ZERO);
    Ok(ExitCode::Success.into())
}

fn settings(args: &DonorArgs) -> Result<Settings, Failure> {
    let what = "memory is lent over TLS unless plain text is asked for, and that takes certificates";
    let security = args.tls.security(what)?;
    let size = args.size.expect("clap asks for it");
    let settings = Settings::new(args.listen, size.0, args.source, security);
    Ok(Settings { quota_bytes: args.quota.map(|quota| quota.0), node: args.node, ..settings })
}

fn cannot(cause: String) -> Failure {
    Failure::new(ExitCode::Failure, cause, "")
}

/// What is said when the donor has started.
fn announcement(as_json: bool, settings: &Settings, donor: &Donor) -> String {
    let (address, capacity) = (donor.address(), donor.capacity_bytes());
    let (source, _) = SOURCES.iter().find(|(_, source)| *source == settings.source).expect("every source has its word");
    let is_plain = settings.security == Security::Plain;
    if as_json {
        let quota = settings.quota_bytes.unwrap_or(capacity);
        let lease_ms = u64::try_from(LEASE.as_millis()).expect("a minute");
        let line = json!({
            "address": address.to_string(),
            "capacity_bytes": capacity,
            "quota_bytes": quota,
            "source": source,
            "security": if is_plain { "plain" } else { "tls" },
            "lease_ms": lease_ms,
            "pid": process::id(),
        });
        return format!("{line}\n");
    }
    let (how, options) = match is_plain {
        true => ("in plain text", "security=plain"),
        false => ("over TLS", "cert=FILE,key=FILE,ca=FILE"),
    };
    format!(
        "lends {} of {source} memory at {address} {how}\nborrow it with --tier donor:{address},{options}\n",
        ByteSize(capacity)
    )
}
