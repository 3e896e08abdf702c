// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The donors of a step: started by the bench, outside the step's limit, and ended when dropped.
//!
//! A single donor is on loopback: a virtual cable without a limit would add a second effect to the measurement, and
//! varies more. Several donors show the effect of more cables, so each is on its own host (`hosts.rs`), behind a cable
//! with a rate limit.

use std::fs;
use std::path::Path;

use crate::certificates;
use crate::contender::Contender;
use crate::donor_process::{DonorProcess, LOOPBACK, Way};
use crate::failure::BenchFailure;
use crate::hosts::{self, Hosts};
use crate::measure::{Bench, tier_bytes};
use crate::plan::Step;
use crate::size::format_rate;

/// The donors of one step of the bench.
pub struct Donors {
    /// Their addresses and security options, as written after `donor:`.
    pub place: String,
    // Dropped in this order: a host is removed when no process runs on it.
    _processes: Vec<DonorProcess>,
    _hosts: Option<Hosts>,
}

impl Bench<'_> {
    /// The donors of a step; None if the step does not borrow. Each has room for all of the step's data.
    pub(crate) fn donors(&self, step: &Step, socket: &Path, keys: &Path) -> Result<Option<Donors>, BenchFailure> {
        let mut hosts = None;
        let ways = match step.contender.kind() {
            Contender::AquiferDonor => vec![Way::plain(LOOPBACK)],
            Contender::AquiferDonorTls => {
                fs::create_dir_all(keys)
                    .map_err(|error| BenchFailure::io(format!("cannot make {}", keys.display()), &error))?;
                vec![certificates::tls(keys, LOOPBACK, self.interrupt)?]
            }
            Contender::AquiferDonors(count) => {
                hosts = Some(Hosts::make(self.token, *count, Some(self.settings.cable_rate))?);
                (1..=*count).map(|host| Way::plain(&hosts::address(host))).collect()
            }
            Contender::AquiferShm => vec![Way::shared(socket)],
            _ => return Ok(None),
        };
        let mut donors = Vec::new();
        for (host, way) in (1..).zip(&ways) {
            let words = hosts.as_ref().map_or_else(Vec::new, |hosts| hosts.words(host));
            donors.push(DonorProcess::start(self.aquifer(&step.contender)?, &words, way, tier_bytes(step))?);
        }
        let addresses: Vec<&str> = donors.iter().map(|donor| donor.address.as_str()).collect();
        let place = addresses.join("+") + &ways[0].options;
        Ok(Some(Donors { place, _processes: donors, _hosts: hosts }))
    }
}

/// A description of a contender's donors, for the reader of a report; None if it does not borrow.
pub fn about(contender: &Contender, cable_rate: u64) -> Option<String> {
    match contender.kind() {
        Contender::AquiferDonor => Some("a donor on loopback, plain text".into()),
        Contender::AquiferDonorTls => Some("a donor on loopback, TLS 1.3".into()),
        Contender::AquiferDonors(count) => {
            let hosts = if *count == 1 { "host, its cable" } else { "hosts, each cable" };
            Some(format!("{count} {hosts} limited to {} both ways, plain text", format_rate(cable_rate)))
        }
        Contender::AquiferShm => Some("a donor's memory, shared".into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_where_the_donors_are() {
        let about = |name: &str| about(&name.parse().unwrap(), 250_000_000);
        assert_eq!(about("aquifer-donor").unwrap(), "a donor on loopback, plain text");
        assert_eq!(about("aquifer-donors:1").unwrap(), "1 host, its cable limited to 250MB/s both ways, plain text");
        assert_eq!(about("aquifer-donors:2").unwrap(), "2 hosts, each cable limited to 250MB/s both ways, plain text");
        assert_eq!(about("aquifer-flash"), None);
    }
}
