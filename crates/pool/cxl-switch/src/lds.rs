// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Logical devices of an MLD (54h, first part): how its memory is divided. CXL 3.1, section 7.6.7.4.

use aquifer_fmapi::{
    GetLdAllocations, Granularity, LdAllocation, LdAllocations, LdCapabilities, NewLdAllocations, Request, Response,
    ReturnCode, SetLdAllocations,
};

use crate::context::{Answer, Context};
use crate::device::{Device, UNIT_BYTES};
use crate::orders::{Ending, Order};
use crate::outcome::Effect;
use crate::qos::TELEMETRY;

/// Bytes of an answer before its list of allocations, and bytes of one allocation.
const ANSWER_BYTES: usize = 4;
const ALLOCATION_BYTES: usize = 16;

impl Device {
    /// Answers a command of this set. Returns `None` for a command of another set.
    pub(crate) fn answer_for_lds(
        &mut self,
        context: &mut Context,
        request: &Request,
        bound: u16,
        is_busy: bool,
    ) -> Option<Answer> {
        Some(match request {
            Request::GetLdCapabilities(_) => Ok(Response::GetLdCapabilities(LdCapabilities {
                memory_bytes: self.config.memory_mib << 20,
                ld_count: self.lds.len() as u16,
                qos_telemetry: if self.is_driven { 0 } else { TELEMETRY },
            })),
            Request::GetLdAllocations(get) => self.allocations(context, get).map(Response::GetLdAllocations),
            Request::SetLdAllocations(set) => {
                self.set_allocations(context, set, bound, is_busy).map(Response::SetLdAllocations)
            }
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
    ///
    /// In a driven switch, the driver decides, and the request comes again with its decision.
    fn set_allocations(
        &mut self,
        context: &mut Context,
        set: &SetLdAllocations,
        bound: u16,
        is_busy: bool,
    ) -> Result<NewLdAllocations, ReturnCode> {
        match context.decision {
            None => self.check_allocations(set, bound)?,
            Some(Ending::Done) => {}
            Some(ending) => return Err(ending.return_code()),
        }
        let first = usize::from(set.first_ld_id);
        let end = first + set.allocations.len();
        let is_changed = (first..end).any(|ld_id| self.changes(set, ld_id));
        if self.is_driven && is_changed && context.decision.is_none() {
            if is_busy {
                return Err(ReturnCode::BUSY);
            }
            context.order = Some(self.order_of(set)?);
            // Nobody gets this answer.
            return Err(ReturnCode::RETRY_REQUIRED);
        }
        for (ld_id, allocation) in (first..).zip(&set.allocations) {
            if self.lds[ld_id].allocation != *allocation {
                let ld = &mut self.lds[ld_id];
                ld.allocation = *allocation;
                self.renew_memory(context, ld_id as u8);
            }
        }
        let allocations = self.lds[first..end].iter().map(|ld| ld.allocation).collect();
        Ok(NewLdAllocations { first_ld_id: set.first_ld_id, allocations })
    }

    fn changes(&self, set: &SetLdAllocations, ld_id: usize) -> bool {
        self.lds[ld_id].allocation != set.allocations[ld_id - usize::from(set.first_ld_id)]
    }

    fn check_allocations(&self, set: &SetLdAllocations, bound: u16) -> Result<(), ReturnCode> {
        let first = usize::from(set.first_ld_id);
        let end = first + set.allocations.len();
        if set.allocations.is_empty() || end > self.lds.len() {
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

    /// Returns the order that a request leads to. The driver knows no ranges: all memory is in the first one.
    fn order_of(&self, set: &SetLdAllocations) -> Result<Order, ReturnCode> {
        if set.allocations.iter().any(|allocation| allocation.range_2 != 0) {
            return Err(ReturnCode::INVALID_INPUT);
        }
        let all = (usize::from(set.first_ld_id)..).zip(&set.allocations);
        let changed = all.filter(|(ld_id, _)| self.changes(set, *ld_id));
        let lds = changed.map(|(ld_id, allocation)| (ld_id as u8, allocation.range_1 * UNIT_BYTES)).collect();
        Ok(Order::Allocate { device: self.index, lds })
    }

    /// Gives a logical device another size, as its driver says.
    pub(crate) fn resize_ld(&mut self, context: &mut Context, ld_id: u8, units: u64) {
        let allocation = LdAllocation { range_1: units, range_2: 0 };
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
