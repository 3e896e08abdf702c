// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The file of a named mapping: opened or made, locked, and read and written without the page cache where the file
//! system can do that.
//!
//! A new file appears under its name only when it is complete. The lock (flock(2)) belongs to the open file
//! description, which fork(2) shares with children. The process that took it releases it when the mapping is dropped.
//! It also ends with that process, however that ends, because the library closes the file in forked children.
//!
//! Threads: `read` of [`FilePages`] may run in a signal handler.

use std::fs::{self, File, TryLockError};
use std::io;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aquifer_named::format::PAGE;
use aquifer_named::{Activity, Lookup, Medium, MediumFailure, Store};
use aquifer_sys::own_descriptors::{self, KeptFile};
use aquifer_sys::safe_open::{self, OpenFailure, Purpose};
use aquifer_sys::{FrameBuffer, direct_io};
use aquifer_tier::transfer::{read_fully, write_fully};
use aquifer_tiers::{Cause, FilePages};

use super::NamedError;
use super::name::{file_name, is_valid, new_file_name};

/// Only the owner may read or write a file, which has a program's memory.
const MODE: u32 = 0o600;

/// How often to try again if another process makes or removes the file at the same moment.
const TRIES_MAX: u32 = 8;

/// The file, as its store uses it.
#[derive(Clone, Debug)]
pub(super) struct FileMedium {
    file: Arc<LockedFile>,
    /// Whether transfers pass through the page cache, from which they are then dropped.
    is_buffered: bool,
}

impl FileMedium {
    fn of(file: LockedFile) -> Self {
        let is_buffered = direct_io::enable(&file, false).is_err();
        Self { file: Arc::new(file), is_buffered }
    }
}

/// A file that no other mapping uses. A drop in the process that has locked it unlocks it.
#[derive(Debug)]
struct LockedFile {
    file: KeptFile,
    process: u32,
}

impl LockedFile {
    fn lock(file: File, path: &Path) -> Result<Self, NamedError> {
        let file = KeptFile::new(file);
        match file.try_lock() {
            Ok(()) => Ok(Self { file, process: std::process::id() }),
            Err(TryLockError::WouldBlock) => Err(NamedError::AlreadyOpen),
            Err(TryLockError::Error(error)) => {
                Err(NamedError::of_io(format!("{} cannot be locked", path.display()), &error))
            }
        }
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // A child must not end its parent's lock, and a child that was just forked must not keep this one.
        if self.process == std::process::id() {
            let _ = self.file.unlock();
        }
    }
}

/// Opens the file of a mapping that exists.
///
/// # Errors
/// [`NamedError::NotFound`], [`NamedError::AlreadyOpen`], [`NamedError::Refused`], and what [`Store::open`] refuses.
pub(super) fn open(directory: &Path, name: &str) -> Result<Store<FileMedium>, NamedError> {
    let checked = check(directory, name)?;
    let path = directory.join(file_name(name));
    let file = match safe_open::open(&path, Purpose::Memory, libc::O_RDWR | libc::O_NONBLOCK, 0) {
        Ok(file) => file,
        Err(OpenFailure::Io(error)) if error.kind() == io::ErrorKind::NotFound => return Err(NamedError::NotFound),
        Err(failure) => return Err(NamedError::of_open(format!("{} cannot be opened", path.display()), failure)),
    };
    if !file.metadata().is_ok_and(|found| found.is_file()) {
        return Err(NamedError::NotOurs);
    }
    let store = Store::open(FileMedium::of(LockedFile::lock(file, &path)?))?;
    // The process that made it may have ended before the name was durable.
    checked.sync_all().map_err(|error| NamedError::of_io(format!("{} cannot be opened", path.display()), &error))?;
    Ok(store)
}

/// Opens the file of a mapping, and creates it if there is none.
pub(super) fn open_or_create(directory: &Path, name: &str, bytes: usize) -> Result<Store<FileMedium>, NamedError> {
    for _ in 0..TRIES_MAX {
        match open(directory, name) {
            Err(NamedError::NotFound) => {}
            opened => return opened,
        }
        if let Some(created) = create(directory, name, bytes)? {
            return Ok(created);
        }
    }
    let path = directory.join(file_name(name));
    if fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink()) {
        let path = path.display();
        return Err(NamedError::Refused(format!("{path} is a link to a file that does not exist; remove the link")));
    }
    Err(NamedError::AlreadyOpen)
}

/// Makes the file. Returns `None` if it has to be tried again, because another process has made it meanwhile.
fn create(directory: &Path, name: &str, bytes: usize) -> Result<Option<Store<FileMedium>>, NamedError> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let new = directory.join(new_file_name(name, std::process::id(), number));
    let path = directory.join(file_name(name));
    let what = || format!("{} cannot be created", path.display());
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    let opened = safe_open::open(&new, Purpose::Memory, flags, MODE);
    // Removed at the end even if it exists already, because then a process that had this one's number has left it.
    let new = Unfinished(new);
    let file = match opened {
        Err(OpenFailure::Io(error)) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        opened => opened.map_err(|failure| NamedError::of_open(what(), failure))?,
    };
    let store = Store::create(FileMedium::of(LockedFile::lock(file, &path)?), bytes as u64)?;
    match fs::hard_link(&new.0, &path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        linked => linked.map_err(|error| NamedError::of_io(what(), &error))?,
    }
    drop(new);
    // The name is durable, too.
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|error| NamedError::of_io(what(), &error))?;
    Ok(Some(store))
}

/// The name of a file that is not complete: removed when dropped.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Refuses a bad name, and a directory in which other users can exchange files. Returns the directory.
fn check(directory: &Path, name: &str) -> Result<File, NamedError> {
    if !is_valid(name) {
        return Err(NamedError::BadName);
    }
    let flags = libc::O_DIRECTORY | libc::O_RDONLY;
    safe_open::open(directory, Purpose::Memory, flags, 0).map_err(|failure| {
        NamedError::of_open(format!("the directory {} cannot be used", directory.display()), failure)
    })
}

impl Medium for FileMedium {
    fn pages(&self) -> Result<u64, MediumFailure> {
        self.file.metadata().map(|found| found.len() / PAGE as u64).map_err(|error| failure(Activity::Look, &error))
    }

    fn read(&self, place: u64, into: &mut [u8]) -> Result<(), MediumFailure> {
        let offset = place * PAGE as u64;
        read_fully(&self.file, offset, into).map_err(|cause| of_cause(Activity::Read, cause))?;
        self.forget(offset, into.len());
        Ok(())
    }

    fn write(&self, place: u64, from: &[u8]) -> Result<(), MediumFailure> {
        write_fully(&self.file, place * PAGE as u64, from).map_err(|cause| of_cause(Activity::Write, cause))
    }

    fn grow(&self, pages: u64) -> Result<(), MediumFailure> {
        let grown = direct_io::allocate(&self.file, pages * PAGE as u64);
        grown.map_err(|error| failure(Activity::Grow, &error))
    }

    fn sync(&self) -> Result<(), MediumFailure> {
        self.file.sync_data().map_err(|error| failure(Activity::Sync, &error))?;
        self.forget(0, 0);
        Ok(())
    }
}

impl FileMedium {
    /// Refuses a file that no name leads to any more: what is written there is gone when the mapping is.
    pub(super) fn check_has_name(&self) -> Result<(), NamedError> {
        let found = self.file.metadata().map_err(|error| {
            NamedError::of_io("the file of the named mapping could not be looked at".to_owned(), &error)
        })?;
        if found.nlink() == 0 { Err(NamedError::Replaced) } else { Ok(()) }
    }

    /// Drops what the page cache has, up to the end of the file if `len` is 0: it would take memory beyond the budget.
    fn forget(&self, offset: u64, len: usize) {
        if self.is_buffered {
            let _ = direct_io::forget_cached(&self.file, offset, len as u64);
        }
    }
}

/// The file, as the space reads it.
pub(super) struct MappedPages {
    medium: FileMedium,
    lookup: Arc<Lookup>,
}

impl MappedPages {
    pub(super) fn of(store: &Store<FileMedium>) -> Arc<dyn FilePages> {
        Arc::new(Self { medium: store.medium().clone(), lookup: Arc::clone(store.lookup()) })
    }
}

impl FilePages for MappedPages {
    fn read(&self, page: u64, buffer: &mut FrameBuffer) -> Result<(), Cause> {
        let pages = buffer.len() / PAGE;
        let place_of = |index: usize| self.lookup.place(page as usize + index);
        let mut done = 0;
        while done < pages {
            let first = place_of(done);
            let follows = |index: &usize| first != 0 && place_of(done + index) == first + *index as u64;
            let count = 1 + (1..pages - done).take_while(follows).count();
            let bytes = &mut buffer.bytes_mut()[done * PAGE..(done + count) * PAGE];
            if first == 0 {
                bytes.fill(0);
            } else {
                let offset = first * PAGE as u64;
                read_fully(&self.medium.file, offset, bytes)?;
                self.medium.forget(offset, count * PAGE);
            }
            done += count;
        }
        Ok(())
    }

    fn give_up_in_child(&self) {
        if let Ok(nothing) = File::open("/dev/null") {
            let _ = own_descriptors::replace(nothing.into(), self.medium.file.file.as_fd());
        }
    }
}

fn of_cause(activity: Activity, cause: Cause) -> MediumFailure {
    let errno = if let Cause::Errno(errno) = cause { errno } else { libc::EIO };
    MediumFailure { activity, errno }
}

fn failure(activity: Activity, error: &io::Error) -> MediumFailure {
    MediumFailure { activity, errno: error.raw_os_error().unwrap_or(libc::EIO) }
}
