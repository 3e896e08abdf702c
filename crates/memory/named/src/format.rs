// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The bytes of a named mapping's file, version 1, little-endian. Golden file: `tests/golden/named_v1.bin`.
//!
//! Pure. The file consists of pages of 4096 bytes, which are numbered from its start; a page's number is its *place*.
//! Places 0 and 1 are superblocks, and each other place has a page of the mapping, or a node, or nothing.
//!
//! A superblock is 64 bytes, followed by zeros. Generation *n* is at place *n* mod 2.
//!
//! | offset | bytes | field                                                                                        |
//! |--------|-------|----------------------------------------------------------------------------------------------|
//! | 0      | 8     | magic: `AQNAMED` and a zero byte                                                              |
//! | 8      | 4     | version: 1                                                                                   |
//! | 12     | 4     | zero                                                                                         |
//! | 16     | 8     | generation: 1 for a new file, one more with each sync                                        |
//! | 24     | 8     | bytes of the mapping                                                                         |
//! | 32     | 8     | pages of the file that the tree may use: every place in the tree is below                    |
//! | 40     | 16    | entry of the root node                                                                       |
//! | 56     | 8     | guard of the bytes 0 to 56                                                                    |
//!
//! A node is 256 entries, of pages of the mapping or of nodes; entries beyond the mapping's end are zeros. An entry is
//! the place and the guard of one page. The guard is the CRC-64 (NVMe) of its bytes, or 1 if that is 0 or all ones; a
//! page of zeros, and a node without any entry, has place 0 and guard 0, and takes no place. The number of levels of
//! nodes follows from the mapping's size: the fewest, and at least one, whose root has an entry for everything.
//!
//! Magic, version and guard of a superblock are at the same offsets in every version.

use aquifer_core::guard;
use aquifer_core::units::PAGE_BYTES;

use crate::failure::Failure;

/// Bytes of a page, of the mapping and of the file.
pub const PAGE: usize = PAGE_BYTES as usize;
/// The largest mapping: 1 TiB, as for any mapping of a space.
pub const MAPPING_BYTES_MAX: u64 = 1 << 40;
/// Places of superblocks.
pub const SUPERBLOCKS: u64 = 2;
/// Entries of a node.
pub const NODE_ENTRIES: usize = PAGE / ENTRY_BYTES;
/// The version that this code writes, and the only one that it reads.
pub const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"AQNAMED\0";
const ENTRY_BYTES: usize = 16;
/// Bytes of a superblock before the zeros that fill its page.
pub const SUPERBLOCK_BYTES: usize = 64;

/// Where a page is, and which bytes it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The place in the file; 0 for a page of zeros.
    pub place: u64,
    /// The guard of the bytes.
    pub guard: u64,
}

impl Entry {
    /// A page of zeros, or a node without any entry.
    pub const ZERO: Entry = Entry { place: 0, guard: guard::ZERO };

    /// Whether a file of `pages` pages can contain this entry.
    fn is_valid(self, pages: u64) -> bool {
        if self.place == 0 {
            self.guard == guard::ZERO
        } else {
            (SUPERBLOCKS..pages).contains(&self.place) && self.guard != guard::ZERO && self.guard != guard::UNKNOWN
        }
    }
}

/// What one sync has made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// One more than that of the sync before.
    pub generation: u64,
    /// Length of the mapping.
    pub mapping_bytes: u64,
    /// Pages of the file that the tree may use.
    pub pages: u64,
    /// The root node.
    pub root: Entry,
}

impl Superblock {
    /// The place of this generation's superblock.
    pub fn place(&self) -> u64 {
        self.generation % SUPERBLOCKS
    }

    /// The page to write.
    pub fn encode(&self) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        page[..8].copy_from_slice(&MAGIC);
        page[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let words = [self.generation, self.mapping_bytes, self.pages, self.root.place, self.root.guard];
        for (index, word) in words.into_iter().enumerate() {
            put_word(&mut page, 16 + index * 8, word);
        }
        let crc = checksum(&page[..56]);
        put_word(&mut page, 56, crc);
        page
    }

    /// Reads the superblock at `place`.
    ///
    /// # Errors
    /// [`Failure::Foreign`] without the magic, [`Failure::Damaged`] for any other bytes than `encode` makes, and
    /// [`Failure::Version`].
    pub fn decode(place: u64, page: &[u8; PAGE]) -> Result<Superblock, Failure> {
        if page[..8] != MAGIC {
            return Err(Failure::Foreign);
        }
        let damaged = Failure::Damaged { place };
        if checksum(&page[..56]) != word(page, 56) {
            return Err(damaged);
        }
        let found = u32::from_le_bytes([page[8], page[9], page[10], page[11]]);
        if found != VERSION {
            return Err(Failure::Version { found });
        }
        let superblock = Superblock {
            generation: word(page, 16),
            mapping_bytes: word(page, 24),
            pages: word(page, 32),
            root: Entry { place: word(page, 40), guard: word(page, 48) },
        };
        let is_valid = page[12..16] == [0; 4]
            && page[SUPERBLOCK_BYTES..].iter().all(|byte| *byte == 0)
            && superblock.generation > 0
            && superblock.place() == place
            && (1..=MAPPING_BYTES_MAX).contains(&superblock.mapping_bytes)
            && superblock.pages >= SUPERBLOCKS
            && superblock.root.is_valid(superblock.pages);
        if is_valid { Ok(superblock) } else { Err(damaged) }
    }
}

/// The page of a node.
pub fn encode_node(entries: &[Entry]) -> [u8; PAGE] {
    assert!(entries.len() <= NODE_ENTRIES, "a node has at most {NODE_ENTRIES} entries");
    let mut page = [0; PAGE];
    for (index, entry) in entries.iter().enumerate() {
        put_word(&mut page, index * ENTRY_BYTES, entry.place);
        put_word(&mut page, index * ENTRY_BYTES + 8, entry.guard);
    }
    page
}

/// Reads a node of a file of `pages` pages, of which `used` entries are within the mapping. `None` if these are not the
/// bytes of such a node. The caller has checked the node's guard.
pub fn decode_node(page: &[u8; PAGE], pages: u64, used: usize) -> Option<Vec<Entry>> {
    let mut entries = Vec::with_capacity(NODE_ENTRIES);
    for at in (0..PAGE).step_by(ENTRY_BYTES) {
        entries.push(Entry { place: word(page, at), guard: word(page, at + 8) });
    }
    let within = entries.iter().take(used).all(|entry| entry.is_valid(pages));
    let beyond = entries.iter().skip(used).all(|entry| *entry == Entry::ZERO);
    entries.truncate(used);
    (within && beyond).then_some(entries)
}

/// The guard of a superblock.
fn checksum(bytes: &[u8]) -> u64 {
    guard::of_page(bytes)
}

fn word(page: &[u8; PAGE], at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"))
}

fn put_word(page: &mut [u8; PAGE], at: usize, word: u64) {
    page[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUPERBLOCK: Superblock =
        Superblock { generation: 5, mapping_bytes: 70_000, pages: 40, root: Entry { place: 7, guard: 99 } };

    /// The superblock with one word changed, and a checksum that matches.
    fn forged(at: usize, value: u64) -> [u8; PAGE] {
        let mut page = SUPERBLOCK.encode();
        put_word(&mut page, at, value);
        let crc = checksum(&page[..56]);
        put_word(&mut page, 56, crc);
        page
    }

    #[test]
    fn a_superblock_is_read_as_it_was_written_and_only_at_its_place() {
        let page = SUPERBLOCK.encode();
        assert_eq!(Superblock::decode(1, &page), Ok(SUPERBLOCK));
        assert_eq!(Superblock::decode(0, &page), Err(Failure::Damaged { place: 0 }));
        for bit in 0..SUPERBLOCK_BYTES * 8 {
            let mut page = page;
            page[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(1, &page).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn fields_out_of_range_are_damage_even_with_a_correct_checksum() {
        for (at, value) in [
            (16, 0),
            (24, 0),
            (24, MAPPING_BYTES_MAX + 1),
            (32, 1),
            (32, 7),
            (40, 1),
            (40, 40),
            (40, u64::MAX),
            (48, 0),
            (48, u64::MAX),
        ] {
            assert_eq!(Superblock::decode(1, &forged(at, value)), Err(Failure::Damaged { place: 1 }), "{at}: {value}");
        }
        assert_eq!(Superblock::decode(1, &forged(8, 2)), Err(Failure::Version { found: 2 }));
        assert_eq!(Superblock::decode(1, &[0; PAGE]), Err(Failure::Foreign));
    }

    #[test]
    fn a_node_lists_only_pages_of_the_file() {
        let entries = vec![Entry { place: 2, guard: 5 }, Entry::ZERO, Entry { place: 9, guard: 6 }];
        let page = encode_node(&entries);
        assert_eq!(decode_node(&page, 10, 3), Some(entries.clone()));
        assert_eq!(decode_node(&page, 9, 3), None, "a place beyond the file");
        assert_eq!(decode_node(&page, 10, 2), None, "an entry beyond the mapping");
        for bad in [Entry { place: 1, guard: 5 }, Entry { place: 0, guard: 5 }, Entry { place: 5, guard: 0 }] {
            assert_eq!(decode_node(&encode_node(&[bad]), 10, 1), None, "{bad:?}");
        }
    }
}
