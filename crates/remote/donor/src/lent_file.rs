// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What one borrower on this machine shares with the donor: a memory file, which has a place for each slab of the
//! donor, and a *status page*, which says which of the slabs are this borrower's now.
//!
//! ```text
//!            slab 0     1     2     3     4                 written by
//!   data    ┌─────┬─────┬─────┬─────┬─────┐
//!           │     │█████│     │█████│     │                 the borrower, by pwrite(2)
//!           └─────┴─────┴─────┴─────┴─────┘
//!   status     0    17     0    23     0    tokens          the donor alone: a seal ensures it
//! ```
//!
//! No other borrower ever has this file, so its contents are this borrower's alone. To provide a slab, the donor
//! allocates its place, so that the memory is accounted to the donor, and puts its token on the status page. When the
//! lease ends, the donor first removes the token, and then the memory (it punches a hole). A borrower reads the status
//! page before and after each access: what it read while the token was present was its own.
//!
//! The donor never maps or reads the data, so nothing that a borrower does to the file can harm the donor; truncating
//! it only makes the file shorter. A borrower that writes where it has no slab gets memory there, as it could by
//! malloc(3); the donor takes back such memory where it finds it ([`LentFile::take_back`]).
//!
//! See fallocate(2), memfd_create(2), tmpfs(5). Threads: any.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aquifer_sys::direct_io::punch_hole;
use aquifer_sys::lent_memory::bind_file;
use aquifer_sys::shared_segment::SharedSegment;
use aquifer_wire::{LentSlab, SLAB_BYTES};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::wiper::PIECE_BYTES;

/// The unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// The memory file and the status page that one borrower on the same host shares with the donor.
#[derive(Debug)]
pub(crate) struct LentFile {
    data: File,
    status_page: SharedSegment,
    slabs: u32,
    /// How much is given back to the kernel at a time: a whole huge page, so that none has to be split, or a piece of
    /// small pages.
    piece_bytes: u64,
    /// Slabs that were provided and not taken away.
    held: Mutex<BTreeSet<LentSlab>>,
}

impl LentFile {
    pub(crate) fn new(files: &FileSystem, slabs: u32, node: Option<u32>) -> io::Result<LentFile> {
        let bytes = u64::from(slabs) * SLAB_BYTES;
        if bytes > rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(u64::MAX) {
            // The kernel would send SIGXFSZ, which ends the process without a message.
            return Err(Errno::FBIG.into());
        }
        let data = files.create()?;
        data.set_len(bytes)?;
        files.seal(&data)?;
        if let Some(node) = node {
            bind_file(&data, usize::try_from(bytes).map_err(io::Error::other)?, node)?;
        }
        let status_page = SharedSegment::publish(c"aquifer-status-page", slabs as usize)?;
        let piece_bytes = match files {
            FileSystem::Own { .. } => SLAB_BYTES,
            FileSystem::Kernels => PIECE_BYTES as u64,
        };
        Ok(LentFile { data, status_page, slabs, piece_bytes, held: Mutex::default() })
    }

    /// The data and the status page, for the borrower.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.data.as_fd(), self.status_page.descriptor().expect("it was made here")]
    }

    fn held(&self) -> MutexGuard<'_, BTreeSet<LentSlab>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a slab this borrower's, with this token. Fails if there is no memory for it; what was allocated stays
    /// until the slab is wiped, because another grant may have provided the same slab meanwhile.
    pub(crate) fn provide(&self, slab: LentSlab, token: u64) -> io::Result<()> {
        self.held().insert(slab);
        self.allocate(slab.offset(), SLAB_BYTES)?;
        // Of two grants for the same slab, the later one has the greater token. Release pairs with the borrower's read
        // of the status page.
        self.status_page.words()[slab.index()].fetch_max(token, Ordering::Release);
        Ok(())
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        loop {
            match rustix::fs::fallocate(&self.data, FallocateFlags::KEEP_SIZE, offset, bytes) {
                Err(Errno::INTR) => {}
                outcome => return outcome,
            }
        }
    }

    /// Makes a part of a slab read as zeros. Its memory stays allocated, so that what the borrower stores there next is
    /// charged to the donor's cgroup.
    pub(crate) fn discard(&self, offset: u64, bytes: u64) {
        // Only a file system that is not in memory refuses this. If there is no memory to allocate, the borrower's next
        // write allocates it.
        let _ = punch_hole(&self.data, offset, bytes);
        let _ = self.allocate(offset, bytes);
    }

    /// Takes a slab from this borrower. Calls `between` after each wiped piece of it.
    pub(crate) fn wipe(&self, slab: LentSlab, between: &mut dyn FnMut()) {
        // First the token, then the memory: a reader that finds the token after its read has not read a hole.
        self.status_page.words()[slab.index()].store(0, Ordering::SeqCst);
        for at in (0..SLAB_BYTES).step_by(self.piece_bytes as usize) {
            let _ = punch_hole(&self.data, slab.offset() + at, self.piece_bytes);
            between();
        }
        self.held().remove(&slab);
    }

    /// Takes back the memory of whatever the borrower has stored where it has no slab. Returns whether there was any.
    pub(crate) fn take_back(&self) -> bool {
        // Nothing is provided meanwhile.
        let held = self.held();
        let stored = self.data.metadata().map_or(0, |data| data.blocks() * BLOCK_BYTES);
        if stored <= held.len() as u64 * SLAB_BYTES {
            return false;
        }
        let mut from = 0;
        for slab in held.iter().copied().chain([LentSlab(self.slabs)]) {
            if slab.offset() > from {
                let _ = punch_hole(&self.data, from, slab.offset() - from);
            }
            from = slab.offset() + SLAB_BYTES;
        }
        true
    }
}

/// Where memory files are created.
#[derive(Debug)]
pub(crate) enum FileSystem {
    /// A tmpfs of the donor's own, mounted nowhere, with huge pages, one for each slab. Needs CAP_SYS_ADMIN.
    Own {
        mount: OwnedFd,
        /// The pages of the file never go to swap.
        is_locked: bool,
    },
    /// The kernel's own, whose pages are small unless the administrator has chosen otherwise.
    Kernels,
}

impl FileSystem {
    /// A file system that holds at most `bytes` bytes, where such a limit is possible.
    pub(crate) fn new(bytes: u64) -> FileSystem {
        own_tmpfs(bytes).unwrap_or(FileSystem::Kernels)
    }

    pub(crate) fn is_locked(&self) -> bool {
        matches!(self, FileSystem::Own { is_locked: true, .. })
    }

    fn create(&self) -> io::Result<File> {
        Ok(match self {
            FileSystem::Own { mount, .. } => {
                let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::EXCL | OFlags::CLOEXEC;
                rustix::fs::openat(mount, c".", flags, Mode::RUSR | Mode::WUSR)?.into()
            }
            FileSystem::Kernels => {
                rustix::fs::memfd_create(c"aquifer-lent", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?.into()
            }
        })
    }

    /// Fixes the length, where possible.
    fn seal(&self, data: &File) -> io::Result<()> {
        match self {
            FileSystem::Own { .. } => Ok(()),
            FileSystem::Kernels => {
                Ok(rustix::fs::fcntl_add_seals(data, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?)
            }
        }
    }
}

fn own_tmpfs(bytes: u64) -> Result<FileSystem, Errno> {
    let context = rustix::mount::fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&context, c"huge", c"always")?;
    rustix::mount::fsconfig_set_string(&context, c"size", bytes.to_string())?;
    // Memory that is swapped out at a donor is slower than the borrower's own swap. Linux 6.4 and later support the
    // option.
    let is_locked = rustix::mount::fsconfig_set_flag(&context, c"noswap").is_ok();
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    Ok(FileSystem::Own { mount, is_locked })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    use aquifer_sys::shared_segment::SharedView;

    use super::*;

    const SLABS: u32 = 4;

    /// Calls `test` with a file of each kind of file system that is available here.
    fn for_each(test: impl Fn(LentFile)) {
        let bytes = u64::from(SLABS) * SLAB_BYTES;
        match own_tmpfs(bytes) {
            Ok(own) => test(LentFile::new(&own, SLABS, None).unwrap()),
            Err(errno) => {
                aquifer_test_support::skip_part("one case", format!("a tmpfs of our own is refused: {errno}"))
            }
        }
        test(LentFile::new(&FileSystem::Kernels, SLABS, None).unwrap());
    }

    fn byte(file: &File, offset: u64) -> u8 {
        let mut byte = [0xee];
        file.read_exact_at(&mut byte, offset).unwrap();
        byte[0]
    }

    fn stored(file: &File) -> u64 {
        file.metadata().unwrap().blocks() * BLOCK_BYTES
    }

    #[test]
    fn a_slab_comes_and_goes_with_its_token_and_its_memory() {
        for_each(|lent| {
            let [data, status_page] = lent.descriptors().map(|descriptor| descriptor.try_clone_to_owned().unwrap());
            let (data, status_page) = (File::from(data), SharedView::open(status_page.as_fd()).unwrap());
            lent.provide(LentSlab(2), 7).unwrap();
            assert_eq!((status_page.len(), status_page.load(1), status_page.load(2)), (SLABS as usize, 0, 7));
            assert_eq!(stored(&data), SLAB_BYTES, "the donor has allocated it");
            data.write_all_at(&[9; 4096], 2 * SLAB_BYTES).unwrap();
            lent.provide(LentSlab(2), 9).unwrap();
            lent.provide(LentSlab(2), 8).unwrap();
            assert_eq!(
                (status_page.load(2), byte(&data, 2 * SLAB_BYTES)),
                (9, 9),
                "the greatest token stays, and the bytes"
            );
            lent.discard(2 * SLAB_BYTES, 4096);
            assert_eq!(byte(&data, 2 * SLAB_BYTES), 0);
            lent.wipe(LentSlab(2), &mut || {});
            assert_eq!((status_page.load(2), stored(&data)), (0, 0));
        });
    }

    /// A borrower's mapping shows its own file forever, and never what is later lent to another borrower.
    #[test]
    fn a_kept_mapping_neither_reads_nor_changes_a_slab_lent_on() {
        // Only a sealed file can be mapped here. Holes in a tmpfs of our own are punched by the same code of the
        // kernel.
        let lent = || LentFile::new(&FileSystem::Kernels, SLABS, None).unwrap();
        let (one, other) = (lent(), lent());
        let data = File::from(other.descriptors()[0].try_clone_to_owned().unwrap());
        let mapping = SharedSegment::attach_inherited(one.descriptors()[0].as_raw_fd()).unwrap();
        // Mapping it in this way has stored zeros in all of it.
        one.take_back();
        one.provide(LentSlab(1), 7).unwrap();
        let word = &mapping.words()[(SLAB_BYTES / 8) as usize];
        word.store(5, Ordering::SeqCst);
        one.wipe(LentSlab(1), &mut || {});
        assert_eq!(word.load(Ordering::SeqCst), 0, "what it stored is gone from under its mapping");
        other.provide(LentSlab(1), 8).unwrap();
        data.write_all_at(&[9; 4096], SLAB_BYTES).unwrap();
        assert_eq!(word.load(Ordering::SeqCst), 0, "it does not see what is another one's now");
        word.store(6, Ordering::SeqCst);
        assert_eq!(byte(&data, SLAB_BYTES), 9, "nor does it change that");
        assert!(one.take_back(), "and what it stores late is found");
        assert_eq!((word.load(Ordering::SeqCst), stored(&data)), (0, SLAB_BYTES));
    }

    #[test]
    fn pages_stored_beside_a_slab_are_taken_back() {
        for_each(|lent| {
            let data = File::from(lent.descriptors()[0].try_clone_to_owned().unwrap());
            lent.provide(LentSlab(1), 1).unwrap();
            data.write_all_at(&[9; 4096], SLAB_BYTES).unwrap();
            assert!(!lent.take_back());
            for slab in [0, 3] {
                data.write_all_at(&[5; 4096], slab * SLAB_BYTES).unwrap();
                assert!(lent.take_back());
                assert_eq!((byte(&data, slab * SLAB_BYTES), byte(&data, SLAB_BYTES)), (0, 9));
            }
            assert!(!lent.take_back());
        });
    }

    #[test]
    fn truncating_a_file_affects_only_its_own_borrower() {
        for_each(|lent| {
            let data = File::from(lent.descriptors()[0].try_clone_to_owned().unwrap());
            lent.provide(LentSlab(1), 1).unwrap();
            let _ = data.set_len(0);
            lent.provide(LentSlab(1), 2).unwrap();
            lent.wipe(LentSlab(1), &mut || {});
            lent.take_back();
            assert_eq!(stored(&data), 0);
        });
    }

    #[test]
    fn providing_more_than_the_file_system_holds_is_refused() {
        let Ok(own) = own_tmpfs(SLAB_BYTES) else {
            aquifer_test_support::skip("a tmpfs of our own is refused");
            return;
        };
        let lent = LentFile::new(&own, SLABS, None).unwrap();
        lent.provide(LentSlab(0), 1).unwrap();
        assert!(lent.provide(LentSlab(1), 2).is_err());
        lent.wipe(LentSlab(0), &mut || {});
        lent.provide(LentSlab(1), 3).unwrap();
    }
}
