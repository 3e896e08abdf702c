// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The files of all borrowers on this machine: which borrower has which file, and in which file each slab is.
//!
//! A borrower has its file from its first connection until its last one has ended. The kernel reports that when every
//! process that has a descriptor of the connection is gone. So the end of a borrower is known immediately, and its
//! leases end then.
//!
//! Threads: any.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aquifer_wire::{BorrowerId, LentSlab, SLAB_BYTES};

use crate::leases::Access;
use crate::lent_file::{FileSystem, LentFile};
use crate::memory::Source;
use crate::settings::StartFailure;

/// The memory files of all borrowers on the same host.
#[derive(Debug)]
pub(crate) struct LentFiles {
    files: FileSystem,
    slabs: u32,
    node: Option<u32>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sessions: BTreeMap<BorrowerId, Session>,
    /// The file that a slab is in, from the slab's grant until it is wiped.
    homes: BTreeMap<LentSlab, Arc<LentFile>>,
}

#[derive(Debug)]
struct Session {
    file: Arc<LentFile>,
    connections: usize,
}

impl LentFiles {
    pub(crate) fn new(slabs: u32, node: Option<u32>) -> Result<LentFiles, StartFailure> {
        let files = FileSystem::new(u64::from(slabs) * SLAB_BYTES);
        // So that an impossible setup is reported before any borrower connects.
        LentFile::new(&files, slabs, None).map_err(|error| StartFailure::Memory(Source::Memfd, error))?;
        if let Some(node) = node {
            LentFile::new(&files, slabs, Some(node)).map_err(|error| StartFailure::Node(node, error))?;
        }
        Ok(LentFiles { files, slabs, node, state: Mutex::default() })
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        u64::from(self.slabs) * SLAB_BYTES
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all of it stays out of swap.
    pub(crate) fn is_locked(&self) -> bool {
        self.files.is_locked()
    }

    /// Counts one more connection of a borrower. Returns the borrower's file.
    pub(crate) fn enter(&self, who: BorrowerId) -> io::Result<Arc<LentFile>> {
        let mut state = self.state();
        if let Some(session) = state.sessions.get_mut(&who) {
            session.connections += 1;
            return Ok(Arc::clone(&session.file));
        }
        let file = Arc::new(LentFile::new(&self.files, self.slabs, self.node)?);
        state.sessions.insert(who, Session { file: Arc::clone(&file), connections: 1 });
        Ok(file)
    }

    /// A connection has ended. Returns true when it was the borrower's last one.
    pub(crate) fn leave(&self, who: BorrowerId) -> bool {
        let mut state = self.state();
        let session = state.sessions.get_mut(&who).expect("who leaves has entered");
        session.connections -= 1;
        let is_last = session.connections == 0;
        if is_last {
            state.sessions.remove(&who);
        }
        is_last
    }

    /// Provides a granted slab. On failure, returns the error and whether the borrower had the slab before. The slab
    /// has a home in either case: another grant may provide it meanwhile, and the wiper must find what is allocated.
    pub(crate) fn provide(&self, who: BorrowerId, slab: LentSlab, token: u64) -> Result<(), (bool, io::Error)> {
        let mut state = self.state();
        let had_it = state.homes.contains_key(&slab);
        let Some(session) = state.sessions.get(&who) else { return Err((had_it, io::ErrorKind::NotConnected.into())) };
        let file = Arc::clone(&session.file);
        state.homes.insert(slab, Arc::clone(&file));
        drop(state);
        file.provide(slab, token).map_err(|error| (had_it, error))
    }

    pub(crate) fn discard(&self, access: &Access, bytes: u64) {
        let home = self.state().homes.get(&access.slab).cloned();
        if let Some(file) = home {
            file.discard(access.slab.offset() + access.start, bytes);
        }
    }

    pub(crate) fn wipe(&self, slab: LentSlab, between: &mut dyn FnMut()) {
        let home = self.state().homes.remove(&slab);
        if let Some(file) = home {
            file.wipe(slab, between);
        }
    }

    /// Takes back the memory of whatever a borrower has stored where it has no slab. Returns whether there was any.
    pub(crate) fn take_back(&self, who: BorrowerId) -> bool {
        let file = self.state().sessions.get(&who).map(|session| Arc::clone(&session.file));
        file.is_some_and(|file| file.take_back())
    }
}

#[cfg(test)]
mod tests {
    use aquifer_sys::shared_segment::SharedView;

    use super::*;

    /// Two processes asked for the same range, and there was memory only for the one that asked later: the refusal of
    /// the first one then took the memory from under the other one's valid token.
    #[test]
    fn a_slab_without_memory_stays_in_its_file_until_it_is_wiped() {
        let files = FileSystem::new(SLAB_BYTES);
        if matches!(files, FileSystem::Kernels) {
            aquifer_test_support::skip("a tmpfs of our own is refused");
            return;
        }
        let files = LentFiles { files, slabs: 2, node: None, state: Mutex::default() };
        let (who, [first, second]) = (BorrowerId(7), [0, 1].map(LentSlab));
        let file = files.enter(who).expect("a file");
        let status_page = SharedView::open(file.descriptors()[1]).expect("it was made here");
        files.provide(who, first, 1).expect("there is room for one");
        let (had_it, _) = files.provide(who, second, 2).expect_err("there is room for one");
        assert!(!had_it && files.state().homes.contains_key(&second));
        files.wipe(first, &mut || ());
        files.provide(who, second, 3).expect("there is room again");
        assert_eq!(status_page.load(1), 3);
        files.wipe(second, &mut || ());
        assert_eq!((files.state().homes.len(), status_page.load(1)), (0, 0));
    }
}
