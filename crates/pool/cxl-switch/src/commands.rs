// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Lists which commands each component answers, and what each command changes: the command effects log (CEL).
//!
//! | component | command sets |
//! |---|---|
//! | the switch | 00h, 01h, 03h, 04h, 51h, 52h, 53h |
//! | an SLD or a PCIe device | 00h, 01h, 03h, 04h; 40h, 44h and 53h if memory; 56h if DCD |
//! | the FM-owned LD of an MLD | 00h, 01h, 03h, 04h, 53h, 54h; 56h if DCD |
//! | a logical device | Identify, 04h, 40h, 44h |
//! | the LD pool of a multi-headed device | Identify, 04h; 54h if MLD; 55h |
//!
//! A driven switch answers fewer: those that its driver can carry out.

use aquifer_fmapi::Opcode;

/// What a command changes: the bits of the command effect in an entry of the log (CXL 3.1, table 8-75).
const NOTHING: u16 = 0;
const COLD_RESET: u16 = 1 << 0;
const CONFIGURATION: u16 = 1 << 1;
const DATA: u16 = 1 << 2;
const POLICY: u16 = 1 << 3;
const LOG: u16 = 1 << 4;
const BACKGROUND: u16 = 1 << 6;
const CAN_ABORT: u16 = 1 << 8;
/// Bit 9 says that bits 10 and 11 are valid, and both are set.
const RESETS: u16 = 1 << 9 | 1 << 10 | 1 << 11;
/// Everything that the FM API's setters change.
const SETTING: u16 = COLD_RESET | CONFIGURATION | RESETS;

type Lines = &'static [(Opcode, u16)];

const IDENTIFY: Lines = &[(Opcode::IDENTIFY, NOTHING)];
const BACKGROUND_STATUS: Lines = &[(Opcode::BACKGROUND_STATUS, NOTHING)];
const MESSAGE_LIMIT: Lines = &[(Opcode::GET_MESSAGE_LIMIT, NOTHING), (Opcode::SET_MESSAGE_LIMIT, CONFIGURATION)];
const ABORT: Lines = &[(Opcode::ABORT_BACKGROUND, NOTHING)];
const EVENTS: Lines = &[
    (Opcode::GET_EVENT_RECORDS, NOTHING),
    (Opcode::CLEAR_EVENT_RECORDS, LOG),
    (Opcode::GET_EVENT_INTERRUPT_POLICY, NOTHING),
    (Opcode::SET_EVENT_INTERRUPT_POLICY, POLICY),
];
const NOTIFICATIONS: Lines = &[(Opcode::GET_MCTP_EVENT_POLICY, NOTHING), (Opcode::SET_MCTP_EVENT_POLICY, POLICY)];
const TIMESTAMP: Lines = &[(Opcode::GET_TIMESTAMP, NOTHING), (Opcode::SET_TIMESTAMP, POLICY)];
const LOGS: Lines =
    &[(Opcode::GET_SUPPORTED_LOGS, NOTHING), (Opcode::GET_LOG, NOTHING), (Opcode::GET_LOG_CAPABILITIES, NOTHING)];
const MEMORY: Lines = &[(Opcode::IDENTIFY_MEMORY_DEVICE, NOTHING), (Opcode::SANITIZE, DATA | RESETS)];
const SWITCH: Lines = &[
    (Opcode::IDENTIFY_SWITCH_DEVICE, NOTHING),
    (Opcode::GET_PHYSICAL_PORT_STATE, NOTHING),
    (Opcode::PHYSICAL_PORT_CONTROL, NOTHING),
    (Opcode::SEND_PPB_CONFIGURATION_REQUEST, NOTHING),
    (Opcode::GET_VCS_DOMAIN_SV_STATE, NOTHING),
    (Opcode::GET_DOMAIN_SV, NOTHING),
    (Opcode::GET_VIRTUAL_SWITCH_INFO, NOTHING),
    (Opcode::BIND_VPPB, BACKGROUND | CAN_ABORT),
    (Opcode::UNBIND_VPPB, BACKGROUND | CAN_ABORT),
    (Opcode::GENERATE_AER_EVENT, NOTHING),
];
const TUNNEL: Lines = &[(Opcode::TUNNEL, NOTHING)];
const LD_REQUESTS: Lines =
    &[(Opcode::SEND_LD_CONFIGURATION_REQUEST, NOTHING), (Opcode::SEND_LD_MEMORY_REQUEST, NOTHING)];
const DRIVEN_SWITCH: Lines = &[
    (Opcode::IDENTIFY_SWITCH_DEVICE, NOTHING),
    (Opcode::GET_PHYSICAL_PORT_STATE, NOTHING),
    (Opcode::GET_VIRTUAL_SWITCH_INFO, NOTHING),
    (Opcode::BIND_VPPB, BACKGROUND),
    (Opcode::UNBIND_VPPB, BACKGROUND),
];
const ALLOCATIONS: Lines = &[
    (Opcode::GET_LD_INFO, NOTHING),
    (Opcode::GET_LD_ALLOCATIONS, NOTHING),
    (Opcode::SET_LD_ALLOCATIONS, SETTING | DATA),
];
const MLD: Lines = &[
    (Opcode::GET_LD_INFO, NOTHING),
    (Opcode::GET_LD_ALLOCATIONS, NOTHING),
    (Opcode::SET_LD_ALLOCATIONS, SETTING | DATA),
    (Opcode::GET_QOS_CONTROL, NOTHING),
    (Opcode::SET_QOS_CONTROL, SETTING),
    (Opcode::GET_QOS_STATUS, NOTHING),
    (Opcode::GET_QOS_ALLOCATED_BW, NOTHING),
    (Opcode::SET_QOS_ALLOCATED_BW, SETTING),
    (Opcode::GET_QOS_BW_LIMIT, NOTHING),
    (Opcode::SET_QOS_BW_LIMIT, SETTING),
];
const HEADS: Lines = &[(Opcode::GET_MULTI_HEADED_INFO, NOTHING), (Opcode::GET_HEAD_INFO, NOTHING)];
const CAPACITY: Lines = &[
    (Opcode::GET_DCD_INFO, NOTHING),
    (Opcode::GET_HOST_DC_REGIONS, NOTHING),
    (Opcode::SET_DC_REGION, SETTING | DATA),
    (Opcode::GET_DC_EXTENT_LISTS, NOTHING),
    (Opcode::INITIATE_DC_ADD, SETTING | DATA),
    (Opcode::INITIATE_DC_RELEASE, SETTING | DATA),
    (Opcode::DC_ADD_REFERENCE, SETTING),
    (Opcode::DC_REMOVE_REFERENCE, SETTING),
    (Opcode::DC_LIST_TAGS, NOTHING),
];

/// The commands that one component answers.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    lines: Vec<(Opcode, u16)>,
}

impl Commands {
    /// Returns the commands of the switch.
    pub fn of_switch() -> Self {
        let sets = [IDENTIFY, BACKGROUND_STATUS, MESSAGE_LIMIT, ABORT, EVENTS, NOTIFICATIONS, TIMESTAMP, LOGS];
        Self::concat(&[&sets[..], &[SWITCH, TUNNEL, LD_REQUESTS]].concat())
    }

    /// Returns the commands of a driven switch: its ports and hosts are simulated, so nothing acts on them, and what
    /// its driver has begun is not aborted.
    pub fn of_driven_switch() -> Self {
        let sets = [IDENTIFY, BACKGROUND_STATUS, MESSAGE_LIMIT, EVENTS, NOTIFICATIONS, TIMESTAMP, LOGS];
        Self::concat(&[&sets[..], &[DRIVEN_SWITCH, TUNNEL]].concat())
    }

    /// Returns the commands of the FM-owned LD of an MLD in a driven switch.
    pub fn of_driven_mld() -> Self {
        Self::concat(&[IDENTIFY, MESSAGE_LIMIT, EVENTS, TIMESTAMP, LOGS, TUNNEL, ALLOCATIONS])
    }

    /// Returns the commands of a logical device in a driven switch.
    pub fn of_driven_ld() -> Self {
        Self::concat(&[IDENTIFY, LOGS, &[(Opcode::IDENTIFY_MEMORY_DEVICE, NOTHING)]])
    }

    /// Returns the commands of a device.
    pub fn of_device(is_memory: bool, is_mld: bool, has_capacity: bool) -> Self {
        let mut sets = vec![IDENTIFY, MESSAGE_LIMIT, EVENTS, TIMESTAMP, LOGS];
        // In an MLD, the FM-owned LD has no memory; the other logical devices have.
        let more = [(is_memory && !is_mld, MEMORY), (is_memory, TUNNEL), (is_mld, MLD), (has_capacity, CAPACITY)];
        sets.extend(more.iter().filter(|(has, _)| *has).map(|(_, set)| *set));
        Self::concat(&sets)
    }

    /// Returns the commands of a logical device.
    pub fn of_ld() -> Self {
        Self::concat(&[IDENTIFY, LOGS, MEMORY])
    }

    /// Returns the commands of the LD pool of a multi-headed device.
    pub fn of_pool(is_mld: bool) -> Self {
        Self::concat(&[IDENTIFY, LOGS, if is_mld { MLD } else { &[] }, HEADS])
    }

    fn concat(sets: &[Lines]) -> Self {
        Self { lines: sets.concat() }
    }

    /// Returns whether a command is answered.
    pub fn has(&self, opcode: Opcode) -> bool {
        self.lines.iter().any(|(known, _)| *known == opcode)
    }

    /// Returns the log's bytes: four for each command.
    pub fn log(&self) -> Vec<u8> {
        let line = |(opcode, effect): &(Opcode, u16)| [opcode.0.to_le_bytes(), effect.to_le_bytes()].concat();
        self.lines.iter().flat_map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_in_order_of_opcodes_and_list_each_once() {
        for commands in [
            Commands::of_switch(),
            Commands::of_device(true, true, true),
            Commands::of_device(true, false, true),
            Commands::of_device(false, false, false),
            Commands::of_ld(),
            Commands::of_driven_switch(),
            Commands::of_driven_mld(),
            Commands::of_driven_ld(),
            Commands::of_pool(true),
        ] {
            assert!(commands.lines.is_sorted_by(|(one, _), (next, _)| one < next), "{commands:?}");
            assert_eq!(commands.log().len(), 4 * commands.lines.len());
        }
    }
}
