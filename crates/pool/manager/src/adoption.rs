// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The order to adopt what is in use, and the remarks that it is answered with. Pure.

use std::collections::BTreeSet;

use aquifer_fabric::{Edit, Observed, VolumeId, VolumeName};

use crate::order::NotDone;

/// Maximum number of volumes that a remark names.
const NAMES_MAX: usize = 32;

/// Adopts what is in use. Returns remarks: what could not be adopted, zones above their quotas, and volumes of which a
/// part of the specification is lost.
pub(crate) fn adopt(
    edit: &mut Edit<'_>,
    observed: &Observed,
    draw: impl FnMut() -> VolumeId,
) -> Result<Vec<String>, NotDone> {
    let known: BTreeSet<VolumeId> = edit.desired.volumes.keys().copied().collect();
    let not_adopted = edit.adopt(observed, draw);
    // Here reports become a part of the state, which must be one that is accepted at the next start. A look at all
    // volumes costs little in so rare an order.
    edit.desired.check().map_err(NotDone::Inconsistent)?;
    let over_quota = edit.desired.over_quota().into_iter().map(|over| over.to_string());
    let mut remarks: Vec<String> = not_adopted.iter().map(ToString::to_string).chain(over_quota).collect();
    let new = edit.desired.volumes.iter().filter(|(id, volume)| !volume.released && !known.contains(id));
    remarks.extend(bare(new.map(|(_, volume)| &volume.name)));
    Ok(remarks)
}

/// Returns the remark about volumes that were adopted from reports alone.
fn bare<'a>(volumes: impl Iterator<Item = &'a VolumeName>) -> Option<String> {
    let all: Vec<&str> = volumes.map(VolumeName::as_str).collect();
    let (named, rest) = all.split_at(all.len().min(NAMES_MAX));
    let and_more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    let (what, have) = if all.len() == 1 { ("volume", "has") } else { ("volumes", "have") };
    (!all.is_empty()).then(|| {
        format!(
            "{what} {}{and_more} {have} no expiry time, labels or fixed donor now, since hosts know of none; \
             export the declaration, add the expiry times and labels, and apply it",
            named.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_adoption_loses_is_said_of_each_volume_up_to_a_number() {
        let names: Vec<VolumeName> = (0..40).map(|number| format!("v{number}").parse().expect("a name")).collect();
        assert_eq!(bare(names.iter().take(0)), None);
        let one = bare(names.iter().take(1)).expect("a remark");
        assert!(one.starts_with("volume v0 ") && one.contains("no expiry time, labels"), "{one}");
        let all = bare(names.iter()).expect("a remark");
        assert!(all.starts_with("volumes v0, v1, ") && all.contains("v31 and 8 more"), "{all}");
        assert!(!all.contains("v32"), "{all}");
    }
}
