// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Virtual CXL switches (52h): vPPBs, and binding them in the background. CXL 3.1, section 7.6.7.2.
//!
//! A vPPB is bound to a whole port, or to a logical device of the MLD behind it, and nothing is bound twice. An
//! operation reserves its target when it starts, so that queries report the true state while it runs.
//!
//! ```text
//! Unbound -> Binding -> Bound -> Unbinding -> Unbound      by Bind and Unbind, at their ends
//!            Binding -> Unbound, Unbinding -> Bound        where they fail or are aborted
//!                       Bound -> Unbound                   where the MLD is pulled out; an unbind is then done
//! ```
//!
//! In a driven switch, the driver ends an operation (`orders.rs`), and may say that a vPPB is in progress without one
//! (`adopted.rs`). So a vPPB that is being bound can be unbound there, and is as before if that is refused.
//!
//! The simulated host lets go when asked, so that all three ways of unbinding take the same time. The injection
//! `BackgroundStalls` simulates a host that does not.

use aquifer_fmapi::{
    BindVppb, BindingStatus, Empty, EventData, EventLog, GenerateAerEvent, GetVirtualSwitches, Request, Response,
    ReturnCode, UnbindOption, UnbindVppb, VcsState, VirtualSwitch, VirtualSwitches, Vppb, VppbEvent, VppbEventKind,
};

use crate::background::Job;
use crate::config::PortRole;
use crate::context::{Answer, Context};
use crate::orders::Ending;
use crate::outcome::Effect;
use crate::switch::Switch;

/// Bytes before the switches, of one without its vPPBs, and of a vPPB.
const ANSWER_BYTES: usize = 4;
const SWITCH_BYTES: usize = 4;
const VPPB_BYTES: usize = 4;
/// Nanoseconds of a millisecond.
const NS_PER_MS: u64 = 1_000_000;
/// Bits of an AER error that mean something: severity and bit position. The others are reserved, and ignored.
const AER_ERROR: u32 = 1 << 31 | 0x1f;

/// What a vPPB can be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The port that it is bound to.
    pub port_id: u8,
    /// The logical device behind it; None for the whole port.
    pub ld_id: Option<u8>,
}

impl Target {
    /// Returns whether the two cannot be bound at the same time.
    fn overlaps(&self, other: &Self) -> bool {
        self.port_id == other.port_id && (self.ld_id.is_none() || other.ld_id.is_none() || self.ld_id == other.ld_id)
    }
}

/// The state of a vPPB, as the module draws it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VppbState {
    /// A bind to this target is under way.
    Binding(Target),
    /// The vPPB is bound to this target.
    Bound(Target),
    /// The vPPB is bound to nothing.
    Unbound,
    /// An unbind from this target is under way.
    Unbinding(Target),
}

impl VppbState {
    /// Returns what is reserved.
    pub fn target(&self) -> Option<Target> {
        match self {
            Self::Binding(target) | Self::Bound(target) | Self::Unbinding(target) => Some(*target),
            Self::Unbound => None,
        }
    }

    /// Returns what its host reaches.
    pub fn bound(&self) -> Option<Target> {
        match self {
            Self::Bound(target) | Self::Unbinding(target) => Some(*target),
            _ => None,
        }
    }

    fn reported(&self) -> Vppb {
        let none = Vppb { status: BindingStatus::Unbound, port_id: 0, ld_id: Vppb::NO_LD };
        match self {
            Self::Unbound => none,
            Self::Binding(_) | Self::Unbinding(_) => Vppb { status: BindingStatus::InProgress, ..none },
            Self::Bound(Target { port_id, ld_id: None }) => {
                Vppb { status: BindingStatus::Port, port_id: *port_id, ..none }
            }
            Self::Bound(Target { port_id, ld_id: Some(ld_id) }) => {
                Vppb { status: BindingStatus::Ld, port_id: *port_id, ld_id: *ld_id }
            }
        }
    }
}

impl Switch {
    /// Returns the answer; None for a command of another set.
    pub(crate) fn answer_of_virtual_switches(&mut self, context: &mut Context, request: &Request) -> Option<Answer> {
        Some(match request {
            Request::GetVirtualSwitches(get) => self.virtual_switches(context, get).map(Response::GetVirtualSwitches),
            Request::BindVppb(bind) => self.bind(context, bind),
            Request::UnbindVppb(unbind) => self.unbind(context, unbind),
            Request::GenerateAerEvent(event) => self.generate_aer(context, event),
            _ => return None,
        })
    }

    fn virtual_switches(&self, context: &Context, get: &GetVirtualSwitches) -> Result<VirtualSwitches, ReturnCode> {
        if get.vcs_ids.is_empty() || get.vppbs_max == 0 {
            return Err(ReturnCode::INVALID_INPUT);
        }
        let switches: Vec<VirtualSwitch> = get.vcs_ids.iter().map(|vcs_id| self.virtual_switch(get, *vcs_id)).collect();
        let bytes: usize = switches.iter().map(|switch| SWITCH_BYTES + VPPB_BYTES * switch.vppbs.len()).sum();
        // The answer does not say how many vPPBs it lists, so it lists all that were asked for or none.
        if ANSWER_BYTES + bytes > context.room {
            Err(ReturnCode::INVALID_INPUT)
        } else {
            Ok(VirtualSwitches { switches })
        }
    }

    fn virtual_switch(&self, get: &GetVirtualSwitches, vcs_id: u8) -> VirtualSwitch {
        let index = usize::from(vcs_id);
        let Some(vppbs) = self.vppbs.get(index) else {
            return VirtualSwitch { vcs_id, state: VcsState::Invalid, ..VirtualSwitch::default() };
        };
        let config = &self.config.virtual_switches[index];
        let listed = get.vppbs_listed(vppbs.len() as u8).into();
        VirtualSwitch {
            vcs_id,
            state: if self.vcs_enabled[index] { VcsState::Enabled } else { VcsState::Disabled },
            usp_id: config.upstream_port,
            vppbs_total: vppbs.len() as u8,
            vppbs: vppbs.iter().skip(get.first_vppb.into()).take(listed).map(VppbState::reported).collect(),
        }
    }

    fn bind(&mut self, context: &mut Context, bind: &BindVppb) -> Answer {
        self.check_idle()?;
        let target = self.target(bind).ok_or(ReturnCode::INVALID_INPUT)?;
        if !self.vcs_is_enabled(bind.vcs_id) || self.targets().any(|taken| taken.overlaps(&target)) {
            return Err(ReturnCode::INVALID_INPUT);
        }
        let is_driven = self.orders.is_driven();
        match self.vppb(bind.vcs_id, bind.vppb_id) {
            Some(VppbState::Unbound) => {}
            // The driver has not ended it in time: it ends by itself.
            Some(VppbState::Unbinding(_)) if is_driven => return Err(ReturnCode::RETRY_REQUIRED),
            _ => return Err(ReturnCode::INVALID_INPUT),
        }
        if is_driven {
            self.check_driven(bind.vcs_id, target)?;
        }
        let before = VppbState::Unbound;
        self.start(context, Job { is_bind: true, vcs_id: bind.vcs_id, vppb_id: bind.vppb_id, target, before })
    }

    /// Refuses a bind that the driver could not carry out: without memory, or where one of the two does not answer.
    fn check_driven(&self, vcs_id: u8, target: Target) -> Result<(), ReturnCode> {
        let upstream = self.config.virtual_switches[usize::from(vcs_id)].upstream_port;
        let device = &self.devices[self.reach(target.port_id)?];
        let ld = device.lds.get(usize::from(target.ld_id.ok_or(ReturnCode::INVALID_INPUT)?));
        match ld.is_some_and(|ld| ld.allocation.range_1 > 0) {
            false => Err(ReturnCode::INVALID_INPUT),
            true if self.link_is_up(upstream) => Ok(()),
            true => Err(ReturnCode::RETRY_REQUIRED),
        }
    }

    fn vcs_is_enabled(&self, vcs_id: u8) -> bool {
        self.vcs_enabled.get(usize::from(vcs_id)).copied().unwrap_or_default()
    }

    /// Refuses what cannot begin before something else has ended. Busy refers a manager to the background operation,
    /// whose status says when it ends; a request that waits for the driver is none.
    pub(crate) fn check_idle(&self) -> Result<(), ReturnCode> {
        match (self.background.is_running(), self.orders.is_waiting()) {
            (true, _) => Err(ReturnCode::BUSY),
            (false, true) => Err(ReturnCode::RETRY_REQUIRED),
            (false, false) => Ok(()),
        }
    }

    /// Returns the target that a request names. For an empty port or SLD, the LD id is FFFFh; one peer's manager sends
    /// 0 for an SLD, which is accepted, too.
    fn target(&self, bind: &BindVppb) -> Option<Target> {
        let port_id = bind.port_id;
        self.ports.get(usize::from(port_id)).filter(|port| port.config.role == PortRole::Downstream)?;
        let device = self.device_at(port_id).map(|device| &self.devices[device]);
        let ld_id = match device {
            None => (bind.ld_id == BindVppb::NO_LD).then_some(None)?,
            Some(device) if !device.is_mld() => [BindVppb::NO_LD, 0].contains(&bind.ld_id).then_some(None)?,
            Some(mld) => {
                let ld = mld.lds.get(usize::from(bind.ld_id))?;
                Some((mld.head_at(port_id) == Some(ld.head)).then_some(bind.ld_id as u8)?)
            }
        };
        Some(Target { port_id, ld_id })
    }

    fn unbind(&mut self, context: &mut Context, unbind: &UnbindVppb) -> Answer {
        self.check_idle()?;
        if let UnbindOption::Reserved(_) = unbind.option {
            return Err(ReturnCode::INVALID_INPUT);
        }
        let is_driven = self.orders.is_driven();
        let Some(vppb) = self.vppb(unbind.vcs_id, unbind.vppb_id) else { return Err(ReturnCode::INVALID_INPUT) };
        let before = *vppb;
        let target = match before {
            VppbState::Bound(target) => target,
            // What the host never takes can be unbound again.
            VppbState::Binding(target) if is_driven => target,
            VppbState::Unbinding(_) if is_driven => return Err(ReturnCode::RETRY_REQUIRED),
            _ => return Err(ReturnCode::INVALID_INPUT),
        };
        self.start(context, Job { is_bind: false, vcs_id: unbind.vcs_id, vppb_id: unbind.vppb_id, target, before })
    }

    fn start(&mut self, context: &mut Context, job: Job) -> Answer {
        if let Some(vppb) = self.vppb(job.vcs_id, job.vppb_id) {
            *vppb = if job.is_bind { VppbState::Binding(job.target) } else { VppbState::Unbinding(job.target) };
        }
        match self.orders.limit_ns() {
            Some(limit_ns) => {
                let order_id = self.order_job(context, &job);
                self.background.start_ordered(context.now_ns, limit_ns, job, order_id);
            }
            None => self.background.start(context.now_ns, self.config.bind_ms * NS_PER_MS, job),
        }
        Err(ReturnCode::BACKGROUND_STARTED)
    }

    /// Ends the operation that is due, if one is.
    pub(crate) fn end_background(&mut self, context: &mut Context) {
        if let Some(ending) = self.background.due(context.now_ns) {
            self.end_job(context, ending);
        }
    }

    /// Answers Request Abort Background Operation (0005h). The answer is the same if an operation is so near its end
    /// that it is not aborted.
    pub(crate) fn abort(&mut self, context: &mut Context) -> Answer {
        if self.background.can_abort(context.now_ns) {
            self.end_job(context, Ending::Refused(ReturnCode::ABORTED));
        }
        Ok(Response::AbortBackground(Empty {}))
    }

    /// Ends the operation. If the logical device was pulled out meanwhile, a bind fails, and an unbind is done. Where
    /// the end is unknown, the vPPB stays in progress until the next adopted state shows what it is.
    pub(crate) fn end_job(&mut self, context: &mut Context, ending: Ending) {
        let Some(job) = self.background.job() else { return };
        let Job { is_bind, vcs_id, vppb_id, target, before } = job;
        // A port stays bound, for a later device. A driver has looked itself whether the device is there.
        let is_there = self.orders.is_driven() || target.ld_id.is_none() || self.device_at(target.port_id).is_some();
        let ending = match (is_there, is_bind, ending) {
            (false, true, Ending::Done) => Ending::Refused(ReturnCode::INTERNAL_ERROR),
            (false, false, _) => Ending::Done,
            _ => ending,
        };
        self.background.end(ending.return_code());
        self.component.background_ended();
        let (binding, log) = match ending {
            Ending::Done if is_bind => (VppbState::Bound(target), EventLog::Informational),
            Ending::Done => (VppbState::Unbound, EventLog::Informational),
            Ending::Refused(_) => (before, EventLog::Warning),
            Ending::Unknown(_) => return,
        };
        if let Some(vppb) = self.vppb(vcs_id, vppb_id) {
            *vppb = binding;
        }
        self.note_binding(context, log, vcs_id, vppb_id, binding);
        let Target { port_id, ld_id } = target;
        match (ending, is_bind) {
            (Ending::Done, true) => context.effect(Effect::Bound { vcs_id, vppb_id, port_id, ld_id }),
            (Ending::Done, false) => {
                context.effect(Effect::Unbound { vcs_id, vppb_id, port_id, ld_id });
                self.let_go(context, target);
            }
            _ => {}
        }
    }

    pub(crate) fn note_binding(
        &mut self,
        context: &mut Context,
        log: EventLog,
        vcs_id: u8,
        vppb_id: u8,
        binding: VppbState,
    ) {
        let event = VppbEvent { vcs_id, vppb_id, kind: VppbEventKind::BindingChange, vppb: binding.reported() };
        let ld_id = binding.target().and_then(|target| target.ld_id).unwrap_or_default();
        self.component.record(context, log, &EventData::Vppb(event), ld_id.into());
    }

    /// Handles the loss of a host: wipes the memory if the configuration says so, and releases dynamic capacity.
    fn let_go(&mut self, context: &mut Context, target: Target) {
        // The driver wipes what was bound through it.
        let is_wiped = self.config.wipe_on_unbind && !self.orders.is_driven();
        let Some(index) = self.device_at(target.port_id) else { return };
        let device = &mut self.devices[index];
        let host_id = device.host_id(target.port_id, target.ld_id);
        if let Some(capacity) = &mut device.capacity {
            capacity.revoke_all(context, host_id, is_wiped);
        }
        let ld_id = target.ld_id.unwrap_or_default();
        if let Some(ld) = device.ld(ld_id.into()).filter(|_| is_wiped) {
            ld.memory.wipe_all();
            context.effect(Effect::LdWiped { device: index, ld_id });
        }
    }

    /// Handles the removal of an MLD: unbinds its logical devices.
    pub(crate) fn unbind_lds(&mut self, context: &mut Context, port_ids: &[u8]) {
        for vcs in 0..self.vppbs.len() {
            for vppb in 0..self.vppbs[vcs].len() {
                let VppbState::Bound(Target { port_id, ld_id: Some(ld_id) }) = self.vppbs[vcs][vppb] else { continue };
                if !port_ids.contains(&port_id) {
                    continue;
                }
                let (vcs_id, vppb_id) = (vcs as u8, vppb as u8);
                self.vppbs[vcs][vppb] = VppbState::Unbound;
                self.note_binding(context, EventLog::Warning, vcs_id, vppb_id, VppbState::Unbound);
                context.effect(Effect::Unbound { vcs_id, vppb_id, port_id, ld_id: Some(ld_id) });
            }
        }
    }

    fn generate_aer(&self, context: &mut Context, event: &GenerateAerEvent) -> Answer {
        let vcs = self.config.virtual_switches.get(usize::from(event.vcs_id));
        let vcs = vcs.filter(|_| self.vcs_is_enabled(event.vcs_id));
        // Instance 0 is the upstream port, the vPPBs follow it.
        let is_there = vcs.is_some_and(|vcs| event.vppb_id <= vcs.vppbs);
        if !is_there {
            return Err(ReturnCode::INVALID_INPUT);
        }
        let GenerateAerEvent { vcs_id, vppb_id: instance, tlp_header, .. } = *event;
        let error = event.error & AER_ERROR;
        context.effect(Effect::AerGenerated { vcs_id, instance, error, tlp_header });
        Ok(Response::GenerateAerEvent(Empty {}))
    }

    fn targets(&self) -> impl Iterator<Item = Target> + '_ {
        self.vppbs.iter().flatten().filter_map(VppbState::target)
    }

    fn vppb(&mut self, vcs_id: u8, vppb_id: u8) -> Option<&mut VppbState> {
        self.vppbs.get_mut(usize::from(vcs_id))?.get_mut(usize::from(vppb_id))
    }

    /// Returns what a vPPB's host reaches.
    pub(crate) fn bound_to(&self, vcs_id: u8, vppb_id: u8) -> Option<Target> {
        self.vppbs.get(usize::from(vcs_id))?.get(usize::from(vppb_id))?.bound()
    }

    /// Returns whether a port is bound as a whole, or is about to be.
    pub(crate) fn port_is_taken(&self, port_id: u8) -> bool {
        self.targets().any(|target| target == Target { port_id, ld_id: None })
    }

    /// Returns a bit for each logical device of a device: set if it is bound, or is about to be.
    pub(crate) fn bound_lds(&self, device: usize) -> u16 {
        let ports = &self.devices[device].config.ports;
        let of_device = self.targets().filter(|target| ports.contains(&target.port_id));
        of_device.fold(0, |bits, target| bits | 1 << target.ld_id.unwrap_or_default())
    }
}
