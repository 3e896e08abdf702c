// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Finds what hosts have of volumes that the desired state knows otherwise, as after a restore of an older one: a
//! binding, or spans by which the volume was grown. It stays as it is until it is adopted. Pure.
//!
//! In a state that was never restored, a host has no member that the desired state does not list: it is dropped only
//! when the host has confirmed that it has left.

use std::collections::BTreeSet;

use crate::desired::Volume;
use crate::id::{HostId, MemberId, SpanId};
use crate::observed::{MemberState, VolumeReport};

fn lists(volume: &Volume, member: MemberId) -> bool {
    volume.leaving.contains_key(&member) || volume.member(member).is_some()
}

/// Returns whether a host has a volume by a binding that the desired state does not list.
pub(crate) fn is_unlisted_binding(volume: &Volume, host: &HostId, view: &VolumeReport) -> bool {
    let is_elsewhere = volume.host.as_ref() != Some(host);
    is_elsewhere && !view.members.is_empty() && !view.members.keys().any(|member| lists(volume, *member))
}

/// Returns the spans of a volume that a host has, and that the desired state does not list in any way. Those that are
/// leaving do not count: the host lets them go whatever is desired.
pub(crate) fn unlisted_spans(volume: &Volume, host: &HostId, view: &VolumeReport) -> BTreeSet<SpanId> {
    if volume.released || volume.host.as_ref() != Some(host) {
        return BTreeSet::new();
    }
    let mut spans: BTreeSet<SpanId> = view.members.values().map(|one| one.lease.place.span).collect();
    spans.retain(|span| !volume.spans.iter().any(|listed| listed.id == *span));
    for (member, one) in &view.members {
        if lists(volume, *member) || matches!(one.state, MemberState::Leaving { .. }) {
            spans.remove(&one.lease.place.span);
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Bytes;
    use crate::desired::Edit;
    use crate::example::{self, id};
    use crate::id::{Token, VolumeId};
    use crate::observed::MemberReport;
    use crate::placement::Capacity;
    use crate::reconcile::MemberLease;
    use crate::topology::LatencyClass;
    use crate::volume::{Place, Source};

    const V: VolumeId = VolumeId(1);

    fn member(number: u64, span: u32) -> (MemberId, MemberReport) {
        let (source, place) = (Source::Slabs { donor: id("d0000") }, Place { span: SpanId(span), shard: 0 });
        let lease = MemberLease { member: MemberId(number), place, source, bytes: Bytes::gib(1), token: Token(1) };
        (MemberId(number), MemberReport { lease, state: MemberState::InSync })
    }

    fn view(members: &[(MemberId, MemberReport)]) -> VolumeReport {
        VolumeReport { members: members.iter().cloned().collect(), ..VolumeReport::default() }
    }

    #[test]
    fn what_is_listed_in_no_way_is_unlisted() {
        let topology = example::racks(2);
        let (mut desired, observed) = (example::desired(&topology), example::observed(&topology));
        let mut capacity = Capacity::new(&topology, &desired, &observed);
        let mut edit = Edit { topology: &topology, desired: &mut desired, capacity: &mut capacity };
        edit.create(V, id("v"), example::spec(1, LatencyClass::Tcp)).expect("there is room");
        let (own, other): (HostId, HostId) = (id("h0"), id("h1"));
        edit.bind(V, &own).expect("it is in the zone");
        let mut volume = desired.volumes[&V].clone();
        let (place, listed) = volume.places().next().expect("one member");
        let (mut known, new) = (member(listed.id.0, place.span.0), member(77, 88));
        let both = view(&[known.clone(), new.clone()]);
        assert_eq!(unlisted_spans(&volume, &own, &both), [SpanId(88)].into());
        assert!(unlisted_spans(&volume, &other, &both).is_empty(), "it is bound elsewhere");
        assert!(!is_unlisted_binding(&volume, &other, &both), "a part of it is listed");
        assert!(is_unlisted_binding(&volume, &other, &view(std::slice::from_ref(&new))));
        assert!(!is_unlisted_binding(&volume, &own, &view(std::slice::from_ref(&new))), "its own binding");
        assert!(!is_unlisted_binding(&volume, &other, &view(&[])), "it has nothing");
        // A replacement in a span that is listed is no span of its own.
        known.0 = MemberId(78);
        assert!(unlisted_spans(&volume, &own, &view(&[known])).is_empty());
        let mut leaving = new.clone();
        leaving.1.state = MemberState::Leaving { left: Bytes::gib(1) };
        assert!(unlisted_spans(&volume, &own, &view(&[leaving])).is_empty());
        volume.release();
        assert!(unlisted_spans(&volume, &own, &both).is_empty());
    }
}
