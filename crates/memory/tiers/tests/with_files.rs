// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A tier with files beside it is a tier; its files are read at their own offsets, and nowhere else.

use std::sync::Arc;

use aquifer_core::units::SlabIndex;
use aquifer_sys::FrameBuffer;
use aquifer_tiers::conformance::{check, frames};
use aquifer_tiers::{Cause, FILES_MAX, FilePages, Operation, PAGE, Request, Tier, TierSpec, Wait, WithFiles, open};

/// A file whose pages are filled with their number and one of the file.
struct Numbered(u8);

impl FilePages for Numbered {
    fn read(&self, page: u64, buffer: &mut FrameBuffer) -> Result<(), Cause> {
        for (number, bytes) in (page..).zip(buffer.bytes_mut().chunks_exact_mut(PAGE)) {
            bytes.fill(self.0 ^ number as u8);
        }
        Ok(())
    }

    fn give_up_in_child(&self) {}
}

fn tier() -> (WithFiles, Arc<aquifer_tiers::Files>) {
    WithFiles::over(open(&"dram:size=16MiB".parse::<TierSpec>().unwrap()).unwrap())
}

#[test]
fn a_tier_with_files_passes_the_suite() {
    check("with files", &|| Box::new(tier().0));
}

#[test]
fn a_file_is_read_at_its_offsets_by_thread_and_queue() {
    let (tier, files) = tier();
    let file = |number| Arc::new(Numbered(number)) as Arc<dyn FilePages>;
    let slabs: Vec<SlabIndex> = (0..3).map(|number| files.attach(&file(number * 50)).unwrap()).collect();
    files.detach(slabs[1]);
    let mut queue = tier.open_queue(4).unwrap();
    for (number, slab) in slabs.iter().enumerate() {
        let offset = slab.offset() + 7 * PAGE as u64;
        let mut frame = frames::frame(2, 0xee);
        assert_eq!(tier.read(offset, &mut frame).is_ok(), number != 1);
        let mut outcome = None;
        queue.submit(Request { operation: Operation::Read, offset, buffer: frame, tag: 5 }).unwrap();
        assert_eq!(queue.in_flight(), 1);
        queue.complete(Wait::ForOne, 1, &mut |completion| outcome = Some(completion));
        let completion = outcome.expect("it is ready");
        assert_eq!((completion.tag, completion.outcome.is_ok()), (5, number != 1));
        if number != 1 {
            let bytes = completion.buffer.bytes();
            let filled = number as u8 * 50;
            assert_eq!((bytes[0], bytes[PAGE]), (filled ^ 7, filled ^ 8));
        }
        assert!(tier.mapped(offset, PAGE).is_none());
        assert!(tier.write(offset, &completion.buffer).is_err(), "nothing is written back to a file");
        frames::give_back(completion.buffer);
    }
    assert_eq!(files.attach(&file(9)), Some(slabs[1]), "a place that is free again");
    let more = (0..FILES_MAX).take_while(|_| files.attach(&file(1)).is_some()).count();
    assert_eq!(more, FILES_MAX - 3);
}
