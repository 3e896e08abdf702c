// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Multi-headed devices (55h): which head has which logical device. CXL 3.1, section 7.6.7.5.

use crate::codec::{Payload, Reader, Writer, payload};
use crate::failure::DecodeFailure;

payload! {
    /// Get Multi-Headed Info (5500h), request.
    pub struct GetHeadMap {
        /// The first logical device to list.
        pub first_ld_id: u8;
        /// Maximum number of logical devices to list.
        pub count_max: u8;
    }
}

/// Get Multi-Headed Info (5500h), response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadMap {
    /// How many logical devices there are in total.
    pub ld_count: u8,
    /// How many heads the device has.
    pub head_count: u8,
    /// The first logical device that is listed.
    pub first_ld_id: u8,
    /// For each, its head; [`HeadMap::NO_HEAD`] where it has none.
    pub heads: Vec<u8>,
}

impl HeadMap {
    /// The entry of a logical device that no head has.
    pub const NO_HEAD: u8 = 0xff;
}

impl Payload for HeadMap {
    fn write(&self, out: &mut Writer<'_>) {
        out.put_list(&[self.ld_count, self.head_count]);
        out.reserved(2);
        out.put(&self.first_ld_id);
        out.count_u8(&self.heads);
        out.reserved(2);
        out.put_bytes(&self.heads);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let [ld_count, head_count] = input.read()?;
        input.take(2)?;
        let [first_ld_id, listed] = input.read()?;
        input.take(2)?;
        Ok(Self { ld_count, head_count, first_ld_id, heads: input.take(listed.into())?.to_vec() })
    }
}

payload! {
    /// Get Head Info (5501h), request.
    pub struct GetHeads {
        /// The first head to list.
        pub first_head: u8;
        /// The number of heads.
        pub count: u8;
    }
}
payload! {
    /// The state of one head, 9 bytes.
    pub struct Head {
        /// The switch's port that it is at.
        pub port_id: u8;
        /// Width of the link at most and now, speeds, the highest, and the current one: as the device packs them.
        pub link: [u8; 5];
        /// State of the link's training.
        pub link_state: u8;
        /// Number of the first lane in use.
        pub first_lane: u8;
        /// Flags of the link.
        pub link_flags: u8;
    }
}

/// Get Head Info (5501h), response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heads {
    /// The heads that were asked for.
    pub heads: Vec<Head>,
}

impl Payload for Heads {
    fn write(&self, out: &mut Writer<'_>) {
        out.count_u8(&self.heads);
        out.reserved(3);
        out.put_list(&self.heads);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let count: u8 = input.read()?;
        input.take(3)?;
        Ok(Self { heads: input.list(count.into())? })
    }
}
