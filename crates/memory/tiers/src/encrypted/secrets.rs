// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Seals what a process stores after a fork(2), so that no related process can read it, or change it without being
//! noticed.
//!
//! A forked child has a copy of everything that its parent knew, and may drop privileges. So what either of them stores
//! afterwards, where the other can reach it, is sealed with AES-128-GCM under a key that did not exist at the fork.
//! Each page of each write has its own key, drawn by getrandom(2), with which nothing else is ever sealed; so the
//! nonce is always zero, and there is no generation, counter or seed that a fork could copy. Key and tag of a stored
//! page are its record, in private memory: a child has a copy of the records at the moment of its fork, and so can read
//! what it has inherited.
//!
//! | words of a record | what                                        |
//! |-------------------|---------------------------------------------|
//! | 0, 1              | the key; both 0: the page is stored as it is |
//! | 2, 3              | the tag                                     |
//!
//! Threads: any, including signal handlers. Allocates before a fork only; locks nothing. No other thread uses a page
//! while it is written, as with every tier (`tier.rs`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use aquifer_sys::memory::OwnWord;
use aquifer_sys::raw::Errno;
use aquifer_sys::words::Words;
use aquifer_tier::{Forks, PAGE, Verified};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

use super::{Again, FRAME_PAGES, Parts, Sealing};

const RECORD_WORDS: usize = 4;
const KEY_BYTES: usize = 16;

/// Key and tag of one page.
type Record = [u64; RECORD_WORDS];

/// Seals only what a process stores after a fork(2), with keys of its own.
pub struct Secrets {
    /// Whether pages that are written are sealed.
    is_on: AtomicBool,
    pages: usize,
    /// Set from the first fork on.
    records: OnceLock<Words>,
    /// Not 0 in the process that the tier belongs to; 0 in a forked child that has not yet made the tier its own.
    is_own: OwnWord,
}

impl Secrets {
    pub(super) fn new(capacity_bytes: u64) -> Result<Secrets, Errno> {
        let pages = usize::try_from(capacity_bytes).map_err(|_| Errno(libc::EFBIG))?.div_ceil(PAGE);
        let is_own = OwnWord::new()?;
        is_own.word().store(1, Ordering::Relaxed);
        Ok(Secrets { is_on: AtomicBool::new(false), pages, records: OnceLock::new(), is_own })
    }

    fn make_records(&self) -> Result<(), Errno> {
        if self.records.get().is_none() {
            let _ = self.records.set(Words::copied(self.pages * RECORD_WORDS)?);
        }
        Ok(())
    }

    fn record(&self, page: usize) -> Option<&[AtomicU64]> {
        self.records.get().map(|records| &records[page * RECORD_WORDS..][..RECORD_WORDS])
    }
}

fn seal_page(key: &[u8], plain: &[u8], sealed: &mut [u8]) -> Option<Record> {
    sealed.copy_from_slice(plain);
    // ring refuses only messages beyond AES-GCM's limit of 64 GiB.
    let tag = cipher(key).seal_in_place_separate_tag(nonce(), Aad::empty(), sealed).ok()?;
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight of sixteen"));
    let (key, tag) = (key.split_at(8), tag.as_ref().split_at(8));
    Some([word(key.0), word(key.1), word(tag.0), word(tag.1)])
}

fn open_page(record: Record, page: &mut [u8]) -> bool {
    let (mut key, mut tag) = ([0; KEY_BYTES], [0; 16]);
    for (bytes, word) in key.chunks_exact_mut(8).chain(tag.chunks_exact_mut(8)).zip(record) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    cipher(&key).open_in_place_separate_tag(nonce(), Aad::empty(), tag.into(), page, 0..).is_ok()
}

fn cipher(key: &[u8]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key).expect("the key is as long as it has to be"))
}

/// The same for all, because each key seals one page, once.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

fn is_sealed(record: Record) -> bool {
    record[0] != 0 || record[1] != 0
}

fn get(words: &[AtomicU64]) -> Record {
    std::array::from_fn(|index| words[index].load(Ordering::Relaxed))
}

fn put(words: &[AtomicU64], record: Record) {
    words.iter().zip(record).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
}

impl Sealing for Secrets {
    const RECORD_WORDS: usize = RECORD_WORDS;
    const STORES_PLAIN: bool = true;

    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    fn seal(&self, _: usize, plain: &[u8], sealed: &mut [u8], kept: &[AtomicU64]) -> Result<(), i32> {
        let mut keys = [0; FRAME_PAGES * KEY_BYTES];
        let keys = &mut keys[..plain.len() / PAGE * KEY_BYTES];
        SystemRandom::new().fill(keys).map_err(|_| libc::EIO)?;
        let pages = plain.chunks_exact(PAGE).zip(sealed.chunks_exact_mut(PAGE));
        for ((key, (plain, sealed)), kept) in
            keys.chunks_exact(KEY_BYTES).zip(pages).zip(kept.chunks_exact(RECORD_WORDS))
        {
            put(kept, seal_page(key, plain, sealed).ok_or(libc::EIO)?);
        }
        Ok(())
    }

    fn stored(&self, first: usize, pages: usize, kept: &[AtomicU64]) {
        for (page, kept) in (first..first + pages).zip(kept.chunks_exact(RECORD_WORDS)) {
            put(self.record(page).expect("there are records where anything is sealed"), get(kept));
        }
    }

    fn not_sealed(&self, first: usize, pages: usize) {
        self.forget(first, pages);
    }

    fn open(&self, first: usize, bytes: &mut [u8]) {
        for (index, page) in bytes.chunks_exact_mut(PAGE).enumerate() {
            let Some(record) = self.record(first + index).map(get) else { return };
            if is_sealed(record) && !open_page(record, page) {
                page.fill(0);
            }
        }
    }

    fn verify(&self, page: usize, sealed: &[u8]) -> Verified {
        match self.record(page).map(get).filter(|record| is_sealed(*record)) {
            None => Verified::Unknown,
            Some(record) if open_page(record, &mut sealed.to_vec()) => Verified::Right,
            Some(_) => Verified::Wrong,
        }
    }

    fn open_one(&self, page: usize, bytes: &mut [u8]) -> bool {
        let record = self.record(page).map(get).filter(|record| is_sealed(*record));
        record.is_none_or(|record| open_page(record, bytes))
    }

    fn forget(&self, first: usize, pages: usize) {
        for page in first..first + pages {
            let Some(record) = self.record(page) else { return };
            // A store would make the kernel allocate a page for records that were never written.
            if is_sealed(get(record)) {
                put(record, [0; RECORD_WORDS]);
            }
        }
    }

    fn same_again(&self, page: usize, plain: &[u8], sealed: &mut [u8]) -> Again {
        let Some(record) = self.record(page).map(get).filter(|record| is_sealed(*record)) else { return Again::Plain };
        let mut key = [0; KEY_BYTES];
        key.chunks_exact_mut(8).zip(record).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_ne_bytes()));
        // To seal other bytes under the same key and nonce would let anyone who has both messages decrypt them.
        if seal_page(&key, plain, sealed) == Some(record) { Again::Sealed } else { Again::Not }
    }

    fn before_fork(parts: &Parts<Self>) -> Result<(), Errno> {
        parts.seals.make_records()?;
        parts.make_room()
    }

    fn after_fork_in_parent(parts: &Parts<Self>, inherits: bool) {
        if inherits || parts.inner.is_shared_by_family() {
            parts.seals.is_on.store(true, Ordering::Relaxed);
        }
    }

    fn after_fork_in_child(parts: &Parts<Self>) -> Result<(), Errno> {
        if parts.seals.is_own.word().swap(1, Ordering::Relaxed) == 0 {
            parts.seals.is_on.store(parts.inner.is_shared_by_family(), Ordering::Relaxed);
        }
        if parts.seals.is_on() { Self::before_fork(parts) } else { Ok(()) }
    }
}
