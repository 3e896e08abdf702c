// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Where a volume is, by the reports of agents: whether its host has it, and which hosts have not let go of it. Pure.

use std::collections::BTreeSet;

use crate::desired::{Desired, Volume, Why};
use crate::id::{HostId, VolumeId};
use crate::observed::Observed;
use crate::reconcile::progress::{has_left, is_dead};

/// Returns whether the programs of a volume's host have the volume, by the host's newest report. `None` if the host has
/// not reported since the manager was started.
///
/// This stays `true` while the volume grows, while its members are replaced or lost, and while the agent is silent.
/// Members of an earlier binding do not count. A host that was declared dead has nothing.
pub fn is_at_host(desired: &Desired, observed: &Observed, id: VolumeId, volume: &Volume) -> Option<bool> {
    let Some(host) = &volume.host else { return Some(false) };
    if is_dead(desired, host) {
        return Some(false);
    }
    let report = observed.hosts.get(host)?;
    let left = volume.leaving.values().filter(|leaving| leaving.why != Why::Unbound && leaving.host == *host);
    let mut members = volume.places().map(|(_, member)| member.id).chain(left.map(|leaving| leaving.member.id));
    Some(members.any(|member| report.member(id, member).is_some()))
}

/// Returns the hosts that had a volume in an earlier binding, and have not confirmed that they have let go of it.
pub fn leaving_hosts<'a>(
    desired: &Desired,
    observed: &Observed,
    id: VolumeId,
    volume: &'a Volume,
) -> BTreeSet<&'a HostId> {
    let unbound = volume.leaving.values().filter(|leaving| leaving.why == Why::Unbound);
    unbound.filter(|leaving| !has_left(desired, observed, id, leaving)).map(|leaving| &leaving.host).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Bytes;
    use crate::desired::Edit;
    use crate::example::{self, id as named};
    use crate::id::{Incarnation, MemberId, Token};
    use crate::observed::{Availability, HostReport, MemberReport, MemberState, VolumeReport};
    use crate::placement::Capacity;
    use crate::reconcile::MemberLease;
    use crate::topology::Topology;

    const ID: VolumeId = VolumeId(7);

    struct World {
        topology: Topology,
        desired: Desired,
        observed: Observed,
    }

    impl World {
        /// A volume of one member that is bound to h0 and has not come there yet.
        fn bound() -> World {
            let topology = example::racks(2);
            let (desired, observed) = (example::desired(&topology), example::observed(&topology));
            let mut world = World { topology, desired, observed };
            let spec = r#"{"size": "1GiB", "pool": "main", "zone": "lab", "class": "tcp"}"#;
            let spec = serde_json::from_str(spec).expect("a specification");
            world.edit(|edit, _| edit.create(ID, named("v"), spec).expect("room"));
            world.edit(|edit, _| edit.bind(ID, &named("h0")).expect("it can be bound"));
            world
        }

        fn edit(&mut self, change: impl FnOnce(&mut Edit<'_>, &Observed)) {
            let World { topology, desired, observed } = self;
            let mut capacity = Capacity::new(topology, desired, observed);
            change(&mut Edit { topology, desired, capacity: &mut capacity }, observed);
        }

        /// Lets h0 report that it has the members that are desired now.
        fn arrive(&mut self) {
            let members = self.desired.volumes[&ID].places().map(|(place, member)| {
                let source = member.source.clone();
                let lease = MemberLease { member: member.id, place, source, bytes: member.bytes, token: Token(1) };
                (member.id, MemberReport { lease, state: MemberState::InSync })
            });
            let view = VolumeReport { members: members.collect(), ..VolumeReport::default() };
            self.report(|report| drop(report.volumes.insert(ID, view)));
        }

        fn report(&mut self, change: impl FnOnce(&mut HostReport)) {
            let mut report = self.observed.hosts.get(&named("h0")).expect("it has reported").clone();
            change(&mut report);
            self.observed.hosts.insert(named("h0"), report);
        }

        /// Returns whether the volume's host has it, and the hosts that have not let go of it.
        fn seen(&self) -> (Option<bool>, Vec<String>) {
            let World { desired, observed, .. } = self;
            let volume = &desired.volumes[&ID];
            let hosts = leaving_hosts(desired, observed, ID, volume).into_iter().map(ToString::to_string).collect();
            (is_at_host(desired, observed, ID, volume), hosts)
        }
    }

    const NOBODY: Vec<String> = Vec::new();

    #[test]
    fn a_host_has_a_volume_from_its_report_on_whatever_happens_to_members() {
        let mut world = World::bound();
        assert_eq!(world.seen(), (Some(false), NOBODY));
        world.arrive();
        assert_eq!(world.seen(), (Some(true), NOBODY));
        world.edit(|edit, _| edit.grow(ID, Bytes::gib(2)).expect("room"));
        world.edit(|edit, observed| {
            edit.replace(ID, MemberId(1), Why::Replaced, observed).expect("room elsewhere");
        });
        world.report(|report| report.availability = Availability::Gone { since: crate::id::Millis(1) });
        assert_eq!(world.seen(), (Some(true), NOBODY), "the member that is replaced is still there");
        world.report(|report| *report = HostReport { incarnation: Incarnation(2), ..HostReport::default() });
        assert_eq!(world.seen(), (Some(false), NOBODY), "a host that was restarted has nothing");
        world.observed.hosts.remove(&named("h0"));
        assert_eq!(world.seen(), (None, NOBODY), "nobody knows");
    }

    #[test]
    fn an_earlier_binding_is_leaving_until_its_host_confirms_it() {
        let mut world = World::bound();
        world.arrive();
        world.edit(|edit, _| edit.unbind(ID).expect("it is bound"));
        let h0 = vec!["h0".to_owned()];
        assert_eq!(world.seen(), (Some(false), h0.clone()));
        world.edit(|edit, _| edit.bind(ID, &named("h0")).expect("it can be bound"));
        assert_eq!(world.seen(), (Some(false), h0.clone()), "what it has is the earlier binding's");
        world.edit(|edit, _| edit.unbind(ID).expect("it is bound"));
        world.edit(|edit, _| edit.release(ID).expect("it is unbound"));
        assert_eq!(world.seen(), (Some(false), h0));
        let members = world.desired.volumes[&ID].leaving.keys().copied().collect();
        world.report(|report| {
            report.volumes.clear();
            report.left = [(ID, members)].into();
        });
        assert_eq!(world.seen(), (Some(false), NOBODY));
    }

    #[test]
    fn a_dead_host_has_nothing() {
        let mut world = World::bound();
        world.arrive();
        world.edit(|edit, observed| edit.declare_dead(&named("h0"), observed));
        assert_eq!(world.seen(), (Some(false), NOBODY));
        world.edit(|edit, _| edit.unbind(ID).expect("it is bound"));
        assert_eq!(world.seen(), (Some(false), NOBODY));
    }
}
