// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The changes that requests make to the desired state. A request is carried out as a whole, or is refused and changes
//! nothing.
//!
//! Binding, unbinding, resizing, draining, retiring and declaring dead are idempotent: a request for what already holds
//! changes nothing, not even the version.
//!
//! Next on the path of a bind: `reconcile/establish.rs`, the steps that bring the volume to its host.

use std::collections::{BTreeMap, BTreeSet};

use super::{Desired, Volume, Why};
use crate::bytes::Bytes;
use crate::id::{DonorId, HostId, Incarnation, MemberId, SpanId, VolumeId, VolumeName, VppbAddress};
use crate::observed::Observed;
use crate::placement::{Capacity, Choice, Placement, Reach, Refusal, Request, check_labels, check_spec, check_weights};
use crate::reconcile::progress::{is_gone, is_lost};
use crate::topology::Topology;
use crate::volume::{Member, Place, Source, Span, VolumeSpec};

/// A desired state under change, with the capacity that goes with it.
pub struct Edit<'a> {
    /// The topology that says where everything is.
    pub topology: &'a Topology,
    /// The state that is changed.
    pub desired: &'a mut Desired,
    /// What is free, updated with each change.
    pub capacity: &'a mut Capacity,
}

impl Edit<'_> {
    /// Creates a volume, unbound. The caller draws `id` at random.
    pub fn create(&mut self, id: VolumeId, name: VolumeName, spec: VolumeSpec) -> Result<(), Refusal> {
        if self.desired.volume_named(&name).is_some() {
            return Err(Refusal::NameTaken { name });
        }
        if self.desired.volumes.contains_key(&id) {
            return Err(Refusal::IdTaken);
        }
        check_spec(&spec)?;
        if !self.desired.pools.contains_key(&spec.pool) {
            return Err(Refusal::UnknownPool { pool: spec.pool });
        }
        let reaches = Reach::of(self.topology, None);
        let placement = self.capacity.place(&Request { spec: &spec, bytes: spec.size, reaches: &reaches })?;
        let mut volume = Volume {
            name,
            spec,
            spans: Vec::new(),
            leaving: Default::default(),
            host: None,
            released: false,
            next_member: MemberId(1),
            next_span: SpanId(1),
        };
        let placed = volume.add_spans(placement);
        self.put(id, volume, &placed);
        Ok(())
    }

    /// Binds a volume to a host. If the host cannot reach its members, the volume is placed again: while it is unbound,
    /// it holds no bytes.
    pub fn bind(&mut self, id: VolumeId, host: &HostId) -> Result<(), Refusal> {
        let volume = self.desired.wanted(id)?;
        match &volume.host {
            Some(bound) if bound == host => return Ok(()),
            Some(bound) => return Err(Refusal::Bound { volume: volume.name.clone(), host: bound.clone() }),
            None => {}
        }
        if !self.topology.parts().hosts.contains_key(host) {
            return Err(Refusal::UnknownHost { host: host.clone() });
        }
        if self.desired.dead_hosts.contains_key(host) {
            return Err(Refusal::DeadHost { host: host.clone() });
        }
        let zone = &volume.spec.zone;
        if !self.desired.zones.get(zone).is_some_and(|zone| zone.hosts.contains(host)) {
            return Err(Refusal::HostOutsideZone { host: host.clone(), zone: zone.clone() });
        }
        let mut bound = self.desired.to_change(id)?;
        let mut placed = Vec::new();
        if !volume.places().all(|(_, member)| self.reaches(host, &member.source)) {
            placed = self.place_again(&mut bound, host)?;
        }
        bound.host = Some(host.clone());
        if let Err(refusal) = self.choose_vppbs(&mut bound, host) {
            self.capacity.refund(&bound.spec.zone, &placed);
            return Err(refusal);
        }
        self.put(id, bound, &placed);
        Ok(())
    }

    /// Unbinds a volume. Its members leave, and its placement stays reserved for the next binding.
    pub fn unbind(&mut self, id: VolumeId) -> Result<(), Refusal> {
        let mut unbound = self.desired.to_change(id)?;
        if unbound.leave_host() {
            self.put(id, unbound, &[]);
        }
        Ok(())
    }

    /// Releases a volume that no host has. It is dropped when none of its memory is lent any more.
    pub fn release(&mut self, id: VolumeId) -> Result<(), Refusal> {
        let mut released = self.desired.to_change(id)?;
        if let Some(host) = released.host {
            return Err(Refusal::StillBound { volume: released.name, host });
        }
        released.release();
        self.put(id, released, &[]);
        Ok(())
    }

    /// Makes a volume at least this large. What it has stays where it is.
    pub fn grow(&mut self, id: VolumeId, size: Bytes) -> Result<(), Refusal> {
        let volume = self.desired.wanted(id)?;
        if size <= volume.spec.size {
            return Ok(());
        }
        let mut grown = self.desired.to_change(id)?;
        grown.spec.size = size;
        check_spec(&grown.spec)?;
        let missing = size.minus(volume.usable_bytes());
        let mut placed = Vec::new();
        if missing > Bytes::ZERO {
            // What is added is one more span where that is possible, however the rest is striped.
            let spec = VolumeSpec { width: 1, ..grown.spec.clone() };
            let reaches = Reach::of(self.topology, grown.host.as_ref());
            let placement = self.capacity.place(&Request { spec: &spec, bytes: missing, reaches: &reaches })?;
            placed = grown.add_spans(placement);
            if let Some(host) = grown.host.clone()
                && let Err(refusal) = self.choose_vppbs(&mut grown, &host)
            {
                self.capacity.refund(&grown.spec.zone, &placed);
                return Err(refusal);
            }
        }
        self.put(id, grown, &placed);
        Ok(())
    }

    /// Makes a volume smaller. Whole spans leave, from its end; what remains may be more than was asked for. While it
    /// is unbound, nothing is lent, so slabs of its last span are given back, too.
    pub fn shrink(&mut self, id: VolumeId, size: Bytes) -> Result<(), Refusal> {
        let volume = self.desired.wanted(id)?;
        if size >= volume.spec.size {
            return Ok(());
        }
        if size == Bytes::ZERO {
            return Err(Refusal::Size { size });
        }
        let mut shrunk = self.desired.to_change(id)?;
        shrunk.spec.size = size;
        while let Some(last) = shrunk.spans.last()
            && shrunk.usable_bytes().minus(shrunk.usable_bytes_of(last)) >= size
        {
            let span = shrunk.spans.pop();
            if let Some((host, span)) = shrunk.host.clone().zip(span) {
                shrunk.shrink_span(&host, span);
            }
        }
        if shrunk.host.is_none() {
            shrunk.cut_last_span();
        }
        self.put(id, shrunk, &[]);
        Ok(())
    }

    /// Replaces a member by a new one. The old one leaves when it is no longer needed: its bytes were copied, or are
    /// lost.
    ///
    /// The new one is elsewhere. Only if nothing else has room, it is on the same donor, provided that the donor has
    /// lost the old one: otherwise what a pool's only donor has lost could never be placed again.
    pub fn replace(
        &mut self,
        id: VolumeId,
        member: MemberId,
        why: Why,
        observed: &Observed,
    ) -> Result<MemberId, Refusal> {
        let volume = self.desired.wanted(id)?;
        let unknown = || Refusal::UnknownMember { volume: volume.name.clone(), member };
        let (place, old) = volume.member(member).ok_or_else(unknown)?;
        let span = volume.spans.iter().find(|span| span.id == place.span).ok_or_else(unknown)?;
        let others = span.members.iter().filter(|other| other.id != member);
        let others: Vec<Source> = others.map(|other| other.source.clone()).collect();
        let reaches = match (&old.source, &volume.host) {
            // Programs cannot move what they have at a donor to a device.
            (Source::Slabs { .. }, Some(_)) => vec![Reach::Network],
            _ => Reach::of(self.topology, volume.host.as_ref()),
        };
        let avoid: BTreeSet<Source> = [old.source.clone()].into();
        let joined = volume.host.as_ref().and_then(|host| observed.hosts.get(host));
        let is_gone = volume.host.is_some() && is_gone(self.desired, observed, id, old, joined);
        let is_lost = volume.host.is_some() && is_lost(self.desired, observed, id, old, joined);
        let elsewhere = self.capacity.place_member(&volume.spec, &reaches, old.bytes, &others, &avoid);
        let mut place_anywhere = || place_without(self.capacity, id, volume, old, &reaches, &others);
        let chosen = match elsewhere {
            Err(_) if is_lost && let Some(choice) = place_anywhere() => choice,
            Err(
                Refusal::DonorFull { .. }
                | Refusal::DonorOutsidePool { .. }
                | Refusal::DonorTooSlow { .. }
                | Refusal::NotEnough { .. }
                | Refusal::TooNarrow { .. },
            ) => {
                let VolumeSpec { pool, class, .. } = volume.spec.clone();
                return Err(Refusal::NotElsewhere { pool, class, wanted: old.bytes, source: old.source.clone() });
            }
            other => other?,
        };
        // The new member may be larger than the old one: it is a whole LD, or whole blocks.
        if let Err(refusal) = self.capacity.charge(&volume.spec.zone, chosen.bytes.minus(old.bytes)) {
            self.capacity.give_back(&chosen);
            return Err(refusal);
        }
        self.capacity.retake_zone(&volume.spec.zone, chosen.bytes.min(old.bytes));
        let mut changed = self.desired.to_change(id)?;
        let new = changed.mint_member();
        let old =
            changed.swap(place, Member { id: new, source: chosen.source.clone(), bytes: chosen.bytes, vppb: None });
        if let Some(host) = changed.host.clone() {
            changed.leave(host.clone(), place, old, why);
            changed.leaving.get_mut(&member).expect("it was just listed").is_gone = is_gone;
            if let Err(refusal) = self.choose_vppbs(&mut changed, &host) {
                self.capacity.refund(&changed.spec.zone, &[chosen]);
                return Err(refusal);
            }
        }
        self.put(id, changed, &[chosen]);
        Ok(new)
    }

    /// Changes the parts of a specification that need no new placement.
    pub(crate) fn change_spec(&mut self, id: VolumeId, change: impl FnOnce(&mut VolumeSpec)) -> Result<(), Refusal> {
        let before = self.desired.wanted(id)?;
        let mut changed = before.clone();
        change(&mut changed.spec);
        check_labels(&changed.spec)?;
        if changed.spec.presentation != before.spec.presentation {
            check_weights(&changed.spec)?;
            let on_device = changed.places().find(|(_, member)| member.source.donor().is_none());
            if let (Some((_, member)), false) = (on_device, changed.spec.presentation.weights().is_empty()) {
                return Err(Refusal::WeightsOnDevice { volume: changed.name.clone(), source: member.source.clone() });
            }
        }
        self.put(id, changed, &[]);
        Ok(())
    }

    /// Starts or stops moving everything off a donor.
    pub fn drain(&mut self, donor: &DonorId, draining: bool) {
        let changed = match draining {
            true => self.desired.draining.insert(donor.clone()),
            false => self.desired.draining.remove(donor),
        };
        if changed {
            self.changed();
        }
    }

    /// Records an operator's statement that a host is powered off. What the host had may then be taken back without its
    /// agent's confirmation. The host is used again only after a restart, with no volume.
    pub fn declare_dead(&mut self, host: &HostId, observed: &Observed) {
        let incarnation = observed.hosts.get(host).map(|report| report.incarnation);
        if declare(&mut self.desired.dead_hosts, host, incarnation) {
            self.changed();
        }
    }

    /// Records an operator's statement that a donor is gone for good. The donor is used again only after a restart,
    /// with nothing lent.
    pub fn retire(&mut self, donor: &DonorId, observed: &Observed) {
        let incarnation = observed.donors.get(donor).map(|report| report.incarnation);
        if declare(&mut self.desired.retired_donors, donor, incarnation) {
            self.changed();
        }
    }

    fn reaches(&self, host: &HostId, source: &Source) -> bool {
        let (Source::DynamicCapacity { device } | Source::LogicalDevice { device, .. }) = source else { return true };
        let switch = self.topology.slot(device).map(|slot| &slot.switch);
        self.topology.vcss(host).iter().any(|(seen, _)| Some(seen) == switch)
    }

    /// Places an unbound volume where a host can reach it. The room that it had reserved can be used for that.
    fn place_again(&mut self, volume: &mut Volume, host: &HostId) -> Result<Vec<Choice>, Refusal> {
        let (zone, old) = (volume.spec.zone.clone(), volume.taken());
        self.capacity.refund(&zone, &old);
        volume.spans.clear();
        // Members that are still leaving keep their room.
        self.capacity.retake(&zone, &volume.taken());
        let reaches = Reach::of(self.topology, Some(host));
        let placement =
            self.capacity.place(&Request { spec: &volume.spec, bytes: volume.spec.size, reaches: &reaches });
        self.capacity.refund(&zone, &volume.taken());
        self.capacity.retake(&zone, &old);
        placement.map(|placement| volume.add_spans(placement))
    }

    /// Chooses a vPPB for each LD that has none. Of the host's virtual CXL switches, the one with the most free vPPBs
    /// is taken, so that the host's upstream ports carry about the same load.
    fn choose_vppbs(&self, volume: &mut Volume, host: &HostId) -> Result<(), Refusal> {
        let needs_one =
            |member: &Member| matches!(member.source, Source::LogicalDevice { .. }) && member.vppb.is_none();
        if !volume.places().any(|(_, member)| needs_one(member)) {
            return Ok(());
        }
        let mut taken: BTreeSet<VppbAddress> = self.desired.vppbs_taken().into_iter().cloned().collect();
        taken.extend(volume.places().filter_map(|(_, member)| member.vppb.clone()));
        for member in volume.places_mut().filter(|member| needs_one(member)) {
            let Source::LogicalDevice { device, .. } = &member.source else { continue };
            let switch = self.topology.slot(device).map(|slot| &slot.switch);
            let free =
                self.topology.vcss(host).iter().filter(|(seen, _)| Some(seen) == switch).map(|(switch, vcs_id)| {
                    let vcs = &self.topology.parts().switches[switch].vcss[vcs_id];
                    let address =
                        |vppb_id: &_| VppbAddress { switch: switch.clone(), vcs_id: *vcs_id, vppb_id: *vppb_id };
                    let is_free = |address: &VppbAddress| !taken.contains(address) && self.capacity.is_free(address);
                    vcs.vppbs.iter().map(address).filter(is_free).collect::<Vec<_>>()
                });
            let max = free.max_by_key(Vec::len).unwrap_or_default();
            let vppb = max.into_iter().next().ok_or_else(|| Refusal::NoVppb { host: host.clone() })?;
            taken.insert(vppb.clone());
            member.vppb = Some(vppb);
        }
        Ok(())
    }

    /// Stores a changed volume. `placed` is the part of it that is already reserved, which must not be counted twice.
    fn put(&mut self, id: VolumeId, volume: Volume, placed: &[Choice]) {
        self.capacity.refund(&volume.spec.zone, placed);
        self.capacity.recount(id, Some(&volume));
        self.desired.volumes.insert(id, volume);
        self.changed();
    }

    /// Counts a change.
    pub(crate) fn changed(&mut self) {
        self.desired.version += 1;
    }
}

/// Records which start a statement concerns, and returns whether that is new. The start is unknown while there is no
/// report, as after the election of another manager; `settle` records it when it is reported.
fn declare<K: Ord + Clone>(all: &mut BTreeMap<K, Incarnation>, name: &K, start: Option<Incarnation>) -> bool {
    let start = start.or_else(|| all.get(name).copied()).unwrap_or_default();
    all.insert(name.clone(), start) != Some(start)
}

/// Finds room for the successor of a member that its source has lost, at any source. If the donor has lent the old one
/// again by mistake, the new one waits until that is released.
fn place_without(
    capacity: &mut Capacity,
    id: VolumeId,
    volume: &Volume,
    old: &Member,
    reaches: &[Reach],
    others: &[Source],
) -> Option<Choice> {
    let mut without = volume.clone();
    without.places_mut().filter(|member| member.id == old.id).for_each(|member| member.bytes = Bytes::ZERO);
    capacity.recount(id, Some(&without));
    let choice = capacity.place_member(&volume.spec, reaches, old.bytes, others, &BTreeSet::new());
    capacity.recount(id, Some(volume));
    choice.ok()
}

impl Desired {
    /// Returns the volume with this id, unless it was released.
    pub(crate) fn wanted(&self, id: VolumeId) -> Result<&Volume, Refusal> {
        let volume = self.volumes.get(&id).filter(|volume| !volume.released);
        volume.ok_or_else(|| Refusal::UnknownVolume { volume: id.to_string() })
    }

    /// Returns a copy of the volume with this id, unless it was released. New members of the copy get ids of this
    /// manager's term.
    fn to_change(&self, id: VolumeId) -> Result<Volume, Refusal> {
        let mut volume = self.wanted(id)?.clone();
        volume.next_member = volume.next_member.max(self.first_member);
        Ok(volume)
    }
}

impl Volume {
    fn places_mut(&mut self) -> impl Iterator<Item = &mut Member> {
        self.spans.iter_mut().flat_map(|span| &mut span.members)
    }

    /// Adds spans at the end, and returns all that was placed.
    fn add_spans(&mut self, placement: Placement) -> Vec<Choice> {
        for choices in &placement.spans {
            let id = self.next_span;
            self.next_span = SpanId(id.0 + 1);
            let mint = |Choice { source, bytes }| Member { id: self.mint_member(), source, bytes, vppb: None };
            let members = choices.iter().cloned().map(mint).collect();
            self.spans.push(Span { id, members });
        }
        placement.spans.into_iter().flatten().collect()
    }

    /// Ends its binding and its placement.
    pub(crate) fn release(&mut self) {
        self.leave_host();
        self.spans.clear();
        self.released = true;
    }

    /// Cuts the slabs of the last span to what is asked for. No host has the volume. What is cut gets a new id: after a
    /// restore, a member of the earlier size may be lent under the old one.
    fn cut_last_span(&mut self) {
        let Some(last) = self.spans.last() else { return };
        let others = self.usable_bytes().minus(self.usable_bytes_of(last));
        let bytes = self.spec.redundancy.member_bytes(self.spec.size.minus(others));
        let last = self.spans.last_mut().expect("it was found");
        let is_cut = |member: &&mut Member| matches!(member.source, Source::Slabs { .. }) && member.bytes > bytes;
        for member in last.members.iter_mut().filter(is_cut) {
            (member.id, member.bytes) = (self.next_member, bytes);
            self.next_member = MemberId(member.id.0 + 1);
        }
    }

    /// Makes a span's members leave with the span, including those that were already leaving.
    fn shrink_span(&mut self, host: &HostId, span: Span) {
        for leaving in self.leaving.values_mut().filter(|leaving| leaving.place.span == span.id) {
            leaving.why = Why::Shrunk;
        }
        for (place, member) in span.places() {
            self.leave(host.clone(), place, member.clone(), Why::Shrunk);
        }
    }

    /// Makes all members leave, and gives the spans new ones. Returns whether the volume was bound.
    fn leave_host(&mut self) -> bool {
        let Some(host) = self.host.take() else { return false };
        for leaving in self.leaving.values_mut() {
            leaving.why = Why::Unbound;
        }
        let places: Vec<_> = self.places().map(|(place, member)| (place, member.clone())).collect();
        for (place, old) in places {
            let id = self.mint_member();
            let new = Member { id, vppb: None, ..old };
            let old = self.swap(place, new);
            self.leave(host.clone(), place, old, Why::Unbound);
        }
        true
    }

    /// Puts a member at a place, and returns the one that was there.
    fn swap(&mut self, place: Place, new: Member) -> Member {
        let span = self.spans.iter_mut().find(|span| span.id == place.span);
        let member = span.and_then(|span| span.members.get_mut(usize::from(place.shard)));
        std::mem::replace(member.expect("the place was found in this volume"), new)
    }
}

#[cfg(test)]
mod tests;
