// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Binds and unbinds, if the suite may change something: at vPPBs that are unbound, and devices that are bound nowhere.

use aquifer_fmapi::*;
use aquifer_fmapi_client::{Cause, Hop};

use super::{LATE, Step, Stop, Suite, UNDO_TIME_MAX};

const ALL: [&str; 3] = ["bind", "bind.second", "unbind"];

/// What can be bound: vPPBs, and targets behind one port: two, if any port has two.
struct Free {
    vppbs: Vec<(u8, u8)>,
    targets: Vec<(u8, u16)>,
}

/// What is left of a bind after an attempt to unbind it.
struct Left {
    is_unbound: bool,
    text: String,
}

impl Left {
    fn unbound(text: &str) -> Self {
        Self { is_unbound: true, text: text.into() }
    }
}

impl Suite<'_> {
    pub(super) fn bind_and_unbind(&mut self) -> Step {
        if !self.may_change {
            self.skip_all(&ALL, "it would change the switch; allow it with --change");
            return Ok(());
        }
        let free = self.free();
        if self.client.now() >= self.end_at {
            return Err(Stop::Late);
        }
        let (Some((vcs_id, vppb_id)), Some((port_id, ld_id))) =
            (free.vppbs.first().copied(), free.targets.first().copied())
        else {
            let what = if free.vppbs.is_empty() { "no vPPB is unbound" } else { "no device with memory is unbound" };
            self.skip_all(&ALL, what);
            return Ok(());
        };
        let bind = BindVppb { vcs_id, vppb_id, port_id, ld_id };
        let ended = self.bind_both(&bind, &free);
        if let Err(Stop::Late) = ended {
            let left = self.undo(&bind)?;
            self.skip_all(&ALL, &format!("{LATE}; {}", left.text));
        }
        ended
    }

    /// Binds one and then two, and unbinds both. At the limit of time, the first may still be bound.
    fn bind_both(&mut self, bind: &BindVppb, free: &Free) -> Step {
        if !self.bind_first(bind)? {
            let left = self.undo(bind)?;
            self.skip_all(&ALL, &left.text);
            return Ok(());
        }
        match (free.vppbs.get(1), free.targets.get(1)) {
            (Some((vcs_id, vppb_id)), Some((port_id, ld_id))) => {
                let second = BindVppb { vcs_id: *vcs_id, vppb_id: *vppb_id, port_id: *port_id, ld_id: *ld_id };
                self.bind_second(&second)?;
            }
            (None, _) => self.skip("bind.second", "no virtual switch has two vPPBs that are unbound"),
            (_, None) => self.skip("bind.second", "no port has two logical devices with memory that are unbound"),
        }
        let unbound = self.client.unbind(&unbind(bind));
        if self.is_judged("unbind") {
            // The second one could not be unbound, which the report says.
            return unbound.or_else(|failure| if failure.is_fatal() { Err(failure.into()) } else { Ok(()) });
        }
        if self.typed("unbind", unbound)?.is_some() {
            self.conforms("unbind");
        }
        Ok(())
    }

    /// Binds a second logical device, and unbinds it.
    fn bind_second(&mut self, second: &BindVppb) -> Step {
        let bound = self.client.bind(second);
        let judged = self.typed("bind.second", bound);
        if let Err(Stop::Ended(failure)) = judged {
            return Err(Stop::Ended(failure));
        }
        let left = self.undo(second)?;
        if !left.is_unbound {
            let id = if self.is_judged("bind.second") { "unbind" } else { "bind.second" };
            self.departs(id, left.text);
        } else if let Ok(Some(())) = judged {
            self.conforms("bind.second");
        }
        judged.map(drop)
    }

    /// Unbinds what a bind may have bound, whatever its answer was, also after the suite's limit of time.
    fn undo(&mut self, bind: &BindVppb) -> Result<Left, Stop> {
        self.client.end_by(self.end_at.max(self.client.now() + UNDO_TIME_MAX));
        // The bind may still be going on. A peer that does not say so is asked for the vPPB.
        let _ = self.client.wait_for_background();
        let vppb =
            self.client.virtual_switch(bind.vcs_id).map(|read| read.vppbs.get(usize::from(bind.vppb_id)).copied());
        let left = match vppb {
            Ok(Some(Vppb { status: BindingStatus::Unbound, .. })) => Ok(Left::unbound("nothing is bound")),
            _ => self.unbind_again(bind),
        };
        self.client.end_by(self.end_at);
        left
    }

    fn unbind_again(&mut self, bind: &BindVppb) -> Result<Left, Stop> {
        match self.client.unbind(&unbind(bind)) {
            Ok(()) => Ok(Left::unbound("what was bound is unbound again")),
            Err(failure) if failure.is_fatal() && !matches!(failure.cause, Cause::TooSlow) => Err(failure.into()),
            Err(failure) => {
                let (vppb, vcs) = (bind.vppb_id, bind.vcs_id);
                let text = format!("vPPB {vppb} of virtual switch {vcs} may still be bound: {failure}");
                Ok(Left { is_unbound: false, text })
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

    /// Returns what is unbound: vPPBs of one virtual switch, so that they are one host's, and targets.
    fn free(&mut self) -> Free {
        let (mut vppbs, mut bound) = (Vec::new(), Vec::new());
        for vcs_id in 0..self.switch.map_or(0, |switch| switch.virtual_switches) {
            let Ok(read) = self.client.virtual_switch(vcs_id) else { continue };
            for (vppb_id, vppb) in read.vppbs.iter().enumerate() {
                match vppb.status {
                    BindingStatus::Unbound if read.state == VcsState::Enabled => vppbs.push((vcs_id, vppb_id as u8)),
                    BindingStatus::Port => bound.push((vppb.port_id, BindVppb::NO_LD)),
                    BindingStatus::Ld => bound.push((vppb.port_id, vppb.ld_id.into())),
                    _ => {}
                }
            }
        }
        let first = vppbs.first().map(|(vcs_id, _)| *vcs_id);
        vppbs.retain(|(vcs_id, _)| Some(*vcs_id) == first);
        Free { vppbs, targets: self.targets(&bound) }
    }

    /// Returns unbound targets: logical devices of one port first, because two of them can be tried.
    fn targets(&mut self, bound: &[(u8, u16)]) -> Vec<(u8, u16)> {
        let mut sorted = self.devices.clone();
        sorted.sort_by_key(|(port, is_mld)| (!is_mld, *port));
        let mut best = Vec::new();
        for (port, is_mld) in sorted {
            let targets = if is_mld { self.lds_with_memory(port) } else { vec![BindVppb::NO_LD] };
            let targets = targets.into_iter().map(|ld_id| (port, ld_id)).filter(|it| !bound.contains(it));
            let targets: Vec<(u8, u16)> = targets.collect();
            if targets.len() > 1 {
                return targets;
            }
            if best.is_empty() {
                best = targets;
            }
        }
        best
    }

    /// Returns the logical devices that can be bound: those with memory. Of a device that does not say how much they
    /// have, all.
    fn lds_with_memory(&mut self, port: u8) -> Vec<u16> {
        let path = [Hop::Port(port)];
        if let Ok(list) = self.client.ld_allocations(&path) {
            let lds = (0..).zip(&list.allocations);
            return lds.filter(|(_, has)| has.range_1 > 0 || has.range_2 > 0).map(|(ld_id, _)| ld_id).collect();
        }
        let count = self.client.ld_capabilities(&path).map_or(0, |it| it.ld_count);
        (0..count).collect()
    }
}

fn unbind(bound: &BindVppb) -> UnbindVppb {
    UnbindVppb { vcs_id: bound.vcs_id, vppb_id: bound.vppb_id, option: UnbindOption::ManagedRemoval }
}
