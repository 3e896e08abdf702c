// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Opens the tier, or the chain of tiers, that checked descriptions (`spec.rs`) request.

use aquifer_borrower::{Array, Donor};
use aquifer_core::tiering::LEVELS_MAX;
use aquifer_tier::{Failing, OpenFailure, Tier};

use crate::chain::Chain;
use crate::compressed::Compressed;
use crate::dax::Dax;
use crate::dram::Dram;
use crate::emulated::Emulated;
use crate::encrypted::{Encrypted, Private};
use crate::flash::Flash;
use crate::node;
use crate::pool::Pool;
use crate::profile::Profile;
use crate::spec::{SpecFailure, TierSpec};

/// Refuses what can be detected without opening a tier: a place that does not exist, an invalid profile.
pub fn check_place(spec: &TierSpec) -> Result<(), OpenFailure> {
    match spec {
        TierSpec::Flash(spec) => Flash::check_place(spec),
        TierSpec::Encrypted { inner } | TierSpec::Failing { inner, .. } => check_place(inner),
        TierSpec::Emulated { profile, .. } => Profile::load(profile).map(|_| ()),
        TierSpec::Array(spec) => Array::check_place(spec).map_err(OpenFailure::from),
        TierSpec::Dax { path, .. } => Dax::check_place(path),
        TierSpec::Donor(spec) => Donor::check_place(spec).map_err(OpenFailure::from),
        TierSpec::Pool(spec) => Pool::check_place(spec),
        TierSpec::Node { number, size } => node::check(*number, *size),
        TierSpec::Compressed { .. } | TierSpec::Dram { .. } => Ok(()),
    }
}

/// Called when all processes of the tree that the description belongs to have ended. Gives back immediately what they
/// have borrowed, rather than when its leases expire. If a donor does not answer within some seconds, the leases
/// expire. Discards the bytes that remain on a disk.
pub fn report_exit(spec: &TierSpec) {
    match spec {
        TierSpec::Array(spec) => spec.members.iter().for_each(|member| Donor::report_exit(&member.donor)),
        TierSpec::Donor(spec) => Donor::report_exit(spec),
        TierSpec::Pool(spec) => Pool::report_exit(spec),
        TierSpec::Encrypted { inner } | TierSpec::Failing { inner, .. } => report_exit(inner),
        TierSpec::Flash(spec) => Flash::report_exit(spec),
        TierSpec::Compressed { .. }
        | TierSpec::Dax { .. }
        | TierSpec::Dram { .. }
        | TierSpec::Emulated { .. }
        | TierSpec::Node { .. } => {}
    }
}

/// Opens a tier. Allocates; called before the first fault is resolved.
pub fn open(spec: &TierSpec) -> Result<Box<dyn Tier>, OpenFailure> {
    Ok(match spec {
        TierSpec::Array(spec) => Box::new(Array::open(spec)?),
        TierSpec::Compressed { size, codec } => Box::new(Compressed::open(*size, *codec)?),
        TierSpec::Dax { path, size } => Box::new(Dax::open(path, *size)?),
        TierSpec::Donor(spec) => Box::new(Donor::open(spec)?),
        TierSpec::Dram { size } => Box::new(Dram::open(*size)?),
        TierSpec::Emulated { profile, size } => Box::new(Emulated::open(Profile::load(profile)?, *size)?),
        TierSpec::Encrypted { inner } => Box::new(Encrypted::new(open(inner)?)?),
        TierSpec::Failing { plan, inner } => Box::new(Failing::new(open(inner)?, plan.clone())),
        TierSpec::Flash(spec) => Box::new(Flash::open(spec)?),
        TierSpec::Pool(spec) => Box::new(Pool::open(spec)?),
        TierSpec::Node { number, size } => Box::new(node::open(*number, *size)?),
    })
}

/// Refuses descriptions that cannot be levels of one chain, without opening anything.
pub fn check_levels(specs: &[TierSpec]) -> Result<(), SpecFailure> {
    if specs.len() > LEVELS_MAX {
        let count = specs.len();
        return Err(SpecFailure::new(format!("a chain of {count} tiers is too long; give at most {LEVELS_MAX}")));
    }
    for (index, spec) in specs.iter().enumerate() {
        if let Some(first) = specs[..index].iter().position(|other| other.is_same_place(spec)) {
            let (first, second) = (first + 1, index + 1);
            return Err(SpecFailure::new(format!(
                "tiers {first} and {second} store to the same place; name each place only once"
            )));
        }
    }
    Ok(())
}

/// Opens tiers as one, the fastest first. There must be at least one description.
pub fn open_levels(specs: &[TierSpec]) -> Result<Box<dyn Tier>, OpenFailure> {
    let count = specs.len();
    let level = |(index, spec): (usize, &TierSpec)| {
        let failed = |failure| OpenFailure::Level { number: index + 1, count, failure: Box::new(failure) };
        open(spec).map_err(|failure| if count == 1 { failure } else { failed(failure) })
    };
    as_one(specs.iter().enumerate().map(level).collect::<Result<_, _>>()?)
}

/// Combines tiers, the fastest first, into one: a chain if there are several. There must be at least one. What a
/// process stores there after a fork(2) cannot be read by related processes.
pub fn as_one(mut tiers: Vec<Box<dyn Tier>>) -> Result<Box<dyn Tier>, OpenFailure> {
    let together = if tiers.len() == 1 { tiers.remove(0) } else { Box::new(Chain::new(tiers)?) };
    Ok(Box::new(Private::new(together)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs(texts: &[&str]) -> Vec<TierSpec> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_chain_has_at_most_four_levels_in_different_places() {
        for good in [
            &["dram:"][..],
            &["dram:size=4MiB", "flash:/a", "flash:/b", "emulated:cmm-h"],
            &["donor:a:1,security=plain", "donor:a:2,security=plain"],
            &["node:1", "node:2", "dax:/dev/dax0.0", "dax:/dev/dax1.0"],
        ] {
            assert_eq!(check_levels(&specs(good)), Ok(()), "{good:?}");
        }
        for (bad, why) in [
            (&["dram:", "dram:size=4MiB"][..], "tiers 1 and 2"),
            (&["node:1", "dram:", "node:1,size=1GiB"], "tiers 1 and 3"),
            (&["dax:/dev/dax0.0,size=1GiB", "dax:/dev/dax0.0"], "to the same place"),
            (&["dram:", "flash:/a", "failing:after=1:flash:/a,size=1GiB"], "tiers 2 and 3"),
            (&["donor:a:1,security=plain", "donor:a:1,security=plain,size=1GiB"], "to the same place"),
            (&["donor:a:1+b:1,security=plain", "dram:", "donor:b:1,security=plain"], "tiers 1 and 3"),
            (&["dram:", "flash:/a", "flash:/b", "flash:/c", "flash:/d"], "give at most 4"),
        ] {
            let message = check_levels(&specs(bad)).unwrap_err().to_string();
            assert!(message.contains(why), "{bad:?}: {message}");
        }
    }

    #[test]
    fn a_level_that_cannot_be_opened_is_named() {
        let failure = open_levels(&specs(&["dram:size=4MiB", "flash:/nowhere/at/all"])).err().unwrap();
        let message = failure.to_string();
        assert!(message.starts_with("tier 2 of 2: directory /nowhere/at does not exist"), "{message}");
        let failure = open_levels(&specs(&["dram:size=1MiB", "emulated:cmm-h,size=4MiB"])).err().unwrap();
        assert!(failure.to_string().contains("2MiB"), "{failure}");
        assert_eq!(open_levels(&specs(&["dram:size=4MiB"])).unwrap().name(), "dram");
        let chain = open_levels(&specs(&["dram:size=4MiB", "emulated:cmm-h,size=9MiB"])).unwrap();
        assert_eq!((chain.name(), chain.capacity_bytes()), ("chain", 12 << 20));
    }
}
