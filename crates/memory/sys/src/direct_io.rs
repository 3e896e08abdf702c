// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Enables I/O that bypasses the page cache, and gives space back to file systems and devices.
//!
//! See open(2) on `O_DIRECT`, statx(2) on `STATX_DIOALIGN` (Linux 6.1), fallocate(2) on `FALLOC_FL_PUNCH_HOLE`,
//! sync_file_range(2). A file system may refuse direct I/O when the flag is set, or only at the first transfer:
//! [`enable`] tries both, and reports which one failed.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::{fmt, io, mem};

use crate::frame_buffer::FrameBuffer;

/// Direct transfers of this pager are multiples of this size, in memory and in the file.
pub const ALIGNMENT: u32 = 4096;

/// `_IO(0x12, 119)` of linux/fs.h: discard a range of a block device.
const BLKDISCARD: libc::Ioctl = 0x1277;
/// `_IO(0x12, 104)` of linux/fs.h: the logical sector size of a block device.
const BLKSSZGET: libc::Ioctl = 0x1268;

/// Why a file cannot be read and written without the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The file system does not support direct I/O at all.
    Unsupported {
        /// The kernel's error for `O_DIRECT`.
        errno: i32,
    },
    /// Direct transfers would have to be aligned to more than a page.
    Alignment {
        /// The alignment that the kernel requires, in bytes.
        bytes: u32,
    },
    /// `O_DIRECT` was accepted, and the first transfer was not.
    FirstTransfer {
        /// The kernel's error for the transfer.
        errno: i32,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Unsupported { errno } => {
                write!(f, "the file system refuses O_DIRECT ({})", io::Error::from_raw_os_error(*errno))
            }
            Refusal::Alignment { bytes } => write!(f, "direct I/O here must be aligned to {bytes} bytes"),
            Refusal::FirstTransfer { errno } => {
                write!(f, "the first direct transfer failed ({})", io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

/// Makes transfers of `file` bypass the page cache, and verifies it with one page at offset 0: always read, and written
/// back if `may_write`. On refusal the file is as before, and buffered.
pub fn enable(file: &File, may_write: bool) -> Result<(), Refusal> {
    let old_flags = status_flags(file).map_err(|errno| Refusal::Unsupported { errno })?;
    set_status_flags(file, old_flags | libc::O_DIRECT).map_err(|errno| Refusal::Unsupported { errno })?;
    let outcome = check_alignment(file).and_then(|()| transfer_one_page(file, may_write));
    if outcome.is_err() {
        // Removing the flag cannot be refused; if it were, transfers would fail loudly.
        let _ = set_status_flags(file, old_flags);
    }
    outcome
}

/// Makes a file at least `len` bytes long, and takes the space for all of them now. Where the file system cannot do
/// that, only the length changes.
pub fn allocate(file: &File, len: u64) -> io::Result<()> {
    let bytes = signed(len)?;
    let allocated = retry_interrupted(|| {
        // SAFETY: fallocate takes no pointers, and the descriptor is open while `file` is borrowed.
        unsafe { libc::fallocate64(file.as_raw_fd(), 0, 0, bytes) }
    });
    match allocated {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            if file.metadata()?.len() < len {
                file.set_len(len)
            } else {
                Ok(())
            }
        }
        allocated => allocated,
    }
}

/// Gives the space of this range back to the file system; the range then reads as zeros. EOPNOTSUPP if the file system
/// cannot do that.
pub fn punch_hole(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let (offset, len) = (signed(offset)?, signed(len)?);
    retry_interrupted(|| {
        // SAFETY: fallocate takes no pointers, and the descriptor is open while `file` is borrowed.
        unsafe { libc::fallocate64(file.as_raw_fd(), mode, offset, len) }
    })
}

/// Tells a block device that this range is unused. EOPNOTSUPP if the device cannot.
pub fn discard_device(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let range = [offset, len];
    retry_interrupted(|| {
        // SAFETY: BLKDISCARD reads two u64 at the pointer, and `range` is exactly that and outlives the call.
        unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) }
    })
}

/// The smallest unit in which a block device can be written.
pub fn device_sector_bytes(file: &File) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    retry_interrupted(|| {
        // SAFETY: BLKSSZGET writes one int at the pointer, and `bytes` is exactly that and outlives the call.
        unsafe { libc::ioctl(file.as_raw_fd(), BLKSSZGET, &raw mut bytes) }
    })?;
    u32::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// For buffered files: waits until this range has reached the medium, then removes it from the page cache.
pub fn write_out(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let (start, bytes) = (signed(offset)?, signed(len)?);
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    retry_interrupted(|| {
        // SAFETY: sync_file_range takes no pointers, and the descriptor is open while `file` is borrowed.
        unsafe { libc::sync_file_range(file.as_raw_fd(), start, bytes, flags) }
    })?;
    forget_cached(file, offset, len)
}

/// For buffered files: removes a clean range from the page cache, so that it does not occupy memory twice.
pub fn forget_cached(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let (offset, len) = (signed(offset)?, signed(len)?);
    // SAFETY: posix_fadvise takes no pointers, and the descriptor is open while `file` is borrowed.
    let errno = unsafe { libc::posix_fadvise64(file.as_raw_fd(), offset, len, libc::POSIX_FADV_DONTNEED) };
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}

/// A buffer of `pages` zero pages for probes, tests and examples. Its memory is never freed, since a [`FrameBuffer`]
/// does not own its memory: keep the buffer and reuse it.
pub fn lasting_buffer(pages: usize) -> FrameBuffer {
    let memory: &'static mut [Page] = (0..pages).map(|_| Page([0; ALIGNMENT as usize])).collect::<Vec<_>>().leak();
    let start = NonNull::from(&mut *memory).cast();
    // SAFETY: leaked memory stays mapped as long as the process lives, is `pages` pages long, and nothing else has its
    // address.
    unsafe { FrameBuffer::new(start, pages * ALIGNMENT as usize) }
}

/// A page aligned for direct transfers.
#[repr(align(4096))]
struct Page([u8; ALIGNMENT as usize]);

fn transfer_one_page(file: &File, may_write: bool) -> Result<(), Refusal> {
    let mut page = Box::new(Page([0; ALIGNMENT as usize]));
    let refused = |error: io::Error| Refusal::FirstTransfer { errno: error.raw_os_error().unwrap_or(libc::EIO) };
    file.read_at(&mut page.0, 0).map_err(refused)?;
    if may_write {
        match file.write_at(&page.0, 0) {
            // Lack of space is not a refusal: the first real write will report it, with its remedy.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) => {}
            written => drop(written.map_err(refused)?),
        }
    }
    Ok(())
}

/// Asks the kernel for the alignment of direct transfers. No answer (before Linux 6.1) counts as consent.
fn check_alignment(file: &File) -> Result<(), Refusal> {
    // SAFETY: `statx` is a plain structure of integers, for which all zeros is a value.
    let mut answer: libc::statx = unsafe { mem::zeroed() };
    // SAFETY: the path is an empty string that ends with a zero byte, which AT_EMPTY_PATH allows; the
    // kernel writes one `statx` at the last pointer, and `answer` is exactly that and outlives the call.
    let done = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &raw mut answer)
    };
    if done != 0 || answer.stx_mask & libc::STATX_DIOALIGN == 0 {
        return Ok(());
    }
    match answer.stx_dio_offset_align.max(answer.stx_dio_mem_align) {
        0 => Err(Refusal::Unsupported { errno: libc::EINVAL }),
        bytes if bytes > ALIGNMENT => Err(Refusal::Alignment { bytes }),
        _ => Ok(()),
    }
}

fn status_flags(file: &File) -> Result<libc::c_int, i32> {
    // SAFETY: F_GETFL takes no pointers, and the descriptor is open while `file` is borrowed.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 { Err(last_errno()) } else { Ok(flags) }
}

fn set_status_flags(file: &File, flags: libc::c_int) -> Result<(), i32> {
    // SAFETY: F_SETFL takes no pointers, and the descriptor is open while `file` is borrowed.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) };
    if done < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Repeats a system call that a signal interrupted.
fn retry_interrupted(mut call: impl FnMut() -> libc::c_int) -> io::Result<()> {
    loop {
        if call() >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn signed(bytes: u64) -> io::Result<i64> {
    i64::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

    use super::*;

    fn unlinked_file(directory: &str) -> File {
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(directory).unwrap()
    }

    #[test]
    fn a_punched_hole_reads_as_zeros_and_frees_blocks() {
        let file = unlinked_file(&std::env::temp_dir().to_string_lossy());
        file.write_all_at(&[7; 65536], 0).unwrap();
        file.sync_all().unwrap();
        let before = file.metadata().unwrap().blocks();
        match punch_hole(&file, 0, 32768) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                aquifer_test_support::skip("the temporary directory cannot punch holes");
                return;
            }
            done => done.unwrap(),
        }
        let mut bytes = [1; 65536];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes[..32768].iter().all(|byte| *byte == 0));
        assert!(bytes[32768..].iter().all(|byte| *byte == 7));
        assert!(file.metadata().unwrap().blocks() < before);
    }

    #[test]
    fn a_device_that_refuses_direct_transfers_stays_usable() {
        let device = OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
        assert!(matches!(enable(&device, true), Err(Refusal::Unsupported { .. })));
        device.write_at(b"x", 0).unwrap();
    }

    #[test]
    fn buffered_bytes_survive_being_written_out() {
        let file = unlinked_file(&std::env::temp_dir().to_string_lossy());
        file.write_all_at(&[9; 8192], 0).unwrap();
        write_out(&file, 0, 8192).unwrap();
        let mut bytes = [0; 8192];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [9; 8192]);
    }

    #[test]
    fn discarding_a_plain_file_as_a_device_is_an_error() {
        let file = unlinked_file(&std::env::temp_dir().to_string_lossy());
        assert!(discard_device(&file, 0, 4096).is_err());
        assert!(device_sector_bytes(&file).is_err());
    }
}
