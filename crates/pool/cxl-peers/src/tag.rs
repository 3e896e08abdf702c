// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The tag of dynamic capacity: it names the volume and the member to which the capacity belongs, so that a manager
//! that has lost its state can still find out.
//!
//! | offset | bytes | field |
//! |--------|-------|------------------------|
//! | 0 | 8 | the volume, big-endian |
//! | 8 | 8 | the member, big-endian |
//!
//! Capacity without a tag has zeros, which is volume 0: a volume id is drawn at random, and members begin with 1.

use aquifer_fabric::{MemberId, VolumeId};

/// The tag of dynamic capacity, as the specification has it.
pub type Tag = [u8; 16];

/// The tag of blocks that are offered to nobody, and taken back to be wiped. It is no member's.
pub(crate) const BEING_WIPED: Tag = *b"aquifer: wiped\0\0";

/// Returns the tag of a member.
pub fn tag_of(volume: VolumeId, member: MemberId) -> Tag {
    (u128::from(volume.0) << 64 | u128::from(member.0)).to_be_bytes()
}

/// Returns the member that a tag names.
pub fn member_of(tag: Tag) -> (VolumeId, MemberId) {
    let [volume, member] =
        [&tag[..8], &tag[8..]].map(|half| half.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
    (VolumeId(volume), MemberId(member))
}

/// Returns whether a tag has the form of a member's. Members are counted from 1, so eight bytes of it are a small
/// number: other managers' tags, such as UUIDs, do not look like that.
pub(crate) fn is_of_a_member(tag: Tag) -> bool {
    let (volume, member) = member_of(tag);
    volume.0 != 0 && (1..=u64::from(u32::MAX)).contains(&member.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_others_are_not_of_members() {
        assert!(is_of_a_member(tag_of(VolumeId(7), MemberId(1))));
        for other in
            [[0; 16], [0xee; 16], BEING_WIPED, tag_of(VolumeId(0), MemberId(1)), tag_of(VolumeId(7), MemberId(0))]
        {
            assert!(!is_of_a_member(other), "{other:02x?}");
        }
    }

    #[test]
    fn a_tag_names_its_member() {
        let tag = tag_of(VolumeId(0x0123_4567_89ab_cdef), MemberId(0x10));
        assert_eq!(tag, [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0, 0, 0, 0, 0, 0, 0, 0x10]);
        for (volume, member) in [(0, 0), (7, 1), (u64::MAX, u64::MAX)] {
            assert_eq!(member_of(tag_of(VolumeId(volume), MemberId(member))), (VolumeId(volume), MemberId(member)));
        }
    }
}
