// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

use super::*;
use crate::desired::Desired;
use crate::placement::Capacity;
use crate::topology::Topology;

/// An agent that reports the name of another volume's adoption would end the adoption of all volumes there.
#[test]
fn a_reported_name_does_not_take_the_name_that_another_volume_is_adopted_with() {
    let (topology, mut desired, observed) = (Topology::default(), Desired::default(), Observed::default());
    let mut capacity = Capacity::new(&topology, &desired, &observed);
    let edit = Edit { topology: &topology, desired: &mut desired, capacity: &mut capacity };
    let (one, other) = (VolumeId(1), VolumeId(2));
    let own = adopted_name(one);
    for (reported, name) in [
        (None, own.clone()),
        (Some("db".parse().expect("a name")), "db".parse().expect("a name")),
        (Some(own.clone()), own.clone()),
        (Some(adopted_name(other)), own.clone()),
        (Some("adopted-x".parse().expect("a name")), own),
    ] {
        let view = VolumeReport { name: reported.clone(), ..VolumeReport::default() };
        assert_eq!(edit.name_of(one, &view), name, "{reported:?}");
    }
}
