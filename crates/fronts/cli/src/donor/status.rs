// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer donor status`: shows the figures of a donor to people and scripts.

use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::process;
use std::time::Duration;

use aquifer_core::units::ByteSize;
use aquifer_donor::{Address, StatusFailure, to_prometheus};
use aquifer_terminal::{columns, width};
use aquifer_wire::{DonorStatus, Figure, Refusal};
use clap::ArgGroup;
use serde_json::{Map, Value};

use crate::exit::{ExitCode, Failure};
use crate::output;

/// Timeout of each step: connecting, the handshake, the answer.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Show the figures of a donor
#[derive(Clone, Debug, clap::Args)]
#[command(group = ArgGroup::new("donor").args(["address", "control"]).required(true), after_long_help = "\
Examples:
  aquifer donor status 10.0.0.2:7411 \\
    --tls-cert borrower.pem --tls-key borrower.key --tls-ca ca.pem
  aquifer donor status 127.0.0.1:7411 --security plain         a table
  aquifer donor status 127.0.0.1:7411 --security plain --json  one object
  aquifer donor status --control /run/donor.sock --prometheus  a donor on this machine")]
pub struct StatusArgs {
    /// Where the donor listens; unix:PATH for a socket on this machine
    #[arg(value_name = "HOST:PORT")]
    address: Option<String>,

    /// Ask a donor on this machine through its control socket, which needs no certificates
    #[arg(long, value_name = "PATH", conflicts_with_all = ["tls_cert", "tls_key", "tls_ca", "tls_name"])]
    control: Option<PathBuf>,

    #[command(flatten)]
    tls: super::TlsArgs,

    /// The name that the donor's certificate must have [default: the host]
    #[arg(long, value_name = "SERVERNAME")]
    tls_name: Option<String>,

    /// One JSON object
    #[arg(long)]
    json: bool,

    /// Prometheus text
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
}

/// Asks the donor and prints its answer.
pub fn status(args: &StatusArgs) -> Result<process::ExitCode, Failure> {
    let status = match (&args.control, &args.address) {
        (Some(control), _) => super::reclaim::control_status(control)?,
        (None, address) => ask(args, address.as_deref().expect("clap asks for one of the two"))?,
    };
    output::print(&if args.json {
        json(&status)
    } else if args.prometheus {
        to_prometheus(&status)
    } else {
        page(&status)
    })?;
    Ok(ExitCode::Success.into())
}

fn ask(args: &StatusArgs, typed: &str) -> Result<DonorStatus, Failure> {
    if let Ok(address @ Address::Local(path)) = &typed.parse() {
        args.tls.none(address)?;
        return aquifer_donor::local_status(path, TIMEOUT).map_err(|why| failure(typed, &why));
    }
    let security = args.tls.security("a donor is asked over TLS unless plain text is asked for")?;
    let silent = |error| failure(typed, &StatusFailure::Io(error));
    let mut addresses = typed.to_socket_addrs().map_err(silent)?;
    let address = addresses.next().ok_or_else(|| silent(std::io::ErrorKind::NotFound.into()))?;
    let host = typed.rsplit_once(':').map_or("", |(host, _)| host);
    let name = args.tls_name.as_deref().unwrap_or(host.trim_start_matches('[').trim_end_matches(']'));
    aquifer_donor::status(address, name, &security, TIMEOUT).map_err(|why| failure(typed, &why))
}

fn failure(address: &str, why: &StatusFailure) -> Failure {
    let address = address.escape_debug();
    let (cause, remedy) = match why {
        StatusFailure::Credentials(_) => (why.to_string(), ""),
        StatusFailure::Distrust(_) => (format!("nothing is heard from {address}: {why}"), ""),
        StatusFailure::Name(_) => (why.to_string(), "give one with --tls-name"),
        StatusFailure::Refused(Refusal::PlainOnly) => {
            (format!("the donor at {address} lends in plain text, and was asked over TLS"), "write --security plain")
        }
        StatusFailure::Refused(Refusal::TlsOnly) => (
            format!("the donor at {address} lends over TLS, and was asked in plain text"),
            "give --tls-cert, --tls-key and --tls-ca",
        ),
        StatusFailure::Refused(_) => {
            (format!("the donor at {address} refuses: {why}"), "see what it says on its machine")
        }
        StatusFailure::Io(_) => (
            format!("no donor answers at {address}: {why}"),
            "start one there with 'aquifer donor', or check the address",
        ),
        why => (format!("the donor at {address} cannot be asked: {why}"), "see what it says on its machine"),
    };
    Failure::new(ExitCode::Failure, cause, remedy)
}

fn json(status: &DonorStatus) -> String {
    let figures = Figure::ALL.iter().map(|figure| (figure.word().to_owned(), status.figure(*figure).into()));
    let refusals = Refusal::ALL.iter().map(|refusal| (refusal.word().to_owned(), status.refused(*refusal).into()));
    let mut object: Map<String, Value> = figures.collect();
    object.insert("refusals_total".into(), Value::Object(refusals.collect()));
    format!("{}\n", Value::Object(object))
}

/// Returns all figures, and those refusals whose count is not zero.
fn page(status: &DonorStatus) -> String {
    let figures = Figure::ALL.iter().map(|figure| {
        let value = status.figure(*figure);
        let shown = if figure.word().contains("bytes") { ByteSize(value).to_string() } else { value.to_string() };
        vec![figure.word().to_owned(), shown]
    });
    let refused = Refusal::ALL.iter().filter(|refusal| status.refused(**refusal) > 0);
    let refusals = refused.map(|refusal| {
        let (word, meaning) = (refusal.word(), refusal.meaning());
        vec![format!("refused {word}"), format!("{} ({meaning})", status.refused(*refusal))]
    });
    columns(&figures.chain(refusals).collect::<Vec<_>>(), width())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_in_json_and_only_what_happened_on_the_page() {
        let mut status = DonorStatus { figures: [7; Figure::ALL.len()], refusals: [0; Refusal::ALL.len()] };
        status.refusals[Refusal::Slow.index()] = 3;
        let value: Value = serde_json::from_str(&json(&status)).unwrap();
        assert_eq!((&value["lent_bytes"], &value["refusals_total"]["slow"]), (&7.into(), &3.into()));
        assert_eq!(value["refusals_total"]["foreign"], 0);
        let page = page(&status);
        assert!(page.contains("refused slow") && !page.contains("foreign"), "{page}");
    }
}
