// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! MCTP control messages, as far as an endpoint on a stream is asked for them: its ID, its UUID, its versions and the
//! types of messages that it takes. DSP0236, section 12.
//!
//! | offset | bytes | field |
//! |--------|-------|-------|
//! | 0 | 1 | 7 request, 6 no answer is wanted, 4:0 instance, which an answer repeats |
//! | 1 | 1 | command |
//! | 2 | | of a request, its data; of an answer, the completion code, and then its data |

use crate::mctp::MessageType;

const REQUEST: u8 = 1 << 7;
const DATAGRAM: u8 = 1 << 6;
const INSTANCE: u8 = 0x1f;

const SET_ENDPOINT_ID: u8 = 1;
const GET_ENDPOINT_ID: u8 = 2;
const GET_ENDPOINT_UUID: u8 = 3;
const GET_VERSION_SUPPORT: u8 = 4;
const GET_MESSAGE_TYPES: u8 = 5;

const SUCCESS: u8 = 0;
const INVALID_DATA: u8 = 2;
const UNSUPPORTED: u8 = 5;
/// The completion code of Get MCTP Version Support for a type that the endpoint does not take.
const NO_SUCH_TYPE: u8 = 0x80;

/// The operations of Set Endpoint ID that assign one; the others are for endpoints that can forget theirs.
const ASSIGNING: [u8; 2] = [0, 1];
/// The bits of Set Endpoint ID's answer that say that the ID was rejected.
const REJECTED: u8 = 1 << 4;
/// The first and the last ID that an endpoint may have.
const EIDS: std::ops::RangeInclusive<u8> = 8..=254;
/// Get MCTP Version Support: the base specification, which is also the version of control messages.
const BASE: u8 = 0xff;
const CONTROL: u8 = 0;
/// Versions 1.3.1 of the base specification, and 1.0 of DSP0281 and DSP0324, each digit after an f.
const BASE_VERSION: [u8; 4] = [0xf1, 0xf3, 0xf1, 0];
const TYPE_VERSION: [u8; 4] = [0xf1, 0xf0, 0xff, 0];

/// An endpoint, as control messages know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its ID, which control messages may change.
    pub eid: u8,
    /// Its UUID, in the order in which its bytes are sent.
    pub uuid: [u8; 16],
}

impl Endpoint {
    /// Returns the answer to a message, both without the MCTP message type; None for one that wants none. A request may
    /// have bytes after its data: packets are padded.
    pub fn answer(&mut self, request: &[u8]) -> Option<Vec<u8>> {
        let [first, command, data @ ..] = request else { return None };
        if first & (REQUEST | DATAGRAM) != REQUEST {
            return None;
        }
        let types = [MessageType::FabricManager, MessageType::ComponentCommand].map(MessageType::bits);
        let answer = match *command {
            SET_ENDPOINT_ID => {
                let (operation, eid) = (data.first()? & 3, *data.get(1)?);
                let is_set = ASSIGNING.contains(&operation) && EIDS.contains(&eid);
                self.eid = if is_set { eid } else { self.eid };
                let (code, status) = if is_set { (SUCCESS, 0) } else { (INVALID_DATA, REJECTED) };
                // It has no IDs to assign to others.
                vec![code, status, self.eid, 0]
            }
            // A simple endpoint, with an ID that can be set.
            GET_ENDPOINT_ID => vec![SUCCESS, self.eid, 0, 0],
            GET_ENDPOINT_UUID => [&[SUCCESS][..], &self.uuid].concat(),
            GET_VERSION_SUPPORT => match *data.first()? {
                BASE | CONTROL => [&[SUCCESS, 1][..], &BASE_VERSION].concat(),
                kind if types.contains(&kind) => [&[SUCCESS, 1][..], &TYPE_VERSION].concat(),
                _ => vec![NO_SUCH_TYPE],
            },
            GET_MESSAGE_TYPES => [&[SUCCESS, 2][..], &types].concat(),
            _ => vec![UNSUPPORTED],
        };
        Some([&[first & INSTANCE, *command][..], &answer].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: [u8; 16] = [7; 16];

    /// The requests are those of Jackrabbit's `jack` (f1a0cd8), whose instance is 0.
    #[test]
    fn what_jack_asks_is_answered() {
        let mut endpoint = Endpoint { eid: 8, uuid: UUID };
        let mut answer = |request: &[u8]| endpoint.answer(request).expect("an answer");
        for _ in 0..2 {
            assert_eq!(answer(&[0x80, 2]), [0, 2, 0, 8, 0, 0]);
        }
        assert_eq!(answer(&[0x80, 3]), [&[0, 3, 0][..], &UUID].concat());
        assert_eq!(answer(&[0x80, 5]), [0, 5, 0, 2, 7, 8]);
        assert_eq!(answer(&[0x80, 4, 7]), [0, 4, 0, 1, 0xf1, 0xf0, 0xff, 0]);
        assert_eq!(answer(&[0x80, 4, 0]), [0, 4, 0, 1, 0xf1, 0xf3, 0xf1, 0]);
        assert_eq!(answer(&[0x80, 4, 0xff]), [0, 4, 0, 1, 0xf1, 0xf3, 0xf1, 0]);
        assert_eq!(answer(&[0x80, 4, 0x70]), [0, 4, 0x80]);
        assert_eq!(answer(&[0x80, 1, 0, 0x21]), [0, 1, 0, 0, 0x21, 0]);
        assert_eq!(answer(&[0x80, 2]), [0, 2, 0, 0x21, 0, 0]);
        // Reserved IDs, and what an endpoint with a static ID could do.
        for refused in [[0, 0], [0, 7], [0, 0xff], [2, 9], [3, 9]] {
            assert_eq!(answer(&[&[0x80, 1][..], &refused].concat()), [0, 1, 2, 0x10, 0x21, 0], "{refused:?}");
        }
        assert_eq!(answer(&[0x9f, 0x11]), [0x1f, 0x11, 5]);
    }

    #[test]
    fn what_wants_no_answer_or_is_cut_gets_none() {
        let mut endpoint = Endpoint { eid: 8, uuid: UUID };
        for request in [&[][..], &[0x80], &[0, 2], &[0xc0, 2], &[0x80, 4], &[0x80, 1, 0]] {
            assert_eq!(endpoint.answer(request), None, "{request:02x?}");
        }
        assert_eq!(endpoint.eid, 8);
    }
}
