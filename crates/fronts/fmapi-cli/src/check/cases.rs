// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The table of cases: the requirements on a peer, each with its section of CXL 3.1. `../check.rs` has the order in
//! which they are tried.
//!
//! Sections and tables are those of CXL 3.1.

/// One test of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its name in reports.
    pub id: &'static str,
    /// The section of the specification.
    pub section: &'static str,
    /// What the specification requires, in a line.
    pub title: &'static str,
}

macro_rules! cases {
    ($($id:literal $section:literal $title:literal;)*) => {
        /// Every case, in the order of the report.
        pub const CASES: &[Case] = &[$(Case { id: $id, section: $section, title: $title },)*];
    };
}

cases! {
    "header.category" "figure 7-19" "the category is in bits 3:0 of the first byte";
    "header.length" "figure 7-19" "the length is in bits 20:0, the background flag in bit 23";
    "header.opcode" "figure 7-19" "an answer repeats the request's opcode";
    "identify" "8.2.9.1.1" "Identify is answered by 18 bytes, with a component type";
    "identify.switch" "8.2.9.1.1" "the component type is that of a switch";
    "background-status" "8.2.9.1.2" "Background Operation Status is answered by 8 bytes";
    "message-limit" "8.2.9.1.3" "Get Response Message Limit is between 256 bytes and 1 MiB";
    "events" "8.2.9.2.2" "Get Event Records lists records of 128 bytes, for each log";
    "interrupt-policy" "8.2.9.2.4" "Get Event Interrupt Policy is answered by 5 bytes";
    "mctp-policy" "8.2.9.2.6" "Get MCTP Event Interrupt Policy is answered by 2 bytes";
    "timestamp" "8.2.9.4.1" "Get Timestamp is answered by 8 bytes";
    "logs" "8.2.9.5.1" "Get Supported Logs lists the command effects log";
    "effects" "8.2.9.5.2" "Get Log returns the command effects log, each command once";
    "effects.complete" "8.2.9.5.2.1" "every command that is answered is in the command effects log";
    "effects.true" "8.2.9.5.2.1" "every command of the command effects log is answered";
    "unsupported" "table 8-34" "an opcode that does not exist is Unsupported (0003h)";
    "length.long" "8.2.9" "a request with a byte too many is refused with Invalid Payload Length (0016h)";
    "length.short" "8.2.9" "a request with a byte too few is refused with Invalid Payload Length (0016h)";
    "switch" "7.6.7.1.1" "Identify Switch Device is answered by 73 bytes";
    "switch.counts" "7.6.7.1.1" "its counts and its bit maps agree";
    "ports" "7.6.7.1.2" "Get Physical Port State lists the ports that were asked for, in order";
    "ports.values" "7.6.7.1.2" "links have no more lanes and speed than their ports can have";
    "ports.state" "7.6.7.1.2" "the link of a connected CXL device is in a state in which it works";
    "ports.type" "7.6.7.1.2" "a device that is reported as an MLD answers Get LD Info";
    "ports.unknown" "7.6.7.1.2" "a port that does not exist is reported as invalid (fh) in its own block";
    "ports.control" "7.6.7.1.3" "Physical Port Control of a port that does not exist is refused with Invalid Input";
    "vcs" "7.6.7.2.1" "Get Virtual CXL Switch Info lists each virtual switch with its vPPBs";
    "vcs.counts" "7.6.7.2.1" "the vPPBs add up to what Identify Switch Device reports";
    "vcs.pieces" "7.6.7.2.1" "a list of vPPBs can be read in pieces";
    "vcs.unknown" "7.6.7.2.1" "a virtual switch that does not exist is reported as invalid (ffh) in its own block";
    "bind.unknown" "7.6.7.2.2" "binding at a virtual switch that does not exist is refused with Invalid Input";
    "unbind.unknown" "7.6.7.2.3" "unbinding at a virtual switch that does not exist is refused with Invalid Input";
    "bind" "7.6.7.2.2" "a bind goes on in the background, with the flag set, and the vPPB is then bound";
    "bind.second" "7.6.7.2.2" "a second logical device of the same port can be bound";
    "unbind" "7.6.7.2.3" "an unbind ends, and the vPPB is then unbound";
    "tunnel" "7.6.7.3.1" "a command in a tunnel is answered by the device at the port";
    "tunnel.unknown" "7.6.7.3.1" "a tunnel to a port that does not exist is refused with Invalid Input";
    "tunnel.short" "7.6.7.3.1" "a tunnel with less than a message is refused";
    "tunnel.format" "7.6.7.3.1" "the tunnelled message follows its size, without a message type";
    "lds" "7.6.7.4.1" "an MLD answers Get LD Info with 11 bytes";
    "lds.direct" "7.6.7.4" "the switch itself does not answer the commands of an MLD";
    "lds.allocations" "7.6.7.4.2" "Get LD Allocations lists as many as Get LD Info counts, within the memory";
    "qos" "7.6.7.4.4" "Get QoS Control has percentages from 1 to 100, in order";
    "capacity" "7.6.7.6.1" "a device with dynamic capacity answers Get DCD Info with 84 bytes";
    "capacity.regions" "7.6.7.6.2" "its regions have whole blocks, and do not overlap";
    "capacity.extents" "7.6.7.6.4" "its extents are in its regions, in whole blocks, and do not overlap";
}

/// Returns the case with this name.
pub fn case(id: &str) -> Option<&'static Case> {
    CASES.iter().find(|case| case.id == id)
}
