// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A process overwrites the tables and the file that it shares with related processes. Operations fail, or give other
//! bytes than were stored, which the pager's guards detect; they neither end the process nor go on for ever.

use super::*;

/// Words of every kind: likely entries and spans, and any others.
struct Words(Chance);

impl Words {
    fn next(&mut self) -> u64 {
        let chance = self.0.next() << 33 ^ self.0.next() << 11 ^ self.0.next();
        match self.0.next() % 8 {
            0 => 0,
            1 => u64::MAX,
            2 => chance % 4096,
            // A record in the file.
            3 => chance & 0x3ff_ffff | (2 + self.0.next() % 4),
            4 => 2 << 46 | chance & 0x3_ffff_ffff,
            _ => chance,
        }
    }
}

fn overwrite(tier: &Compressed, words: &mut Words) {
    let store = &tier.memory.store;
    store.entries[..1024].iter().for_each(|entry| entry.store(words.next(), Ordering::Relaxed));
    let others = store.spans.all_words().chain(store.counter_words());
    others.for_each(|word| word.store(words.next(), Ordering::Relaxed));
    for at in 0..64 {
        let bytes: Vec<u8> = (0..64).flat_map(|_| words.next().to_le_bytes()).collect();
        rustix::io::pwrite(&*store.file, &bytes, at * 65_536 + words.next() % 65_000).unwrap();
    }
}

/// Every operation. Failures are expected.
fn use_all(tier: &Compressed) {
    let (mut page, mut block) = (frame(1, 1), frame(64, 1));
    for at in 0..1024u64 {
        let _ = tier.read(at * PAGE as u64, &mut page);
        let _ = put(tier, at, 1, at as usize * 7 % PAGE);
    }
    for at in (0..1024u64).step_by(64) {
        let _ = tier.write(at * PAGE as u64, &block);
        let _ = tier.read(at * PAGE as u64, &mut block);
        let _ = tier.discard(at * PAGE as u64, 32 * PAGE as u64);
    }
    let _ = (tier.compression(), tier.room_bytes());
    let _ = tier.discard(0, tier.capacity_bytes());
    [page, block].into_iter().for_each(give_back);
}

#[test]
fn no_words_of_a_relative_end_the_process() {
    for (_, codec) in Codec::ALL {
        let tier = Compressed::open(Some(ByteSize(8 * MIB)), codec).unwrap();
        let mut words = Words(Chance(5));
        for _ in 0..3 {
            overwrite(&tier, &mut words);
            use_all(&tier);
        }
    }
}

#[test]
fn words_that_change_at_any_time_end_nothing() {
    let (tier, over) = (compressed(8), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut words = Words(Chance(11));
            while !over.load(Ordering::Relaxed) {
                overwrite(&tier, &mut words);
            }
        });
        (0..5).for_each(|_| use_all(&tier));
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_record_outside_the_file_fails_the_read_and_is_forgotten_with_its_page() {
    let tier = compressed(4);
    let mut page = frame(1, 0);
    for word in [2 | u64::MAX << 25, 3 | 1 << 60, 5 | 4095 << 13 | u64::MAX << 40] {
        tier.memory.store.entries[7].store(word, Ordering::Relaxed);
        let read = tier.read(7 * PAGE as u64, &mut page).unwrap_err();
        assert_eq!((read.cause, read.disposition()), (Cause::Overwritten, Disposition::Poison), "{word:#x}");
        put(&tier, 7, 1, 100).unwrap();
        expect(&tier, 7, 1, 100);
    }
    give_back(page);
}
