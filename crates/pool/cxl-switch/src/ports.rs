// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Physical ports (51h): the switch, its ports, their bridges. CXL 3.1, section 7.6.7.1.
//!
//! Ports that are bound as a whole belong to their host: the manager controls the others, and those of MLDs.

use aquifer_fmapi::{
    DeviceMode, DeviceType, DomainSv, Empty, EventData, EventLog, GetPortStates, LinkState, PortControl, PortEvent,
    PortEventKind, PortOperation, PortState, PortStates, PortStatus, PpbConfigurationRequest, Request, Response,
    ReturnCode, ReturnData, SvState, SwitchIdentity,
};

use crate::config::{DeviceKind, PortConfig, PortRole, SwitchConfig};
use crate::context::{Answer, Context};
use crate::outcome::Effect;
use crate::registers::{CLASS_BRIDGE, Registers};
use crate::switch::Switch;

/// Bytes before the ports' states, and of one.
const ANSWER_BYTES: usize = 4;
const PORT_BYTES: usize = 16;
/// Link state flags.
const PERST: u16 = 1 << 1;
const PRESENT: u16 = 1 << 2;
/// What each port supports: 68-byte flits with virtual hierarchies, and 256-byte flits.
const MODES: u8 = 1 << 1 | 1 << 2;
/// From this link speed on, 64 GT/s, flits have 256 bytes.
const FLIT256_SPEED: u8 = 6;

/// The state of a physical port.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    /// What it is made of.
    pub config: PortConfig,
    /// True while PERST# is asserted.
    pub is_in_reset: bool,
    /// The time until which its link is down, regardless of its device and of PERST#.
    pub down_until_ns: Option<u64>,
    /// True while its host does not answer; only in a driven switch.
    pub is_cut: bool,
    /// Its bridge's configuration space.
    pub registers: Registers,
}

impl Port {
    /// Creates a port as it is after a reset.
    pub fn new(switch: &SwitchConfig, config: &PortConfig) -> Self {
        let registers = Registers::new(switch.vendor_id, switch.device_id, CLASS_BRIDGE);
        Self { config: config.clone(), is_in_reset: false, down_until_ns: None, is_cut: false, registers }
    }
}

impl Switch {
    /// Returns the answer; None for a command of another set.
    pub(crate) fn answer_of_ports(&mut self, context: &mut Context, request: &Request) -> Option<Answer> {
        Some(match request {
            Request::IdentifySwitch(_) => Ok(Response::IdentifySwitch(self.identity(context))),
            Request::GetPortStates(get) => self.port_states(context, get).map(Response::GetPortStates),
            Request::PortControl(control) => self.control_port(context, control),
            Request::PpbConfigurationRequest(request) => self.configure_ppb(request),
            Request::GetVcsDomainSvState(get) => self
                .domain_sv(get.vcs_id)
                .map(|secret| Response::GetVcsDomainSvState(SvState { state: u8::from(secret.is_some()) })),
            Request::GetDomainSv(get) => match self.domain_sv(get.vcs_id) {
                Ok(Some(secret)) => Ok(Response::GetDomainSv(DomainSv { secret })),
                _ => Err(ReturnCode::INVALID_INPUT),
            },
            _ => return None,
        })
    }

    fn identity(&self, context: &Context) -> SwitchIdentity {
        let bits = |active: &mut dyn Iterator<Item = bool>| {
            let mut bits = [0; 32];
            active.enumerate().filter(|(_, is_active)| *is_active).for_each(|(at, _)| bits[at / 8] |= 1 << (at % 8));
            bits
        };
        let vppbs = self.vppbs.iter().flatten();
        SwitchIdentity {
            ingress_port_id: context.connection.ingress_port_id,
            physical_ports: self.ports.len() as u8,
            virtual_switches: self.vppbs.len() as u8,
            active_ports: bits(&mut self.ports.iter().map(|port| port.config.role != PortRole::Disabled)),
            active_virtual_switches: bits(&mut self.vcs_enabled.iter().copied()),
            vppbs_total: vppbs.clone().count() as u16,
            vppbs_active: vppbs.filter(|binding| binding.bound().is_some()).count() as u16,
            hdm_decoders_per_usp: self.config.hdm_decoders_per_usp,
        }
    }

    fn port_states(&self, context: &Context, get: &GetPortStates) -> Result<PortStates, ReturnCode> {
        if get.port_ids.is_empty() || get.port_ids.len() > context.entries(ANSWER_BYTES, PORT_BYTES) {
            return Err(ReturnCode::INVALID_INPUT);
        }
        Ok(PortStates { ports: get.port_ids.iter().map(|port_id| self.port_status(*port_id)).collect() })
    }

    /// Returns the state of a port, or that it does not exist.
    pub(crate) fn port_status(&self, port_id: u8) -> PortStatus {
        let Some(port) = self.ports.get(usize::from(port_id)) else {
            return PortStatus { port_id, state: PortState::Invalid, ..PortStatus::default() };
        };
        let config = &port.config;
        let device = self.device_at(port_id).map(|device| &self.devices[device]);
        let is_up = self.link_is_up(port_id);
        let is_upstream = config.role == PortRole::Upstream;
        let (width, speed) = match device {
            Some(device) => (device.config.link_width, device.config.link_speed),
            None => (config.link_width, config.link_speed),
        };
        let (width, speed) = (width.min(config.link_width), speed.min(config.link_speed));
        let is_cxl = device.is_some_and(|device| device.config.kind != DeviceKind::Pcie);
        PortStatus {
            port_id,
            state: self.port_state(port_id),
            device_mode: match speed {
                _ if !is_cxl => DeviceMode::NotCxl,
                FLIT256_SPEED.. => DeviceMode::Flit256,
                _ => DeviceMode::Flit68,
            },
            device_type: match device.map(|device| device.config.kind) {
                None => DeviceType::None,
                Some(DeviceKind::Mld) => DeviceType::Type3Mld,
                Some(DeviceKind::Pcie) => DeviceType::Pcie,
                Some(DeviceKind::Sld) => DeviceType::Type3Sld,
            },
            supported_modes: MODES,
            link_width_max: config.link_width,
            link_width: if is_up { width } else { 0 },
            supported_speeds: (1 << config.link_speed) - 1,
            link_speed_max: config.link_speed,
            link_speed: if is_up { speed } else { 0 },
            link_state: match config.role {
                PortRole::Disabled => LinkState::Disabled,
                _ if is_up => LinkState::L0,
                _ => LinkState::Detect,
            },
            first_lane: 0,
            link_flags: [(port.is_in_reset, PERST), (device.is_some() || is_upstream, PRESENT)]
                .iter()
                .filter(|(holds, _)| *holds)
                .fold(0, |flags, (_, flag)| flags | flag),
            supported_lds: if is_upstream { 0 } else { config.lds },
        }
    }

    fn port_state(&self, port_id: u8) -> PortState {
        let job = self.background.job().filter(|job| job.target.port_id == port_id);
        match (self.ports[usize::from(port_id)].config.role, job) {
            (_, Some(job)) if job.is_bind => PortState::BindInProgress,
            (_, Some(_)) => PortState::UnbindInProgress,
            (PortRole::Disabled, _) => PortState::Disabled,
            (PortRole::Downstream, _) => PortState::Downstream,
            (PortRole::Upstream, _) => PortState::Upstream,
        }
    }

    /// Returns the device that is at a port right now.
    pub(crate) fn device_at(&self, port_id: u8) -> Option<usize> {
        self.devices.iter().position(|device| device.is_present && device.head_at(port_id).is_some())
    }

    /// Returns whether the device or host at a port can be reached.
    pub(crate) fn link_is_up(&self, port_id: u8) -> bool {
        let Some(port) = self.ports.get(usize::from(port_id)) else { return false };
        let is_connected = match port.config.role {
            PortRole::Disabled => false,
            PortRole::Downstream => self.device_at(port_id).is_some(),
            PortRole::Upstream => !port.is_cut,
        };
        is_connected && !port.is_in_reset && port.down_until_ns.is_none()
    }

    /// Returns the memory device behind a port, for messages and accesses.
    pub(crate) fn reach(&self, port_id: u8) -> Result<usize, ReturnCode> {
        let device = self.device_at(port_id).ok_or(ReturnCode::INVALID_INPUT)?;
        if self.devices[device].config.kind == DeviceKind::Pcie {
            return Err(ReturnCode::INVALID_INPUT);
        }
        if self.link_is_up(port_id) { Ok(device) } else { Err(ReturnCode::RETRY_REQUIRED) }
    }

    /// Returns a port that is the manager's to control.
    fn controlled(&mut self, port_id: u8) -> Result<&mut Port, ReturnCode> {
        let is_taken = self.port_is_taken(port_id);
        let port = self.ports.get_mut(usize::from(port_id)).ok_or(ReturnCode::INVALID_INPUT)?;
        if is_taken || port.config.role != PortRole::Downstream { Err(ReturnCode::INVALID_INPUT) } else { Ok(port) }
    }

    fn control_port(&mut self, context: &mut Context, control: &PortControl) -> Answer {
        let port_id = control.port_id;
        let was_up = self.link_is_up(port_id);
        let port = self.controlled(port_id)?;
        let is_asserted = match control.operation {
            PortOperation::AssertPerst => true,
            PortOperation::DeassertPerst => false,
            PortOperation::ResetPpb => {
                let config = port.config.clone();
                let fresh = Port::new(&self.config, &config).registers;
                self.ports[usize::from(port_id)].registers = fresh;
                context.effect(Effect::PpbReset { port_id });
                return Ok(Response::PortControl(Empty {}));
            }
            PortOperation::Reserved(_) => return Err(ReturnCode::INVALID_INPUT),
        };
        if port.is_in_reset != is_asserted {
            port.is_in_reset = is_asserted;
            context.effect(Effect::PerstChanged { port_id, is_asserted });
        }
        self.note_link(context, port_id, was_up);
        Ok(Response::PortControl(Empty {}))
    }

    /// Writes a record if a link went up or down.
    pub(crate) fn note_link(&mut self, context: &mut Context, port_id: u8, was_up: bool) {
        let is_up = self.link_is_up(port_id);
        if is_up == was_up {
            return;
        }
        let event = PortEvent { kind: PortEventKind::LinkStateChange, slot_status: 0, port: self.port_status(port_id) };
        let log = if is_up { EventLog::Informational } else { EventLog::Warning };
        self.component.record(context, log, &EventData::Port(event), 0);
    }

    fn configure_ppb(&mut self, request: &PpbConfigurationRequest) -> Answer {
        let port = self.controlled(request.port_id)?;
        let data = port.registers.access(&request.access, request.data);
        Ok(Response::PpbConfigurationRequest(ReturnData { data }))
    }

    fn domain_sv(&self, vcs_id: u8) -> Result<Option<[u8; 16]>, ReturnCode> {
        self.domain_svs.get(usize::from(vcs_id)).copied().ok_or(ReturnCode::INVALID_INPUT)
    }
}
