// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Starts programs: their paths, arguments and environments must be resident when another process, which shares this
//! memory and whose calls do not trap, passes them to the kernel.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::{c_char, c_int};

use aquifer_sys::{signals, thread_slot};

use crate::calls::{Add, Caller, in_libcs_manner};
use crate::descendants;
use crate::libc_functions;
use crate::pointers::STRUCTURE_BYTES;
use crate::start::instance;

unsafe extern "C" {
    static environ: *const *const c_char;
}

type Words = *const *const c_char;

/// Declares one of the posix_spawn(3) family.
macro_rules! spawn {
    ($name:ident, $may:path) => {
        #[doc = concat!("Wraps ", stringify!($name), "(3).")]
        ///
        /// # Safety
        /// The caller must keep the rules of its manual page.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pid: *mut libc::pid_t,
            path: *const c_char,
            actions: *const libc::posix_spawn_file_actions_t,
            attributes: *const libc::posix_spawnattr_t,
            words: *const *mut c_char,
            environment: *const *mut c_char,
        ) -> c_int {
            // SAFETY: the symbol is libc's.
            let Some(spawn) = (unsafe { libc_functions::$name() }) else { return libc::ENOSYS };
            if !$may(path) {
                return libc::EACCES;
            }
            descendants::with_environment(environment.expose_provenance(), |environment| {
                let strings: *const *mut c_char = std::ptr::with_exposed_provenance(environment);
                // SAFETY: the caller's promise.
                unsafe {
                    let mut own = |add: &mut Add<'_>| {
                        if !attributes.is_null() {
                            add(attributes as usize, size_of::<libc::posix_spawnattr_t>());
                        }
                        each_in_actions(actions as usize, add);
                    };
                    Caller::with_strings([path as usize, words as usize, environment], &mut own, || {
                        spawn(pid, path, actions, attributes, words, strings)
                    })
                }
            })
        }
    };
}

spawn!(posix_spawn, may_spawn);
spawn!(posix_spawnp, descendants::may_execute_found);

/// glibc's `posix_spawn_file_actions_t`.
#[repr(C)]
struct FileActions {
    allocated: c_int,
    used: c_int,
    actions: usize,
}

/// glibc's `struct __spawn_action`: what to do, and for [`OPEN`] a descriptor and a path, for [`CHDIR`] a path.
#[repr(C)]
struct FileAction {
    tag: c_int,
    words: [usize; 3],
}

const OPEN: c_int = 2;
const CHDIR: c_int = 3;
/// How many file actions are pinned: more than any program adds. A choice.
const FILE_ACTIONS_MAX: usize = 4096;

/// Calls `add` with the memory that the child reads for these file actions, without its signals' handlers.
///
/// # Safety
/// `actions` is 0, or the address of a `posix_spawn_file_actions_t` that the C library has made.
unsafe fn each_in_actions(actions: usize, add: &mut Add<'_>) {
    if actions == 0 {
        return;
    }
    add(actions, size_of::<FileActions>());
    // SAFETY: the caller's promise.
    let list = unsafe { std::ptr::with_exposed_provenance::<FileActions>(actions).read() };
    let count = usize::try_from(list.used).unwrap_or(0).min(FILE_ACTIONS_MAX);
    add(list.actions, count * size_of::<FileAction>());
    for index in 0..count {
        // SAFETY: the C library has this many in its array.
        let action = unsafe { std::ptr::with_exposed_provenance::<FileAction>(list.actions).add(index).read() };
        match action.tag {
            OPEN => add(action.words[1], STRUCTURE_BYTES),
            CHDIR => add(action.words[0], STRUCTURE_BYTES),
            _ => {}
        }
    }
}

fn may_spawn(path: *const c_char) -> bool {
    descendants::may_execute(path.expose_provenance())
}

/// Makes vfork(2) by this library's own code, which does not trap. A trapped call that returns twice has to be repeated
/// at its call site, and after that no call of the thread traps until the thread enters the library again. Until then
/// its calls could meet evicted memory.
///
/// # Safety
/// The same as for vfork(2).
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> libc::pid_t {
    // The return address is kept in a register, because the child returns first and uses the stack. The value that the
    // parent needs afterwards is kept in another.
    std::arch::naked_asm!(
        "sub rsp, 8",
        "call {begins}",
        "add rsp, 8",
        "mov rsi, rax",
        "pop rdi",
        "mov eax, {number}",
        "syscall",
        "push rdi",
        "test rax, rax",
        "jnz 2f",
        "ret",
        "2:",
        "mov rdi, rax",
        "jmp {ends}",
        begins = sym vfork_begins,
        number = const libc::SYS_vfork,
        ends = sym vfork_ends,
    )
}

/// Does the pending work of this thread, such as starting the pager, because the child cannot do it.
extern "C" fn vfork_begins() -> usize {
    let errno = signals::errno();
    let _ = instance();
    signals::set_errno(errno);
    thread_slot::environment()
}

/// Runs in the parent, after the child has exited or executed a program, or could not be created.
extern "C" fn vfork_ends(result: isize, environment: usize) -> libc::pid_t {
    descendants::child_has_left(environment);
    // The child may have mapped memory here, and could not start the pager.
    let errno = signals::errno();
    let _ = instance();
    signals::set_errno(errno);
    in_libcs_manner(result) as libc::pid_t
}

/// Wraps execve(2).
///
/// # Safety
/// The same as for execve(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, words: Words, environment: Words) -> c_int {
    let args = [path as usize, words as usize, environment as usize, 0, 0, 0];
    // SAFETY: the caller's promise.
    in_libcs_manner(unsafe { execute(libc::SYS_execve, args) }) as c_int
}

/// Makes execve(2) or execveat(2), with the entries that the new program needs in its environment. Errors are negative.
///
/// # Safety
/// The same as for the call.
pub unsafe fn execute(number: i64, mut args: [usize; 6]) -> isize {
    let (may, at) = match number {
        libc::SYS_execveat => (descendants::may_execute_at(args[0], args[1]), 3),
        _ => (descendants::may_execute(args[0]), 2),
    };
    if !may {
        return -(libc::EACCES as isize);
    }
    descendants::with_environment(args[at], |environment| {
        args[at] = environment;
        // SAFETY: the caller's promise.
        unsafe { Caller::trapped(false).call(number, args) }
    })
}

/// Wraps execveat(2).
///
/// # Safety
/// The same as for execveat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    directory: c_int,
    path: *const c_char,
    words: Words,
    environment: Words,
    flags: c_int,
) -> c_int {
    let args = [directory as usize, path as usize, words as usize, environment as usize, flags as usize, 0];
    // SAFETY: the caller's promise.
    in_libcs_manner(unsafe { execute(libc::SYS_execveat, args) }) as c_int
}

/// Wraps fexecve(3).
///
/// # Safety
/// The same as for fexecve(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(program: c_int, words: Words, environment: Words) -> c_int {
    if program < 0 || words.is_null() || environment.is_null() {
        return in_libcs_manner(-(libc::EINVAL as isize)) as c_int;
    }
    // SAFETY: the caller's promise.
    unsafe { execveat(program, c"".as_ptr(), words, environment, libc::AT_EMPTY_PATH) }
}

/// Wraps execv(3).
///
/// # Safety
/// The same as for execv(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, words: Words) -> c_int {
    // SAFETY: the caller's promise; the environment is the C library's.
    unsafe { execve(path, words, environ) }
}

/// Wraps execvpe(3).
///
/// # Safety
/// The same as for execvpe(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, words: Words, environment: Words) -> c_int {
    if !descendants::may_execute_found(file) {
        return in_libcs_manner(-(libc::EACCES as isize)) as c_int;
    }
    descendants::with_environment(environment.expose_provenance(), |environment| {
        let strings: Words = std::ptr::with_exposed_provenance(environment);
        // SAFETY: the caller's promise; the symbol is libc's.
        unsafe {
            Caller::with_strings([file as usize, words as usize, environment], &mut |_| {}, || {
                libc_functions::execvpe().map_or(-1, |execvpe| execvpe(file, words, strings))
            })
        }
    })
}

/// Wraps execvp(3).
///
/// # Safety
/// The same as for execvp(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, words: Words) -> c_int {
    // SAFETY: the caller's promise; the environment is the C library's.
    unsafe { execvpe(file, words, environ) }
}

/// Pins the strings that system(3) and popen(3) will pass, as far as they are the program's.
///
/// # Safety
/// `command` is null or ends in NUL.
unsafe fn with_command<T>(command: *const c_char, call: impl FnOnce() -> T) -> T {
    let words = [command, std::ptr::null()];
    descendants::with_own_environment(|| {
        // SAFETY: the caller's promise; the environment is the C library's.
        unsafe { Caller::with_strings([0, words.as_ptr() as usize, environ as usize], &mut |_| {}, call) }
    })
}

/// Wraps system(3).
///
/// # Safety
/// The same as for system(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    // SAFETY: the caller's promise; the symbol is libc's.
    unsafe { with_command(command, || libc_functions::system().map_or(-1, |system| system(command))) }
}

/// Wraps popen(3).
///
/// # Safety
/// The same as for popen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut libc::FILE {
    // SAFETY: the caller's promise; the symbol is libc's.
    unsafe {
        with_command(command, || libc_functions::popen().map_or(std::ptr::null_mut(), |popen| popen(command, kind)))
    }
}
