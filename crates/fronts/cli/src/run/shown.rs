// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Shows the program's statistics to the agent of this host, if there is one that serves metrics.

use std::path::{Path, PathBuf};

use aquifer_agent_wire::SOCKET;
use aquifer_exporter::Showing;
use aquifer_stats::Counters;
use aquifer_tiers::TierSpec;

/// Prepares to show the statistics of a program with these tiers; `None` without /proc.
pub fn prepare(tiers: &[String], counters: &Counters) -> Option<Showing> {
    Showing::new(agent(tiers), counters.descriptor()?).ok()
}

/// Returns the socket of the agent: the one that gives the program a volume, or where packages have it.
fn agent(tiers: &[String]) -> PathBuf {
    let specs: Vec<TierSpec> = tiers.iter().filter_map(|tier| tier.parse().ok()).collect();
    specs.iter().find_map(agent_of).map_or_else(|| SOCKET.into(), Path::to_owned)
}

/// Returns the socket of the agent that a tier needs, if it is in a volume.
fn agent_of(spec: &TierSpec) -> Option<&Path> {
    match spec {
        TierSpec::Pool(pool) => Some(&pool.agent),
        TierSpec::Encrypted { inner } | TierSpec::Failing { inner, .. } => agent_of(inner),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_of_the_volume_is_the_one_that_gets_the_statistics() {
        let agent = |tiers: &[&str]| agent(&tiers.iter().map(|tier| (*tier).to_owned()).collect::<Vec<_>>());
        for (tiers, socket) in [
            (&[][..], SOCKET),
            (&["flash:/x,size=1GiB"], SOCKET),
            (&["pool:db"], SOCKET),
            (&["dram:size=1GiB", "pool:db,agent=/a/s"], "/a/s"),
            (&["pool:db,agent=/a/s,encrypt=ephemeral"], "/a/s"),
        ] {
            assert_eq!(agent(tiers), Path::new(socket), "{tiers:?}");
        }
    }
}
