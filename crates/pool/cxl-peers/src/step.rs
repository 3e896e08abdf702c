// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Carries out the steps for LDs: bind, unbind, wipe. Before each step, a guard reads the state of the switch.
//!
//! A switch never refuses a command as stale, and other managers may change it, too. So a vPPB is unbound only if it
//! is bound to the LD of the step; an LD is wiped only while nobody has it; and an LD is bound only if nobody has had
//! it since it was wiped. The time between a guard and its command is that of one exchange.
//!
//! Next on the path: the switch itself, through `aquifer_fmapi_client`; `report.rs` then shows the manager the result.

use std::sync::Arc;

use aquifer_fabric::{Content, DeviceId, LdId, NO_LD, Step, VppbAddress};
use aquifer_fmapi::{BindVppb, BindingStatus, Opcode, ReturnCode, UnbindOption, UnbindVppb, Vppb};
use aquifer_fmapi_client::{Client, Hop};

use crate::config::Wipe;
use crate::discover::{patiently, read_bindings};
use crate::event_log::OwnBind;
use crate::inventory::{DeviceView, Holder, Inventory};
use crate::one_switch::Peer;
use crate::step_failure::{NotDone, is_unsupported};

/// Returns the way to an LD: to the device itself, for an SLD.
pub(crate) fn path_of(device: &DeviceView, ld_id: LdId) -> Vec<Hop> {
    let port = Hop::Port(device.ports[0]);
    match u8::try_from(ld_id.0) {
        Ok(ld_id) if device.is_mld() => vec![port, Hop::Ld(ld_id)],
        _ => vec![port],
    }
}

pub(crate) fn is_busy(not: &NotDone) -> bool {
    matches!(not, NotDone::Busy(_))
}

impl Peer {
    /// Carries out a step for one of its devices.
    pub fn send(&mut self, step: &Step) -> Result<(), NotDone> {
        let clock = Arc::clone(&self.clock);
        let done = self.with_client(|peer, client| {
            patiently(client, &*clock, is_busy, |client| match step.clone() {
                Step::AddDynamicCapacity { device, host, volume, member, bytes } => {
                    peer.add_capacity(client, &device, &host, (volume, member), bytes)
                }
                Step::BindVppb { vppb, device, ld_id } => peer.bind(client, &vppb, &device, ld_id),
                Step::ReleaseDynamicCapacity { device, host, volume, member } => {
                    peer.release_capacity(client, &device, &host, (volume, member))
                }
                Step::UnbindVppb { vppb, device, ld_id } => peer.unbind(client, &vppb, Some((&device, ld_id))),
                Step::WipeLd { device, ld_id } => peer.wipe(client, &device, ld_id),
                step => NotDone::refused(format!("a switch cannot {step}; send it to its receiver")),
            })
        });
        done.map_err(|not| match not {
            NotDone::Busy(why) => NotDone::Refused(why),
            not => not,
        })
    }

    /// Reads who has what, right now.
    pub(crate) fn read_state(&mut self, client: &mut Client) -> Result<Arc<Inventory>, NotDone> {
        let mut now = Inventory::clone(&self.inventory);
        read_bindings(client, &*self.clock, &mut now)?;
        self.keep(now);
        Ok(Arc::clone(&self.inventory))
    }

    /// Returns a device, which must be at its port.
    pub(crate) fn present(&self, device: &DeviceId) -> Result<DeviceView, NotDone> {
        match self.inventory.devices.get(device) {
            Some(found) if found.is_present => Ok(found.clone()),
            Some(_) => NotDone::refused(format!("device {device} was pulled out; put it back, or use another one")),
            None => NotDone::refused(format!("switch {} has no device {device}; list its devices", self.config.name)),
        }
    }

    pub(crate) fn bind(
        &mut self,
        client: &mut Client,
        vppb: &VppbAddress,
        device: &DeviceId,
        ld_id: LdId,
    ) -> Result<(), NotDone> {
        let state = self.read_state(client)?;
        let view = self.present(device)?;
        let found = vppb_at(&state, vppb)?;
        if state.bound_to(&found) == Some((device, ld_id)) {
            return Ok(());
        }
        if found.status != BindingStatus::Unbound {
            return NotDone::refused(format!("vPPB {vppb} is {}; unbind it, or wait", described(&state, &found)));
        }
        match state.holder(&view, ld_id) {
            Holder::Nobody => {}
            Holder::Busy => return Err(NotDone::Busy(format!("device {device} is being bound or unbound"))),
            Holder::Vppb { vcs_id, vppb_id } => {
                let what = format!("{device} LD {ld_id} is bound to vPPB {vppb_id} of VCS {vcs_id}; unbind it there");
                return NotDone::refused(what);
            }
        }
        self.read_events(client)?;
        if self.contents.of(device, ld_id) != Content::Wiped {
            let what = format!("{device} LD {ld_id} may hold another host's bytes; it is bound when it is wiped");
            return NotDone::refused(what);
        }
        self.bind_used(client, vppb, device, &view, ld_id)
    }

    /// Binds a vPPB to an LD. Its guard has held. Whatever the outcome of the command is, a host may have had the LD.
    pub(crate) fn bind_used(
        &mut self,
        client: &mut Client,
        vppb: &VppbAddress,
        device: &DeviceId,
        view: &DeviceView,
        ld_id: LdId,
    ) -> Result<(), NotDone> {
        let before = self.contents.of(device, ld_id);
        self.contents.set(device, ld_id, Content::Used);
        let ld = if view.is_mld() { ld_id.0 } else { BindVppb::NO_LD };
        let (ports, vcs_id, vppb_id) = (view.ports.clone(), vppb.vcs_id.0, vppb.vppb_id.0);
        self.events.expect(OwnBind { vcs_id, vppb_id, ports, ld_id: ld });
        let outcome = bind_at_a_head(client, view, vppb, ld);
        if let Err(NotDone::Busy(_) | NotDone::Refused(_)) = outcome {
            self.contents.set(device, ld_id, before);
        }
        outcome
    }

    /// Unbinds a vPPB if it is bound to this LD. If no LD is given, as in an operator's order, unbinds it from any.
    pub(crate) fn unbind(
        &mut self,
        client: &mut Client,
        vppb: &VppbAddress,
        wanted: Option<(&DeviceId, LdId)>,
    ) -> Result<(), NotDone> {
        let state = self.read_state(client)?;
        let found = vppb_at(&state, vppb)?;
        match found.status {
            BindingStatus::Unbound => return Ok(()),
            BindingStatus::InProgress => return Err(NotDone::Busy(format!("vPPB {vppb} is being bound or unbound"))),
            _ => {}
        }
        let bound = state.bound_to(&found);
        if wanted.is_some() && wanted != bound {
            let what = described(&state, &found);
            return NotDone::refused(format!("vPPB {vppb} is {what}, which is not ours; another manager uses it"));
        }
        let unbind =
            UnbindVppb { vcs_id: vppb.vcs_id.0, vppb_id: vppb.vppb_id.0, option: UnbindOption::ManagedRemoval };
        client.unbind(&unbind)?;
        if let (Some((device, ld_id)), Wipe::OnUnbind) = (bound, self.config.wipe) {
            // The record of the unbind does not name the LD, so it raises no doubt later.
            self.contents.set(device, ld_id, Content::Wiped);
        }
        Ok(())
    }

    fn wipe(&mut self, client: &mut Client, device: &DeviceId, ld_id: LdId) -> Result<(), NotDone> {
        // Older records must not raise doubt after it was wiped.
        self.read_events(client)?;
        let state = self.read_state(client)?;
        let view = self.present(device)?;
        match state.holder(&view, ld_id) {
            Holder::Nobody => {}
            Holder::Busy => return Err(NotDone::Busy(format!("device {device} is being bound or unbound"))),
            Holder::Vppb { vcs_id, vppb_id } => {
                let what = format!("{device} LD {ld_id} is bound to vPPB {vppb_id} of VCS {vcs_id} and is not wiped");
                return NotDone::refused(format!("{what}; unbind it there"));
            }
        }
        self.sanitize(client, device, &view, ld_id)
    }

    /// Lets a device wipe an LD that is not wiped. The guard has held: nobody has it.
    pub(crate) fn sanitize(
        &mut self,
        client: &mut Client,
        device: &DeviceId,
        view: &DeviceView,
        ld_id: LdId,
    ) -> Result<(), NotDone> {
        if self.contents.of(device, ld_id) != Content::Used {
            return Ok(());
        }
        if self.config.wipe == Wipe::OnUnbind {
            self.contents.set(device, ld_id, Content::Wiped);
            return Ok(());
        }
        // Sent once, without waiting: a large device wipes for minutes, and the next rounds ask whether it is done.
        let answer = client.probe(&path_of(view, ld_id), Opcode::SANITIZE, &[])?;
        match answer.header.return_code {
            ReturnCode::SUCCESS => self.contents.set(device, ld_id, Content::Wiped),
            ReturnCode::BACKGROUND_STARTED => self.contents.set(device, ld_id, Content::Wiping),
            ReturnCode::BUSY | ReturnCode::RETRY_REQUIRED => {
                return Err(NotDone::Busy(format!("device {device} is busy; it is wiped later")));
            }
            code => {
                let remedy = "set wipe = \"on-unbind\" if its vendor says that it wipes what is unbound";
                return NotDone::refused(format!("device {device} refuses to wipe LD {ld_id} with {code}; {remedy}"));
            }
        }
        Ok(())
    }
}

/// Returns a vPPB, which must exist.
pub(crate) fn vppb_at(state: &Inventory, vppb: &VppbAddress) -> Result<Vppb, NotDone> {
    let found = state.vppb(vppb.vcs_id.0, vppb.vppb_id.0);
    found.ok_or_else(|| NotDone::Refused(format!("there is no vPPB {vppb}; list the vPPBs of its switch")))
}

/// Returns what a vPPB is bound to, in words.
fn described(state: &Inventory, vppb: &Vppb) -> String {
    match (vppb.status, state.bound_to(vppb)) {
        (BindingStatus::Unbound, _) => "not bound".into(),
        (BindingStatus::InProgress, _) => "being bound or unbound".into(),
        (_, Some((device, NO_LD))) => format!("bound to device {device}"),
        (_, Some((device, ld_id))) => format!("bound to LD {ld_id} of device {device}"),
        (_, None) => format!("bound to port {}", vppb.port_id),
    }
}

/// Binds an LD. A device can have several heads, and a head may not reach every LD, so this tries its ports in order.
fn bind_at_a_head(client: &mut Client, view: &DeviceView, vppb: &VppbAddress, ld_id: u16) -> Result<(), NotDone> {
    let mut refused = NotDone::refused("the device is at no port of the switch; connect it");
    for port_id in &view.ports {
        let bind = BindVppb { vcs_id: vppb.vcs_id.0, vppb_id: vppb.vppb_id.0, port_id: *port_id, ld_id };
        match client.bind(&bind) {
            Ok(()) => return Ok(()),
            Err(failure) if failure.return_code() == Some(ReturnCode::INVALID_INPUT) => refused = Err(failure.into()),
            Err(failure) if is_unsupported(&failure) => {
                return NotDone::refused(format!("{failure}; this switch has fixed bindings"));
            }
            Err(failure) => return Err(failure.into()),
        }
    }
    refused
}
