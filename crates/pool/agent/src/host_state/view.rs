// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A volume as a user is to use it: its members, where their donors are, and an order for each. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::{Discriminant, discriminant};

use aquifer_agent_wire::{MemberView, Order, Redundancy, TenantFiles, View};
use aquifer_control::Whereabouts;
use aquifer_fabric::{DonorId, MemberId, MemberLease, MemberReport, MemberState, Presentation, SLAB, Source, SpanId};

use super::users::{User, UserId};
use super::{Attachment, Held, HostState};

/// The greatest weight of a member, as in an array of donors.
const WEIGHT_MAX: u64 = 16;

/// What a view needs besides the host state.
pub(crate) struct Surroundings<'a> {
    /// The certificate of this host.
    pub(crate) files: Option<TenantFiles>,
    /// Where donors are, if not where the manager says: address and server name.
    pub(crate) donors: &'a BTreeMap<DonorId, (String, String)>,
}

impl HostState {
    /// Returns the volume for a user, and notes which members the user is given. Returns `None` if it is no user.
    pub(crate) fn view(&mut self, id: UserId, surroundings: &Surroundings<'_>) -> Option<View> {
        let revision = self.revision;
        let donors = &self.donors;
        let held = self.volumes.get(&id.volume);
        let is_it = |user: &&mut User| (user.volume, user.process, user.session) == (id.volume, id.process, id.session);
        let user = self.users.iter_mut().find(is_it)?;
        let Some(held) = held else {
            // The view has no members: the volume has left this host.
            let redundancy = Redundancy::None;
            return Some(View { revision, redundancy, files: None, members: Vec::new(), is_withdrawn: true });
        };
        let shares = Shares::of(held);
        let mut members = Vec::new();
        for (member, report) in &held.report.members {
            let order = held.order(*member);
            if order != Order::Use && !user.given.contains(member) {
                continue;
            }
            let Some((address, server_name)) = whereabouts(report, donors, surroundings.donors) else { continue };
            user.given.insert(*member);
            if order == Order::Use {
                user.left.remove(member);
            }
            members.push(MemberView {
                member: member.0,
                address,
                server_name,
                weight: shares.weight(&report.lease),
                slabs: report.lease.bytes.0 / SLAB.0,
                reservation: report.lease.token.0,
                order,
            });
        }
        let redundancy = redundancy(held.report.redundancy);
        let (files, is_withdrawn) = (surroundings.files.clone(), held.is_withdrawn);
        Some(View { revision, redundancy, files, members, is_withdrawn })
    }
}

/// What decides the weights of a volume's members.
struct Shares<'a> {
    presentation: &'a Presentation,
    /// The spans that stay, in the volume's order.
    spans: Vec<SpanId>,
    /// The size of the largest member.
    largest: u64,
}

impl Shares<'_> {
    fn of(held: &Held) -> Shares<'_> {
        let members = &held.report.members;
        let staying = members.iter().filter(|(member, _)| held.order(**member) == Order::Use);
        let spans: BTreeSet<SpanId> = staying.map(|(_, report)| report.lease.place.span).collect();
        let largest = members.values().map(|member| member.lease.bytes.0).max().unwrap_or(1).max(1);
        Shares { presentation: &held.report.presentation, spans: spans.into_iter().collect(), largest }
    }

    /// Returns a member's weight: that of its span, if the volume has one range for each; otherwise by its size.
    fn weight(&self, lease: &MemberLease) -> u32 {
        let span = self.spans.partition_point(|span| *span < lease.place.span);
        let weight = self
            .presentation
            .weight(span)
            .map_or_else(|| lease.bytes.0.saturating_mul(WEIGHT_MAX) / self.largest, u64::from);
        weight.clamp(1, WEIGHT_MAX) as u32
    }
}

impl Held {
    /// Returns whether it is the same in all views, and has the same tasks. How many bytes are left somewhere is in
    /// none of them, and changes with each report of a program: it would wake all of them.
    pub(super) fn looks_like(&self, other: &Held) -> bool {
        fn members(of: &Held) -> impl Iterator<Item = (&MemberId, &MemberLease, Discriminant<MemberState>)> {
            of.report.members.iter().map(|(member, it)| (member, &it.lease, discriminant(&it.state)))
        }
        let is_as_far = |(one, other): (&Attachment, &Attachment)| one.is_as_far_as(other);
        (&self.replaced, &self.abandoned, self.is_withdrawn) == (&other.replaced, &other.abandoned, other.is_withdrawn)
            && self.report.redundancy == other.report.redundancy
            && members(self).eq(members(other))
            && self.attachments.keys().eq(other.attachments.keys())
            && self.attachments.values().zip(other.attachments.values()).all(is_as_far)
    }

    pub(super) fn order(&self, member: MemberId) -> Order {
        let is_leaving = |report: &MemberReport| matches!(report.state, MemberState::Leaving { .. });
        match self.report.members.get(&member) {
            None => Order::Leave,
            Some(_) if self.abandoned.contains(&member) => Order::Leave,
            Some(report) if is_leaving(report) || self.replaced.contains(&member) => Order::Drain,
            Some(_) => Order::Use,
        }
    }
}

/// Returns where a member's donor is: its address and the name in its certificate, or `None` while nobody has said so.
fn whereabouts(
    report: &MemberReport,
    known: &BTreeMap<DonorId, Whereabouts>,
    set: &BTreeMap<DonorId, (String, String)>,
) -> Option<(String, String)> {
    let Source::Slabs { donor } = &report.lease.source else { return None };
    if let Some(found) = set.get(donor) {
        return Some(found.clone());
    }
    let whereabouts = known.get(donor)?;
    let address = whereabouts.addresses.first()?;
    // A certificate that is for a URI or a person is checked for the host of the address.
    let name = whereabouts.identity.strip_prefix("dns:").map_or_else(|| host_of(address), str::to_owned);
    Some((address.clone(), name))
}

/// Returns the host of `HOST:PORT`, without the brackets of an IPv6 address.
pub(crate) fn host_of(address: &str) -> String {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']').to_owned()
}

fn redundancy(of: aquifer_fabric::Redundancy) -> Redundancy {
    match of {
        aquifer_fabric::Redundancy::Mirror { copies } => Redundancy::Mirror { copies },
        aquifer_fabric::Redundancy::None => Redundancy::None,
        aquifer_fabric::Redundancy::Parity { data, parity } => Redundancy::Parity { data, parity },
    }
}
