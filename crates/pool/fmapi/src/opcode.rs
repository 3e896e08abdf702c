// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A command's number: command set in the high byte, command in the low one.

use std::fmt;

/// An opcode. The table of those that this crate knows is in `command.rs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opcode(pub u16);

impl Opcode {
    /// Returns the command set.
    pub fn set(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Returns true for the sets of the fabric-manager API, sent as MCTP message type 7; the others are sent as type 8.
    pub fn is_fabric_manager(self) -> bool {
        (0x51..=0x56).contains(&self.set())
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({:04x}h)", self.0),
            None => write!(f, "{:04x}h", self.0),
        }
    }
}
