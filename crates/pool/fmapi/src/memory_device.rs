// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory devices (40h and 44h), as far as a fabric manager needs them: how large a device is, and wiping it. CXL 3.1,
//! sections 8.2.9.9.1 and 8.2.9.9.5.
//!
//! A fabric manager sends them through a tunnel: to an SLD, or to one logical device of an MLD.

use crate::codec::{Payload, Reader, Writer, payload};
use crate::dynamic_capacity::CAPACITY_UNIT_BYTES;
use crate::failure::DecodeFailure;

/// Bytes of the firmware's revision, and of the sizes of logs, labels and the poison list.
const REVISION_BYTES: usize = 16;
const SIZES_BYTES: usize = 19;

payload! {
    /// Identify Memory Device (4000h), request.
    pub struct IdentifyMemory {}
}

/// Identify Memory Device (4000h), response: 69 bytes, 67 in CXL 2.0. Fields that a fabric manager does not use are
/// kept as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryIdentity {
    /// Capacity in units of [`CAPACITY_UNIT_BYTES`], without dynamic capacity.
    pub total_capacity: u64,
    /// What of that is volatile only.
    pub volatile_capacity: u64,
    /// What of that is persistent only.
    pub persistent_capacity: u64,
    /// The unit in which volatile and persistent capacity can be exchanged; 0 if they cannot.
    pub partition_alignment: u64,
    /// The firmware's revision, as text.
    pub firmware_revision: [u8; REVISION_BYTES],
    /// The sizes of event logs, of the label storage and of the poison list, and what the poison list can do.
    pub sizes: [u8; SIZES_BYTES],
    /// The size of the event log for dynamic capacity, which CXL 2.0 does not have.
    pub dynamic_capacity_log: Option<u16>,
}

impl MemoryIdentity {
    /// Returns the capacity in bytes; None if it does not fit into the type.
    pub fn total_bytes(&self) -> Option<u64> {
        self.total_capacity.checked_mul(CAPACITY_UNIT_BYTES)
    }
}

impl Payload for MemoryIdentity {
    fn write(&self, out: &mut Writer<'_>) {
        out.put_bytes(&self.firmware_revision);
        let capacities = [self.total_capacity, self.volatile_capacity, self.persistent_capacity];
        out.put_list(&capacities);
        out.put(&self.partition_alignment);
        out.put_bytes(&self.sizes);
        if let Some(size) = self.dynamic_capacity_log {
            out.put(&size);
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let firmware_revision = input.read()?;
        let [total_capacity, volatile_capacity, persistent_capacity, partition_alignment]: [u64; 4] = input.read()?;
        let sizes = input.read()?;
        let dynamic_capacity_log = if input.left() > 0 { Some(input.read()?) } else { None };
        Ok(Self {
            total_capacity,
            volatile_capacity,
            persistent_capacity,
            partition_alignment,
            firmware_revision,
            sizes,
            dynamic_capacity_log,
        })
    }
}

payload! {
    /// Sanitize (4400h), request: all bytes are lost. Real devices go on in the background.
    pub struct Sanitize {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Dialect;

    #[test]
    fn an_identity_is_read_with_and_without_the_last_field() {
        let identity = MemoryIdentity {
            total_capacity: 1024,
            volatile_capacity: 1024,
            firmware_revision: [b'7'; 16],
            sizes: [9; 19],
            dynamic_capacity_log: Some(0x0203),
            ..MemoryIdentity::default()
        };
        let mut out = Writer::new(&Dialect::STANDARD);
        identity.write(&mut out);
        assert_eq!((out.bytes.len(), out.bytes[17]), (69, 4));
        for (length, dynamic_capacity_log) in [(67, None), (69, Some(0x0203))] {
            let mut input = Reader::new(&out.bytes[..length], &Dialect::STANDARD);
            let expected = MemoryIdentity { dynamic_capacity_log, ..identity };
            assert_eq!((input.read(), input.finish()), (Ok(expected), Ok(())), "{length} bytes");
        }
        assert_eq!(identity.total_bytes(), Some(256 << 30));
        assert_eq!(MemoryIdentity { total_capacity: u64::MAX, ..identity }.total_bytes(), None);
    }
}
