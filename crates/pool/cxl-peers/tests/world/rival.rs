// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Another manager at the same switch, with its own host. It takes what is free, writes its stamp and reads it
//! back; it lets go; and at times it takes what is ours. What it lets go of, it leaves unwiped. It acts between our
//! steps.

use aquifer_cxl_switch::{Connection, HostAction};
use aquifer_fmapi::*;

use super::agent::act;
use super::{DCD, DCD_MIB, MLD, MLD_LDS, RIVAL_VCS, World, wire};

const RIVAL: Connection = Connection { id: 0, ingress_port_id: 0, dialect: &Dialect::STANDARD };
const STAMP: [u8; 16] = [0xee; 16];
/// How long a bind takes, and more.
const BIND: std::time::Duration = std::time::Duration::from_millis(30);

impl World {
    fn ask(&mut self, request: &Request) -> Option<Response> {
        let now_ns = aquifer_fmapi_client::Clock::now(&*self.clock).as_nanos() as u64;
        let mut state = wire::lock(&self.shared);
        let bytes = Message::request(1, request, RIVAL.dialect).encode(RIVAL.dialect);
        let mut outcome = state.switch.receive(now_ns, &RIVAL, &bytes);
        let reply = outcome.replies.pop();
        state.take(now_ns, outcome);
        let message = Message::decode(&reply?.bytes, RIVAL.dialect).ok()?;
        (message.header.return_code.0 < 2).then(|| Response::decode(request, &message.payload, RIVAL.dialect).ok())?
    }

    /// Lets the switch's operation end.
    fn wait(&mut self) {
        aquifer_fmapi_client::Clock::sleep(&*self.clock, BIND);
        let now_ns = self.clock.now_ns();
        let mut state = wire::lock(&self.shared);
        let outcome = state.switch.advance(now_ns);
        state.take(now_ns, outcome);
        drop(state);
        let status = self.ask(&Request::GetBackgroundStatus(GetBackgroundStatus {}));
        if matches!(status, Some(Response::GetBackgroundStatus(status)) if status.is_running) {
            self.ask(&Request::AbortBackground(AbortBackground {}));
        }
    }

    /// Lets the rival give up what it had of a device that was pulled out.
    pub fn rival_gives_up(&mut self, port_id: u8) {
        let of_port = self.rival_has.iter().filter(|(_, (of, _))| *of == port_id);
        let of_port: Vec<(u8, u8)> = of_port.map(|(vppb, _)| *vppb).collect();
        for vppb in of_port {
            self.rival_has.remove(&vppb);
            self.unbind_for_rival(vppb);
        }
    }

    /// Lets the rival give everything up, including what it has forgotten. An operation may fail first.
    pub fn rival_leaves(&mut self) {
        for _ in 0..3 {
            for (vcs_id, vppb_id) in self.rival_tried.clone() {
                let vppb = self.vppbs(vcs_id).get(usize::from(vppb_id)).copied().unwrap_or_default();
                let is_bound = matches!(vppb.status, BindingStatus::Port | BindingStatus::Ld);
                let ld_id = if vppb.ld_id == Vppb::NO_LD { BindVppb::NO_LD } else { vppb.ld_id.into() };
                if is_bound && !self.is_wanted((vcs_id, vppb_id), (vppb.port_id, ld_id)) {
                    self.unbind_for_rival((vcs_id, vppb_id));
                }
            }
        }
        self.rival_has.clear();
    }

    fn vppbs(&mut self, vcs_id: u8) -> Vec<Vppb> {
        let get = GetVirtualSwitches { first_vppb: 0, vppbs_max: 255, vcs_ids: vec![vcs_id] };
        match self.ask(&Request::GetVirtualSwitches(get)) {
            Some(Response::GetVirtualSwitches(mut answer)) => {
                answer.switches.pop().map(|vcs| vcs.vppbs).unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }

    /// Lets the rival act, at times.
    pub fn let_rival_act(&mut self) {
        match self.random.below(10) {
            0 | 1 => self.rival_binds(RIVAL_VCS),
            2 => self.rival_lets_go(),
            3 if self.random.one_in(3) => self.rival_steals(),
            4 => self.rival_uses_capacity(),
            _ => {}
        }
        if self.random.one_in(2) {
            self.rival_reads_the_logs();
        }
    }

    /// Reads the records of the switch and of the device with dynamic capacity, and clears all but the newest one of
    /// each log: ours may not have read them.
    fn rival_reads_the_logs(&mut self) {
        for log in (0..4).map(EventLog::of_bits) {
            let Some(Response::GetEventRecords(mut read)) =
                self.ask(&Request::GetEventRecords(GetEventRecords { log }))
            else {
                continue;
            };
            read.records.truncate(255);
            // The hardest case that can be told: our bookmark has gone.
            read.records.pop();
            let handles: Vec<u16> = read.records.iter().map(|record| record.handle).collect();
            if !handles.is_empty() {
                self.ask(&Request::ClearEventRecords(ClearEventRecords { log, flags: 0, handles }));
            }
        }
        let log = EventLog::DynamicCapacity;
        let read = self.ask_dcd(&Request::GetEventRecords(GetEventRecords { log }));
        let Some(Response::GetEventRecords(mut read)) = read else { return };
        read.records.pop();
        let handles: Vec<u16> = read.records.iter().map(|record| record.handle).take(255).collect();
        if !handles.is_empty() {
            self.ask_dcd(&Request::ClearEventRecords(ClearEventRecords { log, flags: 0, handles }));
        }
    }

    /// Binds a free target at a vPPB of this virtual switch, and writes to it.
    fn rival_binds(&mut self, vcs_id: u8) {
        let port_id = self.random.below(3) as u8;
        let ld_id = if port_id == MLD { self.random.below(MLD_LDS) as u16 } else { BindVppb::NO_LD };
        self.rival_binds_to((port_id, ld_id), vcs_id);
    }

    /// Binds this target at a vPPB of this virtual switch, and writes to it. Returns whether the rival has it then.
    fn rival_binds_to(&mut self, (port_id, ld_id): (u8, u16), vcs_id: u8) -> bool {
        let free = self.vppbs(vcs_id).iter().position(|vppb| vppb.status == BindingStatus::Unbound);
        let Some(vppb_id) = free.map(|at| at as u8) else { return false };
        // What the rival binds exactly as our manager would is the manager's: nobody can tell the two apart.
        if self.is_wanted((vcs_id, vppb_id), (port_id, ld_id)) {
            return false;
        }
        self.rival_tried.insert((vcs_id, vppb_id));
        self.ask(&Request::BindVppb(BindVppb { vcs_id, vppb_id, port_id, ld_id }));
        self.wait();
        let bound = self.vppbs(vcs_id).get(usize::from(vppb_id)).copied().unwrap_or_default();
        if matches!(bound.status, BindingStatus::Port | BindingStatus::Ld) && bound.port_id == port_id {
            // What is bound to our hosts, only they can write.
            let write = match vcs_id {
                RIVAL_VCS => HostAction::Write { address: 0, bytes: STAMP.to_vec() },
                _ => HostAction::Read { address: 0, bytes: STAMP.len() },
            };
            match act(&self.shared, self.clock.now_ns(), (vcs_id, vppb_id), &write) {
                Ok(_) => drop(self.rival_has.insert((vcs_id, vppb_id), (port_id, ld_id))),
                Err(_) => self.unbind_for_rival((vcs_id, vppb_id)),
            }
        }
        self.rival_has.contains_key(&(vcs_id, vppb_id))
    }

    /// Sends a command to the device with dynamic capacity.
    fn ask_dcd(&mut self, request: &Request) -> Option<Response> {
        let message = Message::request(1, request, RIVAL.dialect).encode(RIVAL.dialect);
        let tunnel = Tunnel { port_or_ld_id: DCD, target: TunnelTarget::PortOrLd, message };
        let Some(Response::Tunnel(answer)) = self.ask(&Request::Tunnel(tunnel)) else { return None };
        let message = Message::decode(&answer.message, RIVAL.dialect).ok()?;
        (message.header.return_code.0 < 2).then(|| Response::decode(request, &message.payload, RIVAL.dialect).ok())?
    }

    /// While nobody has dynamic capacity, connects the rival's host to the device. It writes to all members' places and
    /// to the memory besides, gives the capacity back unwiped, and may stay connected.
    fn rival_uses_capacity(&mut self) {
        let list = self.ask_dcd(&Request::DcListTags(DcListTags { first: 0, count: 1 }));
        if !matches!(list, Some(Response::DcListTags(tags)) if tags.total == 0) {
            return;
        }
        for vcs_id in 0..=RIVAL_VCS {
            let is_it = |vppb: &Vppb| vppb.status == BindingStatus::Port && vppb.port_id == DCD;
            if let Some(vppb_id) = self.vppbs(vcs_id).iter().position(is_it) {
                let (vppb_id, option) = (vppb_id as u8, UnbindOption::SurpriseRemoval);
                self.ask(&Request::UnbindVppb(UnbindVppb { vcs_id, vppb_id, option }));
                self.wait();
                self.rival_has.remove(&(vcs_id, vppb_id));
            }
        }
        if !self.rival_binds_to((DCD, BindVppb::NO_LD), RIVAL_VCS) {
            return;
        }
        let set = |sanitize_on_release| SetDcRegion { region_id: 0, block_bytes: 2 << 20, sanitize_on_release };
        self.ask_dcd(&Request::SetDcRegion(set(0)));
        let (host_id, length, tag) = (0, DCD_MIB << 20, STAMP);
        let add = InitiateDcAdd { host_id, policy: add_policy::FREE, length, tag, ..InitiateDcAdd::default() };
        self.ask_dcd(&Request::InitiateDcAdd(add));
        let given = wire::lock(&self.shared).given.get(&(DCD.into(), tag)).copied();
        let vppb = self.rival_has.iter().find(|(_, (port_id, _))| *port_id == DCD).map(|(vppb, _)| *vppb);
        if let (Some(start), Some(vppb)) = (given, vppb) {
            for address in (start..start + length).step_by(256 << 20) {
                let _ =
                    act(&self.shared, self.clock.now_ns(), vppb, &HostAction::Write { address, bytes: STAMP.to_vec() });
            }
        }
        let release = InitiateDcRelease { host_id, length, tag, ..InitiateDcRelease::default() };
        self.ask_dcd(&Request::InitiateDcRelease(release));
        if self.random.one_in(2) {
            self.ask_dcd(&Request::SetDcRegion(set(1)));
        }
        if let Some(vppb) = vppb.filter(|_| self.random.one_in(2)) {
            self.unbind_for_rival(vppb);
        }
    }

    fn rival_lets_go(&mut self) {
        let all: Vec<(u8, u8)> = self.rival_has.keys().copied().collect();
        if all.is_empty() {
            return;
        }
        let one = self.random.one_of(&all);
        self.unbind_for_rival(one);
    }

    pub fn unbind_for_rival(&mut self, (vcs_id, vppb_id): (u8, u8)) {
        // One of our hosts may have found memory there that our manager had bound elsewhere.
        let bound = self.vppbs(vcs_id).get(usize::from(vppb_id)).copied().filter(|_| vcs_id != RIVAL_VCS);
        self.excused.extend(bound.map(|vppb| (vppb.port_id, vppb.ld_id)));
        self.ask(&Request::UnbindVppb(UnbindVppb { vcs_id, vppb_id, option: UnbindOption::SurpriseRemoval }));
        self.wait();
        let state = self.vppbs(vcs_id).get(usize::from(vppb_id)).map(|vppb| vppb.status);
        if state == Some(BindingStatus::Unbound) {
            self.rival_has.remove(&(vcs_id, vppb_id));
        }
    }

    /// Unbinds one of our vPPBs, and binds something of its own there.
    fn rival_steals(&mut self) {
        let vcs_id = self.random.below(2) as u8;
        let is_ours = |vppb: &Vppb| matches!(vppb.status, BindingStatus::Port | BindingStatus::Ld);
        let vppbs = self.vppbs(vcs_id);
        let Some(at) = vppbs.iter().position(is_ours) else { return };
        let (vppb_id, taken) = (at as u8, vppbs[at]);
        if self.rival_has.contains_key(&(vcs_id, vppb_id)) {
            return;
        }
        self.excused.insert((taken.port_id, taken.ld_id));
        self.unbind_for_rival((vcs_id, vppb_id));
        self.stolen += 1;
        // What is bound to our hosts is adopted after the state was lost, even if the rival has bound it.
        if self.random.one_in(2) && !self.has_lost_state {
            self.rival_binds(vcs_id);
        }
    }

    /// Returns whether a member of a volume is to be bound there, or was.
    fn is_wanted(&self, vppb: (u8, u8), target: (u8, u16)) -> bool {
        let members = self.desired.volumes.values().flat_map(|volume| {
            let leaving = volume.leaving.values().map(|leaving| &leaving.member);
            volume.places().map(|(_, member)| member).chain(leaving)
        });
        let is_it = |member: &aquifer_fabric::Member| {
            let bound = member.vppb.as_ref().map(|vppb| (vppb.vcs_id.0, vppb.vppb_id.0));
            let aquifer_fabric::Source::LogicalDevice { ld_id, .. } = &member.source else { return false };
            let port_id = self.index_of(&member.source).map(|(index, _)| index as u8);
            bound == Some(vppb) && port_id == Some(target.0) && ld_id.0 == target.1
        };
        members.into_iter().any(is_it)
    }

    /// Takes from the rival what it has bound to our hosts exactly as our manager has decided since then: the manager
    /// had not seen it yet, and now nobody can tell whose bind it was.
    pub fn rival_loses_what_is_wanted(&mut self) {
        let all: Vec<_> = self.rival_has.iter().map(|(vppb, target)| (*vppb, *target)).collect();
        let wanted = all.into_iter().filter(|(vppb, target)| self.is_wanted(*vppb, *target));
        let wanted: Vec<(u8, u8)> = wanted.map(|(vppb, _)| vppb).collect();
        self.rival_has.retain(|vppb, _| !wanted.contains(vppb));
    }

    /// Lets the rival let go of what it has bound to our hosts.
    pub fn rival_leaves_our_hosts(&mut self) {
        let ours: Vec<(u8, u8)> = self.rival_has.keys().filter(|(vcs_id, _)| *vcs_id != RIVAL_VCS).copied().collect();
        ours.into_iter().for_each(|vppb| self.unbind_for_rival(vppb));
        // What it could not unbind is adopted like everything else.
        self.rival_has.retain(|(vcs_id, _), _| *vcs_id == RIVAL_VCS);
    }

    /// Checks that what the rival has stays bound and keeps its bytes, unless its device was pulled out.
    pub fn check_rival(&mut self) -> Result<(), String> {
        let all: Vec<_> = self.rival_has.iter().map(|(vppb, target)| (*vppb, *target)).collect();
        for (vppb, (port_id, ld_id)) in all {
            let read =
                act(&self.shared, self.clock.now_ns(), vppb, &HostAction::Read { address: 0, bytes: STAMP.len() });
            let is_down = read.as_ref().is_err_and(|why| why.contains("link"));
            let is_good = read.as_ref().is_ok_and(|bytes| vppb.0 != RIVAL_VCS || *bytes == STAMP);
            if !is_down && !is_good {
                return Err(format!("the rival has lost LD {ld_id} of port {port_id} at vPPB {vppb:?}: {read:?}"));
            }
        }
        Ok(())
    }
}
