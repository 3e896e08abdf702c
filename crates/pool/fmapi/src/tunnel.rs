// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Management of the devices behind a switch (53h): messages and accesses that a switch passes on.
//! CXL 3.1, section 7.6.7.3.

use crate::codec::{Payload, Reader, Writer, field_enum};
use crate::failure::DecodeFailure;
use crate::physical_switch::ConfigurationAccess;

/// Maximum number of tunnelled bytes: the size is 16 bits.
pub const TUNNELLED_BYTES_MAX: usize = u16::MAX as usize - 1;
/// MCTP message type of the component command interface.
const MESSAGE_TYPE_CCI: u8 = 0x08;
/// Maximum number of bytes that Send LD CXL.io Memory Request moves.
pub const LD_MEMORY_BYTES_MAX: usize = 4096;

field_enum! {
    /// What a tunnel leads to; four bits of its byte.
    pub enum TunnelTarget, mask 0xf {
        /// A port of a switch, or a logical device of the peer.
        PortOrLd = 0,
        /// The pool of logical devices of a multi-headed device.
        LdPool = 1,
    }
}

/// Tunnel Management Command (5300h), request. For a second level, the message is a tunnel command itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tunnel {
    /// The port, or the logical device.
    pub port_or_ld_id: u8,
    /// What the tunnel leads to.
    pub target: TunnelTarget,
    /// The message that is passed on, with its header.
    pub message: Vec<u8>,
}

impl Payload for Tunnel {
    fn write(&self, out: &mut Writer<'_>) {
        assert!(self.message.len() <= TUNNELLED_BYTES_MAX, "16 bits of length");
        let has_type = out.dialect.tunnel_has_message_type;
        out.put(&self.port_or_ld_id);
        out.put(&self.target);
        out.put(&((self.message.len() + usize::from(has_type)) as u16));
        if has_type {
            out.put(&MESSAGE_TYPE_CCI);
        }
        out.put_bytes(&self.message);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let (port_or_ld_id, target, bytes): (_, _, u16) = (input.read()?, input.read()?, input.read()?);
        Ok(Self { port_or_ld_id, target, message: message(input, bytes)? })
    }
}

/// Tunnel Management Command (5300h), response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tunnelled {
    /// The message that came back, with its header.
    pub message: Vec<u8>,
}

impl Payload for Tunnelled {
    fn write(&self, out: &mut Writer<'_>) {
        assert!(self.message.len() <= TUNNELLED_BYTES_MAX, "16 bits of length");
        let has_type = out.dialect.tunnel_has_message_type;
        out.put(&((self.message.len() + usize::from(has_type)) as u16));
        out.reserved(2);
        if has_type {
            out.put(&MESSAGE_TYPE_CCI);
        }
        out.put_bytes(&self.message);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let bytes: u16 = input.read()?;
        input.take(2)?;
        Ok(Self { message: message(input, bytes)? })
    }
}

fn message(input: &mut Reader<'_>, bytes: u16) -> Result<Vec<u8>, DecodeFailure> {
    if !input.dialect.tunnel_has_message_type {
        return Ok(input.take(bytes.into())?.to_vec());
    }
    let Some(bytes) = bytes.checked_sub(1) else { return input.refuse("the size of the message", 0) };
    let _: u8 = input.read()?;
    Ok(input.take(bytes.into())?.to_vec())
}

/// Send LD CXL.io Configuration Request (5301h), request, 12 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LdConfigurationRequest {
    /// The number of the port.
    pub port_id: u8,
    /// The access to the configuration space.
    pub access: ConfigurationAccess,
    /// The number of the logical device.
    pub ld_id: u16,
    /// The value that is written.
    pub data: u32,
}

impl Payload for LdConfigurationRequest {
    fn write(&self, out: &mut Writer<'_>) {
        out.put(&self.port_id);
        out.put(&self.access);
        out.put(&self.ld_id);
        out.reserved(2);
        out.put(&self.data);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let (port_id, access, ld_id) = (input.read()?, input.read()?, input.read()?);
        input.take(2)?;
        Ok(Self { port_id, access, ld_id, data: input.read()? })
    }
}

/// Send LD CXL.io Memory Request (5302h), request: 16 bytes and what is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LdMemoryRequest {
    /// The number of the port.
    pub port_id: u8,
    /// A bit for each byte of the first double word that is accessed.
    pub first_byte_enables: u8,
    /// A bit for each byte of the last double word that is accessed.
    pub last_byte_enables: u8,
    /// True to write, false to read.
    pub is_write: bool,
    /// The number of the logical device.
    pub ld_id: u16,
    /// How many bytes; at most [`LD_MEMORY_BYTES_MAX`].
    pub bytes: u16,
    /// The first address that is accessed.
    pub address: u64,
    /// The bytes to write; none for a read.
    pub data: Vec<u8>,
}

impl Payload for LdMemoryRequest {
    fn write(&self, out: &mut Writer<'_>) {
        out.put(&self.port_id);
        // One peer leaves the reserved byte out.
        out.reserved(usize::from(!out.dialect.ld_memory_request_is_short));
        out.put(&(self.first_byte_enables << 4));
        out.put(&(self.last_byte_enables & 0xf | u8::from(self.is_write) << 7));
        out.put_list(&[self.ld_id, self.bytes]);
        out.put(&self.address);
        out.put_bytes(&self.data);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let port_id = input.read()?;
        input.take(usize::from(!input.dialect.ld_memory_request_is_short))?;
        let [first, last]: [u8; 2] = input.read()?;
        let ([ld_id, bytes], address): ([u16; 2], _) = (input.read()?, input.read()?);
        let is_write = last >> 7 == 1;
        // With a read, one peer sends as many bytes as it wants to read; they mean nothing.
        let has_data = is_write || input.left() > 0;
        let sent = if has_data { input.take(bytes.into())? } else { &[] };
        let data = if is_write { sent.to_vec() } else { Vec::new() };
        if usize::from(bytes) > LD_MEMORY_BYTES_MAX {
            return input.refuse("the length", bytes.into());
        }
        let (first_byte_enables, last_byte_enables) = (first >> 4, last & 0xf);
        Ok(Self { port_id, first_byte_enables, last_byte_enables, is_write, ld_id, bytes, address, data })
    }
}

/// Send LD CXL.io Memory Request (5302h), response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LdMemoryData {
    /// How many bytes were read or written.
    pub bytes: u16,
    /// The bytes that were read; none after a write.
    pub data: Vec<u8>,
}

impl Payload for LdMemoryData {
    fn write(&self, out: &mut Writer<'_>) {
        out.put(&self.bytes);
        out.reserved(2);
        out.put_bytes(&self.data);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let bytes: u16 = input.read()?;
        input.take(2)?;
        // After a write, the size is that of the written bytes, and no data follows.
        let data = if input.left() == 0 { Vec::new() } else { input.take(bytes.into())?.to_vec() };
        Ok(Self { bytes, data })
    }
}
