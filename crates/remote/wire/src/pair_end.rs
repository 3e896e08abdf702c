// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The description of one end of an RDMA connection, in the four numbers of `Pair` and of `Paired`.
//!
//! | number | bits  | what                                                                            |
//! |--------|-------|---------------------------------------------------------------------------------|
//! | 0      | 0–23  | the queue pair's number                                                         |
//! | 0      | 32–55 | its initial packet sequence number (PSN)                                        |
//! | 1, 2   | all   | the port's address (GID), byte 0 in the lowest bits of number 1                 |
//! | 3      | 0–31  | which of the borrower's connections it is; 0 in the answer                      |
//! | 3      | 32–47 | the port's address in its InfiniBand subnet (LID); 0 for RoCE                   |
//! | 3      | 48–55 | the port's MTU: 1 is 256 bytes, and each step doubles it, up to 5 (4096 bytes)  |
//! | 3      | 56–63 | the version of this layout: 1                                                   |

/// The version of the layout, so that the layout can change without a new version of the whole protocol.
const LAYOUT_VERSION: u8 = 1;
/// Width of a queue pair's number and of a packet sequence number.
const NUMBER_BITS: u32 = 24;

/// One end of an RDMA connection, as the other end needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairEnd {
    /// The queue pair's number, below 2 to the power of 24.
    pub pair: u32,
    /// Its initial packet sequence number (PSN), below 2 to the power of 24.
    pub psn: u32,
    /// The port's address in its InfiniBand subnet; 0 for RoCE.
    pub lid: u16,
    /// The port's MTU: 1 is 256 bytes, and each step doubles it, up to 5 (4096 bytes).
    pub mtu: u8,
    /// The port's address.
    pub gid: [u8; 16],
}

impl PairEnd {
    pub(crate) fn numbers(&self, number: u32) -> [u64; 4] {
        let [low, high] = [&self.gid[..8], &self.gid[8..]]
            .map(|half| u64::from_le_bytes(half.try_into().expect("a half of sixteen bytes")));
        let ids = u64::from(number) | u64::from(self.lid) << 32;
        let about = ids | u64::from(self.mtu) << 48 | u64::from(LAYOUT_VERSION) << 56;
        [u64::from(self.pair) | u64::from(self.psn) << 32, low, high, about]
    }

    /// The end, and the number of its connection. Bits that the casts cut off are detected when the numbers are encoded
    /// again.
    pub(crate) fn read(numbers: [u64; 4]) -> (PairEnd, u32) {
        let [pairs, low, high, about] = numbers;
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&low.to_le_bytes());
        gid[8..].copy_from_slice(&high.to_le_bytes());
        let (lid, mtu) = ((about >> 32) as u16, (about >> 48) as u8);
        (PairEnd { pair: pairs as u32, psn: (pairs >> 32) as u32, lid, mtu, gid }, about as u32)
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.pair < 1 << NUMBER_BITS
            && self.psn < 1 << NUMBER_BITS
            && (1..=5).contains(&self.mtu)
            && self.gid != [0; 16]
    }
}
