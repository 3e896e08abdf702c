// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Opens the tier that a checked description asks for.

use crate::array::Array;
use crate::donor::Donor;
use crate::dram::Dram;
use crate::emulated::Emulated;
use crate::failing::Failing;
use crate::flash::Flash;
use crate::open_failure::OpenFailure;
use crate::profile::Profile;
use crate::spec::TierSpec;
use crate::tier::Tier;

/// Refuses what can be told without opening a tier: a place that is not there, a profile that is none.
pub fn check_place(spec: &TierSpec) -> Result<(), OpenFailure> {
    match spec {
        TierSpec::Flash(spec) => Flash::check_place(spec),
        TierSpec::Failing { inner, .. } => check_place(inner),
        TierSpec::Emulated { profile, .. } => Profile::load(profile).map(|_| ()),
        TierSpec::Array(spec) => Array::check_place(spec),
        TierSpec::Donor(spec) => Donor::check_place(spec),
        TierSpec::Dram { .. } => Ok(()),
    }
}

/// All processes of the tree that the description belongs to have ended: what they have borrowed goes back at once, and
/// not only when its leases expire. Where a donor does not answer within some seconds, it expires.
pub fn farewell(spec: &TierSpec) {
    match spec {
        TierSpec::Array(spec) => spec.members.iter().for_each(|member| Donor::farewell(&member.donor)),
        TierSpec::Donor(spec) => Donor::farewell(spec),
        TierSpec::Failing { inner, .. } => farewell(inner),
        TierSpec::Dram { .. } | TierSpec::Emulated { .. } | TierSpec::Flash(_) => {}
    }
}

/// Opens a tier. Allocates; called before the first fault is resolved.
pub fn open(spec: &TierSpec) -> Result<Box<dyn Tier>, OpenFailure> {
    Ok(match spec {
        TierSpec::Array(spec) => Box::new(Array::open(spec)?),
        TierSpec::Donor(spec) => Box::new(Donor::open(spec)?),
        TierSpec::Dram { size } => Box::new(Dram::open(*size)?),
        TierSpec::Emulated { profile, size } => Box::new(Emulated::open(Profile::load(profile)?, *size)?),
        TierSpec::Failing { plan, inner } => Box::new(Failing::new(open(inner)?, plan.clone())),
        TierSpec::Flash(spec) => Box::new(Flash::open(spec)?),
    })
}
