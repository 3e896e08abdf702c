// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The switch, its ports and its virtual switches: 51h and 52h, as far as they only read.

use aquifer_fmapi::*;
use aquifer_fmapi_client::Failure;

use super::{Step, Stop, Suite, length};

/// Bytes of Identify Switch Device's answer.
const IDENTITY_BYTES: usize = 73;
/// A port and a virtual switch that few peers have. One that has them gets the last number.
const UNKNOWN: u8 = 0x77;

/// The states of a link in which a device can be used.
const WORKING: [LinkState; 4] = [LinkState::L0, LinkState::L0s, LinkState::L1, LinkState::Recovery];

/// The cases that take the answer to Identify Switch Device.
const OF_IDENTITY: [&str; 7] =
    ["switch.counts", "ports", "ports.values", "ports.state", "ports.type", "ports.unknown", "ports.control"];

impl Suite<'_> {
    /// Makes a typed call. If it fails, the case departs, unless the command is not supported.
    pub(super) fn typed<T>(&mut self, id: &'static str, result: Result<T, Failure>) -> Result<Option<T>, Stop> {
        match result {
            Ok(value) => return Ok(Some(value)),
            Err(failure) if failure.is_fatal() => return Err(self.stop(id, failure)),
            Err(failure) if failure.return_code() == Some(ReturnCode::UNSUPPORTED) => {
                self.skip(id, format!("{} is not supported", failure.opcode));
            }
            Err(failure) => self.departs(id, failure.cause.to_string()),
        }
        Ok(None)
    }

    pub(super) fn switch(&mut self) -> Step {
        let Some(payload) = self.ask("switch", &[], Opcode::IDENTIFY_SWITCH_DEVICE, &[])? else {
            self.skip_all(&OF_IDENTITY, "Identify Switch Device is not answered");
            return Ok(());
        };
        self.judge("switch", length(&payload, IDENTITY_BYTES));
        let padded = payload.get(..IDENTITY_BYTES).unwrap_or(&payload);
        let identity = Reader::new(padded, self.dialect).read::<SwitchIdentity>();
        let Ok(switch) = identity else {
            self.skip_all(&OF_IDENTITY, "Identify Switch Device is too short");
            return Ok(());
        };
        self.judge("switch.counts", wrong_counts(&switch));
        self.switch = Some(switch);
        self.ports(&switch)?;
        let unknown = if UNKNOWN < switch.physical_ports { u8::MAX } else { UNKNOWN };
        self.unknown_port(unknown)?;
        let payload = self.client.encode(&PortControl { port_id: unknown, operation: PortOperation::ResetPpb });
        self.expect("ports.control", Opcode::PHYSICAL_PORT_CONTROL, &payload, ReturnCode::INVALID_INPUT)
    }

    fn ports(&mut self, switch: &SwitchIdentity) -> Step {
        let ids: Vec<u8> = (0..switch.physical_ports).collect();
        let states = self.client.port_states(&ids);
        let Some(ports) = self.typed("ports", states)? else {
            self.skip_all(&["ports.values", "ports.state", "ports.type"], "the ports are not listed");
            return Ok(());
        };
        self.answered.push(Opcode::GET_PHYSICAL_PORT_STATE);
        self.conforms("ports");
        self.judge("ports.values", ports.iter().find_map(wrong_values));
        let is_memory = |port: &&PortStatus| {
            port.state == PortState::Downstream
                && matches!(port.device_type, DeviceType::Type3Sld | DeviceType::Type3Mld)
                && port.device_mode != DeviceMode::NotCxl
        };
        let memory: Vec<&PortStatus> = ports.iter().filter(is_memory).collect();
        self.devices = memory.iter().map(|port| (port.port_id, port.device_type == DeviceType::Type3Mld)).collect();
        if memory.is_empty() {
            self.skip("ports.state", "no port has a memory device");
        } else {
            let asleep = memory.iter().find(|port| !WORKING.contains(&port.link_state));
            let asleep = asleep.map(|port| format!("port {} is in {:?}", port.port_id, port.link_state));
            self.judge("ports.state", asleep);
        }
        Ok(())
    }

    fn unknown_port(&mut self, unknown: u8) -> Step {
        let payload = self.client.encode(&GetPortStates { port_ids: vec![unknown] });
        let Some((code, payload)) = self.probe("ports.unknown", &[], Opcode::GET_PHYSICAL_PORT_STATE, &payload)? else {
            return Ok(());
        };
        let state = payload.get(5).map(|state| PortState::of_bits(state & 0xf));
        match (code, state) {
            (ReturnCode::SUCCESS, Some(PortState::Invalid)) => self.conforms("ports.unknown"),
            (ReturnCode::UNSUPPORTED, _) => self.skip("ports.unknown", "Get Physical Port State is not supported"),
            (ReturnCode::SUCCESS, state) => self.departs("ports.unknown", format!("port {unknown} is {state:?}")),
            (code, _) => self.departs("ports.unknown", format!("port {unknown} is answered by {code}")),
        }
        Ok(())
    }

    pub(super) fn virtual_switches(&mut self) -> Step {
        let all = ["vcs", "vcs.counts", "vcs.pieces", "vcs.unknown"];
        let Some(switch) = self.switch else {
            self.skip_all(&all, "Identify Switch Device is not answered");
            return Ok(());
        };
        let mut found = Vec::new();
        for vcs_id in 0..switch.virtual_switches {
            let read = self.client.virtual_switch(vcs_id);
            match self.typed("vcs", read)? {
                Some(read) => found.push(read),
                None => {
                    if self
                        .findings
                        .last()
                        .is_some_and(|finding| matches!(finding.verdict, super::Verdict::Skipped { .. }))
                    {
                        self.unanswered.push(Opcode::GET_VIRTUAL_SWITCH_INFO);
                    }
                    self.skip_all(&all, "the virtual switches are not listed");
                    return Ok(());
                }
            }
        }
        self.answered.push(Opcode::GET_VIRTUAL_SWITCH_INFO);
        let short = found.iter().find(|one| one.vppbs.len() != usize::from(one.vppbs_total));
        let short = short.map(|one| format!("virtual switch {} lists {} vPPBs", one.vcs_id, one.vppbs.len()));
        self.judge("vcs", short);
        // Some peers count the vPPB of each upstream port, too.
        let total: u16 = found.iter().map(|one| u16::from(one.vppbs_total)).sum();
        let with_upstream = total + found.len() as u16;
        let differs = ![total, with_upstream].contains(&switch.vppbs_total);
        self.judge("vcs.counts", differs.then(|| format!("{total} vPPBs are listed of {}", switch.vppbs_total)));
        self.pieces(found.first())?;
        let unknown = if UNKNOWN < switch.virtual_switches { u8::MAX } else { UNKNOWN };
        let get = GetVirtualSwitches { first_vppb: 0, vppbs_max: 255, vcs_ids: vec![unknown] };
        let payload = self.client.encode(&get);
        if let Some(payload) = self.ask("vcs.unknown", &[], Opcode::GET_VIRTUAL_SWITCH_INFO, &payload)? {
            let state = payload.get(5).map(|state| VcsState::of_bits(*state));
            let wrong = state != Some(VcsState::Invalid);
            self.judge("vcs.unknown", wrong.then(|| format!("virtual switch {unknown} is {state:?}")));
        }
        Ok(())
    }

    /// Checks that the second vPPB alone is the same as in the whole list.
    fn pieces(&mut self, first: Option<&VirtualSwitch>) -> Step {
        let Some(whole) = first.filter(|whole| whole.vppbs.len() > 1) else {
            self.skip("vcs.pieces", "no virtual switch has two vPPBs");
            return Ok(());
        };
        let get = GetVirtualSwitches { first_vppb: 1, vppbs_max: 1, vcs_ids: vec![whole.vcs_id] };
        let piece = self.client.call(&[], &get);
        if let Some(piece) = self.typed("vcs.pieces", piece)? {
            let is_same = piece.switches.len() == 1 && piece.switches[0].vppbs[..] == whole.vppbs[1..2];
            self.judge("vcs.pieces", (!is_same).then(|| "the second vPPB alone is another one".into()));
        }
        Ok(())
    }
}

fn wrong_counts(switch: &SwitchIdentity) -> Option<String> {
    let beyond = |bits, count: u8| SwitchIdentity::numbers(bits).find(|number| *number >= count);
    let port = beyond(&switch.active_ports, switch.physical_ports);
    let vcs = beyond(&switch.active_virtual_switches, switch.virtual_switches);
    if switch.vppbs_active > switch.vppbs_total {
        return Some(format!("{} of {} vPPBs are active", switch.vppbs_active, switch.vppbs_total));
    }
    let port = port.map(|port| format!("port {port} is active, of {}", switch.physical_ports));
    port.or(vcs.map(|vcs| format!("virtual switch {vcs} is active, of {}", switch.virtual_switches)))
}

fn wrong_values(port: &PortStatus) -> Option<String> {
    let id = port.port_id;
    if port.link_width > port.link_width_max {
        return Some(format!("port {id} has {} lanes of {}", port.link_width, port.link_width_max));
    }
    if port.link_speed > port.link_speed_max {
        return Some(format!("port {id} has speed {} of {}", port.link_speed, port.link_speed_max));
    }
    let state = matches!(PortState::of_bits(port.state.bits() & 0xf), PortState::Reserved(_) | PortState::Invalid);
    state.then(|| format!("port {id} is {:?}", port.state))
}
