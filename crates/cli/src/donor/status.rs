// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer donor status`: the figures of a donor, for people and scripts.

use std::net::ToSocketAddrs;
use std::process;
use std::time::Duration;

use aquifer_core::units::ByteSize;
use aquifer_wire::{Figure, Refusal, Standing};
use serde_json::{Map, Value};

use crate::exit::{ExitCode, Failure};
use crate::output;
use crate::table::columns;

/// How long each step may take: connecting, greeting, the answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Show how a donor stands
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  aquifer donor status 10.0.0.2:7411         a table
  aquifer donor status 10.0.0.2:7411 --json  one object")]
pub struct StatusArgs {
    /// Where the donor listens
    #[arg(value_name = "HOST:PORT")]
    address: String,

    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Asks and prints.
pub fn status(args: &StatusArgs) -> Result<process::ExitCode, Failure> {
    let failure = |error: std::io::Error| {
        let cause = format!("no donor answers at {}: {error}", args.address.escape_debug());
        Failure::new(ExitCode::Failure, cause, "start one there with 'aquifer donor', or check the address")
    };
    let mut addresses = args.address.to_socket_addrs().map_err(failure)?;
    let address = addresses.next().ok_or_else(|| failure(std::io::ErrorKind::NotFound.into()))?;
    let standing = aquifer_donor::status(address, PATIENCE).map_err(failure)?;
    output::print(&if args.json { json(&standing) } else { page(&standing) })?;
    Ok(ExitCode::Success.into())
}

fn json(standing: &Standing) -> String {
    let figures = Figure::ALL.iter().map(|figure| (figure.word().to_owned(), standing.figure(*figure).into()));
    let refusals = Refusal::ALL.iter().map(|refusal| (refusal.word().to_owned(), standing.refused(*refusal).into()));
    let mut object: Map<String, Value> = figures.collect();
    object.insert("refusals_total".into(), Value::Object(refusals.collect()));
    format!("{}\n", Value::Object(object))
}

/// All figures; of the refusals, those that there were.
fn page(standing: &Standing) -> String {
    let figures = Figure::ALL.iter().map(|figure| {
        let value = standing.figure(*figure);
        let shown = if figure.word().contains("bytes") { ByteSize(value).to_string() } else { value.to_string() };
        vec![figure.word().to_owned(), shown]
    });
    let refused = Refusal::ALL.iter().filter(|refusal| standing.refused(**refusal) > 0);
    let refusals = refused.map(|refusal| {
        let (word, meaning) = (refusal.word(), refusal.meaning());
        vec![format!("refused {word}"), format!("{} ({meaning})", standing.refused(*refusal))]
    });
    columns(&figures.chain(refusals).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_in_json_and_only_what_happened_on_the_page() {
        let mut standing = Standing { figures: [7; Figure::ALL.len()], refusals: [0; Refusal::ALL.len()] };
        standing.refusals[Refusal::Slow.index()] = 3;
        let value: Value = serde_json::from_str(&json(&standing)).unwrap();
        assert_eq!((&value["lent_bytes"], &value["refusals_total"]["slow"]), (&7.into(), &3.into()));
        assert_eq!(value["refusals_total"]["foreign"], 0);
        let page = page(&standing);
        assert!(page.contains("refused slow") && !page.contains("foreign"), "{page}");
    }
}
