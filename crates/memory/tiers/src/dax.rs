// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A memory device as a tier (`/dev/dax0.0`), or a file on one: CXL or persistent memory that the kernel does not use
//! itself.
//!
//! The device is mapped. Bytes are copied between the mapping and frames, and installed from where they lie; they never
//! pass through the page cache, and do not count in the program's memory or its cgroup's. The device is locked, so that
//! each instance, and each donor, has its own. Forked children share the mapping and the lock. Whatever the device held
//! is lost.
//!
//! | path is                                         | what happens                                       |
//! |-------------------------------------------------|----------------------------------------------------|
//! | a memory device                                 | mapped from its start, exclusively                 |
//! | a file on a file system with `-o dax`           | made as long as the tier, and mapped directly      |
//! | a device whose memory the kernel has as a node  | refused, with the node's number                    |
//! | anything else                                   | refused                                            |

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use aquifer_core::units::ByteSize;
use aquifer_nodes::dax::{Device, Mode, device};
use aquifer_nodes::{Machine, Tree};
use aquifer_sys::FrameBuffer;
use aquifer_sys::dax_memory::{DaxMemory, Reach};
use aquifer_sys::mapped_file::FileRange;
use aquifer_sys::raw::Errno;
use aquifer_sys::safe_open::{self, Purpose};
use aquifer_tier::plain_queue::{Blocking, PlainQueue};
use aquifer_tier::transfer::{COPY_BYTES_MAX, check_buffer, check_range};
use aquifer_tier::{Activity, Forks, OpenFailure, Tier, TierFailure, TierQueue};
use rustix::fs::{AtFlags, CWD, FlockOperation, StatxAttributes, StatxFlags};

mod failure;

pub use failure::DaxFailure;

use crate::dram::CAPACITY_BYTES_MIN;

const NAME: &str = "dax";
/// What the mapping of a file is aligned to: a huge page, so that the file system can map it by huge pages.
const FILE_ALIGN_BYTES: u64 = 2 << 20;

/// A tier on a memory device.
pub struct Dax {
    memory: Arc<Memory>,
}

struct Memory {
    mapping: DaxMemory,
    capacity_bytes: u64,
}

impl Dax {
    /// A tier of `size` from the start of `path`, by default all of a device, or of a file.
    pub fn open(path: &Path, size: Option<ByteSize>) -> Result<Dax, OpenFailure> {
        let (file, reach, capacity_bytes) = match found(&Machine::running(), path)? {
            Found::Device(device) => {
                let capacity_bytes = capacity_bytes(size, device.bytes, device.align_bytes.max(1), path)?;
                (open_own(path)?, Reach::Device, capacity_bytes)
            }
            Found::File { bytes } => {
                check_direct(path)?;
                let file = open_own(path)?;
                let room_bytes = bytes.max(room_bytes(&file).map_err(|source| path_failure(path, source))?);
                let wanted = size.or_else(|| (bytes > 0).then_some(ByteSize(bytes)));
                (file, Reach::File, capacity_bytes(wanted, room_bytes, FILE_ALIGN_BYTES, path)?)
            }
        };
        lock(&file, path)?;
        if reach == Reach::File {
            // Blocks first: a store to a hole of a full file system would be SIGBUS.
            let length = file.metadata().map_err(|source| path_failure(path, source))?.len();
            file.set_len(capacity_bytes.max(length)).map_err(|source| path_failure(path, source))?;
            let flags = rustix::fs::FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, flags, 0, capacity_bytes).map_err(|errno| path_failure(path, errno.into()))?;
        }
        Self::on(file, capacity_bytes, reach).map_err(|source| {
            let path = path.to_owned();
            local(match source.raw_os_error() {
                Some(libc::EOPNOTSUPP) => DaxFailure::NotDirect { path },
                Some(libc::ENOMEM) => DaxFailure::NoAddresses { path, bytes: capacity_bytes },
                _ => DaxFailure::Mapping { path, source },
            })
        })
    }

    /// A tier on an open file that is at least this long.
    pub fn on(file: File, capacity_bytes: u64, reach: Reach) -> io::Result<Dax> {
        let len = usize::try_from(capacity_bytes).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let mapping = DaxMemory::map(file, len, reach)?;
        Ok(Dax { memory: Arc::new(Memory { mapping, capacity_bytes }) })
    }

    /// Refuses a path that is neither a memory device nor a file, without opening it.
    pub(crate) fn check_place(path: &Path) -> Result<(), OpenFailure> {
        found(&Machine::running(), path).map(|_| ())
    }
}

/// What a path leads to.
#[derive(Debug)]
enum Found {
    Device(Device),
    File { bytes: u64 },
}

fn found(tree: &dyn Tree, path: &Path) -> Result<Found, OpenFailure> {
    let owned = || path.to_owned();
    let metadata = match path.metadata() {
        Ok(metadata) => metadata,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Err(missing(tree, path)),
        Err(source) => return Err(path_failure(path, source)),
    };
    if metadata.is_file() {
        return Ok(Found::File { bytes: metadata.len() });
    }
    if !metadata.file_type().is_char_device() {
        return Err(local(DaxFailure::NotMemory { path: owned() }));
    }
    let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
    // Other character devices can be mapped, too, but are not memory, or are the machine's own memory.
    let about = format!("/sys/dev/char/{major}:{minor}");
    let is_dax = tree.link(&format!("{about}/subsystem")).is_ok_and(|subsystem| subsystem == "dax");
    let named = tree.link(&about).ok().filter(|_| is_dax);
    match named.and_then(|name| device(tree, &name)) {
        Some(device) if device.mode == Mode::Devdax => Ok(Found::Device(device)),
        // The kernel keeps the entry in /dev while it has the memory itself.
        Some(device) => Err(local(taken(device, path))),
        None => Err(local(DaxFailure::NotMemory { path: owned() })),
    }
}

/// Why a device that is not in the mode devdax cannot be opened.
fn taken(device: Device, path: &Path) -> DaxFailure {
    let (path, Device { mode, node, name, .. }) = (path.to_owned(), device);
    match mode {
        Mode::SystemRam => DaxFailure::KernelHasIt { path, name, node },
        Mode::Devdax | Mode::Disabled => DaxFailure::Disabled { path, name },
    }
}

/// Why there is no device at `path`: perhaps the kernel has its memory, or nobody.
fn missing(tree: &dyn Tree, path: &Path) -> OpenFailure {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    local(match device(tree, name) {
        Some(device) => taken(device, path),
        None => DaxFailure::Missing { path: path.to_owned() },
    })
}

fn capacity_bytes(size: Option<ByteSize>, room: u64, align: u64, path: &Path) -> Result<u64, OpenFailure> {
    let wanted = size.map_or(room, |size| size.0);
    if wanted < CAPACITY_BYTES_MIN.max(align) {
        let minimum_bytes = CAPACITY_BYTES_MIN.max(align);
        return Err(OpenFailure::TooSmall { tier: NAME, wanted_bytes: wanted, minimum_bytes });
    }
    if wanted > room {
        return Err(local(DaxFailure::TooShort { path: path.to_owned(), wanted, room }));
    }
    Ok(wanted - wanted % align)
}

/// Refuses a file that is not mapped directly before anything of it is changed or asked for.
fn check_direct(path: &Path) -> Result<(), OpenFailure> {
    let (flags, mask) = (AtFlags::empty(), StatxFlags::empty());
    let found = rustix::fs::statx(CWD, path, flags, mask).map_err(|errno| path_failure(path, errno.into()))?;
    match found.stx_attributes.contains(StatxAttributes::DAX) {
        true => Ok(()),
        false => Err(local(DaxFailure::NotDirect { path: path.to_owned() })),
    }
}

fn open_own(path: &Path) -> Result<File, OpenFailure> {
    safe_open::open(path, Purpose::Memory, libc::O_RDWR, 0).map_err(|failure| match failure {
        safe_open::OpenFailure::Io(source) => path_failure(path, source),
        safe_open::OpenFailure::Objected(objected) => OpenFailure::Objected { objected },
    })
}

fn lock(file: &File, path: &Path) -> Result<(), OpenFailure> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(local(DaxFailure::Held { path: path.to_owned() })),
        Err(errno) => Err(path_failure(path, errno.into())),
    }
}

/// The bytes that a file can have: its own, and what its file system has left.
fn room_bytes(file: &File) -> io::Result<u64> {
    let answer = rustix::fs::fstatvfs(file)?;
    Ok(file.metadata()?.len().saturating_add(answer.f_bavail.saturating_mul(answer.f_frsize)))
}

fn local(failure: DaxFailure) -> OpenFailure {
    OpenFailure::Local { failure: Box::new(failure) }
}

fn path_failure(path: &Path, source: io::Error) -> OpenFailure {
    OpenFailure::Path { path: path.to_owned(), source }
}

impl Tier for Dax {
    fn name(&self) -> &'static str {
        NAME
    }

    fn remedy(&self) -> &'static str {
        "check the device ('ndctl list', 'cxl list') and the kernel log (dmesg)"
    }

    fn waits_for_medium(&self) -> bool {
        false
    }

    fn request_bytes_max(&self) -> usize {
        COPY_BYTES_MAX
    }

    fn capacity_bytes(&self) -> u64 {
        self.memory.capacity_bytes
    }

    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        self.memory.read(offset, buffer)
    }

    fn mapped(&self, offset: u64, len: usize) -> Option<FileRange<'_>> {
        self.memory.mapping.range(offset, len)
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        self.memory.write(offset, buffer)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure> {
        // A device's memory cannot be given back; the bytes stay until they are overwritten.
        check_range(NAME, Activity::Discard, offset, len, self.memory.capacity_bytes)
    }

    fn flush(&self) -> Result<(), TierFailure> {
        Ok(())
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        Ok(Box::new(PlainQueue::new(Arc::clone(&self.memory), depth)))
    }

    fn forks(&self) -> Option<&dyn Forks> {
        Some(self)
    }
}

impl Forks for Dax {
    fn after_fork_in_child(&self, _: bool) -> Result<(), Errno> {
        Ok(())
    }

    fn give_up_in_child(&self) -> Result<(), Errno> {
        self.memory.mapping.give_up_in_child()
    }
}

impl Blocking for Memory {
    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        check_buffer(NAME, Activity::Read, offset, buffer, self.capacity_bytes)?;
        self.mapping.copy_out(place(offset), buffer);
        Ok(())
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        check_buffer(NAME, Activity::Write, offset, buffer, self.capacity_bytes)?;
        self.mapping.copy_in(place(offset), buffer);
        Ok(())
    }
}

fn place(offset: u64) -> usize {
    usize::try_from(offset).expect("within the mapping, as checked before")
}

#[cfg(test)]
mod tests;
