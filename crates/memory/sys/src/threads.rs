// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Threads of the library itself, created by pthread_create(3) and not by the standard library.
//!
//! A standard library thread registers destructors when it starts, for which the C library takes the dynamic linker's
//! lock. A library's constructor that allocates can start the pager while that lock is held. The pager waits for its
//! threads to start, and they would wait for the lock.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;

use crate::raw::{Errno, syscall};

/// The PR_SET_NAME of prctl(2).
const PR_SET_NAME: usize = 15;

type Run = Box<dyn FnOnce() + Send>;

/// The work of a new thread.
struct Job {
    name: &'static CStr,
    run: Run,
}

/// Starts a detached thread. `name` is at most 15 bytes long.
///
/// `run` must not use thread-locals with destructors, since registering them takes the same lock.
pub fn start(name: &'static CStr, stack_bytes: usize, run: Run) -> Result<(), Errno> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let job = Box::into_raw(Box::new(Job { name, run }));
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: the attributes are initialised first, and used until they are destroyed; the thread receives `job`, which
    // nothing else uses any more, and `enter`, which expects that pointer.
    let error = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack_bytes);
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        let error = libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), enter, job.cast());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        error
    };
    if error != 0 {
        // SAFETY: no thread was created, so the pointer from `into_raw` above has no other user.
        drop(unsafe { Box::from_raw(job) });
        return Err(Errno(error));
    }
    Ok(())
}

/// The number of threads of this process; 0 without /proc.
pub fn of_this_process() -> u64 {
    // A directory has two links, and one for each directory in it.
    const OWN_LINKS: u64 = 2;
    let mut found = MaybeUninit::<libc::stat>::uninit();
    let args = [libc::AT_FDCWD as usize, c"/proc/self/task".as_ptr() as usize, found.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: newfstatat(2) reads a path that ends in NUL, and fills the structure if it succeeds.
    match unsafe { syscall(libc::SYS_newfstatat, args) } {
        // SAFETY: as above.
        Ok(_) => unsafe { found.assume_init() }.st_nlink.saturating_sub(OWN_LINKS),
        Err(_) => 0,
    }
}

extern "C" fn enter(job: *mut c_void) -> *mut c_void {
    // SAFETY: `start` made this pointer from a `Box<Job>`, and passes it once.
    let job = unsafe { Box::from_raw(job.cast::<Job>()) };
    let Job { name, run } = *job;
    // SAFETY: prctl(2) reads the name, which ends in NUL.
    let _ = unsafe { syscall(libc::SYS_prctl, [PR_SET_NAME, name.as_ptr() as usize, 0, 0, 0, 0]) };
    run();
    std::ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_thread_runs_under_its_name() {
        let (sender, receiver) = mpsc::channel();
        let run = move || {
            let name = std::fs::read_to_string("/proc/thread-self/comm").expect("procfs is there");
            sender.send(name).expect("the test waits");
        };
        start(c"aquifer-test", 256 << 10, Box::new(run)).expect("one more thread can be had");
        assert_eq!(receiver.recv().expect("it runs").trim_end(), "aquifer-test");
    }

    #[test]
    fn a_stack_that_is_too_large_is_refused() {
        assert!(start(c"aquifer-test", 1 << 46, Box::new(|| ())).is_err());
    }
}
