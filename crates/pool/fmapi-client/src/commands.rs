// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Typed calls to a switch. Every other command of the FM API goes through [`Client::call`].
//!
//! A bind and an unbind are judged by the state that follows: the answer of either may be lost, and the status of a
//! background operation may be another manager's.

use aquifer_fmapi::*;

use crate::client::Client;
use crate::failure::{Cause, Effect, Failure};
use crate::tunnel::Hop;

/// Bytes of a port's state, of a vPPB, and of what precedes them in a message.
const PORT_BYTES: usize = 16;
const VPPB_BYTES: usize = 4;
const FIXED_BYTES: usize = HEADER_BYTES + 8;
/// Bytes of an event record; the records of one message are at most 255, because a byte counts them when they are
/// cleared.
const RECORDS_MAX: usize = 255;
/// Maximum number of bytes of the command effects log that are read: four for each opcode.
const EFFECTS_BYTES_MAX: u32 = 4 << 16;

/// What was read of an event log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogContents {
    /// The records, oldest first.
    pub records: Vec<EventRecord>,
    /// How many records the component has lost because the log was full.
    pub lost: u16,
}

impl Client {
    /// Sends Identify (0001h).
    pub fn identify(&mut self, path: &[Hop]) -> Result<Identity, Failure> {
        self.call(path, &Identify {})
    }

    /// Sends Identify Switch Device (5100h).
    pub fn identify_switch(&mut self) -> Result<SwitchIdentity, Failure> {
        self.call(&[], &IdentifySwitch {})
    }

    /// Sends Background Operation Status (0002h).
    pub fn background_status(&mut self) -> Result<BackgroundStatus, Failure> {
        self.call(&[], &GetBackgroundStatus {})
    }

    /// Sends Get Physical Port State (5101h) of any number of ports.
    pub fn port_states(&mut self, port_ids: &[u8]) -> Result<Vec<PortStatus>, Failure> {
        let mut ports = Vec::new();
        for some in port_ids.chunks(self.entries(PORT_BYTES)) {
            let answer = self.call(&[], &GetPortStates { port_ids: some.to_vec() })?;
            let listed: Vec<u8> = answer.ports.iter().map(|port| port.port_id).collect();
            if listed != some {
                return Err(self.inconsistent(GetPortStates::OPCODE, format!("ports {listed:?} for {some:?}")));
            }
            ports.extend(answer.ports);
        }
        Ok(ports)
    }

    /// Sends Physical Port Control (5102h).
    pub fn control_port(&mut self, port_id: u8, operation: PortOperation) -> Result<(), Failure> {
        self.run(&[], &PortControl { port_id, operation })
    }

    /// Sends Get Virtual CXL Switch Info (5200h) of one virtual switch, with all its vPPBs.
    pub fn virtual_switch(&mut self, vcs_id: u8) -> Result<VirtualSwitch, Failure> {
        let vppbs_max = self.entries(VPPB_BYTES).min(u8::MAX.into()) as u8;
        let mut whole: Option<VirtualSwitch> = None;
        for _ in 0..self.limits.pieces {
            let first_vppb = whole.as_ref().map_or(0, |whole| whole.vppbs.len() as u8);
            let mut answer = self.call(&[], &GetVirtualSwitches { first_vppb, vppbs_max, vcs_ids: vec![vcs_id] })?;
            let Some(piece) = answer.switches.pop().filter(|one| one.vcs_id == vcs_id && answer.switches.is_empty())
            else {
                let what = format!("it does not list virtual switch {vcs_id} alone");
                return Err(self.inconsistent(GetVirtualSwitches::OPCODE, what));
            };
            let listed = piece.vppbs.len();
            let whole = match &mut whole {
                None => whole.insert(piece),
                Some(whole) => {
                    whole.vppbs.extend(piece.vppbs);
                    whole
                }
            };
            if listed == 0 || whole.vppbs.len() >= whole.vppbs_total.into() {
                return Ok(whole.clone());
            }
        }
        Err(self.inconsistent(GetVirtualSwitches::OPCODE, "the list of vPPBs does not end".into()))
    }

    /// Sends Bind vPPB (5201h): waits for the operation to end, then checks that the vPPB is bound.
    pub fn bind(&mut self, bind: &BindVppb) -> Result<(), Failure> {
        let ended = self.run(&[], bind);
        self.confirm(BindVppb::OPCODE, (bind.vcs_id, bind.vppb_id), ended, |vppb| {
            let ld_id = if bind.ld_id == BindVppb::NO_LD { u16::from(Vppb::NO_LD) } else { bind.ld_id };
            let is_bound = matches!(vppb.status, BindingStatus::Port | BindingStatus::Ld);
            let is_same_ld = vppb.status == BindingStatus::Port || u16::from(vppb.ld_id) == ld_id;
            is_bound && vppb.port_id == bind.port_id && is_same_ld
        })
    }

    /// Sends Unbind vPPB (5202h): waits for the operation to end, then checks that the vPPB is unbound.
    pub fn unbind(&mut self, unbind: &UnbindVppb) -> Result<(), Failure> {
        let ended = self.run(&[], unbind);
        self.confirm(UnbindVppb::OPCODE, (unbind.vcs_id, unbind.vppb_id), ended, |vppb| {
            vppb.status == BindingStatus::Unbound
        })
    }

    /// Reads the state of the vPPB if the end of a command does not show its effect.
    fn confirm(
        &mut self,
        opcode: Opcode,
        (vcs_id, vppb_id): (u8, u8),
        ended: Result<(), Failure>,
        is_done: impl Fn(&Vppb) -> bool,
    ) -> Result<(), Failure> {
        // The operation that failed may be another manager's, which came after ours.
        let is_certain = |failure: &Failure| {
            failure.effect == Effect::NotCarriedOut && !matches!(failure.cause, Cause::BackgroundFailed(_))
        };
        let (failed, settled) = match ended {
            Err(failure) if is_certain(&failure) || failure.is_fatal() => return Err(failure),
            Err(failure) => (Some(failure), self.settled(opcode)),
            Ok(()) => (None, Ok(())),
        };
        let state = settled.and_then(|()| self.virtual_switch(vcs_id));
        let vppb = match (state, failed) {
            (Ok(switch), None) => switch.vppbs.get(usize::from(vppb_id)).copied(),
            (Ok(switch), Some(failed)) => {
                let vppb = switch.vppbs.get(usize::from(vppb_id)).copied();
                return if vppb.is_some_and(|vppb| is_done(&vppb)) { Ok(()) } else { Err(failed) };
            }
            (Err(_), Some(failed)) => return Err(Failure { effect: Effect::Unknown, ..failed }),
            (Err(failure), None) => return Err(Failure { opcode, effect: Effect::Unknown, ..failure }),
        };
        match vppb {
            Some(vppb) if is_done(&vppb) => Ok(()),
            found => {
                let found = match found {
                    Some(vppb) => format!("vPPB {vppb_id} of virtual switch {vcs_id} is {:?}", vppb.status),
                    None => format!("virtual switch {vcs_id} does not list vPPB {vppb_id}"),
                };
                Err(self.failure(opcode, Cause::NotConfirmed { found }, Effect::Unknown))
            }
        }
    }

    /// Waits until no background operation runs, after a command whose answer was lost and which may have started one.
    fn settled(&mut self, opcode: Opcode) -> Result<(), Failure> {
        self.unfinished = Some(Vec::new());
        self.finish_unfinished(&[], opcode)
    }

    /// Sends Generate AER Event (5203h).
    pub fn generate_aer(&mut self, event: &GenerateAerEvent) -> Result<(), Failure> {
        self.run(&[], event)
    }

    /// Returns the records of a log (0100h), oldest first; `clear` clears what was read (0101h), and reads on until the
    /// log is empty.
    pub fn events(&mut self, path: &[Hop], log: EventLog, clear: bool) -> Result<LogContents, Failure> {
        let mut contents = LogContents::default();
        self.read_events(path, log, clear, &mut contents).map(|()| contents)
    }

    /// Works like [`Client::events`]. After a failure, `contents` has what was read before: records that were cleared
    /// are nowhere else.
    pub fn read_events(
        &mut self,
        path: &[Hop],
        log: EventLog,
        clear: bool,
        contents: &mut LogContents,
    ) -> Result<(), Failure> {
        for _ in 0..self.limits.pieces {
            let mut piece = self.call(path, &GetEventRecords { log })?;
            let is_cut = piece.records.len() > RECORDS_MAX;
            piece.records.truncate(RECORDS_MAX);
            if piece.has_overflowed() {
                // A peer that does not count them has lost at least one.
                contents.lost = contents.lost.max(piece.overflow_count).max(1);
            }
            let is_last = !piece.has_more() && !is_cut;
            let handles: Vec<u16> = piece.records.iter().map(|it| it.handle).collect();
            contents.records.extend(piece.records);
            if clear && !handles.is_empty() {
                self.run(path, &ClearEventRecords { log, flags: 0, handles })?;
            }
            // Without clearing, the same records would be read again.
            if is_last || !clear {
                return Ok(());
            }
        }
        Err(self.inconsistent(GetEventRecords::OPCODE, "the log does not become empty".into()))
    }

    /// Returns the commands that a component reports as supported: its command effects log (0400h, 0401h).
    pub fn command_effects(&mut self, path: &[Hop]) -> Result<Vec<CommandEffect>, Failure> {
        let logs = self.call(path, &GetSupportedLogs {})?;
        let Some(log) = logs.logs.iter().find(|log| log.uuid == GetLog::COMMAND_EFFECTS) else {
            return Err(self.inconsistent(GetSupportedLogs::OPCODE, "it lists no command effects log".into()));
        };
        let (log_bytes, step) = (log.log_bytes.min(EFFECTS_BYTES_MAX), self.entries(1) as u32 / 4 * 4);
        let mut whole = LogBytes::default();
        for offset in (0..log_bytes).step_by(step as usize) {
            let length = step.min(log_bytes - offset);
            let piece = self.call(path, &GetLog { uuid: GetLog::COMMAND_EFFECTS, offset, length })?;
            whole.bytes.extend(piece.bytes);
        }
        Ok(whole.command_effects())
    }

    /// Returns the number of list entries that fit into one message, with room for two tunnels.
    pub(crate) fn entries(&self, entry_bytes: usize) -> usize {
        const TUNNELS_BYTES: usize = 2 * (HEADER_BYTES + 4);
        (self.message_bytes_max.saturating_sub(FIXED_BYTES + TUNNELS_BYTES) / entry_bytes).clamp(1, u16::MAX.into())
    }

    pub(crate) fn inconsistent(&self, opcode: Opcode, what: String) -> Failure {
        self.failure(opcode, Cause::Inconsistent { what }, Effect::NotCarriedOut)
    }
}
