// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The header of a CCI message, 12 bytes. CXL 3.1, figure 7-19.
//!
//! | offset | bytes | field |
//! |--------|-------|-------|
//! | 0 | 1 | 3:0 category (0 request, 1 response), 7:4 reserved |
//! | 1 | 1 | tag, which a response repeats |
//! | 2 | 1 | reserved |
//! | 3 | 2 | opcode: command, then command set |
//! | 5 | 3 | 20:0 bytes of payload, 22:21 reserved, 23 background operation |
//! | 8 | 2 | return code, of a response |
//! | 10 | 2 | vendor's extended status |
//!
//! Some peers have the category and the flag elsewhere (`dialect.rs`).

use crate::codec::{Payload, Reader, Writer};
use crate::dialect::{CategoryBits, LengthBits};
use crate::failure::DecodeFailure;
use crate::opcode::Opcode;
use crate::return_code::ReturnCode;

/// The length of a header, in bytes.
pub const HEADER_BYTES: usize = 12;
/// The longest payload whose length fits in 21 bits.
pub const PAYLOAD_BYTES_MAX: usize = (1 << 21) - 1;

/// Whether a message asks or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// The message asks.
    Request,
    /// The message answers.
    Response,
}

/// The header of a CCI message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whether the message asks or answers.
    pub category: Category,
    /// Chosen by the request; the response repeats it.
    pub tag: u8,
    /// The opcode of the command.
    pub opcode: Opcode,
    /// Bytes after the header.
    pub payload_bytes: u32,
    /// True if the command goes on in the background.
    pub is_background: bool,
    /// How it ended; zero in a request.
    pub return_code: ReturnCode,
    /// The vendor's extended status.
    pub vendor_status: u16,
}

impl Payload for Header {
    fn write(&self, out: &mut Writer<'_>) {
        assert!(self.payload_bytes as usize <= PAYLOAD_BYTES_MAX, "21 bits of length");
        let category = u8::from(self.category == Category::Response);
        out.put(&match out.dialect.category {
            CategoryBits::Low => category,
            CategoryBits::High => category << 4,
        });
        out.put(&self.tag);
        out.reserved(1);
        out.put(&self.opcode.0);
        let flag = u8::from(self.is_background);
        let [low, middle, high, _] = self.payload_bytes.to_le_bytes();
        out.put_bytes(&[low, middle]);
        out.put(&match out.dialect.length {
            LengthBits::Standard => high | flag << 7,
            LengthBits::Reversed => high << 3 | flag,
        });
        out.put(&self.return_code.0);
        out.put(&self.vendor_status);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let first: u8 = input.read()?;
        let bits = match input.dialect.category {
            CategoryBits::Low => first & 0xf,
            CategoryBits::High => first >> 4,
        };
        let category = match bits {
            0 => Category::Request,
            1 => Category::Response,
            other => return input.refuse("the category", other.into()),
        };
        let tag = input.read()?;
        input.take(1)?;
        let opcode = Opcode(input.read()?);
        let (low, high): (u16, u8) = (input.read()?, input.read()?);
        let (high, is_background) = match input.dialect.length {
            LengthBits::Standard => (high & 0x1f, high >> 7 == 1),
            LengthBits::Reversed => (high >> 3, high & 1 == 1),
        };
        let payload_bytes = u32::from(low) | u32::from(high) << 16;
        let return_code = ReturnCode(input.read()?);
        Ok(Self { category, tag, opcode, payload_bytes, is_background, return_code, vendor_status: input.read()? })
    }
}
