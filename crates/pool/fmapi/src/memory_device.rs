// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory devices (40h and 44h), as far as a fabric manager needs them: how large a device is, and wiping it. CXL 3.1,
//! sections 8.2.9.9.1 and 8.2.9.9.5.
//!
//! A fabric manager sends them through a tunnel: to an SLD, or to one logical device of an MLD.

use crate::codec::{Payload, Reader, Writer, payload};
use crate::dynamic_capacity::CAPACITY_UNIT_BYTES;
use crate::failure::DecodeFailure;

/// Bytes before and after the capacities that a fabric manager does not use: the firmware's revision, and the sizes of
/// logs and of the poison list.
const REVISION_BYTES: usize = 16;
const REST_BYTES: usize = 19;
/// The size of the log for dynamic capacity, which CXL 2.0 does not have.
const DC_LOG_BYTES: usize = 2;

payload! {
    /// Identify Memory Device (4000h), request.
    pub struct IdentifyMemory {}
}

/// Identify Memory Device (4000h), response: 69 bytes, 67 in CXL 2.0. Fields that a fabric manager does not use are
/// zeros when it is written, and skipped when it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryIdentity {
    /// Capacity in units of [`CAPACITY_UNIT_BYTES`], without dynamic capacity.
    pub total_capacity: u64,
    /// What of that is volatile only.
    pub volatile_capacity: u64,
    /// What of that is persistent only.
    pub persistent_capacity: u64,
}

impl MemoryIdentity {
    /// The capacity in bytes; None where the number cannot be.
    pub fn total_bytes(&self) -> Option<u64> {
        self.total_capacity.checked_mul(CAPACITY_UNIT_BYTES)
    }
}

impl Payload for MemoryIdentity {
    fn write(&self, out: &mut Writer<'_>) {
        out.reserved(REVISION_BYTES);
        // The last one is the unit in which volatile and persistent capacity can be exchanged: not at all.
        out.put_list(&[self.total_capacity, self.volatile_capacity, self.persistent_capacity, 0]);
        out.reserved(REST_BYTES + DC_LOG_BYTES);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        input.take(REVISION_BYTES)?;
        let [total_capacity, volatile_capacity, persistent_capacity, _]: [u64; 4] = input.read()?;
        input.take(REST_BYTES)?;
        if input.left() > 0 {
            input.take(DC_LOG_BYTES)?;
        }
        Ok(Self { total_capacity, volatile_capacity, persistent_capacity })
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
        let identity = MemoryIdentity { total_capacity: 1024, volatile_capacity: 1024, persistent_capacity: 0 };
        let mut out = Writer::new(&Dialect::STANDARD);
        identity.write(&mut out);
        assert_eq!((out.bytes.len(), out.bytes[17]), (69, 4));
        for length in [67, 69] {
            let mut input = Reader::new(&out.bytes[..length], &Dialect::STANDARD);
            assert_eq!((input.read(), input.finish()), (Ok(identity), Ok(())), "{length} bytes");
        }
        assert_eq!(identity.total_bytes(), Some(256 << 30));
        assert_eq!(MemoryIdentity { total_capacity: u64::MAX, ..identity }.total_bytes(), None);
    }
}
