// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! userfaultfd(2): a thin binding that loses no errno and no partial result.
//!
//! See ioctl_userfaultfd(2) and, for features that the manual does not cover yet, `include/uapi/linux/userfaultfd.h`.
//! [`probe_features`] asks the kernel for its features; none is assumed. Minimum versions: MISSING 4.3, SIGBUS 4.14, WP
//! on anonymous memory 5.7, `/dev/userfaultfd` 6.1, WP_UNPOPULATED 6.4, POISON 6.6, WP_ASYNC 6.7, MOVE 6.8.
//!
//! Ranges are multiples of 4 KiB.

use std::fmt;
use std::mem::ManuallyDrop;

use crate::raw::{Errno, syscall};
use crate::{descriptors, own_descriptors};

/// Feature bits of `UFFDIO_API`.
pub mod feature {
    /// Thread ids in fault messages.
    pub const THREAD_ID: u64 = 1 << 8;
    /// Write-protect faults on anonymous memory are reported.
    pub const PAGEFAULT_FLAG_WP: u64 = 1 << 0;
    /// A child created by fork gets its own userfaultfd, announced by an event. Privileged.
    pub const EVENT_FORK: u64 = 1 << 1;
    /// Faults raise SIGBUS on the faulting thread, without a message.
    pub const SIGBUS: u64 = 1 << 7;
    /// The low bits of the fault address are reported.
    pub const EXACT_ADDRESS: u64 = 1 << 11;
    /// Empty page-table entries can be write-protected.
    pub const WP_UNPOPULATED: u64 = 1 << 13;
    /// Pages can be poisoned.
    pub const POISON: u64 = 1 << 14;
    /// The kernel resolves write-protect faults itself, and records them.
    pub const WP_ASYNC: u64 = 1 << 15;
    /// Pages can be moved.
    pub const MOVE: u64 = 1 << 16;
}

/// The faults that a range is registered for.
pub mod mode {
    /// Faults on missing pages.
    pub const MISSING: u64 = 1;
    /// Faults on write-protected pages.
    pub const WP: u64 = 2;
}

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

/// The argument of UFFDIO_COPY and UFFDIO_MOVE.
#[repr(C)]
struct Transfer {
    target: u64,
    source: u64,
    len: u64,
    mode: u64,
    done: i64,
}

#[repr(C)]
struct Zeropage {
    range: Range,
    mode: u64,
    done: i64,
}

#[repr(C)]
struct WriteProtect {
    range: Range,
    mode: u64,
}

const fn iowr(number: u64, size: usize) -> usize {
    (3 << 30 | (size as u64) << 16 | 0xaa << 8 | number) as usize
}

const fn ior(number: u64, size: usize) -> usize {
    (2 << 30 | (size as u64) << 16 | 0xaa << 8 | number) as usize
}

const UFFDIO_API: usize = iowr(0x3f, size_of::<Api>());
const UFFDIO_REGISTER: usize = iowr(0x00, size_of::<Register>());
const UFFDIO_UNREGISTER: usize = ior(0x01, size_of::<Range>());
const UFFDIO_WAKE: usize = ior(0x02, size_of::<Range>());
const UFFDIO_COPY: usize = iowr(0x03, size_of::<Transfer>());
const UFFDIO_ZEROPAGE: usize = iowr(0x04, size_of::<Zeropage>());
const UFFDIO_MOVE: usize = iowr(0x05, size_of::<Transfer>());
const UFFDIO_WRITEPROTECT: usize = iowr(0x06, size_of::<WriteProtect>());
const UFFDIO_POISON: usize = iowr(0x08, size_of::<Zeropage>());

const COPY_MODE_WP: u64 = 2;
const MOVE_MODE_ALLOW_SRC_HOLES: u64 = 2;
const USER_MODE_ONLY: usize = 1;

/// A transfer that ended early. `done` bytes were transferred before `errno` stopped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partial {
    /// Bytes transferred.
    pub done: usize,
    /// Why it stopped. EAGAIN: retry the rest.
    pub errno: Errno,
}

/// One fault as a listener reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultMessage {
    /// The address.
    pub address: u64,
    /// Whether the access was a write.
    pub write: bool,
    /// Whether the cause was a write-protected page, and not a missing one.
    pub write_protect: bool,
    /// The faulting thread.
    pub thread: u32,
}

/// An open userfaultfd. The pager keeps its own until the process exits: closing one turns every evicted page into
/// zeros.
#[derive(Debug)]
pub struct Uffd {
    descriptor: i32,
}

/// Opens a userfaultfd through the device, which works for all faults and is not affected by filters of userfaultfd(2).
/// If the device cannot be opened, calls userfaultfd(2), and returns the error of that call.
fn open_descriptor(kernel_faults: bool) -> Result<i32, Errno> {
    let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    if let Ok(descriptor) = open_device(flags) {
        return Ok(descriptor);
    }
    // SAFETY: userfaultfd(2) accesses no memory.
    let open = |flags| unsafe { syscall(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]) };
    let opened = match open(flags) {
        // USER_MODE_ONLY needs no privilege (Linux 5.11).
        Err(_) if !kernel_faults => open(flags | USER_MODE_ONLY),
        opened => opened,
    };
    opened.map(|descriptor| descriptor as i32)
}

fn open_device(flags: usize) -> Result<i32, Errno> {
    const USERFAULTFD_IOC_NEW: usize = 0xaa00;
    let path = c"/dev/userfaultfd";
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, (libc::O_RDWR | libc::O_CLOEXEC) as usize, 0, 0, 0];
    // SAFETY: openat(2) reads a path that ends in NUL.
    let device = unsafe { syscall(libc::SYS_openat, args) }?;
    // SAFETY: the ioctl takes flags and returns a new descriptor.
    let made = unsafe { syscall(libc::SYS_ioctl, [device, USERFAULTFD_IOC_NEW, flags, 0, 0, 0]) };
    // SAFETY: close(2) takes the descriptor that was opened above, which is not used again.
    let _ = unsafe { syscall(libc::SYS_close, [device, 0, 0, 0, 0, 0]) };
    made.map(|descriptor| descriptor as i32)
}

/// Whether this process can use userfaultfd for its own accesses.
pub fn probe() -> Result<(), Refused> {
    probe_features(false).map(|_| ()).map_err(Refused::of)
}

/// A refusal of userfaultfd(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The kernel's error.
    pub errno: Errno,
    /// Whether a system call filter is active, which is the likely cause.
    pub by_filter: bool,
}

impl Refused {
    /// Adds what can be determined about the cause.
    pub fn of(errno: Errno) -> Self {
        let may_be = matches!(errno, Errno(libc::EPERM | libc::EACCES | libc::ENOSYS));
        Self { errno, by_filter: may_be && is_filtered() }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.errno.name();
        if self.by_filter {
            return write!(
                f,
                "userfaultfd is refused ({name}), most likely by the seccomp filter of a container; pass in \
                 /dev/userfaultfd, or allow userfaultfd in the profile: docs/containers.md"
            );
        }
        write!(
            f,
            "userfaultfd is refused ({name}); use a kernel with CONFIG_USERFAULTFD, 'sysctl \
             vm.unprivileged_userfaultfd=1', or grant access to /dev/userfaultfd"
        )
    }
}

/// Whether a seccomp filter is active for this thread.
fn is_filtered() -> bool {
    const FILTER: usize = 2;
    // SAFETY: prctl(2) accesses no memory.
    let mode = unsafe { syscall(libc::SYS_prctl, [libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0, 0]) };
    mode == Ok(FILTER)
}

/// Returns the kernel's feature bits. `kernel_faults` asks for a descriptor that also gets the faults of the kernel's
/// own accesses, which needs a privilege or `/dev/userfaultfd`.
pub fn probe_features(kernel_faults: bool) -> Result<u64, Errno> {
    let descriptor = open_descriptor(kernel_faults)?;
    let mut api = Api { api: 0xaa, features: 0, ioctls: 0 };
    // SAFETY: UFFDIO_API reads and writes one `Api`.
    let asked = unsafe { syscall(libc::SYS_ioctl, [descriptor as usize, UFFDIO_API, &raw mut api as usize, 0, 0, 0]) };
    // SAFETY: close(2) takes the descriptor opened above, which was opened only for this query.
    let _ = unsafe { syscall(libc::SYS_close, [descriptor as usize, 0, 0, 0, 0, 0]) };
    asked.map(|_| api.features)
}

/// Ends every registration: in ranges that are still mapped, missing pages read as zeros from then on.
impl Drop for Uffd {
    fn drop(&mut self) {
        own_descriptors::close(self.descriptor);
    }
}

impl Uffd {
    /// Opens a userfaultfd with exactly `features`.
    pub fn open(features: u64, kernel_faults: bool) -> Result<Self, Errno> {
        let uffd = Self { descriptor: open_descriptor(kernel_faults)? };
        let mut api = Api { api: 0xaa, features, ioctls: 0 };
        uffd.ioctl(UFFDIO_API, &mut api)?;
        Ok(uffd)
    }

    /// After fork(2): replaces the inherited userfaultfd, which is the parent's, by one of this process, under the same
    /// number.
    pub fn replace_in_child(&self, features: u64, kernel_faults: bool) -> Result<(), Errno> {
        let new = ManuallyDrop::new(Self::open(features, kernel_faults)?);
        crate::raw::replace_descriptor(new.descriptor, self.descriptor)
    }

    /// After fork(2): makes this descriptor, which refers to the parent's userfaultfd, refer to `own`.
    pub fn give_up_for(&self, own: &Uffd) -> Result<(), Errno> {
        let args = [own.descriptor as usize, self.descriptor as usize, libc::O_CLOEXEC as usize, 0, 0, 0];
        // SAFETY: dup3(2) accesses no memory; the replaced userfaultfd is the parent's, where it stays open.
        unsafe { syscall(libc::SYS_dup3, args) }.map(|_| ())
    }

    /// After fork(2), in a child that does not use this value again: closes the child's copy of its parent's
    /// userfaultfd, through which it could write to its parent's memory; without /proc, whatever has its number.
    pub fn close_in_child(&self) {
        if descriptors::has_name(self.descriptor as usize, b"anon_inode:[userfaultfd]") != Ok(false) {
            own_descriptors::close(self.descriptor);
        }
    }

    /// Protects the descriptor from being closed by the program.
    pub fn kept(self) -> Self {
        Self { descriptor: own_descriptors::keep(ManuallyDrop::new(self).descriptor) }
    }

    /// The descriptor, for polling.
    pub fn descriptor(&self) -> i32 {
        self.descriptor
    }

    fn ioctl<T>(&self, request: usize, argument: &mut T) -> Result<(), Errno> {
        let args = [self.descriptor as usize, request, std::ptr::from_mut(argument) as usize, 0, 0, 0];
        // SAFETY: every request constant above encodes the size of the `T` it is used with, which is valid for reads
        // and writes. The effect of a request on mapped memory is covered by the contract of its public function.
        unsafe { syscall(libc::SYS_ioctl, args) }.map(|_| ())
    }

    /// Registers a range. Populated pages stay as they are.
    pub fn register(&self, start: usize, len: usize, mode: u64) -> Result<(), Errno> {
        let mut register = Register { range: Range { start: start as u64, len: len as u64 }, mode, ioctls: 0 };
        self.ioctl(UFFDIO_REGISTER, &mut register)
    }

    /// Ends the registration of a range. Missing pages in it read as zeros from then on.
    pub fn unregister(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.ioctl(UFFDIO_UNREGISTER, &mut Range { start: start as u64, len: len as u64 })
    }

    /// Wakes the threads that wait for faults in the range.
    pub fn wake(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.ioctl(UFFDIO_WAKE, &mut Range { start: start as u64, len: len as u64 })
    }

    /// Moves whole pages from `source` to `target` without copying, and wakes the threads that wait at `target`. With
    /// `holes`, missing pages at the source are skipped. The target must be registered with this userfaultfd.
    ///
    /// # Safety
    /// Both ranges are private anonymous memory of this process that the caller owns in the pager's sense: no
    /// `FrameBuffer` may exist over either.
    pub unsafe fn move_pages(&self, target: usize, source: usize, len: usize, holes: bool) -> Result<(), Partial> {
        let mode = if holes { MOVE_MODE_ALLOW_SRC_HOLES } else { 0 };
        self.transfer(
            UFFDIO_MOVE,
            Transfer { target: target as u64, source: source as u64, len: len as u64, mode, done: 0 },
        )
    }

    /// Copies pages from `source` to missing pages at `target`, and wakes the threads that wait there. With
    /// `protected`, they are installed write-protected.
    ///
    /// # Safety
    /// `source..source + len` is readable and stays unchanged; the target is registered with this userfaultfd.
    pub unsafe fn copy(&self, target: usize, source: usize, len: usize, protected: bool) -> Result<(), Partial> {
        let mode = if protected { COPY_MODE_WP } else { 0 };
        self.transfer(
            UFFDIO_COPY,
            Transfer { target: target as u64, source: source as u64, len: len as u64, mode, done: 0 },
        )
    }

    fn transfer(&self, request: usize, mut transfer: Transfer) -> Result<(), Partial> {
        let len = transfer.len;
        match self.ioctl(request, &mut transfer) {
            Ok(()) if transfer.done as u64 == len => Ok(()),
            Ok(()) => Err(Partial { done: transfer.done.max(0) as usize, errno: Errno(libc::EAGAIN) }),
            Err(errno) => Err(Partial { done: transfer.done.max(0) as usize, errno }),
        }
    }

    /// Maps the zero page at missing pages of the range, and wakes the threads that wait there.
    pub fn zeropage(&self, start: usize, len: usize) -> Result<(), Partial> {
        let mut zero = Zeropage { range: Range { start: start as u64, len: len as u64 }, mode: 0, done: 0 };
        self.ioctl(UFFDIO_ZEROPAGE, &mut zero).map_err(|errno| Partial { done: zero.done.max(0) as usize, errno })
    }

    /// Write-protects the range, or lifts the protection and wakes the waiting threads.
    pub fn write_protect(&self, start: usize, len: usize, protect: bool) -> Result<(), Errno> {
        let range = Range { start: start as u64, len: len as u64 };
        self.ioctl(UFFDIO_WRITEPROTECT, &mut WriteProtect { range, mode: u64::from(protect) })
    }

    /// Marks missing pages of the range as lost: a touch raises SIGBUS (BUS_MCEERR_AR). Since Linux 6.6.
    pub fn poison(&self, start: usize, len: usize) -> Result<(), Partial> {
        let mut poison = Zeropage { range: Range { start: start as u64, len: len as u64 }, mode: 0, done: 0 };
        self.ioctl(UFFDIO_POISON, &mut poison).map_err(|errno| Partial { done: poison.done.max(0) as usize, errno })
    }

    /// Reads one fault message; `None` if there is none now.
    pub fn read_fault(&self) -> Result<Option<FaultMessage>, Errno> {
        #[repr(C)]
        struct Message {
            event: u8,
            reserved: [u8; 7],
            flags: u64,
            address: u64,
            thread: u32,
            padding: u32,
        }
        const EVENT_PAGEFAULT: u8 = 0x12;
        let mut message = Message { event: 0, reserved: [0; 7], flags: 0, address: 0, thread: 0, padding: 0 };
        let args = [self.descriptor as usize, &raw mut message as usize, size_of::<Message>(), 0, 0, 0];
        // SAFETY: read(2) writes at most one message to the pointer, which is valid for that.
        match unsafe { syscall(libc::SYS_read, args) } {
            Ok(read) if read == size_of::<Message>() && message.event == EVENT_PAGEFAULT => Ok(Some(FaultMessage {
                address: message.address,
                write: message.flags & 1 != 0,
                write_protect: message.flags & 2 != 0,
                thread: message.thread,
            })),
            Ok(_) => Ok(None),
            Err(Errno(libc::EAGAIN | libc::EINTR)) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}
