// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! System calls that no wrapper sees: from inside the C library, from other libraries, from the program itself.
//!
//! Once there is memory that calls must pin, each thread's calls trap (`sys/src/dispatch.rs`), except this library's
//! own. A call that touches no such memory is made unchanged; the others take the same path as the wrapped ones,
//! `calls.rs`. The library itself answers a few: those that change signal masks and actions, on which trapping itself
//! depends, those that change managed mappings, and those that would close its descriptors.
//!
//! The handler runs at a system call of the program, on the thread's alternate stack. Signals sent by others stay
//! blocked until the handler makes a call that may wait: a handler of the program must find the program's stack in its
//! context, where garbage collectors look for roots.

#![allow(unsafe_code, reason = "a signal handler is given raw pointers by the kernel")]

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use aquifer_pager::abort::say;
use aquifer_pager::signal::pass_on;
use aquifer_sys::dispatch::{self, Trapped};
use aquifer_sys::signals::Interrupted;
use aquifer_sys::{signal_stack, signals};

use crate::calls::Caller;
use crate::guest_memory::{self, Accessor};
use crate::start::instance;
use crate::{
    descriptors, forks, locks, mappings, masks, programs, remap, segments, signal_actions, threads, unmovable,
};

/// PR_SET_SYSCALL_USER_DISPATCH of prctl(2).
const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;

/// Finds this library's own text segment, so that calls from it are never trapped, and that of the C library.
pub fn prepare() {
    let ours = segment_of(on_sigsys as *const () as usize);
    if ours.is_empty() {
        return;
    }
    let libcs = segment_of(libc::gnu_get_libc_version as *const () as usize);
    // SAFETY: neither library can be unloaded; the handler does only what is allowed at a system call: see the module.
    unsafe { dispatch::prepare(ours, libcs, on_sigsys) };
    signal_actions::find_restorer();
}

/// Returns the segment of a program or a library that contains `address`; empty if there is none.
fn segment_of(address: usize) -> Range<usize> {
    extern "C" fn each(entry: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
        let found: *mut Range<usize> = found.cast();
        // SAFETY: the dynamic linker passes a valid entry, and its program headers stay mapped; the pointer is the one
        // to `found` below.
        let (base, headers, address) = unsafe {
            let entry = &*entry;
            let headers = std::slice::from_raw_parts(entry.dlpi_phdr, usize::from(entry.dlpi_phnum));
            (entry.dlpi_addr as usize, headers, (*found).start)
        };
        for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
            let start = base + header.p_vaddr as usize;
            let segment = start..start + header.p_memsz as usize;
            if segment.contains(&address) {
                // SAFETY: as above.
                unsafe { found.write(segment) };
                return 1;
            }
        }
        0
    }
    let mut found = address..address;
    // SAFETY: the callback meets the requirements of dl_iterate_phdr(3).
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut found).cast()) };
    found
}

extern "C-unwind" fn on_sigsys(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, kind: c_int) {
    // SAFETY: the kernel's own pointers, in a handler of SIGSYS.
    let Some(mut trapped) = (unsafe { Trapped::new(info, context, kind) }) else {
        // SAFETY: as above.
        unsafe { pass_on(signal, info, context) };
        return;
    };
    if !trapped.is_native() {
        return trapped.repeat();
    }
    // SAFETY: as above.
    unsafe { signal_stack::reclaim(context) };
    let _at = TrappedAt(signal_stack::trap_begins(trapped.stack()));
    let mask = *trapped.mask();
    let mut closed = Closed(Some(Interrupted::new(mask)));
    let (number, args) = (trapped.number(), trapped.args());
    match number {
        libc::SYS_exit => {
            threads::pin_robust_mutexes();
            threads::ends(Some(args[0] as i32));
            return trapped.call_and_never_return();
        }
        libc::SYS_rt_sigreturn => return trapped.return_from_signal(),
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_vfork | libc::SYS_fork => {
            if forks::copies_memory(number, &args) {
                let errno = signals::errno();
                forks::make(&mut trapped, number, args);
                return signals::set_errno(errno);
            }
            return trapped.repeat();
        }
        libc::SYS_rt_sigprocmask => {
            let result = masks::change(trapped.mask(), &args);
            return trapped.set_result(result);
        }
        libc::SYS_sigaltstack if signal_stack::is_in_use() => {
            let errno = signals::errno();
            let result = threads::exchange_signal_stack(args[0], args[1], trapped.stack());
            trapped.set_result(result.map_or_else(|errno| -(errno.0 as isize), |_| 0));
            return signals::set_errno(errno);
        }
        _ => {}
    }
    if matches!(number, libc::SYS_execve | libc::SYS_execveat) {
        closed.open(mask);
        // SAFETY: the program's own call.
        let result = unsafe { programs::execute(number, args) };
        return trapped.set_result(result);
    }
    let errno = signals::errno();
    if number == libc::SYS_vmsplice {
        closed.open(mask);
    }
    if let Some(result) = answer(number, args) {
        trapped.set_result(result);
        signals::set_errno(errno);
        return;
    }
    let caller = Caller::trapped(trapped.is_cancellation_point());
    let mut masked = masks::WithMask::of(number, args);
    // SAFETY: the program's own call.
    if unsafe { caller.touches(number, &args) } || masked.is_changed() {
        // SAFETY: as above.
        if unsafe { caller.may_wait_outside(number, &args) } && trapped.wait_here() {
            return signals::set_errno(errno);
        }
        closed.open(mask);
        // SAFETY: as above.
        let result = unsafe { caller.call(number, masked.args()) };
        trapped.set_result(result);
        signals::set_errno(errno);
    } else {
        trapped.call_here();
    }
}

/// While it exists, or until `open` is called, signals sent by others are blocked, and the pager's own waits know of
/// the interrupted mask.
struct Closed(Option<Interrupted>);

impl Closed {
    /// Lets signals be delivered as `mask` allows. Called before a call that may wait.
    fn open(&mut self, mask: u64) {
        if let Some(interrupted) = self.0.take() {
            interrupted.end();
            signals::set_mask(mask);
        }
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.take().inspect(Interrupted::end);
    }
}

/// The position of the program's stack at the enclosing call.
struct TrappedAt(usize);

impl Drop for TrappedAt {
    fn drop(&mut self) {
        signal_stack::trap_ends(self.0);
    }
}

/// Returns the result of a call that the library answers itself; `None` for a call that goes to the kernel.
fn answer(number: i64, args: [usize; 6]) -> Option<isize> {
    let adopter = &instance()?.adopter;
    let address = || std::ptr::with_exposed_provenance_mut::<c_void>(args[0]);
    let managed = |start: usize, len: usize| adopter.manages(start, len.max(1));
    let known = |start: usize, len: usize| managed(start, len) || adopter.reserves(start, len);
    // SAFETY: the program's own call, made by the function that replaces it.
    let result = unsafe {
        match number {
            libc::SYS_rt_sigaction => return masks::action(&args),
            libc::SYS_close | libc::SYS_close_range | libc::SYS_dup2 | libc::SYS_dup3 => {
                return descriptors::answer(number, &args);
            }
            libc::SYS_mmap if args[3] & libc::MAP_FIXED as usize != 0 && known(args[0], args[1]) => {
                return Some(mappings::replace(args));
            }
            libc::SYS_mprotect | libc::SYS_pkey_mprotect => {
                mappings::open(adopter, args[0], args[1], args[2]);
                return None;
            }
            libc::SYS_munmap if known(args[0], args[1]) => mappings::unmap(address(), args[1]) as isize,
            libc::SYS_madvise if managed(args[0], args[1]) => {
                mappings::advise(address(), args[1], args[2] as c_int) as isize
            }
            libc::SYS_mremap
                if known(args[0], args[1])
                    || (args[3] & libc::MREMAP_FIXED as usize != 0 && known(args[4], args[2])) =>
            {
                remap::remap(address(), args[1], args[2], args[3] as c_int, args[4])
            }
            libc::SYS_shmat if args[2] & libc::SHM_REMAP as usize != 0 => return Some(segments::attach(args)),
            libc::SYS_mlock => return Some(locks::lock(libc::SYS_mlock, args)),
            libc::SYS_mlock2 => return Some(locks::lock(libc::SYS_mlock2, args)),
            libc::SYS_munlock => return Some(locks::unlock(args)),
            libc::SYS_mlockall => return Some(locks::lock_all(args[0])),
            libc::SYS_munlockall => return Some(locks::unlock_all()),
            libc::SYS_prctl if args[0] == PR_SET_SYSCALL_USER_DISPATCH => return Some(-(libc::EINVAL as isize)),
            libc::SYS_io_uring_setup => return Some(refuse_rings(adopter.copies())),
            libc::SYS_ioctl => {
                return guest_memory::accessor_to_refuse(adopter, args[1], args[2]).map(refuse_guest_memory);
            }
            libc::SYS_io_setup if adopter.copies() => return Some(refuse_asynchronous_io()),
            libc::SYS_setsockopt => return unmovable::refuse_zero_copy(&args),
            libc::SYS_vmsplice => return unmovable::splice(adopter, args),
            // Emptying memory this way would bypass the tier. Before Linux 6.13 the kernel accepted no such advice.
            libc::SYS_process_madvise if !may_be_advised_from_outside(args[3] as c_int) => {
                return Some(-(libc::EINVAL as isize));
            }
            _ => return None,
        }
    };
    Some(if result == -1 { -(signals::errno() as isize) } else { result })
}

/// Returns whether process_madvise(2) has accepted the advice from the beginning. None of these discards contents.
fn may_be_advised_from_outside(advice: c_int) -> bool {
    matches!(advice, libc::MADV_COLD | libc::MADV_PAGEOUT | libc::MADV_WILLNEED | mappings::MADV_COLLAPSE)
}

/// Refuses an io_uring, which reads and writes without a visible call of the program, so nothing pins its memory. Under
/// signal delivery, the kernel could find it evicted; where eviction copies pages, it could be evicted during a
/// transfer.
fn refuse_rings(copies: bool) -> isize {
    static SAID: AtomicBool = AtomicBool::new(false);
    if copies {
        return refuse(&SAID, &["io_uring", COPIES]);
    }
    refuse(&SAID, &["io_uring is refused (ENOSYS) beside memory with signal delivery; run with --delivery listener"])
}

/// Refuses the memory of a guest to KVM or vhost: the kernel's access to an evicted page would be an error, and end the
/// guest, or its device.
fn refuse_guest_memory(accessor: Accessor) -> isize {
    static SAID: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
    let name = match accessor {
        Accessor::Kvm => "KVM",
        Accessor::Vhost => "vhost",
    };
    refuse(
        &SAID[accessor as usize],
        &[name, " is refused (ENOSYS) memory with signal delivery; run with --delivery listener"],
    )
}

/// Refuses asynchronous I/O: io_submit(2) returns while the device still writes.
fn refuse_asynchronous_io() -> isize {
    static SAID: AtomicBool = AtomicBool::new(false);
    refuse(&SAID, &["asynchronous I/O (io_setup)", COPIES])
}

const COPIES: &str = " is refused (ENOSYS), since pages cannot be moved here, and copying one away could lose what a \
                      device writes to it; use Linux 6.8 or newer without --exchange copy";

/// Reports why, once.
fn refuse(said: &AtomicBool, why: &[&str]) -> isize {
    if !said.swap(true, Ordering::Relaxed) {
        say(why);
    }
    -(libc::ENOSYS as isize)
}
