// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Requests that are wrong on purpose, and change nothing whatever the peer makes of them.

use aquifer_fmapi::*;

use super::{Step, Suite};

/// An opcode of the FM API's last set that no revision has.
const NO_OPCODE: Opcode = Opcode(0x56ff);
/// A virtual switch and a port that do not exist; the case is left out for a peer that has them.
const NOWHERE: u8 = 0xee;

impl Suite<'_> {
    pub(super) fn wrong(&mut self) -> Step {
        if let Some((code, _)) = self.probe("unsupported", &[], NO_OPCODE, &[])? {
            let is_other = code != ReturnCode::UNSUPPORTED;
            self.judge("unsupported", is_other.then(|| format!("{NO_OPCODE} is answered by {code}")));
        }
        // Sends commands that have no payload with one byte, and commands that need a payload without it.
        let without = [
            Opcode::IDENTIFY,
            Opcode::BACKGROUND_STATUS,
            Opcode::GET_MESSAGE_LIMIT,
            Opcode::GET_EVENT_INTERRUPT_POLICY,
            Opcode::GET_SUPPORTED_LOGS,
            Opcode::IDENTIFY_SWITCH_DEVICE,
        ];
        self.lengths("length.long", &without, &[0])?;
        let with = [
            Opcode::GET_EVENT_RECORDS,
            Opcode::GET_LOG,
            Opcode::GET_PHYSICAL_PORT_STATE,
            Opcode::GET_VIRTUAL_SWITCH_INFO,
            Opcode::TUNNEL,
        ];
        self.lengths("length.short", &with, &[])?;
        self.tunnels()?;
        self.bindings()
    }

    /// Checks that the peer refuses each of these commands with this payload, if it answers the command at all.
    fn lengths(&mut self, id: &'static str, opcodes: &[Opcode], payload: &[u8]) -> Step {
        let answered: Vec<Opcode> = opcodes.iter().copied().filter(|it| self.answered.contains(it)).collect();
        let mut wrong = Vec::new();
        for opcode in &answered {
            let Some((code, _)) = self.probe(id, &[], *opcode, payload)? else { return Ok(()) };
            if code != ReturnCode::INVALID_PAYLOAD_LENGTH {
                wrong.push(format!("{opcode} by {code}"));
            }
        }
        match answered.is_empty() {
            true => self.skip(id, "none of the commands is answered"),
            false => self.judge(id, (!wrong.is_empty()).then(|| format!("answered: {}", wrong.join(", ")))),
        }
        Ok(())
    }

    fn tunnels(&mut self) -> Step {
        let ports = self.switch.map_or(0, |switch| switch.physical_ports);
        if !self.answered.contains(&Opcode::TUNNEL) || ports > NOWHERE {
            self.skip_all(&["tunnel.unknown", "tunnel.short"], "no tunnel leads to a device");
            return Ok(());
        }
        let message = Message::request(0, &Request::Identify(Identify {}), self.dialect).encode(self.dialect);
        let tunnel = |port_or_ld_id, message| Tunnel { port_or_ld_id, target: TunnelTarget::PortOrLd, message };
        let payload = self.client.encode(&tunnel(NOWHERE, message.clone()));
        self.expect("tunnel.unknown", Opcode::TUNNEL, &payload, ReturnCode::INVALID_INPUT)?;
        let port = self.devices.first().map_or(0, |(port, _)| *port);
        let payload = self.client.encode(&tunnel(port, message[..4].to_vec()));
        if let Some((code, _)) = self.probe("tunnel.short", &[], Opcode::TUNNEL, &payload)? {
            let is_taken = code == ReturnCode::SUCCESS;
            self.judge("tunnel.short", is_taken.then(|| "a message of 4 bytes is answered".into()));
        }
        Ok(())
    }

    fn bindings(&mut self) -> Step {
        let switches = self.switch.map_or(0, |switch| switch.virtual_switches);
        if switches > NOWHERE {
            self.skip_all(&["bind.unknown", "unbind.unknown"], "the peer has more than 238 virtual switches");
            return Ok(());
        }
        let bind = BindVppb { vcs_id: NOWHERE, vppb_id: 0, port_id: NOWHERE, ld_id: BindVppb::NO_LD };
        let payload = self.client.encode(&bind);
        self.expect("bind.unknown", Opcode::BIND_VPPB, &payload, ReturnCode::INVALID_INPUT)?;
        let unbind = UnbindVppb { vcs_id: NOWHERE, vppb_id: 0, option: UnbindOption::ManagedRemoval };
        let payload = self.client.encode(&unbind);
        self.expect("unbind.unknown", Opcode::UNBIND_VPPB, &payload, ReturnCode::INVALID_INPUT)
    }
}
