// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Describes as data how a peer writes what peers disagree about.
//!
//! | # | what differs | field |
//! |---|---|---|
//! | 1 | which half of the first byte is the category | `category` |
//! | 2, 3 | where the background flag and the high bits of the length are; 20 or 21 bits of length | `length` |
//! | 4 | Send LD CXL.io Memory Request has 15 or 16 bytes before its data | `ld_memory_request_is_short` |
//! | 5 | a tunnelled message begins with its MCTP message type | `tunnel_has_message_type` |
//! | 6 | Identify's answer ends before the component type | both lengths are read |
//! | 7 | Identify Switch Device's answer is longer than its fields | `switch_identity_is_padded` |
//! | 8 | a list of ports is padded to 256 bytes | `port_list_is_padded` |
//! | 9 | how many vPPBs are in an answer | known from the request |
//! | 10 | an answer has opcode 0 | `answers_with_opcode_zero` |
//! | 11 | Set LD Allocations is answered by the new list | all agree |
//! | 12 | what byte 3 of Initiate Dynamic Capacity Release is | zero |
//! | 13 | the event interrupt policy has 4 or 5 bytes | `interrupt_policy_is_short` |
//! | 14 | a second logical device of a port cannot be bound | `binds_one_ld_of_a_port` |
//! | 15 | Get Host DC Region Configuration's answer always has eight regions | `host_regions_are_padded` |
//! | 16 | Set MCTP Event Interrupt Policy's answer is empty | `mctp_policy_is_not_echoed` |
//! | 17 | Identify's answer may have 14 bytes, with four of the serial number's eight | `identify_may_be_short` |

use crate::opcode::Opcode;

/// Where the category is in the first byte of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CategoryBits {
    /// Bits 3:0, as CXL 3.1 figure 7-19 has it.
    Low,
    /// Bits 7:4 of the byte.
    High,
}

/// Where the background flag is in byte 7 of a header, and the high bits of the payload's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LengthBits {
    /// Length in bits 4:0, flag in bit 7.
    Standard,
    /// Length in bits 7:3, flag in bit 0.
    Reversed,
}

/// How a peer writes the fields on which implementations differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// The name of the peer, for traces.
    pub name: &'static str,
    /// Where the category is; see the table.
    pub category: CategoryBits,
    /// Where the background flag and the high bits of the length are; see the table.
    pub length: LengthBits,
    /// Whether LD memory requests have 15 bytes before their data, and not 16; see the table.
    pub ld_memory_request_is_short: bool,
    /// Whether a tunnelled message has its type before it; see the table.
    pub tunnel_has_message_type: bool,
    /// Whether Identify Switch Device's answer is longer than its fields; see the table.
    pub switch_identity_is_padded: bool,
    /// Whether lists of ports are padded to 256 bytes; see the table.
    pub port_list_is_padded: bool,
    /// Whether answers have opcode 0; see the table.
    pub answers_with_opcode_zero: bool,
    /// Whether the event interrupt policy has four bytes, and not five; see the table.
    pub interrupt_policy_is_short: bool,
    /// Whether a second logical device of a port cannot be bound; see the table.
    pub binds_one_ld_of_a_port: bool,
    /// Whether Get Host DC Region Configuration's answer always has eight regions; see the table.
    pub host_regions_are_padded: bool,
    /// Whether Set MCTP Event Interrupt Policy's answer is empty; see the table.
    pub mctp_policy_is_not_echoed: bool,
    /// Whether Identify's answer may lack the high half of the serial number; see the table.
    pub identify_may_be_short: bool,
    /// How long the peer needs after Physical Port Control (5102h) before it takes another command, in milliseconds.
    pub port_control_gap_ms: u16,
    /// Opcodes that must not be sent, because they crash the peer.
    pub never_sent: &'static [Opcode],
}

/// What is known of a peer once it has answered Identify (0001h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentifyAnswer<'a> {
    /// The opcode in the header of the answer.
    pub opcode: Opcode,
    /// The first byte of the answer.
    pub first_byte: u8,
    /// The payload of the answer.
    pub payload: &'a [u8],
}

/// PCI vendor of QEMU's switch and of its type-3 devices (Huawei's and Intel's numbers).
const QEMU_SWITCH_VENDOR: u16 = 0x19e5;
const QEMU_SWITCH_DEVICE: u16 = 0xa128;

impl Dialect {
    /// The dialect of revision 3.1 of the specification.
    pub const STANDARD: Self = Self {
        name: "standard",
        category: CategoryBits::Low,
        length: LengthBits::Standard,
        ld_memory_request_is_short: false,
        tunnel_has_message_type: false,
        switch_identity_is_padded: false,
        port_list_is_padded: false,
        answers_with_opcode_zero: false,
        interrupt_policy_is_short: false,
        binds_one_ld_of_a_port: false,
        host_regions_are_padded: false,
        mctp_policy_is_not_echoed: false,
        identify_may_be_short: false,
        port_control_gap_ms: 0,
        never_sent: &[],
    };

    /// QEMU's switch. Its command effects log lists the timestamp commands, and both abort QEMU 10.0. It holds PERST#
    /// for 100 ms, and meanwhile answers other operations with Internal Error.
    pub const QEMU: Self = Self {
        name: "QEMU",
        port_control_gap_ms: 100,
        never_sent: &[Opcode::GET_TIMESTAMP, Opcode::SET_TIMESTAMP],
        ..Self::STANDARD
    };

    /// libcxlmi, which asks rather than answers.
    pub const LIBCXLMI: Self = Self {
        name: "libcxlmi",
        ld_memory_request_is_short: true,
        host_regions_are_padded: true,
        mctp_policy_is_not_echoed: true,
        ..Self::STANDARD
    };

    /// OpenCIS's switch and fabric manager. The commands of an MLD are for the device at the port that the frame names;
    /// for the switch itself, which port 0 means, they end its process.
    pub const OPENCIS: Self = Self {
        name: "OpenCIS",
        port_list_is_padded: true,
        answers_with_opcode_zero: true,
        identify_may_be_short: true,
        never_sent: &[Opcode::GET_LD_INFO, Opcode::GET_LD_ALLOCATIONS, Opcode::SET_LD_ALLOCATIONS],
        ..Self::STANDARD
    };

    /// Jackrabbit Labs' switch emulator and its client, written to CXL 2.0.
    pub const JACKRABBIT: Self = Self {
        name: "Jackrabbit",
        category: CategoryBits::High,
        length: LengthBits::Reversed,
        tunnel_has_message_type: true,
        switch_identity_is_padded: true,
        interrupt_policy_is_short: true,
        binds_one_ld_of_a_port: true,
        ..Self::STANDARD
    };

    /// Returns the dialect with this name, in any case.
    pub fn named(name: &str) -> Option<&'static Self> {
        static ALL: [Dialect; 5] = Dialect::ALL;
        ALL.iter().find(|dialect| dialect.name.eq_ignore_ascii_case(name))
    }

    /// All dialects that this crate knows.
    pub const ALL: [Self; 5] = [Self::STANDARD, Self::QEMU, Self::LIBCXLMI, Self::OPENCIS, Self::JACKRABBIT];

    /// Chooses the dialect of the peer that answered Identify.
    pub fn of(answer: &IdentifyAnswer<'_>) -> &'static Self {
        const CHOICES: [Dialect; 5] = Dialect::ALL;
        static STATIC: [Dialect; 5] = CHOICES;
        let word = |at: usize| answer.payload.get(at..at + 2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
        let index = if answer.first_byte & 0xf == 0 && answer.first_byte >> 4 == 1 {
            4
        } else if answer.opcode == Opcode(0) {
            3
        } else if word(0) == Some(QEMU_SWITCH_VENDOR) && word(2) == Some(QEMU_SWITCH_DEVICE) {
            1
        } else {
            0
        };
        &STATIC[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dialect_follows_from_the_answer_to_identify() {
        let qemu = [0xe5, 0x19, 0x28, 0xa1, 0, 0, 0, 0, 0xd2, 4, 0, 0, 0, 0, 0, 0, 9, 0];
        let of = |opcode, first_byte, payload| Dialect::of(&IdentifyAnswer { opcode, first_byte, payload }).name;
        assert_eq!(of(Opcode(1), 1, &qemu[..]), "QEMU");
        assert_eq!(of(Opcode(1), 1, &[0; 18]), "standard");
        assert_eq!(of(Opcode(0), 1, &[0; 18]), "OpenCIS");
        assert_eq!(of(Opcode(1), 0x10, &[0; 17]), "Jackrabbit");
        assert_eq!(of(Opcode(1), 1, &[]), "standard");
        assert_eq!(Dialect::named("qemu"), Some(&Dialect::QEMU));
        assert_eq!(Dialect::named("esperanto"), None);
    }
}
