// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Known departures of some peers: they are reported, and do not fail a check. Sources: QEMU's
//! hw/cxl/cxl-mailbox-utils.c and recordings of version 10.0.2; OpenCIS's opencis-core of June 2025; Jackrabbit's fmapi
//! and cse of April 2024.

/// A departure of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The name of the peer's dialect.
    pub dialect: &'static str,
    /// The id of the case.
    pub case: &'static str,
    /// What it does, and why.
    pub what: &'static str,
}

const fn departure(dialect: &'static str, case: &'static str, what: &'static str) -> Departure {
    Departure { dialect, case, what }
}

/// All known departures.
pub const DEPARTURES: &[Departure] = &[
    departure("QEMU", "timestamp", "Get Timestamp and Set Timestamp abort the process, so they are never sent"),
    departure("QEMU", "effects.true", "the log lists Get Timestamp and Set Timestamp, which abort the process"),
    departure("QEMU", "ports.state", "every link is reported in L2 (7), because the field holds another number"),
    departure("QEMU", "ports.type", "every memory device is reported as an MLD with three logical devices"),
    departure("QEMU", "ports.unknown", "one unknown port refuses the whole request with Invalid Input"),
    departure("OpenCIS", "header.opcode", "answers have opcode 0"),
    departure("OpenCIS", "lds.direct", "the switch answers 54h itself, for the port in its transport header"),
    departure(
        "Jackrabbit",
        "header.category",
        "the category is in bits 7:4, as in CXL 2.0's figure read from the left",
    ),
    departure("Jackrabbit", "header.length", "the flag is in bit 0 of byte 7, the length above it"),
    departure("Jackrabbit", "identify", "17 bytes without the component type, as CXL 2.0 has it"),
    departure("Jackrabbit", "identify.switch", "there is no component type, as CXL 2.0 has it"),
    departure("Jackrabbit", "switch", "93 bytes, of which 73 are meant"),
    departure("Jackrabbit", "tunnel.format", "a message type precedes the tunnelled message, as CXL 2.0 has it"),
    departure("Jackrabbit", "interrupt-policy", "4 bytes, as CXL 2.0 has it"),
    departure("Jackrabbit", "bind.second", "a port is bound once, whatever its device is"),
];

/// Returns the known departure of a dialect in a case.
pub fn known(dialect: &str, case: &str) -> Option<&'static str> {
    DEPARTURES.iter().find(|it| it.dialect == dialect && it.case == case).map(|it| it.what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_departure_is_one_of_a_case_and_a_dialect() {
        for departure in DEPARTURES {
            assert!(crate::check::case(departure.case).is_some(), "{departure:?}");
            let dialect = aquifer_fmapi::Dialect::named(departure.dialect).expect("a dialect");
            assert_eq!(dialect.name, departure.dialect);
            assert_eq!(known(departure.dialect, departure.case), Some(departure.what), "given once");
        }
    }
}
