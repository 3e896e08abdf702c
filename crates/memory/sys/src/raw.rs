// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! System calls without libc: no errno, no symbol that a preloaded library could have replaced.
//!
//! The fault path runs inside signal handlers of programs whose `read` and `mmap` are Aquifer's own wrappers, so it
//! must not go through them. Errors are returned as [`Errno`], never through a thread-local.

use std::arch::asm;
use std::fmt;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!(
    "Aquifer runs on Linux on x86-64; other targets need their system call and signal frame layouts in crates/memory/sys"
);

/// An error number from the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (errno {})", self.name(), self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl Errno {
    /// The symbolic name of an error that messages mention.
    pub fn name(self) -> &'static str {
        match self.0 {
            libc::EPERM => "EPERM",
            libc::ENOENT => "ENOENT",
            libc::EINTR => "EINTR",
            libc::EIO => "EIO",
            libc::EBADF => "EBADF",
            libc::EAGAIN => "EAGAIN",
            libc::ENOMEM => "ENOMEM",
            libc::EACCES => "EACCES",
            libc::EFAULT => "EFAULT",
            libc::EBUSY => "EBUSY",
            libc::EEXIST => "EEXIST",
            libc::EINVAL => "EINVAL",
            libc::ENFILE => "ENFILE",
            libc::EMFILE => "EMFILE",
            libc::EFBIG => "EFBIG",
            libc::ENOSPC => "ENOSPC",
            libc::ENOSYS => "ENOSYS",
            libc::ESRCH => "ESRCH",
            libc::ETIMEDOUT => "ETIMEDOUT",
            _ => "error",
        }
    }
}

/// One system call with up to six arguments.
///
/// # Safety
/// As for the system call that `number` names: pointers among the arguments must be valid for its use of them, and the
/// call must not break memory that safe code relies on.
#[inline]
pub unsafe fn syscall(number: i64, args: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the kernel clobbers only rcx and r11, in addition to the effects that the caller has vouched for.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    if (-4095..0).contains(&result) { Err(Errno(-result as i32)) } else { Ok(result as usize) }
}

/// Makes the number `old` refer to the file of `new`, and closes `new`.
pub(crate) fn replace_descriptor(new: i32, old: i32) -> Result<(), Errno> {
    // SAFETY: dup3(2) accesses no memory; `old` belongs to the caller, who wants it replaced.
    let replaced = unsafe { syscall(libc::SYS_dup3, [new as usize, old as usize, libc::O_CLOEXEC as usize, 0, 0, 0]) };
    // SAFETY: closes the caller's `new`, whose file now has the number `old`, or is not wanted.
    let _ = unsafe { syscall(libc::SYS_close, [new as usize, 0, 0, 0, 0, 0]) };
    replaced.map(|_| ())
}

/// The kernel's number of the calling thread.
pub fn thread_id() -> u32 {
    // SAFETY: gettid(2) has no arguments and cannot fail.
    unsafe { syscall(libc::SYS_gettid, [0; 6]) }.unwrap_or(0) as u32
}

/// The process's number. Not the C library's function, so that it may be called anywhere.
pub fn process_id() -> u32 {
    // SAFETY: getpid(2) has no arguments and cannot fail.
    unsafe { syscall(libc::SYS_getpid, [0; 6]) }.unwrap_or(0) as u32
}

/// The number of the CPU that the calling thread runs on at this moment. Without a system call if the C library or the
/// vDSO can provide it.
pub fn current_cpu() -> usize {
    // SAFETY: sched_getcpu(3) has no arguments, reads data that the kernel keeps for the thread, and may run in a
    // handler.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// Unpredictable bits: getrandom(2).
pub fn random() -> Result<u64, Errno> {
    let mut bits = 0u64;
    // SAFETY: getrandom(2) writes eight bytes, the size of `bits`; it never returns fewer for such a small request.
    unsafe { syscall(libc::SYS_getrandom, [&raw mut bits as usize, 8, 0, 0, 0, 0]) }?;
    Ok(bits)
}

/// Ends the process, with all its threads. A filter may refuse exit_group(2): then a privileged instruction raises a
/// signal, repeatedly if the program handles it.
pub fn exit_process(status: i32) -> ! {
    loop {
        // SAFETY: exit_group(2) does not return where it is allowed; `hlt` is a privileged instruction, and raises
        // SIGSEGV.
        unsafe {
            let _ = syscall(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]);
            asm!("hlt", options(nomem, nostack, preserves_flags));
        }
    }
}

/// Writes to standard error, for messages from code that may not allocate; a failure is ignored.
pub fn write_stderr(bytes: &[u8]) {
    // SAFETY: write(2) only reads `bytes`, which is valid for the call.
    let _ = unsafe { syscall(libc::SYS_write, [2, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) };
}

/// CPU time of the calling thread, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Sets the calling thread's nice value; greater values mean a lower priority. See setpriority(2).
pub fn lower_priority(nice: i32) -> Result<(), Errno> {
    // SAFETY: setpriority(2) accesses no memory; 0 is the calling thread.
    unsafe { syscall(libc::SYS_setpriority, [libc::PRIO_PROCESS as usize, 0, nice as usize, 0, 0, 0]) }.map(|_| ())
}

/// Nanoseconds of the monotonic clock. Through the vDSO, so without entering the kernel.
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime(2) writes one timespec to the pointer, which is valid.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
