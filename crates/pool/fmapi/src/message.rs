// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A whole message: header and payload. It is what goes over MCTP, and what is inside a tunnel; a mailbox has only the
//! payload.

use crate::codec::{Payload, Reader, Writer};
use crate::command::{Request, Response};
use crate::dialect::Dialect;
use crate::failure::{DecodeFailure, ResponseFailure};
use crate::header::{Category, Header};
use crate::opcode::Opcode;
use crate::return_code::ReturnCode;

/// A whole CCI message: header and payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its header; `payload_bytes` is the payload's length.
    pub header: Header,
    /// The bytes after the header.
    pub payload: Vec<u8>,
}

impl Message {
    /// Returns a request.
    pub fn request(tag: u8, request: &Request, dialect: &Dialect) -> Self {
        let mut out = Writer::new(dialect);
        request.write(&mut out);
        Self::new(Category::Request, tag, request.opcode(), ReturnCode::SUCCESS, out.bytes)
    }

    /// Returns the answer to a request with this header.
    pub fn answer(to: &Header, return_code: ReturnCode, response: Option<&Response>, dialect: &Dialect) -> Self {
        let mut out = Writer::new(dialect);
        response.inspect(|response| response.write(&mut out));
        let opcode = if dialect.answers_with_opcode_zero { Opcode(0) } else { to.opcode };
        let mut message = Self::new(Category::Response, to.tag, opcode, return_code, out.bytes);
        message.header.is_background = return_code == ReturnCode::BACKGROUND_STARTED;
        message
    }

    /// Creates a message of these parts.
    pub fn new(category: Category, tag: u8, opcode: Opcode, return_code: ReturnCode, payload: Vec<u8>) -> Self {
        let payload_bytes = u32::try_from(payload.len()).expect("no payload is that long");
        let header =
            Header { category, tag, opcode, payload_bytes, is_background: false, return_code, vendor_status: 0 };
        Self { header, payload }
    }

    /// Returns the bytes of the message.
    pub fn encode(&self, dialect: &Dialect) -> Vec<u8> {
        let mut out = Writer::new(dialect);
        out.put(&self.header);
        out.put_bytes(&self.payload);
        out.bytes
    }

    /// Decodes a message, which must use up all of these bytes.
    pub fn decode(bytes: &[u8], dialect: &Dialect) -> Result<Self, DecodeFailure> {
        let mut input = Reader::new(bytes, dialect);
        let header = Header::read(&mut input)?;
        let payload = input.rest().to_vec();
        let said = header.payload_bytes as usize;
        if said != payload.len() {
            return Err(DecodeFailure::LengthDiffers { said, found: payload.len() });
        }
        Ok(Self { header, payload })
    }

    /// Checks whether this is the answer to a request with that header.
    pub fn check_answers(&self, sent: &Header, dialect: &Dialect) -> Result<(), ResponseFailure> {
        let found = self.header;
        if found.category != Category::Response {
            return Err(ResponseFailure::Category);
        }
        if found.tag != sent.tag {
            return Err(ResponseFailure::Tag { sent: sent.tag, found: found.tag });
        }
        let is_zero = dialect.answers_with_opcode_zero && found.opcode == Opcode(0);
        if found.opcode != sent.opcode && !is_zero {
            return Err(ResponseFailure::Opcode { sent: sent.opcode, found: found.opcode });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generic::GetTimestamp;

    /// Get Timestamp as it was captured on a bus (CodeConstruct's MCTP tools, pull request 168).
    #[test]
    fn a_captured_exchange_is_read() {
        let asked = [0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0xcd, 0xab];
        let reported = [1, 0, 0, 0, 3, 8, 0, 0, 0, 0, 0, 0, 0x2b, 1, 0xad, 0x9c, 0xa4, 0x8a, 0xd2, 0x16];
        let standard = &Dialect::STANDARD;
        let mut sent = Message::request(0, &Request::GetTimestamp(GetTimestamp {}), standard);
        sent.header.vendor_status = 0xabcd;
        assert_eq!(sent.encode(standard), asked);
        let answer = Message::decode(&reported, standard).unwrap();
        assert_eq!(answer.check_answers(&sent.header, standard), Ok(()));
        assert_eq!((answer.header.return_code, answer.payload.len()), (ReturnCode::SUCCESS, 8));
    }

    #[test]
    fn late_and_foreign_answers_are_found_out() {
        let standard = &Dialect::STANDARD;
        let sent = Message::request(4, &Request::GetTimestamp(GetTimestamp {}), standard);
        let answer = |opcode, tag| Message::new(Category::Response, tag, opcode, ReturnCode::SUCCESS, Vec::new());
        let check = |message: Message, dialect| message.check_answers(&sent.header, dialect);
        assert_eq!(check(sent.clone(), standard), Err(ResponseFailure::Category));
        assert_eq!(check(answer(sent.header.opcode, 3), standard), Err(ResponseFailure::Tag { sent: 4, found: 3 }));
        assert!(matches!(check(answer(Opcode(0), 4), standard), Err(ResponseFailure::Opcode { .. })));
        assert_eq!(check(answer(Opcode(0), 4), &Dialect::OPENCIS), Ok(()));
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        for dialect in &Dialect::ALL {
            let mut bytes = Message::request(1, &Request::GetTimestamp(GetTimestamp {}), dialect).encode(dialect);
            bytes.push(0);
            let refused = Message::decode(&bytes, dialect);
            assert_eq!(refused, Err(DecodeFailure::LengthDiffers { said: 0, found: 1 }), "{}", dialect.name);
            assert!(matches!(Message::decode(&bytes[..11], dialect), Err(DecodeFailure::Short { .. })));
        }
    }
}
