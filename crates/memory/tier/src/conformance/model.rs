// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Checks random mixes of steps against a model, which is a plain vector of bytes. Every read returns the last write.
//!
//! Requests in flight at the same time have no order. So a read first waits for writes in flight to the same pages, and
//! a write or a discard waits for every request in flight to the same pages. The pager does so, too.

use super::frames::{frame, give_back, stamp};
use crate::tier::{Completion, Operation, PAGE, Request, Tier, TierQueue, Wait};

/// Pages of the tier that the steps use.
pub const PAGES: u64 = 1024;
const PAGE_BYTES: u64 = PAGE as u64;

/// One step. Positions and lengths are in pages, inside [`PAGES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Hand out what is complete.
    Complete,
    /// Give space back.
    Discard {
        /// Where.
        page: u64,
        /// How much.
        pages: u64,
    },
    /// Wait for the medium.
    Flush,
    /// Read on this thread.
    Read {
        /// Where.
        page: u64,
        /// How much.
        pages: u64,
    },
    /// Read through the queue.
    ReadBehind {
        /// Where.
        page: u64,
        /// How much.
        pages: u64,
    },
    /// Write on this thread.
    Write {
        /// Where.
        page: u64,
        /// How much.
        pages: u64,
    },
    /// Write through the queue.
    WriteBehind {
        /// Where.
        page: u64,
        /// How much.
        pages: u64,
    },
}

struct Game<'a> {
    tier: &'a dyn Tier,
    queue: Box<dyn TierQueue>,
    /// What the tier holds; `None` for pages that may read as anything.
    truth: Vec<Option<Vec<u8>>>,
    /// Requests in flight.
    flying: Vec<(Operation, u64, u64)>,
    version: u64,
}

/// Carries out `steps` on `tier`, whose contents may be anything before. Panics at the first wrong byte.
pub fn replay(tier: &dyn Tier, depth: u32, steps: &[Step]) {
    let queue = tier.open_queue(depth).unwrap();
    let truth = vec![None; usize::try_from(PAGES).expect("few pages")];
    let mut game = Game { tier, queue, truth, flying: Vec::new(), version: 0 };
    for step in steps {
        game.version += 1;
        game.play(*step);
    }
    game.land(|_| true);
    for page in 0..PAGES {
        if game.truth[index(page)].is_some() {
            game.play(Step::Read { page, pages: 1 });
        }
    }
}

impl Game<'_> {
    fn play(&mut self, step: Step) {
        match step {
            Step::Complete => self.complete(Wait::No),
            Step::Flush => self.tier.flush().unwrap(),
            Step::Discard { page, pages } => {
                self.land(|(_, other, count)| overlaps((page, pages), (other, count)));
                self.tier.discard(page * PAGE_BYTES, pages * PAGE_BYTES).unwrap();
                self.truth[index(page)..index(page + pages)].fill(None);
            }
            Step::Read { page, pages } => {
                self.land(|(operation, other, count)| {
                    operation == Operation::Write && overlaps((page, pages), (other, count))
                });
                let mut buffer = frame(index(pages), 0xee);
                self.tier.read(page * PAGE_BYTES, &mut buffer).unwrap();
                self.compare(page, buffer.bytes());
                give_back(buffer);
            }
            Step::Write { page, pages } => {
                self.land(|(_, other, count)| overlaps((page, pages), (other, count)));
                let request = self.request(Operation::Write, page, pages);
                self.tier.write(request.offset, &request.buffer).unwrap();
                self.learn(page, request.buffer.bytes());
                give_back(request.buffer);
            }
            Step::ReadBehind { page, pages } => {
                self.land(|(operation, other, count)| {
                    operation == Operation::Write && overlaps((page, pages), (other, count))
                });
                self.submit(Operation::Read, page, pages);
            }
            Step::WriteBehind { page, pages } => {
                self.land(|(_, other, count)| overlaps((page, pages), (other, count)));
                self.submit(Operation::Write, page, pages);
            }
        }
    }

    fn request(&self, operation: Operation, page: u64, pages: u64) -> Request {
        let mut buffer = frame(index(pages), 0xee);
        let offset = page * PAGE_BYTES;
        if operation == Operation::Write {
            stamp(buffer.bytes_mut(), offset, self.version);
        }
        Request { operation, offset, buffer, tag: page }
    }

    fn submit(&mut self, operation: Operation, page: u64, pages: u64) {
        let mut request = self.request(operation, page, pages);
        while let Err(back) = self.queue.submit(request) {
            request = back;
            self.complete(Wait::ForOne);
        }
        self.flying.push((operation, page, pages));
        if self.version.is_multiple_of(3) {
            self.queue.kick().unwrap();
        }
    }

    /// Waits until no request in flight is in the way.
    fn land(&mut self, in_the_way: impl Fn((Operation, u64, u64)) -> bool) {
        while self.flying.iter().any(|flight| in_the_way(*flight)) {
            self.complete(Wait::ForOne);
        }
    }

    fn complete(&mut self, wait: Wait) {
        let mut landed: Vec<Completion> = Vec::new();
        self.queue.complete(wait, 4, &mut |completion| landed.push(completion));
        for completion in landed {
            completion.outcome.unwrap();
            let pages = (completion.buffer.len() / PAGE) as u64;
            let found = self.flying.iter().position(|(_, page, count)| (*page, *count) == (completion.tag, pages));
            let (operation, page, _) = self.flying.swap_remove(found.expect("only what flies can land"));
            match operation {
                Operation::Read => self.compare(page, completion.buffer.bytes()),
                Operation::Write => self.learn(page, completion.buffer.bytes()),
            }
            give_back(completion.buffer);
        }
    }

    fn compare(&self, page: u64, bytes: &[u8]) {
        for (truth, (bytes, page)) in self.truth[index(page)..].iter().zip(bytes.chunks_exact(PAGE).zip(page..)) {
            if let Some(truth) = truth {
                assert!(truth == bytes, "page {page} does not hold what was written last");
            }
        }
    }

    fn learn(&mut self, page: u64, bytes: &[u8]) {
        for (truth, bytes) in self.truth[index(page)..].iter_mut().zip(bytes.chunks_exact(PAGE)) {
            *truth = Some(bytes.to_vec());
        }
    }
}

fn index(page: u64) -> usize {
    usize::try_from(page).expect("few pages")
}

fn overlaps(one: (u64, u64), other: (u64, u64)) -> bool {
    one.0 < other.0 + other.1 && other.0 < one.0 + one.1
}
