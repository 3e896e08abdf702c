// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Adopts what hosts have of volumes that the desired state knows otherwise, because an older state was restored: a
//! binding that was made since, and spans by which a volume was grown since. Which these are: `unlisted.rs`.

use super::validate::{check_view, contradiction, is_lent_to};
use super::{NotAdopted, after_member, after_span, bound_vppbs, spans};
use crate::bytes::Bytes;
use crate::desired::{Edit, Volume};
use crate::id::{HostId, VolumeId};
use crate::observed::{Observed, VolumeReport};
use crate::placement::check_spec;
use crate::reconcile::MemberLease;
use crate::reconcile::progress::{agent, is_dead};
use crate::unlisted::{is_unlisted_binding, unlisted_spans};
use crate::volume::{Member, VolumeSpec};

impl Edit<'_> {
    /// Returns whether a volume of the desired state is to be adopted as this host has it. One host's word is not
    /// enough: a source must have lent it memory of the volume, and the host that has the volume by the desired state
    /// must say that it does not have it.
    pub(super) fn is_bound_otherwise(&self, volume: &Volume, id: VolumeId, host: &HostId, observed: &Observed) -> bool {
        let Some(view) = observed.hosts.get(host).and_then(|report| report.volumes.get(&id)) else { return false };
        let may_have_it = |bound: &HostId| {
            let report = agent(self.desired, observed, bound);
            report.map_or(!is_dead(self.desired, bound), |report| report.volumes.contains_key(&id))
        };
        let is_lent = || view.members.values().any(|one| is_lent_to(id, host, &one.lease, observed));
        // A released one has nothing left but leases that nobody used when they were adopted.
        is_unlisted_binding(volume, host, view)
            && (volume.released || (is_lent() && !volume.host.as_ref().is_some_and(may_have_it)))
    }

    /// Gives an adopted volume what the desired state says of it and no report does, and takes back what the desired
    /// state would have given to another host.
    pub(super) fn keep_of(&self, mut known: Volume, host: &HostId, adopted: &mut Volume) {
        if !known.released {
            let zone = self.desired.zones.get(&known.spec.zone).filter(|zone| zone.hosts.contains(host));
            let zone = if zone.is_some() { known.spec.zone.clone() } else { adopted.spec.zone.clone() };
            let is_there = |member: &Member| member.source.donor() == known.spec.donor.as_ref();
            let donor = known.spec.donor.clone().filter(|_| adopted.places().all(|(_, member)| is_there(member)));
            let VolumeSpec { size, pool, redundancy, presentation, .. } = adopted.spec.clone();
            adopted.spec = VolumeSpec { size, pool, zone, redundancy, presentation, donor, ..known.spec.clone() };
            adopted.name = known.name.clone();
        }
        known.release();
        adopted.leaving.extend(known.leaving);
        adopted.next_member = adopted.next_member.max(known.next_member);
        adopted.next_span = adopted.next_span.max(known.next_span);
    }

    /// Adopts the spans of a volume that its host has and the desired state does not list.
    pub(super) fn adopt_spans(
        &mut self,
        id: VolumeId,
        host: &HostId,
        view: &VolumeReport,
        observed: &Observed,
    ) -> Result<(), NotAdopted> {
        let Some(volume) = self.desired.volumes.get(&id) else { return Ok(()) };
        let mut unlisted = unlisted_spans(volume, host, view);
        unlisted.retain(|span| {
            let mut leases = view.members.values().map(|one| &one.lease).filter(|lease| lease.place.span == *span);
            leases.any(|lease| is_lent_to(id, host, lease, observed))
        });
        if unlisted.is_empty() {
            return Ok(());
        }
        let is_part = |lease: &MemberLease| unlisted.contains(&lease.place.span);
        let members = view.members.iter().filter(|(_, one)| is_part(&one.lease));
        let members = members.map(|(member, one)| (*member, one.clone())).collect();
        let part = VolumeReport { members, ..view.clone() };
        check_view(id, host, &part, observed)?;
        let mut grown = volume.clone();
        if grown.spec.redundancy != part.redundancy {
            return Err(contradiction(id, host, format!("redundancy {}, which it does not have", part.redundancy)));
        }
        let vppbs = bound_vppbs(observed);
        let leases = part.members.values().map(|member| &member.lease);
        for lease in leases.clone() {
            self.pool_with(&lease.source)?;
        }
        self.check_lds(id, host, leases.clone(), &vppbs)?;
        let member = |lease: &MemberLease| Member {
            id: lease.member,
            source: lease.source.clone(),
            bytes: lease.bytes,
            vppb: vppbs.get(&lease.source).cloned(),
        };
        let (new, rest) = spans(id, &part, member)?;
        grown.next_member = grown.next_member.max(after_member(part.members.keys()));
        grown.next_span = grown.next_span.max(after_span(leases.map(|lease| lease.place.span)));
        let added: Bytes = new.iter().map(|span| grown.usable_bytes_of(span)).sum();
        grown.spec.size = grown.spec.size.plus(added);
        grown.spans.extend(new);
        if check_spec(&grown.spec).is_err() {
            return Err(contradiction(id, host, format!("a size of {}, which no volume has", grown.spec.size)));
        }
        for (lease, why) in rest {
            grown.leave(host.clone(), lease.place, member(lease), why);
        }
        self.desired.volumes.insert(id, grown);
        self.changed();
        Ok(())
    }
}
