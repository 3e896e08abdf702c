// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A process overwrites the words that it shares with its related processes. A place with a member that the array does
//! not have used to end every related process that read the slab, by an index out of bounds. Operations now fail or
//! ignore such words.

use super::*;

/// The first word of a slab in the table is its state, and the next two are places.
const STATE_BUSY: u64 = 1 << 18;

/// Words of every kind: likely places and counts, and any others.
fn words(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let chance = state >> 32 ^ state << 32;
        match state >> 61 {
            0 => 0,
            1 => u64::MAX,
            2 | 3 => chance % 4096,
            4 => (1 << 63) + chance % 64,
            _ => chance,
        }
    }
}

fn use_all(array: &Array, queue: &mut dyn TierQueue) {
    let mut buffer = frame(4, 1);
    for slab in 0..SLABS as u64 {
        let offset = slab * SLAB_BYTES;
        let _ = array.read(offset, &mut buffer);
        let _ = array.read_verified(offset, &mut buffer, &mut |_, _, _| {});
        (0..3).for_each(|way| _ = array.read_other(offset, &mut buffer, way));
        array.report_corruption(offset, buffer.len(), 2);
        for (tag, operation) in [Operation::Read, Operation::Write].into_iter().enumerate() {
            assert!(queue.submit(Request { operation, offset, buffer: frame(4, 1), tag: tag as u64 }).is_ok());
        }
        while queue.in_flight() > 0 {
            queue.complete(Wait::ForOne, 4, &mut |done| give_back(done.buffer));
        }
        let _ = array.write(offset, &buffer);
        let _ = array.discard(offset, PAGE_BYTES);
    }
    array.turn(None);
    let _ = array.discard(0, 2 * SLAB_BYTES);
    give_back(buffer);
}

#[test]
fn no_words_of_a_relative_end_the_process() {
    for array in [array_of(&members(3), 2), parity_of(&members(4), 2, 1)] {
        let mut queue = array.open_queue(4).unwrap();
        let mut word = words(5);
        for _ in 0..20 {
            array.parts.head.iter().for_each(|it| it.store(word(), Ordering::Relaxed));
            for (index, it) in array.parts.places.words().iter().enumerate() {
                // Every access waits for a change that never ends, so few slabs have one.
                let is_state = index % PLACE_WORDS == 0 && index % 8 != 0;
                it.store(if is_state { word() & !STATE_BUSY } else { word() }, Ordering::Relaxed);
            }
            use_all(&array, &mut *queue);
        }
    }
}
