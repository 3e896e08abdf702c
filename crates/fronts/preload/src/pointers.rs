// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which memory a system call touches: a table, and the one place to change when the kernel extends a call.
//!
//! Pure. A call that is not listed is `Plain` with arguments of [`STRUCTURE_BYTES`]: right for every call whose
//! arguments are numbers, paths or structures. See the manual pages in section 2.

/// The most that an argument without its own length points to: a path (PATH_MAX), or any kernel structure.
pub const STRUCTURE_BYTES: usize = 4096;

/// How a call's memory is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One buffer: address and length are arguments 1 and 2.
    Bytes {
        /// Whether the call fills the buffer.
        reads: bool,
    },
    /// One `msghdr` at argument 1.
    Message {
        /// Whether the call fills the message.
        reads: bool,
    },
    /// `mmsghdr`s at argument 1; argument 2 is their number.
    Messages,
    /// Every argument that points into managed memory points to [`length`] bytes.
    Plain,
    /// A local vector at argument 1, with its length in argument 2, that is not split into windows; and for
    /// process_vm_readv(2) a remote one at argument 3, which may be the program's own memory.
    Remote,
    /// Arrays of strings: execve(2). The number is the index of the argument with the path.
    Strings(usize),
    /// Pointers to `iocb`s at argument 2; argument 1 is their number.
    Submit,
    /// A vector at argument 1, with its length in argument 2.
    Vector {
        /// Whether the call fills the vector.
        reads: bool,
    },
    /// This many `struct futex_waitv`s at argument 0: each has the address of a word, as for `Word`.
    Waiters(usize),
    /// A word that the kernel reads, and no longer needs while the call waits: futex(2).
    Word,
}

/// Returns the shape of one call.
pub fn shape(number: i64, args: &[usize; 6]) -> Shape {
    match number {
        libc::SYS_read | libc::SYS_pread64 | libc::SYS_recvfrom => Shape::Bytes { reads: true },
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_sendto => Shape::Bytes { reads: false },
        // `unmovable.rs` answers vmsplice(2) to a pipe; the remaining calls read from one.
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 | libc::SYS_vmsplice => Shape::Vector { reads: true },
        libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => Shape::Vector { reads: false },
        libc::SYS_recvmsg => Shape::Message { reads: true },
        libc::SYS_sendmsg => Shape::Message { reads: false },
        libc::SYS_recvmmsg | libc::SYS_sendmmsg => Shape::Messages,
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => Shape::Remote,
        libc::SYS_io_submit => Shape::Submit,
        libc::SYS_execve => Shape::Strings(0),
        libc::SYS_execveat => Shape::Strings(1),
        libc::SYS_futex | SYS_FUTEX_WAIT | SYS_FUTEX_WAKE => Shape::Word,
        SYS_FUTEX_WAITV => Shape::Waiters(args[1].min(FUTEX_WAITERS_MAX)),
        // Requeues from one word to another.
        SYS_FUTEX_REQUEUE => Shape::Waiters(2),
        _ => Shape::Plain,
    }
}

/// Maximum number of messages that one sendmmsg(2) sends: UIO_MAXIOV. The kernel ignores further ones without an error;
/// recvmmsg(2) has no such bound.
const SENT_MESSAGES_MAX: usize = 1024;

/// Returns how many messages a call of [`Shape::Messages`] is for. The kernel reads an `unsigned int`, and ignores the
/// upper half of the register.
pub fn message_count(number: i64, args: &[usize; 6]) -> usize {
    let count = args[2] as u32 as usize;
    if number == libc::SYS_sendmmsg { count.min(SENT_MESSAGES_MAX) } else { count }
}

/// Returns whether the structures that a call's arguments point to may contain pointers; `inner_pointers.rs` guesses
/// which.
pub fn points_on(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_bpf
            | libc::SYS_getsockopt
            | libc::SYS_ioctl
            | libc::SYS_keyctl
            | libc::SYS_prctl
            | libc::SYS_pselect6
            | libc::SYS_seccomp
            | libc::SYS_setsockopt
            | SYS_IO_PGETEVENTS
    )
}

/// io_pgetevents(2), which libc has no name for on this target.
pub const SYS_IO_PGETEVENTS: i64 = 333;

// Linux 6.10.
const SYS_MSEAL: i64 = 462;

// Linux 5.16.
pub const SYS_FUTEX_WAITV: i64 = 449;
/// `struct futex_waitv`: a value, the word's address, flags.
pub const FUTEX_WAITER_BYTES: usize = 24;
/// The kernel's FUTEX_WAITV_MAX.
const FUTEX_WAITERS_MAX: usize = 128;

// Linux 6.7.
const SYS_FUTEX_WAKE: i64 = 454;
const SYS_FUTEX_WAIT: i64 = 455;
pub const SYS_FUTEX_REQUEUE: i64 = 456;

/// More array items than any call accepts: poll(2) accepts as many as there may be descriptors, other calls fewer.
const ITEMS_MAX: usize = 1 << 30;

/// Returns whether a call takes no arguments. Whatever is in the registers is left from earlier code.
fn has_no_arguments(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_getegid
            | libc::SYS_geteuid
            | libc::SYS_getgid
            | libc::SYS_getpgrp
            | libc::SYS_getpid
            | libc::SYS_getppid
            | libc::SYS_gettid
            | libc::SYS_getuid
            | libc::SYS_inotify_init
            | libc::SYS_munlockall
            | libc::SYS_pause
            | libc::SYS_restart_syscall
            | libc::SYS_sched_yield
            | libc::SYS_setsid
            | libc::SYS_sync
            | libc::SYS_vhangup
    )
}

/// Returns how many bytes the argument `index` of a call points to, if it points anywhere.
pub fn length(number: i64, index: usize, args: &[usize; 6]) -> usize {
    // If there are more items than the kernel accepts, it looks at none.
    let items = |count: usize, size: usize| if args[count] <= ITEMS_MAX { args[count] * size } else { 0 };
    let bytes = match (number, index) {
        _ if has_no_arguments(number) => 0,
        // A range whose contents the call does not read: for mincore(2), making it resident would falsify the result.
        (
            libc::SYS_brk
            | libc::SYS_madvise
            | libc::SYS_mbind
            | libc::SYS_mincore
            | libc::SYS_mmap
            | libc::SYS_mprotect
            | libc::SYS_msync
            | libc::SYS_munmap
            | libc::SYS_pkey_mprotect
            | SYS_MSEAL,
            0,
        )
        | (libc::SYS_mremap, 0 | 4) => 0,
        (libc::SYS_getcwd | libc::SYS_getrandom, 0) => args[1],
        (
            libc::SYS_getdents64
            | libc::SYS_getdents
            | libc::SYS_readlink
            | libc::SYS_listxattr
            | libc::SYS_llistxattr
            | libc::SYS_flistxattr
            | libc::SYS_mq_timedsend
            | libc::SYS_mq_timedreceive
            | libc::SYS_syslog
            | libc::SYS_bpf,
            1,
        ) => args[2],
        (
            libc::SYS_getxattr
            | libc::SYS_lgetxattr
            | libc::SYS_fgetxattr
            | libc::SYS_setxattr
            | libc::SYS_lsetxattr
            | libc::SYS_fsetxattr
            | libc::SYS_readlinkat
            | libc::SYS_add_key,
            2,
        ) => args[3],
        (libc::SYS_setsockopt, 3) | (libc::SYS_sched_setaffinity | libc::SYS_sched_getaffinity, 2) => {
            args[if index == 3 { 4 } else { 1 }]
        }
        (libc::SYS_msgsnd | libc::SYS_msgrcv, 1) => args[2].saturating_add(size_of::<i64>()),
        (libc::SYS_poll | libc::SYS_ppoll, 0) => items(1, size_of::<libc::pollfd>()),
        (libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2, 1) => {
            items(2, size_of::<libc::epoll_event>())
        }
        (libc::SYS_getgroups | libc::SYS_setgroups, 1) => items(0, size_of::<libc::gid_t>()),
        (libc::SYS_semop | libc::SYS_semtimedop, 1) => items(2, size_of::<libc::sembuf>()),
        (libc::SYS_io_getevents | SYS_IO_PGETEVENTS, 3) => items(2, IO_EVENT_BYTES),
        (libc::SYS_mincore, 2) => args[1].div_ceil(4096),
        (libc::SYS_move_pages, 2..=4) => items(1, size_of::<usize>()),
        (SYS_FUTEX_WAITV, 0) => items(1, FUTEX_WAITER_BYTES),
        (libc::SYS_keyctl, 2) => args[3],
        // Bits 16 to 29 of a request are the size of its argument, or zero for old requests.
        (libc::SYS_ioctl, 2) => args[1] >> 16 & 0x3fff,
        _ => STRUCTURE_BYTES,
    };
    bytes.max(if number == libc::SYS_ioctl { STRUCTURE_BYTES } else { 0 })
}

/// `struct io_event` of io_getevents(2).
const IO_EVENT_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    /// pause(2) was made in the handler of trapped calls if a register happened to hold an address in the heap: a
    /// debugger then saw Aquifer's stack.
    #[test]
    fn a_call_without_arguments_touches_nothing() {
        let args = [0x10000; 6];
        assert!((0..6).all(|index| length(libc::SYS_pause, index, &args) == 0));
        assert!(length(libc::SYS_uname, 0, &args) > 0);
    }
}
