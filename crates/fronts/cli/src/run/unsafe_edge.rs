// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Calls for which Rust has only unsafe functions: code between fork and exec, a signal's default action, and
//! waitpid(2) with every signal. Everything else in this crate is safe code.

#![expect(unsafe_code, reason = "these calls have no safe form; each site says why it is sound")]

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, sigprocmask};
use nix::unistd::{Pid, getpid, getppid};

use crate::stack_limit;

/// Makes the child die when this process dies, even by SIGKILL, and gives it the signal mask and the stack limit that
/// this process was started with.
pub fn tie_to_parent(command: &mut Command, mask: SigSet) {
    let (parent, stack) = (getpid(), stack_limit::before());
    // SAFETY: between fork and exec only async-signal-safe functions may be called, and nothing that could be
    // locked by another thread. The closure makes four plain system calls and allocates nothing.
    unsafe {
        command.pre_exec(move || before_exec(parent, stack, mask).map_err(io::Error::from));
    }
}

fn before_exec(parent: Pid, stack: Option<(u64, u64)>, mask: SigSet) -> Result<(), Errno> {
    set_pdeathsig(Signal::SIGKILL)?;
    // The parent may have died before the line above took effect.
    if getppid() != parent {
        return Err(Errno::ESRCH);
    }
    if let Some((soft, hard)) = stack {
        setrlimit(Resource::RLIMIT_STACK, soft, hard)?;
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)
}

/// Undoes an inherited "ignore SIGCHLD", under which the kernel discards exit statuses.
pub fn keep_exit_statuses() -> Result<(), Errno> {
    // SAFETY: SIG_DFL installs no function of ours, so there is nothing that could run in a signal's context.
    unsafe { nix::sys::signal::signal(Signal::SIGCHLD, SigHandler::SigDfl) }.map(drop)
}

/// Returns a child whose state has changed, and how: it has ended, or was stopped. `None` if there is none now. nix's
/// waitpid fails for a child that a real-time signal has ended, after which its status is gone.
pub fn changed_child() -> Result<Option<(Pid, ExitStatus)>, Errno> {
    let mut status = 0;
    // SAFETY: waitpid(2) writes one number.
    let changed = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
    let process = Errno::result(changed)?;
    Ok((process > 0).then(|| (Pid::from_raw(process), ExitStatus::from_raw(status))))
}
