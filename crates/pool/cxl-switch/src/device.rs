// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A device behind a port: its logical devices, their memory, its dynamic capacity. An SLD has one logical device, 0.

use aquifer_fmapi::{
    CAPACITY_UNIT_BYTES, ComponentType, Empty, Identity, LdAllocation, MemoryIdentity, Request, Response,
};

use crate::capacity::Capacity;
use crate::commands::Commands;
use crate::component::Component;
use crate::config::{DeviceConfig, DeviceKind, SwitchConfig};
use crate::config_check::UNIT_MIB;
use crate::context::{Answer, Context};
use crate::memory::Memory;
use crate::outcome::Effect;
use crate::qos::Qos;
use crate::registers::{CLASS_MEMORY, Registers};

/// Bytes of the unit of memory: the granularity of 54h, 256 MiB.
pub(crate) const UNIT_BYTES: u64 = UNIT_MIB << 20;

/// A logical device of a device.
#[derive(Clone, Debug)]
pub(crate) struct Ld {
    /// What it has of the device's memory.
    pub allocation: LdAllocation,
    /// The bytes of its memory.
    pub memory: Memory,
    /// Its configuration space.
    pub registers: Registers,
    /// The head through which it is reached.
    pub head: u8,
}

/// A device behind a port: its logical devices, their memory and its dynamic capacity.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    /// Its place in the configuration.
    pub index: usize,
    /// What it is made of.
    pub config: DeviceConfig,
    /// Its own CCI; for an MLD, that of its FM-owned LD.
    pub component: Component,
    /// The CCI of each logical device.
    pub ld_component: Component,
    /// The CCI of the LD pool; only for multi-headed devices.
    pub pool: Option<Component>,
    /// The configuration space of the FM-owned LD.
    pub registers: Registers,
    /// Its logical devices.
    pub lds: Vec<Ld>,
    /// The settings of its quality of service.
    pub qos: Qos,
    /// Its dynamic capacity.
    pub capacity: Option<Capacity>,
    /// False while it is pulled out.
    pub is_present: bool,
    /// True where the driver decides about its memory.
    pub is_driven: bool,
}

impl Device {
    /// Creates the device at this index of a checked configuration.
    pub fn new(switch: &SwitchConfig, index: usize) -> Self {
        let config = switch.devices[index].clone();
        let is_mld = config.kind == DeviceKind::Mld;
        let is_memory = config.kind != DeviceKind::Pcie;
        let identity = Identity {
            vendor_id: switch.vendor_id,
            device_id: index as u16 + 1,
            serial_number: switch.serial_number.wrapping_add(index as u64 + 1),
            component_type: Some(ComponentType::Type3),
            ..Identity::default()
        };
        let component = |commands| Component::new(identity, commands, switch.events_per_log, Some(index));
        let heads = config.ports.len();
        let hosts = if is_mld { config.lds_mib.len() } else { heads };
        let static_bytes = config.memory_mib << 20;
        let capacity = config.capacity.as_ref().map(|it| Capacity::new(it, index, hosts as u16, static_bytes));
        let registers = Registers::new(switch.vendor_id, identity.device_id, CLASS_MEMORY);
        let lds_mib = if is_mld { config.lds_mib.clone() } else { vec![config.memory_mib] };
        let ld = |(ld_id, mib): (usize, &u64)| Ld {
            allocation: LdAllocation { range_1: mib / UNIT_MIB, range_2: 0 },
            memory: Memory::new(mib << 20),
            registers: registers.clone(),
            head: config.ld_heads.get(ld_id).copied().unwrap_or_default(),
        };
        Self {
            index,
            component: component(Commands::of_device(is_memory, is_mld, capacity.is_some())),
            ld_component: component(Commands::of_ld()),
            pool: (heads > 1 && is_memory).then(|| component(Commands::of_pool(is_mld))),
            lds: if is_memory { lds_mib.iter().enumerate().map(ld).collect() } else { Vec::new() },
            registers,
            qos: Qos::new(lds_mib.len()),
            capacity,
            is_present: true,
            is_driven: false,
            config,
        }
    }

    /// Returns true for multiple logical devices.
    pub fn is_mld(&self) -> bool {
        self.config.kind == DeviceKind::Mld
    }

    /// Returns the head that is at a port.
    pub fn head_at(&self, port_id: u8) -> Option<u8> {
        self.config.ports.iter().position(|port| *port == port_id).map(|head| head as u8)
    }

    /// Returns the FM API's number for the host that is bound to a logical device, or to the whole of a port.
    pub fn host_id(&self, port_id: u8, ld_id: Option<u8>) -> u16 {
        ld_id.or(self.head_at(port_id)).unwrap_or_default().into()
    }

    /// Returns a logical device.
    pub fn ld(&mut self, ld_id: u16) -> Option<&mut Ld> {
        self.lds.get_mut(usize::from(ld_id))
    }

    /// Returns the answer to a command of sets 54h and 56h; None for other sets. `bound` has a bit for each logical
    /// device that is bound.
    pub fn answer(&mut self, context: &mut Context, request: &Request, bound: u16) -> Option<Answer> {
        let answer = self.answer_for_lds(context, request, bound);
        let answer = answer.or_else(|| self.qos.answer(context, request));
        let Some(capacity) = &mut self.capacity else { return answer };
        answer.or_else(|| capacity.answer(context, &mut self.component, request))
    }

    /// Returns the answer of the memory behind a logical device, or of an SLD; None for another command.
    pub fn answer_of_memory(&mut self, context: &mut Context, ld_id: u8, request: &Request) -> Option<Answer> {
        let index = self.index;
        let ld = self.ld(ld_id.into())?;
        Some(match request {
            Request::IdentifyMemory(_) => {
                let units = (ld.allocation.range_1 + ld.allocation.range_2) * (UNIT_BYTES / CAPACITY_UNIT_BYTES);
                let identity = MemoryIdentity {
                    total_capacity: units,
                    volatile_capacity: units,
                    dynamic_capacity_log: Some(0),
                    ..MemoryIdentity::default()
                };
                Ok(Response::IdentifyMemory(identity))
            }
            Request::Sanitize(_) => {
                ld.memory.wipe_all();
                context.effect(Effect::LdWiped { device: index, ld_id });
                Ok(Response::Sanitize(Empty {}))
            }
            _ => return None,
        })
    }

    /// Handles its removal: volatile state is lost.
    pub fn lose_power(&mut self, context: &mut Context) {
        self.is_present = false;
        self.lds.iter_mut().for_each(|ld| ld.memory.wipe_all());
        let Some(capacity) = &mut self.capacity else { return };
        for host_id in 0..capacity.hosts() {
            capacity.revoke_all(context, host_id, true);
        }
        capacity.forget(context);
    }
}
