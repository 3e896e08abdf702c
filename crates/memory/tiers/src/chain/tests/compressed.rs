// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A compressed level, whose memory can be used up before its offsets are: what does not compress goes to the next
//! level, and a slab that no longer fits moves there with the write that made it too large.

use super::*;
use crate::compressed::{Codec, Compressed};

fn compressed(mib: u64) -> Box<dyn Tier> {
    Box::new(Compressed::open(Some(ByteSize(mib * MIB)), Codec::Lz4).unwrap())
}

/// How well the pages of a block compress.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Random,
    /// An eighth of each page is random.
    Sparse,
}

fn fill(bytes: &mut [u8], offset: u64, version: u64, content: Content) {
    stamp(bytes, offset, version);
    if content == Content::Sparse {
        bytes.chunks_exact_mut(PAGE).for_each(|page| page[PAGE / 8..].fill(7));
    }
}

const BLOCK_PAGES: usize = 16;
const BLOCK: u64 = (BLOCK_PAGES * PAGE) as u64;

fn write_block(chain: &Chain, offset: u64, version: u64, content: Content) {
    let mut buffer = frame(BLOCK_PAGES, 0);
    fill(buffer.bytes_mut(), offset, version, content);
    chain.write(offset, &buffer).unwrap_or_else(|failure| panic!("{failure}"));
    give_back(buffer);
}

fn check_block(chain: &Chain, offset: u64, version: u64, content: Content) {
    let (mut buffer, mut wanted) = (frame(BLOCK_PAGES, 0xee), frame(BLOCK_PAGES, 0));
    chain.read(offset, &mut buffer).unwrap_or_else(|failure| panic!("{failure}"));
    fill(wanted.bytes_mut(), offset, version, content);
    assert!(buffer.bytes() == wanted.bytes(), "the block at {offset:#x} does not hold version {version}");
    [buffer, wanted].into_iter().for_each(give_back);
}

fn blocks(slabs: u64) -> impl Iterator<Item = u64> {
    (0..slabs * SLAB).step_by(BLOCK as usize)
}

fn used_slabs(chain: &Chain, level: usize) -> u64 {
    chain.level(level).unwrap().used_bytes / SLAB
}

#[test]
fn a_chain_with_a_compressed_level_passes_the_suite_while_its_slabs_move() {
    static MOVED: AtomicU64 = AtomicU64::new(0);
    check("compressed memory and a disk", &|| shaken(vec![compressed(8), flash(16, false)], &MOVED));
    check("compressed memory and memory", &|| shaken(vec![compressed(4), dram(16)], &MOVED));
}

#[test]
fn what_does_not_compress_goes_to_the_next_level() {
    let chain = chain(vec![compressed(16), flash(64, false)]);
    blocks(4).for_each(|offset| write_block(&chain, offset, 1, Content::Random));
    assert_eq!((used_slabs(&chain, 0), used_slabs(&chain, 1)), (0, 4));
    for offset in blocks(8).filter(|offset| *offset >= 4 * SLAB) {
        write_block(&chain, offset, 1, Content::Sparse);
    }
    assert_eq!((used_slabs(&chain, 0), used_slabs(&chain, 1)), (4, 4));
    for offset in blocks(8) {
        let content = if offset < 4 * SLAB { Content::Random } else { Content::Sparse };
        check_block(&chain, offset, 1, content);
    }
}

#[test]
fn a_slab_that_no_longer_fits_moves_on_with_its_write() {
    let chain = chain(vec![compressed(16), flash(64, false)]);
    let slabs = 14;
    blocks(slabs).for_each(|offset| write_block(&chain, offset, 1, Content::Sparse));
    assert_eq!((used_slabs(&chain, 0), used_slabs(&chain, 1)), (slabs, 0));
    // 28 MiB do not fit into 16 MiB.
    blocks(slabs).for_each(|offset| write_block(&chain, offset, 2, Content::Random));
    assert!(used_slabs(&chain, 0) >= 5 && used_slabs(&chain, 1) >= 5, "{:?} {:?}", chain.level(0), chain.level(1));
    assert_eq!(used_slabs(&chain, 0) + used_slabs(&chain, 1), slabs);
    blocks(slabs).for_each(|offset| check_block(&chain, offset, 2, Content::Random));
    chain.discard(0, slabs * SLAB).unwrap();
    assert_eq!(chain.compression().unwrap().stored_pages, 0);
}

/// With several writes to one slab in flight: those that had landed were counted as in flight until they were handed
/// out, so the slab did not move, and the write failed.
#[test]
fn writes_of_a_queue_move_their_slab_on_too() {
    let chain = chain(vec![compressed(8), flash(64, false)]);
    let slabs = 8;
    blocks(slabs).for_each(|offset| write_block(&chain, offset, 1, Content::Sparse));
    let mut queue = chain.open_queue(16).unwrap();
    for offsets in blocks(slabs).collect::<Vec<_>>().chunks(16) {
        for offset in offsets {
            let mut buffer = frame(BLOCK_PAGES, 0);
            fill(buffer.bytes_mut(), *offset, 2, Content::Random);
            let request = Request { operation: Operation::Write, offset: *offset, buffer, tag: 0 };
            assert!(queue.submit(request).is_ok());
        }
        queue.kick().unwrap();
        while queue.in_flight() > 0 {
            queue.complete(Wait::ForOne, 4, &mut |done: Completion| {
                done.outcome.unwrap_or_else(|failure| panic!("{failure}"));
                give_back(done.buffer);
            });
        }
    }
    blocks(slabs).for_each(|offset| check_block(&chain, offset, 2, Content::Random));
    assert!(used_slabs(&chain, 1) > 0);
}

#[test]
fn the_mover_knows_the_room_that_is_left() {
    let chain = chain(vec![compressed(16), flash(64, false)]);
    let empty = chain.levels.all[0].room();
    blocks(8).for_each(|offset| write_block(&chain, offset, 1, Content::Sparse));
    let sparse = chain.levels.all[0].room();
    // An eighth of each page takes a little more than an eighth of the memory.
    assert!((6..=8).contains(&empty.free) && (20..=32).contains(&sparse.free), "{empty:?} {sparse:?}");
    assert_eq!(sparse.slabs, sparse.free + 8);
}
