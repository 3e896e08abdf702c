// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Binds and unbinds, if the suite may change something: at vPPBs that are unbound, and devices that are bound nowhere.

use aquifer_fmapi::*;
use aquifer_fmapi_client::Hop;

use super::{Step, Stop, Suite};

const ALL: [&str; 3] = ["bind", "bind.second", "unbind"];

/// What can be bound: vPPBs, and two targets behind one port, or one.
struct Free {
    vppbs: Vec<(u8, u8)>,
    targets: Vec<(u8, u16)>,
}

impl Suite<'_> {
    pub(super) fn bind_and_unbind(&mut self) -> Step {
        if !self.may_change {
            self.skip_all(&ALL, "it would change the switch; allow it with --change");
            return Ok(());
        }
        let free = self.free();
        let (Some((vcs_id, vppb_id)), Some((port_id, ld_id))) =
            (free.vppbs.first().copied(), free.targets.first().copied())
        else {
            self.skip_all(&ALL, "no vPPB, or no device, is unbound");
            return Ok(());
        };
        let bind = BindVppb { vcs_id, vppb_id, port_id, ld_id };
        if !self.bind_first(&bind)? {
            let left = self.undo(&bind)?;
            self.skip_all(&ALL, &left);
            return Ok(());
        }
        match (free.vppbs.get(1), free.targets.get(1)) {
            (Some((vcs_id, vppb_id)), Some((port_id, ld_id))) => {
                let second = BindVppb { vcs_id: *vcs_id, vppb_id: *vppb_id, port_id: *port_id, ld_id: *ld_id };
                let bound = self.client.bind(&second);
                if self.typed("bind.second", bound)?.is_some() {
                    self.conforms("bind.second");
                }
                self.undo(&second)?;
            }
            _ => self.skip("bind.second", "no port has two logical devices that are unbound"),
        }
        let unbound = self.client.unbind(&unbind(&bind));
        if self.typed("unbind", unbound)?.is_some() {
            self.conforms("unbind");
        }
        Ok(())
    }

    /// Unbinds what a bind may have bound, whatever its answer was. Returns what is left of it.
    fn undo(&mut self, bind: &BindVppb) -> Result<String, Stop> {
        // The bind may still be going on. A peer that does not say so is asked for the vPPB.
        let _ = self.client.wait_for_background();
        let vppb =
            self.client.virtual_switch(bind.vcs_id).map(|read| read.vppbs.get(usize::from(bind.vppb_id)).copied());
        if let Ok(Some(Vppb { status: BindingStatus::Unbound, .. })) = vppb {
            return Ok("nothing was bound".into());
        }
        match self.client.unbind(&unbind(bind)) {
            Ok(()) => Ok("what was bound is unbound again".into()),
            Err(failure) if failure.is_fatal() => Err(Stop::Ended(failure)),
            Err(failure) => {
                let (vppb, vcs) = (bind.vppb_id, bind.vcs_id);
                Ok(format!("vPPB {vppb} of virtual switch {vcs} may still be bound: {failure}"))
            }
        }
    }

    /// Binds, and checks each step. Returns whether the vPPB is bound as it was to be. Otherwise it may be bound, too.
    fn bind_first(&mut self, bind: &BindVppb) -> Result<bool, Stop> {
        let payload = self.client.encode(bind);
        let answer = self.client.probe(&[], Opcode::BIND_VPPB, &payload);
        let Some(answer) = self.typed("bind", answer)? else { return Ok(false) };
        let code = answer.header.return_code;
        let mut wrong = None;
        match code {
            ReturnCode::BACKGROUND_STARTED if !answer.header.is_background => {
                wrong = Some("it goes on in the background, and the flag is not set".to_owned());
            }
            ReturnCode::BACKGROUND_STARTED => {}
            ReturnCode::SUCCESS => wrong = Some("it is done at once, not in the background".into()),
            ReturnCode::UNSUPPORTED => {
                self.skip("bind", "Bind vPPB is not supported");
                return Ok(false);
            }
            code => {
                self.departs("bind", format!("an unbound vPPB and device are refused with {code}"));
                return Ok(false);
            }
        }
        let status = self.client.wait_for_background();
        let Some(status) = self.typed("bind", status)? else { return Ok(false) };
        let ended = ReturnCode(status.return_code);
        if status.is_running || (code == ReturnCode::BACKGROUND_STARTED && ended != ReturnCode::SUCCESS) {
            self.departs("bind", format!("the background operation is at {} %, with {ended}", status.percent));
            return Ok(false);
        }
        let read = self.client.virtual_switch(bind.vcs_id);
        let Some(read) = self.typed("bind", read)? else { return Ok(true) };
        let vppb = read.vppbs.get(usize::from(bind.vppb_id)).copied().unwrap_or_default();
        let is_bound = matches!(vppb.status, BindingStatus::Port | BindingStatus::Ld) && vppb.port_id == bind.port_id;
        if !is_bound {
            wrong = Some(format!("the vPPB is then {:?}, at port {}", vppb.status, vppb.port_id));
        }
        self.judge("bind", wrong);
        Ok(is_bound)
    }

    /// Returns unbound targets: logical devices of one port first, because two of them can be tried.
    fn free(&mut self) -> Free {
        let mut free = Free { vppbs: Vec::new(), targets: Vec::new() };
        let mut bound = Vec::new();
        for vcs_id in 0..self.switch.map_or(0, |switch| switch.virtual_switches) {
            let Ok(read) = self.client.virtual_switch(vcs_id) else { continue };
            for (vppb_id, vppb) in read.vppbs.iter().enumerate() {
                match vppb.status {
                    BindingStatus::Unbound if read.state == VcsState::Enabled => {
                        free.vppbs.push((vcs_id, vppb_id as u8));
                    }
                    BindingStatus::Port => bound.push((vppb.port_id, BindVppb::NO_LD)),
                    BindingStatus::Ld => bound.push((vppb.port_id, vppb.ld_id.into())),
                    _ => {}
                }
            }
        }
        // The vPPBs of one virtual switch, so that both are the same host's.
        let first = free.vppbs.first().map(|(vcs_id, _)| *vcs_id);
        free.vppbs.retain(|(vcs_id, _)| Some(*vcs_id) == first);
        let mut sorted = self.devices.clone();
        sorted.sort_by_key(|(port, is_mld)| (!is_mld, *port));
        for (port, is_mld) in sorted {
            let lds = match is_mld {
                true => self.client.ld_capabilities(&[Hop::Port(port)]).map_or(0, |it| it.ld_count),
                false => 0,
            };
            let targets = if is_mld { (0..lds).collect() } else { vec![BindVppb::NO_LD] };
            free.targets = targets.into_iter().map(|ld_id| (port, ld_id)).filter(|it| !bound.contains(it)).collect();
            if !free.targets.is_empty() {
                return free;
            }
        }
        free
    }
}

fn unbind(bound: &BindVppb) -> UnbindVppb {
    UnbindVppb { vcs_id: bound.vcs_id, vppb_id: bound.vppb_id, option: UnbindOption::ManagedRemoval }
}
