// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The C library's own functions that the wrappers call, found with dlsym(3) on first use.

#![allow(unsafe_code, reason = "function pointers from the dynamic linker")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Returns the address of the next definition of `name` after this library's.
fn find(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = cache.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: dlsym(3) with a name that ends in NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    cache.store(found, Ordering::Relaxed);
    found
}

macro_rules! next {
    ($($(#[$meta:meta])* $name:ident: $kind:ty = $symbol:literal;)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// The function is to be called as its manual page says.
            pub unsafe fn $name() -> Option<$kind> {
                static CACHE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                let found = find(&CACHE, $symbol);
                // SAFETY: the symbol has this type in every C library for this target; null becomes None.
                unsafe { std::mem::transmute::<*mut c_void, Option<$kind>>(found) }
            }
        )*
    };
}

/// The type of `fread(3)`. A thread may be cancelled in it, and in fwrite(3).
pub type Fread = unsafe extern "C-unwind" fn(*mut c_void, usize, usize, *mut libc::FILE) -> usize;
/// The type of `fwrite(3)`.
pub type Fwrite = unsafe extern "C-unwind" fn(*const c_void, usize, usize, *mut libc::FILE) -> usize;
/// The type of `fork(2)`.
pub type Fork = unsafe extern "C" fn() -> libc::pid_t;
/// The type of `daemon(3)`.
pub type Daemon = unsafe extern "C" fn(c_int, c_int) -> c_int;
/// The type of `forkpty(3)`.
pub type Forkpty = unsafe extern "C" fn(*mut c_int, *mut c_char, *const c_void, *const c_void) -> c_int;
/// The type of `clone(2)`: variadic, which makes no difference to the caller of this ABI.
pub type Clone = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;
/// The type of `sigaction(2)`.
pub type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
/// The type of `dlopen(3)`.
pub type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
/// The type of `dlmopen(3)`.
pub type Dlmopen = unsafe extern "C" fn(libc::c_long, *const c_char, c_int) -> *mut c_void;
/// The type of `signal(2)`.
pub type Signal = unsafe extern "C" fn(c_int, usize) -> usize;

/// The type of `setuid(2)` and similar functions: identities, flags, sizes and addresses, each in its own register.
pub type SetRights = unsafe extern "C" fn(usize, usize, usize, usize, usize) -> c_int;
/// The type of `setsockopt(2)`.
pub type Setsockopt = unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, libc::socklen_t) -> c_int;
/// The type of `syscall(2)`: variadic, which makes no difference to the caller of this ABI.
pub type Syscall = unsafe extern "C" fn(i64, usize, usize, usize, usize, usize, usize) -> isize;
/// The type of `vmsplice(2)`.
pub type Vmsplice = unsafe extern "C" fn(c_int, *const libc::iovec, usize, c_uint) -> isize;

/// The type of `posix_spawn(3)`.
pub type Spawn = unsafe extern "C" fn(
    *mut libc::pid_t,
    *const c_char,
    *const libc::posix_spawn_file_actions_t,
    *const libc::posix_spawnattr_t,
    *const *mut c_char,
    *const *mut c_char,
) -> c_int;
/// The type of `execvp(3)`.
pub type Execvpe = unsafe extern "C" fn(*const c_char, *const *const c_char, *const *const c_char) -> c_int;
/// The type of `system(3)`.
pub type System = unsafe extern "C-unwind" fn(*const c_char) -> c_int;
/// The type of `popen(3)`.
pub type Popen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;
/// The type of `setlocale(3)`.
pub type Setlocale = unsafe extern "C" fn(c_int, *const c_char) -> *mut c_char;
/// The start function of a thread. It may end by unwinding: pthread_exit(3) and cancellation do.
pub type StartRoutine = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;
/// The type of `pthread_create(3)`.
pub type PthreadCreate =
    unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, StartRoutine, *mut c_void) -> c_int;
/// The type of `pthread_attr_getsigmask_np(3)`. Returns 0 if the attributes have a mask.
pub type AttributesMask = unsafe extern "C" fn(*const libc::pthread_attr_t, *mut libc::sigset_t) -> c_int;

/// The type of `timer_create(2)`.
pub type TimerCreate = unsafe extern "C" fn(c_int, *mut libc::sigevent, *mut c_void) -> c_int;
/// The type of `mq_notify(3)`.
pub type MqNotify = unsafe extern "C" fn(c_int, *const libc::sigevent) -> c_int;
/// The type of `aio_read(3)` and `aio_write(3)`.
pub type Aio = unsafe extern "C" fn(*mut c_void) -> c_int;
/// The type of `aio_fsync(3)`.
pub type AioFsync = unsafe extern "C" fn(c_int, *mut c_void) -> c_int;
/// The type of `lio_listio(3)` and `getaddrinfo_a(3)`.
pub type ListIo = unsafe extern "C" fn(c_int, *const *mut c_void, c_int, *mut c_void) -> c_int;

/// The type of `pthread_exit(3)`.
pub type PthreadExit = unsafe extern "C-unwind" fn(*mut c_void) -> !;

next! {
    /// The C library's `pthread_create`.
    pthread_create: PthreadCreate = c"pthread_create";
    /// The C library's `pthread_attr_getsigmask_np`, since 2.32.
    pthread_attr_getsigmask_np: AttributesMask = c"pthread_attr_getsigmask_np";
    /// The C library's `pthread_exit`.
    pthread_exit: PthreadExit = c"pthread_exit";
    /// The C library's `timer_create`.
    timer_create: TimerCreate = c"timer_create";
    /// The C library's `mq_notify`.
    mq_notify: MqNotify = c"mq_notify";
    /// The C library's `aio_read`.
    aio_read: Aio = c"aio_read";
    /// The C library's `aio_read64`.
    aio_read64: Aio = c"aio_read64";
    /// The C library's `aio_write`.
    aio_write: Aio = c"aio_write";
    /// The C library's `aio_write64`.
    aio_write64: Aio = c"aio_write64";
    /// The C library's `aio_fsync`.
    aio_fsync: AioFsync = c"aio_fsync";
    /// The C library's `aio_fsync64`.
    aio_fsync64: AioFsync = c"aio_fsync64";
    /// The C library's `lio_listio`.
    lio_listio: ListIo = c"lio_listio";
    /// The C library's `lio_listio64`.
    lio_listio64: ListIo = c"lio_listio64";
    /// The C library's `getaddrinfo_a`.
    getaddrinfo_a: ListIo = c"getaddrinfo_a";
    /// The C library's `fread`.
    fread: Fread = c"fread";
    /// The C library's `fread_unlocked`.
    fread_unlocked: Fread = c"fread_unlocked";
    /// The C library's `fwrite`.
    fwrite: Fwrite = c"fwrite";
    /// The C library's `fwrite_unlocked`.
    fwrite_unlocked: Fwrite = c"fwrite_unlocked";
    /// The C library's `fork`.
    fork: Fork = c"fork";
    /// The C library's `_Fork`, since 2.34.
    fork_alone: Fork = c"_Fork";
    /// The C library's `daemon`.
    daemon: Daemon = c"daemon";
    /// The C library's `forkpty`.
    forkpty: Forkpty = c"forkpty";
    /// The C library's `clone`.
    clone: Clone = c"clone";
    /// The C library's `setuid`.
    setuid: SetRights = c"setuid";
    /// The C library's `setgid`.
    setgid: SetRights = c"setgid";
    /// The C library's `seteuid`.
    seteuid: SetRights = c"seteuid";
    /// The C library's `setegid`.
    setegid: SetRights = c"setegid";
    /// The C library's `setreuid`.
    setreuid: SetRights = c"setreuid";
    /// The C library's `setregid`.
    setregid: SetRights = c"setregid";
    /// The C library's `setresuid`.
    setresuid: SetRights = c"setresuid";
    /// The C library's `setresgid`.
    setresgid: SetRights = c"setresgid";
    /// The C library's `setgroups`.
    setgroups: SetRights = c"setgroups";
    /// The C library's `initgroups`.
    initgroups: SetRights = c"initgroups";
    /// The C library's `capset`.
    capset: SetRights = c"capset";
    /// The C library's `chroot`.
    chroot: SetRights = c"chroot";
    /// The C library's `unshare`.
    unshare: SetRights = c"unshare";
    /// The C library's `prctl`.
    prctl: SetRights = c"prctl";
    /// The C library's `sigaction`.
    sigaction: Sigaction = c"sigaction";
    /// The C library's `posix_spawn`.
    posix_spawn: Spawn = c"posix_spawn";
    /// The C library's `posix_spawnp`.
    posix_spawnp: Spawn = c"posix_spawnp";
    /// The C library's `execvpe`.
    execvpe: Execvpe = c"execvpe";
    /// The C library's `system`.
    system: System = c"system";
    /// The C library's `popen`.
    popen: Popen = c"popen";
    /// The C library's `setsockopt`.
    setsockopt: Setsockopt = c"setsockopt";
    /// The C library's `vmsplice`.
    vmsplice: Vmsplice = c"vmsplice";
    /// The C library's `syscall`.
    syscall: Syscall = c"syscall";
    /// The C library's `signal`.
    signal: Signal = c"signal";
    /// The C library's `dlopen`.
    dlopen: Dlopen = c"dlopen";
    /// The C library's `dlmopen`.
    dlmopen: Dlmopen = c"dlmopen";
    /// The C library's `setlocale`.
    setlocale: Setlocale = c"setlocale";
}
