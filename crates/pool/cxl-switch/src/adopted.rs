// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The state that a driven switch takes over from its driver: who is there, how large logical devices are, and what is
//! bound.
//!
//! The switch keeps nothing that its driver does not say again: after a restart, the first adopted state is the switch.
//! Later ones differ where somebody else has changed something, or where an order's end was unknown. The difference is
//! recorded in the event logs: links of ports, and bindings of vPPBs. What a running order concerns stays as it is
//! until the order has ended, because the driver has read the state before that.

use aquifer_fmapi::EventLog;

use crate::config_check::UNIT_MIB;
use crate::context::Context;
use crate::device::UNIT_BYTES;
use crate::outcome::{Effect, Outcome};
use crate::switch::Switch;
use crate::virtual_switch::{Target, VppbState};

/// How far a binding has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The host has it.
    Bound,
    /// It is wanted, and the host does not have it yet.
    Binding,
    /// It is no longer wanted, and the host has not let go yet.
    Unbinding,
}

/// A host, which is a virtual CXL switch with its upstream port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdoptedHost {
    /// True where the host exists: its virtual CXL switch is enabled.
    pub is_known: bool,
    /// True where the host answers: its link is up.
    pub is_up: bool,
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdoptedDevice {
    /// True where it is there.
    pub is_present: bool,
    /// Bytes that its logical devices can have in total, those that they have included.
    pub memory_bytes: u64,
    /// Bytes of each logical device that has some, by its number.
    pub lds: Vec<(u8, u64)>,
}

/// What a vPPB is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdoptedBinding {
    /// The virtual CXL switch.
    pub vcs_id: u8,
    /// The vPPB in that switch.
    pub vppb_id: u8,
    /// The device of the logical device.
    pub device: usize,
    /// The logical device.
    pub ld_id: u8,
    /// How far it has come.
    pub progress: Progress,
}

/// The state that a driven switch takes over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// The hosts, by the numbers of their virtual CXL switches. Those that are left out are not known.
    pub hosts: Vec<AdoptedHost>,
    /// The devices, by their numbers. Those that are left out are not there.
    pub devices: Vec<AdoptedDevice>,
    /// What is bound. No vPPB and no logical device is listed twice: of those that are, the first one counts.
    pub bindings: Vec<AdoptedBinding>,
}

impl Switch {
    /// Takes over a state. Entries that the switch has no place for are ignored. Changes nothing in a switch that is
    /// not driven.
    pub fn adopt(&mut self, now_ns: u64, adopted: &Adopted) -> Outcome {
        let mut context = self.begin(now_ns);
        if self.orders.is_driven() {
            self.adopt_hosts(&mut context, adopted);
            self.adopt_bindings(&mut context, adopted);
            for device in 0..self.devices.len() {
                let new = adopted.devices.get(device).cloned().unwrap_or_default();
                self.adopt_device(&mut context, device, &new);
            }
        }
        self.end(context)
    }

    fn adopt_hosts(&mut self, context: &mut Context, adopted: &Adopted) {
        for vcs in 0..self.vppbs.len() {
            let host = adopted.hosts.get(vcs).copied().unwrap_or_default();
            self.vcs_enabled[vcs] = host.is_known;
            let port_id = self.config.virtual_switches[vcs].upstream_port;
            let was_up = self.link_is_up(port_id);
            self.ports[usize::from(port_id)].is_cut = !(host.is_known && host.is_up);
            self.note_link(context, port_id, was_up);
        }
    }

    fn adopt_device(&mut self, context: &mut Context, index: usize, new: &AdoptedDevice) {
        if self.devices[index].is_present != new.is_present {
            self.with_links(context, index, |switch, context| {
                switch.devices[index].is_present = new.is_present;
                context.effect(Effect::DevicePresence { device: index, is_present: new.is_present });
            });
        }
        if self.orders.resizes(index) {
            return;
        }
        let device = &mut self.devices[index];
        device.config.memory_mib = new.memory_bytes / UNIT_BYTES * UNIT_MIB;
        for ld_id in 0..device.lds.len() as u8 {
            let bytes = new.lds.iter().find(|(id, _)| *id == ld_id).map_or(0, |(_, bytes)| *bytes);
            // A size that is no multiple is somebody else's: what is left over is not shown.
            device.resize_ld(context, ld_id, bytes / UNIT_BYTES);
        }
    }

    /// Returns the state of every vPPB in an adopted state.
    fn adopted_vppbs(&self, adopted: &Adopted) -> Vec<Vec<VppbState>> {
        let mut states: Vec<Vec<VppbState>> =
            self.vppbs.iter().map(|vppbs| vec![VppbState::Unbound; vppbs.len()]).collect();
        let mut taken = Vec::new();
        for binding in &adopted.bindings {
            let Some(device) = self.devices.get(binding.device) else { continue };
            let (Some(port_id), true) = (device.config.ports.first(), usize::from(binding.ld_id) < device.lds.len())
            else {
                continue;
            };
            let target = Target { port_id: *port_id, ld_id: Some(binding.ld_id) };
            let vppb =
                states.get_mut(usize::from(binding.vcs_id)).and_then(|vcs| vcs.get_mut(usize::from(binding.vppb_id)));
            let Some(vppb) = vppb.filter(|vppb| **vppb == VppbState::Unbound && !taken.contains(&target)) else {
                continue;
            };
            taken.push(target);
            *vppb = match binding.progress {
                Progress::Bound => VppbState::Bound(target),
                Progress::Binding => VppbState::Binding(target),
                Progress::Unbinding => VppbState::Unbinding(target),
            };
        }
        states
    }

    fn adopt_bindings(&mut self, context: &mut Context, adopted: &Adopted) {
        let states = self.adopted_vppbs(adopted);
        let job = self.background.job();
        for (vcs, vppbs) in states.into_iter().enumerate() {
            for (vppb, new) in vppbs.into_iter().enumerate() {
                let (vcs_id, vppb_id) = (vcs as u8, vppb as u8);
                let is_concerned = job.is_some_and(|job| {
                    (job.vcs_id, job.vppb_id) == (vcs_id, vppb_id) || new.target() == Some(job.target)
                });
                let old = self.vppbs[vcs][vppb];
                if !is_concerned && new != old {
                    self.vppbs[vcs][vppb] = new;
                    self.note_adopted(context, (vcs_id, vppb_id), old, new);
                }
            }
        }
    }

    /// Records a change that was adopted, and tells the driver what a host has and no longer has.
    fn note_adopted(&mut self, context: &mut Context, (vcs_id, vppb_id): (u8, u8), old: VppbState, new: VppbState) {
        let log = if new.target().is_some() { EventLog::Informational } else { EventLog::Warning };
        self.note_binding(context, log, vcs_id, vppb_id, new);
        let (had, has) = (old.bound(), new.bound());
        if had == has {
            return;
        }
        if let Some(Target { port_id, ld_id }) = had {
            context.effect(Effect::Unbound { vcs_id, vppb_id, port_id, ld_id });
        }
        if let Some(Target { port_id, ld_id }) = has {
            context.effect(Effect::Bound { vcs_id, vppb_id, port_id, ld_id });
        }
    }

    /// Returns the device whose place is at a port, whether it is there or not.
    pub(crate) fn device_of_port(&self, port_id: u8) -> Option<usize> {
        self.devices.iter().position(|device| device.head_at(port_id).is_some())
    }
}
