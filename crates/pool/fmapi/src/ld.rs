// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Logical devices of a multi-logical device (54h): how its memory is divided. CXL 3.1, section 7.6.7.4.

use crate::codec::{Payload, Reader, Writer, field_enum, payload};
use crate::failure::DecodeFailure;

payload! {
    /// Get LD Info (5400h), request.
    pub struct GetLdCapabilities {}
}
payload! {
    /// Get LD Info (5400h), response.
    pub struct LdCapabilities {
        /// Bytes of memory in all.
        pub memory_bytes: u64;
        /// Logical devices that the device supports.
        pub ld_count: u16;
        /// Bit 0: it reports congestion at its egress port; bit 1: temporarily reduced throughput.
        pub qos_telemetry: u8;
    }
}
payload! {
    /// Get LD Allocations (5401h), request.
    pub struct GetLdAllocations {
        /// The first logical device to list.
        pub first_ld_id: u8;
        /// Maximum number of logical devices to list.
        pub count_max: u8;
    }
}

field_enum! {
    /// The unit of an allocation.
    pub enum Granularity {
        /// The unit is 256 MiB.
        Mib256 = 0,
        /// The unit is 512 MiB.
        Mib512 = 1,
        /// The unit is 1 GiB.
        Gib1 = 2,
    }
}

impl Granularity {
    /// Returns the size in bytes; None where the value is reserved.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Mib256 => Some(256 << 20),
            Self::Mib512 => Some(512 << 20),
            Self::Gib1 => Some(1 << 30),
            Self::Reserved(_) => None,
        }
    }
}

payload! {
    /// What one logical device has, 16 bytes, in units of the granularity.
    pub struct LdAllocation {
        /// How much of the first range it has.
        pub range_1: u64;
        /// How much of the second range it has.
        pub range_2: u64;
    }
}

/// Get LD Allocations (5401h), response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LdAllocations {
    /// How many logical devices there are in total.
    pub ld_count: u8,
    /// The unit of the allocations.
    pub granularity: Granularity,
    /// The first that is listed.
    pub first_ld_id: u8,
    /// One for each listed logical device.
    pub allocations: Vec<LdAllocation>,
}

impl Payload for LdAllocations {
    fn write(&self, out: &mut Writer<'_>) {
        out.put(&self.ld_count);
        out.put(&self.granularity);
        out.put(&self.first_ld_id);
        out.count_u8(&self.allocations);
        out.put_list(&self.allocations);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let (ld_count, granularity, first_ld_id) = (input.read()?, input.read()?, input.read()?);
        let count: u8 = input.read()?;
        Ok(Self { ld_count, granularity, first_ld_id, allocations: input.list(count.into())? })
    }
}

macro_rules! allocations {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            /// The first logical device that is listed.
            pub first_ld_id: u8,
            /// One for each listed logical device.
            pub allocations: Vec<LdAllocation>,
        }

        impl Payload for $name {
            fn write(&self, out: &mut Writer<'_>) {
                out.count_u8(&self.allocations);
                out.put(&self.first_ld_id);
                out.reserved(2);
                out.put_list(&self.allocations);
            }

            fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
                let [count, first_ld_id] = input.read()?;
                input.take(2)?;
                Ok(Self { first_ld_id, allocations: input.list(count.into())? })
            }
        }
    };
}

allocations! {
    /// Set LD Allocations (5402h), request. One peer carries it out in the background, which the specification does not
    /// provide for.
    SetLdAllocations
}
allocations! {
    /// Set LD Allocations (5402h), response: the allocations that now apply.
    NewLdAllocations
}
