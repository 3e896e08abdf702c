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
                qos_telemetry: TELEMETRY,
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

    /// Sets all allocations or none, so that the manager need not find out which ones were set. Refuses to change the
    /// allocation of a bound logical device, because its host is using it.
    fn set_allocations(
        &mut self,
        context: &mut Context,
        set: &SetLdAllocations,
        bound: u16,
    ) -> Result<NewLdAllocations, ReturnCode> {
        let first = usize::from(set.first_ld_id);
        let end = first + set.allocations.len();
        if set.allocations.is_empty() || end > self.lds.len() {
            return Err(ReturnCode::INVALID_INPUT);
        }
        let units = |allocation: &LdAllocation| allocation.range_1.checked_add(allocation.range_2);
        let others = self.lds.iter().enumerate().filter(|(ld_id, _)| !(first..end).contains(ld_id));
        let wanted = others.map(|(_, ld)| &ld.allocation).chain(&set.allocations);
        let sum = wanted.map(units).try_fold(0u64, |sum, units| sum.checked_add(units?));
        let total = (self.config.memory_mib << 20) / UNIT_BYTES;
        if sum.is_none_or(|sum| sum > total) {
            return Err(ReturnCode::INVALID_INPUT);
        }
        let changes = |ld_id: usize| self.lds[ld_id].allocation != set.allocations[ld_id - first];
        if (first..end).any(|ld_id| bound >> ld_id & 1 == 1 && changes(ld_id)) {
            return Err(ReturnCode::INVALID_INPUT);
        }
        for (ld_id, allocation) in (first..).zip(&set.allocations) {
            let ld = &mut self.lds[ld_id];
            if ld.allocation != *allocation {
                let bytes = units(allocation).expect("the sum was checked") * UNIT_BYTES;
                ld.allocation = *allocation;
                // Its addresses now lead to other memory, whose earlier contents no host may see.
                ld.memory.wipe_all();
                ld.memory.resize(bytes);
                let (device, ld_id) = (self.index, ld_id as u8);
                context.effect(Effect::LdResized { device, ld_id, bytes });
                context.effect(Effect::LdWiped { device, ld_id });
            }
        }
        let allocations = self.lds[first..end].iter().map(|ld| ld.allocation).collect();
        Ok(NewLdAllocations { first_ld_id: set.first_ld_id, allocations })
    }
}
