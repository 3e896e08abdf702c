// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes the runs that show how much of the bandwidth of several donors a sequential reader gets: each donor is on a
//! host of its own (`hosts.rs`), and its cable has a rate limit.
//!
//! A cable carries the headers of TCP and IP as well, about 4 % of its rate, so 1.0 cannot be reached.

use crate::donor_process::{DonorProcess, Way};
use crate::failure::BenchFailure;
use crate::hosts::{self, Hosts};
use crate::overhead::{self, Case, OverheadRun};
use crate::overhead_run::OverheadBench;
use crate::size::MIB;

/// Room of each donor beyond its share: members of an array differ by a few slabs. A choice.
const SPARE_BYTES: u64 = 64 * MIB;
/// Passes that are timed for each donor, so that every case is timed equally long: about 20 s at 100 MB/s.
const PASSES_PER_DONOR: u32 = 2;

impl OverheadBench<'_> {
    /// The throughput over the sum of the cables, and a note about it.
    pub(crate) fn striping(&self, case: &Case, run: &mut OverheadRun) -> Result<(f64, String), BenchFailure> {
        let (count, rate) = (donors(case), self.settings.cable_rate);
        // Declared before the donors, so that it is dropped after them: a host is removed when no process runs on it.
        let hosts = Hosts::make(self.token, count, Some(rate))?;
        let bytes = case.tier_bytes / u64::from(count) + SPARE_BYTES;
        let lend =
            |host| DonorProcess::start(self.aquifer, &hosts.words(host), &Way::plain(&hosts::address(host)), bytes);
        let donors = (1..=count).map(lend).collect::<Result<Vec<DonorProcess>, BenchFailure>>()?;
        let addresses: Vec<&str> = donors.iter().map(|donor| donor.address.as_str()).collect();
        let tier = format!("donor:{},security=plain", addresses.join("+"));
        let (_, first, _) = self.managed_on(&tier, case, run, &[], &["--passes", "1"], &[])?;
        // The first pass is not timed: it writes back what was filled.
        let passes = (1 + PASSES_PER_DONOR * count).to_string();
        let (printed, stats, _) = self.managed_on(&tier, case, run, &[], &["--passes", &passes], &[])?;
        let sum = u64::from(count) * rate;
        overhead::striping(&printed, &stats, &first, sum as f64).map_err(|cause| BenchFailure::trouble(cause, ""))
    }
}

/// The number of donors that a case is named for.
fn donors(case: &Case) -> u32 {
    let count = case.name.split('-').next().and_then(|digits| digits.parse().ok());
    count.expect("the name of such a case begins with the number of its donors")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::HOSTS_MAX;
    use crate::overhead::{CASES, Overhead};

    #[test]
    fn each_case_names_a_number_of_donors_that_hosts_can_be_made_for() {
        let counts: Vec<u32> = CASES.iter().filter(|case| case.overhead == Overhead::Striping).map(donors).collect();
        assert_eq!(counts, [1, 2, 4, 7]);
        assert!(counts.iter().all(|count| *count <= HOSTS_MAX));
    }
}
