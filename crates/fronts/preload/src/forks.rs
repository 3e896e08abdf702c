// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program makes a process with a copy of its memory: fork(2), and clone(2) without CLONE_VM.
//!
//! The call is made from the trap handler, between the pager's work before and after it (`pager/src/fork.rs`). The
//! child also returns from the handler: to where its parent made the call, on the stack that the call asked for.
//!
//! A call that nothing sees (by syscall(2) or by the instruction itself, in a process whose calls do not trap) makes a
//! child without the managed memory, because MADV_DONTFORK withholds it: the child ends with SIGSEGV, and never reads
//! zeros.
//!
//! `posix_spawn`, `system`, `popen` and `vfork` share the parent's memory until the exec, and need none of this.
//!
//! Next on the path: `pager/src/fork.rs`.

#![allow(unsafe_code, reason = "the C ABI of the C library, and clone(2)")]

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use aquifer_pager::abort::{abort, say};
use aquifer_pager::signal;
use aquifer_sys::dispatch::{self, Trapped};
use aquifer_sys::raw::Errno;
use aquifer_sys::thread_slot::{self, Forks, Trapping};
use aquifer_sys::{raw, signals};

use crate::calls::HAS_THREADS;
use crate::mappings::ADDRESSES_END;
use crate::program_memory::{can_store_word, is_readable, load, store_word};
use crate::start::{instance, instance_inside};
use crate::{descendants, libc_functions, own_allocator, threads};

/// The structure of clone3(2), in bytes: its first version, more than its longest version so far, and the most that the
/// kernel accepts if the rest is zeros. Then the indices of the words that are read by name.
const CLONE_ARGS_BYTES_MIN: usize = 64;
const CLONE_ARGS_BYTES_MAX: usize = 128;
const CLONE_ARGS_BYTES_TAKEN: usize = 4096;
const FLAGS: usize = 0;
const PIDFD: usize = 1;
const CHILD_TID: usize = 2;
const PARENT_TID: usize = 3;
const STACK: usize = 5;
const STACK_SIZE: usize = 6;

/// Runs `call`, a C library call that copies this process, with trapping on. Where there is always memory to pin, calls
/// trap anyway; otherwise they trap only here, since trapping makes every call slower. `by_library`: the call goes
/// through the C library's fork(), which takes care of the locks of the program's heap.
fn with_trap<T>(by_library: bool, call: impl FnOnce() -> T) -> T {
    let instance = instance();
    let is_active = || instance.is_some_and(|instance| instance.adopter.is_active());
    // Needed below the budget, too: a pager lock held by another thread would stay locked in the child for ever.
    let forking = instance.filter(|_| is_active() || HAS_THREADS.load(Ordering::Relaxed));
    let before = forking.map(|instance| instance.adopter.fork_begins(by_library)).unwrap_or_default();
    // Already armed if a signal handler makes this call, and has interrupted another such call before its system call.
    let was_armed = thread_slot::trapping() == Trapping::Armed;
    let (active, trapped) = (is_active(), forking.is_some() && signal::trap_fork());
    if active && !trapped {
        abort(&[
            "the program forks while part of its memory is evicted, and this kernel does not let system calls be ",
            "trapped (Linux 5.11); give it enough DRAM (--dram) to stay below its budget",
        ]);
    }
    let parent = std::process::id();
    let result = call();
    let errno = signals::errno();
    if trapped && !was_armed {
        dispatch::disarm_after_fork();
    }
    let in_child = std::process::id() != parent;
    instance.inspect(|instance| if in_child { instance.adopter.was_forked() } else { instance.adopter.has_forked() });
    forking.inspect(|instance| instance.adopter.fork_ended(in_child, before));
    signals::set_errno(errno);
    result
}

/// Defines the wrapped functions of the C library that copy the process.
macro_rules! forking {
    ($(
        $(#[$doc:meta])*
        $name:ident = $next:ident($($argument:ident: $kind:ty),*) -> $result:ty = $fails:expr, $by_library:expr;
    )*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// The same as for the C library's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
                // SAFETY: the caller's promise. The C library's own call traps.
                with_trap($by_library, || unsafe { libc_functions::$next().map_or($fails, |function| function($($argument),*)) })
            }
        )*
    };
}

forking! {
    /// Wraps fork(2).
    fork = fork() -> libc::pid_t = -1, true;
    /// Wraps _Fork(3).
    _Fork = fork_alone() -> libc::pid_t = -1, false;
    /// Wraps daemon(3).
    daemon = daemon(stay: c_int, keep: c_int) -> c_int = -1, true;
    /// Wraps forkpty(3).
    forkpty = forkpty(
        master: *mut c_int, name: *mut c_char, term: *const c_void, size: *const c_void
    ) -> c_int = -1, true;
}

/// Wraps clone(2), the C library's function. Takes all the arguments that it can have.
///
/// # Safety
/// The same as for clone(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    run: *const c_void,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut c_void,
    words: *mut c_void,
    child: *mut c_void,
) -> c_int {
    let with = |run, flags, argument| {
        // SAFETY: the caller's promise.
        unsafe { libc_functions::clone().map_or(-1, |clone| clone(run, stack, flags, argument, parent, words, child)) }
    };
    if flags & libc::CLONE_VM != 0 {
        let environment = thread_slot::environment();
        let task = with_pinned_stack(flags, stack as usize, || with(run, flags, argument));
        if flags & libc::CLONE_VFORK != 0 {
            descendants::child_has_left(environment);
        }
        return task;
    }
    let flags = without_shared_table(flags as usize) as c_int;
    // The child's copy of this frame stays intact, since the child has another stack.
    let begins = Begins { run, argument };
    // A signal handler may have interrupted fork(), which holds the locks of the program's heap.
    let by_library = thread_slot::forks() == Forks::default();
    with_trap(by_library, || with(child_begins as *const c_void, flags, (&raw const begins).cast_mut().cast()))
}

/// Makes a task that shares this memory, by `call`, and pins its stack for as long as the task lives: the task has no
/// alternate stack, so a fault on its own stack could not be signalled. With CLONE_VFORK it has its parent's alternate
/// stack, and the parent waits.
fn with_pinned_stack(flags: c_int, top: usize, call: impl FnOnce() -> c_int) -> c_int {
    let instance = instance().filter(|instance| instance.adopter.is_active() && flags & libc::CLONE_VFORK == 0);
    let pinned = instance.map_or(Ok(None), |instance| threads::pin_stack_below(instance, top));
    let Ok(pinned) = pinned else {
        signals::set_errno(libc::EAGAIN);
        return -1;
    };
    let task = call();
    if let (Some(instance), Some(pinned)) = (instance, pinned) {
        match u32::try_from(task) {
            Ok(task) => instance.adopter.pass_pin(pinned, task),
            Err(_) => instance.adopter.release_pin(pinned),
        }
    }
    task
}

/// What a child of clone(2) is to run.
struct Begins {
    run: *const c_void,
    argument: *mut c_void,
}

/// Runs in such a child, from its beginning. It never returns to [`with_trap`]. Where calls do not trap, the library
/// does not see the call that ends it, so its end is handled here.
unsafe extern "C" fn child_begins(begins: *mut c_void) -> c_int {
    // SAFETY: `clone` passes this pointer, and its caller passed a function of this type.
    let (run, argument) = unsafe {
        let begins = &*begins.cast::<Begins>();
        (std::mem::transmute::<*const c_void, unsafe extern "C" fn(*mut c_void) -> c_int>(begins.run), begins.argument)
    };
    if let Some(instance) = instance() {
        // Pinned like a thread's stack. Done first, since the following code blocks all signals.
        let _ = threads::pin_stack(instance);
        instance.adopter.was_forked();
        instance.adopter.fork_ended(true, Forks::default());
    }
    // SAFETY: the caller of `clone` asked for this call.
    let status = unsafe { run(argument) };
    threads::ends(Some(status));
    status
}

/// Returns the flags without the shared descriptor table. A process with a copy of the memory cannot share its parent's
/// descriptor table, which contains the descriptors for the parent's own memory: it gets a copy of the table as well.
fn without_shared_table(flags: usize) -> usize {
    static SAID: AtomicBool = AtomicBool::new(false);
    if flags & libc::CLONE_FILES as usize != 0 && !SAID.swap(true, Ordering::Relaxed) {
        say(&["clone without CLONE_VM cannot share descriptors: CLONE_FILES is ignored, and the child gets copies"]);
    }
    flags & !(libc::CLONE_FILES as usize)
}

/// Returns whether a call makes a process with a copy of this memory.
pub fn copies_memory(number: i64, args: &[usize; 6]) -> bool {
    let flags = match number {
        libc::SYS_fork => 0,
        libc::SYS_vfork => libc::CLONE_VM as usize,
        libc::SYS_clone => args[0],
        // clone3(2)'s structure begins with its flags. If it cannot be read, `make` returns the error.
        _ => load::<u64>(args[0]).map_or(0, |flags| flags as usize),
    };
    flags & libc::CLONE_VM as usize == 0
}

/// Makes the child, and sets the result in both processes.
pub fn make(trapped: &mut Trapped, number: i64, args: [usize; 6]) {
    let Some(instance) = instance_inside() else { return trapped.repeat() };
    let mut structure = [0u64; CLONE_ARGS_BYTES_MAX / 8];
    let (mut args, mut stack) = (args, 0);
    match number {
        libc::SYS_clone => stack = std::mem::take(&mut args[1]),
        libc::SYS_clone3 => {
            match read_structure(args[0], args[1]).and_then(without_stack) {
                Ok(read) => (structure, stack) = read,
                Err(errno) => return trapped.set_result(-(errno.0 as isize)),
            }
            args = [structure.as_ptr() as usize, args[1].min(CLONE_ARGS_BYTES_MAX), 0, 0, 0, 0];
        }
        _ => {}
    }
    let flags = if number == libc::SYS_clone3 { structure[FLAGS] as usize } else { args[0] };
    let flags = if number == libc::SYS_fork { 0 } else { without_shared_table(flags) };
    match number {
        libc::SYS_clone => args[0] = flags,
        libc::SYS_clone3 => structure[FLAGS] = flags as u64,
        _ => {}
    }
    if number != libc::SYS_fork && flags & libc::CLONE_SETTLS as usize != 0 {
        // The child would start in this library's handler with another thread's thread-local memory.
        return trapped.set_result(-(libc::EINVAL as isize));
    }
    let mut pidfd = 0i32;
    let words = Words::take(number, flags, &mut args, &mut structure, &raw mut pidfd as usize);
    if words.pidfd != 0 && !can_store_word(words.pidfd) {
        return trapped.set_result(-(libc::EFAULT as isize));
    }
    let result = instance.adopter.fork(|| {
        own_allocator::at_rest(|| {
            // SAFETY: the program's own call, except for the stack: the child continues on a copy of this one.
            match unsafe { raw::syscall(number, args) } {
                Ok(value) => value as isize,
                Err(errno) => -(errno.0 as isize),
            }
        })
    });
    words.give(result, pidfd);
    if result == 0 && stack != 0 {
        trapped.set_stack(stack);
    }
    trapped.set_result(result);
}

/// Reads the structure of clone3(2), if the kernel would accept it. Only a readable structure counts: some programs
/// pass others to find out what this kernel supports.
fn read_structure(start: usize, len: usize) -> Result<[u64; CLONE_ARGS_BYTES_MAX / 8], Errno> {
    match len {
        0..CLONE_ARGS_BYTES_MIN => return Err(Errno(libc::EINVAL)),
        CLONE_ARGS_BYTES_MIN..=CLONE_ARGS_BYTES_TAKEN => {}
        _ => return Err(Errno(libc::E2BIG)),
    }
    if !is_readable(start, len) {
        return Err(Errno(libc::EFAULT));
    }
    let mut structure = [0u64; CLONE_ARGS_BYTES_MAX / 8];
    // SAFETY: all of it is readable, or evicted: such a fault is resolved as for any load.
    let all = unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(start), len) };
    let known = len.min(CLONE_ARGS_BYTES_MAX);
    if all[known..].iter().any(|byte| *byte != 0) {
        return Err(Errno(libc::E2BIG));
    }
    // SAFETY: the array has as many bytes, and any bytes are words.
    unsafe { std::ptr::copy_nonoverlapping(all.as_ptr(), structure.as_mut_ptr().cast(), known) };
    Ok(structure)
}

/// Takes the stack out of the structure; returns its top. EINVAL for a stack that the kernel would refuse, since the
/// kernel does not see it and cannot refuse it.
fn without_stack(
    mut structure: [u64; CLONE_ARGS_BYTES_MAX / 8],
) -> Result<([u64; CLONE_ARGS_BYTES_MAX / 8], usize), Errno> {
    let (start, len) = (structure[STACK] as usize, structure[STACK_SIZE] as usize);
    let is_stack = start != 0 && len != 0 && start.checked_add(len).is_some_and(|top| top <= ADDRESSES_END);
    match (start, len) {
        (0, 0) => Ok((structure, 0)),
        _ if is_stack => {
            (structure[STACK], structure[STACK_SIZE]) = (0, 0);
            Ok((structure, start + len))
        }
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Words of the program that clone(2) fills. They may be evicted; and if the kernel wrote one in a child before the
/// child's memory is registered, the rest of its page would be zeros. So they are filled here, after the call.
struct Words {
    parent: usize,
    child: usize,
    pidfd: usize,
}

impl Words {
    /// Has the kernel fill none of them, except that it writes a descriptor of the child to the word at `ours`.
    fn take(
        number: i64,
        flags: usize,
        args: &mut [usize; 6],
        structure: &mut [u64; CLONE_ARGS_BYTES_MAX / 8],
        ours: usize,
    ) -> Self {
        let mut words = Self { parent: 0, child: 0, pidfd: 0 };
        if !matches!(number, libc::SYS_clone | libc::SYS_clone3) {
            return words;
        }
        let is_old = number == libc::SYS_clone;
        let given = |flag: i32, old: usize, new: u64| match flags & flag as usize {
            0 => 0,
            _ if is_old => old,
            _ => new as usize,
        };
        words.parent = given(libc::CLONE_PARENT_SETTID, args[2], structure[PARENT_TID]);
        words.child = given(libc::CLONE_CHILD_SETTID, args[3], structure[CHILD_TID]);
        words.pidfd = given(libc::CLONE_PIDFD, args[2], structure[PIDFD]);
        let without = flags & !(libc::CLONE_PARENT_SETTID | libc::CLONE_CHILD_SETTID) as usize;
        if is_old {
            args[0] = without;
        } else {
            structure[FLAGS] = without as u64;
        }
        if words.pidfd != 0 && is_old {
            args[2] = ours;
        } else if words.pidfd != 0 {
            structure[PIDFD] = ours as u64;
        }
        words
    }

    /// Fills the words: called in both processes, with the call's result. A word that is not writable is left alone, as
    /// the kernel does.
    fn give(&self, result: isize, pidfd: i32) {
        let write = |at: usize, value: i32| at != 0 && store_word(at, value);
        match result {
            0 => _ = write(self.child, raw::thread_id() as i32),
            1.. => {
                write(self.parent, result as i32);
                write(self.pidfd, pidfd);
            }
            _ => {}
        }
    }
}
