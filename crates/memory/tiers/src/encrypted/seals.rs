// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Seals pages with AES-256-GCM, and keeps what is needed to open them: keys, nonces and tags stay in this machine.
//!
//! A nonce is a number that is drawn for one page of one write, and never again under its key. The number comes from a
//! counter in memory that related processes share, and it determines the key. The record of a page is the nonce and the
//! tag of what was stored there last; it is in shared memory, too, so that a forked child can open what its parent has
//! sealed. A page that was changed, or that is an older version, does not match its record.
//!
//! | word of a record | what                                   |
//! |------------------|----------------------------------------|
//! | 0                | the nonce; 0: nothing is stored there  |
//! | 1, 2             | the tag                                |
//!
//! Threads: any, including signal handlers. Allocates when it is made, and never afterwards; locks nothing. No other
//! thread uses a page while it is written, as with every tier (`tier.rs`).

use std::sync::atomic::{AtomicU64, Ordering};

use aquifer_sys::raw::Errno;
use aquifer_sys::words::Words;
use aquifer_tier::{PAGE, Verified};
use aquifer_wire::SLAB_BYTES;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

use super::Sealing;

/// Words of one record.
const RECORD_WORDS: usize = 3;

/// Pages that one key seals: 1 PiB. After 2^46 blocks of AES, sealed bytes can be distinguished from random ones with
/// an advantage of 2^-37 (the birthday bound, 2^92 / 2^129).
const PAGES_OF_KEY_BITS: u32 = 38;
/// Keys of one tier: enough for 256 PiB, which at 10 GB/s are 300 days. A choice; one key takes less than a KiB.
const KEYS: usize = 256;

const PAGES_OF_SLAB: usize = SLAB_BYTES as usize / PAGE;

/// The nonce and the tag of one page.
type Record = [u64; RECORD_WORDS];

/// Seals every page with AES-256-GCM, and keeps in DRAM what is needed to open it.
pub struct Seals {
    keys: Box<[LessSafeKey]>,
    /// The last nonce that was drawn.
    drawn: Words,
    records: Words,
    /// For each slab: 1 if something was read by another way, so that the same bytes may be written again.
    repaired: Words,
}

impl Seals {
    /// Seals with new keys, for a tier of this capacity.
    pub(super) fn new(capacity_bytes: u64) -> Result<Seals, Errno> {
        let pages = usize::try_from(capacity_bytes).map_err(|_| Errno(libc::EFBIG))?.div_ceil(PAGE);
        let random = SystemRandom::new();
        let key = |_| {
            let mut bytes = [0; 32];
            random.fill(&mut bytes).map_err(|_| Errno(libc::EIO))?;
            let key = UnboundKey::new(&AES_256_GCM, &bytes).expect("the key is as long as it has to be");
            Ok(LessSafeKey::new(key))
        };
        Ok(Seals {
            keys: (0..KEYS).map(key).collect::<Result<_, Errno>>()?,
            drawn: Words::shared(1)?,
            records: Words::shared(pages * RECORD_WORDS)?,
            repaired: Words::shared(pages.div_ceil(PAGES_OF_SLAB))?,
        })
    }

    fn seal_page(&self, nonce: u64, plain: &[u8], sealed: &mut [u8]) -> Option<Record> {
        let key = self.key(nonce)?;
        sealed.copy_from_slice(plain);
        // ring refuses only messages beyond AES-GCM's limit of 64 GiB.
        let tag = key.seal_in_place_separate_tag(number(nonce), Aad::empty(), sealed).ok()?;
        let (low, high) = tag.as_ref().split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight of sixteen"));
        Some([nonce, word(low), word(high)])
    }

    /// Seals the same bytes again, over a copy that was damaged, with the same nonce, which gives the same message. So
    /// a related process that is reading there finds bytes that match its record. `None` for other bytes: their sealed
    /// form is only in `sealed`, where the caller overwrites it.
    fn seal_again(&self, page: usize, plain: &[u8], sealed: &mut [u8]) -> Option<Record> {
        if self.repaired[page / PAGES_OF_SLAB].load(Ordering::Relaxed) == 0 {
            return None;
        }
        let record = get(self.record(page));
        (record[0] != 0).then(|| self.seal_page(record[0], plain, sealed)).flatten().filter(|again| *again == record)
    }

    fn open_page(&self, [nonce, low, high]: Record, page: &mut [u8]) -> bool {
        let mut tag = [0; 16];
        tag[..8].copy_from_slice(&low.to_le_bytes());
        tag[8..].copy_from_slice(&high.to_le_bytes());
        let Some(key) = self.key(nonce).filter(|_| nonce != 0) else { return false };
        key.open_in_place_separate_tag(number(nonce), Aad::empty(), tag.into(), page, 0..).is_ok()
    }

    /// The key of a nonce; `None` after the last key.
    fn key(&self, nonce: u64) -> Option<&LessSafeKey> {
        self.keys.get(usize::try_from(nonce >> PAGES_OF_KEY_BITS).ok()?)
    }

    fn record(&self, page: usize) -> &[AtomicU64] {
        &self.records[page * RECORD_WORDS..][..RECORD_WORDS]
    }
}

impl Sealing for Seals {
    const RECORD_WORDS: usize = RECORD_WORDS;
    const STORES_PLAIN: bool = false;

    fn seal(&self, first: usize, plain: &[u8], sealed: &mut [u8], kept: &[AtomicU64]) -> Result<(), i32> {
        let pages = plain.len() / PAGE;
        // Relaxed: all that counts is that each number is drawn only once. It is drawn even if it is not used.
        let nonce = self.drawn[0].fetch_add(pages as u64, Ordering::Relaxed) + 1;
        let parts = plain.chunks_exact(PAGE).zip(sealed.chunks_exact_mut(PAGE)).zip(kept.chunks_exact(RECORD_WORDS));
        for (index, ((plain, sealed), kept)) in parts.enumerate() {
            let record = match self.seal_again(first + index, plain, sealed) {
                Some(record) => record,
                None => self.seal_page(nonce + index as u64, plain, sealed).ok_or(libc::ENOKEY)?,
            };
            put(kept, record);
        }
        Ok(())
    }

    fn stored(&self, first: usize, pages: usize, kept: &[AtomicU64]) {
        for (page, kept) in (first..first + pages).zip(kept.chunks_exact(RECORD_WORDS)) {
            put(self.record(page), get(kept));
        }
    }

    /// Opens what was read of page `first` and the pages after it. A page that does not match its record becomes zeros,
    /// and so does a page where nothing is stored: no page of zeros is ever stored, so the pager's guards detect it.
    fn open(&self, first: usize, bytes: &mut [u8]) {
        for (index, page) in bytes.chunks_exact_mut(PAGE).enumerate() {
            if !self.open_page(get(self.record(first + index)), page) {
                page.fill(0);
            }
        }
    }

    fn verify(&self, page: usize, sealed: &[u8]) -> Verified {
        let record = get(self.record(page));
        if record[0] == 0 {
            return Verified::Unknown;
        }
        if self.open_page(record, &mut sealed.to_vec()) { Verified::Right } else { Verified::Wrong }
    }

    fn open_one(&self, page: usize, bytes: &mut [u8]) -> bool {
        let record = get(self.record(page));
        if record[0] == 0 {
            bytes.fill(0);
            return true;
        }
        self.open_page(record, bytes)
    }

    fn forget(&self, first: usize, pages: usize) {
        for page in first..first + pages {
            let nonce = &self.record(page)[0];
            // Avoids a store to memory that nobody has touched.
            if nonce.load(Ordering::Relaxed) != 0 {
                nonce.store(0, Ordering::Release);
            }
            if page % PAGES_OF_SLAB == 0 && first + pages >= page + PAGES_OF_SLAB {
                self.repaired[page / PAGES_OF_SLAB].store(0, Ordering::Relaxed);
            }
        }
    }

    fn may_be_repaired(&self, first: usize, pages: usize) {
        for slab in first / PAGES_OF_SLAB..(first + pages).div_ceil(PAGES_OF_SLAB) {
            self.repaired[slab].store(1, Ordering::Relaxed);
        }
    }
}

fn number(nonce: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&nonce.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Stores the nonce last, with Release, which pairs with the Acquire in `get`.
fn put(words: &[AtomicU64], [nonce, low, high]: Record) {
    words[1].store(low, Ordering::Relaxed);
    words[2].store(high, Ordering::Relaxed);
    words[0].store(nonce, Ordering::Release);
}

fn get(words: &[AtomicU64]) -> Record {
    let nonce = words[0].load(Ordering::Acquire);
    [nonce, words[1].load(Ordering::Relaxed), words[2].load(Ordering::Relaxed)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PAGES: usize = 1024;

    fn seals() -> Seals {
        Seals::new((PAGES * PAGE) as u64).unwrap()
    }

    fn kept(pages: usize) -> Vec<AtomicU64> {
        (0..pages * RECORD_WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    /// Seals and stores; returns what a medium would have, and the nonces.
    fn store(seals: &Seals, first: usize, plain: &[u8]) -> (Vec<u8>, Vec<u64>) {
        let mut sealed = vec![0; plain.len()];
        let kept = kept(plain.len() / PAGE);
        seals.seal(first, plain, &mut sealed, &kept).unwrap();
        seals.stored(first, plain.len() / PAGE, &kept);
        (sealed, kept.chunks(RECORD_WORDS).map(|record| record[0].load(Ordering::Relaxed)).collect())
    }

    #[test]
    fn pages_come_back_and_nothing_else_does() {
        let seals = seals();
        let plain = [[1; PAGE], [2; PAGE]].concat();
        let (sealed, _) = store(&seals, 5, &plain);
        let open = |first, sealed: &[u8]| {
            let mut bytes = sealed.to_vec();
            seals.open(first, &mut bytes);
            bytes
        };
        assert_eq!(open(5, &sealed), plain);
        assert_eq!(open(6, &sealed[PAGE..]), plain[PAGE..], "a part of what was written together");
        assert_eq!(open(7, &sealed), [0; 2 * PAGE], "nothing is stored there");
        assert_eq!(open(5, &sealed[PAGE..]), [0; PAGE], "another page's");
        for at in [0, 2000, PAGE - 1] {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(open(5, &changed), [vec![0; PAGE], vec![2; PAGE]].concat(), "{at}");
        }
        store(&seals, 5, &[3; PAGE]);
        assert_eq!(open(5, &sealed[..PAGE]), [0; PAGE], "what was stored there before");
        seals.forget(6, 1);
        assert_eq!(open(6, &sealed[PAGE..]), [0; PAGE]);
    }

    #[test]
    fn no_nonce_is_drawn_twice() {
        let seals = seals();
        let mut all = BTreeSet::new();
        std::thread::scope(|scope| {
            let work = |thread: usize| {
                let seals = &seals;
                move || {
                    let writes = (0..50).flat_map(|_| store(seals, thread * 8, &[7; 8 * PAGE]).1);
                    writes.collect::<Vec<u64>>()
                }
            };
            let threads: Vec<_> = (0..4).map(|thread| scope.spawn(work(thread))).collect();
            for thread in threads {
                assert!(thread.join().unwrap().into_iter().all(|nonce| nonce != 0 && all.insert(nonce)));
            }
        });
        assert_eq!(all.len(), 4 * 50 * 8);
    }

    /// After a read by another way: the same bytes are sealed with the same nonce, to replace the damaged copy. Other
    /// bytes never get a nonce that was used.
    #[test]
    fn the_same_bytes_are_repaired_with_the_same_message_and_others_get_a_new_one() {
        let seals = seals();
        let (first, nonces) = store(&seals, 3, &[9; PAGE]);
        seals.may_be_repaired(3, 1);
        assert_eq!(store(&seals, 3, &[9; PAGE]), (first.clone(), nonces.clone()));
        let (other, others) = store(&seals, 3, &[8; PAGE]);
        assert!(other != first && others[0] > nonces[0]);
        seals.forget(0, PAGES_OF_SLAB);
        let (again, later) = store(&seals, 3, &[9; PAGE]);
        assert!(again != first && later[0] > others[0]);
    }

    #[test]
    fn nothing_is_sealed_when_the_keys_are_used_up() {
        let seals = seals();
        let last = (KEYS as u64) << PAGES_OF_KEY_BITS;
        // Over the edge between two keys.
        seals.drawn[0].store((1 << PAGES_OF_KEY_BITS) - 2, Ordering::Relaxed);
        let plain = [[4; PAGE], [5; PAGE], [6; PAGE]].concat();
        let (mut sealed, nonces) = store(&seals, 0, &plain);
        assert!(seals.key(nonces[0]).is_some() && nonces[0] >> PAGES_OF_KEY_BITS != nonces[2] >> PAGES_OF_KEY_BITS);
        seals.open(0, &mut sealed);
        assert_eq!(sealed, plain);
        seals.drawn[0].store(last - 2, Ordering::Relaxed);
        let kept = kept(2);
        assert_eq!(seals.seal(0, &[1; 2 * PAGE], &mut [0; 2 * PAGE], &kept), Err(libc::ENOKEY));
    }
}
