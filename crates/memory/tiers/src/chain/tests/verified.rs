// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A slab moves out of an array, a mirror or one with parity, in which one copy or shard is damaged. The move used to
//! copy the first bytes that it got and to give up all copies, so that the good copy was lost with the damaged one.

use aquifer_borrower::Array;
use aquifer_borrower::memory_members::{Memory, array_of, members, parity_of};

use super::*;
use crate::encrypted::Encrypted;

const SLABS_MOVED: u64 = 4;

type Arrays = [(Vec<Arc<Memory>>, Array); 3];

/// A mirror, and arrays with one and with two parity shards.
fn arrays() -> Arrays {
    let (two, five, six) = (members(2), members(5), members(6));
    let arrays = [array_of(&two, 2), parity_of(&five, 4, 1), parity_of(&six, 4, 2)];
    let mut members = [two, five, six].into_iter();
    arrays.map(|array| (members.next().unwrap(), array))
}

fn move_all_down(chain: &Chain, leaves: Leaves) -> Vec<bool> {
    let mut mover = ChainMover::new(Arc::clone(&chain.levels)).expect("address space");
    let moves = SlabIndex::all(SLABS_MOVED as u32).map(|slab| Move { slab, from: 0, to: 1 });
    moves.map(|planned| mover.make(&planned, leaves)).collect()
}

#[test]
fn a_move_takes_the_copy_that_the_seals_confirm() {
    for kind in 0..arrays().len() {
        for liar in 0..arrays()[kind].0.len() {
            let (members, array) = arrays().into_iter().nth(kind).unwrap();
            let chain = chain(vec![Box::new(Encrypted::new(Box::new(array)).unwrap()), dram(64)]);
            (0..SLABS_MOVED).for_each(|slab| write(&chain, slab, 3).unwrap());
            members[liar].lie(true);
            assert_eq!(move_all_down(&chain, Leaves::No), [true; SLABS_MOVED as usize], "{kind} {liar}");
            (0..SLABS_MOVED).for_each(|slab| read(&chain, slab, 3));
            assert_eq!(used(&chain), [0, SLABS_MOVED]);
        }
    }
}

#[test]
fn a_page_that_no_way_reads_right_stays_unless_it_is_lost_there() {
    let (members, array) = arrays().into_iter().next().unwrap();
    let chain = chain(vec![Box::new(Encrypted::new(Box::new(array)).unwrap()), dram(64)]);
    (0..SLABS_MOVED).for_each(|slab| write(&chain, slab, 3).unwrap());
    members.iter().for_each(|member| member.lie(true));
    assert_eq!(move_all_down(&chain, Leaves::No), [false; SLABS_MOVED as usize]);
    members.iter().for_each(|member| member.lie(false));
    (0..SLABS_MOVED).for_each(|slab| read(&chain, slab, 3));
    members.iter().for_each(|member| member.lie(true));
    assert_eq!(move_all_down(&chain, Leaves::Yes), [true; SLABS_MOVED as usize], "what can be saved is");
}

/// Without seals the mover cannot tell which copy is right. The pager can, by its guards, as long as both copies exist.
#[test]
fn copies_that_differ_are_both_kept() {
    for (members, array) in arrays() {
        let chain = chain(vec![Box::new(array), dram(64)]);
        (0..SLABS_MOVED).for_each(|slab| write(&chain, slab, 3).unwrap());
        assert_eq!(used(&chain), [SLABS_MOVED, 0]);
        members[0].lie(true);
        let moved = move_all_down(&chain, Leaves::No);
        assert!(moved.contains(&false), "some slab has a part with the liar");
        members[0].lie(false);
        (0..SLABS_MOVED).for_each(|slab| read(&chain, slab, 3));
        assert_eq!(
            move_all_down(&chain, Leaves::No).iter().zip(moved).filter(|(now, before)| *now == before).count(),
            0
        );
        (0..SLABS_MOVED).for_each(|slab| read(&chain, slab, 3));
    }
}
