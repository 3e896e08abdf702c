// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Listener delivery: threads read faults from the userfaultfd and resolve them for the faulting thread.
//!
//! Serves the kernel's own accesses too: a system call with a buffer that is far away just takes longer.
//! There are several listeners, so that one which waits for the medium does not keep others waiting.
//!
//! Next on the path: `resolve.rs`.

use std::time::Duration;

use aquifer_core::units::ThreadIndex;
use aquifer_stats::Counter;
use aquifer_sys::raw::Errno;
use aquifer_sys::wakeup;

use crate::abort::{abort, say};
use crate::pager::{Pager, StartFailure, THREADS_MOST, start_thread};
use crate::resolve::Outcome;

/// Listener threads: a choice, so that some can wait on the medium while others serve. Not measured.
const LISTENERS: usize = 4;

/// How long one wait for a fault lasts. Nothing happens when it ends; it only bounds it.
const WAIT_ONCE: Duration = Duration::from_secs(3600);

/// Starts the listeners, where this process may have them.
pub fn start(pager: &'static Pager) -> Result<(), StartFailure> {
    if pager.listener_uffd().is_none() {
        return Ok(());
    }
    for number in 0..LISTENERS {
        start_thread(format!("aquifer-fault{number}"), move || listen(pager))?;
    }
    Ok(())
}

fn listen(pager: &'static Pager) -> ! {
    let uffd = pager.listener_uffd().expect("listeners run only where there is a descriptor");
    loop {
        match uffd.read_fault() {
            Ok(Some(fault)) => {
                let thread = ThreadIndex((fault.thread % u32::from(THREADS_MOST)) as u16);
                let page = fault.address as usize & !4095;
                match pager.resolve(page, thread, fault.write) {
                    // Installing has woken it, unless another thread's installing came first.
                    Outcome::Resolved => {
                        let _ = uffd.wake(page, 4096);
                        pager.counters.add(Counter::FaultsWrite, u64::from(fault.write));
                    }
                    Outcome::Lost | Outcome::NoRoom if pager.can_poison => {
                        let _ = uffd.poison(page, 4096);
                        let _ = uffd.wake(page, 4096);
                    }
                    Outcome::Lost | Outcome::NoRoom => {
                        abort(&["memory is lost, and this kernel cannot tell the program (UFFDIO_POISON, Linux 6.6)"]);
                    }
                    Outcome::Foreign => {
                        say(&["a fault came for memory that is not managed any more; it is retried"]);
                        let _ = uffd.wake(page, 4096);
                    }
                }
            }
            Ok(None) => {
                wakeup::readable(uffd.descriptor(), WAIT_ONCE);
            }
            Err(Errno(_)) => abort(&["the userfaultfd cannot be read"]),
        }
    }
}
