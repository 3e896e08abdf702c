// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Adopts volumes, leases and LDs that are in use but not in the desired state, after the stored state was lost or an
//! older one was restored. Running programs are not disturbed.
//!
//! Memory that programs use becomes a volume bound to their host, as its agent reports it. Memory that is lent but
//! not used by its host becomes a member that leaves, and is released when the host's agent has confirmed that it has
//! left. While the agent does not answer, the lease stays a stray, and adoption is tried again.
//!
//! Any host and any donor may report anything. What contradicts itself, or what others report, stays a stray
//! (`adopt/validate.rs`): whatever is reported, the state afterwards is one that `desired/check.rs` accepts, and one
//! that lies keeps nobody else from being adopted. Quotas refuse nothing here, since the memory is in use already;
//! what is above its quota is listed ([`OverQuota`](crate::OverQuota)).

mod known_otherwise;
mod lent;
mod validate;

use std::collections::{BTreeMap, BTreeSet};

use crate::bytes::Bytes;
use crate::desired::{Edit, Leaving, Volume, Why};
use crate::id::{HostId, LdId, MemberId, PoolId, SpanId, VolumeId, VolumeName, VppbAddress, ZoneId};
use crate::observed::{HostReport, LdBinding, MemberReport, MemberState, Observed, VolumeReport};
use crate::placement::check_spec;
use crate::reconcile::progress::agent;
use crate::reconcile::{MemberLease, unknown_lds};
use crate::topology::{DeviceKind, FaultDomain, LatencyClass};
use crate::volume::{Member, Place, Source, Span, VolumeSpec};
use lent::{Lent, lent};
use validate::{MEMBER_MAX, SPAN_MAX, check_view, contradiction};

pub use validate::NotAdopted;

/// The prefix of the names of volumes that are adopted without one.
const ADOPTED: &str = "adopted-";

impl Edit<'_> {
    /// Adopts everything that can be adopted, and returns what cannot. `draw` returns a new volume id on each call, for
    /// LDs that are bound and in no volume. May be called again with newer reports.
    pub fn adopt(&mut self, observed: &Observed, mut draw: impl FnMut() -> VolumeId) -> Vec<NotAdopted> {
        let version = self.desired.version;
        let mut not_adopted = BTreeSet::new();
        for (host, report) in &observed.hosts {
            if agent(self.desired, observed, host).is_none() {
                continue;
            }
            for (id, view) in &report.volumes {
                let outcome = match self.may_adopt(*id, host, observed) {
                    true => self.adopt_volume(*id, host, report, view, observed),
                    false => self.adopt_spans(*id, host, view, observed),
                };
                not_adopted.extend(outcome.err());
            }
        }
        self.adopt_unused(observed, &mut not_adopted);
        self.adopt_lds(observed, &mut draw, &mut not_adopted);
        self.desired.version = version + u64::from(self.desired.version != version);
        not_adopted.into_iter().collect()
    }

    /// Returns whether a volume that a host uses is not in the desired state, or only by another binding, or by leases
    /// that nobody used when they were adopted.
    fn may_adopt(&self, id: VolumeId, host: &HostId, observed: &Observed) -> bool {
        let known = self.desired.volumes.get(&id);
        known.is_none_or(|volume| self.is_bound_otherwise(volume, id, host, observed))
    }

    /// Adopts a volume that a host uses, and whose binding the desired state lacks.
    fn adopt_volume(
        &mut self,
        id: VolumeId,
        host: &HostId,
        report: &HostReport,
        view: &VolumeReport,
        observed: &Observed,
    ) -> Result<(), NotAdopted> {
        check_view(id, host, view, observed)?;
        let (zone, leases) = (self.zone_with(host)?, view.members.values().map(|member| &member.lease));
        let mut pool = None;
        for lease in leases.clone() {
            pool = Some(self.pool_with(&lease.source)?);
        }
        let pool = pool.ok_or(NotAdopted::Incomplete { volume: id })?;
        let vppbs = bound_vppbs(observed);
        self.check_lds(id, host, leases.clone(), &vppbs)?;
        let member = |lease: &MemberLease| Member {
            id: lease.member,
            source: lease.source.clone(),
            bytes: lease.bytes,
            vppb: vppbs.get(&lease.source).cloned(),
        };
        let (spans, rest) = spans(id, view, member)?;
        let mut volume = Volume {
            name: self.name_of(id, view),
            spec: self.spec_of(pool, zone, view, &spans),
            spans,
            leaving: BTreeMap::new(),
            host: Some(host.clone()),
            released: false,
            next_member: next_member(id, view, report, observed),
            next_span: after_span(leases.map(|lease| lease.place.span)),
        };
        volume.spec.size = volume.usable_bytes();
        if check_spec(&volume.spec).is_err() {
            return Err(contradiction(id, host, format!("a size of {}, which no volume has", volume.spec.size)));
        }
        for (lease, why) in rest {
            volume.leave(host.clone(), lease.place, member(lease), why);
        }
        if let Some(known) = self.desired.volumes.get(&id).cloned() {
            self.keep_of(known, host, &mut volume);
        }
        self.desired.volumes.insert(id, volume);
        self.changed();
        Ok(())
    }

    /// Checks that the LDs among these leases are bound to the host, each to a vPPB of its own, and are in no volume.
    fn check_lds<'a>(
        &self,
        id: VolumeId,
        host: &HostId,
        leases: impl Iterator<Item = &'a MemberLease>,
        vppbs: &BTreeMap<Source, VppbAddress>,
    ) -> Result<(), NotAdopted> {
        // A host that lost its LD to another volume may still list it: that LD is known.
        let taken = self.desired.vppbs_taken();
        // Another manager may have taken the LD since, for another host.
        let is_its = |vppb: &VppbAddress| self.topology.host_of(&vppb.switch, vppb.vcs_id) == Some(host);
        let is_free = |vppb: &VppbAddress| !taken.contains(vppb) && is_its(vppb);
        // What the volume itself has reserved there while it was unbound is its own.
        let is_lent = |own: &Volume, source: &Source| {
            own.host.is_some() || own.leaving.values().any(|leaving| leaving.member.source == *source)
        };
        let is_taken = |source: &Source| {
            let own = self.desired.volumes.get(&id);
            self.desired.volumes.on(source).any(|by| by != id || own.is_some_and(|own| is_lent(own, source)))
        };
        let mut own = BTreeSet::new();
        for lease in leases.filter(|lease| matches!(lease.source, Source::LogicalDevice { .. })) {
            let vppb = vppbs.get(&lease.source).filter(|vppb| is_free(vppb) && !is_taken(&lease.source));
            if !own.insert(vppb.ok_or(NotAdopted::Incomplete { volume: id })?) {
                return Err(contradiction(id, host, format!("two members on {}", lease.source)));
            }
        }
        Ok(())
    }

    /// Adopts leases and dynamic capacity that are not in the desired state and that their host does not use.
    fn adopt_unused(&mut self, observed: &Observed, not_adopted: &mut BTreeSet<NotAdopted>) {
        // What a host uses is adopted as a whole, or not at all.
        let is_presented = |id: &VolumeId| observed.hosts.values().any(|report| report.volumes.contains_key(id));
        let unused = |lent: &Lent| {
            let report = agent(self.desired, observed, &lent.host);
            report.is_some_and(|report| report.member(lent.volume, lent.member).is_none())
                && !self.knows(lent.volume, lent.member)
                && (self.desired.volumes.contains_key(&lent.volume) || !is_presented(&lent.volume))
        };
        let unused: Vec<Lent> = lent(observed).filter(unused).collect();
        for lent in unused {
            // Of two sources that claim to have lent the same member, the second one stays a stray.
            if self.knows(lent.volume, lent.member) {
                not_adopted.insert(lent.contradiction("a member that another one has lent"));
            } else if let Err(why) = self.adopt_lent(lent) {
                not_adopted.insert(why);
            }
        }
    }

    fn adopt_lent(&mut self, lent: Lent) -> Result<(), NotAdopted> {
        if lent.member > MEMBER_MAX {
            return Err(lent.contradiction("a member number that is never given out"));
        }
        if self.capacity_of(&lent.source).is_some_and(|capacity| lent.bytes > capacity) {
            return Err(lent.contradiction("more memory than it has"));
        }
        let Lent { source, volume: id, member, host, bytes } = lent;
        let (zone, pool) = (self.zone_with(&host)?, self.pool_with(&source)?);
        let spec = self.spec_of(pool, zone, &VolumeReport::default(), &[]);
        let new = || Volume {
            name: self.free_name(id),
            spec,
            spans: Vec::new(),
            leaving: BTreeMap::new(),
            host: None,
            released: true,
            next_member: MemberId(1),
            next_span: SpanId(1),
        };
        let mut volume = self.desired.volumes.get(&id).cloned().unwrap_or_else(new);
        volume.next_member = volume.next_member.max(after_member([&member].into_iter()));
        let place = Place { span: SpanId(0), shard: 0 };
        let member = Member { id: member, source, bytes, vppb: None };
        let why = if volume.released { Why::Unbound } else { Why::Lost };
        volume.leaving.insert(member.id, Leaving { member, place, host, why, is_gone: false });
        self.desired.volumes.insert(id, volume);
        self.changed();
        Ok(())
    }

    /// Adopts LDs that are bound and in no volume: each becomes a separate volume, bound to the host that has it.
    fn adopt_lds(
        &mut self,
        observed: &Observed,
        draw: &mut impl FnMut() -> VolumeId,
        not_adopted: &mut BTreeSet<NotAdopted>,
    ) {
        for (device, report) in observed.devices.iter().filter(|(_, report)| report.availability.answers()) {
            let unknown = unknown_lds(self.desired, device, report).into_iter();
            let bound = unknown.filter_map(|(ld_id, ld)| match &ld.binding {
                LdBinding::Bound(vppb) => Some((ld_id, vppb.clone())),
                LdBinding::Busy | LdBinding::Unbound => None,
            });
            let bound: Vec<(LdId, VppbAddress)> = bound.collect();
            for (ld_id, vppb) in bound {
                let source = Source::LogicalDevice { device: device.clone(), ld_id };
                let Some(host) = self.topology.host_of(&vppb.switch, vppb.vcs_id).cloned() else { continue };
                // A manager that did not know of this binding promised the vPPB to another member: the LD stays a
                // stray.
                if self.desired.vppbs_taken().contains(&vppb) {
                    continue;
                }
                // The LD may be a member of a volume. Only its host's agent knows that, so without an answer it stays a
                // stray.
                let Some(report) = agent(self.desired, observed, &host) else { continue };
                let mut members = report.volumes.values().flat_map(|view| view.members.values());
                if members.any(|member| member.lease.source == source) {
                    continue;
                }
                let parts = self.topology.parts();
                let size = parts.devices.get(device).and_then(|device| {
                    device.lds().into_iter().find(|(listed, _)| *listed == ld_id).map(|(_, bytes)| bytes)
                });
                let Some(bytes) = size else { continue };
                let member = Member { id: MemberId(1), source, bytes, vppb: Some(vppb) };
                let id = draw();
                // An id that is taken is drawn once in 2^64 times; the next adoption draws another one.
                if self.desired.volumes.contains_key(&id) {
                    continue;
                }
                if let Err(why) = self.adopt_ld(id, member, host) {
                    not_adopted.insert(why);
                }
            }
        }
    }

    fn adopt_ld(&mut self, id: VolumeId, member: Member, host: HostId) -> Result<(), NotAdopted> {
        let (zone, pool) = (self.zone_with(&host)?, self.pool_with(&member.source)?);
        let spans = vec![Span { id: SpanId(1), members: vec![member] }];
        let mut volume = Volume {
            name: self.free_name(id),
            spec: self.spec_of(pool, zone, &VolumeReport::default(), &spans),
            spans,
            leaving: BTreeMap::new(),
            host: Some(host),
            released: false,
            next_member: MemberId(2),
            next_span: SpanId(2),
        };
        volume.spec.size = volume.usable_bytes();
        self.desired.volumes.insert(id, volume);
        self.changed();
        Ok(())
    }

    fn knows(&self, id: VolumeId, member: MemberId) -> bool {
        let volume = self.desired.volumes.get(&id);
        volume.is_some_and(|volume| volume.leaving.contains_key(&member) || volume.member(member).is_some())
    }

    /// Returns the name that the volume had, if its host's agent knows it and no other volume has it now.
    fn name_of(&self, id: VolumeId, view: &VolumeReport) -> VolumeName {
        let own = adopted_name(id);
        // An agent may report the name that another volume is to be adopted with.
        let may_count = |name: &&VolumeName| !name.as_str().starts_with(ADOPTED) || **name == own;
        let free = view.name.as_ref().filter(may_count).filter(|name| self.desired.volume_named(name).is_none());
        free.cloned().unwrap_or_else(|| self.free_name(id))
    }

    /// Returns a name for a volume that has none. Somebody may have created another volume with the usual one.
    fn free_name(&self, id: VolumeId) -> VolumeName {
        let own = adopted_name(id);
        let numbered = (2_u64..).map(|number| format!("{own}-{number}").parse().expect("a short name"));
        let is_free = |name: &VolumeName| self.desired.volume_named(name).is_none();
        std::iter::once(own.clone()).chain(numbered).find(is_free).expect("volumes are finitely many")
    }

    /// Returns what a source that lends parts of its memory has in total, if the topology lists it.
    fn capacity_of(&self, source: &Source) -> Option<Bytes> {
        let parts = self.topology.parts();
        match source {
            Source::Slabs { donor } => parts.donors.get(donor).map(|donor| donor.capacity),
            Source::DynamicCapacity { device } => match parts.devices.get(device)?.kind {
                DeviceKind::DynamicCapacity { capacity, .. } => Some(capacity),
                DeviceKind::Mld { .. } | DeviceKind::Sld { .. } => None,
            },
            Source::LogicalDevice { .. } => None,
        }
    }

    fn zone_with(&self, host: &HostId) -> Result<ZoneId, NotAdopted> {
        let zone = self.desired.zones.iter().find(|(_, zone)| zone.hosts.contains(host));
        zone.map(|(name, _)| name.clone()).ok_or_else(|| NotAdopted::NoZone { host: host.clone() })
    }

    fn pool_with(&self, source: &Source) -> Result<PoolId, NotAdopted> {
        self.desired.pool_of(source).cloned().ok_or_else(|| NotAdopted::NoPool { source: source.clone() })
    }

    /// Returns the specification that would have led to this volume.
    fn spec_of(&self, pool: PoolId, zone: ZoneId, view: &VolumeReport, spans: &[Span]) -> VolumeSpec {
        let class = |source: &Source| match source {
            Source::Slabs { donor } => self.topology.parts().donors.get(donor).map(|donor| donor.class),
            Source::DynamicCapacity { .. } | Source::LogicalDevice { .. } => Some(LatencyClass::Cxl),
        };
        let members = spans.iter().flat_map(|span| &span.members);
        VolumeSpec {
            size: Default::default(),
            pool,
            zone,
            class: members.filter_map(|member| class(&member.source)).max().unwrap_or(LatencyClass::Tcp),
            redundancy: view.redundancy,
            spread: FaultDomain::Host,
            width: 1,
            presentation: view.presentation.clone(),
            expires_at: None,
            donor: None,
            labels: Default::default(),
        }
    }
}

fn adopted_name(id: VolumeId) -> VolumeName {
    format!("{ADOPTED}{id}").parse().expect("hexadecimal digits are characters of a name")
}

/// Returns a member id that is greater than all that the host's report or a donor's report lists for the volume.
fn next_member(id: VolumeId, view: &VolumeReport, report: &HostReport, observed: &Observed) -> MemberId {
    let left = report.left.get(&id).into_iter().flatten();
    let lent = observed.donors.values().filter_map(|donor| donor.leases.get(&id)).flat_map(|leases| leases.keys());
    after_member(view.members.keys().chain(left).chain(lent))
}

/// Returns the id after these. Those that are never given out do not count: they leave no id for the next member.
fn after_member<'a>(members: impl Iterator<Item = &'a MemberId>) -> MemberId {
    let max = members.filter(|member| **member <= MEMBER_MAX).max();
    MemberId(max.map_or(0, |max| max.0) + 1)
}

/// Returns the id after these, which `check_view` has accepted.
fn after_span(spans: impl Iterator<Item = SpanId>) -> SpanId {
    let max = spans.filter(|span| *span <= SPAN_MAX).max();
    SpanId(max.map_or(0, |max| max.0) + 1)
}

/// Returns what each LD is bound to.
fn bound_vppbs(observed: &Observed) -> BTreeMap<Source, VppbAddress> {
    let lds = observed.devices.iter().flat_map(|(device, report)| report.lds.iter().map(move |ld| (device, ld)));
    lds.filter_map(|(device, (ld_id, ld))| match &ld.binding {
        LdBinding::Bound(vppb) => Some((Source::LogicalDevice { device: device.clone(), ld_id: *ld_id }, vppb.clone())),
        _ => None,
    })
    .collect()
}

type Rest<'a> = Vec<(&'a MemberLease, Why)>;

/// Returns the spans of a volume, with the best member of each place, and the remaining members, which are to leave.
fn spans<'a>(
    id: VolumeId,
    view: &'a VolumeReport,
    member: impl Fn(&MemberLease) -> Member,
) -> Result<(Vec<Span>, Rest<'a>), NotAdopted> {
    let (mut spans, mut rest) = (BTreeMap::<SpanId, Vec<Member>>::new(), Vec::new());
    // The state that was lost had them leave, and their agent lets them go whatever is desired now.
    let is_leaving = |one: &MemberReport| matches!(one.state, MemberState::Leaving { .. });
    let leaving: BTreeSet<SpanId> =
        view.members.values().filter(|one| is_leaving(one)).map(|one| one.lease.place.span).collect();
    let (of_leaving, of_others): (Vec<_>, Vec<_>) =
        view.members.values().map(|one| &one.lease).partition(|lease| leaving.contains(&lease.place.span));
    rest.extend(of_leaving.into_iter().map(|lease| (lease, Why::Shrunk)));
    let places: BTreeSet<Place> = of_others.into_iter().map(|lease| lease.place).collect();
    for place in places {
        // The newest one was added to replace the others, and its agent goes on with that.
        let best = view.at(place).max_by_key(|(id, one)| (one.state != MemberState::Broken, **id));
        for (id, one) in view.at(place) {
            if best.is_some_and(|(best, _)| best == id) {
                spans.entry(place.span).or_default().push(member(&one.lease));
            } else {
                let why = if one.state == MemberState::Broken { Why::Lost } else { Why::Replaced };
                rest.push((&one.lease, why));
            }
        }
    }
    let complete = |members: &Vec<Member>| members.len() == view.redundancy.members();
    if !spans.values().all(complete) {
        return Err(NotAdopted::Incomplete { volume: id });
    }
    Ok((spans.into_iter().map(|(id, members)| Span { id, members }).collect(), rest))
}

#[cfg(test)]
mod tests;
