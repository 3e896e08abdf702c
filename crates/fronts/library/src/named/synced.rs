// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Maps a file's contents, and syncs the pages that have changed.
//!
//! A sync asks the space about each page. A page whose bytes are in a tier or in the file is compared by
//! its guard, and read only if it has changed; a page in DRAM is read. The caller has the mapping exclusively, so its
//! bytes stay as they are until the sync ends, wherever the space moves them.
//!
//! Next on the path: `pager/src/memory_space/named.rs`, what has changed; `named/src/draft.rs`, which writes it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use aquifer_core::engine::Contents;
use aquifer_core::guard;
use aquifer_core::units::SlabIndex;
use aquifer_named::format::{MAPPING_BYTES_MAX, PAGE};
use aquifer_named::{Draft, Store};
use aquifer_pager::memory_space::{self, MemorySpace, SpaceFailure};
use aquifer_tiers::Files;

use super::NamedError;
use super::file::{self, FileMedium, MappedPages};
use crate::Error;

/// Pages that are examined at a time: the bytes of a region.
const LOOK_PAGES: usize = 512;
/// Pages that are read at a time from DRAM.
const READ_PAGES: usize = 16;

/// The file of a mapping of a space. A drop detaches it from the space, and must come after that of the mapping.
pub(crate) struct NamedFile {
    name: String,
    store: Mutex<Store<FileMedium>>,
    files: Arc<Files>,
    first: SlabIndex,
}

impl std::fmt::Debug for NamedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "named {:?}", self.name)
    }
}

impl Drop for NamedFile {
    fn drop(&mut self) {
        self.files.detach(self.first);
    }
}

impl NamedFile {
    /// Opens the file of a mapping; with a size, makes it if there is none.
    pub(crate) fn open(
        directory: Option<&Path>,
        files: &Arc<Files>,
        name: &str,
        bytes: Option<usize>,
    ) -> Result<Self, NamedError> {
        let directory = directory.ok_or(NamedError::NoDirectory)?;
        let store = match bytes {
            Some(bytes) if bytes == 0 || bytes as u64 > MAPPING_BYTES_MAX => {
                return Err(Error::MappingSize { bytes }.into());
            }
            Some(bytes) => file::open_or_create(directory, name, bytes)?,
            None => file::open(directory, name)?,
        };
        let found = store.mapping_bytes() as usize;
        if let Some(asked_bytes) = bytes.filter(|bytes| *bytes != found) {
            return Err(NamedError::OtherSize { bytes: found, asked_bytes });
        }
        let first = files.attach(&MappedPages::of(&store)).ok_or(NamedError::TooMany)?;
        Ok(Self { name: name.to_owned(), store: Mutex::new(store), files: Arc::clone(files), first })
    }

    /// Maps the contents.
    pub(crate) fn map<'s>(&self, space: &'s MemorySpace) -> Result<memory_space::Mapping<'s>, SpaceFailure> {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = store.pages();
        let mut guard_of = |page: u64| {
            let page = usize::try_from(page).ok().filter(|page| *page < pages);
            page.map_or(guard::ZERO, |page| store.guard(page))
        };
        space.map_file(store.mapping_bytes() as usize, self.first, &mut guard_of)
    }

    /// Returns the name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Makes the bytes `start..end` of the mapping durable. The caller ensures that nobody changes them meanwhile.
    pub(crate) fn sync(
        &self,
        mapping: &memory_space::Mapping<'_>,
        range: std::ops::Range<usize>,
    ) -> Result<(), NamedError> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.medium().check_has_name()?;
        let mut draft = store.draft()?;
        let (mut page, last) = (range.start / PAGE, range.end.div_ceil(PAGE));
        let mut found = Vec::with_capacity(LOOK_PAGES);
        while page < last && !range.is_empty() {
            let end = last.min(page + LOOK_PAGES);
            let len = (end * PAGE).min(mapping.len()) - page * PAGE;
            found.clear();
            mapping.contents(page * PAGE, len, |page, contents| found.push((page, contents))).map_err(Error::from)?;
            put(&mut draft, mapping, &found)?;
            page = end;
        }
        let changed = draft.commit()?;
        let changed: Vec<(usize, u64)> = changed.iter().map(|changed| (changed.page, changed.guard)).collect();
        // Even if the file has no name any more: its pages are exchanged, and blocks are fetched from it.
        mapping.renew(&changed).map_err(Error::from)?;
        store.medium().check_has_name()
    }
}

/// Puts those of the found pages that have changed.
fn put(
    draft: &mut Draft<'_, FileMedium>,
    mapping: &memory_space::Mapping<'_>,
    found: &[(usize, Contents)],
) -> Result<(), NamedError> {
    let mut bytes = [0; READ_PAGES * PAGE];
    let mut rest = found;
    while let Some((&(page, contents), others)) = rest.split_first() {
        rest = others;
        match contents {
            Contents::Guarded(guard::ZERO) => draft.put_zeros(page)?,
            Contents::Guarded(guard) if guard == draft.durable_guard(page) => {}
            Contents::Guarded(_) => {
                // It is in a tier, and need not become resident for this.
                read(mapping, page, &mut bytes[..PAGE], |at, into| mapping.read_in_place(at, into).map(|_| ()))?;
                put_pages(draft, page, &bytes[..PAGE])?;
            }
            Contents::InDram => {
                let more =
                    others.iter().take(READ_PAGES - 1).take_while(|(_, other)| *other == Contents::InDram).count();
                rest = &others[more..];
                let bytes = &mut bytes[..(1 + more) * PAGE];
                read(mapping, page, bytes, |at, into| mapping.read(at, into))?;
                put_pages(draft, page, bytes)?;
            }
            Contents::Lost => return Err(Error::Lost.into()),
        }
    }
    Ok(())
}

/// Reads whole pages; bytes after the end of the mapping are zeros.
fn read(
    mapping: &memory_space::Mapping<'_>,
    page: usize,
    bytes: &mut [u8],
    how: impl Fn(usize, &mut [u8]) -> Result<(), SpaceFailure>,
) -> Result<(), NamedError> {
    let at = page * PAGE;
    let (within, beyond) = bytes.split_at_mut(bytes.len().min(mapping.len() - at));
    beyond.fill(0);
    Ok(how(at, within).map_err(Error::from)?)
}

fn put_pages(draft: &mut Draft<'_, FileMedium>, first: usize, bytes: &[u8]) -> Result<(), NamedError> {
    for (page, bytes) in (first..).zip(bytes.as_chunks::<PAGE>().0) {
        draft.put(page, bytes)?;
    }
    Ok(())
}
