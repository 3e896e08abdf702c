// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The default capacity of a flash tier, and whether a requested capacity is available.
//!
//! Pure. The file is sparse, so a large capacity costs nothing until it is used. The bound ensures that the tier is
//! full before the file system, which others share.

/// What the tier's place offers, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Size of the file system.
    pub(super) total_bytes: u64,
    /// The bytes that this user may still write.
    pub(super) available_bytes: u64,
    /// The longest file allowed (`ulimit -f`); `u64::MAX` when there is no limit.
    pub(super) file_bytes_max: u64,
    /// The memory on this machine.
    pub(super) memory_bytes: u64,
}

impl Room {
    /// A block device: all of it, for us alone.
    pub(super) fn of_device(bytes: u64) -> Room {
        Room { total_bytes: 0, available_bytes: bytes, file_bytes_max: u64::MAX, memory_bytes: u64::MAX }
    }
}

/// The share of the file system that the default capacity leaves to others. Picked by feel: what ext4 reserves for
/// root.
const RESERVE_DIVISOR: u64 = 20;
/// The default capacity leaves at most this share of the free space to others: 5 % of a large disk may be more than is
/// free on it, and half of the free space is still a useful tier.
const AVAILABLE_DIVISOR: u64 = 2;
/// The default capacity is at most this many times the machine's memory: beyond that, a program would do little but
/// wait for fetches. A user who wants more sets `size=`.
const MEMORY_FACTOR: u64 = 4;

/// The capacity without `size=`: all the available space except a reserve, at most four times the memory.
pub(super) fn default_bytes(room: Room) -> u64 {
    let reserve_bytes = (room.total_bytes / RESERVE_DIVISOR).min(room.available_bytes / AVAILABLE_DIVISOR);
    let unreserved_bytes = room.available_bytes.saturating_sub(reserve_bytes);
    unreserved_bytes.min(room.memory_bytes.saturating_mul(MEMORY_FACTOR)).min(room.file_bytes_max)
}

/// The largest size that `size=` may request.
pub(super) fn usable_bytes(room: Room) -> u64 {
    room.available_bytes.min(room.file_bytes_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const ROOM: Room =
        Room { total_bytes: 1000 * GIB, available_bytes: 500 * GIB, file_bytes_max: u64::MAX, memory_bytes: 24 * GIB };

    #[test]
    fn a_default_is_bounded_by_memory_then_by_space_then_by_the_file_limit() {
        assert_eq!(default_bytes(ROOM), 96 * GIB);
        assert_eq!(default_bytes(Room { available_bytes: 120 * GIB, ..ROOM }), 70 * GIB);
        assert_eq!(default_bytes(Room { available_bytes: 40 * GIB, ..ROOM }), 20 * GIB);
        assert_eq!(default_bytes(Room { file_bytes_max: GIB, ..ROOM }), GIB);
    }

    #[test]
    fn asking_may_use_the_reserve_but_not_more() {
        assert_eq!(usable_bytes(ROOM), 500 * GIB);
        assert_eq!(usable_bytes(Room { file_bytes_max: GIB, ..ROOM }), GIB);
        assert_eq!((default_bytes(Room::of_device(GIB)), usable_bytes(Room::of_device(GIB))), (GIB, GIB));
    }
}
