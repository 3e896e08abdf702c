// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Opens the place where a flash tier keeps its bytes, and refuses to destroy data that is not ours.
//!
//! | path is                  | what happens                                                        | left behind |
//! |--------------------------|---------------------------------------------------------------------|-------------|
//! | a directory              | a sparse file in it that never has a name (O_TMPFILE)               | nothing     |
//! | not there                | a sparse file, mode 0600, locked, and unlinked at once; refused where names stand for disks (`new_file.rs`) | nothing |
//! | an empty file, or a file marked as ours | locked, used in place                     | the file, empty |
//! | a file with other data   | refused, unless `overwrite`                                         | the file    |
//! | a block device           | used whole and exclusively; refused when mounted, held, or when its ends hold data, unless `overwrite` | old bytes, where the device cannot discard |
//!
//! A path that other users own, can read or could have put there is refused (`sys/src/safe_open.rs`).
//! "Marked" is the extended attribute `user.aquifer.tier`: a file left by a killed instance is used again.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::time::{Duration, Instant};

use aquifer_sys::direct_io;
use aquifer_sys::safe_open::{self, Purpose};
use aquifer_tier::memory_file::file_bytes_max;
use aquifer_tier::{OpenFailure, PAGE};
use rustix::fs::{FlockOperation, XattrFlags};

use super::capacity::{self, Room};
use super::{NAME, new_file};
use crate::dram::{CAPACITY_BYTES_MIN, DEFAULT_BYTES_MIN, meminfo_bytes};
use crate::spec::FlashSpec;

/// The extended attribute that marks a file as containing nothing but our blocks.
const MARK: &std::ffi::CStr = c"user.aquifer.tier";
/// How much of either end of a device must be zero. Partition tables, file systems, volume managers and
/// RAID put their headers into the first or the last MiB.
const DEVICE_END_BYTES: u64 = 1 << 20;
/// How many names are tried for a temporary file before giving up.
const NAME_ATTEMPTS_MAX: u32 = 16;
/// How long a device that something holds is tried, and how often.
const HELD_MAX: Duration = Duration::from_millis(500);
const HELD_POLL: Duration = Duration::from_millis(10);
/// File systems that keep files in memory, by `f_type` of statfs(2).
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// What was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Device,
    File,
}

/// An open place for blocks, locked for this process, `capacity_bytes` long.
#[derive(Debug)]
pub(super) struct Backing {
    pub(super) file: File,
    pub(super) kind: Kind,
    pub(super) capacity_bytes: u64,
    pub(super) notices: Vec<String>,
}

/// Opens what `spec` describes.
pub(super) fn open(spec: &FlashSpec) -> Result<Backing, OpenFailure> {
    let path = &*spec.path;
    let mut notices = Vec::new();
    let file = match path.metadata() {
        Ok(metadata) if metadata.is_dir() => nameless_file(path)?,
        Ok(metadata) if metadata.file_type().is_block_device() => return device(spec),
        Ok(metadata) if metadata.is_file() => kept_file(path, spec.overwrite)?,
        Ok(_) => return Err(OpenFailure::NotStorage { path: path.into() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            new_file::directory_for(path)?;
            let file = unlinked_file(path)?;
            notices.push(format!("{} was not there: an unlinked file is used in its directory", path.display()));
            file
        }
        Err(source) => return Err(OpenFailure::Path { path: path.into(), source }),
    };
    if lives_in_memory(&file) {
        notices.push(format!("{} is a file system in memory: this flash tier saves no DRAM", path.display()));
    }
    let room = room(&file).map_err(|source| OpenFailure::Path { path: path.into(), source })?;
    let capacity_bytes = capacity_bytes(spec, room)?;
    file.set_len(capacity_bytes).map_err(|source| OpenFailure::Path { path: path.into(), source })?;
    Ok(Backing { file, kind: Kind::File, capacity_bytes, notices })
}

fn capacity_bytes(spec: &FlashSpec, room: Room) -> Result<u64, OpenFailure> {
    let (default_bytes, usable_bytes) = (capacity::default_bytes(room), capacity::usable_bytes(room));
    let limit_bytes = room.file_bytes_max;
    let refused = |wanted_bytes: Option<u64>| {
        if limit_bytes < wanted_bytes.map_or(DEFAULT_BYTES_MIN, |wanted| wanted.min(room.available_bytes)) {
            OpenFailure::FileLimit { tier: NAME, wanted_bytes, limit_bytes }
        } else {
            OpenFailure::NoSpace { path: spec.path.clone(), wanted_bytes, usable_bytes }
        }
    };
    let bytes = match spec.size {
        None if default_bytes < DEFAULT_BYTES_MIN => return Err(refused(None)),
        None => default_bytes,
        Some(size) if size.0 < CAPACITY_BYTES_MIN => {
            let minimum_bytes = CAPACITY_BYTES_MIN;
            return Err(OpenFailure::TooSmall { tier: NAME, wanted_bytes: size.0, minimum_bytes });
        }
        Some(size) if size.0 > usable_bytes => return Err(refused(Some(size.0))),
        Some(size) => size.0,
    };
    Ok(bytes - bytes % PAGE as u64)
}

/// Opens a file to which only this user and root have access, and which no other user can change.
fn open_own(path: &Path, flags: i32) -> Result<File, OpenFailure> {
    safe_open::open(path, Purpose::Memory, flags, 0o600).map_err(|failure| match failure {
        safe_open::OpenFailure::Io(source) => OpenFailure::Path { path: path.into(), source },
        safe_open::OpenFailure::Objected(objected) => OpenFailure::Objected { objected },
    })
}

/// A file in `directory` that never has a name, or loses it immediately if the file system does not support nameless
/// files.
fn nameless_file(directory: &Path) -> Result<File, OpenFailure> {
    let opened = open_own(directory, libc::O_RDONLY | libc::O_DIRECTORY)?;
    // The directory that was checked, even if the name leads elsewhere by now.
    let itself = format!("/proc/self/fd/{}", opened.as_raw_fd());
    match open_own(Path::new(&itself), libc::O_RDWR | libc::O_TMPFILE) {
        Ok(file) => return Ok(file),
        Err(OpenFailure::Path { source, .. }) => match source.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL | libc::ENOENT) => {}
            _ => return Err(OpenFailure::Path { path: directory.into(), source }),
        },
        Err(failure) => return Err(failure),
    }
    let mut attempt = 0;
    loop {
        let path = directory.join(format!(".aquifer-{}-{attempt}", std::process::id()));
        match unlinked_file(&path) {
            Err(OpenFailure::Path { source, .. })
                if source.kind() == io::ErrorKind::AlreadyExists && attempt < NAME_ATTEMPTS_MAX =>
            {
                attempt += 1;
            }
            done => return done,
        }
    }
}

/// A new file that is locked, and unlinked before anything is stored in it.
fn unlinked_file(path: &Path) -> Result<File, OpenFailure> {
    let failure = |source| OpenFailure::Path { path: path.into(), source };
    let file = open_own(path, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)?;
    lock(&file, path)?;
    std::fs::remove_file(path).map_err(failure)?;
    Ok(file)
}

/// A file that somebody created for us, or that a killed instance left.
fn kept_file(path: &Path, overwrite: bool) -> Result<File, OpenFailure> {
    let failure = |source| OpenFailure::Path { path: path.into(), source };
    // First, by its name: the remedy for a file that others can read changes its mode, which nobody should do to a file
    // with other data. Where the answer changes meanwhile, the same question below still protects the data.
    let mut mark = [0u8; 8];
    let holds_data = path.metadata().is_ok_and(|metadata| metadata.len() > 0);
    if holds_data && !overwrite && rustix::fs::getxattr(path, MARK, &mut mark[..]).is_err() {
        return Err(OpenFailure::NotOurs { path: path.into() });
    }
    let file = open_own(path, libc::O_RDWR)?;
    lock(&file, path)?;
    let metadata = file.metadata().map_err(failure)?;
    if !metadata.is_file() {
        return Err(OpenFailure::NotStorage { path: path.into() });
    }
    if metadata.len() > 0 && !overwrite && !is_marked(&file) {
        return Err(OpenFailure::NotOurs { path: path.into() });
    }
    // Without the mark, the next instance asks for `overwrite`: inconvenient, but harmless.
    let _ = rustix::fs::fsetxattr(&file, MARK, b"1", XattrFlags::empty());
    file.set_len(0).map_err(failure)?;
    Ok(file)
}

/// Opens the backing that an exited program left at `path`, with its length: a file with our mark, or a device. `None`
/// if `path` is something else, or if any process has it open.
pub(super) fn left(path: &Path) -> Option<(File, Kind, u64)> {
    let kind = path.metadata().ok()?.file_type();
    if kind.is_block_device() {
        let mut file = open_device(path).ok()?;
        let bytes = file.seek(SeekFrom::End(0)).ok()?;
        return Some((file, Kind::Device, bytes));
    }
    let file = kind.is_file().then(|| open_own(path, libc::O_RDWR).ok())??;
    let bytes = file.metadata().ok()?.len();
    (lock(&file, path).is_ok() && is_marked(&file)).then_some((file, Kind::File, bytes))
}

fn device(spec: &FlashSpec) -> Result<Backing, OpenFailure> {
    let path = &*spec.path;
    let failure = |source| OpenFailure::Path { path: path.into(), source };
    let mut file = open_device(path)?;
    if !file.metadata().map_err(failure)?.file_type().is_block_device() {
        return Err(OpenFailure::NotStorage { path: path.into() });
    }
    let device_bytes = file.seek(SeekFrom::End(0)).map_err(failure)?;
    let sector_bytes = direct_io::device_sector_bytes(&file).map_err(failure)?;
    if sector_bytes as usize > PAGE {
        return Err(failure(io::Error::from_raw_os_error(libc::EINVAL)));
    }
    if !spec.overwrite && !ends_are_zero(&file, device_bytes).map_err(failure)? {
        return Err(OpenFailure::NotOurs { path: path.into() });
    }
    let capacity_bytes = capacity_bytes(spec, Room::of_device(device_bytes))?;
    Ok(Backing { file, kind: Kind::Device, capacity_bytes, notices: Vec::new() })
}

/// Opens a block device that nothing else holds. A process that has just closed the device may still hold it through a
/// child that it forked and that has not executed its program yet, so a refusal is final only after [`HELD_MAX`].
fn open_device(path: &Path) -> Result<File, OpenFailure> {
    let begun = Instant::now();
    loop {
        match open_own(path, libc::O_RDWR | libc::O_EXCL) {
            Err(refused) if refused.errno() == Some(libc::EBUSY) && begun.elapsed() < HELD_MAX => {
                std::thread::sleep(HELD_POLL);
            }
            Err(refused) if refused.errno() == Some(libc::EBUSY) => {
                return Err(OpenFailure::DeviceInUse { path: path.into() });
            }
            opened => return opened,
        }
    }
}

fn ends_are_zero(file: &File, device_bytes: u64) -> io::Result<bool> {
    let len = DEVICE_END_BYTES.min(device_bytes);
    for offset in [0, device_bytes - len] {
        let mut bytes = vec![0; usize::try_from(len).expect("at most DEVICE_END_BYTES")];
        file.read_exact_at(&mut bytes, offset)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn lock(file: &File, path: &Path) -> Result<(), OpenFailure> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenFailure::Held { path: path.into() }),
        Err(errno) => Err(OpenFailure::Path { path: path.into(), source: errno.into() }),
    }
}

fn is_marked(file: &File) -> bool {
    let mut value = [0u8; 8];
    rustix::fs::fgetxattr(file, MARK, &mut value[..]).is_ok()
}

fn lives_in_memory(file: &File) -> bool {
    rustix::fs::fstatfs(file)
        .is_ok_and(|answer| u64::try_from(answer.f_type).is_ok_and(|kind| MEMORY_FILE_SYSTEMS.contains(&kind)))
}

fn room(file: &File) -> io::Result<Room> {
    let answer = rustix::fs::fstatvfs(file)?;
    let meminfo = std::fs::read_to_string("/proc/meminfo")?;
    Ok(Room {
        total_bytes: answer.f_blocks.saturating_mul(answer.f_frsize),
        available_bytes: answer.f_bavail.saturating_mul(answer.f_frsize),
        file_bytes_max: file_bytes_max(),
        memory_bytes: meminfo_bytes(&meminfo, "MemTotal:").unwrap_or(u64::MAX),
    })
}
