// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What hosts do with capacity: they answer offers, as with Add Dynamic Capacity Response (4802h), and give capacity
//! back, as with Release Dynamic Capacity (4803h). Event records tell the manager of both.

use std::ops::Range;

use aquifer_fmapi::{CapacityEvent, CapacityEventKind, Extent};

use super::Capacity;
use crate::component::Component;
use crate::context::Context;
use crate::host::HostFailure;

impl Capacity {
    /// Returns the oldest offer that a host has not answered.
    pub fn oldest_offer(&self, host_id: u16) -> Option<Vec<Range<u64>>> {
        self.offers.iter().find(|offer| offer.host_id == host_id).map(|offer| offer.ranges.clone())
    }

    /// Answers the host's oldest offer: accepts these ranges of it, and refuses the rest.
    pub fn answer_offer(
        &mut self,
        context: &mut Context,
        component: &mut Component,
        host_id: u16,
        accepted: &[Range<u64>],
    ) -> Result<(), HostFailure> {
        let at = self.offers.iter().position(|offer| offer.host_id == host_id).ok_or(HostFailure::NoOffer)?;
        let offer = self.offers[at].ranges.clone();
        let is_offered = |range: &Range<u64>| {
            range.start < range.end && offer.iter().any(|it| it.start <= range.start && range.end <= it.end)
        };
        let shares = self.extents.iter().any(|held| held.sequence > 0 && offer.contains(&held.range()));
        let is_part = shares && !accepted.is_empty() && !offer.iter().all(|range| accepted.contains(range));
        let is_aligned = accepted.iter().all(|range| self.is_blocks(range));
        if !accepted.iter().all(is_offered) || !is_aligned || is_part {
            return Err(HostFailure::NotOffered);
        }
        if self.extents.len() + self.extents.splits(accepted) > self.extents_max as usize {
            return Err(HostFailure::Full);
        }
        self.offers.remove(at);
        self.extents.split(accepted);
        let mut taken = Vec::new();
        for range in &offer {
            for held in self.extents.inside(range).filter(|held| held.pending.has(host_id)) {
                held.pending.remove(host_id);
                if accepted.iter().any(|part| part.start <= held.start && held.range().end <= part.end) {
                    held.accepted.add(host_id);
                    taken.push(held.reported());
                }
            }
        }
        self.settle(context, host_id);
        // A refusal is a record without capacity.
        let reported = if taken.is_empty() { vec![Extent::default()] } else { taken };
        for (number, extent) in reported.iter().enumerate() {
            let flags = u8::from(number + 1 < reported.len());
            let kind = CapacityEventKind::AddResponse;
            self.record(
                context,
                component,
                CapacityEvent { kind, host_id, flags, extent: *extent, ..CapacityEvent::default() },
            );
        }
        Ok(())
    }

    /// Gives these ranges back for the host.
    pub fn give_back(
        &mut self,
        context: &mut Context,
        component: &mut Component,
        host_id: u16,
        ranges: &[Range<u64>],
    ) -> Result<(), HostFailure> {
        let has =
            |range: &Range<u64>| self.is_blocks(range) && self.extents.covers(range, |held| held.accepted.has(host_id));
        if ranges.is_empty() || !ranges.iter().all(has) {
            return Err(HostFailure::NotHeld);
        }
        if self.extents.len() + self.extents.splits(ranges) > self.extents_max as usize {
            return Err(HostFailure::Full);
        }
        self.extents.split(ranges);
        let mut given = Vec::new();
        for range in ranges {
            for held in self.extents.inside(range) {
                held.accepted.remove(host_id);
                held.releasing.remove(host_id);
                given.push(held.reported());
            }
        }
        self.settle(context, host_id);
        for extent in given {
            let kind = CapacityEventKind::Released;
            self.record(context, component, CapacityEvent { kind, host_id, extent, ..CapacityEvent::default() });
        }
        Ok(())
    }
}
