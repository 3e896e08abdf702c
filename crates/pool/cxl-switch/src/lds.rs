// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Logical devices of an MLD (54h, first part): how its memory is divided. CXL 3.1, section 7.6.7.4.

use aquifer_fmapi::{
    GetLdAllocations, Granularity, LdAllocation, LdAllocations, LdCapabilities, NewLdAllocations, Request, Response,
    ReturnCode, SetLdAllocations,
};

use crate::context::{Answer, Context};
use crate::device::{Device, UNIT_BYTES};
use crate::outcome::Effect;
use crate::qos::TELEMETRY;

/// Bytes of an answer before its list of allocations, and bytes of one allocation.
const ANSWER_BYTES: usize = 4;
const ALLOCATION_BYTES: usize = 16;

impl Device {
    /// Answers a command of this set. Returns `None` for a command of another set.
    pub(crate) fn answer_for_lds(&mut self, context: &mut Context, request: &Request, bound: u16) -> Option<Answer> {
        Some(match request {
            Request::GetLdCapabilities(_) => Ok(Response::GetLdCapabilities(LdCapabilities {
                memory_bytes: self.config.memory_mib << 20,
                ld_count: self.lds.len() as u16,
                qos_telemetry: if self.is_driven { 0 } else { TELEMETRY },
            })),
            Request::GetLdAllocations(get) => self.allocations(context, get).map(Response::GetLdAllocations),
            Request::SetLdAllocations(set) => self.set_allocations(context, set, bound).map(Response::SetLdAllocations),
            _ => return None,
        })
    }

    fn allocations(&self, context: &Context, get: &GetLdAllocations) -> Result<LdAllocations, ReturnCode> {
        let first = usize::from(get.first_ld_id);
        if first >= self.lds.len() || get.count_max == 0 {
            return Err(ReturnCode::INVALID_INPUT);
        }
        let count = usize::from(get.count_max).min(context.entries(ANSWER_BYTES, ALLOCATION_BYTES));
        Ok(LdAllocations {
            ld_count: self.lds.len() as u8,
            granularity: Granularity::Mib256,
            first_ld_id: get.first_ld_id,
            allocations: self.lds[first..].iter().take(count).map(|ld| ld.allocation).collect(),
        })
    }

    /// Sets all allocations or none, so that the manager need not find out which ones were set.
    fn set_allocations(
        &mut self,
        context: &mut Context,
        set: &SetLdAllocations,
        bound: u16,
    ) -> Result<NewLdAllocations, ReturnCode> {
        self.check_allocations(context, set, bound)?;
        for (ld_id, allocation) in (set.first_ld_id..).zip(&set.allocations) {
            self.set_allocation(context, ld_id, *allocation);
        }
        Ok(NewLdAllocations { first_ld_id: set.first_ld_id, allocations: set.allocations.clone() })
    }

    /// Returns what a request orders in a driven switch: the size in bytes of each logical device that it lists. Those
    /// that it would not change are among them, because only the driver knows whether the pool still has them so. The
    /// driver knows no ranges: all memory is in the first one.
    pub(crate) fn order_allocations(
        &self,
        context: &Context,
        set: &SetLdAllocations,
        bound: u16,
    ) -> Result<Vec<(u8, u64)>, ReturnCode> {
        self.check_allocations(context, set, bound)?;
        if set.allocations.iter().any(|allocation| allocation.range_2 != 0) {
            return Err(ReturnCode::INVALID_INPUT);
        }
        let bytes = set.allocations.iter().map(|allocation| allocation.range_1 * UNIT_BYTES);
        Ok((set.first_ld_id..).zip(bytes).collect())
    }

    /// Gives logical devices the sizes that the driver has given them. Returns the answer to the request.
    pub(crate) fn apply_order(&mut self, context: &mut Context, lds: &[(u8, u64)]) -> NewLdAllocations {
        let mut allocations = Vec::new();
        for (ld_id, bytes) in lds {
            self.resize_ld(context, *ld_id, bytes / UNIT_BYTES);
            allocations.push(self.lds[usize::from(*ld_id)].allocation);
        }
        NewLdAllocations { first_ld_id: lds.first().map_or(0, |(ld_id, _)| *ld_id), allocations }
    }

    fn changes(&self, set: &SetLdAllocations, ld_id: usize) -> bool {
        self.lds[ld_id].allocation != set.allocations[ld_id - usize::from(set.first_ld_id)]
    }

    /// Refuses what cannot be, and an answer that would be too long, before anything is changed. Refuses to change the
    /// allocation of a bound logical device, because its host is using it.
    fn check_allocations(&self, context: &Context, set: &SetLdAllocations, bound: u16) -> Result<(), ReturnCode> {
        let (first, count) = (usize::from(set.first_ld_id), set.allocations.len());
        let end = first + count;
        if count == 0 || end > self.lds.len() || count > context.entries(ANSWER_BYTES, ALLOCATION_BYTES) {
            return Err(ReturnCode::INVALID_INPUT);
        }
        let others = self.lds.iter().enumerate().filter(|(ld_id, _)| !(first..end).contains(ld_id));
        let wanted = others.map(|(_, ld)| &ld.allocation).chain(&set.allocations);
        let sum = wanted.map(units).try_fold(0u64, |sum, units| sum.checked_add(units?));
        let total = (self.config.memory_mib << 20) / UNIT_BYTES;
        if sum.is_none_or(|sum| sum > total) {
            return Err(ReturnCode::INVALID_INPUT);
        }
        if (first..end).any(|ld_id| bound >> ld_id & 1 == 1 && self.changes(set, ld_id)) {
            return Err(ReturnCode::INVALID_INPUT);
        }
        Ok(())
    }

    /// Gives a logical device another size, as its driver says.
    pub(crate) fn resize_ld(&mut self, context: &mut Context, ld_id: u8, units: u64) {
        self.set_allocation(context, ld_id, LdAllocation { range_1: units, range_2: 0 });
    }

    fn set_allocation(&mut self, context: &mut Context, ld_id: u8, allocation: LdAllocation) {
        let ld = &mut self.lds[usize::from(ld_id)];
        if ld.allocation != allocation {
            ld.allocation = allocation;
            self.renew_memory(context, ld_id);
        }
    }

    /// Gives a logical device the memory of its allocation. Its addresses now lead to other memory, whose earlier
    /// contents no host may see.
    fn renew_memory(&mut self, context: &mut Context, ld_id: u8) {
        let ld = &mut self.lds[usize::from(ld_id)];
        let bytes = units(&ld.allocation).expect("the sum was checked") * UNIT_BYTES;
        ld.memory.wipe_all();
        ld.memory.resize(bytes);
        let device = self.index;
        context.effect(Effect::LdResized { device, ld_id, bytes });
        if !self.is_driven {
            context.effect(Effect::LdWiped { device, ld_id });
        }
    }
}

fn units(allocation: &LdAllocation) -> Option<u64> {
    allocation.range_1.checked_add(allocation.range_2)
}
