// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Known departures of some peers: they are reported, and do not fail a check. Sources: QEMU's
//! hw/cxl/cxl-mailbox-utils.c and recordings of version 10.0.2; recordings of OpenCIS's opencis-core of June 2025 and
//! of Jackrabbit's cse of April 2024, which `tests/golden/README.md` describes, and their sources.

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

/// What Jackrabbit's emulator does with commands that it does not know.
const UNANSWERED: &str = "a command that it does not know is not answered";

/// All known departures.
pub const DEPARTURES: &[Departure] = &[
    departure("QEMU", "timestamp", "Get Timestamp and Set Timestamp abort the process, so they are never sent"),
    departure("QEMU", "effects.true", "the log lists Get Timestamp and Set Timestamp, which abort the process"),
    departure("QEMU", "ports.state", "every link is reported in L2 (7), because the field holds another number"),
    departure("QEMU", "ports.type", "every memory device is reported as an MLD with three logical devices"),
    departure("QEMU", "ports.unknown", "one unknown port refuses the whole request with Invalid Input"),
    departure("OpenCIS", "header.opcode", "answers have opcode 0"),
    departure("OpenCIS", "identify", "14 bytes: the serial number has four bytes"),
    departure("OpenCIS", "identify.switch", "there is no byte 17, because the answer is too short"),
    departure("OpenCIS", "background-status", "until the first operation, one of no command runs, at 0 %"),
    departure("OpenCIS", "length.long", "bytes after the fields are ignored"),
    departure("OpenCIS", "length.short", "a request that is too short is an Internal Error"),
    departure("OpenCIS", "ports.unknown", "one unknown port refuses the whole request with Invalid Input"),
    departure("OpenCIS", "vcs.unknown", "one unknown virtual switch refuses the whole request with Invalid Input"),
    departure("OpenCIS", "bind.unknown", "a bind is started before its virtual switch is looked up"),
    departure("OpenCIS", "unbind.unknown", "an unbind is started before its virtual switch is looked up"),
    departure("OpenCIS", "lds.direct", "54h for the switch itself ends its process, so it is never sent"),
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
    departure("Jackrabbit", "tunnel", "a command that the device does not know is answered by zeros"),
    departure("Jackrabbit", "capacity", "a command that the device does not know is answered by an earlier header"),
    departure("Jackrabbit", "events", UNANSWERED),
    departure("Jackrabbit", "interrupt-policy", UNANSWERED),
    departure("Jackrabbit", "mctp-policy", UNANSWERED),
    departure("Jackrabbit", "timestamp", UNANSWERED),
    departure("Jackrabbit", "logs", UNANSWERED),
    departure("Jackrabbit", "unsupported", UNANSWERED),
    departure("Jackrabbit", "lds.direct", UNANSWERED),
    departure("Jackrabbit", "length.long", "bytes after the fields are ignored"),
    departure("Jackrabbit", "length.short", "an empty request for a list is answered by an empty list"),
    departure("Jackrabbit", "ports.unknown", "a port that does not exist is left out of the list"),
    departure("Jackrabbit", "vcs.pieces", "a list that begins at a later vPPB has zeros in place of it"),
    departure("Jackrabbit", "vcs.unknown", "a virtual switch that does not exist is left out of the list"),
    departure("Jackrabbit", "bind", "it is done at once, and the flag is not set"),
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
